"""Drawing of the screen of `interlock topic join`: messages on the left, participants on the right,
proposals below. No I/O: it returns lines with the width of the terminal."""

from __future__ import annotations

import codecs
from functools import lru_cache
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from interlock.terminal.safe_text import wrap_text
from interlock.topics.commands.message_format import MessageLine, arguments_of, one_line
from interlock.topics.commands.pending_proposals import HiddenProposals, PendingProposal, folded
from interlock.topics.commands.screen import ASKED_BEHIND, Screen, question, question_room

_SIDE: Final = 28
_WIDE_ENOUGH: Final = 72
_MOST_PROPOSALS: Final = 6
_STYLES: Final = {
    "plain": "",
    "mine": "cyan",
    "proposal": "yellow",
    "answer": "green",
    "note": "dim",
    "problem": "red",
}
_NO_SCREEN: Final = frozenset(("", "dumb", "unknown"))
"""Values of $TERM without cursor control."""
_WRITING: Final = "Enter send · Tab proposals · PgUp scroll · /help · ^C quit"
HELP: Final = (
    "Enter sends your text to everybody. @NAME at its beginning sends it to NAME only.",
    "Tab moves to the proposals: a fulfils the selected one, r rejects it, R all of its proposer.",
    "PgUp and PgDn scroll. Ctrl-C leaves the topic.",
)
_DECIDING: Final = "↑↓ or number · a fulfil · r reject, R all of proposer · Tab chat · ^C quit"
_NUMBERED: Final = ", or a, r, Enter for this one"
_ASKING: Final = "y fulfil · n cancel · ↑↓ scroll"
_LOOKING: Final = "You cannot fulfil it · n back · ↑↓ scroll"
_CALL: Final = "tools/call "
_MOST_NAME: Final = 40


def undrawable(term: str, encoding: str) -> str:
    """Return why a terminal cannot show the screen. Empty if it can."""
    if term in _NO_SCREEN:
        return f"$TERM is {term}" if term else "$TERM is not set"
    # In other encodings, escaped characters would be wider than measured.
    if codecs.lookup(encoding).name != "utf-8":
        return f"its encoding is {encoding}; use a UTF-8 locale"
    return ""


def drawn(screen: Screen) -> list[Text]:
    """Return all lines of the screen."""
    width, height = screen.size
    below = _foot(screen)
    body = height - 1 - len(below)
    if screen.asking:
        middle = _question(screen, body)
    else:
        middle = _room(screen, body)
    return [_fit(line, width) for line in [_head(screen), *middle, *below]]


def _head(screen: Screen) -> Text:
    state = f" · {screen.lost} messages lost" if screen.lost else ""
    state += "" if screen.connected else " · not connected, retrying"
    count = len(screen.people) + (1 if screen.own else 0)
    words = f" {screen.topic} · you are {screen.own or '…'} · {count} here{state}"
    return _styled(words, "reverse" if screen.connected else "reverse red")


def _room(screen: Screen, height: int) -> list[Text]:
    width = screen.size[0]
    side = _SIDE if width >= _WIDE_ENOUGH else 0
    left = _said(screen, width - side - (1 if side else 0), height)
    if not side:
        return left
    right = _people(screen, side - 2, height)
    rows: list[Text] = []
    for one, other in zip(left, right, strict=True):
        row = _fit(one, width - side - 1)
        row.append("│ ", style="dim")
        row.append_text(other)
        rows.append(row)
    return rows


def _said(screen: Screen, width: int, height: int) -> list[Text]:
    """Return the last lines that fit. If scrolled back, return earlier ones and the number of newer
    ones."""
    if screen.back:
        newer = _styled(f"↓ {screen.back:,} newer: PgDn", "bold yellow")
        return [*_lines(screen, width, height - 1), newer] if height > 1 else [newer]
    return _lines(screen, width, height)


def _lines(screen: Screen, width: int, height: int) -> list[Text]:
    end = len(screen.lines) - screen.back
    rows: list[Text] = []
    for line in reversed(screen.lines[:end]):
        rows[:0] = _line(line, width)
        if len(rows) >= height:
            break
    rows = rows[-height:]
    return [Text()] * (height - len(rows)) + rows


def _line(line: MessageLine, width: int) -> list[Text]:
    who = f"{line.who}: " if line.who else "· "
    pieces = wrap_text(f"{line.at} {who}{line.text}", width)
    rows = [_styled(piece, _STYLES.get(line.tone, "")) for piece in pieces]
    if line.who:
        rows[0].stylize("bold", len(line.at) + 1, len(line.at) + 1 + len(line.who))
    return rows


def _people(screen: Screen, width: int, height: int) -> list[Text]:
    rows = [_styled("participants", "bold")]
    if screen.own:
        rows.append(_styled(f"{screen.own} (you)", "cyan"))
    for one in screen.people:
        row = Text(one_line(one.id, 128))
        if one.lies:
            row.append(f" !{one.lies}", style="red")
        rows.append(row)
        rows.append(_styled(f"  {one_line(one.may)}", "dim"))
    rows = [_fit(row, width) for row in rows]
    if len(rows) > height:
        hidden = len(rows) - height + 1
        rows[height - 1 :] = [_styled(f"… {hidden} more lines", "dim")]
    return rows + [Text()] * (height - len(rows))


