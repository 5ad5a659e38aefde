"""Scopes: what they cover, and how they are narrowed."""

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
    covers_prefix,
    escape_glob,
    highest_level,
    is_level_within,
    is_subset,
    lowest_level,
    narrow_scopes,
    parse_scope,
    scopes_cover,
    select_valid,
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
def test_parses_level_and_glob(text: str, scope: Scope) -> None:
    assert parse_scope(text) == scope


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
def test_rejects_invalid_scope(text: str) -> None:
    with pytest.raises(ProtocolError, match="Invalid scope"):
        parse_scope(text)
    assert select_valid([text, "read", "read"]) == ("read",)


@given(st.from_regex(SCOPE_PATTERN))
def test_accepts_every_scope_of_config(text: str) -> None:
    # A pattern's `$` stands before a last line end as well.
    parse_scope(text.removesuffix("\n"))


def test_orders_levels() -> None:
    assert highest_level("read", "admin", "write") == "admin"
    assert lowest_level("admin", "write") == "write"
    assert [[is_level_within(a, b) for b in LEVELS] for a in LEVELS] == [
        [True, True, True],
        [False, True, True],
        [False, False, True],
    ]


@given(SCOPES, LEVEL, NAME)
def test_scope_covers_level_and_name(scopes: tuple[str, ...], level: str, name: str) -> None:
    expected = any(
        LEVELS.index(item.level) >= LEVELS.index(level) and fnmatchcase(name, item.glob)
        for item in map(parse_scope, scopes)
    )
    assert scopes_cover(scopes, level, name) is expected


@pytest.mark.spec("ST-4.8.2-1", "ST-4.8.4-5")
@given(SCOPES, LEVEL, NAME)
def test_narrowed_scopes_are_sufficient_subset(
    scopes: tuple[str, ...], level: str, name: str
) -> None:
    remaining = narrow_scopes(scopes, level, name)
    assert bool(remaining) is scopes_cover(scopes, level, name)
    assert is_subset(remaining, scopes)
    if remaining:
        assert scopes_cover(remaining, level, name)


@pytest.mark.spec("ST-4.8.2-1")
@given(SCOPES, st.lists(st.tuples(LEVEL, NAME), max_size=4), LEVEL, NAME)
def test_chain_never_gains_scopes(
    scopes: tuple[str, ...], hops: list[tuple[str, str]], level: str, name: str
) -> None:
    """Whatever the last token of a chain allows, each before it allows."""
    chain = [scopes]
    for requested, at in hops:
        chain.append(narrow_scopes(chain[-1], requested, at))
    allowed = [scopes_cover(item, level, name) for item in chain]
    assert allowed == sorted(allowed, reverse=True)


def test_narrows_to_required_scope() -> None:
    assert narrow_scopes(("admin",), "read", "github.list") == ("read:github.list",)
    assert narrow_scopes(("read",), "write", "github.list") == ()
    assert narrow_scopes((), "read", "github.list") == ()
    assert narrow_scopes(None, "write", "edge.list", "list") == ("write:list",)
    assert narrow_scopes(("write:edge.*",), "write", "edge.a/b", "a/b") == ("write:a?b",)
    assert escape_glob("a b[c]*") == "a?b?c??"


@given(SCOPES, LEVEL, st.text("ab.", min_size=1, max_size=4), st.text("ab.", max_size=5))
def test_removes_prefix_from_scopes(
    scopes: tuple[str, ...], level: str, prefix: str, rest: str
) -> None:
    remaining = covers_prefix(scopes, level, prefix)
    if rest:
        assert scopes_cover(remaining, level, rest) is scopes_cover(scopes, level, prefix + rest)


def test_removes_prefix_from_unlimited_scopes() -> None:
    assert covers_prefix(None, "read", "edge.") == ("read",)
    assert covers_prefix(("write:edge.*", "read:other.*"), "read", "edge.") == ("read:*",)
    assert covers_prefix(("read",), "write", "edge.") == ()


@given(SCOPES, SCOPES, LEVEL, NAME)
def test_subset_allows_no_more_than_whole(
    some: tuple[str, ...], more: tuple[str, ...], level: str, name: str
) -> None:
    if is_subset(some, more) and scopes_cover(some, level, name):
        assert scopes_cover(more, level, name)


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
def test_compares_scope_sets(some: tuple[str, ...], more: tuple[str, ...], expected: bool) -> None:
    assert is_subset(some, more) is expected


def test_compares_complex_globs_quickly() -> None:
    maze = "read:" + "*a?b" * 40
    assert is_subset((maze,), ("read:" + "*b?a" * 40,)) is False
    assert not scopes_cover((f"read:{'*a' * 60}b",), "read", "a" * 250)
