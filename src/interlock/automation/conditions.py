"""Parts of a condition: each as CEL, and in words. Pure.

Names and values come from whoever called, so every one of them is quoted: nothing that stands in an
argument can become part of the expression, or of the sentence that a human accepts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

LONGEST_VALUE: Final = 256
"""Characters of a value that may stand in a condition."""
_DEEPEST: Final = 4
_INTS: Final = range(-(2**63), 2**63)
_EXACT: Final = 2**53
"""From here on numbers beside each other are the same to many readers, conditions among them."""
_PLAIN: Final = "A-Za-z0-9_"


class ConditionPart(msgspec.Struct, frozen=True):
    """A part of a condition, as CEL and in words."""

    cel: str
    words: str


def text(value: str) -> str:
    """A text as CEL. What nobody can see, or what turns lines around, is written as its number."""
    return '"' + "".join(_character(one) for one in value) + '"'


def _character(one: str) -> str:
    if one in '"\\':
        return f"\\{one}"
    if one.isprintable():
        return one
    code = ord(one)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def literal(value: Any) -> str:
    """A JSON value as CEL. Raises ValueError for one that cannot be written so."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float):
        # An exponent is no integer, nor may a whole number become one.
        return repr(value)
    if isinstance(value, int):
        if value not in _INTS:
            raise ValueError("CEL has no such number")
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(literal(one) for one in value)}]"
    members = (f"{text(name)}: {literal(one)}" for name, one in value.items())
    return f"{{{', '.join(members)}}}"


def is_usable(value: Any, depth: int = 0) -> bool:
    """Whether a value may stand in a condition that a human is to read."""
    if isinstance(value, str):
        return len(value) <= LONGEST_VALUE and "\0" not in value
    if isinstance(value, int | float) or value is None:
        return value is None or abs(value) < _EXACT
    if depth >= _DEEPEST or len(json.dumps(value)) > LONGEST_VALUE:
        return False
    inside = [*value, *value.values()] if isinstance(value, dict) else value
    return all(is_usable(one, depth + 1) for one in inside)


def _quoted(value: Any) -> str:
    """For a sentence: the same spelling as in the condition."""
    return literal(value)


def _required(name: str, cel: str, optional: bool) -> str:
    here = f"{text(name)} in args"
    return f"(!({here}) || {cel})" if optional else f"{here} && {cel}"


def _or_absent(words: str, optional: bool) -> str:
    return f"{words}, if it is given" if optional else words


def one_of(name: str, values: Sequence[Any], *, optional: bool = False) -> ConditionPart:
    """The argument is one of these values."""
    member = f"args[{text(name)}]"
    if len(values) == 1:
        cel = f"{member} == {literal(values[0])}"
        words = f"{_quoted(name)} is {_quoted(values[0])}"
    else:
        cel = f"{member} in {literal(list(values))}"
        words = f"{_quoted(name)} is one of {', '.join(_quoted(one) for one in values)}"
    return ConditionPart(_required(name, cel, optional), _or_absent(words, optional))


class FolderPattern(NamedTuple):
    """A folder, which ends with a slash, and what the names below it are made of: besides plain
    letters, digits, `_`, `-` and single dots between them."""

    folder: str
    letters: str = ""
    """Other letters that were seen."""
    dotted: bool = False
    """Whether names may begin with a dot."""

    @property
    def pattern(self) -> str:
        """Both RE2 and Python read it alike. It is meant for the whole text."""
        start = "".join(f"[{one}]" if one in ".+" else one for one in self.folder)
        word = f"[{_PLAIN}{self.letters}-]+"
        name = f"{'[.]?' if self.dotted else ''}{word}(?:[.]{word})*"
        return f"{start}{name}(?:/{name})*"

    def holds(self, path: str) -> bool:
        return re.fullmatch(self.pattern, path) is not None


def below(name: str, folders: Sequence[FolderPattern], *, optional: bool = False) -> ConditionPart:
    """The argument is a path below one of these folders, by a list of what may stand there. What
    leads out of them again, or is no plain path to whoever reads it, does not count."""
    member = f"args[{text(name)}]"
    fits = " || ".join(f"{member}.matches({text(f'^{one.pattern}$')})" for one in folders)
    words = f"{_quoted(name)} is below {' or '.join(_quoted(one.folder) for one in folders)}"
    cel = f"({fits})" if len(folders) > 1 else fits
    return ConditionPart(_required(name, cel, optional), _or_absent(words, optional))


def between(
    name: str,
    least: int | float,
    most: int | float,
    *,
    whole: bool = False,
    optional: bool = False,
) -> ConditionPart:
    """The argument is a number, and not beyond what was seen. `whole`: no fractions were."""
    member = f"args[{text(name)}]"
    cel = f"{member} >= {literal(least)} && {member} <= {literal(most)}"
    if whole:
        cel = f"type({member}) == int && {cel}"
    words = f"{_quoted(name)} is from {_quoted(least)} to {_quoted(most)}"
    return ConditionPart(
        _required(name, f"({cel})" if optional else cel, optional), _or_absent(words, optional)
    )


def present(name: str) -> ConditionPart:
    """The argument is there, whatever it says."""
    return ConditionPart(f"{text(name)} in args", f"{_quoted(name)} is given")


def absent(name: str) -> ConditionPart:
    """The argument is not there."""
    return ConditionPart(f"!({text(name)} in args)", f"{_quoted(name)} is not given")


def either(ways: Sequence[Sequence[ConditionPart]]) -> ConditionPart:
    """All of the pieces of one of these ways."""
    cel = " || ".join(f"({' && '.join(one.cel for one in way)})" for way in ways)
    words = ", or ".join(" and ".join(one.words for one in way) for way in ways)
    return ConditionPart(f"({cel})", f"either {words}")


def only(names: Sequence[str]) -> ConditionPart:
    """There are no arguments but these: nobody ever looked at a call with another one."""
    words = "there are no other arguments" if names else "there are no arguments"
    return ConditionPart(f"args.all(name, name in {literal(list(names))})", words)


def joined(pieces: Sequence[ConditionPart]) -> str | None:
    """All of them, as one condition."""
    return " && ".join(one.cel for one in pieces) or None
