"""Which items of a collection are meant: by words in them, and by what their fields hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from interlock.protocol.aql import faults, formats
from interlock.protocol.aql.aggregate import has_at, value_at

Item = Mapping[str, Any]
Test = Callable[[Item], bool]

LONGEST_QUERY: Final = 1_000
MOST_TERMS: Final = 50
MOST_CONDITIONS: Final = 50
_DEPTH: Final = 4
_COMPARING: Final = frozenset({"eq", "gt", "gte", "lt", "lte"})
_COMPARED: Final = {0: "number", 1: "string"}
"""What can be more or less than another, by its place in `compared`."""
_LOOKED_AT: Final = 100
_TERM: Final = re.compile(r'"([^"]*)"|(\S+)')


def compared(value: Any) -> tuple[int, Any]:
    """What orders any two values of JSON: numbers, then texts, then the rest; nothing comes last,
    whatever its type."""
    if value is None:
        return (4, 0)
    if isinstance(value, bool):
        return (2, int(value))
    if isinstance(value, int | float):
        return (0, value)
    if isinstance(value, str):
        return (1, value)
    return (3, 0)


def terms_of(query: Any) -> list[str]:
    """The words of a query, and its quoted phrases. Raises AqlError."""
    if not isinstance(query, str):
        raise faults.wrong_type("query", "string", "another type")
    if len(query) > LONGEST_QUERY:
        raise faults.too_large("string_length", LONGEST_QUERY, len(query), "characters")
    terms: list[str] = []
    for phrase, word in _TERM.findall(query):
        term = " ".join((phrase or word.strip('"')).casefold().split())
        if term and term not in terms:
            terms.append(term)
    return terms[:MOST_TERMS]


def found(items: Sequence[Item], terms: Sequence[str], text: Sequence[str]) -> list[Item]:
    """Items with any of the terms; those with more of them first. `text`: the fields that are
    looked at; none: all."""
    scored: list[tuple[int, Item]] = []
    for item in items:
        looked: Iterable[Any] = (value_at(item, one) for one in text) if text else (item,)
        words = " \n ".join(_texts(looked))
        score = sum(1 for term in terms if term in words)
        if score:
            scored.append((score, item))
    scored.sort(key=lambda one: -one[0])
    return [item for _, item in scored]


def _texts(values: Iterable[Any], depth: int = _DEPTH) -> list[str]:
    texts: list[str] = []
    for value in values:
        if isinstance(value, str):
            texts.append(" ".join(value.casefold().split()))
        elif depth and isinstance(value, Mapping):
            texts += _texts(value.values(), depth - 1)
        elif depth and isinstance(value, list):
            texts += _texts(value, depth - 1)
    return texts


def filtered(
    items: Sequence[Item], conditions: Any, fields: Collection[str] | None
) -> Sequence[Item]:
    """Items that meet every condition. `fields`: those there are; None: what any item has.

    Raises AqlError for a field that there is not, and for a condition that means nothing.
    """
    if not isinstance(conditions, dict):
        raise faults.wrong_type("filter", "object", "another type")
    if len(conditions) > MOST_CONDITIONS:
        raise faults.too_large("array_elements", MOST_CONDITIONS, len(conditions), "elements")
    known = fields_of(items) if fields is None else fields
    if known or fields is not None:
        check_fields("filter", conditions, known)
    tests = [_test(field, wanted) for field, wanted in conditions.items()]
    for field, wanted in conditions.items():
        _must_be_comparable(items, field, wanted)
    return [item for item in items if all(test(item) for test in tests)]


def _must_be_comparable(items: Sequence[Item], field: str, wanted: Any) -> None:
    """Raises AqlError for a value that nothing in the field could be compared with: nothing found
    would look as if there were nothing."""
    pairs = wanted.items() if isinstance(wanted, dict) else (("eq", wanted),)
    asked = [(name, one) for name, one in pairs if name in _COMPARING]
    if not asked:
        return
    values = [one for item in items if (one := value_at(item, field)) is not None]
    kinds = {compared(one)[0] for one in values}
    for name, one in asked:
        where = f"filter.{faults.short(field)}" + (f".{name}" if isinstance(wanted, dict) else "")
        kind = compared(one)[0]
        if name != "eq" and kind not in _COMPARED:
            raise faults.wrong_type(where, "string or number", "another type")
        if kind in _COMPARED and kinds and kind not in kinds and kinds <= _COMPARED.keys():
            expected = " or ".join(_COMPARED[one] for one in sorted(kinds))
            raise faults.wrong_type(where, expected, _COMPARED[kind])
        if name != "eq" and isinstance(one, str) and kinds == {1} and not formats.is_time(one):
            times = values[:_LOOKED_AT]
            if all(formats.is_time(value) for value in times):
                raise faults.wrong_type(where, "an ISO 8601 date or time", "other text")


def fields_of(items: Iterable[Item]) -> set[str]:
    known: set[str] = set()
    for item in items:
        known.update(item)
    return known


def check_fields(param: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raises AqlError if one of the names is no field."""
    strange = [one for one in names if one not in known and one.partition(".")[0] not in known]
    if strange:
        near = get_close_matches(strange[0][:60], known, 1)
        raise faults.unknown_field(param, strange, sorted(known), near[0] if near else None)


