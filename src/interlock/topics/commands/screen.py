"""The screen of `interlock topic join`: what is on it, and what a key does. Pure.

A screen is a value: a key makes another screen out of it, and perhaps a deed. What is decided is
decided by the id of a proposal, never by its place, so that nothing slips under the key that is
being pressed; and only once all of it has been seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec
from msgspec.structs import replace

from interlock.terminal.safe_text import escape_invisible, measure_width, wrap_text
from interlock.topics.commands.keyboard import Key
from interlock.topics.commands.message_format import MessageLine, called, exactly, one_line
from interlock.topics.commands.pending_proposals import PendingProposal, arranged, beside, of_same

MOST_LINES: Final = 2_000
LONGEST_DRAFT: Final = 8_000
_TOO_LONG: Final = f"Only {LONGEST_DRAFT:,} characters fit: the rest was left out."
_CUT: Final = "The end of it is missing: Enter again says what is there, Ctrl-U clears it."
_NONE_SEEN: Final = (
    "None made since you came in waits; what waits for the node is in `interlock approvals`."
)
_NONE_LEFT: Final = "No pending proposals. Back to chat."
_NOT_ANY_MORE: Final = "It does not wait any more: nothing was done."
_NOTHING_DONE: Final = "Nothing was done."
_CHOOSE: Final = "Choose one first: ↑↓ or its number."
_OWN: Final = "Nobody fulfils a proposal of its own."
ASKED_BEHIND: Final = "│ "
"""What each line of a question stands behind."""
_NARROWEST: Final = 20
_LOWEST: Final = 8
_CRAMPED: Final = f"Too small: {_NARROWEST} columns and {_LOWEST} lines are needed to see it."
_FEWEST: Final = 4
"""Lines in which something can be shown at all."""


class ScreenParticipant(msgspec.Struct, frozen=True):
    """Who is there."""

    id: str
    may: str
    """What it may send, in a word or two."""
    lies: int = 0
    """How often it sent what it should not have."""


class ScreenAction(msgspec.Struct, frozen=True):
    """What is to be done: say, fulfil, reject, reject_all or leave."""

    name: str
    text: str = ""
    """What to say, the id of the proposal, or whose proposals."""
    ids: tuple[str, ...] = ()
    """Those of several proposals."""


class Screen(msgspec.Struct, frozen=True):
    topic: str
    own: str = ""
    connected: bool = False
    lost: int = 0
    """Messages that came too fast."""
    people: tuple[ScreenParticipant, ...] = ()
    lines: tuple[MessageLine, ...] = ()
    proposals: tuple[PendingProposal, ...] = ()
    size: tuple[int, int] = (80, 24)
    cramped: bool = False
    """Whether the terminal is smaller than that: some of it is out of sight."""
    deciding: bool = False
    """Whether keys go to the proposals, not to what is being written."""
    chosen: str = ""
    """The proposal that keys are about."""
    typed: str = ""
    """The digits of a number that may go on."""
    sweeping: tuple[str, ...] = ()
    """The proposals that are to be rejected, if one says yes now: all of one proposer."""
    asking: str = ""
    """The proposal that is to be fulfilled, if one says yes now."""
    about: tuple[str, ...] = ()
    """What was to be known about it when the question was asked. It stays as it was: nobody moves
    the lines of a question by talking."""
    offset: int = 0
    """The first line of it that is shown."""
    seen: int = 0
    """How many of its lines have been shown."""
    back: int = 0
    """How many lines one has gone back in what was said."""
    draft: str = ""
    cursor: int = 0
    cut: bool = False
    """Whether something that was typed or pasted did not fit into the draft."""
    doubted: str = ""
    """The draft that is for nobody who is here: Enter again says it to everybody."""
    note: str = ""
    numbered: int = 0
    """The highest number that a proposal got since some wait."""

    def proposal(self, id: str) -> PendingProposal | None:
        return next((one for one in self.proposals if one.id == id), None)


# -- what happens


def said(screen: Screen, line: MessageLine, *, to_the_end: bool = False) -> Screen:
    """Something was said. `to_the_end`: it answers what was done here, and is to be seen."""
    # Who reads what was said before stays where it is.
    back = min(screen.back + 1, MOST_LINES) if screen.back and not to_the_end else 0
    return replace(screen, lines=(*screen.lines[1 - MOST_LINES :], line), back=back)


def now_here(screen: Screen, people: Iterable[ScreenParticipant]) -> Screen:
    return replace(screen, people=tuple(people))


def now_waiting(screen: Screen, proposals: Iterable[PendingProposal]) -> Screen:
    """These wait now. Whatever was about one that does not wait any more is over; another one by
    the same id is another one."""
    before = {one.id: one for one in screen.proposals}
    there = arranged(screen.proposals, proposals, screen.numbered)
    # Only when nothing waits, numbers begin again.
    numbered = max((screen.numbered, *(one.number for one in there))) if there else 0
    now = {one.id: one for one in there}

    def waits(id: str) -> bool:
        return id in before and before[id].is_same(now.get(id))

    changed = replace(screen, proposals=there, numbered=numbered)
    if there and screen.note in (_NONE_SEEN, _NONE_LEFT):
        changed = replace(changed, note="")
    if screen.asking and not waits(screen.asking):
        changed = replace(changed, asking="", about=(), offset=0, seen=0, note=_NOT_ANY_MORE)
    if screen.sweeping:
        left = tuple(filter(waits, screen.sweeping))
        changed = replace(changed, sweeping=left, note=changed.note if left else _NOT_ANY_MORE)
    if not waits(screen.chosen):
        # Not its neighbour instead: a key that is on its way is about the one that was there.
        changed = replace(changed, chosen="")
    if not there and screen.deciding:
        changed = replace(changed, deciding=False, typed="", note=changed.note or _NONE_LEFT)
    return changed


def unsaid(screen: Screen, text: str) -> Screen:
    """It could not be said: it is to be written again by nobody, before what came after it."""
    draft = f"{text} {screen.draft}" if screen.draft else text
    return replace(screen, draft=draft, cursor=screen.cursor + len(draft) - len(screen.draft))


def resized(screen: Screen, width: int, height: int) -> Screen:
    # Other lines are shown now: what has been seen of a question is not known any more.
    size = (max(width, _NARROWEST), max(height, _LOWEST))
    cramped = size != (width, height)
    return replace(screen, size=size, cramped=cramped, offset=0, seen=0)


# -- keys


def pressed(screen: Screen, key: Key) -> tuple[Screen, ScreenAction | None]:
    """What a key does."""
    screen = replace(screen, note="")
    if key.name == "leave":
        return screen, ScreenAction("leave")
    if screen.asking:
        return _answered(screen, key)
    if screen.sweeping:
        return _swept(screen, key)
    if key.name == "tab":
        return _turned(screen), None
    if key.name in ("page_up", "page_down"):
        step = max(1, screen.size[1] // 2)
        back = screen.back + (step if key.name == "page_up" else -step)
        return replace(screen, back=max(0, min(back, len(screen.lines) - 1))), None
    if screen.deciding:
        return _decided(screen, key)
    return _wrote(screen, key)


def _turned(screen: Screen) -> Screen:
    if screen.deciding:
        return replace(screen, deciding=False, typed="")
    if not screen.proposals:
        return replace(screen, note=_NONE_SEEN)
    chosen = screen.chosen or screen.proposals[0].id
    return replace(screen, deciding=True, chosen=chosen)


def _decided(screen: Screen, key: Key) -> tuple[Screen, ScreenAction | None]:
    if key.name == "text" and key.text.isascii() and key.text.isdigit():
        return _numbered(screen, key.text), None
    if screen.typed:
        # Whatever else is pressed, the number is whole.
        id = next((one.id for one in screen.proposals if str(one.number) == screen.typed), "")
        screen = replace(screen, chosen=id, typed="")
    if key.name == "escape":
        return replace(screen, deciding=False), None
    moved = _moved(screen, key)
    if moved is not None:
        return replace(screen, chosen=moved), None
    if key.name != "text" or key.text not in "aArR":
        return screen, None
    one = screen.proposal(screen.chosen)
    if one is None:
        return replace(screen, note=_CHOOSE), None
    if key.text == "r":
        return screen, ScreenAction("reject", one.id)
    if key.text == "R":
        return replace(screen, sweeping=of_same(screen.proposals, one)), None
    if one.mine:
        return replace(screen, note=_OWN), None
    about = tuple(filter(None, [one.barred, one.said and f"Said about it by {one.said}"]))
    return replace(screen, asking=one.id, about=about, offset=0, seen=0), None


def _moved(screen: Screen, key: Key) -> str | None:
    """The proposal that a key goes to. None: it is no such key."""
    ids = [one.id for one in screen.proposals]
    name = {"g": "home", "G": "end"}.get(key.text, key.name) if key.name == "text" else key.name
    if name in ("home", "end"):
        return ids[0 if name == "home" else -1]
    if name in ("left", "right"):
        return beside(screen.proposals, screen.chosen, 1 if name == "right" else -1)
    if name in ("up", "down"):
        step = 1 if name == "down" else -1
        place = ids.index(screen.chosen) + step if screen.chosen in ids else 0
        return ids[max(0, min(place, len(ids) - 1))]
    return None


def _numbered(screen: Screen, digit: str) -> Screen:
    """A digit of a number. Where others begin alike, none is chosen before it is whole."""
    typed = screen.typed + digit
    alike = {str(one.number): one.id for one in screen.proposals}
    alike = {number: id for number, id in alike.items() if number.startswith(typed)}
    if not alike:
        # Nothing is chosen then: a key that follows was meant for that one.
        return replace(screen, typed="", chosen="", note=f"There is no proposal {typed}.")
    if typed in alike and len(alike) == 1:
        return replace(screen, typed="", chosen=alike[typed])
    return replace(screen, typed=typed, chosen="")


def _swept(screen: Screen, key: Key) -> tuple[Screen, ScreenAction | None]:
    """Somebody was asked whether all of one proposer shall be rejected."""
    one = screen.proposal(screen.sweeping[0])
    if key.name == "text" and key.text in "yY" and one is not None:
        deed = ScreenAction("reject_all", one.proposer, screen.sweeping)
        return replace(screen, sweeping=()), deed
    if key.name in ("escape", "tab") or (key.name == "text" and key.text in "nN"):
        return replace(screen, sweeping=(), note=_NOTHING_DONE), None
    return screen, None


def _answered(screen: Screen, key: Key) -> tuple[Screen, ScreenAction | None]:
    """Somebody was asked whether it shall be fulfilled."""
    lines, room = question(screen), question_room(screen)
    if key.name in ("down", "page_down", "up", "page_up"):
        step = room if key.name.startswith("page") else 1
        offset = screen.offset + (step if key.name.endswith("down") else -step)
        # Not past what has not been on the screen yet, however fast the keys come.
        offset = max(0, min(offset, len(lines) - room, screen.seen))
        return replace(screen, offset=offset), None
    one = screen.proposal(screen.asking)
    if key.name == "text" and key.text in "yY":
        if one is not None and one.barred:
            return replace(screen, note=one.barred), None
        if screen.cramped:
            return replace(screen, note=_CRAMPED), None
        if not screen.seen:
            # Typed before it was there to be read: whatever that was meant for.
            return screen, None
        if screen.seen < len(lines):
            return replace(screen, note="There is more of it: ↓ shows the rest."), None
        return _over(screen), ScreenAction("fulfil", screen.asking)
    if key.name in ("escape", "tab") or (key.name == "text" and key.text in "nN"):
        return replace(_over(screen), note=_NOTHING_DONE), None
    return screen, None


def _over(screen: Screen) -> Screen:
    """The question is answered."""
    return replace(screen, asking="", about=(), offset=0, seen=0)


def looked(screen: Screen) -> Screen:
    """It was drawn, and what of a question is on it has been seen; only what follows on what was
    seen counts."""
    if not screen.asking or screen.offset > screen.seen:
        return screen
    end = min(screen.offset + question_room(screen), len(question(screen)))
    return replace(screen, seen=max(screen.seen, end))


def _wrote(screen: Screen, key: Key) -> tuple[Screen, ScreenAction | None]:
    draft, at = screen.draft, screen.cursor
    if key.name in ("text", "paste"):
        text = key.text[: max(0, LONGEST_DRAFT - len(draft))]
        if len(text) < len(key.text):
            screen = replace(screen, cut=True, note=_TOO_LONG)
        return replace(screen, draft=draft[:at] + text + draft[at:], cursor=at + len(text)), None
    if key.name == "enter":
        if not draft.strip():
            return screen, None
        if screen.cut:
            return replace(screen, cut=False, note=_CUT), None
        nobody = called(draft.strip(), {one.id for one in screen.people})
        if nobody and screen.connected and screen.doubted != draft:
            words = (
                f"Nobody else here is called {one_line(nobody, 128)}: Enter again says it to all."
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


def question_room(screen: Screen) -> int:
    """How many lines of a question are shown at once."""
    return max(_FEWEST, screen.size[1] - _FEWEST)


def question(screen: Screen) -> list[str]:
    """Everything about the proposal that is to be fulfilled, in lines that fit."""
    one = screen.proposal(screen.asking)
    if one is None:
        return []
    # A cell at the end stays empty: there terminals put whatever does not fit, over what was there.
    width = screen.size[0] - measure_width(ASKED_BEHIND) - 1
    return _asked(one.proposer, one.target, one.what, one.params, screen.about, width)


@lru_cache(maxsize=2)
def _asked(
    proposer: str, target: str, what: str, params: bytes, about: tuple[str, ...], width: int
) -> list[str]:
    """Kept, since it is asked for with each key and each drawing, and may be a mebibyte."""
    whole = [
        f"{escape_invisible(proposer)} proposes"
        + (f" to {escape_invisible(target)}" if target else ""),
        *map(escape_invisible, about),
        f"{escape_invisible(what)}, with exactly this:",
        *exactly(params),
    ]
    return [part for line in whole for part in wrap_text(line, width)]
