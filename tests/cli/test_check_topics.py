"""`interlock check` and topics: who is named there, and is nobody."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.command_line import CommandLine

pytestmark = pytest.mark.feature("topics")

TOKENS = [{"name": name, "token": f"${{env:{name.upper()}}}"} for name in ("agent", "worker")]
JOINING = [{**one, "may": ["join"]} for one in TOKENS]
SECRETS = {name: f"{name}-0123456789abcdef0123456789abcdef" for name in ("AGENT", "WORKER")}


def doubted(
    world: CommandLine, topics: dict[str, Any], **config: Any
) -> list[tuple[str, str, str]]:
    world.config(**{"tokens": TOKENS, "topics": topics, **config})
    done = world.run_here("check", "--json", **SECRETS)
    assert done.returncode == 0, done.stdout
    told = json.loads(done.stdout)["warnings"]
    return [(one["path"], one["message"], one["hint"]) for one in told]


def rooms(**room: Any) -> dict[str, Any]:
    return {"rooms": {"ops": room}}


def test_callers_that_no_token_names(world: CommandLine) -> None:
    seats = [
        {"callers": ["agnt"]},
        {"callers": ["agent", "work*", "local", "x*"]},
        {"roles": ["anything"]},
    ]
    topics = {**rooms(participants=seats), "admins": ["agent", "supervisr"]}
    other = "correct it, or create a token with: interlock token create"
    assert doubted(world, topics) == [
        ("topics.admins[1]", "no token of this config has the name supervisr", other),
        (
            "topics.rooms.ops.participants[0].callers[0]",
            "no token of this config has the name agnt",
            'did you mean "agent"?',
        ),
        (
            "topics.rooms.ops.participants[1].callers[3]",
            "no token of this config matches x*",
            other,
        ),
    ]


def test_upstreams_that_nobody_is(world: CommandLine) -> None:
    seats = [{"callers": ["agent"], "id": "clerk"}, {"callers": ["worker"]}]
    upstreams: dict[str, Any] = {"wrker": {}, "worker": {}, "clerk": {}}
    topics = rooms(participants=seats, node="node", upstreams=upstreams, profile="full_access")
    assert doubted(world, topics) == [
        (
            "topics.rooms.ops.upstreams.wrker",
            "no token and no participant of the topic has the name wrker",
            'did you mean "worker"?',
        )
    ]


ISSUERS = {"issuers": [{"issuer": "https://login.example.com"}]}


@pytest.mark.parametrize("config", [{}, {"tokens": []}])
def test_where_others_may_come_nobody_is_a_stranger(
    world: CommandLine, config: dict[str, Any]
) -> None:
    room = rooms(participants=[{"callers": ["agnt"]}])
    assert doubted(world, room, identity=ISSUERS, **config) == []


def test_callers_without_any_token(world: CommandLine) -> None:
    room = rooms(participants=[{"callers": ["agent", "local"]}])
    said = "no token of this config has the name agent"
    hint = 'add tokens: [{name: NAME, token: "${env:VARIABLE}"}], or: interlock token create'
    at = "topics.rooms.ops.participants[0].callers[0]"
    assert doubted(world, room, tokens=[]) == [(at, said, hint)]
    # One that was made counts as well.
    assert world.run_here("token", "create", "agent", "--may", "join").returncode == 0
    assert doubted(world, room, tokens=[]) == []


def test_participants_that_could_not_answer(world: CommandLine) -> None:
    said = "worker may not send responses, so its tools cannot be listed"
    for seat, topic, mute in (
        ({"callers": ["worker"], "profile": "none"}, {}, True),
        ({"callers": ["worker"], "profile": "initial"}, {}, True),
        ({"callers": ["worker"]}, {}, True),
        ({"callers": ["agent"], "id": "worker"}, {}, True),
        ({"callers": ["agent"]}, {"access": "private"}, True),
        ({"callers": ["worker"]}, {"profile": "response_only"}, False),
        ({"callers": ["worker"], "profile": "tool_only"}, {}, False),
        ({"callers": ["worker"], "capabilities": ["mcp/response:*"]}, {}, False),
        ({"callers": ["agent"], "id": "worker", "profile": "proposal_only"}, {}, False),
    ):
        room = rooms(participants=[seat], node="node", upstreams={"worker": {}}, **topic)
        found = [(path, words) for path, words, _ in doubted(world, room, tokens=JOINING)]
        assert found == ([("topics.rooms.ops.upstreams.worker", said)] if mute else []), seat


# -- what a seat does not bind

BESIDE = (
    "may not call tools in topics, but may call all tools at /mcp: capabilities of a topic do not "
    "apply outside it"
)
PROPOSES = [{"callers": ["agent"], "profile": "proposal_only"}, {"callers": ["worker"]}]


def test_callers_that_are_bound_in_topics_alone(world: CommandLine) -> None:
    servers = {"demo": "http://127.0.0.1:9/mcp"}
    hint = "set may: [join] for such a token, or add a policy rule with then: confirm"
    both = ("tokens", f"agent and worker {BESIDE}", hint)
    one = ("tokens", f"agent {BESIDE}", hint)
    room = rooms(participants=PROPOSES)
    assert doubted(world, room, servers=servers) == [both]
    # In another room one may call: it is trusted with tools.
    free = {
        **room["rooms"],
        "lab": {"participants": [{"callers": ["worker"], "profile": "full_access"}]},
    }
    assert doubted(world, {"rooms": free}, servers=servers) == [one]
    # So may whoever has a role, and nobody is bound who comes in without a seat.
    seats = [{"roles": ["human"], "profile": "full_access"}, *PROPOSES]
    roles = [TOKENS[0], {**TOKENS[1], "roles": ["human"]}]
    assert doubted(world, rooms(participants=seats), servers=servers, tokens=roles) == [one]
    assert doubted(world, rooms(access="private"), servers=servers) == []


@pytest.mark.parametrize(
    "config",
    [
        {"tokens": [{**one, "may": ["join"]} for one in TOKENS]},
        {"tokens": [{**one, "scopes": ["read"]} for one in TOKENS]},
        {"policy": {"default": "deny"}},
        {"policy": {"rules": [{"name": "r", "then": "confirm", "callers": ["*"]}]}},
        {"servers": {}},
    ],
)
def test_callers_that_are_bound_elsewhere_as_well(
    world: CommandLine, config: dict[str, Any]
) -> None:
    config = {"servers": {"demo": "http://127.0.0.1:9/mcp"}, **config}
    assert doubted(world, rooms(participants=PROPOSES), **config) == []


def test_a_rule_that_stops_some_calls_binds_nobody(world: CommandLine) -> None:
    rule = {"name": "r", "then": "deny", "callers": ["agent"], "tools": ["demo.delete"]}
    servers = {"demo": "http://127.0.0.1:9/mcp"}
    found = doubted(world, rooms(participants=PROPOSES), servers=servers, policy={"rules": [rule]})
    assert [path for path, _, _ in found] == ["tokens"]


def test_a_room_into_which_nobody_comes(world: CommandLine) -> None:
    said = "the topic is restricted and has no participants, so nobody can join"
    hint = "add participants: [{callers: [NAME], profile: full_access}], or access: private"
    assert doubted(world, rooms()) == [("topics.rooms.ops", said, hint)]
    assert doubted(world, rooms(), tokens=[]) == [("topics.rooms.ops", said, hint)]
    assert doubted(world, rooms(access="private")) == []
    assert doubted(world, rooms(access="public")) == []


def test_a_node_that_is_called_like_a_caller(world: CommandLine) -> None:
    said = "the caller agent has the same name and cannot join under it"
    hint = "set another id for the caller or for the node"
    own = {"callers": ["a*"]}
    for room in (rooms(access="private", node="agent"), rooms(participants=[own], node="agent")):
        assert doubted(world, room) == [("topics.rooms.ops.node", said, hint)]
    # It is called otherwise there, or does not come in.
    for seat in ({"callers": ["agent"], "id": "clerk"}, {"callers": ["worker"]}):
        assert doubted(world, rooms(participants=[seat], node="agent")) == []


def test_capabilities_that_are_none(world: CommandLine) -> None:
    good = ["mcp/*", "mcp/request:tools/*", "mcp/proposal:*", "chat", "vote", "mcpx"]
    seats = [{"callers": ["agent"], "capabilities": [*good, "mcp", "mcp/requests:tools/*"]}]
    assert [(path, words) for path, words, _ in doubted(world, rooms(participants=seats))] == [
        ("topics.rooms.ops.participants[0].capabilities[6]", "no message has the kind mcp"),
        (
            "topics.rooms.ops.participants[0].capabilities[7]",
            "no message has the kind mcp/requests:tools/*",
        ),
    ]


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("Chat", "chat"),
        ("chat:*", "chat"),
        ("mcp:request:tools/*", "mcp/request:tools/*"),
        ("mcp:request", "mcp/request"),
        ("MCP/Request:tools/list", "mcp/request:tools/list"),
        ("mcp/requests:tools/*", "mcp/request:tools/*"),
        ("mcp/request:tool/*", "mcp/request:tools/*"),
        ("mcp/request:tools/lst", "mcp/request:tools/list"),
        ("mcp/proposal:tool/call:web_*", "mcp/proposal:tools/call:web_*"),
        ("mcp/response:ressources/read", "mcp/response:resources/read"),
        ("mcp/request:Tools/call", "mcp/request:tools/call"),
    ],
)
def test_slips_in_capabilities(world: CommandLine, pattern: str, meant: str) -> None:
    room = rooms(participants=[{"callers": ["agent"], "capabilities": [pattern]}])
    assert doubted(world, room) == [
        (
            "topics.rooms.ops.participants[0].capabilities[0]",
            f"no message has the kind {pattern}",
            f"use {meant}",
        )
    ]


def test_capabilities_of_others_are_no_slips(world: CommandLine) -> None:
    good = [
        "vote", "chart", "Vote/*", "mcp/request:*/list", "mcp/*", "mcp/re*", "mcp/request:t*",
        "mcp/request:acme/deploy", "mcp/request:tools/call:Web_*", "mcp/request:*", "*",
        "mcp/response:resources/templates/list", "mcp/request:resources/*", "chatter",
    ]  # fmt: skip
    assert doubted(world, rooms(participants=[{"callers": ["agent"], "capabilities": good}])) == []


def test_rules_about_participants_are_about_somebody(world: CommandLine) -> None:
    rule = {"name": "r", "then": "deny", "tools": ["worker.*", "wrker.*"]}
    seats = [{"callers": ["worker"], "profile": "full_access"}]
    room = rooms(participants=seats, node="node", upstreams={"worker": {}})
    assert doubted(world, room, policy={"rules": [rule]}) == [
        (
            "policy.rules[0].tools[1]",
            "no server has the segment wrker",
            'did you mean "worker"?',
        )
    ]


def test_topics_are_counted(world: CommandLine) -> None:
    seats = [{"callers": ["agent"]}]
    world.config(tokens=TOKENS, topics={"rooms": {"ops": {"participants": seats}}})
    assert "2 tokens, 1 topic\n" in world.run_here("check", **SECRETS).stdout
    world.config(topics={"rooms": {"ops": {"participants": seats}, "dev": {"participants": seats}}})
    assert ", 2 topics\n" in world.run_here("check").stdout
