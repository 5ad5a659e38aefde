"""The examples, each started by the one command that its README has: names, calls, the tree."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcp import Client

from tests.support.command_line import CommandLine, NodeProcess
from tests.support.waiting import wait_until, wait_until_gone

EXAMPLES = Path(__file__).parents[2] / "examples"

SAAS = {
    "google_drive.search_files", "google_drive.read_file",
    "jira.get_issue", "jira.create_issue", "salesforce.list_accounts",
}  # fmt: skip
REGIONAL = {
    f"global.{region}.{site}.{tool}"
    for region in ("us", "eu")
    for site in ("east", "west")
    for tool in ("where", "stock")
}
AT_EDGE = {f"{device}.{tool}" for device in ("m1", "m2") for tool in ("read_sensor", "set_led")}
AT_REGIONAL = {"cloud.forecast"} | {f"edge.{name}" for name in AT_EDGE}
AT_ROOT = {"local.clock"} | {f"regional.{name}" for name in AT_REGIONAL}


class Example:
    """A copy of an example, and its topmost node once it runs on a free port."""

    def __init__(self, world: CommandLine, name: str) -> None:
        self.world = world
        self.folder = world.folder / name
        shutil.copytree(EXAMPLES / name, self.folder)
        # As after `. .venv/bin/activate`.
        beside = str(Path(sys.executable).parent)
        world.environ["PATH"] = os.pathsep.join([beside, world.environ["PATH"]])

    def up(self, config: str, expected: set[str]) -> NodeProcess:
        """Start it as the README says, and wait until all is there."""
        path = self.folder / config
        document = yaml.safe_load(path.read_text())
        document["listen"] = f"127.0.0.1:{self.world.port}"
        path.write_text(yaml.safe_dump(document))
        node = self.world.up("--config", str(path))
        wait_until(f"the tools of {config}", lambda: names(node) >= expected)
        return node

    def as_written(self, config: str) -> None:
        """Every call that the README has, as it stands there."""
        text = (self.folder / "README.md").read_text()
        lines = [line.strip() for line in text.splitlines() if "interlock call " in line]
        assert lines
        for line in lines:
            words = shlex.split(line)[1:]
            result = self.world.run(*words, "--config", str(self.folder / config))
            assert result.returncode == 0, f"{line}: {result.stderr}"

    def tree(self, config: str) -> dict[str, Any]:
        result = self.world.run("tree", "--json", "--config", str(self.folder / config))
        assert result.returncode == 0, result.stderr
        data: dict[str, Any] = json.loads(result.stdout)
        return data


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CommandLine]:
    one = CommandLine(tmp_path)
    try:
        yield one
    finally:
        one.close()


def names(node: NodeProcess) -> set[str]:
    """What a stock client sees."""

    async def ask() -> set[str]:
        async with Client(node.url) as client:
            listing = {tool.name for tool in (await client.list_tools()).tools}
            assert not any("." in name for name in listing)
            return {name.replace("__", ".") for name in listing}

    return asyncio.run(ask())


def call(node: NodeProcess, name: str, arguments: dict[str, Any] | None = None) -> Any:
    """The structured content of a result, or else its text."""

    async def ask() -> Any:
        async with Client(node.url) as client:
            result = await client.call_tool(name, arguments or {})
            assert not result.is_error, result
            return result.structured_content or result.content[0].text  # type: ignore[union-attr]

    return asyncio.run(ask())


def tree_names(tree: dict[str, Any]) -> Any:
    """Names alone: a leaf by its name, everything else with what is below it."""
    if not tree["children"]:
        return tree["name"]
    return {tree["name"]: [tree_names(child) for child in tree["children"]]}


def child_pids(pid: int) -> list[int]:
    """Every process that the node started, and what those started."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for task in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            below = [int(word) for word in task.read_text().split()]
            found += below
            waiting += below
    return found


