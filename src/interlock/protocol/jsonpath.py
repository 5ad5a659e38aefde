"""JSONPath: the subset that finds a value in the result of a tool. Pure.

A subset of RFC 9535: members (`.name`, `['name']`), indices (`[0]`, `[-1]`), wildcards (`[*]`) and
members that equal a value (`[?@.k=='v']`, also written `[?(@.k=='v')]`). Descendants (`..`),
slices, unions and other expressions are not supported, so that the cost of a path is predictable.

A path is compiled once. A path of members and indices finds one value or nothing. After the first
`[*]` or filter it finds a list of all matching values, as in the RFC.

Why no library: `jsonpath-rfc9535` 1.0 needs two compiled packages (for functions that are not
supported here), reads integers as floats (an id of 19 digits is changed) and raises OverflowError.
`python-jsonpath` 2.2 accepts more than the RFC in its strict mode and cannot print some of its
errors. Both would need a second pass over a path to reject the rest of the RFC.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final, NoReturn

from msgspec import Struct

from interlock.errors import ProtocolError

MAX_PATH: Final = 1024
MAX_STEPS: Final = 64
_MAX_SAFE_INTEGER: Final = 2**53 - 1

Scalar = str | int | float | bool | None


class PathNotFoundError(LookupError):
    """The path finds nothing in a value. The message has the position, but no data of the value."""


class MemberStep(Struct, frozen=True):
    """A member of an object."""

    name: str

    def __str__(self) -> str:
        return f"[{_quote(self.name)}]"


class IndexStep(Struct, frozen=True):
    """An item of an array. A negative index counts from the end."""

    index: int

    def __str__(self) -> str:
        return f"[{self.index}]"


class WildcardStep(Struct, frozen=True):
    """All items of an array, or all values of an object."""

    def __str__(self) -> str:
        return "[*]"


class FilterStep(Struct, frozen=True):
    """All items or values that are objects with a member equal to a value."""

    name: str
    value: Scalar

    def __str__(self) -> str:
        value = _quote(self.value) if isinstance(self.value, str) else json.dumps(self.value)
        return f"[?@[{_quote(self.name)}]=={value}]"


PathStep = MemberStep | IndexStep | WildcardStep | FilterStep


class JsonPath:
    """A compiled path."""

    __slots__ = ("_list_steps", "_single_steps", "steps", "text")

    def __init__(self, text: str, steps: tuple[PathStep, ...]) -> None:
        self.text = text
        self.steps = steps
        first = next(
            (
                index
                for index, step in enumerate(steps)
                if isinstance(step, WildcardStep | FilterStep)
            ),
            len(steps),
        )
        self._single_steps = steps[:first]
        self._list_steps = steps[first:]

    @property
    def is_multiple(self) -> bool:
        """True if it finds a list of values."""
        return bool(self._list_steps)

    @property
    def is_root(self) -> bool:
        """True if it is `$`, the value itself."""
        return not self.steps

    def find(self, value: Any) -> Any:
        """Return the value or the list of values. Raises PathNotFoundError."""
        path = "$"
        for step in self._single_steps:
            child = _follow(value, step)
            if child is _NOTHING:
                raise PathNotFoundError(_describe_miss(self.text, path, step, value))
            value = child
            path += str(step)
        if not self._list_steps:
            return value
        if not isinstance(value, list | dict):
            raise PathNotFoundError(_describe_miss(self.text, path, self._list_steps[0], value))
        nodes: Iterable[Any] = (value,)
        for step in self._list_steps:
            nodes = [child for node in nodes for child in _select(node, step)]
        return nodes

    def __str__(self) -> str:
        """Return the normalized path: equivalent paths are equal."""
        return "$" + "".join(str(step) for step in self.steps)

    def __repr__(self) -> str:
        return f"JsonPath({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsonPath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


def compile_path(text: str) -> JsonPath:
    """Compile a path. Raises ProtocolError with the correction."""
    if len(text) > MAX_PATH:
        raise ProtocolError(f"A JSONPath has at most {MAX_PATH} characters, this has {len(text)}.")
    return JsonPath(text, _Parser(text).read())


# -- evaluation


class _Nothing:
    __slots__ = ()


_NOTHING: Final = _Nothing()


def _follow(value: Any, step: PathStep) -> Any:
    if isinstance(step, MemberStep):
        return value.get(step.name, _NOTHING) if isinstance(value, dict) else _NOTHING
    if not isinstance(step, IndexStep) or not isinstance(value, list):
        return _NOTHING
    return value[step.index] if -len(value) <= step.index < len(value) else _NOTHING


def _select(value: Any, step: PathStep) -> Iterable[Any]:
    if isinstance(step, MemberStep | IndexStep):
        child = _follow(value, step)
        return () if child is _NOTHING else (child,)
    if isinstance(value, dict):
        items: Iterable[Any] = value.values()
    elif isinstance(value, list):
        items = value
    else:
        return ()
    if isinstance(step, WildcardStep):
        return items
    return [
        item
        for item in items
        if isinstance(item, dict)
        and step.name in item
        and equal_scalars(item[step.name], step.value)
    ]


def equal_scalars(value: Any, other: Scalar) -> bool:
    """Return whether two values are equal in JSON: 1 equals 1.0, and neither equals true."""
    if isinstance(value, bool) or isinstance(other, bool) or value is None or other is None:
        return value is other
    if isinstance(value, int | float) and isinstance(other, int | float):
        return value == other
    return isinstance(value, str) and isinstance(other, str) and value == other


def _describe_miss(text: str, path: str, step: PathStep, value: Any) -> str:
    kind = _kind(value)
    if isinstance(step, MemberStep):
        if isinstance(value, dict):
            return f"`{text}` finds nothing: `{path}` has no member {step.name!r}."
        return f"`{text}` finds nothing: `{path}` is {kind}, not an object."
    if isinstance(step, IndexStep):
        if isinstance(value, list):
            return (
                f"`{text}` finds nothing: the array `{path}` has {len(value)} items and no index "
                f"{step.index}."
            )
        return f"`{text}` finds nothing: `{path}` is {kind}, not an array."
    return f"`{text}` finds nothing: `{path}` is {kind}, which has no items."


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


# -- parsing

_BLANKS: Final = re.compile(r"[ \t\r\n]*")
_BEYOND_ASCII: Final = r"\x80-\ud7ff\ue000-\U0010ffff"
_SHORT_NAME: Final = re.compile(rf"[A-Za-z_{_BEYOND_ASCII}][0-9A-Za-z_{_BEYOND_ASCII}]*")
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LITERAL: Final = re.compile(r"true|false|null")
_LITERALS: Final[dict[str, Scalar]] = {"true": True, "false": False, "null": None}
_ESCAPES: Final = {
    "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "/": "/", "\\": "\\",
}  # fmt: skip
_HEX: Final = re.compile(r"[0-9A-Fa-f]{4}")


class _Parser:
    """A parser that reads the text once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def read(self) -> tuple[PathStep, ...]:
        if not self._text.startswith("$"):
            self._reject("a path begins with `$`", 0)
        self._position = 1
        steps: list[PathStep] = []
        while True:
            before = self._position
            self._blanks()
            if self._position == len(self._text):
                if before != self._position:
                    self._reject("remove the blanks after the path", before)
                return tuple(steps)
            if len(steps) == MAX_STEPS:
                self._reject(f"a path has at most {MAX_STEPS} steps", self._position)
            steps.append(self._step())

    def _step(self) -> PathStep:
        if self._accept(".."):
            self._reject("`..` is not supported: name every step", self._position - 2)
        if self._accept("."):
            if self._text.startswith("*", self._position):
                self._reject("write `[*]` for everything", self._position)
            return MemberStep(self._short_name())
        if self._accept("["):
            self._blanks()
            step = self._selector()
            self._blanks()
            if self._text.startswith(",", self._position):
                self._reject("one pair of brackets holds one selector", self._position)
            if self._text.startswith(":", self._position):
                self._reject("slices are not supported: use `[*]` or one index", self._position)
            self._expect("]")
            return step
        self._reject("expected `.name` or `[`", self._position)

    def _selector(self) -> PathStep:
        if self._accept("*"):
            return WildcardStep()
        if self._accept("?"):
            return self._filter()
        if self._text[self._position : self._position + 1] in ("'", '"'):
            return MemberStep(self._string())
        if self._text.startswith(":", self._position):
            self._reject("slices are not supported: use `[*]` or one index", self._position)
        start = self._position
        match = _INTEGER.match(self._text, self._position)
        if match is None:
            self._reject("expected a quoted name, an index, `*` or `?`", start)
        self._position = match.end()
        if self._text[self._position : self._position + 1].isdigit():
            self._reject("an index has no leading zeros", start)
        index = int(match[0])
        if abs(index) > _MAX_SAFE_INTEGER:
            self._reject("the index is too large", start)
        return IndexStep(index)

    def _filter(self) -> FilterStep:
        self._blanks()
        bracketed = self._accept("(")
        self._blanks()
        if not self._accept("@"):
            self._reject("a filter compares a member, as in `[?@.kind=='text']`", self._position)
        self._blanks()
        if self._accept("."):
            name = self._short_name()
        elif self._accept("["):
            self._blanks()
            name = self._string()
            self._blanks()
            self._expect("]")
        else:
            self._reject("a filter compares a member, as in `[?@.kind=='text']`", self._position)
        self._blanks()
        if not self._accept("=="):
            self._reject("the only comparison is `==`", self._position)
        self._blanks()
        value = self._value()
        self._blanks()
        if bracketed:
            self._expect(")")
        return FilterStep(name, value)

    def _value(self) -> Scalar:
        if self._text[self._position : self._position + 1] in ("'", '"'):
            return self._string()
        start = self._position
        word = _LITERAL.match(self._text, self._position)
        if word is not None:
            self._position = word.end()
            return _LITERALS[word[0]]
        number = _NUMBER.match(self._text, self._position)
        if number is None:
            self._reject("expected a quoted string, a number, true, false or null", start)
        self._position = number.end()
        if self._text[self._position : self._position + 1].isdigit():
            self._reject("a number has no leading zeros", start)
        if number[1] is None and number[2] is None:
            return int(number[0])
        value = float(number[0])
        if value in (float("inf"), float("-inf")):
            self._reject("the number is too large", start)
        return value

    def _short_name(self) -> str:
        match = _SHORT_NAME.match(self._text, self._position)
        if match is None:
            self._reject(
                "expected a name; other characters than letters, digits and _ need `['…']`",
                self._position,
            )
        self._position = match.end()
        if self._text.startswith("-", self._position):
            self._reject(f"write a name with a dash as `['{match[0]}-…']`", self._position)
        return match[0]

    def _string(self) -> str:
        text, start = self._text, self._position
        quote = text[start : start + 1]
        if quote not in ("'", '"'):
            self._reject("expected a quoted name", start)
        position = start + 1
        pieces: list[str] = []
        while True:
            if position >= len(text):
                self._reject("the quoted text has no end", start)
            character = text[position]
            if character == quote:
                self._position = position + 1
                return "".join(pieces)
            if character == "\\":
                piece, position = self._escape(position + 1, quote)
                pieces.append(piece)
                continue
            if character < " " or "\ud800" <= character <= "\udfff":
                self._reject("write a control character with `\\u`", position)
            pieces.append(character)
            position += 1

    def _escape(self, position: int, quote: str) -> tuple[str, int]:
        """Parse the escape after a backslash. Return its character and its end."""
        character = self._text[position : position + 1]
        if character == quote:
            return character, position + 1
        if character in _ESCAPES:
            return _ESCAPES[character], position + 1
        if character != "u":
            self._reject("unknown escape", position)
        code = self._hexadecimal(position + 1)
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code), position + 5
        if code < 0xDC00 and self._text.startswith("\\u", position + 5):
            low = self._hexadecimal(position + 7)
            if 0xDC00 <= low <= 0xDFFF:
                return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), position + 11
        self._reject("a surrogate needs a pair", position)

    def _hexadecimal(self, position: int) -> int:
        match = _HEX.match(self._text, position)
        if match is None:
            self._reject("`\\u` needs four hexadecimal digits", position)
        return int(match[0], 16)

    def _blanks(self) -> None:
        match = _BLANKS.match(self._text, self._position)
        assert match is not None
        self._position = match.end()

    def _accept(self, token: str) -> bool:
        if self._text.startswith(token, self._position):
            self._position += len(token)
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            self._reject(f"expected `{token}`", self._position)

    def _reject(self, reason: str, position: int) -> NoReturn:
        excerpt = self._text if len(self._text) <= 80 else self._text[:80] + "…"
        raise ProtocolError(f"Invalid JSONPath {excerpt!r} (character {position + 1}): {reason}.")


def _quote(text: str) -> str:
    """Quote a name as in normalized paths of the RFC."""
    pieces = []
    for character in text:
        if character in ("'", "\\"):
            pieces.append("\\" + character)
        elif character < " ":
            pieces.append(_SHORT_ESCAPE.get(character) or f"\\u{ord(character):04x}")
        else:
            pieces.append(character)
    return "'" + "".join(pieces) + "'"


_SHORT_ESCAPE: Final = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
