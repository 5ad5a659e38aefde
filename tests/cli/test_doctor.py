"""`interlock doctor`: finds what is wrong, and says how to mend it."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from interlock.cli.diagnosis import suggest_fixes
from interlock.core.call import UpstreamLostError
from interlock.core.config import ServerConfig
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from tests.support.command_line import DEMO, CommandLine

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

PICKY = """
import json, sys
known = 0
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] == "initialize":
        known = len({"roots", "sampling", "elicitation"} & set(asked["params"]["capabilities"]))
        answer["result"] = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "picky", "version": "1"},
        }
    elif asked["method"] == "tools/list":
        schema = {"type": "object"}
        tools = [{"name": f"t{one}", "inputSchema": schema} for one in range(1 + known)]
        answer["result"] = {"tools": tools}
    else:
        answer["error"] = {"code": -32601, "message": "no"}
    print(json.dumps(answer), flush=True)
"""
LONG = """
import sys
sys.exit(" ".join(["migration"] * 50))
"""

HOSTILE = r"""
import json, sys
NASTY = "n\x1b[31m\x1b]0;title\x07\x9b2J\u202e\n\u2713 forged: fine"
print(NASTY, file=sys.stderr, flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] == "initialize":
        answer["result"] = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": NASTY, "version": NASTY},
        }
    elif asked["method"] == "tools/list" and "fail" not in sys.argv:
        schema = {"type": "object"}
        answer["result"] = {"tools": [
            {"name": "good", "inputSchema": schema}, {"name": "bad" + NASTY, "inputSchema": 7},
        ]}
    else:
        answer["error"] = {"code": -32601, "message": NASTY}
    print(json.dumps(answer), flush=True)
"""


def script(world: CommandLine, name: str, text: str) -> str:
    path = world.folder / name
    path.write_text(text, encoding="utf-8")
    return f"{sys.executable} {path}"


def test_all_is_well(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    done = world.run("doctor")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert lines[0] == f"✓ address: 127.0.0.1:{world.port} is free; no node is running"
    assert lines[1].startswith("✓ state folder: ")
    assert lines[2].startswith("✓ journal: ")
    assert lines[3].startswith("✓ demo: 9 tools, stateless 2026-07-28, ready in ")
    assert lines[4] == "All checks passed."


def test_what_a_server_says_cannot_take_over_the_terminal(world: CommandLine) -> None:
    hostile = script(world, "hostile.py", HOSTILE)
    world.config({"shown": hostile, "refuses": f"{hostile} fail"})
    done = world.run("doctor")
    lines = done.stdout.splitlines()
    assert any(line.startswith("✓ shown: 1 tool, session 2025-11-25, ") for line in lines)
    assert any(line.startswith("    not shown: bad") for line in lines)
    assert not [one for one in done.stdout if one != "\n" and not one.isprintable()]
    assert not any(line.startswith("✓ forged") for line in lines)


def test_everything_that_is_wrong_is_told_at_once(world: CommandLine) -> None:
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
    assert found["key"]["problem"] == "key failed to start: exit status 3"
    assert "add it under `env` of this server" in found["key"]["advice"][0]
    assert found["key"]["stderr"][0] == "starting up"
    assert "hunter2" not in done.stdout
    assert "refused" in found["refused"]["problem"]
    assert "curl -i http://127.0.0.1" in found["refused"]["advice"][0]
    assert found["reference"]["problem"] == "the environment variable NOT_SET is not set"
    assert "set it before the node starts" in found["reference"]["advice"][0]
    assert "was not ready within 1 s" in found["no_mcp"]["problem"]
    assert found["no_mcp"]["noise"] == 1
    assert "it wrote 1 line that is not MCP to stdout" in found["no_mcp"]["advice"][0]
    assert "start_timeout: 4s" in found["no_mcp"]["advice"][1]
    assert found["noisy"]["noise"] == 1
    assert "write log lines to stderr" in found["noisy"]["advice"][0]


def test_as_text_with_the_last_words_of_the_server(world: CommandLine) -> None:
    world.config({"key": script(world, "key.py", NEEDS_A_KEY)})
    done = world.run("doctor")
    assert done.returncode == 1
    assert "✗ key: " in done.stdout
    assert done.stdout.count("    │ Error: WEATHER_API_KEY is not set") == 1
    assert "    → a setting or a credential seems to be missing" in done.stdout
    assert done.stdout.endswith("1 server failed: key\n")


def test_counts_the_tools_that_a_node_would_list(world: CommandLine) -> None:
    """Some servers list more to a client that can be asked."""
    world.config({"picky": script(world, "picky.py", PICKY)})
    told = json.loads(world.run("doctor", "--json").stdout)
    node = world.up()
    node.wait_for_line("picky is ready")
    status = json.loads(world.run_here("status", "--json").stdout)
    assert told["upstreams"][0]["tools"] == status["tools"] == 4


def test_a_long_line_of_stderr_is_cut_between_words(world: CommandLine) -> None:
    world.config({"long": script(world, "long.py", LONG)})
    node = world.up()
    node.wait_for_line("stderr: ")
    status = json.loads(world.run_here("status", "--json").stdout)
    said = status["upstreams"][0]["problem"].partition(", stderr: ")[2]
    assert said.endswith(" …")
    assert set(said.removesuffix(" …").split()) == {"migration"}
    # Doctor shows the line itself, and does not quote half of it.
    (told,) = json.loads(world.run_here("doctor", "--json").stdout)["upstreams"]
    assert told["problem"] == "long failed to start: exit status 1"
    assert told["stderr"] == [" ".join(["migration"] * 50)]


def test_beside_a_running_node(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    node = world.up()
    before = node.pids()
    done = world.run("doctor")
    assert done.returncode == 0
    assert f"✓ address: a node is running at 127.0.0.1:{world.port}" in done.stdout
    assert node.pids() == before


def test_a_taken_port_and_a_folder_without_permission(world: CommandLine) -> None:
    world.config({}, state_dir="/proc/nowhere")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", world.port))
        taken.listen()
        done = world.run("doctor")
    assert done.returncode == 1
    assert f"✗ address: cannot listen on 127.0.0.1:{world.port}: " in done.stdout


@pytest.mark.parametrize(
    ("server", "error", "said"),
    [
        ({"command": "npx", "args": ["-y", "x"]}, "not found", "npx comes with Node.js"),
        ({"command": "uvx", "args": ["x"]}, "not found", "uvx comes with uv"),
        ({"command": "docker run x"}, "not found", "install Docker"),
        ({"command": sys.executable}, "x was not ready within 30 s.", "start_timeout: 120s"),
        ({"command": f"{sys.executable} -c 1"}, "it exited", "start the server by hand"),
        ({"url": "http://h/x"}, 401, "Authorization: Bearer"),
        ({"url": "http://h/x"}, 404, "many servers use /mcp"),
        ({"url": "http://h/x"}, 502, "look at its log"),
        ({"url": "http://h/x"}, "x was not ready within 30 s.", "start_timeout: 120s"),
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
        problem: InterlockError = UpstreamLostError(
            UPSTREAM_UNAVAILABLE, "x", was_sent=False, status=error
        )
    else:
        problem = InterlockError(UPSTREAM_UNAVAILABLE, error)
    given = suggest_fixes(ServerConfig(**server), problem, [], tmp_path)  # type: ignore[arg-type]
    assert any(said in one for one in given), given