@pytest.mark.feature("tree")
@pytest.mark.spec("AX-C.1-1", "AX-1.1-1", "AX-3.1-1")
def test_saas_example_works(world: CommandLine) -> None:
    example = Example(world, "saas")
    node = example.up("interlock.yaml", SAAS)
    assert names(node) == SAAS
    assert call(node, "google_drive.read_file", {"name": "minutes"}) == "All participants agreed."
    response = call(node, "jira.create_issue", {"summary": "Try it"})
    assert call(node, "jira.get_issue", {"key": response["key"]})["summary"] == "Try it"
    assert "Lime Works" in call(node, "salesforce.list_accounts", {"region": "south"})
    tree = example.tree("interlock.yaml")
    assert tree_names(tree) == {"root": ["google_drive", "jira", "salesforce"]}
    assert {child["role"] for child in tree["children"]} == {"leaf"}
    assert {child["link"] for child in tree["children"]} == {"ax"}
    assert [child["calls"] for child in tree["children"]] == [1, 2, 1]
    example.as_written("interlock.yaml")


@pytest.mark.feature("tree")
@pytest.mark.spec("AX-C.3-1", "AX-1.1-2")
def test_regional_example_works(world: CommandLine) -> None:
    example = Example(world, "regional")
    node = example.up("global.yaml", REGIONAL)
    assert names(node) == REGIONAL
    for region in ("us", "eu"):
        for site in ("east", "west"):
            assert call(node, f"global.{region}.{site}.where") == f"{region}-{site}"
    counted = call(node, "global.eu.west.stock", {"item": "bolts"})
    assert counted == {"site": "eu-west", "item": "bolts", "count": 700}
    tree = example.tree("global.yaml")
    assert tree_names(tree) == {"global": [{"eu": ["east", "west"]}, {"us": ["east", "west"]}]}
    assert [child["role"] for child in tree["children"]] == ["aggregator", "aggregator"]
    assert [child["calls"] for child in tree["children"]] == [3, 2]
    example.as_written("global.yaml")
    below = child_pids(node.process.pid)
    assert len(below) == 6
    assert node.end() == 0
    wait_until_gone(below)


@pytest.mark.feature("tree")
@pytest.mark.spec("AX-2-2", "AX-2-3", "AX-3.1-1", "AX-3.1-2", "AX-1.1-2")
def test_three_levels_example_works(world: CommandLine) -> None:
    example = Example(world, "three-levels")
    node = example.up("root.yaml", AT_ROOT)
    assert names(node) == AT_ROOT
    assert call(node, "local.clock")["server"] == "local"
    assert call(node, "regional.cloud.forecast", {"hours": 2})["server"] == "cloud"
    for device, bus in (("m1", "UART"), ("m2", "BLE")):
        sensor = call(node, f"regional.edge.{device}.read_sensor")
        assert (sensor["device"], sensor["bus"]) == (device, bus)
    assert call(node, "regional.edge.m2.set_led", {"level": 3})["before"] == 0
    assert call(node, "regional.edge.m2.set_led", {"level": 5})["before"] == 3
    # The other one was not touched.
    assert call(node, "regional.edge.m1.set_led", {"level": 1})["before"] == 0
    tree = example.tree("root.yaml")
    assert tree_names(tree) == {"root": ["local", {"regional": ["cloud", {"edge": ["m1", "m2"]}]}]}
    regional = tree["children"][1]
    edge = regional["children"][1]
    assert (regional["calls"], edge["calls"]) == (6, 5)
    assert [child["calls"] for child in edge["children"]] == [2, 3]
    text = world.run("tree", "--config", str(example.folder / "root.yaml")).stdout
    # Two of the nodes have a tool of their own, which is listed above them.
    assert text.startswith("3 nodes · 4 servers · 6 tools · no problems\n")
    assert (regional["role"], edge["role"]) == ("aggregator", "gateway")
    assert "\n    ├ m1" in text
    example.as_written("root.yaml")


@pytest.mark.feature("tree")
@pytest.mark.spec("AX-3.1-3")
@pytest.mark.parametrize(
    ("config", "expected", "called"),
    [
        ("regional.yaml", AT_REGIONAL, "edge.m1.read_sensor"),
        ("edge.yaml", AT_EDGE, "m1.read_sensor"),
    ],
)
def test_each_node_of_three_levels_works_alone(
    world: CommandLine, config: str, expected: set[str], called: str
) -> None:
    node = Example(world, "three-levels").up(config, expected)
    assert names(node) == expected
    assert call(node, called)["device"] == "m1"


