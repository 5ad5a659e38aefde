"""Drawing of the screen of `interlock topic join`: messages on the left, participants on the right,
proposals below. No I/O: it returns lines with the width of the terminal."""

from __future__ import annotations

import codecs
from functools import lru_cache
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from interlock.terminal.safe_text import wrap_text
from interlock.topics.commands.message_format import MessageLine, format_arguments, put_on_one_line
from interlock.topics.commands.pending_proposals import (
    HiddenProposals,
    PendingProposal,
    fold_proposals,
)
from interlock.topics.commands.screen import (
    QUESTION_PREFIX,
    Screen,
    count_question_lines,
    format_question,
)

_SIDEBAR_WIDTH: Final = 28
_MIN_WIDTH_WITH_SIDEBAR: Final = 72
_MAX_PROPOSAL_ROWS: Final = 6
_STYLES: Final = {
    "plain": "",
    "mine": "cyan",
    "proposal": "yellow",
    "answer": "green",
    "note": "dim",
    "problem": "red",
}
_DUMB_TERMINALS: Final = frozenset(("", "dumb", "unknown"))
"""Values of $TERM without cursor control."""
_CHAT_KEYS: Final = "Enter send · Tab proposals · PgUp scroll · /help · ^C quit"
HELP: Final = (
    "Enter sends your text to all. @NAME at its beginning sends it to NAME only.",
    "Tab moves to the proposals: a fulfils the selected one, r rejects it, R all of its proposer.",
    "PgUp and PgDn scroll. Ctrl-C leaves the topic.",
)
_PROPOSAL_KEYS: Final = "↑↓ or number · a fulfil · r reject, R all of proposer · Tab chat · ^C quit"
_NUMBER_KEYS: Final = ", or a, r, Enter for this one"
_QUESTION_KEYS: Final = "y fulfil · n cancel · ↑↓ scroll"
_BLOCKED_QUESTION_KEYS: Final = "You cannot fulfil it · n back · ↑↓ scroll"
_CALL_PREFIX: Final = "tools/call "
_MAX_NAME_LENGTH: Final = 40


def describe_screen_problem(term: str, encoding: str) -> str:
    """Return why a terminal cannot show the screen. Empty if it can."""
    if term in _DUMB_TERMINALS:
        return f"$TERM is {term}" if term else "$TERM is not set"
    # In other encodings, escaped characters would be wider than measured.
    if codecs.lookup(encoding).name != "utf-8":
        return f"its encoding is {encoding}; use a UTF-8 locale"
    return ""


def draw_screen(screen: Screen) -> list[Text]:
    """Return all lines of the screen."""
    width, height = screen.size
    footer = _draw_footer(screen)
    body = height - 1 - len(footer)
    if screen.question_id:
        middle = _draw_question(screen, body)
    else:
        middle = _draw_room(screen, body)
    return [_fit_row(line, width) for line in [_draw_header(screen), *middle, *footer]]


def _draw_header(screen: Screen) -> Text:
    state = f" · {screen.lost_count} messages lost" if screen.lost_count else ""
    state += "" if screen.connected else " · not connected, retrying"
    count = len(screen.participants) + (1 if screen.own_id else 0)
    words = f" {screen.topic} · you are {screen.own_id or '…'} · {count} here{state}"
    return _style(words, "reverse" if screen.connected else "reverse red")


def _draw_room(screen: Screen, height: int) -> list[Text]:
    width = screen.size[0]
    sidebar_width = _SIDEBAR_WIDTH if width >= _MIN_WIDTH_WITH_SIDEBAR else 0
    messages = _draw_messages(screen, width - sidebar_width - (1 if sidebar_width else 0), height)
    if not sidebar_width:
        return messages
    right = _draw_participants(screen, sidebar_width - 2, height)
    rows: list[Text] = []
    for left_row, right_row in zip(messages, right, strict=True):
        row = _fit_row(left_row, width - sidebar_width - 1)
        row.append("│ ", style="dim")
        row.append_text(right_row)
        rows.append(row)
    return rows


