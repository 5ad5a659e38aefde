"""Queries of collections: search, filter, sort order, aggregates and pages.

Pages hold on to items, not to numbers: the next one begins behind the item with which the last one
ended, wherever that is by then. So what is added meanwhile makes nothing appear twice.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any, Final, Literal

import msgspec

from interlock.aql.language import errors
from interlock.aql.language.cursors import CursorCodec, CursorPosition
from interlock.aql.language.errors import AqlError

# -- Which part of a collection is wanted, in one of three styles: cursors, offsets, or pages.

HARD_LIMIT: Final = 1_000
"""No page is longer, whatever is configured."""

CURSOR: Final = ("first", "after", "last", "before")
OFFSET: Final = ("limit", "offset")
PAGES: Final = ("page", "page_size")
NAMES: Final = frozenset((*CURSOR, *OFFSET, *PAGES))

_STYLES: Final = {"cursors": CURSOR, "offsets": OFFSET, "pages": PAGES}
_HINT: Final = "Use first/after, last/before, limit/offset or page/page_size, one pair of them."
_WRONG: Final = (
    ("last", "first", "'first' and 'last' cannot be used together."),
    ("before", "first", "'first' and 'before' cannot be used together."),
    ("after", "last", "'last' and 'after' cannot be used together."),
)


class PageRequest(msgspec.Struct, frozen=True):
    """The part of a collection that is requested."""

    style: Literal["cursors", "offsets", "pages"]
    size: int
    """How many items it may have."""
    clamped: int = 0
    """What was asked for, if that was more than there may be."""
    backward: bool = False
    """The last ones, not the first."""
    cursor: Any = None
    offset: int = 0
    page: int = 1


def read_page_request(spec: Mapping[str, Any], size: int, most: int) -> PageRequest:
    """What the parameters ask for. `size`: when they do not say; `most`: when they say more.

    Raises AqlError for parameters that do not go together.
    """
    most = min(most, HARD_LIMIT)
    given = {name: spec[name] for name in NAMES if spec.get(name) is not None}
    styles = [style for style, names in _STYLES.items() if any(one in given for one in names)]
    if len(styles) > 1:
        first = next(one for one in _STYLES[styles[1]] if one in given)
        raise errors.not_together(first, f"Do not mix {' and '.join(styles)}.", _HINT)
    style = styles[0] if styles else "cursors"
    if style == "offsets":
        count, clamped = _size(given, "limit", size, most)
        return PageRequest("offsets", count, clamped, offset=_whole(given, "offset", 0, 0))
    if style == "pages":
        count, clamped = _size(given, "page_size", size, most)
        return PageRequest("pages", count, clamped, page=_whole(given, "page", 1, 1))
    for param, beside, message in _WRONG:
        if param in given and beside in given:
            raise errors.not_together(param, message, _HINT)
    if "after" in given and "first" not in given:
        raise _alone("after", "first")
    if "before" in given and "last" not in given:
        raise _alone("before", "last")
    backward = "last" in given
    count, clamped = _size(given, "last" if backward else "first", size, most)
    cursor = given.get("before" if backward else "after")
    return PageRequest("cursors", count, clamped, backward, cursor)


def _alone(param: str, needs: str) -> AqlError:
    return errors.not_together(param, f"'{param}' needs '{needs}' beside it.", _HINT)


def _size(given: Mapping[str, Any], name: str, size: int, most: int) -> tuple[int, int]:
    asked = _whole(given, name, min(size, most), 1)
    return (most, asked) if asked > most else (asked, 0)


def _whole(given: Mapping[str, Any], name: str, default: int, least: int) -> int:
    value = given.get(name, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise errors.wrong_type(name, "integer", "another type")
    if value < least:
        raise AqlError(
            "VALIDATION_OUT_OF_RANGE",
            f"Parameter '{name}' must be {least} or more.",
            {"param_name": name, "minimum": least},
        )
    return value


# -- Numbers about a collection instead of its items: how many, how much, by what.

COUNT: Final = "count"
GROUP_BY: Final = "group_by"
FUNCTIONS: Final = (COUNT, GROUP_BY, "sum", "avg", "min", "max")
MOST_LABELS: Final = 20
MOST_GROUPS: Final = 1_000

Item = Mapping[str, Any]
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def run(items: Sequence[Item], spec: Any, fields: Collection[str] | None = None) -> dict[str, Any]:
    """What `aggregate` asks for, by its labels. `fields`: those there are; None: any.

    Raises AqlError.
    """
    if not isinstance(spec, dict):
        raise errors.wrong_type("aggregate", "object", "another type")
    if not spec or len(spec) > MOST_LABELS:
        raise errors.wrong_type("aggregate", f"1 to {MOST_LABELS} labels", str(len(spec)))
    return {label: _one(items, label, wanted, fields) for label, wanted in spec.items()}


def support(fields: Collection[str]) -> dict[str, Any]:
    """What introspection says of it."""
    return {"functions": list(FUNCTIONS), "fields": sorted(fields)}


def _one(items: Sequence[Item], label: str, wanted: Any, fields: Collection[str] | None) -> Any:
    where = f"aggregate.{errors.short(label)}"
    if not isinstance(wanted, dict) or not wanted:
        raise errors.wrong_type(where, "an object such as {count: true}", "another type")
    strange = [name for name in wanted if name not in FUNCTIONS]
    if strange:
        raise errors.unknown_field(where, strange, FUNCTIONS)
    measures = [name for name in wanted if name != GROUP_BY]
    if len(measures) > 1:
        raise errors.wrong_type(where, "one function", f"{len(measures)} functions")
    function = measures[0] if measures else COUNT
    field = _field(where, function, wanted.get(function, True), fields)
    if GROUP_BY not in wanted:
        return _measure(function, field, items)
    by = _field(where, GROUP_BY, wanted[GROUP_BY], fields)
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(_group(value_at(item, by)), []).append(item)
    if len(groups) > MOST_GROUPS:
        raise AqlError(
            "VALIDATION_OUT_OF_RANGE",
            f"Parameter '{errors.escaped(where)}' makes {len(groups)} groups, {MOST_GROUPS} are "
            "the most. Filter first, or group by something coarser.",
            {"param_name": where, "maximum": MOST_GROUPS},
        )
    return {name: _measure(function, field, group) for name, group in groups.items()}


def _field(where: str, function: str, field: Any, fields: Collection[str] | None) -> str:
    """The field that a function is about. Empty: items are counted."""
    if function == COUNT and field is True:
        return ""
    if not isinstance(field, str) or not field:
        raise errors.wrong_type(f"{where}.{function}", "the name of a field", "another type")
    if fields is not None and field.partition(".")[0] not in fields:
        raise errors.unknown_field(f"{where}.{function}", [field], sorted(fields))
    return field


def _measure(function: str, field: str, items: Sequence[Item]) -> Any:
    if function == COUNT:
        if not field:
            return len(items)
        return sum(1 for item in items if value_at(item, field) is not None)
    values = [value_at(item, field) for item in items]
    numbers = [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    if function in ("sum", "avg"):
        try:
            total = sum(numbers)
            if function == "sum":
                return total
            return total / len(numbers) if numbers else None
        except OverflowError:
            # Beyond what a float can hold: no number at all is better than a wrong one.
            return None
    choose: Callable[..., Any] = min if function == "min" else max
    if numbers:
        return choose(numbers)
    texts = [one for one in values if isinstance(one, str)]
    return choose(texts) if texts else None


def value_at(item: Any, path: str) -> Any:
    """What stands at a path such as `a.b`. None: nothing."""
    if isinstance(item, Mapping) and path in item:
        return item[path]
    for step in path.split("."):
        if not isinstance(item, Mapping):
            return None
        item = item.get(step)
    return item


def has_at(item: Any, path: str) -> bool:
    """Whether anything stands at a path, be it null."""
    if isinstance(item, Mapping) and path in item:
        return True
    for step in path.split("."):
        if not isinstance(item, Mapping) or step not in item:
            return False
        item = item[step]
    return True


def _group(value: Any) -> str:
    return value if isinstance(value, str) else _encode(value).decode()


# -- What text has to look like that stands for something else: a time, or bytes.

_DATE: Final = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})"
    r"(?:[Tt](\d{2}):(\d{2}):(\d{2})(?:\.\d{1,9})?(?:[Zz]|[+-](\d{2}):(\d{2})))?",
    re.ASCII,
)
_EXPECTED: Final = {
    "date": "an ISO 8601 date such as 2026-02-04",
    "date-time": "an ISO 8601 time such as 2026-02-04T10:30:00Z, or a date such as 2026-02-04",
    "base64": "padded base64 (RFC 4648)",
}


def format_of(schema: Any) -> str:
    """The format of a parameter, if it is one that is looked at here. Empty: it is not."""
    if not isinstance(schema, dict):
        return ""
    if schema.get("format") in ("date", "date-time"):
        return str(schema["format"])
    if schema.get("contentEncoding") == "base64" or schema.get("format") in ("byte", "base64"):
        return "base64"
    return ""


def check(param: str, format: str, value: Any) -> None:
    """Raises AqlError for a text that is not what its format says. Others are not looked at."""
    if not isinstance(value, str):
        return
    if format == "base64":
        if not is_base64(value):
            raise _mismatch(param, format)
    elif format in _EXPECTED and not is_time(value, date_only=format == "date"):
        raise _mismatch(param, format)


def is_time(text: str, *, date_only: bool = False) -> bool:
    """Whether it is a date, or a date and a time with its offset, that there is."""
    found = _DATE.fullmatch(text)
    if found is None or (date_only and found[4] is not None):
        return False
    year, month, day = (int(found[one]) for one in (1, 2, 3))
    if not (year >= 1 and 1 <= month <= 12 and 1 <= day <= _days(year, month)):
        return False
    if found[4] is None:
        return True
    # A minute may have a leap second.
    if int(found[4]) > 23 or int(found[5]) > 59 or int(found[6]) > 60:
        return False
    return found[7] is None or (int(found[7]) <= 23 and int(found[8]) <= 59)


def _days(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def is_base64(text: str) -> bool:
    try:
        b64decode(text, validate=True)
    except ValueError:
        return False
    return len(text) % 4 == 0


def _mismatch(param: str, format: str) -> AqlError:
    return AqlError(
        "VALIDATION_PATTERN_MISMATCH",
        f"Parameter '{errors.shown(param)}' must be {_EXPECTED[format]}.",
        {"param_name": errors.short(param), "expected_format": format},
    )


# -- Which items of a collection are meant: by words in them, and by what their fields hold.

ItemPredicate = Callable[[Item], bool]

LONGEST_QUERY: Final = 1_000
MOST_TERMS: Final = 50
MOST_CONDITIONS: Final = 50
MOST_COMPARISONS: Final = 1_000_000
"""Comparisons that one filter may take: items × conditions and listed arrays and objects."""
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
        raise errors.wrong_type("query", "string", "another type")
    if len(query) > LONGEST_QUERY:
        raise errors.too_large("string_length", LONGEST_QUERY, len(query), "characters")
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
        raise errors.wrong_type("filter", "object", "another type")
    if len(conditions) > MOST_CONDITIONS:
        raise errors.too_large("array_elements", MOST_CONDITIONS, len(conditions), "elements")
    known = fields_of(items) if fields is None else fields
    if known or fields is not None:
        check_fields("filter", conditions, known)
    tests = [_test(field, wanted) for field, wanted in conditions.items()]
    comparisons = len(items) * sum(_cost(wanted) for wanted in conditions.values())
    if comparisons > MOST_COMPARISONS:
        raise errors.too_large("filter_comparisons", MOST_COMPARISONS, comparisons, "comparisons")
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
        where = f"filter.{errors.short(field)}" + (f".{name}" if isinstance(wanted, dict) else "")
        kind = compared(one)[0]
        if name != "eq" and kind not in _COMPARED:
            raise errors.wrong_type(where, "string or number", "another type")
        if kind in _COMPARED and kinds and kind not in kinds and kinds <= _COMPARED.keys():
            expected = " or ".join(_COMPARED[one] for one in sorted(kinds))
            raise errors.wrong_type(where, expected, _COMPARED[kind])
        if name != "eq" and isinstance(one, str) and kinds == {1} and not is_time(one):
            times = values[:_LOOKED_AT]
            if all(is_time(value) for value in times):
                raise errors.wrong_type(where, "an ISO 8601 date or time", "other text")


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
        raise errors.unknown_field(param, strange, sorted(known), near[0] if near else None)


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


class _Listed:
    """The values of an `in` or `nin` list, prepared so that a test does not walk the list."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._scalars = {_key(value) for value in values if not isinstance(value, list | dict)}
        self._others = [value for value in values if isinstance(value, list | dict)]

    def __contains__(self, value: Any) -> bool:
        if isinstance(value, list | Mapping):
            return any(_same(value, other) for other in self._others)
        return _key(value) in self._scalars


