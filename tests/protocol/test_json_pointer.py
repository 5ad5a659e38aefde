"""JSON pointers: building and resolving."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given

from interlock.protocol.json_pointer import (
    build_pointer,
    escape_step,
    resolve_pointer,
    unescape_step,
)
from tests.protocol import json_values

# The document and the table of RFC 6901, section 5.
DOCUMENT = {
    "foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5, 'k"l': 6,
    " ": 7, "m~n": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("pointer", "result"),
    [
        ("", DOCUMENT),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
        ("/foo/2", None),
        ("/foo/-", None),
        ("/foo/-1", None),
        ("/foo/²", None),
        ("/foo/٠", None),
        ("/foo/" + "9" * 5000, None),
        ("/foo/0/x", None),
        ("/nothing", None),
        ("foo", None),
    ],
)
def test_resolves_pointer(pointer: str, result: Any) -> None:
    assert resolve_pointer(DOCUMENT, pointer) == result


def places(value: Any, steps: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, Any]]:
    yield steps, value
    inside = value.items() if isinstance(value, dict) else ()
    for key, item in enumerate(value) if isinstance(value, list) else inside:
        yield from places(item, (*steps, key))


@given(json_values.values)
def test_resolves_pointer_of_every_value(value: Any) -> None:
    for steps, there in places(value):
        assert resolve_pointer(value, build_pointer(steps)) is there


@given(json_values.values, json_values.text)
def test_accepts_any_text(value: Any, text: str) -> None:
    resolve_pointer(value, text)
    assert unescape_step(escape_step(text)) == text
    assert "/" not in escape_step(text)
