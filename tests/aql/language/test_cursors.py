"""Tests of cursors: opaque, safe in URLs, valid after a restart and rejected after any
change.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.aql.language import errors
from interlock.aql.language.cursors import CursorCodec, CursorPosition
from interlock.aql.language.errors import AqlError
from tests.protocol.json_values import scalars

KEY = bytes(range(32))
ORDER = b"order!"
POSITION = CursorPosition("notes", 3, "n3", ["2026-02-04T10:30:00Z", None], ORDER)


def get_error(text: object, cursors: CursorCodec | None = None) -> AqlError:
    with pytest.raises(AqlError) as caught:
        (cursors or CursorCodec(KEY)).open(text, "notes", ORDER, "before")
    assert errors.is_safe_message(caught.value.message)
    assert caught.value.data is not None
    assert caught.value.data["param_name"] == "before"
    return caught.value


@pytest.mark.spec("AQ-PG-6.4-1")
def test_opens_cursor_after_restart() -> None:
    text = CursorCodec(KEY).seal(POSITION)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
    assert len(text) < 100
    assert CursorCodec(KEY).open(text, "notes", ORDER) == POSITION
    assert CursorCodec(KEY).seal(POSITION) == text


@pytest.mark.spec("AQ-PG-6.4-1")
@pytest.mark.parametrize("id", ["n3", "n34", "n345"])
def test_rejects_every_flipped_bit(id: str) -> None:
    # Of three lengths, two have bits in their last character that encode nothing.
    text = CursorCodec(KEY).seal(CursorPosition("notes", 3, id, [], ORDER))
    for index in range(len(text)):
        for bit in range(8):
            changed = bytearray(text.encode())
            changed[index] ^= 1 << bit
            get_error(changed.decode("latin-1"))


@pytest.mark.spec("AQ-PG-6.4-1")
@pytest.mark.parametrize(
    "text", ["", "x", "====", "é", "a b", "A" * 2_000, None, 7, [], "AAAAAAAAAAAAAAAA"]
)
def test_rejects_invalid_cursors(text: object) -> None:
    assert get_error(text).code == "VALIDATION_INVALID_TYPE"


def test_rejects_shortened_and_extended_cursors() -> None:
    text = CursorCodec(KEY).seal(POSITION)
    for changed in (text[:-1], text[1:], text + "A", text + "=", text + "\n", text + text):
        get_error(changed)


@pytest.mark.spec("AQ-PG-6.4-1")
def test_a_cursor_is_valid_for_its_collection_and_order_only() -> None:
    text = CursorCodec(KEY).seal(POSITION)
    for kind, order in (("issues", ORDER), ("notes", b"another")):
        with pytest.raises(AqlError) as caught:
            CursorCodec(KEY).open(text, kind, order)
        assert caught.value.code == "VALIDATION_INVALID_TYPE"


def test_rejects_cursor_of_another_key() -> None:
    get_error(CursorCodec(bytes(32)).seal(POSITION))


@given(st.binary(max_size=60))
def test_rejects_random_bytes(data: bytes) -> None:
    get_error(data.decode("latin-1"))


@given(st.integers(0, 2**31), scalars, st.lists(scalars, max_size=3))
def test_limits_cursor_length_for_any_values(
    ordinal: int, id: object, values: list[object]
) -> None:
    text = CursorCodec(KEY).seal(CursorPosition("notes", ordinal, id, values, ORDER))
    found = CursorCodec(KEY).open(text, "notes", ORDER)
    assert found.ordinal == ordinal
    assert found.id == (id[:64] if isinstance(id, str) else id)
    assert len(text) < 1_024


def test_omits_large_values() -> None:
    text = CursorCodec(KEY).seal(CursorPosition("notes", 1, 10**40, [{"a": 1}, [1]], ORDER))
    found = CursorCodec(KEY).open(text, "notes", ORDER)
    assert (found.id, found.values) == (None, [None, None])
