"""`interlock tools`: what there is, of which server, and what it costs."""

from __future__ import annotations

import json

from msgspec import Raw

from interlock.core.config import Config, ServerConfig
from interlock.terminal.tool_table import find_servers_by_tool, is_same_name, read_listing
from interlock.topics.config import ParticipantUpstream, TopicConfig, TopicsConfig
from tests.support.command_line import DEMO, CommandLine


def test_the_tree_of_a_node_of_its_own(world: CommandLine) -> None:
    world.config({"demo": DEMO, "gone": "no-such-program-anywhere"})
    done = world.run("tools")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("demo  9 tools  ≈")
    assert any("demo.notes_delete" in line and "irreversible" in line for line in lines)
    assert any("demo.roll_dice" in line and "read_only" in line for line in lines)
    assert lines[-1].startswith("9 tools of 1 server, ≈")
    assert "gone: Cannot start gone" in done.stderr


def test_as_json_from_the_running_node(world: CommandLine) -> None:
    world.config({"demo": DEMO, "other": {"command": DEMO, "allow": ["roll_*"]}})
    node = world.up()
    node.pids()
    done = world.run("tools", "--json")
    assert done.returncode == 0
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert len(told["tools"]) == 10
    assert told["tokens"]["total"] == sum(tool["tokens"] for tool in told["tools"])
    assert told["tokens"]["servers"].keys() == {"demo", "other"}
    assert [tool["name"] for tool in told["tools"] if tool["effect"] == "irreversible"] == [
        "demo.notes_delete"
    ]
    only = json.loads(world.run_here("tools", "--json", "--server", "other").stdout)
    assert [tool["name"] for tool in only["tools"]] == ["other.roll_dice"]
    wrong = world.run_here("tools", "--server", "nobody")
    assert wrong.returncode == 2
    assert "There is no server 'nobody'. The servers are demo, other." in wrong.stderr


def test_without_any_config_it_finds_a_demo_node(world: CommandLine) -> None:
    # The default address may be taken on this machine, so the folder is given its place instead.
    node = world.up("--demo", "--listen", str(world.port))
    node.pids()
    world.config({})
    done = world.run("tools", "--json")
    assert {tool["server"] for tool in json.loads(done.stdout)["tools"]} == {"demo"}


def definition(name: str, **members: object) -> Raw:
    return Raw(json.dumps({"name": name, "inputSchema": {}, **members}).encode())


def test_tools_are_counted_to_their_servers() -> None:
    config = Config(
        root_segment="site",
        servers={
            "a": ServerConfig(url="http://h/", effects={"drop_*": "irreversible"}),
            "a-b": ServerConfig(url="http://h/", rename={"Old Name": "shiny"}),
        },
    )
    listed = read_listing(
        [
            definition("site.a.drop_table", annotations={"readOnlyHint": True}),
            definition("site__a-b__get", annotations={"readOnlyHint": True}),
            definition("site.a-b.shiny"),
            definition("elsewhere.x", description="y" * 400),
        ],
        config,
    )
    assert [(tool.server, tool.effect) for tool in listed] == [
        ("a", "irreversible"),
        ("a-b", "read_only"),
        ("a-b", "mutating"),
        ("elsewhere", "mutating"),
    ]
    assert listed[3].tokens > 100 > listed[2].tokens


def test_participants_are_classified_as_the_node_does() -> None:
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
    listed = read_listing(
        [
            definition("site.worker.read_file", annotations=reads),
            definition("site__worker__write_file", annotations=destroys),
            definition("site.worker.list", annotations=reads),
            definition("site.desk.list", annotations=reads),
            definition("site.gone.x"),
        ],
        config,
    )
    assert [(tool.server, tool.effect) for tool in listed] == [
        ("topic:ops/worker", "irreversible"),
        ("topic:ops/worker", "mutating"),
        ("topic:ops/worker", "mutating"),
        ("topic:ops/clerk", "read_only"),
        ("site", "mutating"),
    ]
    # It is not a server that could be started for a call.
    assert find_servers_by_tool(config, "site.worker.list") == ["a"]


def test_a_call_needs_only_the_server_in_its_name() -> None:
    config = Config(
        servers={"a": ServerConfig(url="http://h/"), "b": ServerConfig(url="http://h/")}
    )
    assert find_servers_by_tool(config, "a.x") == ["a"]
    assert find_servers_by_tool(config, "b__x") == ["b"]
    assert find_servers_by_tool(config, "x") == ["a", "b"]
    assert is_same_name("a.x", "a__x")
    assert not is_same_name("a.x", "a.y")