def _same(value: Any, wanted: Any) -> bool:
    # JSON keeps true and 1 apart, Python does not.
    return isinstance(value, bool) is isinstance(wanted, bool) and bool(value == wanted)


def _ordered(check: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def test(value: Any, wanted: Any) -> bool:
        one, other = compared(value), compared(wanted)
        return one[0] == other[0] and one[0] < 2 and check(one[1], other[1])

    return test


def _contains(value: Any, wanted: Any) -> bool:
    if isinstance(value, str) and isinstance(wanted, str):
        return wanted.casefold() in value.casefold()
    return isinstance(value, list) and any(_same(one, wanted) for one in value)


def _starts(value: Any, wanted: Any) -> bool:
    return isinstance(value, str) and isinstance(wanted, str) and value.startswith(wanted)


def _in(value: Any, wanted: Any) -> bool:
    return any(_same(value, one) for one in wanted)


OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "eq": _same,
    "ne": lambda value, wanted: not _same(value, wanted),
    "gt": _ordered(lambda one, other: bool(one > other)),
    "gte": _ordered(lambda one, other: bool(one >= other)),
    "lt": _ordered(lambda one, other: bool(one < other)),
    "lte": _ordered(lambda one, other: bool(one <= other)),
    "in": _in,
    "nin": lambda value, wanted: not _in(value, wanted),
    "contains": _contains,
    "starts_with": _starts,
}
EXISTS: Final = "exists"
"""The one that asks for the field, and not for its value: null is one."""
_KNOWN: Final = (*OPERATORS, EXISTS)
_NEEDS: Final = {"in": (list, "array"), "nin": (list, "array"), EXISTS: (bool, "boolean")}


def _test(field: str, wanted: Any) -> Test:
    """A value stands for itself, a list for any of it, an object for operators."""
    if isinstance(wanted, list):
        return lambda item: _in(value_at(item, field), wanted)
    if not isinstance(wanted, dict):
        return lambda item: _same(value_at(item, field), wanted)
    where = f"filter.{faults.short(field)}"
    strange = [one for one in wanted if one not in _KNOWN]
    if strange or not wanted:
        raise faults.unknown_field(where, strange, _KNOWN)
    for name, other in wanted.items():
        kind, word = _NEEDS.get(name, (object, ""))
        if not isinstance(other, kind):
            raise faults.wrong_type(f"{where}.{name}", word, "another type")
    there = wanted.get(EXISTS)
    pairs = [(OPERATORS[name], other) for name, other in wanted.items() if name != EXISTS]

    def test(item: Item) -> bool:
        if there is not None and has_at(item, field) is not there:
            return False
        value = value_at(item, field)
        return all(operator(value, other) for operator, other in pairs)

    return test
