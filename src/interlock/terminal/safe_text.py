"""Text of others where a terminal draws it. Pure.

Terminals do not agree on how wide a sign is, and some draw nothing, or in another order. So text is
measured by the widest that any of them draws it: then none goes on in the next row by itself, where
words of others would look like a line of ours, and none has anything of it beyond its edge. Where
somebody decides by what is seen, only signs stand as they are of which all terminals agree.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

_INDENT: Final = 2
_WORD: Final = re.compile(r"\S+\s*|\s+")
_ONE_CELL: Final = frozenset(("N", "Na"))
_JAMO: Final = re.compile("[\u1100-\u11ff\ua960-\ua97f\ud7b0-\ud7ff]")
"""Parts of syllables: some terminals put them together."""
_AGREED: Final = re.compile(
    "["
    "\u00a1-\u00ac\u00ae-\u024f\u1e00-\u1eff"  # Latin
    "\u0370-\u052f\u1f00-\u1fff"  # Greek and Cyrillic
    "\u0531-\u058a\u10a0-\u10ff"  # Armenian and Georgian
    "\u2010-\u2015\u2018-\u2022\u2026\u2030\u2039\u203a\u20ac\u2190-\u2193"  # – ‘ “ … € →
    "\u3001-\u3003\u3005-\u3017\u3041-\u3096\u309b-\u30ff"  # kana, and how they are punctuated
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"  # Chinese characters, Korean syllables
    "\uff01-\uff60"  # the wide forms of ASCII
    "\u2600-\u27bf\U0001f300-\U0001faff"  # pictures: see below
    "]"
)
_PICTURE: Final = re.compile("[\u2600-\u27bf\U0001f300-\U0001faff]")
"""Those that are two cells wide by themselves; the others are, or are not, by what follows."""


@lru_cache(maxsize=8192)
def _cells(one: str) -> int:
    """How many cells a sign takes at most, on any terminal."""
    if one.isascii():
        return 1
    category = unicodedata.category(one)
    # Everything else is drawn in two cells somewhere: ambiguous signs by terminals for East Asia,
    # marks, modifiers and pictures where they are not put together with what is before them.
    plain = category[0] == "L" or category == "Nd"
    narrow = plain and unicodedata.east_asian_width(one) in _ONE_CELL and not _JAMO.match(one)
    return 1 if narrow else 2


def measure_width(text: str) -> int:
    """How many cells a text takes at most, on any terminal."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def wrap_text(text: str, width: int) -> list[str]:
    """A line in pieces that fit, between words where that is possible; those behind the first are
    indented, so that none looks like the beginning of a line. Nothing is left out."""
    if measure_width(text) <= width:
        return [text]
    # The indent is there for all of them while they are measured.
    room = max(2, width - _INDENT)
    pieces, used = [""], 0
    for word in _WORD.findall(text):
        cells = measure_width(word)
        if used + cells > room and (cells <= room or room - used < _INDENT):
            pieces.append("")
            used = 0
        first, *rest = _chopped(word, room - used, room)
        pieces[-1] += first
        used = measure_width(rest[-1]) if rest else used + cells
        pieces += rest
    return [pieces[0], *(" " * _INDENT + piece for piece in pieces[1:])]


def _chopped(word: str, left: int, room: int) -> Iterator[str]:
    """A word in pieces: the first takes at most `left` cells, the others `room`."""
    begin, used = 0, 0
    for at, one in enumerate(word):
        cells = _cells(one)
        if used + cells > left:
            yield word[begin:at]
            begin, used, left = at, 0, room
        used += cells
    yield word[begin:]


def escape_invisible(text: str) -> str:
    """A text on one line, in which whatever some terminal would not show, or not there, or not as
    wide as others do, is written as its number."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


@lru_cache(maxsize=8192)
def _visible(one: str) -> str:
    if one.isprintable() and (one.isascii() or _is_agreed(one)):
        return one
    number = ord(one)
    if number <= 0xFFFF:
        return f"\\u{number:04x}"
    # As JSON writes it: this stands in JSON, too.
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"


def _is_agreed(one: str) -> bool:
    """Whether every terminal shows it by itself, in its place, in one cell or two."""
    if not _AGREED.match(one):
        return False
    category = unicodedata.category(one)
    if _PICTURE.match(one):
        return category == "So" and unicodedata.east_asian_width(one) == "W"
    return category[0] != "M"