def _key(value: Any) -> object:
    """What is equal for equal scalars of JSON only. Numbers become text: Python salts the hash of
    text, so that no caller can send thousands of numbers with the same hash."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return (str, value)
    if isinstance(value, float) and not value.is_integer():
        return value.hex()
    return hex(int(value))


def _cost(wanted: Any) -> int:
    """Comparisons that a condition takes for one item."""
    operands = wanted.values() if isinstance(wanted, dict) else (wanted,)
    return sum(
        1 + sum(isinstance(value, list | dict) for value in operand)
        if isinstance(operand, list)
        else 1
        for operand in operands
    )


OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "eq": _same,
    "ne": lambda value, wanted: not _same(value, wanted),
    "gt": _ordered(lambda one, other: bool(one > other)),
    "gte": _ordered(lambda one, other: bool(one >= other)),
    "lt": _ordered(lambda one, other: bool(one < other)),
    "lte": _ordered(lambda one, other: bool(one <= other)),
    "in": lambda value, wanted: value in wanted,
    "nin": lambda value, wanted: value not in wanted,
    "contains": _contains,
    "starts_with": _starts,
}
EXISTS: Final = "exists"
"""The one that asks for the field, and not for its value: null is one."""
_KNOWN: Final = (*OPERATORS, EXISTS)
_LISTS: Final = ("in", "nin")
_NEEDS: Final = {"in": (list, "array"), "nin": (list, "array"), EXISTS: (bool, "boolean")}


def _test(field: str, wanted: Any) -> ItemPredicate:
    """A value stands for itself, a list for any of it, an object for operators."""
    if isinstance(wanted, list):
        listed = _Listed(wanted)
        return lambda item: value_at(item, field) in listed
    if not isinstance(wanted, dict):
        return lambda item: _same(value_at(item, field), wanted)
    where = f"filter.{errors.short(field)}"
    strange = [one for one in wanted if one not in _KNOWN]
    if strange or not wanted:
        raise errors.unknown_field(where, strange, _KNOWN)
    for name, other in wanted.items():
        kind, word = _NEEDS.get(name, (object, ""))
        if not isinstance(other, kind):
            raise errors.wrong_type(f"{where}.{name}", word, "another type")
    there = wanted.get(EXISTS)
    pairs = [
        (OPERATORS[name], _Listed(other) if name in _LISTS else other)
        for name, other in wanted.items()
        if name != EXISTS
    ]

    def test(item: Item) -> bool:
        if there is not None and has_at(item, field) is not there:
            return False
        value = value_at(item, field)
        return all(operator(value, other) for operator, other in pairs)

    return test


MOST_KEYS: Final = 3
PAGE: Final = 20
MOST_PAGE: Final = 100
SHAPING: Final = frozenset({"query", "filter", "sort", "aggregate", "include_items", "edges"}) | (
    NAMES
)
"""Every parameter that is about a collection."""
ITEMS: Final = "items"
"""Names the collection, where an answer holds several."""


class CollectionSchema(msgspec.Struct, frozen=True):
    """What is known of the items of a collection."""

    name: str
    """Cursors of one kind mean nothing to another."""
    fields: frozenset[str] | None = None
    """By which it can be filtered, sorted and counted. None: by what its items have."""
    id: str = "id"
    """The field that tells items apart."""
    text: tuple[str, ...] = ()
    """Where a query looks. None: everywhere."""
    sort: tuple[tuple[str, bool], ...] = ()
    """How it is sorted unless asked otherwise: fields, and whether the largest is first."""
    unsortable: frozenset[str] = frozenset()
    """Fields that cannot be filtered or sorted by, such as some computed ones."""


class CollectionPage(msgspec.Struct, frozen=True):
    """One part of a collection, and what is known of the rest."""

    items: list[Any]
    total: int
    info: dict[str, Any]
    """`pageInfo` or `pagination`, by that name."""
    aggregations: dict[str, Any] | None = None
    only_numbers: bool = False
    """The items were not asked for."""
    edges: list[str] | None = None
    """A cursor for every item, where edges were asked for."""
    clamped: int = 0
    """How many items were asked for, if those are more than a page may have."""

    def data(self, select: Callable[[Any], Any] | None = None) -> dict[str, Any]:
        """As it is answered. `select`: leaves fields out of an item."""
        data: dict[str, Any] = {}
        if self.aggregations is not None:
            data["aggregations"] = self.aggregations
        if self.only_numbers:
            return data
        items = self.items if select is None else [select(one) for one in self.items]
        if self.edges is None:
            data["items"] = items
        else:
            data["edges"] = [
                {"node": node, "cursor": cursor}
                for node, cursor in zip(items, self.edges, strict=True)
            ]
        return data | self.info


def shape(
    items: Sequence[Item],
    spec: Mapping[str, Any],
    kind: CollectionSchema,
    cursors: CursorCodec,
    *,
    page: int = PAGE,
    most: int = MOST_PAGE,
) -> CollectionPage:
    """What `spec` asks for of a collection. Members of it that are not about collections are not
    looked at. Raises AqlError."""
    wanted = read_page_request(spec, page, most)
    keys = _keys(spec.get("sort"), kind)
    conditions = spec.get("filter")
    fields = kind.fields
    if conditions is not None:
        items = filtered(items, conditions, fields)
        _refuse_unsortable("filter", conditions, kind)
    query = spec.get("query")
    ranked = False
    if query is not None and (terms := terms_of(query)):
        items = found(items, terms, kind.text)
        ranked = True
    if keys or not ranked:
        if fields is None and items and spec.get("sort") is not None:
            check_fields("sort", (field for field, _ in keys), fields_of(items))
        items = _sorted(items, keys or kind.sort, kind)
    order = blake2b(
        _encode([query, conditions, [list(one) for one in keys or kind.sort]]), digest_size=6
    ).digest()
    aggregations = None
    if spec.get("aggregate") is not None:
        aggregations = run(items, spec["aggregate"], _numbered(items, fields))
        if spec.get("include_items") is not True:
            return CollectionPage([], len(items), {}, aggregations, only_numbers=True)
    seal = _Sealing(kind, keys or kind.sort, order, cursors)
    made = _PAGES[wanted.style](items, wanted, seal)
    edges = None
    if spec.get("edges") is True and wanted.style == "cursors":
        start = made.start
        edges = [seal(one, start + index) for index, one in enumerate(made.items)]
    return CollectionPage(
        made.items, len(items), made.info, aggregations, False, edges, wanted.clamped
    )


def _numbered(items: Sequence[Item], fields: frozenset[str] | None) -> Collection[str] | None:
    """The fields that can be counted by. Nothing is known of an empty foreign collection."""
    return fields if fields is not None or not items else fields_of(items)


# -- order


def _keys(sort: Any, kind: CollectionSchema) -> tuple[tuple[str, bool], ...]:
    """What is sorted by: fields, and whether the largest is first."""
    if sort is None:
        return ()
    wanted = sort if isinstance(sort, list) else [sort]
    if not 0 < len(wanted) <= MOST_KEYS:
        raise errors.wrong_type("sort", f"1 to {MOST_KEYS} keys", str(len(wanted)))
    keys = []
    for one in wanted:
        if not isinstance(one, dict) or not isinstance(one.get("field"), str):
            raise errors.wrong_type("sort", "an object {field, order}", "another type")
        strange = [name for name in one if name not in ("field", "order")]
        if strange:
            raise errors.unknown_field("sort", strange, ("field", "order"))
        order = one.get("order", "asc")
        if order not in ("asc", "desc"):
            raise errors.AqlError(
                "VALIDATION_INVALID_ENUM",
                "Parameter 'sort.order' must be 'asc' or 'desc'.",
                {"param_name": "sort.order", "allowed": ["asc", "desc"]},
            )
        keys.append((one["field"], order == "desc"))
    if kind.fields is not None:
        check_fields("sort", (field for field, _ in keys), kind.fields)
    _refuse_unsortable("sort", [field for field, _ in keys], kind)
    return tuple(keys)


def _refuse_unsortable(param: str, names: Any, kind: CollectionSchema) -> None:
    strange = [one for one in names if one in kind.unsortable]
    if strange:
        valid = sorted((kind.fields or frozenset()) - kind.unsortable)
        raise errors.unknown_field(param, strange, valid)


def _sorted(
    items: Sequence[Item], keys: Sequence[tuple[str, bool]], kind: CollectionSchema
) -> Sequence[Item]:
    """In order; what is the same in every key stands as its ids do. Without keys: as it came."""
    if not keys:
        return items
    ordered = sorted(items, key=lambda item: compared(value_at(item, kind.id)))
    for field, descending in reversed(keys):
        ordered.sort(key=_place(field), reverse=descending)
        # Those that have nothing to be sorted by are last, in both directions.
        ordered.sort(key=_lacks(field))
    return ordered


def _place(field: str) -> Callable[[Item], tuple[int, Any]]:
    return lambda item: compared(value_at(item, field))


def _lacks(field: str) -> Callable[[Item], bool]:
    return lambda item: value_at(item, field) is None


# -- pages


class _Sealing:
    """Says where items stand, and finds them again."""

    def __init__(
        self,
        kind: CollectionSchema,
        keys: Sequence[tuple[str, bool]],
        order: bytes,
        cursors: CursorCodec,
    ) -> None:
        self._kind = kind
        self._keys = keys
        self._order = order
        self._cursors = cursors

    def __call__(self, item: Item, ordinal: int) -> str:
        values = [value_at(item, field) for field, _ in self._keys]
        id = value_at(item, self._kind.id)
        return self._cursors.seal(CursorPosition(self._kind.name, ordinal, id, values, self._order))

    def index(self, items: Sequence[Item], cursor: Any, param: str) -> tuple[int, bool]:
        """Where the item of a cursor is, or was; and whether it is still there."""
        position = self._cursors.open(cursor, self._kind.name, self._order, param)
        field, id = self._kind.id, position.id
        if id is not None:
            for index, item in enumerate(items):
                if _clipped(value_at(item, field)) == id:
                    return index, True
            if self._keys:
                return self._where_it_was(items, position), False
            return min(position.ordinal, len(items)), False
        return min(position.ordinal, len(items)), position.ordinal < len(items)

    def _where_it_was(self, items: Sequence[Item], position: CursorPosition) -> int:
        for index, item in enumerate(items):
            if self._is_behind(item, position):
                return index
        return len(items)

    def _is_behind(self, item: Item, position: CursorPosition) -> bool:
        for (field, descending), then in zip(self._keys, position.values, strict=False):
            value = value_at(item, field)
            if (value is None) is not (then is None):
                return value is None
            now, before = compared(_clipped(value)), compared(then)
            if now != before:
                return now < before if descending else now > before
        return compared(_clipped(value_at(item, self._kind.id))) > compared(position.id)


def _clipped(value: Any) -> Any:
    return value[:64] if isinstance(value, str) else value


class _Part(msgspec.Struct, frozen=True):
    """Items of one page, where they begin, and what is said beside them."""

    items: list[Item]
    start: int
    info: dict[str, Any]


def _by_cursor(items: Sequence[Item], wanted: PageRequest, seal: _Sealing) -> _Part:
    total = len(items)
    if wanted.backward:
        end = total
        if wanted.cursor is not None:
            end = seal.index(items, wanted.cursor, "before")[0]
        start = max(0, end - wanted.size)
    else:
        start = 0
        if wanted.cursor is not None:
            index, there = seal.index(items, wanted.cursor, "after")
            start = index + there
        end = min(total, start + wanted.size)
    part = list(items[start:end])
    info: dict[str, Any] = {"hasNextPage": end < total, "hasPreviousPage": start > 0}
    if part:
        info["startCursor"] = seal(part[0], start)
        info["endCursor"] = seal(part[-1], end - 1)
    info["totalCount"] = total
    return _Part(part, start, {"pageInfo": info})


def _by_offset(items: Sequence[Item], wanted: PageRequest, _: _Sealing) -> _Part:
    start = wanted.offset
    part = list(items[start : start + wanted.size])
    info = {
        "limit": wanted.size,
        "offset": start,
        "returned": len(part),
        "total_items": len(items),
        "has_more": start + len(part) < len(items),
    }
    return _Part(part, start, {"pagination": info})


def _by_page(items: Sequence[Item], wanted: PageRequest, _: _Sealing) -> _Part:
    start = (wanted.page - 1) * wanted.size
    part = list(items[start : start + wanted.size])
    info = {
        "page": wanted.page,
        "page_size": wanted.size,
        "total_items": len(items),
        "total_pages": -(-len(items) // wanted.size),
        "has_more": start + len(part) < len(items),
    }
    return _Part(part, start, {"pagination": info})


_PAGES: Final[dict[str, Callable[[Sequence[Item], PageRequest, _Sealing], _Part]]] = {
    "cursors": _by_cursor,
    "offsets": _by_offset,
    "pages": _by_page,
}
