"""`interlock check` and topics: unknown callers and participants."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.command_line import CommandLine

pytestmark = pytest.mark.feature("topics")

TOKENS = [{"name": name, "token": f"${{env:{name.upper()}}}"} for name in ("agent", "worker")]
JOINING = [{**token, "may": ["join"]} for token in TOKENS]
SECRETS = {name: f"{name}-0123456789abcdef0123456789abcdef" for name in ("AGENT", "WORKER")}


def check_warnings(
    world: CommandLine, topics: dict[str, Any], **config: Any
) -> list[tuple[str, str, str]]:
    world.config(**{"tokens": TOKENS, "topics": topics, **config})
    result = world.run_here("check", "--json", **SECRETS)
    assert result.returncode == 0, result.stdout
    warnings = json.loads(result.stdout)["warnings"]
    return [(item["path"], item["message"], item["hint"]) for item in warnings]


def topics_config(**room: Any) -> dict[str, Any]:
    return {"rooms": {"ops": room}}


def test_warns_about_unknown_participants(world: CommandLine) -> None:
    seats = [
        {"callers": ["agnt"]},
        {"callers": ["agent", "work*", "local", "x*"]},
        {"roles": ["anything"]},
    ]
    topics = {**topics_config(participants=seats), "admins": ["agent", "supervisr"]}
    other = "correct it, or create a token: `interlock token create`"
    assert check_warnings(world, topics) == [
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


def test_warns_about_unknown_upstream_participants(world: CommandLine) -> None:
    seats = [{"callers": ["agent"], "id": "clerk"}, {"callers": ["worker"]}]
    upstreams: dict[str, Any] = {"wrker": {}, "worker": {}, "clerk": {}}
    topics = topics_config(
        participants=seats, node="node", upstreams=upstreams, profile="full_access"
    )
    assert check_warnings(world, topics) == [
        (
            "topics.rooms.ops.upstreams.wrker",
            "no token and no participant of the topic has the name wrker",
            'did you mean "worker"?',
        )
    ]


ISSUERS = {"issuers": [{"issuer": "https://login.example.com"}]}


@pytest.mark.parametrize("config", [{}, {"tokens": []}])
def test_open_participation_suppresses_unknown_caller_warning(
    world: CommandLine, config: dict[str, Any]
) -> None:
    room = topics_config(participants=[{"callers": ["agnt"]}])
    assert check_warnings(world, room, identity=ISSUERS, **config) == []


def test_warns_about_participants_without_any_token(world: CommandLine) -> None:
    room = topics_config(participants=[{"callers": ["agent", "local"]}])
    message = "no token of this config has the name agent"
    hint = 'add tokens: [{name: NAME, token: "${env:VARIABLE}"}], or: `interlock token create`'
    at = "topics.rooms.ops.participants[0].callers[0]"
    assert check_warnings(world, room, tokens=[]) == [(at, message, hint)]
    # One that was made counts as well.
    assert world.run_here("token", "create", "agent", "--may", "join").returncode == 0
    assert check_warnings(world, room, tokens=[]) == []


def test_warns_about_upstream_participants_without_response_permission(world: CommandLine) -> None:
    message = "worker may not send responses, so its tools cannot be listed"
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
        room = topics_config(participants=[seat], node="node", upstreams={"worker": {}}, **topic)
        actual = [(path, words) for path, words, _ in check_warnings(world, room, tokens=JOINING)]
        assert actual == ([("topics.rooms.ops.upstreams.worker", message)] if mute else []), seat


# -- what a seat does not bind

BESIDE = (
    "may not call tools in topics, but may call all tools at /mcp: capabilities of a topic do not "
    "apply outside it"
)
PROPOSES = [{"callers": ["agent"], "profile": "proposal_only"}, {"callers": ["worker"]}]


def test_warns_about_callers_restricted_in_topics_only(world: CommandLine) -> None:
    servers = {"demo": "http://127.0.0.1:9/mcp"}
    hint = "set may: [join] for such a token, or add a policy rule with then: confirm"
    both = ("tokens", f"agent and worker {BESIDE}", hint)
    one = ("tokens", f"agent {BESIDE}", hint)
    room = topics_config(participants=PROPOSES)
    assert check_warnings(world, room, servers=servers) == [both]
    # In another room one may call: it is trusted with tools.
    free = {
        **room["rooms"],
        "lab": {"participants": [{"callers": ["worker"], "profile": "full_access"}]},
    }
    assert check_warnings(world, {"rooms": free}, servers=servers) == [one]
    # So may whoever has a role, and nobody is bound who comes in without a seat.
    seats = [{"roles": ["human"], "profile": "full_access"}, *PROPOSES]
    roles = [TOKENS[0], {**TOKENS[1], "roles": ["human"]}]
    assert check_warnings(
        world, topics_config(participants=seats), servers=servers, tokens=roles
    ) == [one]
    assert check_warnings(world, topics_config(access="private"), servers=servers) == []


@pytest.mark.parametrize(
    "config",
    [
        {"tokens": [{**token, "may": ["join"]} for token in TOKENS]},
        {"tokens": [{**token, "scopes": ["read"]} for token in TOKENS]},
        {"policy": {"default": "deny"}},
        {"policy": {"rules": [{"name": "r", "then": "confirm", "callers": ["*"]}]}},
        {"servers": {}},
    ],
)
def test_accepts_callers_restricted_elsewhere(world: CommandLine, config: dict[str, Any]) -> None:
    config = {"servers": {"demo": "http://127.0.0.1:9/mcp"}, **config}
    assert check_warnings(world, topics_config(participants=PROPOSES), **config) == []


def test_partial_deny_rule_does_not_restrict_caller(world: CommandLine) -> None:
    rule = {"name": "r", "then": "deny", "callers": ["agent"], "tools": ["demo.delete"]}
    servers = {"demo": "http://127.0.0.1:9/mcp"}
    result = check_warnings(
        world, topics_config(participants=PROPOSES), servers=servers, policy={"rules": [rule]}
    )
    assert [path for path, _, _ in result] == ["tokens"]


def test_warns_about_topic_without_participants(world: CommandLine) -> None:
    message = "the topic is restricted and has no participants, so no caller can join"
    hint = "add participants: [{callers: [NAME], profile: full_access}], or access: private"
    assert check_warnings(world, topics_config()) == [("topics.rooms.ops", message, hint)]
    assert check_warnings(world, topics_config(), tokens=[]) == [
        ("topics.rooms.ops", message, hint)
    ]
    assert check_warnings(world, topics_config(access="private")) == []
    assert check_warnings(world, topics_config(access="public")) == []


def test_warns_about_node_named_like_caller(world: CommandLine) -> None:
    message = "the caller agent has the same name and cannot join under it"
    hint = "set another id for the caller or for the node"
    own = {"callers": ["a*"]}
    for room in (
        topics_config(access="private", node="agent"),
        topics_config(participants=[own], node="agent"),
    ):
        assert check_warnings(world, room) == [("topics.rooms.ops.node", message, hint)]
    # It is called otherwise there, or does not come in.
    for seat in ({"callers": ["agent"], "id": "clerk"}, {"callers": ["worker"]}):
        assert check_warnings(world, topics_config(participants=[seat], node="agent")) == []


def test_warns_about_unknown_capabilities(world: CommandLine) -> None:
    good = ["mcp/*", "mcp/request:tools/*", "mcp/proposal:*", "chat", "vote", "mcpx"]
    seats = [{"callers": ["agent"], "capabilities": [*good, "mcp", "mcp/requests:tools/*"]}]
    assert [
        (path, words) for path, words, _ in check_warnings(world, topics_config(participants=seats))
    ] == [
        ("topics.rooms.ops.participants[0].capabilities[6]", "no message has the kind mcp"),
        (
            "topics.rooms.ops.participants[0].capabilities[7]",
            "no message has the kind mcp/requests:tools/*",
        ),
    ]


@pytest.mark.parametrize(
    ("pattern", "suggestion"),
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
def test_suggests_correction_for_capability(
    world: CommandLine, pattern: str, suggestion: str
) -> None:
    room = topics_config(participants=[{"callers": ["agent"], "capabilities": [pattern]}])
    assert check_warnings(world, room) == [
        (
            "topics.rooms.ops.participants[0].capabilities[0]",
            f"no message has the kind {pattern}",
            f"use {suggestion}",
        )
    ]


def test_accepts_custom_capabilities(world: CommandLine) -> None:
    good = [
        "vote", "chart", "Vote/*", "mcp/request:*/list", "mcp/*", "mcp/re*", "mcp/request:t*",
        "mcp/request:acme/deploy", "mcp/request:tools/call:Web_*", "mcp/request:*", "*",
        "mcp/response:resources/templates/list", "mcp/request:resources/*", "chatter",
    ]  # fmt: skip
    assert (
        check_warnings(
            world, topics_config(participants=[{"callers": ["agent"], "capabilities": good}])
        )
        == []
    )


def test_policy_rules_may_name_participants(world: CommandLine) -> None:
    rule = {"name": "r", "then": "deny", "tools": ["worker.*", "wrker.*"]}
    seats = [{"callers": ["worker"], "profile": "full_access"}]
    room = topics_config(participants=seats, node="node", upstreams={"worker": {}})
    assert check_warnings(world, room, policy={"rules": [rule]}) == [
        (
            "policy.rules[0].tools[1]",
            "no server has the segment wrker",
            'did you mean "worker"?',
        )
    ]


def test_check_counts_topics(world: CommandLine) -> None:
    seats = [{"callers": ["agent"]}]
    world.config(tokens=TOKENS, topics={"rooms": {"ops": {"participants": seats}}})
    assert "2 tokens, 1 topic\n" in world.run_here("check", **SECRETS).stdout
    world.config(topics={"rooms": {"ops": {"participants": seats}, "dev": {"participants": seats}}})
    assert ", 2 topics\n" in world.run_here("check").stdout
