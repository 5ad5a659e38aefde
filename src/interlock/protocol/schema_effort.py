"""Whether it can be said in time what of a value does not fit a schema.

Whether a value fits is found out quickly: a validator remembers what it has looked at. Why it does
not fit is collected without that memory. Where references lead to the same part of a schema in
several ways, and from there again, the same member is looked at twice, four times, eight times,
and a few dozen braces would take longer than anybody can wait. All errors are collected before the
first is told, so that a long list of which nothing fits takes seconds, too. So looks are counted
first, each pair of a part and a member once, and not too many of them. Pure; nothing here raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from interlock.protocol.schema_references import REFERENCES, References, parts_of

MOST_REPEATS: Final = 500
"""Looks at what was looked at before. Each costs up to a tenth of a millisecond."""
MOST_LOOKS: Final = 40_000
"""Looks that are counted before it is given up. Each may find something, and to tell what takes a
hundredth of a millisecond, whether anybody wants to hear of it or not."""
UNEXPLAINED: Final = (
    "it does not fit, but there are so many places to look at, or so many ways to them, that "
    "nobody looks where: send something smaller or flatter to find out"
)
"""What is said instead."""

_SAME_LISTED: Final = ("allOf", "anyOf", "oneOf")
_SAME_ONE: Final = ("not", "if", "then", "else")
_SAME_NAMED: Final = ("dependentSchemas", "dependencies")
_BRANCHES: Final = ("anyOf", "oneOf")
_ASKED_FOR: Final = ("dependentRequired", "dependencies")
_EVERY_MEMBER: Final = ("additionalProperties", "unevaluatedProperties")
_EVERY_ITEM: Final = ("items", "additionalItems", "unevaluatedItems", "contains")

_Pair = tuple[int, int]


class _TooMany(Exception):
    pass


def errors_of(validator: Any, schema: Any, value: Any, most: int) -> list[Any] | None:
    """What `validator`, made of `schema`, has against a value: the first errors. None: to find out
    would take too long."""
    if not can_be_explained(schema, value):
        return _first_error(validator, schema, value)
    try:
        return list(islice(validator.iter_errors(value), most))
    except ValueError:
        # Nested deeper than it follows while it collects.
        return None


def _first_error(validator: Any, schema: Any, value: Any) -> list[Any] | None:
    """The first of too many, where it is found as quickly as that there is one: each part is looked
    at once for each member, and none of them collects what is wrong with its branches."""
    if _says(schema, (*REFERENCES, *_BRANCHES)):
        return None
    try:
        validator.validate(value)
    except ValueError as error:
        return [error] if hasattr(error, "instance_path") else None
    return []


def can_be_explained(schema: Any, value: Any) -> bool:
    """Whether the errors of a value may be collected."""
    looks = _Looks(schema)
    try:
        return looks.count(schema, value) - looks.pairs <= MOST_REPEATS
    except (_TooMany, RecursionError):
        return False


class _Looks:
    """Counts the looks that it takes, by one schema."""

    def __init__(self, document: Any) -> None:
        self._references = References(document)
        self.pairs = 0
        """What there is to look at, each once."""
        self._left = MOST_LOOKS
        self._known: dict[_Pair, int] = {}
        self._alone: dict[int, tuple[int, int]] = {}

    def count(self, part: Any, value: Any) -> int:
        """How often something is looked at from here on, as if nothing were remembered."""
        if not isinstance(part, dict):
            return 0
        if not isinstance(value, dict | list):
            # Equal ones may be the same object: each is another member all the same.
            looks, different = self._at_scalar(part)
            self.pairs += different
            self._spend(looks)
            return looks
        pair = (id(part), id(value))
        known = self._known.get(pair)
        if known is not None:
            return known
        self._spend(1 + (_asked_for(part) if isinstance(value, dict) else 0))
        self.pairs += 1
        # Who comes here again with the same member goes round: that is refused elsewhere.
        self._known[pair] = 1
        looks = 1
        for inner, seen in self._below(part, value):
            looks += self.count(inner, seen)
        if looks - self.pairs > MOST_REPEATS:
            raise _TooMany
        self._known[pair] = looks
        return looks

    def _spend(self, looks: int) -> None:
        self._left -= looks
        if self._left < 0:
            raise _TooMany

    def _at_scalar(self, part: dict[str, Any]) -> tuple[int, int]:
        """How many looks a member without members takes, and at how many parts."""
        known = self._alone.get(id(part))
        if known is None:
            self._alone[id(part)] = (1, 1)
            looks, different = 1, {id(part)}
            waiting = [part]
            for inner, _ in self._below(part, None):
                if isinstance(inner, dict):
                    looks += self._at_scalar(inner)[0]
            while waiting:
                for inner, _ in self._below(waiting.pop(), None):
                    if isinstance(inner, dict) and id(inner) not in different:
                        different.add(id(inner))
                        waiting.append(inner)
            if looks - len(different) > MOST_REPEATS:
                raise _TooMany
            known = self._alone[id(part)] = (looks, len(different))
        return known

    def _below(self, part: dict[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
        for found in self._next(part, value):
            # Also what comes to nothing takes its time.
            self._spend(1)
            yield found

    def _next(self, part: dict[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
        for word in REFERENCES:
            if word in part:
                yield self._references.target(part[word]), value
        for word in _SAME_LISTED:
            for inner in _listed(part.get(word)):
                yield inner, value
        for word in _SAME_ONE:
            if word in part:
                yield part[word], value
        for word in _SAME_NAMED:
            for inner in _named(part.get(word)).values():
                yield inner, value
        if isinstance(value, dict):
            yield from _members(part, value)
        elif isinstance(value, list):
            yield from _items(part, value)


def _members(part: dict[str, Any], value: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    named = _named(part.get("properties"))
    # Which patterns fit a name is not asked: each may.
    all_over = [*_named(part.get("patternProperties")).values()]
    all_over += [part[word] for word in _EVERY_MEMBER if word in part]
    for name, member in value.items():
        if "propertyNames" in part:
            yield part["propertyNames"], name
        if name in named:
            yield named[name], member
        for inner in all_over:
            yield inner, member


def _items(part: dict[str, Any], value: list[Any]) -> Iterator[tuple[Any, Any]]:
    for word in ("prefixItems", "items"):
        yield from zip(_listed(part.get(word)), value, strict=False)
    for word in _EVERY_ITEM:
        if isinstance(part.get(word), dict):
            for item in value:
                yield part[word], item


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _named(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _asked_for(part: dict[str, Any]) -> int:
    """How many members it may miss: each is an error of its own."""
    lists = [part.get("required")]
    lists += [one for word in _ASKED_FOR for one in _named(part.get(word)).values()]
    return sum(len(_listed(one)) for one in lists)


def _says(schema: Any, words: Sequence[str]) -> bool:
    return any(word in part for part in parts_of(schema) for word in words)
