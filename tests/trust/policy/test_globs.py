"""Compiled globs match like `fnmatch`."""

from __future__ import annotations

from fnmatch import fnmatchcase

from hypothesis import example, given
from hypothesis import strategies as st

from interlock.trust.policy.rules import (
    Globs,
    compile_glob,
    literal_prefix,
    pattern_grams,
    split_grams,
)

PIECES = st.sampled_from(["a", "b", "ab", ".", "*", "?", "[ab]", "[!a]", "[", "]", "A", "\n", "é"])
PATTERNS = st.lists(PIECES, min_size=1, max_size=7).map("".join)
NAMES = st.lists(st.sampled_from(["a", "b", "ab", ".", "A", "[", "]", "é", "\n"]), max_size=8).map(
    "".join
)


@given(PATTERNS, NAMES)
@example("a*a", "a")
@example("*ab*ab*", "abab")
@example("*ab*ab*", "ab")
@example("**", "")
@example("a**b*", "ab")
def test_compiled_glob_equals_fnmatch(pattern: str, name: str) -> None:
    assert compile_glob(pattern)(name) == fnmatchcase(name, pattern)
    assert Globs(["x", pattern]).matches(name) == (name == "x" or fnmatchcase(name, pattern))


@given(PATTERNS, NAMES)
def test_matching_name_has_every_gram_of_pattern(pattern: str, name: str) -> None:
    if fnmatchcase(name, pattern):
        assert pattern_grams(pattern) <= set(split_grams(name))
        assert name.startswith(literal_prefix(pattern) or "")