@pytest.mark.feature("tree")
@pytest.mark.spec("AX-3.1-4", "AX-3.2-1")
def test_client_of_tree_sees_plain_mcp(world: CommandLine) -> None:
    example = Example(world, "three-levels")
    example.up("root.yaml", AT_ROOT)
    socket = next(iter(world.state.rglob("node.sock")))

    async def talk() -> list[dict[str, Any]]:
        reader, writer = await asyncio.open_unix_connection(str(socket), limit=1 << 24)
        messages: list[dict[str, Any]] = []

        async def ask(id: int, method: str, params: dict[str, Any]) -> None:
            message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
            writer.write(json.dumps(message).encode() + b"\n")
            while not messages or messages[-1].get("id") != id:
                messages.append(json.loads(await reader.readline()))

        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "plain", "version": "1"},
        }
        await ask(1, "initialize", hello)
        writer.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        await ask(2, "tools/list", {})
        await ask(3, "tools/call", {"name": "regional.edge.m1.read_sensor", "arguments": {}})
        await ask(4, "tools/call", {"name": "regional.nowhere", "arguments": {}})
        await ask(5, "ping", {})
        writer.close()
        return messages

    messages = asyncio.run(talk())
    assert [
        message.get("method", "") for message in messages if "mcpax" in message.get("method", "")
    ] == []
    sensor = next(message for message in messages if message.get("id") == 3)["result"]
    assert sensor["structuredContent"]["device"] == "m1"
    # Nothing of how it got there: no route, no session, no address.
    response = json.dumps(sensor)
    assert not any(word in response for word in ("mcpax", "session", "127.0.0.1", "route"))


@pytest.mark.feature("tree")
def test_readme_commands_exist(world: CommandLine) -> None:
    """What a README tells to start is there, and every tool that it calls exists."""
    for name, listed in (("saas", SAAS), ("regional", REGIONAL), ("three-levels", AT_ROOT)):
        text = (EXAMPLES / name / "README.md").read_text()
        lines = [line.strip() for line in text.splitlines() if line.startswith("    interlock ")]
        configs = [line.split()[3] for line in lines if line.startswith("interlock up")]
        assert configs
        assert all((EXAMPLES.parent / config).is_file() for config in configs)
        called = [line.split()[2] for line in lines if line.startswith("interlock call")]
        assert called
        assert set(called) <= listed
        for config in (EXAMPLES / name).glob("*.yaml"):
            assert world.run_here("check", "--config", str(config)).returncode == 0


@pytest.mark.feature("tree")
def test_guarded_example_works(world: CommandLine) -> None:
    example = Example(world, "guarded")
    config = str(example.folder / "interlock.yaml")
    example.up("interlock.yaml", {"bank.balance", "bank.pay"})

    def run(*words: str) -> Any:
        return world.run(*words, "--config", config)

    assert run("keys", "new", "duty-operator", "--no-passphrase").returncode == 0
    # The calls that go through at once, and no others, stand without a prompt in the README.
    text = (example.folder / "README.md").read_text()
    for line in text.splitlines():
        if line.startswith("    interlock call "):
            result = run(*shlex.split(line)[1:])
            assert result.returncode == 0, result.stderr
    big = ("call", "bank.pay", "account=supplier", "cents=250000")
    held = run(*big)
    assert held.returncode == 1
    assert "The payment is more than 10.00." in held.stdout + held.stderr
    [waiting] = json.loads(run("approvals", "--json").stdout)["approvals"]
    key = next(Path(world.environ["HOME"]).rglob("duty-operator.pem"), None)
    key = key or next(world.folder.rglob("duty-operator.pem"))
    approved = run("approve", waiting["id"], "--yes", "--key", str(key))
    assert approved.returncode == 0, approved.stderr
    again = run(*big, "--approval", waiting["id"])
    assert "250900" in again.stdout
    assert run("call", "bank.close_account", "account=house").returncode == 1
    cases = run("policy", "test", str(example.folder / "cases.yaml"))
    assert cases.returncode == 0, cases.stdout + cases.stderr
    assert run("audit", "verify").returncode == 0