def _draw_messages(screen: Screen, width: int, height: int) -> list[Text]:
    """Return the last lines that fit. If scrolled back, return earlier ones and the number of newer
    ones."""
    if screen.scrolled_lines:
        newer = _style(f"↓ {screen.scrolled_lines:,} newer: PgDn", "bold yellow")
        return [*_draw_lines(screen, width, height - 1), newer] if height > 1 else [newer]
    return _draw_lines(screen, width, height)


def _draw_lines(screen: Screen, width: int, height: int) -> list[Text]:
    end = len(screen.lines) - screen.scrolled_lines
    rows: list[Text] = []
    for line in reversed(screen.lines[:end]):
        rows[:0] = _draw_line(line, width)
        if len(rows) >= height:
            break
    rows = rows[-height:]
    return [Text()] * (height - len(rows)) + rows


def _draw_line(line: MessageLine, width: int) -> list[Text]:
    sender = f"{line.sender}: " if line.sender else "· "
    pieces = wrap_text(f"{line.time} {sender}{line.text}", width)
    rows = [_style(piece, _STYLES.get(line.tone, "")) for piece in pieces]
    if line.sender:
        rows[0].stylize("bold", len(line.time) + 1, len(line.time) + 1 + len(line.sender))
    return rows


def _draw_participants(screen: Screen, width: int, height: int) -> list[Text]:
    rows = [_style("participants", "bold")]
    if screen.own_id:
        rows.append(_style(f"{screen.own_id} (you)", "cyan"))
    for participant in screen.participants:
        row = Text(put_on_one_line(participant.id, 128))
        if participant.dropped_messages:
            row.append(f" !{participant.dropped_messages}", style="red")
        rows.append(row)
        rows.append(_style(f"  {put_on_one_line(participant.capabilities)}", "dim"))
    rows = [_fit_row(row, width) for row in rows]
    if len(rows) > height:
        hidden_count = len(rows) - height + 1
        rows[height - 1 :] = [_style(f"… {hidden_count} more lines", "dim")]
    return rows + [Text()] * (height - len(rows))


