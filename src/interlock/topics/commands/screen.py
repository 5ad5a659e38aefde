"""The screen of `interlock topic join`: its state, and the effect of a key. No I/O.

A screen is an immutable value: a key produces a new screen and maybe an action. Decisions refer to
the id of a proposal, never to its position, so that the list cannot move under a key. A decision
also requires that the whole proposal was shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec
from msgspec.structs import replace

from interlock.terminal.safe_text import escape_invisible, measure_width, wrap_text
from interlock.topics.commands.keyboard import Key
from interlock.topics.commands.message_format import (
    MessageLine,
    find_missing_recipient,
    format_params,
    put_on_one_line,
)
from interlock.topics.commands.pending_proposals import (
    PendingProposal,
    arrange_proposals,
    find_neighbor_group,
    find_same_proposer,
)

MAX_LINES: Final = 2_000
MAX_DRAFT_LENGTH: Final = 8_000
_TOO_LONG: Final = f"The limit is {MAX_DRAFT_LENGTH:,} characters: the rest was removed."
_DRAFT_CUT: Final = "The end of the text is missing. Enter again sends it anyway, Ctrl-U clears it."
_NO_PROPOSALS: Final = (
    "No pending proposals since you joined. For calls of the node, see `interlock approvals`."
)
_NO_PROPOSALS_LEFT: Final = "No pending proposals. Back to chat."
_NOT_PENDING: Final = "The proposal is no longer pending. Nothing was done."
_NOTHING_DONE: Final = "Nothing was done."
_SELECT_FIRST: Final = "Select a proposal first: ↑↓ or its number."
_OWN_PROPOSAL: Final = "You cannot fulfil your own proposal."
QUESTION_PREFIX: Final = "│ "
"""The prefix of each line of a question."""
_MIN_COLUMNS: Final = 20
_MIN_ROWS: Final = 8
_TOO_SMALL: Final = (
    f"The terminal is too small: it needs {_MIN_COLUMNS} columns and {_MIN_ROWS} lines."
)
_MIN_QUESTION_LINES: Final = 4
"""The minimum number of lines of a question."""


class ScreenParticipant(msgspec.Struct, frozen=True):
    """A participant in the list."""

    id: str
    capabilities: str
    """A summary of its capabilities."""
    dropped_messages: int = 0
    """The number of its dropped messages."""


class ScreenAction(msgspec.Struct, frozen=True):
    """An action: say, fulfil, reject, reject_all or leave."""

    name: str
    text: str = ""
    """The text to send, the id of the proposal, or the proposer."""
    ids: tuple[str, ...] = ()
    """The ids of several proposals."""


class Screen(msgspec.Struct, frozen=True):
    topic: str
    own_id: str = ""
    connected: bool = False
    lost_count: int = 0
    """The number of lost messages."""
    participants: tuple[ScreenParticipant, ...] = ()
    lines: tuple[MessageLine, ...] = ()
    proposals: tuple[PendingProposal, ...] = ()
    size: tuple[int, int] = (80, 24)
    is_too_small: bool = False
    """True if the terminal is smaller than `size`, so that some of the screen is not visible."""
    in_proposals: bool = False
    """True if keys go to the proposals, not to the draft."""
    selected_id: str = ""
    """The selected proposal."""
    digits: str = ""
    """The digits of an incomplete number."""
    reject_ids: tuple[str, ...] = ()
    """The proposals to reject if the user confirms: all of one proposer."""
    question_id: str = ""
    """The proposal to fulfil if the user confirms."""
    remarks: tuple[str, ...] = ()
    """Remarks about it at the time of the question. They do not change, so that a chat cannot move
    the lines of a question."""
    offset: int = 0
    """The first line of the question that is shown."""
    seen_lines: int = 0
    """The number of lines of the question that have been shown."""
    scrolled_lines: int = 0
    """The number of lines that the user has scrolled back."""
    draft: str = ""
    cursor: int = 0
    is_cut: bool = False
    """True if typed or pasted text did not fit into the draft."""
    unconfirmed_draft: str = ""
    """A draft for a participant that is not there: a second Enter sends it to everybody."""
    note: str = ""
    last_number: int = 0
    """The highest number of a proposal since the list was empty."""

    def proposal(self, id: str) -> PendingProposal | None:
        return next((proposal for proposal in self.proposals if proposal.id == id), None)


# -- events


def add_line(screen: Screen, line: MessageLine, *, scroll_to_end: bool = False) -> Screen:
    """Add a message.

    Args:
        scroll_to_end: scroll to the end, because the message responds to an action of the user.
    """
    # A user who has scrolled back stays at the same lines.
    scrolled_lines = (
        min(screen.scrolled_lines + 1, MAX_LINES)
        if screen.scrolled_lines and not scroll_to_end
        else 0
    )
    return replace(
        screen, lines=(*screen.lines[1 - MAX_LINES :], line), scrolled_lines=scrolled_lines
    )


def set_participants(screen: Screen, participants: Iterable[ScreenParticipant]) -> Screen:
    return replace(screen, participants=tuple(participants))


def set_proposals(screen: Screen, proposals: Iterable[PendingProposal]) -> Screen:
    """Set the pending proposals.

    Questions about proposals that are no longer pending are closed. A changed proposal with the
    same id counts as another one.
    """
    before = {proposal.id: proposal for proposal in screen.proposals}
    pending = arrange_proposals(screen.proposals, proposals, screen.last_number)
    # Numbers start again only when no proposal is pending.
    last_number = (
        max((screen.last_number, *(proposal.number for proposal in pending))) if pending else 0
    )
    now = {proposal.id: proposal for proposal in pending}

    def is_pending(id: str) -> bool:
        return id in before and before[id].is_same(now.get(id))

    updated_screen = replace(screen, proposals=pending, last_number=last_number)
    if pending and screen.note in (_NO_PROPOSALS, _NO_PROPOSALS_LEFT):
        updated_screen = replace(updated_screen, note="")
    if screen.question_id and not is_pending(screen.question_id):
        updated_screen = replace(
            updated_screen, question_id="", remarks=(), offset=0, seen_lines=0, note=_NOT_PENDING
        )
    if screen.reject_ids:
        remaining_ids = tuple(filter(is_pending, screen.reject_ids))
        updated_screen = replace(
            updated_screen,
            reject_ids=remaining_ids,
            note=updated_screen.note if remaining_ids else _NOT_PENDING,
        )
    if not is_pending(screen.selected_id):
        # Do not select its neighbour: the next key may still be meant for the one that is gone.
        updated_screen = replace(updated_screen, selected_id="")
    if not pending and screen.in_proposals:
        updated_screen = replace(
            updated_screen,
            in_proposals=False,
            digits="",
            note=updated_screen.note or _NO_PROPOSALS_LEFT,
        )
    return updated_screen


def restore_draft(screen: Screen, text: str) -> Screen:
    """Put a text that could not be sent back into the draft, in front of newer text."""
    draft = f"{text} {screen.draft}" if screen.draft else text
    return replace(screen, draft=draft, cursor=screen.cursor + len(draft) - len(screen.draft))


def resize(screen: Screen, width: int, height: int) -> Screen:
    # Lines wrap differently now, so it is unknown which lines of a question were seen.
    size = (max(width, _MIN_COLUMNS), max(height, _MIN_ROWS))
    is_too_small = size != (width, height)
    return replace(screen, size=size, is_too_small=is_too_small, offset=0, seen_lines=0)


# -- keys


def handle_key(screen: Screen, key: Key) -> tuple[Screen, ScreenAction | None]:
    """Handle a key. Returns the new screen and an action, if any."""
    screen = replace(screen, note="")
    if key.name == "leave":
        return screen, ScreenAction("leave")
    if screen.question_id:
        return _handle_question_key(screen, key)
    if screen.reject_ids:
        return _handle_reject_all_key(screen, key)
    if key.name == "tab":
        return _toggle_proposals(screen), None
    if key.name in ("page_up", "page_down"):
        step = max(1, screen.size[1] // 2)
        scrolled_lines = screen.scrolled_lines + (step if key.name == "page_up" else -step)
        return replace(
            screen, scrolled_lines=max(0, min(scrolled_lines, len(screen.lines) - 1))
        ), None
    if screen.in_proposals:
        return _handle_proposal_key(screen, key)
    return _handle_draft_key(screen, key)


def _toggle_proposals(screen: Screen) -> Screen:
    if screen.in_proposals:
        return replace(screen, in_proposals=False, digits="")
    if not screen.proposals:
        return replace(screen, note=_NO_PROPOSALS)
    selected_id = screen.selected_id or screen.proposals[0].id
    return replace(screen, in_proposals=True, selected_id=selected_id)


def _handle_proposal_key(screen: Screen, key: Key) -> tuple[Screen, ScreenAction | None]:
    if key.name == "text" and key.text.isascii() and key.text.isdigit():
        return _handle_digit(screen, key.text), None
    if screen.digits:
        # Any other key completes the number.
        id = next(
            (proposal.id for proposal in screen.proposals if str(proposal.number) == screen.digits),
            "",
        )
        screen = replace(screen, selected_id=id, digits="")
    if key.name == "escape":
        return replace(screen, in_proposals=False), None
    target = _find_target(screen, key)
    if target is not None:
        return replace(screen, selected_id=target), None
    if key.name != "text" or key.text not in "aArR":
        return screen, None
    proposal = screen.proposal(screen.selected_id)
    if proposal is None:
        return replace(screen, note=_SELECT_FIRST), None
    if key.text == "r":
        return screen, ScreenAction("reject", proposal.id)
    if key.text == "R":
        return replace(screen, reject_ids=find_same_proposer(screen.proposals, proposal)), None
    if proposal.is_own:
        return replace(screen, note=_OWN_PROPOSAL), None
    remarks = tuple(
        filter(None, [proposal.blocked_reason, proposal.remark and f"Remark by {proposal.remark}"])
    )
    return replace(screen, question_id=proposal.id, remarks=remarks, offset=0, seen_lines=0), None


def _find_target(screen: Screen, key: Key) -> str | None:
    """Return the proposal that a key selects. None: the key selects nothing."""
    ids = [proposal.id for proposal in screen.proposals]
    name = {"g": "home", "G": "end"}.get(key.text, key.name) if key.name == "text" else key.name
    if name in ("home", "end"):
        return ids[0 if name == "home" else -1]
    if name in ("left", "right"):
        return find_neighbor_group(
            screen.proposals, screen.selected_id, 1 if name == "right" else -1
        )
    if name in ("up", "down"):
        step = 1 if name == "down" else -1
        index = ids.index(screen.selected_id) + step if screen.selected_id in ids else 0
        return ids[max(0, min(index, len(ids) - 1))]
    return None


def _handle_digit(screen: Screen, digit: str) -> Screen:
    """Handle a digit. If several numbers begin with the same digits, nothing is selected until the
    number is complete."""
    digits = screen.digits + digit
    candidates = {str(proposal.number): proposal.id for proposal in screen.proposals}
    candidates = {number: id for number, id in candidates.items() if number.startswith(digits)}
    if not candidates:
        # Select nothing: the next key may be meant for this number.
        return replace(screen, digits="", selected_id="", note=f"There is no proposal {digits}.")
    if digits in candidates and len(candidates) == 1:
        return replace(screen, digits="", selected_id=candidates[digits])
    return replace(screen, digits=digits, selected_id="")


def _handle_reject_all_key(screen: Screen, key: Key) -> tuple[Screen, ScreenAction | None]:
    """Handle a key for the question whether to reject all proposals of a proposer."""
    proposal = screen.proposal(screen.reject_ids[0])
    if key.name == "text" and key.text in "yY" and proposal is not None:
        action = ScreenAction("reject_all", proposal.proposer, screen.reject_ids)
        return replace(screen, reject_ids=()), action
    if key.name in ("escape", "tab") or (key.name == "text" and key.text in "nN"):
        return replace(screen, reject_ids=(), note=_NOTHING_DONE), None
    return screen, None


def _handle_question_key(screen: Screen, key: Key) -> tuple[Screen, ScreenAction | None]:
    """Handle a key for the question whether to fulfil a proposal."""
    lines, room = format_question(screen), count_question_lines(screen)
    if key.name in ("down", "page_down", "up", "page_up"):
        step = room if key.name.startswith("page") else 1
        offset = screen.offset + (step if key.name.endswith("down") else -step)
        # Not beyond lines that have not been drawn yet, however fast the keys come.
        offset = max(0, min(offset, len(lines) - room, screen.seen_lines))
        return replace(screen, offset=offset), None
    proposal = screen.proposal(screen.question_id)
    if key.name == "text" and key.text in "yY":
        if proposal is not None and proposal.blocked_reason:
            return replace(screen, note=proposal.blocked_reason), None
        if screen.is_too_small:
            return replace(screen, note=_TOO_SMALL), None
        if not screen.seen_lines:
            # Typed before the question was drawn: it cannot be an answer.
            return screen, None
        if screen.seen_lines < len(lines):
            return replace(screen, note="Read all of it first: ↓ scrolls."), None
        return _close_question(screen), ScreenAction("fulfil", screen.question_id)
    if key.name in ("escape", "tab") or (key.name == "text" and key.text in "nN"):
        return replace(_close_question(screen), note=_NOTHING_DONE), None
    return screen, None


def _close_question(screen: Screen) -> Screen:
    """Close the question."""
    return replace(screen, question_id="", remarks=(), offset=0, seen_lines=0)


def mark_drawn(screen: Screen) -> Screen:
    """Record that the screen was drawn: the visible lines of a question have been seen. Only lines
    that follow directly on seen ones count."""
    if not screen.question_id or screen.offset > screen.seen_lines:
        return screen
    end = min(screen.offset + count_question_lines(screen), len(format_question(screen)))
    return replace(screen, seen_lines=max(screen.seen_lines, end))


def _handle_draft_key(screen: Screen, key: Key) -> tuple[Screen, ScreenAction | None]:
    draft, position = screen.draft, screen.cursor
    if key.name in ("text", "paste"):
        text = key.text[: max(0, MAX_DRAFT_LENGTH - len(draft))]
        if len(text) < len(key.text):
            screen = replace(screen, is_cut=True, note=_TOO_LONG)
        return replace(
            screen, draft=draft[:position] + text + draft[position:], cursor=position + len(text)
        ), None
    if key.name == "enter":
        if not draft.strip():
            return screen, None
        if screen.is_cut:
            return replace(screen, is_cut=False, note=_DRAFT_CUT), None
        missing_recipient = find_missing_recipient(
            draft.strip(), {participant.id for participant in screen.participants}
        )
        if missing_recipient and screen.connected and screen.unconfirmed_draft != draft:
            text = (
                f"There is no participant {put_on_one_line(missing_recipient, 128)}. Enter again "
                "sends to all."
            )
            return replace(screen, unconfirmed_draft=draft, note=text), None
        return replace(screen, draft="", cursor=0, scrolled_lines=0), ScreenAction(
            "say", draft.strip()
        )
    target = {"left": position - 1, "right": position + 1, "home": 0, "end": len(draft)}.get(
        key.name
    )
    if target is not None:
        return replace(screen, cursor=max(0, min(target, len(draft)))), None
    start = position
    if key.name == "backspace":
        start = max(0, position - 1)
    elif key.name == "word":
        start = len(draft[:position].rstrip().rpartition(" ")[0])
        start += 1 if start else 0
    elif key.name in ("clear", "escape"):
        start = 0
    elif key.name == "delete":
        return replace(screen, draft=draft[:position] + draft[position + 1 :]), None
    rest = draft[:start] + draft[position:]
    return replace(screen, draft=rest, cursor=start, is_cut=screen.is_cut and bool(rest)), None


# -- the question


def count_question_lines(screen: Screen) -> int:
    """Return the number of lines of a question that are shown at once."""
    return max(_MIN_QUESTION_LINES, screen.size[1] - _MIN_QUESTION_LINES)


def format_question(screen: Screen) -> list[str]:
    """Return everything about the proposal to fulfil, as wrapped lines."""
    proposal = screen.proposal(screen.question_id)
    if proposal is None:
        return []
    # The last cell stays empty: some terminals overwrite it with text that does not fit.
    width = screen.size[0] - measure_width(QUESTION_PREFIX) - 1
    return _format_question(
        proposal.proposer, proposal.target, proposal.call, proposal.params, screen.remarks, width
    )


@lru_cache(maxsize=2)
def _format_question(
    proposer: str, target: str, call_text: str, params: bytes, remarks: tuple[str, ...], width: int
) -> list[str]:
    """Format the question. Cached: it is needed for every key and drawing, and may have a
    mebibyte."""
    whole = [
        f"{escape_invisible(proposer)} proposes"
        + (f" to {escape_invisible(target)}" if target else ""),
        *map(escape_invisible, remarks),
        f"{escape_invisible(call_text)} with these exact params:",
        *format_params(params),
    ]
    return [part for line in whole for part in wrap_text(line, width)]
