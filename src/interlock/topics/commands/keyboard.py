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
        keys: list[Key] = []
        position = 0
        while position < len(text):
            if self._pasting:
                position = self._paste(text, position, keys)
                continue
            character = text[position]
            if character == _ESCAPE:
                position = self._sequence(text, position, keys)
                continue
            if character in _CONTROLS:
                keys.append(Key(_CONTROLS[character]))
            elif character.isprintable():
                keys.append(Key("text", character))
            position += 1
        return keys

    def _paste(self, text: str, position: int, keys: list[Key]) -> int:
        end = text.find(_PASTE_END, position)
        if end >= 0:
            self._pasting = False
            keys.append(Key("paste", _put_on_one_line(text[position:end])))
            return end + len(_PASTE_END)
        # The end marker may be split across two reads.
        for length in range(len(_PASTE_END) - 1, 0, -1):
            if text.endswith(_PASTE_END[:length]) and len(text) - length >= position:
                self._rest = text[-length:]
                break
        pasted = text[position : len(text) - len(self._rest)]
        if pasted:
            keys.append(Key("paste", _put_on_one_line(pasted)))
        return len(text)

    def _sequence(self, text: str, position: int, keys: list[Key]) -> int:
        if text.startswith(_PASTE_START, position):
            self._pasting = True
            return position + len(_PASTE_START)
        if position + 1 == len(text):
            # A terminal sends a sequence at once: this was the Escape key.
            keys.append(Key("escape"))
            return position + 1
        if text[position + 1] not in "[O":
            # Alt and a key: not used.
            keys.append(Key("escape"))
            return position + 1
        end = position + 2
        while end < len(text) and not "@" <= text[end] <= "~":
            end += 1
        if end - position > _MAX_SEQUENCE_LENGTH:
            return position + 1
        if end == len(text):
            self._rest = text[position:]
            return end
        name = _SEQUENCES.get(text[position + 1 : end + 1])
        if name is not None:
            keys.append(Key(name))
        return end + 1


def _put_on_one_line(text: str) -> str:
    """Put a paste on one line."""
    return "".join(character if character.isprintable() else " " for character in text)
