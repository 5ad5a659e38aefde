"""JSONPath, the small part of it that finds a value in a tool's result. Pure.

A subset of RFC 9535: members (`.name`, `['name']`), indices (`[0]`, `[-1]`), everything (`[*]`) and
members that equal a value (`[?@.k=='v']`, also written `[?(@.k=='v')]`). There is no descent
(`..`), no slice, no union and no other expression: what a path costs can be seen by looking at it.

A path is compiled once. One that can only lead to one place finds that value or nothing; from the
first `[*]` or filter on it finds a list, without what does not fit, as the RFC has it.

Why no library: `jsonpath-rfc9535` 1.0 brings two compiled packages (for the functions that are not
taken here), reads whole numbers as floats (an id of 19 digits is changed) and lets OverflowError
out; `python-jsonpath` 2.2 takes more than the RFC in its strict mode and cannot print some of its
errors. Both would need a second walk over what they read to refuse the rest of the RFC.
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
_MOST_SAFE: Final = 2**53 - 1

Scalar = str | int | float | bool | None


class PathNotFoundError(LookupError):
    """The path leads nowhere in this value. Says how far it came, and nothing of the value."""


class MemberStep(Struct, frozen=True):
    """The member of an object."""

    name: str

    def __str__(self) -> str:
        return f"[{_quoted(self.name)}]"


class IndexStep(Struct, frozen=True):
    """An item of an array; a negative one counts from the end."""

    index: int

    def __str__(self) -> str:
        return f"[{self.index}]"


class WildcardStep(Struct, frozen=True):
    """All items of an array, or all values of an object."""

    def __str__(self) -> str:
        return "[*]"


class FilterStep(Struct, frozen=True):
    """Those of them that are objects with a member equal to a value."""

    name: str
    value: Scalar

    def __str__(self) -> str:
        value = _quoted(self.value) if isinstance(self.value, str) else json.dumps(self.value)
        return f"[?@[{_quoted(self.name)}]=={value}]"


PathStep = MemberStep | IndexStep | WildcardStep | FilterStep


class JsonPath:
    """A compiled path."""

    __slots__ = ("_many", "_one", "steps", "text")

    def __init__(self, text: str, steps: tuple[PathStep, ...]) -> None:
        self.text = text
        self.steps = steps
        first = next(
            (
                place
                for place, step in enumerate(steps)
                if isinstance(step, WildcardStep | FilterStep)
            ),
            len(steps),
        )
        self._one = steps[:first]
        self._many = steps[first:]

    @property
    def is_multiple(self) -> bool:
        """Whether it finds a list of values, however many there are."""
        return bool(self._many)

    @property
    def is_root(self) -> bool:
        """Whether it is `$`: the value itself."""
        return not self.steps

    def find(self, value: Any) -> Any:
        """What is there. Raises PathNotFoundError."""
        place = "$"
        for step in self._one:
            found = _follow(value, step)
            if found is _NOTHING:
                raise PathNotFoundError(_nothing_there(self.text, place, step, value))
            value = found
            place += str(step)
        if not self._many:
            return value
        if not isinstance(value, list | dict):
            raise PathNotFoundError(_nothing_there(self.text, place, self._many[0], value))
        nodes: Iterable[Any] = (value,)
        for step in self._many:
            nodes = [one for node in nodes for one in _select(node, step)]
        return nodes

    def __str__(self) -> str:
        """The path in its normal form: two that mean the same are written alike."""
        return "$" + "".join(str(step) for step in self.steps)

    def __repr__(self) -> str:
        return f"JsonPath({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsonPath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


def compile_path(text: str) -> JsonPath:
    """`text` as a path. Raises ProtocolError with a sentence that says what to write instead."""
    if len(text) > MAX_PATH:
        raise ProtocolError(f"A JSONPath has at most {MAX_PATH} characters, this has {len(text)}.")
    return JsonPath(text, _Reader(text).read())


# -- following


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
        found = _follow(value, step)
        return () if found is _NOTHING else (found,)
    if isinstance(value, dict):
        items: Iterable[Any] = value.values()
    elif isinstance(value, list):
        items = value
    else:
        return ()
    if isinstance(step, WildcardStep):
        return items
    return [
        one
        for one in items
        if isinstance(one, dict) and step.name in one and equal_scalars(one[step.name], step.value)
    ]


def equal_scalars(one: Any, other: Scalar) -> bool:
    """Equality as JSON has it: 1 is 1.0, and neither is true."""
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    return isinstance(one, str) and isinstance(other, str) and one == other


def _nothing_there(text: str, place: str, step: PathStep, value: Any) -> str:
    kind = _kind(value)
    if isinstance(step, MemberStep):
        if isinstance(value, dict):
            return f"`{text}` finds nothing: at `{place}` there is no member {step.name!r}."
        return f"`{text}` finds nothing: at `{place}` there is {kind} and no object."
    if isinstance(step, IndexStep):
        if isinstance(value, list):
            return (
                f"`{text}` finds nothing: the array at `{place}` has {len(value)} items and none "
                f"with the index {step.index}."
            )
        return f"`{text}` finds nothing: at `{place}` there is {kind} and no array."
    return f"`{text}` finds nothing: at `{place}` there is {kind}, which has no items."


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


# -- reading

_BLANKS: Final = re.compile(r"[ \t\r\n]*")
_BEYOND_ASCII: Final = r"\x80-\ud7ff\ue000-\U0010ffff"
_SHORT: Final = re.compile(rf"[A-Za-z_{_BEYOND_ASCII}][0-9A-Za-z_{_BEYOND_ASCII}]*")
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD: Final = re.compile(r"true|false|null")
_WORDS: Final[dict[str, Scalar]] = {"true": True, "false": False, "null": None}
_ESCAPES: Final = {
    "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "/": "/", "\\": "\\",
}  # fmt: skip
_HEX: Final = re.compile(r"[0-9A-Fa-f]{4}")


class _Reader:
    """Walks over the text once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> tuple[PathStep, ...]:
        if not self._text.startswith("$"):
            self._refuse("a path begins with `$`", 0)
        self._at = 1
        steps: list[PathStep] = []
        while True:
            before = self._at
            self._blanks()
            if self._at == len(self._text):
                if before != self._at:
                    self._refuse("there are blanks behind the path: take them away", before)
                return tuple(steps)
            if len(steps) == MAX_STEPS:
                self._refuse(f"a path has at most {MAX_STEPS} steps", self._at)
            steps.append(self._step())

    def _step(self) -> PathStep:
        if self._take(".."):
            self._refuse("`..` is not supported: name every step", self._at - 2)
        if self._take("."):
            if self._text.startswith("*", self._at):
                self._refuse("write `[*]` for everything", self._at)
            return MemberStep(self._short_name())
        if self._take("["):
            self._blanks()
            step = self._selector()
            self._blanks()
            if self._text.startswith(",", self._at):
                self._refuse("one pair of brackets holds one selector", self._at)
            if self._text.startswith(":", self._at):
                self._refuse("slices are not supported: take `[*]` or one index", self._at)
            self._expect("]")
            return step
        self._refuse("expected `.name` or `[`", self._at)

    def _selector(self) -> PathStep:
        if self._take("*"):
            return WildcardStep()
        if self._take("?"):
            return self._filter()
        if self._text[self._at : self._at + 1] in ("'", '"'):
            return MemberStep(self._string())
        if self._text.startswith(":", self._at):
            self._refuse("slices are not supported: take `[*]` or one index", self._at)
        began = self._at
        found = _INTEGER.match(self._text, self._at)
        if found is None:
            self._refuse("expected a quoted name, an index, `*` or `?`", began)
        self._at = found.end()
        if self._text[self._at : self._at + 1].isdigit():
            self._refuse("an index has no leading zeros", began)
        index = int(found[0])
        if abs(index) > _MOST_SAFE:
            self._refuse("the index is too large", began)
        return IndexStep(index)

    def _filter(self) -> FilterStep:
        self._blanks()
        bracketed = self._take("(")
        self._blanks()
        if not self._take("@"):
            self._refuse("a filter compares a member, as in `[?@.kind=='text']`", self._at)
        self._blanks()
        if self._take("."):
            name = self._short_name()
        elif self._take("["):
            self._blanks()
            name = self._string()
            self._blanks()
            self._expect("]")
        else:
            self._refuse("a filter compares a member, as in `[?@.kind=='text']`", self._at)
        self._blanks()
        if not self._take("=="):
            self._refuse("the only comparison is `==`", self._at)
        self._blanks()
        value = self._value()
        self._blanks()
        if bracketed:
            self._expect(")")
        return FilterStep(name, value)

    def _value(self) -> Scalar:
        if self._text[self._at : self._at + 1] in ("'", '"'):
            return self._string()
        began = self._at
        word = _WORD.match(self._text, self._at)
        if word is not None:
            self._at = word.end()
            return _WORDS[word[0]]
        number = _NUMBER.match(self._text, self._at)
        if number is None:
            self._refuse("expected a quoted string, a number, true, false or null", began)
        self._at = number.end()
        if self._text[self._at : self._at + 1].isdigit():
            self._refuse("a number has no leading zeros", began)
        if number[1] is None and number[2] is None:
            return int(number[0])
        value = float(number[0])
        if value in (float("inf"), float("-inf")):
            self._refuse("the number is too large", began)
        return value

    def _short_name(self) -> str:
        found = _SHORT.match(self._text, self._at)
        if found is None:
            self._refuse("expected a name; any but letters, digits and _ need `['…']`", self._at)
        self._at = found.end()
        if self._text.startswith("-", self._at):
            self._refuse(f"a name with a dash is written `['{found[0]}-…']`", self._at)
        return found[0]

    def _string(self) -> str:
        text, began = self._text, self._at
        quote = text[began : began + 1]
        if quote not in ("'", '"'):
            self._refuse("expected a quoted name", began)
        at = began + 1
        pieces: list[str] = []
        while True:
            if at >= len(text):
                self._refuse("the quoted text has no end", began)
            one = text[at]
            if one == quote:
                self._at = at + 1
                return "".join(pieces)
            if one == "\\":
                piece, at = self._escape(at + 1, quote)
                pieces.append(piece)
                continue
            if one < " " or "\ud800" <= one <= "\udfff":
                self._refuse("a control character is written with `\\u`", at)
            pieces.append(one)
            at += 1

    def _escape(self, at: int, quote: str) -> tuple[str, int]:
        """What stands behind a backslash, and where it ends."""
        one = self._text[at : at + 1]
        if one == quote:
            return one, at + 1
        if one in _ESCAPES:
            return _ESCAPES[one], at + 1
        if one != "u":
            self._refuse("there is no such escape", at)
        code = self._hexadecimal(at + 1)
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code), at + 5
        if code < 0xDC00 and self._text.startswith("\\u", at + 5):
            low = self._hexadecimal(at + 7)
            if 0xDC00 <= low <= 0xDFFF:
                return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), at + 11
        self._refuse("half a character: surrogates come in pairs", at)

    def _hexadecimal(self, at: int) -> int:
        found = _HEX.match(self._text, at)
        if found is None:
            self._refuse("`\\u` needs four hexadecimal digits", at)
        return int(found[0], 16)

    def _blanks(self) -> None:
        found = _BLANKS.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _take(self, token: str) -> bool:
        if self._text.startswith(token, self._at):
            self._at += len(token)
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._take(token):
            self._refuse(f"expected `{token}`", self._at)

    def _refuse(self, why: str, at: int) -> NoReturn:
        shown = self._text if len(self._text) <= 80 else self._text[:80] + "…"
        raise ProtocolError(f"{shown!r} is no JSONPath (character {at + 1}): {why}.")


def _quoted(text: str) -> str:
    """As the RFC writes names in normalized paths."""
    pieces = []
    for one in text:
        if one in ("'", "\\"):
            pieces.append("\\" + one)
        elif one < " ":
            pieces.append(_SHORT_ESCAPE.get(one) or f"\\u{ord(one):04x}")
        else:
            pieces.append(one)
    return "'" + "".join(pieces) + "'"


_SHORT_ESCAPE: Final = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
