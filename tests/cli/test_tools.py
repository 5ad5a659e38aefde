"""`interlock tools`: tools, their servers and their costs in tokens."""

from __future__ import annotations

import json

from msgspec import Raw

from interlock.core.config import Config, ServerConfig
from interlock.terminal.tool_table import find_servers_by_tool, is_same_name, read_listing
from interlock.topics.config import ParticipantUpstream, TopicConfig, TopicsConfig
from tests.support.command_line import DEMO, CommandLine


def test_tools_starts_own_node(world: CommandLine) -> None:
    world.config({"demo": DEMO, "gone": "no-such-program-anywhere"})
    result = world.run("tools")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("demo  9 tools  ≈")
    assert any("demo.notes_delete" in line and "irreversible" in line for line in lines)
    assert any("demo.roll_dice" in line and "read_only" in line for line in lines)
    assert lines[-1].startswith("9 tools of 1 server, ≈")
    assert "gone: Cannot start gone" in result.stderr
    assert world.run("tools", "--server", "gone").returncode == 4


def test_tools_fails_without_ready_server(world: CommandLine) -> None:
    world.config({"gone": "no-such-program-anywhere"})
    result = world.run_here("tools", "--json")
    assert (result.returncode, json.loads(result.stdout)["tools"]) == (4, [])
    world.up().wait_for_line("gone: ")
    for option in ([], ["--server", "gone"]):
        assert world.run_here("tools", *option).returncode == 4


def test_prints_tools_of_running_node_as_json(world: CommandLine) -> None:
    world.config({"demo": DEMO, "other": {"command": DEMO, "allow": ["roll_*"]}})
    node = world.up()
    node.pids()
    result = world.run("tools", "--json")
    assert result.returncode == 0
    assert result.stderr == ""
    data = json.loads(result.stdout)
    assert len(data["tools"]) == 10
    assert data["tokens"]["total"] == sum(tool["tokens"] for tool in data["tools"])
    assert data["tokens"]["servers"].keys() == {"demo", "other"}
    assert [tool["name"] for tool in data["tools"] if tool["effect"] == "irreversible"] == [
        "demo.notes_delete"
    ]
    only = json.loads(world.run_here("tools", "--json", "--server", "other").stdout)
    assert [tool["name"] for tool in only["tools"]] == ["other.roll_dice"]
    outcome = world.run_here("tools", "--server", "nobody")
    assert outcome.returncode == 2
    assert "There is no server 'nobody'. The servers are demo, other." in outcome.stderr


def test_finds_demo_node_without_config(world: CommandLine) -> None:
    # The default address may be taken on this machine, so the folder is given its place instead.
    node = world.up("--demo", "--listen", str(world.port))
    node.pids()
    world.config({})
    result = world.run("tools", "--json")
    assert {tool["server"] for tool in json.loads(result.stdout)["tools"]} == {"demo"}


def definition(name: str, **members: object) -> Raw:
    return Raw(json.dumps({"name": name, "inputSchema": {}, **members}).encode())


def test_tools_are_assigned_to_their_servers() -> None:
    config = Config(
        root_segment="site",
        servers={
            "a": ServerConfig(url="http://h/", effects={"drop_*": "irreversible"}),
            "a-b": ServerConfig(url="http://h/", rename={"Old Name": "shiny"}),
        },
    )
    listing = read_listing(
        [
            definition("site.a.drop_table", annotations={"readOnlyHint": True}),
            definition("site__a-b__get", annotations={"readOnlyHint": True}),
            definition("site.a-b.shiny"),
            definition("elsewhere.x", description="y" * 400),
        ],
        config,
    )
    assert [(tool.server, tool.effect) for tool in listing] == [
        ("a", "irreversible"),
        ("a-b", "read_only"),
        ("a-b", "mutating"),
        ("elsewhere", "mutating"),
    ]
    assert listing[3].tokens > 100 > listing[2].tokens


def test_participant_effects_equal_those_of_node() -> None:
    upstreams = {
        "worker": ParticipantUpstream(effects={"write_*": "mutating", "read_*": "irreversible"}),
        "clerk": ParticipantUpstream(segment="desk", trust_annotations=True),
        "gone": ParticipantUpstream(enabled=False, effects={"*": "irreversible"}),
    }
    room = TopicConfig(node="node", upstreams=upstreams)
    config = Config(
        root_segment="site",
        servers={"a": ServerConfig(url="http://h/")},
        sections=[TopicsConfig(rooms={"ops": room})],
    )
    reads, destroys = {"readOnlyHint": True}, {"destructiveHint": True}
    listing = read_listing(
        [
            definition("site.worker.read_file", annotations=reads),
            definition("site__worker__write_file", annotations=destroys),
            definition("site.worker.list", annotations=reads),
            definition("site.desk.list", annotations=reads),
            definition("site.gone.x"),
        ],
        config,
    )
    assert [(tool.server, tool.effect) for tool in listing] == [
        ("topic:ops/worker", "irreversible"),
        ("topic:ops/worker", "mutating"),
        ("topic:ops/worker", "mutating"),
        ("topic:ops/clerk", "read_only"),
        ("site", "mutating"),
    ]
    # It is not a server that could be started for a call.
    assert find_servers_by_tool(config, "site.worker.list") == ["a"]


def test_call_starts_server_named_in_tool() -> None:
    config = Config(
        servers={"a": ServerConfig(url="http://h/"), "b": ServerConfig(url="http://h/")}
    )
    assert find_servers_by_tool(config, "a.x") == ["a"]
    assert find_servers_by_tool(config, "b__x") == ["b"]
    assert find_servers_by_tool(config, "x") == ["a", "b"]
    assert is_same_name("a.x", "a__x")
    assert not is_same_name("a.x", "a.y")
