"""The tree in `doctor`, `status` and `tools`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interlock.tree.commands.reports import format_parent, is_parent_ok
from interlock.tree.status import ParentStatus
from tests.support.command_line import DEMO, CommandLine, NodeProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.feature("tree")

LEAF = """
import sys
from interlock.tree.subserver import Subserver
from interlock.sdk.functions import FunctionTool

plant = Subserver("plant")

@plant.tool(mutable=False)
def look() -> str:
    "Look around."
    return "seen"

# As a program in another language may.
plant._tools["Bad.Name"] = FunctionTool(
    look, name="Bad.Name", title=None, description=None, capability={}
)
plant.run(heartbeat=0.2)
"""
CHATTY = 'import time; print("Listening on port 3000", flush=True); time.sleep(600)'
EXITS = 'import sys; print("no such device", file=sys.stderr); sys.exit(2)'

Start = Callable[[CommandLine], "subprocess.Popen[bytes]"]


@pytest.fixture
def start_node() -> Iterator[Start]:
    started = []

    def begin(world: CommandLine) -> subprocess.Popen[bytes]:
        url = f"ws://127.0.0.1:{world.port}/ax"
        one = subprocess.Popen([sys.executable, "-c", LEAF, url], env=world.environ)
        started.append(one)
        return one

    yield begin
    for one in started:
        one.kill()
        one.wait()


@pytest.fixture
def below(tmp_path: Path) -> Iterator[CommandLine]:
    """Another machine, for a node below."""
    folder = tmp_path / "below"
    folder.mkdir()
    one = CommandLine(folder)
    try:
        yield one
    finally:
        one.close()


def state_of(node: NodeProcess, key: str) -> str:
    return next((x["state"] for x in node.status()["upstreams"] if x["key"] == key), "")


@pytest.mark.spec("AX-4.1-1")
def test_status_reports_registered_servers(world: CommandLine, start_node: Start) -> None:
    """What is not shown of them, and that they are lost; their tools are marked as degraded."""
    world.config()
    node = world.up()
    leaf = start_node(world)
    wait_until("the leaf", lambda: state_of(node, "ax:plant") == "ready")
    well = world.run("doctor")
    assert well.returncode == 0, well.stdout
    assert "✓ ax:plant: 1 tool, stateless 2026-07-28, registered\n" in well.stdout
    assert "    not shown: Bad.Name: " in well.stdout
    assert "invalid_tool_name" in well.stdout
    assert "degraded" not in world.run_here("tools").stdout
    leaf.kill()
    wait_until("its end", lambda: state_of(node, "ax:plant") == "degraded")
    lost = world.run("doctor", "--json")
    assert lost.returncode == 1
    (found,) = json.loads(lost.stdout)["upstreams"]
    assert (found["key"], found["ok"], found["registered"]) == ("ax:plant", False, True)
    assert found["set_aside"][0]["name"] == "Bad.Name"
    output = world.run_here("tools").stdout
    assert [" degraded " in line for line in output.splitlines() if "plant.look" in line] == [True]
    tools = json.loads(world.run_here("tools", "--json").stdout)["tools"]
    actual = {tool["name"]: tool["availability"] for tool in tools}
    assert actual["plant.look"] == "degraded"


def test_status_and_doctor_report_parent(world: CommandLine, below: CommandLine) -> None:
    world.config({"plant": DEMO})
    world.up()
    url = f"ws://127.0.0.1:{world.port}/ax"
    below.config(parent={"url": url, "segment": "edge"})
    offline = below.run("doctor")
    assert offline.returncode == 0, offline.stdout
    assert f"✓ parent: {url}, not tested: no node is running\n" in offline.stdout
    node = below.up()
    wait_until("the parent", lambda: node.status()["parent"]["state"] == "registered")
    well = below.run("doctor")
    assert well.returncode == 0, well.stdout
    assert f"✓ parent: registered as edge with {url} since " in well.stdout
    output = below.run_here("status").stdout
    assert f"\nparent: registered as edge with {url} since " in output
    below.config(parent={"url": url, "segment": "plant"})
    wait_until("the refusal", lambda: node.status()["parent"]["symbol"] == "namespace_conflict")
    result = below.run("doctor")
    assert result.returncode == 1
    assert f"✗ parent: not registered as plant with {url}: " in result.stdout
    assert "Choose another segment," in result.stdout
    assert result.stdout.endswith("1 check failed: parent\n")
    assert "\nparent: not registered as plant with" in below.run_here("status").stdout


def test_doctor_reports_unusable_parent_token(world: CommandLine) -> None:
    world.config(parent={"url": "ws://127.0.0.1:1/ax", "segment": "edge", "token": "${env:T}"})
    result = world.run("doctor", T="a-token-with-a-line-end\n")
    assert result.returncode == 1
    assert "✗ parent: parent.token has a line end around the token" in result.stdout


@pytest.mark.parametrize(
    ("problem", "symbol", "message"),
    [
        (None, "", "not registered with ws://p/ax yet: waiting"),
        (
            "ws://p/ax refused: 401 Unauthorized.", "unauthenticated",
            "not registered as edge: ws://p/ax refused: 401 Unauthorized. "
            "Use a token that the parent accepts.",
        ),
        (
            "No.", "scope_denied",
            "not registered as edge with ws://p/ax: No. "
            "Ask the administrator of the parent for the permission to register.",
        ),
    ],
)  # fmt: skip
def test_describes_parent_problem(problem: str | None, symbol: str, message: str) -> None:
    status = ParentStatus(
        url="ws://p/ax", state="waiting", since=0.0, problem=problem, symbol=symbol,
        segment="edge", session_id="", parent_id="", tree_id="", beats=0,
    )  # fmt: skip
    assert format_parent(status) == message
    assert is_parent_ok(status) is (problem is None)


def test_doctor_starts_registering_servers(world: CommandLine) -> None:
    def program(text: str, *arguments: str) -> dict[str, object]:
        args = ["-c", text, *arguments]
        return {
            "command": sys.executable, "args": args, "transport": "ax", "start_timeout": "1s",
        }  # fmt: skip

    world.config(
        {
            "plant": {**program(LEAF, "--stdio"), "start_timeout": "20s"},
            "plain": {"command": DEMO, "transport": "ax", "start_timeout": "2s"},
            "chatty": program(CHATTY),
            "exits": program(EXITS),
            "missing": {"command": "no-such-program", "transport": "ax"},
        }
    )
    result = world.run("doctor", "--json")
    assert result.returncode == 1
    assert result.stderr == ""
    actual = {upstream["key"]: upstream for upstream in json.loads(result.stdout)["upstreams"]}
    assert [key for key, item in actual.items() if item["ok"]] == ["plant"]
    assert actual["plant"]["tools"] == 1
    assert actual["plant"]["set_aside"][0]["name"] == "Bad.Name"
    assert "it is a plain MCP server. Remove `transport: ax`" in actual["plain"]["problem"]
    assert "did not register within 1 s, and does not speak MCP" in actual["chatty"]["problem"]
    assert "stray line on its stdout: 'Listening on port 3000'" in actual["chatty"]["problem"]
    assert actual["exits"]["problem"] == "exits did not register: exit status 2"
    assert actual["exits"]["stderr"] == ["no such device"]
    assert "allow more time: start_timeout: 4s" in actual["chatty"]["advice"]
    assert actual["plain"]["advice"] == []
    assert "install no-such-program" in actual["missing"]["advice"][0]


def test_counts_use_singular(world: CommandLine) -> None:
    world.config({"demo": {"command": DEMO, "allow": ["roll_dice"]}})
    node = world.up()
    node.pids()
    assert world.run_here("call", "demo.roll_dice").returncode == 0
    assert "1 call, 0 failed · 1 tool · 0 sessions · " in world.run_here("status").stdout
