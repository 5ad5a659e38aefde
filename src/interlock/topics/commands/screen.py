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
_TOO_LONG: Final = f"The limit is {MAX_DRAFT_LENGTH:,} characters: the rest was dropped."
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
    may: str
    """What it may send, in short."""
    lies: int = 0
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
    own: str = ""
    connected: bool = False
    lost: int = 0
    """The number of lost messages."""
    people: tuple[ScreenParticipant, ...] = ()
    lines: tuple[MessageLine, ...] = ()
    proposals: tuple[PendingProposal, ...] = ()
    size: tuple[int, int] = (80, 24)
    cramped: bool = False
    """True if the terminal is smaller than `size`, so that some of the screen is not visible."""
    deciding: bool = False
    """True if keys go to the proposals, not to the draft."""
    chosen: str = ""
    """The selected proposal."""
    typed: str = ""
    """The digits of an incomplete number."""
    sweeping: tuple[str, ...] = ()
    """The proposals to reject if the user confirms: all of one proposer."""
    asking: str = ""
    """The proposal to fulfil if the user confirms."""
    about: tuple[str, ...] = ()
    """Remarks about it at the time of the question. They do not change, so that a chat cannot move
    the lines of a question."""
    offset: int = 0
    """The first line of the question that is shown."""
    seen: int = 0
    """The number of lines of the question that have been shown."""
    back: int = 0
    """The number of lines that the user has scrolled back."""
    draft: str = ""
    cursor: int = 0
    cut: bool = False
    """True if typed or pasted text did not fit into the draft."""
    doubted: str = ""
    """A draft for a participant that is not there: a second Enter sends it to everybody."""
    note: str = ""
    numbered: int = 0
    """The highest number of a proposal since the list was empty."""

    def proposal(self, id: str) -> PendingProposal | None:
        return next((one for one in self.proposals if one.id == id), None)


# -- events


def add_line(screen: Screen, line: MessageLine, *, to_the_end: bool = False) -> Screen:
    """Add a message.

    Args:
        to_the_end: scroll to the end, because the message responds to an action of the user.
    """
    # A user who has scrolled back stays at the same lines.
    back = min(screen.back + 1, MAX_LINES) if screen.back and not to_the_end else 0
    return replace(screen, lines=(*screen.lines[1 - MAX_LINES :], line), back=back)


def set_participants(screen: Screen, people: Iterable[ScreenParticipant]) -> Screen:
    return replace(screen, people=tuple(people))


def set_proposals(screen: Screen, proposals: Iterable[PendingProposal]) -> Screen:
    """Set the pending proposals.

    Questions about proposals that are no longer pending are closed. A changed proposal with the
    same id counts as another one.
    """
    before = {one.id: one for one in screen.proposals}
    there = arrange_proposals(screen.proposals, proposals, screen.numbered)
    # Numbers start again only when no proposal is pending.
    numbered = max((screen.numbered, *(one.number for one in there))) if there else 0
    now = {one.id: one for one in there}

    def waits(id: str) -> bool:
        return id in before and before[id].is_same(now.get(id))

    changed = replace(screen, proposals=there, numbered=numbered)
    if there and screen.note in (_NO_PROPOSALS, _NO_PROPOSALS_LEFT):
        changed = replace(changed, note="")
    if screen.asking and not waits(screen.asking):
        changed = replace(changed, asking="", about=(), offset=0, seen=0, note=_NOT_PENDING)
    if screen.sweeping:
        left = tuple(filter(waits, screen.sweeping))
        changed = replace(changed, sweeping=left, note=changed.note if left else _NOT_PENDING)
    if not waits(screen.chosen):
        # Do not select its neighbour: the next key may still be meant for the one that is gone.
        changed = replace(changed, chosen="")
    if not there and screen.deciding:
        changed = replace(
            changed, deciding=False, typed="", note=changed.note or _NO_PROPOSALS_LEFT
        )
    return changed


def restore_draft(screen: Screen, text: str) -> Screen:
    """Put a text that could not be sent back into the draft, in front of newer text."""
    draft = f"{text} {screen.draft}" if screen.draft else text
    return replace(screen, draft=draft, cursor=screen.cursor + len(draft) - len(screen.draft))


def resize(screen: Screen, width: int, height: int) -> Screen:
    # Lines wrap differently now, so it is unknown which lines of a question were seen.
    size = (max(width, _MIN_COLUMNS), max(height, _MIN_ROWS))
    cramped = size != (width, height)
    return replace(screen, size=size, cramped=cramped, offset=0, seen=0)


# -- keys


