"""Keys of a terminal: named, complete, and never produced by a paste."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.topics.commands.keyboard import Key, KeyParser

pytestmark = pytest.mark.feature("topics")


def parse_keys(*pieces: bytes) -> list[Key]:
    keys = KeyParser()
    return [key for piece in pieces for key in keys.feed(piece)]


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        (b"\r", "enter"),
        (b"\t", "tab"),
        (b"\x7f", "backspace"),
        (b"\x03", "leave"),
        (b"\x04", "leave"),
        (b"\x1b", "escape"),
        (b"\x1b[A", "up"),
        (b"\x1bOB", "down"),
        (b"\x1b[5~", "page_up"),
        (b"\x1b[3~", "delete"),
        (b"\x1b[Z", "tab"),
    ],
)
def test_keys_have_names(sent: bytes, name: str) -> None:
    assert parse_keys(sent) == [Key(name)]


def test_split_characters_are_text() -> None:
    assert parse_keys("né".encode()) == [Key("text", "n"), Key("text", "é")]
    assert parse_keys(b"\xc3", b"\xa9") == [Key("text", "é")]
    assert parse_keys(b"\x1b[", b"5", b"~x") == [Key("page_up"), Key("text", "x")]


def test_unknown_sequences_are_ignored() -> None:
    assert parse_keys(b"\x1b[1;5Cx\x00\x1b[99~") == [Key("text", "x")]


def test_paste_is_one_line_of_text() -> None:
    sent = b"\x1b[200~yes\ra\x1b[A\tr\x03\x1b[201~z"
    assert parse_keys(sent) == [Key("paste", "yes a [A r "), Key("text", "z")]


@given(
    pasted=st.text(st.characters(exclude_characters="\x1b", exclude_categories=["Cs"])),
    cut=st.lists(st.integers(0, 200), max_size=5),
)
def test_split_paste_contains_no_keys(pasted: str, cut: list[int]) -> None:
    sent = b"\x1b[200~" + pasted.encode() + b"\x1b[201~"
    # The mark of the beginning comes whole: a terminal writes it at once.
    places = sorted({6, *(min(item + 6, len(sent)) for item in cut), len(sent)})
    pieces = [sent[a:b] for a, b in zip([0, *places], places, strict=False)]
    keys = parse_keys(*pieces, b"k")
    assert keys[-1] == Key("text", "k")
    assert {key.name for key in keys[:-1]} <= {"paste"}
    assert "".join(key.text for key in keys[:-1]) == "".join(
        item if item.isprintable() else " " for item in pasted
    )


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_printable(data: bytes) -> None:
    for key in parse_keys(data, b"\x1b[201~"):
        assert key.text.isprintable()
