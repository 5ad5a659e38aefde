"""`interlock check` and topics: who is named there, and is nobody."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.program import World

TOKENS = [{"name": name, "token": f"${{env:{name.upper()}}}"} for name in ("agent", "worker")]
SECRETS = {name: f"{name}-0123456789abcdef0123456789abcdef" for name in ("AGENT", "WORKER")}


def doubted(world: World, topics: dict[str, Any], **config: Any) -> list[tuple[str, str, str]]:
    world.config(**{"tokens": TOKENS, "topics": topics, **config})
    done = world.run_here("check", "--json", **SECRETS)
    assert done.returncode == 0, done.stdout
    told = json.loads(done.stdout)["warnings"]
    return [(one["path"], one["message"], one["hint"]) for one in told]


def rooms(**room: Any) -> dict[str, Any]:
    return {"rooms": {"ops": room}}


def test_callers_that_no_token_names(world: World) -> None:
    seats = [
        {"callers": ["agnt"]},
        {"callers": ["agent", "work*", "local", "x*"]},
        {"roles": ["anything"]},
    ]
    topics = {**rooms(seats=seats), "admins": ["agent", "supervisr"]}
    other = "correct it, unless a token of `interlock token` names it"
    assert doubted(world, topics) == [
        ("topics.admins[1]", "no token of this config names supervisr", other),
        (
            "topics.rooms.ops.seats[0].callers[0]",
            "no token of this config names agnt",
            'did you mean "agent"?',
        ),
        ("topics.rooms.ops.seats[1].callers[3]", "no token of this config fits x*", other),
    ]


def test_upstreams_that_nobody_is(world: World) -> None:
    seats = [{"callers": ["agent"], "id": "clerk"}, {"callers": ["worker"]}]
    upstreams: dict[str, Any] = {"wrker": {}, "worker": {}, "clerk": {}}
    topics = rooms(seats=seats, node="node", upstreams=upstreams)
    assert doubted(world, topics) == [
        (
            "topics.rooms.ops.upstreams.wrker",
            "nobody is called wrker there: no token and no seat names it",
            'did you mean "worker"?',
        )
    ]


ISSUERS = {"issuers": [{"issuer": "https://login.example.com"}]}


@pytest.mark.parametrize("config", [{"tokens": []}, {"identity": ISSUERS}])
def test_where_others_may_come_nobody_is_a_stranger(world: World, config: dict[str, Any]) -> None:
    assert doubted(world, rooms(seats=[{"callers": ["agnt"]}]), **config) == []


def test_a_room_into_which_nobody_comes(world: World) -> None:
    said = "nobody has a seat here, and only who has one comes in"
    hint = "write seats: [{callers: [NAME], profile: full_access}], or access: private"
    assert doubted(world, rooms()) == [("topics.rooms.ops", said, hint)]
    assert doubted(world, rooms(), tokens=[]) == [("topics.rooms.ops", said, hint)]
    assert doubted(world, rooms(access="private")) == []
    assert doubted(world, rooms(access="public")) == []


def test_a_node_that_is_called_like_a_caller(world: World) -> None:
    said = "a caller is called agent, too, and cannot come in under that name"
    hint = "give its seat another id, or call the node something else"
    own = {"callers": ["a*"]}
    for room in (rooms(access="private", node="agent"), rooms(seats=[own], node="agent")):
        assert doubted(world, room) == [("topics.rooms.ops.node", said, hint)]
    # It is called otherwise there, or does not come in.
    for seat in ({"callers": ["agent"], "id": "clerk"}, {"callers": ["worker"]}):
        assert doubted(world, rooms(seats=[seat], node="agent")) == []


def test_capabilities_that_are_none(world: World) -> None:
    good = ["mcp/*", "mcp/request:tools/*", "mcp/proposal:*", "chat", "vote", "mcpx"]
    seats = [{"callers": ["agent"], "capabilities": [*good, "mcp", "mcp/requests:tools/*"]}]
    assert [(path, words) for path, words, _ in doubted(world, rooms(seats=seats))] == [
        ("topics.rooms.ops.seats[0].capabilities[6]", "no message is of the kind mcp"),
        (
            "topics.rooms.ops.seats[0].capabilities[7]",
            "no message is of the kind mcp/requests:tools/*",
        ),
    ]


def test_rules_about_participants_are_about_somebody(world: World) -> None:
    rule = {"name": "r", "then": "deny", "tools": ["worker.*", "wrker.*"]}
    room = rooms(seats=[{"callers": ["worker"]}], node="node", upstreams={"worker": {}})
    assert doubted(world, room, policy={"rules": [rule]}) == [
        (
            "policy.rules[0].tools[1]",
            "no server has the segment wrker",
            'did you mean "worker"?',
        )
    ]


def test_topics_are_counted(world: World) -> None:
    seats = [{"callers": ["agent"]}]
    world.config(tokens=TOKENS, topics={"rooms": {"ops": {"seats": seats}}})
    assert "2 tokens, 1 topic\n" in world.run_here("check", **SECRETS).stdout
    world.config(topics={"rooms": {"ops": {"seats": seats}, "dev": {"seats": seats}}})
    assert ", 2 topics\n" in world.run_here("check").stdout