def _draw_footer(screen: Screen) -> list[Text]:
    """Return the proposals, the draft and the key help."""
    rows: list[Text] = []
    if not screen.question_id:
        rows += _draw_proposals(screen)
        rows.append(_draw_draft(screen))
    question = screen.note or _format_reject_question(screen)
    if not question:
        rows.append(_style(f" {_choose_key_help(screen)}", "dim"))
        return rows
    width, height = screen.size
    # The note must be readable, but most of the screen is for its subject.
    max_lines = max(1, min(3, height // 6))
    return rows + [
        _style(f" {line}", "bold yellow") for line in wrap_text(question, width - 1)[:max_lines]
    ]


def _format_reject_question(screen: Screen) -> str:
    proposal = screen.proposal(screen.reject_ids[0]) if screen.reject_ids else None
    if proposal is None:
        return ""
    count = len(screen.reject_ids)
    object_text = "the one proposal" if count == 1 else f"all {count:,} proposals"
    proposer_text = (
        "you" if proposal.is_own else put_on_one_line(proposal.proposer, _MAX_NAME_LENGTH)
    )
    return f"Reject {object_text} of {proposer_text}? y reject · n cancel"


def _choose_key_help(screen: Screen) -> str:
    if screen.question_id:
        proposal = screen.proposal(screen.question_id)
        return (
            _BLOCKED_QUESTION_KEYS
            if proposal is not None and proposal.blocked_reason
            else _QUESTION_KEYS
        )
    if screen.digits:
        is_complete = any(str(proposal.number) == screen.digits for proposal in screen.proposals)
        keys = _NUMBER_KEYS if is_complete else ""
        return f"{screen.digits}…: another digit{keys} · Esc back to chat"
    return _PROPOSAL_KEYS if screen.in_proposals else _CHAT_KEYS


def _draw_proposals(screen: Screen) -> list[Text]:
    proposals = screen.proposals
    if not proposals:
        return []
    max_rows = max(1, min(_MAX_PROPOSAL_ROWS, screen.size[1] // 4))
    proposers = len({proposal.proposer for proposal in proposals})
    by = f", by {proposers:,}" if len(proposals) > max_rows and proposers > 1 else ""
    rows = [_style(f"── proposals: {len(proposals):,}{by} ──", "yellow")]
    width = max(2, len(str(max(proposal.number for proposal in proposals))))
    for proposal in fold_proposals(proposals, screen.selected_id, max_rows):
        if isinstance(proposal, HiddenProposals):
            rows.append(
                _style(_format_hidden(proposal, width, in_proposals=screen.in_proposals), "yellow")
            )
            continue
        is_selected = screen.in_proposals and proposal.id == screen.selected_id
        rows.append(_style(_format_proposal(proposal, width), "reverse" if is_selected else ""))
    return rows


def _format_hidden(proposal: HiddenProposals, width: int, *, in_proposals: bool) -> str:
    keys = "   (↓ show, → next proposer, G last)" if in_proposals else ""
    proposer = put_on_one_line(proposal.proposer, _MAX_NAME_LENGTH)
    return f"{'':>{width}} {proposer}: {proposal.count:,} more{keys}"


def _format_proposal(proposal: PendingProposal, width: int) -> str:
    """Format a proposal in one short row."""
    proposer_text = "you" if proposal.is_own else put_on_one_line(proposal.proposer, 128)
    to = f" → {put_on_one_line(proposal.target, 128)}" if proposal.target else ""
    call_text = put_on_one_line(proposal.call.removeprefix(_CALL_PREFIX), 200)
    arguments = _format_arguments(proposal.params)
    return f"{proposal.number:>{width}} {proposer_text}{to}: {call_text} {arguments}"


@lru_cache(maxsize=16)
def _format_arguments(params: bytes) -> str:
    """Format arguments. Cached: they are needed for every drawing, and may have a mebibyte."""
    return put_on_one_line(format_arguments(params), 500)


def _draw_draft(screen: Screen) -> Text:
    width = screen.size[0]
    # Keep the cursor visible. Measure no more than fits: a draft may be long.
    start = max(0, screen.cursor - width)
    while cell_len(screen.draft[start : screen.cursor]) > width - 4:
        start += 1
    row = _style("> ", "dim" if screen.in_proposals else "bold")
    before = screen.draft[start : screen.cursor]
    at = screen.draft[screen.cursor : screen.cursor + width]
    row.append(before)
    if not screen.in_proposals:
        row.append(at[:1] or " ", style="reverse")
        row.append(at[1:])
    else:
        row.append(at)
    return row


def _draw_question(screen: Screen, height: int) -> list[Text]:
    lines = format_question(screen)
    shown_lines = lines[screen.offset : screen.offset + min(height, count_question_lines(screen))]
    rows = [Text(f"{QUESTION_PREFIX}{line}") for line in shown_lines]
    remaining = len(lines) - screen.offset - len(shown_lines)
    if remaining and len(rows) < height:
        rows.append(_style(f"  … {remaining} more lines: ↓", "yellow"))
    return rows + [Text()] * (height - len(rows))


def _fit_row(row: Text, width: int) -> Text:
    """Cut or pad a row to exactly this width, so that it never wraps."""
    is_complete = cell_len(row.plain)
    if is_complete == width:
        return row.copy()
    if is_complete < width:
        fitted_row = row.copy()
        fitted_row.append(" " * (width - is_complete))
        return fitted_row
    cut = set_cell_size(row.plain, width)
    fitted_row = Text(cut)
    for span in row.spans:
        fitted_row.stylize(span.style, span.start, min(span.end, len(cut)))
    return fitted_row


def _style(text: str, style: str) -> Text:
    """Return a text with a style that does not apply to text appended later."""
    return Text().append(text, style=style)
