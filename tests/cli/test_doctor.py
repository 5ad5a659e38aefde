"""`interlock doctor`: finds what is wrong, and says how to mend it."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from interlock.call import UpstreamGoneError
from interlock.cli.diagnosis import advice
from interlock.config import ServerConfig
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from tests.cli.program import DEMO, World

NEEDS_A_KEY = """
import sys
print("starting up", file=sys.stderr)
print("Error: WEATHER_API_KEY is not set, password=hunter2hunter2", file=sys.stderr)
sys.exit(3)
"""
CHATTY = """
import sys, time
print("Listening on port 3000", flush=True)
time.sleep(600)
"""
NOISY = """
import sys
sys.stdout.write("Welcome to my server!\\n")
sys.stdout.flush()
from interlock.demo.server import main
main()
"""


def script(world: World, name: str, text: str) -> str:
    path = world.folder / name
    path.write_text(text, encoding="utf-8")
    return f"{sys.executable} {path}"


def test_all_is_well(world: World) -> None:
    world.config({"demo": DEMO})
    done = world.run("doctor")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[0] == f"✓ address: 127.0.0.1:{world.port} is free; no node is running"
    assert lines[1].startswith("✓ state folder: ")
    assert lines[2].startswith("✓ journal: ")
    assert lines[3].startswith("✓ demo: 9 tools, stateless 2026-07-28, ready in ")
    assert lines[4] == "All is well."


def test_everything_that_is_wrong_is_told_at_once(world: World) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        refused = unused.getsockname()[1]
        world.config(
            {
                "well": DEMO,
                "program": "no-such-program-anywhere --flag",
                "key": script(world, "key.py", NEEDS_A_KEY),
                "refused": f"http://127.0.0.1:{refused}/mcp",
                "reference": {"url": "http://127.0.0.1:1/mcp", "headers": {"A": "${env:NOT_SET}"}},
                "noisy": script(world, "noisy.py", NOISY),
                "no_mcp": {"command": script(world, "chatty.py", CHATTY), "start_timeout": "1s"},
            }
        )
        done = world.run("doctor", "--json")
    assert done.returncode == 1
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["ok"] is False
    found = {one["key"]: one for one in told["upstreams"]}
    assert [key for key, one in found.items() if one["ok"]] == ["well", "noisy"]
    assert found["well"]["tools"] == 9
    assert "install no-such-program-anywhere" in found["program"]["advice"][0]
    assert "exited with status 3" in found["key"]["problem"]
    assert "name it under `env` of this server" in found["key"]["advice"][0]
    assert found["key"]["stderr"][0] == "starting up"
    assert "hunter2" not in done.stdout
    assert "refused" in found["refused"]["problem"]
    assert "is it running" in found["refused"]["advice"][0]
    assert found["reference"]["problem"] == "the environment variable NOT_SET is not set"
    assert "set it before the node starts" in found["reference"]["advice"][0]
    assert "did not get ready within 1 s" in found["no_mcp"]["problem"]
    assert found["no_mcp"]["noise"] == 1
    assert "it wrote 1 line that is not MCP to stdout" in found["no_mcp"]["advice"][0]
    assert "start_timeout: 4s" in found["no_mcp"]["advice"][1]
    assert found["noisy"]["noise"] == 1
    assert "its log belongs on stderr" in found["noisy"]["advice"][0]


def test_as_text_with_the_last_words_of_the_server(world: World) -> None:
    world.config({"key": script(world, "key.py", NEEDS_A_KEY)})
    done = world.run("doctor")
    assert done.returncode == 1
    assert "✗ key: " in done.stdout
    assert done.stdout.count("    │ Error: WEATHER_API_KEY is not set") == 1
    assert "    → it seems to lack a setting or a credential" in done.stdout
    assert done.stdout.endswith("Not well: key.\n")


def test_beside_a_running_node(world: World) -> None:
    world.config({"demo": DEMO})
    node = world.up()
    before = node.pids()
    done = world.run("doctor")
    assert done.returncode == 0
    assert f"✓ address: a node is running at 127.0.0.1:{world.port}" in done.stdout
    assert node.pids() == before


def test_a_taken_port_and_a_folder_without_permission(world: World) -> None:
    world.config({}, state_dir="/proc/nowhere")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", world.port))
        taken.listen()
        done = world.run("doctor")
    assert done.returncode == 1
    assert f"✗ address: 127.0.0.1:{world.port} cannot be listened on" in done.stdout


@pytest.mark.parametrize(
    ("server", "error", "said"),
    [
        ({"command": "npx", "args": ["-y", "x"]}, "not found", "npx comes with Node.js"),
        ({"command": "uvx", "args": ["x"]}, "not found", "uvx comes with uv"),
        ({"command": "docker run x"}, "not found", "install Docker"),
        ({"command": sys.executable}, "x did not get ready within 30 s.", "start_timeout: 120s"),
        ({"command": f"{sys.executable} -c 1"}, "it exited", "start it by hand"),
        ({"url": "http://h/x"}, 401, "Authorization: Bearer"),
        ({"url": "http://h/x"}, 404, "many servers answer at /mcp"),
        ({"url": "http://h/x"}, 502, "look at its own log"),
        ({"url": "http://h/x"}, "x did not get ready within 30 s.", "start_timeout: 120s"),
    ],
)
def test_advice(
    server: dict[str, object],
    error: str | int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nothing is installed here.
    monkeypatch.setenv("PATH", str(tmp_path))
    if isinstance(error, int):
        problem: InterlockError = UpstreamGoneError(
            UPSTREAM_UNAVAILABLE, "x", sent=False, status=error
        )
    else:
        problem = InterlockError(UPSTREAM_UNAVAILABLE, error)
    given = advice(ServerConfig(**server), problem, [], tmp_path)  # type: ignore[arg-type]
    assert any(said in one for one in given), given
