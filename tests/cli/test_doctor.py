"""`interlock doctor`: find problems and suggest fixes."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from interlock.cli.diagnosis import suggest_fixes
from interlock.core.call import StartError, UpstreamLostError
from interlock.core.config import ServerConfig
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from tests.support.command_line import DEMO, CommandLine

TIMEOUT = StartError(UPSTREAM_UNAVAILABLE, "x", is_timeout=True)
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
        tools = [{"name": f"t{number}", "inputSchema": schema} for number in range(1 + known)]
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


def test_doctor_reports_healthy_servers(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    result = world.run("doctor")
    assert result.returncode == 0, result.stdout
    lines = result.stdout.splitlines()
    assert lines[0] == f"✓ address: 127.0.0.1:{world.port} is free; no node is running"
    assert lines[1].startswith("✓ state folder: ")
    assert lines[2].startswith("✓ journal: ")
    assert lines[3].startswith("✓ demo: 9 tools, stateless 2026-07-28, ready in ")
    assert lines[4] == "All checks passed."


def test_hostile_server_text_cannot_control_terminal(world: CommandLine) -> None:
    hostile = script(world, "hostile.py", HOSTILE)
    world.config({"shown": hostile, "refuses": f"{hostile} fail"})
    result = world.run("doctor")
    lines = result.stdout.splitlines()
    assert any(line.startswith("✓ shown: 1 tool, session 2025-11-25, ") for line in lines)
    assert any(line.startswith("    not shown: bad") for line in lines)
    assert not [item for item in result.stdout if item != "\n" and not item.isprintable()]
    assert not any(line.startswith("✓ forged") for line in lines)


def test_doctor_reports_all_problems_at_once(world: CommandLine) -> None:
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
        result = world.run("doctor", "--json")
    assert result.returncode == 1
    assert result.stderr == ""
    data = json.loads(result.stdout)
    assert data["ok"] is False
    actual = {upstream["key"]: upstream for upstream in data["upstreams"]}
    assert [key for key, item in actual.items() if item["ok"]] == ["well", "noisy"]
    assert actual["well"]["tools"] == 9
    assert "install no-such-program-anywhere" in actual["program"]["advice"][0]
    assert actual["key"]["problem"] == "key failed to start: exit status 3"
    assert "add it under `env` of this server" in actual["key"]["advice"][0]
    assert actual["key"]["stderr"][0] == "starting up"
    assert "hunter2" not in result.stdout
    assert "refused" in actual["refused"]["problem"]
    assert "curl -i http://127.0.0.1" in actual["refused"]["advice"][0]
    assert actual["reference"]["problem"] == "the environment variable NOT_SET is not set"
    assert "set it before the node starts" in actual["reference"]["advice"][0]
    assert "was not ready within 1 s" in actual["no_mcp"]["problem"]
    assert actual["no_mcp"]["noise"] == 1
    assert "it wrote 1 line that is not MCP to stdout" in actual["no_mcp"]["advice"][0]
    assert "start_timeout: 4s" in actual["no_mcp"]["advice"][1]
    assert actual["noisy"]["noise"] == 1
    assert "write log lines to stderr" in actual["noisy"]["advice"][0]


def test_doctor_prints_stderr_of_failed_server(world: CommandLine) -> None:
    world.config({"key": script(world, "key.py", NEEDS_A_KEY)})
    result = world.run("doctor")
    assert result.returncode == 1
    assert "✗ key: " in result.stdout
    assert result.stdout.count("    │ Error: WEATHER_API_KEY is not set") == 1
    assert "    → a setting or a credential seems to be missing" in result.stdout
    assert result.stdout.endswith("1 server failed: key\n")


def test_doctor_counts_tools_that_node_lists(world: CommandLine) -> None:
    """Some servers list more to a client that can be asked."""
    world.config({"picky": script(world, "picky.py", PICKY)})
    data = json.loads(world.run("doctor", "--json").stdout)
    node = world.up()
    node.wait_for_line("upstream picky: ready")
    status = json.loads(world.run_here("status", "--json").stdout)
    assert data["upstreams"][0]["tools"] == status["tools"] == 4


def test_long_stderr_line_is_cut_between_words(world: CommandLine) -> None:
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


def test_doctor_runs_beside_running_node(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    node = world.up()
    before = node.pids()
    result = world.run("doctor")
    assert result.returncode == 0
    assert f"✓ address: a node is running at 127.0.0.1:{world.port}" in result.stdout
    assert node.pids() == before


def test_doctor_reports_taken_port_and_unwritable_folder(world: CommandLine) -> None:
    world.config({}, state_dir="/proc/nowhere")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", world.port))
        taken.listen()
        result = world.run("doctor")
    assert result.returncode == 1
    assert f"✗ address: cannot listen on 127.0.0.1:{world.port}: " in result.stdout


@pytest.mark.parametrize(
    ("server", "error", "message"),
    [
        ({"command": "npx", "args": ["-y", "x"]}, "not found", "npx comes with Node.js"),
        ({"command": "uvx", "args": ["x"]}, "not found", "uvx comes with uv"),
        ({"command": "docker run x"}, "not found", "install Docker"),
        ({"command": sys.executable}, TIMEOUT, "start_timeout: 120s"),
        ({"command": f"{sys.executable} -c 1"}, "it exited", "start the server by hand"),
        ({"url": "http://h/x"}, 401, "Authorization: Bearer"),
        ({"url": "http://h/x"}, 404, "many servers use /mcp"),
        ({"url": "http://h/x"}, 502, "look at its log"),
        ({"url": "http://h/x"}, TIMEOUT, "start_timeout: 120s"),
        ({"url": "http://h/x"}, 0, "curl -i http://h/x"),
    ],
)
def test_doctor_suggests_fixes(
    server: dict[str, object],
    error: str | int | InterlockError,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nothing is installed here.
    monkeypatch.setenv("PATH", str(tmp_path))
    if isinstance(error, int):
        problem: InterlockError = UpstreamLostError(
            UPSTREAM_UNAVAILABLE, "x", was_sent=False, status=error
        )
    elif isinstance(error, str):
        problem = InterlockError(UPSTREAM_UNAVAILABLE, error)
    else:
        problem = error
    advice = suggest_fixes(ServerConfig(**server), problem, [], tmp_path)  # type: ignore[arg-type]
    assert any(message in item for item in advice), advice