def handle_key(screen: Screen, key: Key) -> tuple[Screen, ScreenAction | None]:
    """Handle a key. Returns the new screen and an action, if any."""
    screen = replace(screen, note="")
    if key.name == "leave":
        return screen, ScreenAction("leave")
    if screen.asking:
        return _handle_question_key(screen, key)
    if screen.sweeping:
        return _handle_reject_all_key(screen, key)
    if key.name == "tab":
        return _toggle_proposals(screen), None
    if key.name in ("page_up", "page_down"):
        step = max(1, screen.size[1] // 2)
        back = screen.back + (step if key.name == "page_up" else -step)
        return replace(screen, back=max(0, min(back, len(screen.lines) - 1))), None
    if screen.deciding:
        return _handle_proposal_key(screen, key)
    return _handle_draft_key(screen, key)


def _toggle_proposals(screen: Screen) -> Screen:
    if screen.deciding:
        return replace(screen, deciding=False, typed="")
    if not screen.proposals:
        return replace(screen, note=_NO_PROPOSALS)
    chosen = screen.chosen or screen.proposals[0].id
    return replace(screen, deciding=True, chosen=chosen)


def _handle_proposal_key(screen: Screen, key: Key) -> tuple[Screen, ScreenAction | None]:
    if key.name == "text" and key.text.isascii() and key.text.isdigit():
        return _handle_digit(screen, key.text), None
    if screen.typed:
        # Any other key completes the number.
        id = next((one.id for one in screen.proposals if str(one.number) == screen.typed), "")
        screen = replace(screen, chosen=id, typed="")
    if key.name == "escape":
        return replace(screen, deciding=False), None
    moved = _find_target(screen, key)
    if moved is not None:
        return replace(screen, chosen=moved), None
    if key.name != "text" or key.text not in "aArR":
        return screen, None
    one = screen.proposal(screen.chosen)
    if one is None:
        return replace(screen, note=_SELECT_FIRST), None
    if key.text == "r":
        return screen, ScreenAction("reject", one.id)
    if key.text == "R":
        return replace(screen, sweeping=find_same_proposer(screen.proposals, one)), None
    if one.mine:
        return replace(screen, note=_OWN_PROPOSAL), None
    about = tuple(filter(None, [one.barred, one.said and f"Remark by {one.said}"]))
    return replace(screen, asking=one.id, about=about, offset=0, seen=0), None


def _find_target(screen: Screen, key: Key) -> str | None:
    """Return the proposal that a key selects. None: the key selects nothing."""
    ids = [one.id for one in screen.proposals]
    name = {"g": "home", "G": "end"}.get(key.text, key.name) if key.name == "text" else key.name
    if name in ("home", "end"):
        return ids[0 if name == "home" else -1]
    if name in ("left", "right"):
        return find_neighbor_group(screen.proposals, screen.chosen, 1 if name == "right" else -1)
    if name in ("up", "down"):
        step = 1 if name == "down" else -1
        place = ids.index(screen.chosen) + step if screen.chosen in ids else 0
        return ids[max(0, min(place, len(ids) - 1))]
    return None


def _handle_digit(screen: Screen, digit: str) -> Screen:
    """Handle a digit. If several numbers begin with the same digits, nothing is selected until the
    number is complete."""
    typed = screen.typed + digit
    alike = {str(one.number): one.id for one in screen.proposals}
    alike = {number: id for number, id in alike.items() if number.startswith(typed)}
    if not alike:
        # Select nothing: the next key may be meant for this number.
        return replace(screen, typed="", chosen="", note=f"There is no proposal {typed}.")
    if typed in alike and len(alike) == 1:
        return replace(screen, typed="", chosen=alike[typed])
    return replace(screen, typed=typed, chosen="")


def _handle_reject_all_key(screen: Screen, key: Key) -> tuple[Screen, ScreenAction | None]:
    """Handle a key for the question whether to reject all proposals of a proposer."""
    one = screen.proposal(screen.sweeping[0])
    if key.name == "text" and key.text in "yY" and one is not None:
        deed = ScreenAction("reject_all", one.proposer, screen.sweeping)
        return replace(screen, sweeping=()), deed
    if key.name in ("escape", "tab") or (key.name == "text" and key.text in "nN"):
        return replace(screen, sweeping=(), note=_NOTHING_DONE), None
    return screen, None


def _handle_question_key(screen: Screen, key: Key) -> tuple[Screen, ScreenAction | None]:
    """Handle a key for the question whether to fulfil a proposal."""
    lines, room = format_question(screen), count_question_lines(screen)
    if key.name in ("down", "page_down", "up", "page_up"):
        step = room if key.name.startswith("page") else 1
        offset = screen.offset + (step if key.name.endswith("down") else -step)
        # Not beyond lines that have not been drawn yet, however fast the keys come.
        offset = max(0, min(offset, len(lines) - room, screen.seen))
        return replace(screen, offset=offset), None
    one = screen.proposal(screen.asking)
    if key.name == "text" and key.text in "yY":
        if one is not None and one.barred:
            return replace(screen, note=one.barred), None
        if screen.cramped:
            return replace(screen, note=_TOO_SMALL), None
        if not screen.seen:
            # Typed before the question was drawn: it cannot be an answer.
            return screen, None
        if screen.seen < len(lines):
            return replace(screen, note="Read all of it first: ↓ scrolls."), None
        return _close_question(screen), ScreenAction("fulfil", screen.asking)
    if key.name in ("escape", "tab") or (key.name == "text" and key.text in "nN"):
        return replace(_close_question(screen), note=_NOTHING_DONE), None
    return screen, None


def _close_question(screen: Screen) -> Screen:
    """Close the question."""
    return replace(screen, asking="", about=(), offset=0, seen=0)


def mark_drawn(screen: Screen) -> Screen:
    """Record that the screen was drawn: the visible lines of a question have been seen. Only lines
    that follow directly on seen ones count."""
    if not screen.asking or screen.offset > screen.seen:
        return screen
    end = min(screen.offset + count_question_lines(screen), len(format_question(screen)))
    return replace(screen, seen=max(screen.seen, end))


def _handle_draft_key(screen: Screen, key: Key) -> tuple[Screen, ScreenAction | None]:
    draft, at = screen.draft, screen.cursor
    if key.name in ("text", "paste"):
        text = key.text[: max(0, MAX_DRAFT_LENGTH - len(draft))]
        if len(text) < len(key.text):
            screen = replace(screen, cut=True, note=_TOO_LONG)
        return replace(screen, draft=draft[:at] + text + draft[at:], cursor=at + len(text)), None
    if key.name == "enter":
        if not draft.strip():
            return screen, None
        if screen.cut:
            return replace(screen, cut=False, note=_DRAFT_CUT), None
        nobody = find_missing_recipient(draft.strip(), {one.id for one in screen.people})
        if nobody and screen.connected and screen.doubted != draft:
            words = (
                f"There is no participant {put_on_one_line(nobody, 128)}. Enter again sends to all."
            )
            return replace(screen, doubted=draft, note=words), None
        return replace(screen, draft="", cursor=0, back=0), ScreenAction("say", draft.strip())
    moved = {"left": at - 1, "right": at + 1, "home": 0, "end": len(draft)}.get(key.name)
    if moved is not None:
        return replace(screen, cursor=max(0, min(moved, len(draft)))), None
    kept = at
    if key.name == "backspace":
        kept = max(0, at - 1)
    elif key.name == "word":
        kept = len(draft[:at].rstrip().rpartition(" ")[0])
        kept += 1 if kept else 0
    elif key.name in ("clear", "escape"):
        kept = 0
    elif key.name == "delete":
        return replace(screen, draft=draft[:at] + draft[at + 1 :]), None
    rest = draft[:kept] + draft[at:]
    return replace(screen, draft=rest, cursor=kept, cut=screen.cut and bool(rest)), None


# -- the question


def count_question_lines(screen: Screen) -> int:
    """Return the number of lines of a question that are shown at once."""
    return max(_MIN_QUESTION_LINES, screen.size[1] - _MIN_QUESTION_LINES)


def format_question(screen: Screen) -> list[str]:
    """Return everything about the proposal to fulfil, as wrapped lines."""
    one = screen.proposal(screen.asking)
    if one is None:
        return []
    # The last cell stays empty: some terminals overwrite it with text that does not fit.
    width = screen.size[0] - measure_width(QUESTION_PREFIX) - 1
    return _format_question(one.proposer, one.target, one.what, one.params, screen.about, width)


@lru_cache(maxsize=2)
def _format_question(
    proposer: str, target: str, what: str, params: bytes, about: tuple[str, ...], width: int
) -> list[str]:
    """Format the question. Cached: it is needed for every key and drawing, and may have a
    mebibyte."""
    whole = [
        f"{escape_invisible(proposer)} proposes"
        + (f" to {escape_invisible(target)}" if target else ""),
        *map(escape_invisible, about),
        f"{escape_invisible(what)} with these exact params:",
        *format_params(params),
    ]
    return [part for line in whole for part in wrap_text(line, width)]
