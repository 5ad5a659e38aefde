"""Globs for the hints of agents.

Hiding an action from deny and approval patterns must be hard: they see through case, invisible and
look-alike characters, camel case and hyphens. Auto-approve patterns are narrow: they must match the
whole hint, and the hint must contain only one action.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec

MAX_HINT_CHARACTERS: Final = 2_000
_LOOK_ALIKES: Final = {
    "a": "\u0430\u0410\u0391\u03b1\u0251",
    "b": "\u0432\u0412\u0392",
    "c": "\u0441\u0421",
    "d": "\u0501",
    "e": "\u0435\u0415\u0395\u03b5",
    "f": "\u0192",
    "g": "\u0261",
    "h": "\u04bb\u041d\u0397",
    "i": "\u0456\u0406\u0399\u03b9\u0131\u0269",
    "j": "\u0458\u0408",
    "k": "\u043a\u041a\u039a\u03ba",
    "l": "\u04cf",
    "m": "\u043c\u041c\u039c",
    "n": "\u039d\u0578",
    "o": "\u043e\u041e\u039f\u03bf",
    "p": "\u0440\u0420\u03a1\u03c1",
    "q": "\u051b",
    "r": "\u0433",
    "s": "\u0455\u0405",
    "t": "\u0442\u0422\u03a4\u03c4",
    "u": "\u03c5",
    "v": "\u0475\u03bd",
    "w": "\u051d",
    "x": "\u0445\u0425\u03a7\u03c7",
    "y": "\u0443\u0423\u03a5",
    "z": "\u0396",
}
"""Letters of other scripts that resemble these letters."""
_LOOK_ALIKE_TABLE: Final = {
    ord(character): latin
    for latin, look_alikes in _LOOK_ALIKES.items()
    for character in look_alikes
}
_CHAIN_WORDS: Final = re.compile(
    r"[;|&\n\r,\u2192]|->|\b(?:then|and|after|afterwards|before|followed|next|also|plus|while|but|or)\b"
)
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WHITESPACE: Final = re.compile(r"\s+")
_INVISIBLE_CHARACTERS: Final = frozenset("\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800")


class ActionHint(msgspec.Struct, frozen=True):
    """The hint of an agent about its next action, prepared for matching."""

    text: str
    """The original text on one line."""
    plain: str
    """Normalized: lower case, nothing invisible, look-alikes replaced, camel case split."""
    lower: str
    """The text in lower case. Exact patterns match this text."""
    hides: bool
    """True if the text contains invisible or look-alike characters."""

    @property
    def is_chained(self) -> bool:
        """True if the hint may contain more than one action."""
        return _CHAIN_WORDS.search(self.plain) is not None


def normalize_hint(text: str) -> ActionHint:
    """Normalize any text."""
    compatible = unicodedata.normalize("NFKC", text)
    visible = "".join(character for character in compatible if not _is_invisible(character))
    skeleton = visible.translate(_LOOK_ALIKE_TABLE)
    # Text in another script is fine. A foreign letter inside a Latin word is suspicious.
    hides = len(visible) != len(compatible) or any(
        word != word.translate(_LOOK_ALIKE_TABLE)
        and any("a" <= character <= "z" for character in word.lower())
        for word in re.findall(r"\w+", visible)
    )
    unaccented = "".join(
        character
        for character in unicodedata.normalize("NFD", skeleton)
        if unicodedata.category(character) != "Mn"
    )
    plain = _CAMEL.sub("_", unaccented).lower()
    return ActionHint(
        text=_WHITESPACE.sub(" ", text).strip(),
        plain=plain.strip(),
        lower=text.strip().lower(),
        hides=hides,
    )


def _is_invisible(character: str) -> bool:
    kind = unicodedata.category(character)
    if kind == "Cc":
        return character not in "\n\r\t"
    return (
        kind in ("Cf", "Co", "Cs", "Cn")
        or character in _INVISIBLE_CHARACTERS
        or "\ufe00" <= character <= "\ufe0f"
    )


class ActionPatterns:
    """The compiled globs of one kind."""

    def __init__(self, globs: Iterable[str]) -> None:
        self.globs = tuple(globs)
        self._substring_patterns = [
            (glob, _compile_substring(glob, allow_spaces=False)) for glob in self.globs
        ]
        # A glob that begins with a word also matches separate words: "drop table" for `drop_*`.
        self._phrase_patterns = [
            (glob, _compile_substring(glob, allow_spaces=True))
            for glob in self.globs
            if "_" in glob.strip("*") and not glob.startswith("*")
        ]
        self._exact_patterns = [(glob, _compile_exact(glob)) for glob in self.globs]

    def find_match(self, hint: ActionHint) -> str | None:
        """Return the first glob that matches the hint, or a part of it that begins at a word."""
        plain, lower = hint.plain, hint.lower
        for glob, parts in self._substring_patterns:
            if _occur_in_order(parts, plain) or _occur_in_order(parts, lower):
                return glob
        return None

    def find_phrase(self, hint: ActionHint) -> str | None:
        """Return the first glob whose words occur in order."""
        return next(
            (glob for glob, parts in self._phrase_patterns if _occur_in_order(parts, hint.plain)),
            None,
        )

    def find_exact(self, hint: ActionHint) -> str | None:
        """Return the first glob that matches the whole hint, if it is one action and hides
        nothing."""
        if hint.hides or hint.is_chained:
            return None
        return next(
            (glob for glob, parts in self._exact_patterns if _occur_in_order(parts, hint.lower)),
            None,
        )


Parts = tuple[re.Pattern[str], ...]
"""The parts of a glob between its stars, in order."""


def _occur_in_order(parts: Parts, text: str) -> bool:
    """Return whether the parts occur in a text in order.

    Each part is searched once, behind the previous match, so that no text can make this slow.
    """
    position = 0
    for part in parts:
        match = part.search(text, position)
        if match is None:
            return False
        position = match.end()
    return True


@lru_cache(1024)
def _compile_substring(glob: str, *, allow_spaces: bool) -> Parts:
    separator = r"[\s_\-.]+" if allow_spaces else r"[_\-]+"
    return _compile_parts(glob, separator, r"(?<![a-z0-9])", r"(?![a-z0-9])")


@lru_cache(1024)
def _compile_exact(glob: str) -> Parts:
    return _compile_parts(glob, "_", r"\A", r"\Z")


def _compile_parts(glob: str, separator: str, start: str, end: str) -> Parts:
    """Compile the parts of a glob.

    Args:
        start: the anchor of the first part, unless a star is there.
        end: the anchor of the last part, unless a star is there.
    """
    bodies = [_translate_part(part, separator) for part in glob.lower().split("*")]
    if len(bodies) == 1:
        return (re.compile(start + bodies[0] + end, re.DOTALL),)
    first, *middle, last = bodies
    patterns = [start + first if first else "", *middle, last + end if last else ""]
    return tuple(re.compile(pattern, re.DOTALL) for pattern in patterns if pattern)


def _translate_part(part: str, separator: str) -> str:
    pieces = []
    for character in part:
        if character == "?":
            pieces.append(".")
        elif character == "_":
            pieces.append(separator)
        elif character.isspace():
            pieces.append(r"\s+")
        else:
            pieces.append(re.escape(character))
    return "".join(pieces)
