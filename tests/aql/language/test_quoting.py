"""Tests of quoted names and values in messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.aql.language import errors
from interlock.aql.language.errors import (
    MAX_QUOTED_CHARACTERS,
    is_safe_message,
    plain_value,
    quotable,
    quote_value,
)
from tests.protocol.json_values import text

HOSTILE = st.text(
    alphabet="at /srcj.s:1'\\\n\u202e\u00a0é\"typeerror", max_size=MAX_QUOTED_CHARACTERS
)


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("my file.txt", "my file.txt"),
        ("my_file.txt", "my_file.txt"),
        ("it's", r"it\u0027s"),
        (r"a\b", r"a\\b"),
        ("a\nb", r"a\u000ab"),
        ("a\u202eb", r"a\u202eb"),
        ("a\u00a0b", r"a\u00a0b"),
        # The rule of the public runner: no word that ends in "at" and has one behind it.
        ("look at me", r"look at\u0020me"),
        ("/src/x", r"\u002fsrc/x"),
        ("TypeError", r"\u0054ypeError"),
        ("é", "é"),
    ],
)
def test_quotes_names(name: str, quoted: str) -> None:
    assert quotable(name) == quoted


@given(st.one_of(text, st.text(), HOSTILE))
def test_quoted_name_can_be_read_back(name: str) -> None:
    quoted = quotable(name)
    assert is_safe_message(f"Unknown operation '{quoted}' in it.")
    assert "'" not in quoted
    assert quoted.isprintable()
    back = quoted.replace('"', '\\"')
    assert json.loads(f'"{back}"') == errors.shorten(name)


@given(st.one_of(HOSTILE, st.integers(), st.none(), st.booleans(), st.lists(HOSTILE, max_size=3)))
def test_quotes_value_as_json(one: Any) -> None:
    written = quote_value(one, 1_000)
    assert is_safe_message(f"It must be one of: {written}, or another.")
    assert written.isprintable()
    assert json.loads(written) == one
    assert json.loads(plain_value(one, 1_000)) == one


def test_shortened_values_stay_different() -> None:
    one, other = ("x" * 500 + end for end in "ab")
    assert plain_value(one) != plain_value(other)
    assert "(501 characters, #" in plain_value(one)
    assert len(plain_value(one)) < 120
    assert plain_value([one]) != plain_value([other])
    assert plain_value({"a": [one]}) != plain_value({"a": [other]})
