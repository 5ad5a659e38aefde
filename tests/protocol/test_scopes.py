"""Scopes: what they cover, and that whatever is made of them is never more."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.config.trust import SCOPE_PATTERN
from interlock.errors import ProtocolError
from interlock.protocol.scopes import (
    LEVELS,
    Scope,
    beneath,
    covers,
    exact,
    highest,
    known,
    lowest,
    narrow,
    parse,
    subset,
    within,
)

LEVEL = st.sampled_from(LEVELS)
GLOB = st.text("ab.*?", min_size=1, max_size=6)
SCOPE = st.builds(lambda level, glob: f"{level}:{glob}" if glob else level, LEVEL, GLOB | st.none())
SCOPES = st.lists(SCOPE, max_size=4).map(tuple)
NAME = st.text("ab. /*", min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("read", Scope("read", "*")),
        ("write:github.*", Scope("write", "github.*")),
        ("admin:a-b_c.?9", Scope("admin", "a-b_c.?9")),
    ],
)
def test_a_scope_is_a_level_and_a_glob(text: str, scope: Scope) -> None:
    assert parse(text) == scope


@pytest.mark.parametrize(
    "text",
    [
        "",
        "reading",
        "READ",
        "read:",
        "read:a b",
        "read:[ab]",
        "read\n",
        "tool:read",
        ":a",
        "read:a\n",
    ],
)
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(ProtocolError, match="is no scope"):
        parse(text)
    assert known([text, "read", "read"]) == ("read",)


@given(st.from_regex(SCOPE_PATTERN))
def test_whatever_the_config_takes_is_a_scope(text: str) -> None:
    # A pattern's `$` stands before a last line end as well.
    parse(text.removesuffix("\n"))


def test_levels_have_an_order() -> None:
    assert highest("read", "admin", "write") == "admin"
    assert lowest("admin", "write") == "write"
    assert [[within(a, b) for b in LEVELS] for a in LEVELS] == [
        [True, True, True],
        [False, True, True],
        [False, False, True],
    ]


@given(SCOPES, LEVEL, NAME)
def test_what_is_covered(scopes: tuple[str, ...], level: str, name: str) -> None:
    expected = any(
        LEVELS.index(one.level) >= LEVELS.index(level) and fnmatchcase(name, one.glob)
        for one in map(parse, scopes)
    )
    assert covers(scopes, level, name) is expected


@pytest.mark.spec("ST-4.8.2-1", "ST-4.8.4-5")
@given(SCOPES, LEVEL, NAME)
def test_what_is_narrowed_is_enough_and_never_more(
    scopes: tuple[str, ...], level: str, name: str
) -> None:
    left = narrow(scopes, level, name)
    assert bool(left) is covers(scopes, level, name)
    assert subset(left, scopes)
    if left:
        assert covers(left, level, name)


@pytest.mark.spec("ST-4.8.2-1")
@given(SCOPES, st.lists(st.tuples(LEVEL, NAME), max_size=4), LEVEL, NAME)
def test_along_any_chain_nothing_is_ever_won(
    scopes: tuple[str, ...], hops: list[tuple[str, str]], level: str, name: str
) -> None:
    """Whatever the last token of a chain allows, each before it allows."""
    chain = [scopes]
    for wanted, at in hops:
        chain.append(narrow(chain[-1], wanted, at))
    allowed = [covers(one, level, name) for one in chain]
    assert allowed == sorted(allowed, reverse=True)


def test_exactly_what_is_needed() -> None:
    assert narrow(("admin",), "read", "github.list") == ("read:github.list",)
    assert narrow(("read",), "write", "github.list") == ()
    assert narrow((), "read", "github.list") == ()
    assert narrow(None, "write", "edge.list", "list") == ("write:list",)
    assert narrow(("write:edge.*",), "write", "edge.a/b", "a/b") == ("write:a?b",)
    assert exact("a b[c]*") == "a?b?c??"


@given(SCOPES, LEVEL, st.text("ab.", min_size=1, max_size=4), st.text("ab.", max_size=5))
def test_what_is_left_behind_a_prefix(
    scopes: tuple[str, ...], level: str, prefix: str, rest: str
) -> None:
    left = beneath(scopes, level, prefix)
    if rest:
        assert covers(left, level, rest) is covers(scopes, level, prefix + rest)


def test_what_is_left_of_no_limit_is_no_limit() -> None:
    assert beneath(None, "read", "edge.") == ("read",)
    assert beneath(("write:edge.*", "read:other.*"), "read", "edge.") == ("read:*",)
    assert beneath(("read",), "write", "edge.") == ()


@given(SCOPES, SCOPES, LEVEL, NAME)
def test_a_subset_allows_nothing_that_the_whole_does_not(
    some: tuple[str, ...], more: tuple[str, ...], level: str, name: str
) -> None:
    if subset(some, more) and covers(some, level, name):
        assert covers(more, level, name)


@pytest.mark.parametrize(
    ("some", "more", "expected"),
    [
        ((), (), True),
        ((), ("read",), True),
        (("read",), (), False),
        (("read",), ("write",), True),
        (("write",), ("read",), False),
        (("read:a.*",), ("read:*",), True),
        (("read:*",), ("read:a.*",), False),
        (("read:a?b",), ("read:a*b",), True),
        (("read:a*b",), ("read:a?b",), False),
        (("read:a*b",), ("read:*b", "read:a"), True),
        (("read:?*",), ("read:?", "read:??*"), True),
        (("read:**a",), ("read:*a",), True),
        (("read:a", "write:b"), ("write:?",), True),
    ],
)
def test_which_sets_are_within_which(
    some: tuple[str, ...], more: tuple[str, ...], expected: bool
) -> None:
    assert subset(some, more) is expected


def test_globs_that_are_a_maze_end_in_time() -> None:
    maze = "read:" + "*a?b" * 40
    assert subset((maze,), ("read:" + "*b?a" * 40,)) is False
    assert not covers((f"read:{'*a' * 60}b",), "read", "a" * 250)
