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

from interlock.cli.drawn_text import visibly, widest, wrapped
from interlock.cli.topic_keys import Key
from interlock.cli.topic_said import Line, exactly

MOST_LINES: Final = 2_000
LONGEST_DRAFT: Final = 8_000
_TOO_LONG: Final = f"Only {LONGEST_DRAFT:,} characters fit: the rest was left out."
_CUT: Final = "The end of it is missing: Enter again says what is there, Ctrl-U clears it."
ASKED_BEHIND: Final = "│ "
"""What each line of a question stands behind."""
_NARROWEST: Final = 20
_LOWEST: Final = 8
_CRAMPED: Final = f"Too small: {_NARROWEST} columns and {_LOWEST} lines are needed to see it."
_FEWEST: Final = 4
"""Lines in which something can be shown at all."""


class Proposed(msgspec.Struct, frozen=True):
    """A proposal that waits."""

    id: str
    proposer: str
    target: str
    what: str
    """`tools/call write_file`"""
    params: bytes
    mine: bool = False
    """Whether it is one's own: nobody fulfils those."""


class Somebody(msgspec.Struct, frozen=True):
    """Who is there."""

    id: str
    may: str
    """What it may send, in a word or two."""
    lies: int = 0
    """How often it sent what it should not have."""


class Deed(msgspec.Struct, frozen=True):
    """What is to be done: say, fulfil, reject or leave."""

    name: str
    text: str = ""
    """What to say, or the id of the proposal."""


class Screen(msgspec.Struct, frozen=True):
    topic: str
    own: str = ""
    connected: bool = False
    lost: int = 0
    """Messages that came too fast."""
    people: tuple[Somebody, ...] = ()
    lines: tuple[Line, ...] = ()
    proposals: tuple[Proposed, ...] = ()
    size: tuple[int, int] = (80, 24)
    cramped: bool = False
    """Whether the terminal is smaller than that: some of it is out of sight."""
    deciding: bool = False
    """Whether keys go to the proposals, not to what is being written."""
    chosen: str = ""
    """The proposal that keys are about."""
    asking: str = ""
    """The proposal that is to be fulfilled, if one says yes now."""
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
    note: str = ""

    def proposal(self, id: str) -> Proposed | None:
        return next((one for one in self.proposals if one.id == id), None)


# -- what happens


def said(screen: Screen, line: Line) -> Screen:
    """Something was said."""
    # Who reads what was said before stays where it is.
    back = min(screen.back + 1, MOST_LINES) if screen.back else 0
    return replace(screen, lines=(*screen.lines[1 - MOST_LINES :], line), back=back)


def now_here(screen: Screen, people: Iterable[Somebody]) -> Screen:
    return replace(screen, people=tuple(people))


def now_waiting(screen: Screen, proposals: Iterable[Proposed]) -> Screen:
    """These wait now. Whatever was about one that does not wait any more is over; another one by
    the same id is another one."""
    there = tuple(proposals)
    ids = [one.id for one in there]
    changed = replace(screen, proposals=there)
    if screen.asking and screen.proposal(screen.asking) not in there:
        changed = replace(
            changed,
            asking="",
            offset=0,
            seen=0,
            note="It does not wait any more: nothing was done.",
        )
    if screen.proposal(screen.chosen) not in there:
        # Not its neighbour instead: a key that is on its way is about the one that was there.
        changed = replace(changed, chosen="")
    if not ids:
        changed = replace(changed, deciding=False)
    return changed


def unsaid(screen: Screen, text: str) -> Screen:
    """It could not be said: it is to be written again by nobody, before what came after it."""
    draft = f"{text} {screen.draft}" if screen.draft else text
    return replace(screen, draft=draft, cursor=screen.cursor + len(draft) - len(screen.draft))


