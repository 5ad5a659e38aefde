"""What of a topic a terminal can draw, how exactly, and at what cost."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from interlock.cli import topic_screen
from interlock.cli.topic_keys import Key
from interlock.cli.topic_said import addressed, exactly
from interlock.cli.topic_screen import Proposed, Screen, now_waiting, pressed, wrapped
from interlock.cli.topic_view import drawn, undrawable

SCREEN = Screen("ops", own="human", connected=True)


@pytest.mark.parametrize(
    ("sign", "shown"),
    [
        ("\u3164", "\\u3164"),  # a filler: a letter that shows nothing
        ("\u2800", "\\u2800"),
        ("\ufe0f", "\\ufe0f"),  # makes the sign before it wide
        ("\u20e3", "\\u20e3"),
        ("\U0001f3fd", "\\ud83c\\udffd"),  # no room by some tables, two columns on screens
        ("\U0001f1e9", "\\ud83c\\udde9"),
        ("\u0301", "\u0301"),  # belongs to the letter before it
        ("é", "é"),
        ("\u6f22", "\u6f22"),
    ],
)
def test_what_may_be_drawn_too_wide_or_not_at_all_is_a_number(sign: str, shown: str) -> None:
    params = json.dumps({"a": f"e{sign}!"}, ensure_ascii=False).encode()
    assert exactly(params) == ["{", f'  "a": "e{shown}!"', "}"]


def test_of_a_long_draft_no_more_is_measured_than_can_be_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[int] = []

    def counted(text: str) -> int:
        measured.append(len(text))
        return cell_len(text)

    monkeypatch.setattr("interlock.cli.topic_view.cell_len", counted)
    screen, _ = pressed(SCREEN, Key("paste", "\u6f22" * topic_screen.LONGEST_DRAFT))
    for cursor in (len(screen.draft), 4_000, 0):
        rows = drawn(replace(screen, cursor=cursor))
        assert all(cell_len(row.plain) == 80 for row in rows)
    assert len(measured) < 1_000
    assert max(measured) <= 2 * 80


@pytest.mark.parametrize("size", [(19, 30), (80, 7), (5, 3)])
def test_what_is_out_of_sight_is_not_fulfilled(size: tuple[int, int]) -> None:
    one = Proposed("p9", "agent", "worker", "tools/call w", b"{}")
    screen = replace(SCREEN, proposals=(one,), chosen="p9", deciding=True)
    screen, _ = pressed(topic_screen.resized(screen, *size), Key("text", "a"))
    for key in (*[Key("page_down")] * 5, Key("text", "y")):
        screen, deed = pressed(screen, key)
    assert (deed, screen.asking) == (None, "p9")
    assert "20 columns and 8 lines" in screen.note
    # It is large enough now.
    screen = topic_screen.resized(screen, 80, 24)
    assert pressed(screen, Key("text", "y"))[1] == topic_screen.Deed("fulfil", "p9")


def test_a_long_question_is_laid_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out: list[str] = []

    def counted(text: str, width: int) -> list[str]:
        laid_out.append(text)
        return wrapped(text, width)

    monkeypatch.setattr("interlock.cli.topic_screen.wrapped", counted)
    long = Proposed("p9", "agent", "worker", "tools/call w", b'{"only":"once"}')
    screen = replace(SCREEN, proposals=(long,), chosen="p9", deciding=True)
    for key in (Key("text", "a"), Key("down"), Key("down"), Key("up")):
        screen, _ = pressed(screen, key)
    drawn(now_waiting(screen, [replace(long, params=bytes(bytearray(long.params)))]))
    assert laid_out.count('  "only": "once"') == 1


@pytest.mark.parametrize(
    ("term", "encoding", "why"),
    [
        ("xterm-256color", "utf-8", ""),
        ("dumb", "utf-8", "it is dumb, by $TERM"),
        ("", "utf-8", "$TERM does not say what it is"),
        ("xterm", "ascii", "its encoding is ascii; in a UTF-8 locale there is one"),
        ("xterm", "latin-1", "its encoding is latin-1; in a UTF-8 locale there is one"),
    ],
)
def test_which_terminals_show_a_screen(term: str, encoding: str, why: str) -> None:
    assert undrawable(term, encoding) == why


@pytest.mark.parametrize(
    ("text", "to", "words"),
    [
        ("@worker do it", ["worker"], "do it"),
        ("@worker: do it", ["worker"], "do it"),
        ("@a,b, please", ["a,b"], "please"),
        ("@nobody hello", [], "@nobody hello"),
        ("@worker", [], "@worker"),
        ("worker do it", [], "worker do it"),
        ("mail me@worker now", [], "mail me@worker now"),
        ("@", [], "@"),
    ],
)
def test_for_whom_something_is(text: str, to: list[str], words: str) -> None:
    assert addressed(text, {"worker", "a,b"}) == (to, words)
