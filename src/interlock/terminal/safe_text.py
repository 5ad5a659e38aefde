"""Untrusted text on a terminal. Pure functions.

Terminals draw the same character with different widths, some draw nothing, or in another order.
So text is measured with the largest width that any terminal uses. Then no terminal wraps a line by
itself, where untrusted text would look like a line of Interlock, and nothing is drawn beyond the
edge. In text that a person decides on, characters are escaped unless all terminals draw them alike.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

_INDENT: Final = 2
_WORD: Final = re.compile(r"\S+\s*|\s+")
_NARROW_WIDTHS: Final = frozenset(("N", "Na"))
_JAMO: Final = re.compile("[\u1100-\u11ff\ua960-\ua97f\ud7b0-\ud7ff]")
"""Parts of syllables, which some terminals combine."""
_PORTABLE: Final = re.compile(
    "["
    "\u00a1-\u00ac\u00ae-\u024f\u1e00-\u1eff"  # Latin
    "\u0370-\u052f\u1f00-\u1fff"  # Greek and Cyrillic
    "\u0531-\u058a\u10a0-\u10ff"  # Armenian and Georgian
    "\u2010-\u2015\u2018-\u2022\u2026\u2030\u2039\u203a\u20ac\u2190-\u2193"  # – ‘ “ … € →
    "\u3001-\u3003\u3005-\u3017\u3041-\u3096\u309b-\u30ff"  # kana and their punctuation
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"  # Chinese characters, Korean syllables
    "\uff01-\uff60"  # the wide forms of ASCII
    "\u2600-\u27bf\U0001f300-\U0001faff"  # pictographs: see below
    "]"
)
_PICTOGRAPH: Final = re.compile("[\u2600-\u27bf\U0001f300-\U0001faff]")
"""Only pictographs that are always two cells wide are portable. The width of the others depends on
the next character."""


@lru_cache(maxsize=8192)
def _max_cells(char: str) -> int:
    """Return the largest number of cells that any terminal uses for a character."""
    if char.isascii():
        return 1
    category = unicodedata.category(char)
    # Some terminal draws every other character in two cells: ambiguous characters in East Asian
    # terminals; marks, modifiers and pictographs if they are not combined with the character
    # before them.
    is_letter_or_digit = category[0] == "L" or category == "Nd"
    is_narrow = (
        is_letter_or_digit
        and unicodedata.east_asian_width(char) in _NARROW_WIDTHS
        and not _JAMO.match(char)
    )
    return 1 if is_narrow else 2


def measure_width(text: str) -> int:
    """Return the largest number of cells that any terminal uses for a text."""
    return len(text) if text.isascii() else sum(map(_max_cells, text))


def wrap_text(text: str, width: int) -> list[str]:
    """Wrap a line to a width, between words where possible. The complete text is kept.

    Lines after the first are indented, so that none of them looks like a new entry.
    """
    if measure_width(text) <= width:
        return [text]
    # All lines are measured with the indent.
    available = max(2, width - _INDENT)
    pieces, used_cells = [""], 0
    for word in _WORD.findall(text):
        cells = measure_width(word)
        if used_cells + cells > available and (
            cells <= available or available - used_cells < _INDENT
        ):
            pieces.append("")
            used_cells = 0
        first, *rest = _split_word(word, available - used_cells, available)
        pieces[-1] += first
        used_cells = measure_width(rest[-1]) if rest else used_cells + cells
        pieces += rest
    return [pieces[0], *(" " * _INDENT + piece for piece in pieces[1:])]


def _split_word(word: str, first_width: int, available: int) -> Iterator[str]:
    """Split a word: the first part takes at most `first_width` cells, the others `available`."""
    start, used_cells = 0, 0
    for index, char in enumerate(word):
        cells = _max_cells(char)
        if used_cells + cells > first_width:
            yield word[start:index]
            start, used_cells, first_width = index, 0, available
        used_cells += cells
    yield word[start:]


def escape_invisible(text: str) -> str:
    """Return a text on one line, with an escape sequence for every character that terminals hide,
    move or draw with different widths."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_escape_char, text))


@lru_cache(maxsize=8192)
def _escape_char(char: str) -> str:
    if char.isprintable() and (char.isascii() or _is_portable(char)):
        return char
    code_point = ord(char)
    if code_point <= 0xFFFF:
        return f"\\u{code_point:04x}"
    # As in JSON, because the text can be part of JSON.
    code_point -= 0x10000
    return f"\\u{0xD800 + (code_point >> 10):04x}\\u{0xDC00 + (code_point & 0x3FF):04x}"


def _is_portable(char: str) -> bool:
    """Return whether every terminal draws the character in its place and with the same width."""
    if not _PORTABLE.match(char):
        return False
    category = unicodedata.category(char)
    if _PICTOGRAPH.match(char):
        return category == "So" and unicodedata.east_asian_width(char) == "W"
    return category[0] != "M"
