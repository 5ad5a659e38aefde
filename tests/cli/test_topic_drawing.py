"""Drawing of topics on terminals: exact text, widths of characters, and cost."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from interlock.terminal.safe_text import escape_invisible, measure_width, wrap_text
from interlock.topics.commands import screen as topic_screen
from interlock.topics.commands.keyboard import Key
from interlock.topics.commands.message_format import format_params, split_recipient
from interlock.topics.commands.pending_proposals import PendingProposal
from interlock.topics.commands.screen import Screen, format_question, handle_key, set_proposals
from interlock.topics.commands.screen_view import describe_screen_problem, draw_screen

pytestmark = pytest.mark.feature("topics")

SCREEN = Screen("ops", own_id="human", connected=True)


@pytest.mark.parametrize(
    ("sign", "expected"),
    [
        ("\u3164", "\\u3164"),  # a filler: a letter that shows nothing
        ("\u2800", "\\u2800"),
        ("\ufe0f", "\\ufe0f"),  # makes the sign before it wide
        ("\u20e3", "\\u20e3"),
        ("\U0001f3fd", "\\ud83c\\udffd"),  # no room by some tables, two columns on screens
        ("\U0001f1e9", "\\ud83c\\udde9"),
        ("\u3248", "\\u3248"),  # one column by some tables, two on some screens
        ("\u0301", "\\u0301"),  # marks: in the cell of the letter before them, or in their own
        ("\u0903", "\\u0903"),
        ("\u1112", "\\u1112"),  # part of a syllable
        ("\u05d0", "\\u05d0"),  # written from the right by some terminals
        ("\ufdfd", "\\ufdfd"),  # drawn over what follows
        ("\u2764", "\\u2764"),  # a picture by what follows
        ("é", "é"),
        ("ü", "ü"),
        ("Я", "Я"),
        ("\u6f22", "\u6f22"),
        ("\u2705", "\u2705"),
    ],
)
def test_ambiguous_width_characters_are_escaped(sign: str, expected: str) -> None:
    params = json.dumps({"a": f"e{sign}!"}, ensure_ascii=False).encode()
    assert format_params(params) == ["{", f'  "a": "e{expected}!"', "}"]


def test_question_characters_have_same_width_everywhere() -> None:
    every = map(chr, range(0x80, sys.maxunicode + 1))
    for element in (item for item in every if escape_invisible(item) == item):
        category, order = unicodedata.category(element), unicodedata.bidirectional(element)
        assert element.isprintable()
        assert category[0] != "M", ascii(element)
        assert order not in ("R", "AL", "AN"), ascii(element)
        assert measure_width(element) == (
            1 if unicodedata.east_asian_width(element) == "N" else 2
        ) or (
            # Signs of which somebody makes pictures are two wide, to be sure.
            measure_width(element) == 2 and category[0] in "PSNZ"
        ), ascii(element)


def test_measured_width_is_never_too_small() -> None:
    for number in filter(str.isprintable, map(chr, range(sys.maxunicode + 1))):
        assert measure_width(number) >= cell_len(number), ascii(number)
        assert measure_width(number) == 2 or unicodedata.east_asian_width(number) in ("N", "Na"), (
            ascii(number)
        )
        assert measure_width(number) == 2 or unicodedata.category(number)[0] != "M", ascii(number)


@pytest.mark.parametrize("sign", ["\u3248", "\u00df", "\u042f", "\u0903", "\U0001f3fd", "\u6f22"])
@pytest.mark.parametrize("field", ["params", "proposer", "target", "call"])
def test_question_shows_end_of_hidden_text(sign: str, field: str) -> None:
    hidden = "/srv/" + sign * 41 + "/../../etc/cron.d/evil"
    one = PendingProposal("p9", "agent", "worker", "tools/call w", b"{}")
    value = json.dumps({"path": hidden}).encode() if field == "params" else hidden
    one = replace(one, **{field: value})
    screen = replace(
        SCREEN, proposals=(one,), selected_id="p9", in_proposals=True, question_id="p9"
    )
    for width in (20, 60, 80, 200):
        lines = format_question(topic_screen.resize(screen, width, 50))
        # The last cell is where terminals put what does not fit.
        assert all(measure_width(f"│ {line}") < width for line in lines)
        assert "cron.d/evil" in "".join(line.removeprefix("  ") for line in lines)


def test_question_shows_all_recipients() -> None:
    to = ", ".join(f"worker-{number}" for number in range(400))
    one = PendingProposal("p9", "agent", to, "tools/call w", b"{}")
    screen = replace(
        SCREEN, proposals=(one,), selected_id="p9", in_proposals=True, question_id="p9"
    )
    output = " ".join(" ".join(format_question(screen)).split())
    assert to in output


def test_long_draft_is_measured_only_where_visible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[int] = []

    def counted(text: str) -> int:
        measured.append(len(text))
        return cell_len(text)

    monkeypatch.setattr("interlock.topics.commands.screen_view.cell_len", counted)
    screen, _ = handle_key(SCREEN, Key("paste", "\u6f22" * topic_screen.MAX_DRAFT_LENGTH))
    for cursor in (len(screen.draft), 4_000, 0):
        rows = draw_screen(replace(screen, cursor=cursor))
        assert all(cell_len(row.plain) == 80 for row in rows)
    assert len(measured) < 1_000
    assert max(measured) <= 2 * 80


@pytest.mark.parametrize("size", [(19, 30), (80, 7), (5, 3)])
def test_unseen_proposal_cannot_be_fulfilled(size: tuple[int, int]) -> None:
    one = PendingProposal("p9", "agent", "worker", "tools/call w", b"{}")
    screen = replace(SCREEN, proposals=(one,), selected_id="p9", in_proposals=True)
    screen, _ = handle_key(topic_screen.resize(screen, *size), Key("text", "a"))
    for key in (*[Key("page_down")] * 5, Key("text", "y")):
        screen, deed = handle_key(topic_screen.mark_drawn(screen), key)
    assert (deed, screen.question_id) == (None, "p9")
    assert "20 columns and 8 lines" in screen.note
    # It is large enough now.
    screen = topic_screen.resize(screen, 80, 24)
    assert handle_key(screen, Key("text", "y"))[1] is None
    seen = topic_screen.mark_drawn(screen)
    assert handle_key(seen, Key("text", "y"))[1] == topic_screen.ScreenAction("fulfil", "p9")


def test_long_question_is_wrapped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out: list[str] = []

    def counted(text: str, width: int) -> list[str]:
        laid_out.append(text)
        return wrap_text(text, width)

    monkeypatch.setattr("interlock.topics.commands.screen.wrap_text", counted)
    long = PendingProposal("p9", "agent", "worker", "tools/call w", b'{"only":"once"}')
    screen = replace(SCREEN, proposals=(long,), selected_id="p9", in_proposals=True)
    for key in (Key("text", "a"), Key("down"), Key("down"), Key("up")):
        screen, _ = handle_key(screen, key)
    draw_screen(set_proposals(screen, [replace(long, params=bytes(bytearray(long.params)))]))
    assert laid_out.count('  "only": "once"') == 1


@pytest.mark.parametrize(
    ("term", "encoding", "reason"),
    [
        ("xterm-256color", "utf-8", ""),
        ("dumb", "utf-8", "$TERM is dumb"),
        ("", "utf-8", "$TERM is not set"),
        ("xterm", "ascii", "its encoding is ascii; use a UTF-8 locale"),
        # Signs that it lacks would be written as numbers, behind what was measured.
        ("xterm", "shift_jis", "its encoding is shift_jis; use a UTF-8 locale"),
        ("xterm", "latin-1", "its encoding is latin-1; use a UTF-8 locale"),
    ],
)
def test_describes_terminals_without_screen(term: str, encoding: str, reason: str) -> None:
    assert describe_screen_problem(term, encoding) == reason


@pytest.mark.parametrize(
    ("text", "to", "message"),
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
def test_splits_recipient_from_text(text: str, to: list[str], message: str) -> None:
    assert split_recipient(text, {"worker", "a,b"}) == (to, message)
