"""Mistakes in the settings of topics: each with its place."""

from __future__ import annotations

import pytest

from interlock.core.config import ConfigError, diff, parse_config
from interlock.topics.config import TopicsConfig

ROOM = "topics:\n  rooms:\n    ops:\n"

MISTAKES = {
    "topics: {rooms: {a b: {}}}": "is no name of a topic",
    ROOM + "      seats: [{profile: full_access}]": "the seat is nobody's",
    ROOM + "      seats: [{callers: [a, b], id: x}]": "two callers would be one participant",
    ROOM + "      seats: [{callers: ['a*'], id: x}]": "two callers would be one participant",
    ROOM + "      seats: [{callers: [a], id: system}]": "only the gateway is called so",
    ROOM + "      seats: [{callers: [a], id: 'system:x'}]": "only the gateway is called so",
    ROOM + "      seats: [{callers: [a], id: 'a b'}]": "is no id of a participant",
    ROOM + "      seats: [{callers: [a], id: recorder}]": "the recorder is called",
    ROOM + "      node: hub\n      seats: [{callers: [a], id: hub}]": "the node is called",
    ROOM + "      seats: [{callers: [a], id: x}, {callers: [b], id: x}]": "another seat is called",
    ROOM + "      seats: [{callers: [a], id: x}, {callers: [b], id: X}]": "another seat is called",
    ROOM + "      seats: [{callers: [a], id: b}, {callers: [b]}]": "a caller of another seat",
    ROOM + "      seats: [{callers: [a], id: System-x}]": "only the gateway is called so",
    ROOM + '      seats: [{callers: [a], id: "x\\u200b"}]': "is no id of a participant",
    ROOM + "      node: Recorder": "the recorder is called so",
    ROOM + "      node: recorder": "the recorder is called so",
    ROOM + "      node: 'system:gateway'": "only the gateway is called so",
    ROOM + "      seats: [{callers: [a], capabilities: ['system/*']}]": "grants nothing",
    ROOM + "      seats: [{callers: [a], capabilities: ['mcp/request:']}]": "grants nothing",
    ROOM + "      access: public\n      anonymous: full_access": "whoever can reach the node",
    ROOM + "      upstreams: {worker: {}}": "has none here",
    ROOM + "      node: hub\n      upstreams: {hub: {}}": "that is the node itself",
    "topics: {rooms: {'t-*': {node: hub, upstreams: {w: {}}}}}": "and this is a glob",
    "servers: {worker: 'http://127.0.0.1:1/mcp'}\n"
    + ROOM
    + "      node: hub\n      upstreams: {worker: {}}": "is another server's",
    "topics: {rooms: {'*': {access: public}, 'hr-*': {}}}": '"hr-*": "*" above it takes every',
    "topics: {rooms: {'a*': {}, 'x': {}, 'a-*-b?': {}}}": "above it takes every topic",
    ROOM + "      seats: [{callers: ['*']}, {callers: [a, 'b*']}]": "above it takes every caller",
    ROOM + "      seats: [{callers: [a, 'b*']}, {callers: [a, bo]}]": "above it takes every caller",
    ROOM + "      access: secret": "access",
    ROOM + "      seat: []": 'did you mean "seats"',
    "topics: {path: ws}": "topics.path",
    "topics: {path: /mcp}\npath: /mcp": "something else answers there",
    "topics: {path: /ax}": "something else answers there",
}


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: text.splitlines()[-1].strip()[:50])
def test_a_mistake_is_named(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    assert MISTAKES[text] in str(caught.value)


def test_a_room_with_everything() -> None:
    config = parse_config(
        "topics:\n  admins: [chief]\n  rooms:\n    ops:\n      node: hub\n      record: heads\n"
        "      seats:\n        - {callers: [bot], id: agent, profile: proposal_only}\n"
        "        - {roles: [human], profile: full_access, capabilities: [x/y], routing: directed}\n"
        "      upstreams: {worker: {segment: w, timeout: 5s}}\n    team-*: {access: private}\n"
    )
    room = config.section(TopicsConfig).rooms["ops"]
    assert room.seats[0].id == "agent"
    assert room.upstreams["worker"].timeout == 5.0
    assert config.section(TopicsConfig).rooms["team-*"].access == "private"


def test_globs_of_which_each_is_for_something() -> None:
    rooms = "{o: {}, 'hr-*': {}, 'h?-*': {}, 'h*': {}, '[a-c]*': {}, 'a?': {}, 'a*': {}, hr-x: {}}"
    seats = (
        "[{callers: [a]}, {callers: [a, b], roles: [x]}, {callers: ['c*', a]}, {roles: [y]}, "
        "{callers: ['*']}]"
    )
    config = parse_config(f"topics: {{rooms: {rooms}}}")
    assert len(config.section(TopicsConfig).rooms) == 8
    assert (
        len(parse_config(f"{ROOM}      seats: {seats}").section(TopicsConfig).rooms["ops"].seats)
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
def test_what_is_in_brackets_is_one_sign_of_several(above: str, below: str, covered: bool) -> None:
    text = f"topics: {{rooms: {{'{above}': {{}}, '{below}': {{}}}}}}"
    if not covered:
        told = problems_of(text)
        assert "above it takes every topic" not in told
        return
    with pytest.raises(ConfigError, match="above it takes every topic"):
        parse_config(text)


def problems_of(text: str) -> str:
    """A name may be none for another reason."""
    try:
        parse_config(text)
    except ConfigError as error:
        return str(error)
    return ""


def test_only_the_path_of_topics_takes_a_new_start() -> None:
    before = parse_config("topics: {rooms: {a: {}}}")
    moved = diff(before, parse_config("topics: {path: /rooms, rooms: {a: {}}}"))
    assert (moved.live, moved.restart) == ((), ("topics.path",))
    both = diff(before, parse_config("topics: {path: /rooms, rooms: {b: {}}}"))
    assert (both.live, both.restart) == (("topics",), ("topics.path",))
    assert diff(before, parse_config("topics: {rooms: {b: {}}}")).live == ("topics",)
