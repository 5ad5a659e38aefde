"""Parts of a condition, each as CEL and as text. Pure.

Names and values come from callers, so all of them are quoted: nothing in an argument can become
part of the expression, or of the text that an operator accepts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

MAX_VALUE_LENGTH: Final = 256
"""The maximum length of a value in a condition."""
_MAX_DEPTH: Final = 4
_CEL_INTEGERS: Final = range(-(2**63), 2**63)
_EXACT_INTEGER_LIMIT: Final = 2**53
"""The first integer that many JSON readers, and CEL, cannot distinguish from its neighbours."""
_PLAIN_CHARACTERS: Final = "A-Za-z0-9_"


class ConditionPart(msgspec.Struct, frozen=True):
    """A part of a condition, as CEL and as text."""

    cel: str
    description: str


def quote_text(value: str) -> str:
    """Return a text as a CEL literal. Invisible and line-breaking characters become escapes."""
    return '"' + "".join(_escape_character(character) for character in value) + '"'


def _escape_character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def format_literal(value: Any) -> str:
    """Return a JSON value as a CEL literal. Raises ValueError for an unsupported value."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return quote_text(value)
    if isinstance(value, float):
        # `repr` with an exponent or a decimal point stays a double in CEL.
        return repr(value)
    if isinstance(value, int):
        if value not in _CEL_INTEGERS:
            raise ValueError(f"CEL does not support the number {value}")
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(format_literal(item) for item in value)}]"
    members = (f"{quote_text(name)}: {format_literal(item)}" for name, item in value.items())
    return f"{{{', '.join(members)}}}"


def is_usable(value: Any, depth: int = 0) -> bool:
    """Return whether a value may be part of a condition that an operator reads."""
    if isinstance(value, str):
        return len(value) <= MAX_VALUE_LENGTH and "\0" not in value
    if isinstance(value, int | float) or value is None:
        return value is None or abs(value) < _EXACT_INTEGER_LIMIT
    if depth >= _MAX_DEPTH or len(json.dumps(value)) > MAX_VALUE_LENGTH:
        return False
    children = [*value, *value.values()] if isinstance(value, dict) else value
    return all(is_usable(child, depth + 1) for child in children)


def _format_value(value: Any) -> str:
    """Return a value for the text of a condition, in the notation of the condition."""
    return format_literal(value)


def _require_member(name: str, cel: str, optional: bool) -> str:
    is_in_args = f"{quote_text(name)} in args"
    return f"(!({is_in_args}) || {cel})" if optional else f"{is_in_args} && {cel}"


def _describe_optional(description: str, optional: bool) -> str:
    return f"{description}, if present" if optional else description


def equals_any(name: str, values: Sequence[Any], *, optional: bool = False) -> ConditionPart:
    """Return the part: the argument has one of these values."""
    member = f"args[{quote_text(name)}]"
    if len(values) == 1:
        cel = f"{member} == {format_literal(values[0])}"
        description = f"{_format_value(name)} is {_format_value(values[0])}"
    else:
        cel = f"{member} in {format_literal(list(values))}"
        description = (
            f"{_format_value(name)} is one of {', '.join(_format_value(value) for value in values)}"
        )
    return ConditionPart(
        _require_member(name, cel, optional), _describe_optional(description, optional)
    )


class FolderPattern(NamedTuple):
    """A folder (ending with a slash), and the characters of names below it, besides letters,
    digits, `_`, `-` and single dots."""

    folder: str
    extra_characters: str = ""
    """Other characters that occurred."""
    allows_dotfiles: bool = False
    """True if names may begin with a dot."""

    @property
    def pattern(self) -> str:
        """The regular expression for a complete path. RE2 and Python read it in the same way."""
        start = "".join(
            f"[{character}]" if character in ".+" else character for character in self.folder
        )
        word = f"[{_PLAIN_CHARACTERS}{self.extra_characters}-]+"
        name = f"{'[.]?' if self.allows_dotfiles else ''}{word}(?:[.]{word})*"
        return f"{start}{name}(?:/{name})*"

    def matches_path(self, path: str) -> bool:
        return re.fullmatch(self.pattern, path) is not None


def is_below(
    name: str, folders: Sequence[FolderPattern], *, optional: bool = False
) -> ConditionPart:
    """Return the condition that the argument is a path below one of these folders.

    The condition lists what a path may contain. A path that leads out of the folder, or that is
    ambiguous, does not match.
    """
    member = f"args[{quote_text(name)}]"
    expression = " || ".join(
        f"{member}.matches({quote_text(f'^{folder.pattern}$')})" for folder in folders
    )
    description = (
        f"{_format_value(name)} is below "
        f"{' or '.join(_format_value(folder.folder) for folder in folders)}"
    )
    cel = f"({expression})" if len(folders) > 1 else expression
    return ConditionPart(
        _require_member(name, cel, optional), _describe_optional(description, optional)
    )


def is_between(
    name: str,
    minimum: int | float,
    maximum: int | float,
    *,
    integers_only: bool = False,
    optional: bool = False,
) -> ConditionPart:
    """Return the part: the argument is a number in this range."""
    member = f"args[{quote_text(name)}]"
    cel = f"{member} >= {format_literal(minimum)} && {member} <= {format_literal(maximum)}"
    if integers_only:
        cel = f"type({member}) == int && {cel}"
    description = (
        f"{_format_value(name)} is from {_format_value(minimum)} to {_format_value(maximum)}"
    )
    return ConditionPart(
        _require_member(name, f"({cel})" if optional else cel, optional),
        _describe_optional(description, optional),
    )


def is_present(name: str) -> ConditionPart:
    """Return the part: the argument is present, with any value."""
    return ConditionPart(f"{quote_text(name)} in args", f"{_format_value(name)} is present")


def is_absent(name: str) -> ConditionPart:
    """Return the part: the argument is absent."""
    return ConditionPart(f"!({quote_text(name)} in args)", f"{_format_value(name)} is absent")


def any_of(alternatives: Sequence[Sequence[ConditionPart]]) -> ConditionPart:
    """Return the part: all parts of one of the alternatives are true."""
    cel = " || ".join(
        f"({' && '.join(part.cel for part in alternative)})" for alternative in alternatives
    )
    description = ", or ".join(
        " and ".join(part.description for part in alternative) for alternative in alternatives
    )
    return ConditionPart(f"({cel})", f"either {description}")


def has_only(names: Sequence[str]) -> ConditionPart:
    """Return the part: there are no other arguments, because operators never saw a call with
    one."""
    description = "there are no other arguments" if names else "there are no arguments"
    return ConditionPart(f"args.all(name, name in {format_literal(list(names))})", description)


def join_parts(parts: Sequence[ConditionPart]) -> str | None:
    """Return all parts as one condition."""
    return " && ".join(part.cel for part in parts) or None
