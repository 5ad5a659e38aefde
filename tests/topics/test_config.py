"""Tests of mistakes in the settings of topics."""

from __future__ import annotations

import pytest

from interlock.core.config import ConfigError, diff, parse_config
from interlock.topics.config import TopicsConfig

ROOM = "topics:\n  rooms:\n    ops:\n"

MISTAKES = {
    "topics: {rooms: {a b: {}}}": "is not a valid topic name",
    ROOM + "      participants: [{profile: full_access}]": "matches no caller",
    ROOM + "      participants: [{callers: [a, b], id: x}]": "several callers would be one",
    ROOM + "      participants: [{callers: ['a*'], id: x}]": "several callers would be one",
    ROOM + "      participants: [{callers: [a], id: system}]": "reserved for the gateway",
    ROOM + "      participants: [{callers: [a], id: 'system:x'}]": "reserved for the gateway",
    ROOM + "      participants: [{callers: [a], id: 'a b'}]": "is not a valid participant id",
    ROOM + "      participants: [{callers: [a], id: recorder}]": "the recorder has the id",
    ROOM + "      node: hub\n      participants: [{callers: [a], id: hub}]": "the node has the id",
    ROOM
    + "      participants: [{callers: [a], id: x}, {callers: [b], id: x}]": "another participant",
    ROOM
    + "      participants: [{callers: [a], id: x}, {callers: [b], id: X}]": "another participant",
    ROOM + "      participants: [{callers: [a], id: b}, {callers: [b]}]": "a caller of another",
    ROOM + "      participants: [{callers: [a], id: System-x}]": "reserved for the gateway",
    ROOM + '      participants: [{callers: [a], id: "x\\u200b"}]': "is not a valid participant id",
    ROOM + "      node: Recorder": "the recorder has this id",
    ROOM + "      node: recorder": "the recorder has this id",
    ROOM + "      node: 'system:gateway'": "reserved for the gateway",
    ROOM + "      participants: [{callers: [a], capabilities: ['system/*']}]": "grants nothing",
    ROOM + "      participants: [{callers: [a], capabilities: ['mcp/request:']}]": "grants nothing",
    ROOM + "      access: public\n      anonymous: full_access": "anyone who can reach the node",
    ROOM + "      upstreams: {worker: {}}": "must take part",
    ROOM + "      node: hub\n      upstreams: {hub: {}}": "this is the node itself",
    "topics: {rooms: {'t-*': {node: hub, upstreams: {w: {}}}}}": "but this name is a glob",
    "servers: {worker: 'http://127.0.0.1:1/mcp'}\n"
    + ROOM
    + "      node: hub\n      upstreams: {worker: {}}": "another server has the segment",
    "topics: {rooms: {'*': {access: public}, 'hr-*': {}}}": '"hr-*": "*" above it matches every',
    "topics: {rooms: {'a*': {}, 'x': {}, 'a-*-b?': {}}}": "above it matches every topic",
    ROOM + "      participants: [{callers: ['*']}, {callers: [a, 'b*']}]": "above it matches every",
    ROOM
    + "      participants: [{callers: [a, 'b*']}, {callers: [a, bo]}]": "above it matches every",
    ROOM + "      access: secret": "access",
    ROOM + "      participant: []": 'did you mean "participants"',
    "topics: {path: ws}": "topics.path",
    "topics: {path: /mcp}\npath: /mcp": "the path is in use",
}


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: text.splitlines()[-1].strip()[:50])
def test_reports_config_mistakes(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    assert MISTAKES[text] in str(caught.value)


@pytest.mark.feature("tree")
def test_rejects_path_of_subservers() -> None:
    with pytest.raises(ConfigError, match="the path is in use"):
        parse_config("topics: {path: /ax}")


def test_reads_complete_room() -> None:
    config = parse_config(
        "topics:\n  admins: [chief]\n  rooms:\n    ops:\n      node: hub\n      record: heads\n"
        "      participants:\n        - {callers: [bot], id: agent, profile: proposal_only}\n"
        "        - {roles: [human], profile: full_access, capabilities: [x/y], routing: directed}\n"
        "      upstreams: {worker: {segment: w, timeout: 5s}}\n    team-*: {access: private}\n"
    )
    room = config.section(TopicsConfig).rooms["ops"]
    assert room.participants[0].id == "agent"
    assert room.upstreams["worker"].timeout == 5.0
    assert config.section(TopicsConfig).rooms["team-*"].access == "private"


def test_accepts_overlapping_patterns_in_useful_order() -> None:
    rooms = "{o: {}, 'hr-*': {}, 'h?-*': {}, 'h*': {}, '[a-c]*': {}, 'a?': {}, 'a*': {}, hr-x: {}}"
    seats = (
        "[{callers: [a]}, {callers: [a, b], roles: [x]}, {callers: ['c*', a]}, {roles: [y]}, "
        "{callers: ['*']}]"
    )
    config = parse_config(f"topics: {{rooms: {rooms}}}")
    assert len(config.section(TopicsConfig).rooms) == 8
    assert (
        len(
            parse_config(f"{ROOM}      participants: {seats}")
            .section(TopicsConfig)
            .rooms["ops"]
            .participants
        )
        == 5
    )


@pytest.mark.parametrize(
    ("above", "below", "covered"),
    [
        ("*b*", "x[ab]", False),  # xa
        ("*a-c*", "[a-c]x", False),
        ("*!*", "x[!a]", False),
        ("*]", "x[]a]", False),
        ("*", "x[ab]", True),
        ("x*", "x[!ab]-*", True),
        ("*-y", "[ab]-y", True),
    ],
)
def test_detects_covered_patterns_with_brackets(above: str, below: str, covered: bool) -> None:
    text = f"topics: {{rooms: {{'{above}': {{}}, '{below}': {{}}}}}}"
    if not covered:
        told = list_problems(text)
        assert "above it matches every topic" not in told
        return
    with pytest.raises(ConfigError, match="above it matches every topic"):
        parse_config(text)


def list_problems(text: str) -> str:
    """Return the problems of a config text."""
    try:
        parse_config(text)
    except ConfigError as error:
        return str(error)
    return ""


def test_only_topics_path_needs_restart() -> None:
    before = parse_config("topics: {rooms: {a: {}}}")
    moved = diff(before, parse_config("topics: {path: /rooms, rooms: {a: {}}}"))
    assert (moved.live, moved.restart) == ((), ("topics.path",))
    both = diff(before, parse_config("topics: {path: /rooms, rooms: {b: {}}}"))
    assert (both.live, both.restart) == (("topics",), ("topics.path",))
    assert diff(before, parse_config("topics: {rooms: {b: {}}}")).live == ("topics",)
