"""`interlock stdio`: attach to the running node or start one; only protocol messages on stdout."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from tests.support.command_line import DEMO, INTERLOCK, CommandLine
from tests.support.waiting import HANG_TIMEOUT, wait_until, wait_until_gone

ERAS = [("legacy", "2025-11-25"), ("auto", "2026-07-28")]


def parameters(world: CommandLine, *options: str) -> StdioServerParameters:
    command, *arguments = INTERLOCK
    return StdioServerParameters(
        command=command, args=[*arguments, "stdio", *options], env=world.environ, cwd=world.cwd
    )


def request(id: int, method: str, **params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


HELLO = request(
    1,
    "initialize",
    protocolVersion="2025-11-25",
    capabilities={},
    clientInfo={"name": "test", "version": "1"},
)
SLOW = request(2, "tools/call", name="demo.count_slowly", arguments={"to": 3, "delay_ms": 50})
QUICK = request(3, "tools/call", name="demo.roll_dice", arguments={})


async def use(world: CommandLine, mode: str) -> tuple[str, list[str]]:
    async with Client(parameters(world), mode=mode) as client:
        # The very first list is complete: a client may never ask again.
        listing = await client.list_tools()
        counted = await client.call_tool("demo.count_slowly", {"to": 2, "delay_ms": 0})
        assert counted.structured_content == {"counted_to": 2}
        return client.protocol_version, [tool.name for tool in listing.tools]


@pytest.mark.parametrize(("mode", "revision"), ERAS)
def test_stdio_without_running_node_starts_own_node(
    world: CommandLine, mode: str, revision: str
) -> None:
    world.config({"demo": DEMO})
    spoken, names = asyncio.run(use(world, mode))
    assert spoken == revision
    assert len(names) == 9


def test_stdio_attaches_to_running_node(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    node = world.up()
    before = node.pids()
    for mode, revision in ERAS:
        spoken, names = asyncio.run(use(world, mode))
        assert spoken == revision
        assert len(names) == 9
    status = node.status()
    assert status["calls"] == 2
    assert node.pids() == before


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.feature("aql")
def test_stdio_uses_selected_view(world: CommandLine, mode: str, attached: bool) -> None:
    world.config({"demo": DEMO})
    if attached:
        world.up()

    async def use() -> list[str]:
        async with Client(parameters(world, "--view", "aql-single"), mode=mode) as client:
            listing = await client.list_tools()
            answer = await client.call_tool(
                "mcp_aql", {"operation": "demo_text_stats", "params": {"text": "one two"}}
            )
            assert answer.structured_content["success"] is True
            return [tool.name for tool in listing.tools]

    assert asyncio.run(use()) == ["mcp_aql"]


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("view", ["bogus", "aql&namespace=demo", ""])
@pytest.mark.feature("aql")
def test_stdio_rejects_unknown_view(world: CommandLine, view: str, attached: bool) -> None:
    world.config({"demo": DEMO})
    if attached:
        world.up()
    listing = request(2, "tools/list")
    result = world.run("stdio", "--view", view, stdin=f"{HELLO}\n{listing}\n")
    assert result.returncode == 2
    assert result.stdout == ""
    for name in ("plain", "aql-single", "semantic"):
        assert name in result.stderr


def test_stdio_without_node_and_config_fails(world: CommandLine) -> None:
    result = world.run("stdio", stdin=f"{HELLO}\n")
    assert result.returncode == 3
    assert result.stdout == ""
    assert "interlock up --demo" in result.stderr


@pytest.mark.parametrize("attached", [False, True])
def test_closing_stdin_still_delivers_responses(world: CommandLine, attached: bool) -> None:
    world.config({"demo": DEMO})
    if attached:
        world.up().pids()
    # The last line lacks its end, as `printf` leaves it.
    result = world.run("stdio", stdin=f"{HELLO}\n{SLOW}\n{QUICK}")
    assert result.returncode == 0, result.stderr
    answers = {line["id"]: line for line in map(json.loads, result.stdout.splitlines())}
    assert set(answers) == {1, 2, 3}
    assert answers[2]["result"]["structuredContent"] == {"counted_to": 3}
    assert answers[3]["result"]["structuredContent"]["total"] >= 1


def test_stdout_has_protocol_messages_only(world: CommandLine) -> None:
    world.config({"demo": DEMO, "gone": "no-such-program-anywhere"})
    result = world.run("stdio", stdin=f"not json\n{HELLO}\n")
    assert result.returncode == 0
    assert "no-such-program-anywhere" in result.stderr
    for line in result.stdout.splitlines():
        assert json.loads(line)["jsonrpc"] == "2.0"


def test_stdio_reports_invalid_config_on_stderr(world: CommandLine) -> None:
    (world.cwd / "interlock.yaml").write_text("servers: [1]\n", encoding="utf-8")
    result = world.run("stdio", stdin=f"{HELLO}\n")
    assert result.returncode == 3
    assert result.stdout == ""
    assert "interlock.yaml:1:" in result.stderr


def test_servers_stop_with_stdio_node(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    process = subprocess.Popen(
        [*INTERLOCK, "stdio"],
        cwd=world.cwd,
        env=world.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{HELLO}\n{QUICK}\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        assert json.loads(process.stdout.readline())["id"] == 3
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        started = [int(item) for item in children.read_text().split()]
        assert len(started) == 1
        process.terminate()
        assert process.wait(HANG_TIMEOUT) == 0
        wait_until_gone(started)
    finally:
        process.kill()
        process.communicate()


def test_stdio_reports_end_of_node(world: CommandLine) -> None:
    world.config({"demo": DEMO})
    node = world.up()
    node.pids()
    process = subprocess.Popen(
        [*INTERLOCK, "stdio"],
        cwd=world.cwd,
        env=world.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{HELLO}\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        assert node.end() == 0
        wait_until("its end", lambda: process.poll() is not None)
        assert process.returncode == 4
        assert process.stderr is not None
        assert (
            process.stderr.read() == "interlock: The node closed the connection. Look at its log.\n"
        )
    finally:
        process.kill()
        process.communicate()


HANGS = "import time; time.sleep(600)"


def test_hanging_server_does_not_delay_first_list(world: CommandLine) -> None:
    world.config({"demo": DEMO, "hangs": {"command": sys.executable, "args": ["-c", HANGS]}})
    _, names = asyncio.run(use(world, "legacy"))
    assert len(names) == 9
    result = world.run("tools")
    assert result.returncode == 0
    assert "9 tools of 1 server" in result.stdout
    assert "interlock: hangs: not ready in time" in result.stderr