def _foot(screen: Screen) -> list[Text]:
    """Return the proposals, the draft and the key help."""
    rows: list[Text] = []
    if not screen.asking:
        rows += _proposals(screen)
        rows.append(_draft(screen))
    asked = screen.note or _asked_below(screen)
    if not asked:
        rows.append(_styled(f" {_keys(screen)}", "dim"))
        return rows
    width, height = screen.size
    # The note must be readable, but most of the screen is for its subject.
    most = max(1, min(3, height // 6))
    return rows + [_styled(f" {one}", "bold yellow") for one in wrap_text(asked, width - 1)[:most]]


def _asked_below(screen: Screen) -> str:
    one = screen.proposal(screen.sweeping[0]) if screen.sweeping else None
    if one is None:
        return ""
    count = len(screen.sweeping)
    what = "the one proposal" if count == 1 else f"all {count:,} proposals"
    whose = "you" if one.mine else one_line(one.proposer, _MOST_NAME)
    return f"Reject {what} of {whose}? y reject · n cancel"


def _keys(screen: Screen) -> str:
    if screen.asking:
        one = screen.proposal(screen.asking)
        return _LOOKING if one is not None and one.barred else _ASKING
    if screen.typed:
        whole = any(str(one.number) == screen.typed for one in screen.proposals)
        return f"{screen.typed}…: another digit{_NUMBERED if whole else ''} · Esc back to chat"
    return _DECIDING if screen.deciding else _WRITING


def _proposals(screen: Screen) -> list[Text]:
    waiting = screen.proposals
    if not waiting:
        return []
    most = max(1, min(_MOST_PROPOSALS, screen.size[1] // 4))
    proposers = len({one.proposer for one in waiting})
    by = f", by {proposers:,}" if len(waiting) > most and proposers > 1 else ""
    rows = [_styled(f"── proposals: {len(waiting):,}{by} ──", "yellow")]
    width = max(2, len(str(max(one.number for one in waiting))))
    for one in folded(waiting, screen.chosen, most):
        if isinstance(one, HiddenProposals):
            rows.append(_styled(_fold(one, width, deciding=screen.deciding), "yellow"))
            continue
        chosen = screen.deciding and one.id == screen.chosen
        rows.append(_styled(_proposal(one, width), "reverse" if chosen else ""))
    return rows


def _fold(one: HiddenProposals, width: int, *, deciding: bool) -> str:
    keys = "   (↓ show, → next proposer, G last)" if deciding else ""
    return f"{'':>{width}} {one_line(one.proposer, _MOST_NAME)}: {one.count:,} more{keys}"


def _proposal(one: PendingProposal, width: int) -> str:
    """Format a proposal in one short row."""
    who = "you" if one.mine else one_line(one.proposer, 128)
    to = f" → {one_line(one.target, 128)}" if one.target else ""
    what = one_line(one.what.removeprefix(_CALL), 200)
    return f"{one.number:>{width}} {who}{to}: {what} {_arguments(one.params)}"


@lru_cache(maxsize=16)
def _arguments(params: bytes) -> str:
    """Format arguments. Cached: they are needed for every drawing, and may have a mebibyte."""
    return one_line(arguments_of(params), 500)


def _draft(screen: Screen) -> Text:
    width = screen.size[0]
    # Keep the cursor visible. Measure no more than fits: a draft may be long.
    begin = max(0, screen.cursor - width)
    while cell_len(screen.draft[begin : screen.cursor]) > width - 4:
        begin += 1
    row = _styled("> ", "dim" if screen.deciding else "bold")
    before = screen.draft[begin : screen.cursor]
    at = screen.draft[screen.cursor : screen.cursor + width]
    row.append(before)
    if not screen.deciding:
        row.append(at[:1] or " ", style="reverse")
        row.append(at[1:])
    else:
        row.append(at)
    return row


def _question(screen: Screen, height: int) -> list[Text]:
    lines = question(screen)
    shown = lines[screen.offset : screen.offset + min(height, question_room(screen))]
    rows = [Text(f"{ASKED_BEHIND}{line}") for line in shown]
    left = len(lines) - screen.offset - len(shown)
    if left and len(rows) < height:
        rows.append(_styled(f"  … {left} more lines: ↓", "yellow"))
    return rows + [Text()] * (height - len(rows))


def _fit(row: Text, width: int) -> Text:
    """Cut or pad a row to exactly this width, so that it never wraps."""
    whole = cell_len(row.plain)
    if whole == width:
        return row.copy()
    if whole < width:
        fitted = row.copy()
        fitted.append(" " * (width - whole))
        return fitted
    cut = set_cell_size(row.plain, width)
    fitted = Text(cut)
    for span in row.spans:
        fitted.stylize(span.style, span.start, min(span.end, len(cut)))
    return fitted


def _styled(text: str, style: str) -> Text:
    """Return a text with a style that does not apply to text appended later."""
    return Text().append(text, style=style)