def resized(screen: Screen, width: int, height: int) -> Screen:
    # Other lines are shown now: what has been seen of a question is not known any more.
    size = (max(width, _NARROWEST), max(height, _LOWEST))
    cramped = size != (width, height)
    return _looked(replace(screen, size=size, cramped=cramped, offset=0, seen=0))


# -- keys


def pressed(screen: Screen, key: Key) -> tuple[Screen, Deed | None]:
    """What a key does."""
    screen = replace(screen, note="")
    if key.name == "leave":
        return screen, Deed("leave")
    if screen.asking:
        return _answered(screen, key)
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
        return replace(screen, deciding=False)
    if not screen.proposals:
        return replace(screen, note="No proposal waits.")
    chosen = screen.chosen or screen.proposals[0].id
    return replace(screen, deciding=True, chosen=chosen)


def _decided(screen: Screen, key: Key) -> tuple[Screen, Deed | None]:
    if key.name == "escape":
        return replace(screen, deciding=False), None
    if key.name in ("up", "down"):
        ids = [one.id for one in screen.proposals]
        step = 1 if key.name == "down" else -1
        place = ids.index(screen.chosen) + step if screen.chosen in ids else 0
        return replace(screen, chosen=ids[max(0, min(place, len(ids) - 1))]), None
    if key.name == "text" and key.text.isdecimal():
        place = int(key.text) - 1
        if 0 <= place < len(screen.proposals):
            return replace(screen, chosen=screen.proposals[place].id), None
        return screen, None
    one = screen.proposal(screen.chosen)
    if one is None:
        return screen, None
    if key.name == "text" and key.text in "aA":
        if one.mine:
            return replace(screen, note="Nobody fulfils a proposal of its own."), None
        return _looked(replace(screen, asking=one.id, offset=0, seen=0)), None
    if key.name == "text" and key.text in "rR":
        return screen, Deed("reject", one.id)
    return screen, None


def _answered(screen: Screen, key: Key) -> tuple[Screen, Deed | None]:
    """Somebody was asked whether it shall be fulfilled."""
    lines, room = question(screen), question_room(screen)
    if key.name in ("down", "page_down", "up", "page_up"):
        step = room if key.name.startswith("page") else 1
        offset = screen.offset + (step if key.name.endswith("down") else -step)
        offset = max(0, min(offset, len(lines) - room))
        return _looked(replace(screen, offset=offset)), None
    if key.name == "text" and key.text in "yY":
        if screen.cramped:
            return replace(screen, note=_CRAMPED), None
        if screen.seen < len(lines):
            return replace(screen, note="There is more of it: ↓ shows the rest."), None
        return replace(screen, asking="", offset=0, seen=0), Deed("fulfil", screen.asking)
    if key.name in ("escape", "tab") or (key.name == "text" and key.text in "nN"):
        return replace(screen, asking="", offset=0, seen=0, note="Nothing was done."), None
    return screen, None


def _looked(screen: Screen) -> Screen:
    """What is shown now has been seen; only what follows on what was seen counts."""
    if not screen.asking or screen.offset > screen.seen:
        return screen
    end = min(screen.offset + question_room(screen), len(question(screen)))
    return replace(screen, seen=max(screen.seen, end))


def _wrote(screen: Screen, key: Key) -> tuple[Screen, Deed | None]:
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
        return replace(screen, draft="", cursor=0, back=0), Deed("say", draft.strip())
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
    # A cell at the end stays empty: there terminals put whatever does not fit, over what was there.
    return [] if one is None else _asked(one, screen.size[0] - widest(ASKED_BEHIND) - 1)


@lru_cache(maxsize=2)
def _asked(one: Proposed, width: int) -> list[str]:
    """Kept, since it is asked for with each key and each drawing, and may be a mebibyte."""
    whole = [
        f"{visibly(one.proposer)} proposes" + (f" to {visibly(one.target)}" if one.target else ""),
        f"{visibly(one.what)}, with exactly this:",
        *exactly(one.params),
    ]
    return [part for line in whole for part in wrapped(line, width)]
