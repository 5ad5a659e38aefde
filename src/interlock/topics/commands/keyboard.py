"""Parser of terminal input: bytes in, keys out. No I/O.

Pasted text is never a key, so copied text cannot decide anything.
"""

from __future__ import annotations

import codecs
from typing import Final

import msgspec

_ESCAPE: Final = "\x1b"
_PASTE_START: Final = "\x1b[200~"
_PASTE_END: Final = "\x1b[201~"
PASTE_ON: Final = "\x1b[?2004h"
PASTE_OFF: Final = "\x1b[?2004l"
"""These sequences make a terminal mark the beginning and end of a paste."""

_CONTROLS: Final = {
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x01": "home",
    "\x02": "left",
    "\x03": "leave",
    "\x04": "leave",
    "\x05": "end",
    "\x06": "right",
    "\x0c": "redraw",
    "\x15": "clear",
    "\x17": "word",
}
_SEQUENCES: Final = {
    "[A": "up",
    "[B": "down",
    "[C": "right",
    "[D": "left",
    "OA": "up",
    "OB": "down",
    "OC": "right",
    "OD": "left",
    "[H": "home",
    "[F": "end",
    "OH": "home",
    "OF": "end",
    "[1~": "home",
    "[4~": "end",
    "[3~": "delete",
    "[5~": "page_up",
    "[6~": "page_down",
    "[Z": "tab",
}
_MAX_SEQUENCE_LENGTH: Final = 32
"""The maximum length of an escape sequence."""


class Key(msgspec.Struct, frozen=True):
    """A key. `text` is set for characters and pastes, which have no name of their own."""

    name: str
    text: str = ""


class KeyParser:
    """Parses the input of a terminal in pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""
        self._pasting = False

    def feed(self, data: bytes) -> list[Key]:
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        found: list[Key] = []
        at = 0
        while at < len(text):
            if self._pasting:
                at = self._paste(text, at, found)
                continue
            one = text[at]
            if one == _ESCAPE:
                at = self._sequence(text, at, found)
                continue
            if one in _CONTROLS:
                found.append(Key(_CONTROLS[one]))
            elif one.isprintable():
                found.append(Key("text", one))
            at += 1
        return found

    def _paste(self, text: str, at: int, found: list[Key]) -> int:
        end = text.find(_PASTE_END, at)
        if end >= 0:
            self._pasting = False
            found.append(Key("paste", _put_on_one_line(text[at:end])))
            return end + len(_PASTE_END)
        # The end marker may be split across two reads.
        for kept in range(len(_PASTE_END) - 1, 0, -1):
            if text.endswith(_PASTE_END[:kept]) and len(text) - kept >= at:
                self._rest = text[-kept:]
                break
        whole = text[at : len(text) - len(self._rest)]
        if whole:
            found.append(Key("paste", _put_on_one_line(whole)))
        return len(text)

    def _sequence(self, text: str, at: int, found: list[Key]) -> int:
        if text.startswith(_PASTE_START, at):
            self._pasting = True
            return at + len(_PASTE_START)
        if at + 1 == len(text):
            # A terminal sends a sequence at once: this was the Escape key.
            found.append(Key("escape"))
            return at + 1
        if text[at + 1] not in "[O":
            # Alt and a key: not used.
            found.append(Key("escape"))
            return at + 1
        end = at + 2
        while end < len(text) and not "@" <= text[end] <= "~":
            end += 1
        if end - at > _MAX_SEQUENCE_LENGTH:
            return at + 1
        if end == len(text):
            self._rest = text[at:]
            return end
        name = _SEQUENCES.get(text[at + 1 : end + 1])
        if name is not None:
            found.append(Key(name))
        return end + 1


def _put_on_one_line(text: str) -> str:
    """Put a paste on one line."""
    return "".join(one if one.isprintable() else " " for one in text)
