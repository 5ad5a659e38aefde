"""Globs over what an agent says it will do. Whoever wants to hide an action from them must not find
it easy: they see through case, invisible and look-alike characters, camel case and hyphens. What
lets an action pass is narrow instead: it must fit as a whole, and only one action may be in it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec

LONGEST_HINT: Final = 2_000
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
"""Letters of other scripts that people take for these."""
_ALIKE: Final = {ord(one): latin for latin, others in _LOOK_ALIKES.items() for one in others}
_CHAINED: Final = re.compile(
    r"[;|&\n\r,\u2192]|->|\b(?:then|and|after|afterwards|before|followed|next|also|plus|while|but|or)\b"
)
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SPACE: Final = re.compile(r"\s+")
_HARD_TO_SEE: Final = frozenset("\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800")


class ActionHint(msgspec.Struct, frozen=True):
    """The hint of an agent about its next action, prepared for matching."""

    text: str
    """As it came, in one line."""
    plain: str
    """Without what hides: lower case, nothing invisible, look-alikes replaced, camel case split."""
    lower: str
    """Only in lower case: what fits as a whole fits this."""
    hides: bool
    """Whether something was in it that people do not see, or take for something else."""

    @property
    def chained(self) -> bool:
        """Whether it may be more than one action."""
        return _CHAINED.search(self.plain) is not None


def read(text: str) -> ActionHint:
    """Any text at all."""
    folded = unicodedata.normalize("NFKC", text)
    seen = "".join(one for one in folded if not _unseen(one))
    skeleton = seen.translate(_ALIKE)
    # A whole text in another script hides nothing; a letter of one inside a word of another does.
    hides = len(seen) != len(folded) or any(
        word != word.translate(_ALIKE) and any("a" <= one <= "z" for one in word.lower())
        for word in re.findall(r"\w+", seen)
    )
    bare = "".join(
        one for one in unicodedata.normalize("NFD", skeleton) if unicodedata.category(one) != "Mn"
    )
    plain = _CAMEL.sub("_", bare).lower()
    return ActionHint(
        text=_SPACE.sub(" ", text).strip(),
        plain=plain.strip(),
        lower=text.strip().lower(),
        hides=hides,
    )


def _unseen(one: str) -> bool:
    kind = unicodedata.category(one)
    if kind == "Cc":
        return one not in "\n\r\t"
    return kind in ("Cf", "Co", "Cs", "Cn") or one in _HARD_TO_SEE or "\ufe00" <= one <= "\ufe0f"


class ActionPatterns:
    """The globs of one kind. Compiled once."""

    def __init__(self, globs: Iterable[str]) -> None:
        self.globs = tuple(globs)
        self._found = [(glob, _anywhere(glob, loose=False)) for glob in self.globs]
        # A glob that begins with a word may also be said in words: "drop table" for `drop_*`.
        self._said = [
            (glob, _anywhere(glob, loose=True))
            for glob in self.globs
            if "_" in glob.strip("*") and not glob.startswith("*")
        ]
        self._whole = [(glob, _exactly(glob)) for glob in self.globs]

    def found(self, hint: ActionHint) -> str | None:
        """The first glob that fits it, or any part of it that begins where a word begins."""
        plain, lower = hint.plain, hint.lower
        for glob, parts in self._found:
            if _follow(parts, plain) or _follow(parts, lower):
                return glob
        return None

    def said(self, hint: ActionHint) -> str | None:
        """The first glob whose words stand in it one after the other."""
        return next((glob for glob, parts in self._said if _follow(parts, hint.plain)), None)

    def whole(self, hint: ActionHint) -> str | None:
        """The first glob that fits all of it, where it is one action and hides nothing."""
        if hint.hides or hint.chained:
            return None
        return next((glob for glob, parts in self._whole if _follow(parts, hint.lower)), None)


Parts = tuple[re.Pattern[str], ...]
"""What stands between the stars of a glob, in its order."""


def _follow(parts: Parts, text: str) -> bool:
    """Whether they stand in a text one after the other. Each is looked for once, from where the one
    before it ended: whoever writes the text cannot make this take long."""
    at = 0
    for part in parts:
        found = part.search(text, at)
        if found is None:
            return False
        at = found.end()
    return True


@lru_cache(1024)
def _anywhere(glob: str, *, loose: bool) -> Parts:
    between = r"[\s_\-.]+" if loose else r"[_\-]+"
    return _parts(glob, between, r"(?<![a-z0-9])", r"(?![a-z0-9])")


@lru_cache(1024)
def _exactly(glob: str) -> Parts:
    return _parts(glob, "_", r"\A", r"\Z")


def _parts(glob: str, between: str, start: str, end: str) -> Parts:
    """`start` and `end`: where it has to begin and to end, unless a star stands there."""
    bodies = [_body(part, between) for part in glob.lower().split("*")]
    if len(bodies) == 1:
        return (re.compile(start + bodies[0] + end, re.DOTALL),)
    first, *middle, last = bodies
    made = [start + first if first else "", *middle, last + end if last else ""]
    return tuple(re.compile(one, re.DOTALL) for one in made if one)


def _body(part: str, between: str) -> str:
    written = []
    for one in part:
        if one == "?":
            written.append(".")
        elif one == "_":
            written.append(between)
        elif one.isspace():
            written.append(r"\s+")
        else:
            written.append(re.escape(one))
    return "".join(written)
