"""Queries of collections: search, filter, sort order, aggregates and pages.

Cursors refer to items and not to positions: the next page begins behind the last item of the
previous page, wherever that item is now. Items that are added meanwhile cause no duplicates.
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

# Page requests in one of three styles: cursors, offsets, or pages.

HARD_LIMIT: Final = 1_000
"""Maximum page size, whatever the config says."""

CURSOR_STYLE: Final = ("first", "after", "last", "before")
OFFSET_STYLE: Final = ("limit", "offset")
PAGE_STYLE: Final = ("page", "page_size")
PAGING_NAMES: Final = frozenset((*CURSOR_STYLE, *OFFSET_STYLE, *PAGE_STYLE))

_STYLES: Final = {"cursors": CURSOR_STYLE, "offsets": OFFSET_STYLE, "pages": PAGE_STYLE}
_HINT: Final = "Use one pair of: first/after, last/before, limit/offset or page/page_size."
_CONFLICTS: Final = (
    ("last", "first", "'first' and 'last' cannot be used together."),
    ("before", "first", "'first' and 'before' cannot be used together."),
    ("after", "last", "'last' and 'after' cannot be used together."),
)


class PageRequest(msgspec.Struct, frozen=True):
    """The part of a collection that is requested."""

    style: Literal["cursors", "offsets", "pages"]
    size: int
    """Maximum number of items."""
    clamped: int = 0
    """The requested number of items if it exceeds the maximum, else 0."""
    backward: bool = False
    """True for the last items instead of the first."""
    cursor: Any = None
    offset: int = 0
    page: int = 1


def read_page_request(params: Mapping[str, Any], size: int, maximum: int) -> PageRequest:
    """Return the page that the parameters request.

    Args:
        size: the default page size.
        maximum: the maximum page size.

    Raises:
        AqlError: The parameters are invalid, or cannot be combined.
    """
    maximum = min(maximum, HARD_LIMIT)
    present = {name: params[name] for name in PAGING_NAMES if params.get(name) is not None}
    styles = [style for style, names in _STYLES.items() if any(name in present for name in names)]
    if len(styles) > 1:
        first = next(name for name in _STYLES[styles[1]] if name in present)
        raise errors.conflicting_parameters(first, f"Do not mix {' and '.join(styles)}.", _HINT)
    style = styles[0] if styles else "cursors"
    if style == "offsets":
        count, clamped = _read_size(present, "limit", size, maximum)
        return PageRequest("offsets", count, clamped, offset=_read_integer(present, "offset", 0, 0))
    if style == "pages":
        count, clamped = _read_size(present, "page_size", size, maximum)
        return PageRequest("pages", count, clamped, page=_read_integer(present, "page", 1, 1))
    for param, other_param, message in _CONFLICTS:
        if param in present and other_param in present:
            raise errors.conflicting_parameters(param, message, _HINT)
    if "after" in present and "first" not in present:
        raise _incomplete_error("after", "first")
    if "before" in present and "last" not in present:
        raise _incomplete_error("before", "last")
    backward = "last" in present
    count, clamped = _read_size(present, "last" if backward else "first", size, maximum)
    cursor = present.get("before" if backward else "after")
    return PageRequest("cursors", count, clamped, backward, cursor)


def _incomplete_error(param: str, required: str) -> AqlError:
    return errors.conflicting_parameters(param, f"'{param}' requires '{required}'.", _HINT)


def _read_size(present: Mapping[str, Any], name: str, size: int, maximum: int) -> tuple[int, int]:
    requested = _read_integer(present, name, min(size, maximum), 1)
    return (maximum, requested) if requested > maximum else (requested, 0)


def _read_integer(present: Mapping[str, Any], name: str, default: int, minimum: int) -> int:
    value = present.get(name, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise errors.wrong_type(name, "integer", "another type")
    if value < minimum:
        raise AqlError(
            "VALIDATION_OUT_OF_RANGE",
            f"Parameter '{name}' must be {minimum} or more.",
            {"param_name": name, "minimum": minimum},
        )
    return value


# Aggregates of a collection: counts, sums, groups.

COUNT: Final = "count"
GROUP_BY: Final = "group_by"
FUNCTIONS: Final = (COUNT, GROUP_BY, "sum", "avg", "min", "max")
MAX_LABELS: Final = 20
MAX_GROUPS: Final = 1_000

Item = Mapping[str, Any]
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def aggregate(
    items: Sequence[Item], spec: Any, fields: Collection[str] | None = None
) -> dict[str, Any]:
    """Compute the aggregates, by label. Raises AqlError.

    Args:
        fields: the known fields. None: any field is allowed.
    """
    if not isinstance(spec, dict):
        raise errors.wrong_type("aggregate", "object", "another type")
    if not spec or len(spec) > MAX_LABELS:
        raise errors.wrong_type("aggregate", f"1 to {MAX_LABELS} labels", str(len(spec)))
    return {
        label: _aggregate_label(items, label, request, fields) for label, request in spec.items()
    }


def describe_aggregates(fields: Collection[str]) -> dict[str, Any]:
    """Return what introspection shows about aggregates."""
    return {"functions": list(FUNCTIONS), "fields": sorted(fields)}


def _aggregate_label(
    items: Sequence[Item], label: str, request: Any, fields: Collection[str] | None
) -> Any:
    param = f"aggregate.{errors.shorten(label)}"
    if not isinstance(request, dict) or not request:
        raise errors.wrong_type(param, "an object such as {count: true}", "another type")
    unknown = [name for name in request if name not in FUNCTIONS]
    if unknown:
        raise errors.unknown_field(param, unknown, FUNCTIONS)
    measures = [name for name in request if name != GROUP_BY]
    if len(measures) > 1:
        raise errors.wrong_type(param, "one function", f"{len(measures)} functions")
    function = measures[0] if measures else COUNT
    field = _read_field(param, function, request.get(function, True), fields)
    if GROUP_BY not in request:
        return _apply_function(function, field, items)
    group_field = _read_field(param, GROUP_BY, request[GROUP_BY], fields)
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(_group_name(value_at(item, group_field)), []).append(item)
    if len(groups) > MAX_GROUPS:
        raise AqlError(
            "VALIDATION_OUT_OF_RANGE",
            f"Parameter '{errors.escape(param)}' results in {len(groups)} groups, the limit is "
            f"{MAX_GROUPS}. Filter first, or group by another field.",
            {"param_name": param, "maximum": MAX_GROUPS},
        )
    return {name: _apply_function(function, field, group) for name, group in groups.items()}


def _read_field(param: str, function: str, field: Any, fields: Collection[str] | None) -> str:
    """Return the field of a function. Empty: count items."""
    if function == COUNT and field is True:
        return ""
    if not isinstance(field, str) or not field:
        raise errors.wrong_type(f"{param}.{function}", "the name of a field", "another type")
    if fields is not None and field.partition(".")[0] not in fields:
        raise errors.unknown_field(f"{param}.{function}", [field], sorted(fields))
    return field


def _apply_function(function: str, field: str, items: Sequence[Item]) -> Any:
    if function == COUNT:
        if not field:
            return len(items)
        return sum(1 for item in items if value_at(item, field) is not None)
    values = [value_at(item, field) for item in items]
    numbers = [
        value for value in values if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if function in ("sum", "avg"):
        try:
            total = sum(numbers)
            if function == "sum":
                return total
            return total / len(numbers) if numbers else None
        except OverflowError:
            # The sum exceeds the range of floats. Null is better than a wrong number.
            return None
    select: Callable[..., Any] = min if function == "min" else max
    if numbers:
        return select(numbers)
    texts = [value for value in values if isinstance(value, str)]
    return select(texts) if texts else None


def value_at(item: Any, path: str) -> Any:
    """Return the value at a path such as `a.b`. None: there is none."""
    if isinstance(item, Mapping) and path in item:
        return item[path]
    for step in path.split("."):
        if not isinstance(item, Mapping):
            return None
        item = item.get(step)
    return item


def has_at(item: Any, path: str) -> bool:
    """Return whether there is a value at a path, null included."""
    if isinstance(item, Mapping) and path in item:
        return True
    for step in path.split("."):
        if not isinstance(item, Mapping) or step not in item:
            return False
        item = item[step]
    return True


def _group_name(value: Any) -> str:
    return value if isinstance(value, str) else _encode(value).decode()


# Text formats: times and base64.

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
    """Return the format of a parameter if this module checks it, else an empty string."""
    if not isinstance(schema, dict):
        return ""
    if schema.get("format") in ("date", "date-time"):
        return str(schema["format"])
    if schema.get("contentEncoding") == "base64" or schema.get("format") in ("byte", "base64"):
        return "base64"
    return ""


def check(param: str, format: str, value: Any) -> None:
    """Check text against its format. Other values are ignored. Raises AqlError."""
    if not isinstance(value, str):
        return
    if format == "base64":
        if not is_base64(value):
            raise _format_error(param, format)
    elif format in _EXPECTED and not is_time(value, date_only=format == "date"):
        raise _format_error(param, format)


def is_time(text: str, *, date_only: bool = False) -> bool:
    """Return whether text is a valid date, or a valid date and time with an offset."""
    match = _DATE.fullmatch(text)
    if match is None or (date_only and match[4] is not None):
        return False
    year, month, day = (int(match[group_index]) for group_index in (1, 2, 3))
    if not (year >= 1 and 1 <= month <= 12 and 1 <= day <= _days_of_month(year, month)):
        return False
    if match[4] is None:
        return True
    # A minute may have a leap second.
    if int(match[4]) > 23 or int(match[5]) > 59 or int(match[6]) > 60:
        return False
    return match[7] is None or (int(match[7]) <= 23 and int(match[8]) <= 59)


def _days_of_month(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def is_base64(text: str) -> bool:
    try:
        b64decode(text, validate=True)
    except ValueError:
        return False
    return len(text) % 4 == 0


def _format_error(param: str, format: str) -> AqlError:
    return AqlError(
        "VALIDATION_PATTERN_MISMATCH",
        f"Parameter '{errors.quotable(param)}' must be {_EXPECTED[format]}.",
        {"param_name": errors.shorten(param), "expected_format": format},
    )


# The selection of items: by search terms, and by conditions on fields.

ItemPredicate = Callable[[Item], bool]

MAX_QUERY_CHARACTERS: Final = 1_000
MAX_TERMS: Final = 50
MAX_CONDITIONS: Final = 50
MAX_COMPARISONS: Final = 1_000_000
"""Maximum number of comparisons of a filter: items × conditions and listed arrays and objects."""
_MAX_SEARCH_DEPTH: Final = 4
_COMPARISON_OPERATORS: Final = frozenset({"eq", "gt", "gte", "lt", "lte"})
_ORDERED_TYPES: Final = {0: "number", 1: "string"}
"""Types with an order, by their rank in `compared`."""
_MAX_EXAMINED_VALUES: Final = 100
_TERM: Final = re.compile(r'"([^"]*)"|(\S+)')


def sort_key(value: Any) -> tuple[int, Any]:
    """Return a sort key for any JSON value: numbers, then text, then other values, then null."""
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
    """Return the words and quoted phrases of a query. Raises AqlError."""
    if not isinstance(query, str):
        raise errors.wrong_type("query", "string", "another type")
    if len(query) > MAX_QUERY_CHARACTERS:
        raise errors.too_large("string_length", MAX_QUERY_CHARACTERS, len(query), "characters")
    terms: list[str] = []
    for phrase, word in _TERM.findall(query):
        term = " ".join((phrase or word.strip('"')).casefold().split())
        if term and term not in terms:
            terms.append(term)
    return terms[:MAX_TERMS]


def search_items(items: Sequence[Item], terms: Sequence[str], text: Sequence[str]) -> list[Item]:
    """Return the items with any of the terms, those with most terms first.

    Args:
        text: the fields to search. Empty: all.
    """
    scored: list[tuple[int, Item]] = []
    for item in items:
        searched: Iterable[Any] = (value_at(item, field) for field in text) if text else (item,)
        text_of_item = " \n ".join(_collect_texts(searched))
        score = sum(1 for term in terms if term in text_of_item)
        if score:
            scored.append((score, item))
    scored.sort(key=lambda field: -field[0])
    return [item for _, item in scored]


def _collect_texts(values: Iterable[Any], depth: int = _MAX_SEARCH_DEPTH) -> list[str]:
    texts: list[str] = []
    for value in values:
        if isinstance(value, str):
            texts.append(" ".join(value.casefold().split()))
        elif depth and isinstance(value, Mapping):
            texts += _collect_texts(value.values(), depth - 1)
        elif depth and isinstance(value, list):
            texts += _collect_texts(value, depth - 1)
    return texts


def filter_items(
    items: Sequence[Item], conditions: Any, fields: Collection[str] | None
) -> Sequence[Item]:
    """Return the items that match every condition.

    Args:
        fields: the known fields. None: the fields of the items.

    Raises:
        AqlError: A field is unknown, or a condition is invalid.
    """
    if not isinstance(conditions, dict):
        raise errors.wrong_type("filter", "object", "another type")
    if len(conditions) > MAX_CONDITIONS:
        raise errors.too_large("array_elements", MAX_CONDITIONS, len(conditions), "elements")
    known_fields = fields_of(items) if fields is None else fields
    if known_fields or fields is not None:
        check_fields("filter", conditions, known_fields)
    predicates = [_make_predicate(field, condition) for field, condition in conditions.items()]
    comparisons = len(items) * sum(
        _count_comparisons(condition) for condition in conditions.values()
    )
    if comparisons > MAX_COMPARISONS:
        raise errors.too_large("filter_comparisons", MAX_COMPARISONS, comparisons, "comparisons")
    for field, condition in conditions.items():
        _check_comparable(items, field, condition)
    return [item for item in items if all(test(item) for test in predicates)]


def _check_comparable(items: Sequence[Item], field: str, condition: Any) -> None:
    """Check that the values of a field are comparable with the condition. Raises AqlError.

    Otherwise an empty result would suggest that there are no such items.
    """
    pairs = condition.items() if isinstance(condition, dict) else (("eq", condition),)
    comparisons = [(name, value) for name, value in pairs if name in _COMPARISON_OPERATORS]
    if not comparisons:
        return
    values = [value for item in items if (value := value_at(item, field)) is not None]
    kinds = {sort_key(value)[0] for value in values}
    for name, value in comparisons:
        param = f"filter.{errors.shorten(field)}" + (
            f".{name}" if isinstance(condition, dict) else ""
        )
        schema = sort_key(value)[0]
        if name != "eq" and schema not in _ORDERED_TYPES:
            raise errors.wrong_type(param, "string or number", "another type")
        if (
            schema in _ORDERED_TYPES
            and kinds
            and schema not in kinds
            and kinds <= _ORDERED_TYPES.keys()
        ):
            expected = " or ".join(_ORDERED_TYPES[value] for value in sorted(kinds))
            raise errors.wrong_type(param, expected, _ORDERED_TYPES[schema])
        if name != "eq" and isinstance(value, str) and kinds == {1} and not is_time(value):
            times = values[:_MAX_EXAMINED_VALUES]
            if all(is_time(value) for value in times):
                raise errors.wrong_type(param, "an ISO 8601 date or time", "other text")


def fields_of(items: Iterable[Item]) -> set[str]:
    names: set[str] = set()
    for item in items:
        names.update(item)
    return names


def check_fields(param: str, requested_names: Iterable[str], names: Collection[str]) -> None:
    """Check that all names are fields. Raises AqlError."""
    unknown = [
        name
        for name in requested_names
        if name not in names and name.partition(".")[0] not in names
    ]
    if unknown:
        matches = get_close_matches(unknown[0][:60], names, 1)
        raise errors.unknown_field(param, unknown, sorted(names), matches[0] if matches else None)


def _is_equal(value: Any, expected: Any) -> bool:
    # JSON distinguishes true and 1, Python does not.
    return isinstance(value, bool) is isinstance(expected, bool) and bool(value == expected)


def _make_comparison(check: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def test(value: Any, expected: Any) -> bool:
        left_key, right = sort_key(value), sort_key(expected)
        return left_key[0] == right[0] and left_key[0] < 2 and check(left_key[1], right[1])

    return test


def _contains(value: Any, expected: Any) -> bool:
    if isinstance(value, str) and isinstance(expected, str):
        return expected.casefold() in value.casefold()
    return isinstance(value, list) and any(_is_equal(item, expected) for item in value)


def _starts_with(value: Any, expected: Any) -> bool:
    return isinstance(value, str) and isinstance(expected, str) and value.startswith(expected)


class _ValueSet:
    """The values of an `in` or `nin` list, prepared for fast lookups."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._scalars = {
            _scalar_key(value) for value in values if not isinstance(value, list | dict)
        }
        self._composites = [value for value in values if isinstance(value, list | dict)]

    def __contains__(self, value: Any) -> bool:
        if isinstance(value, list | Mapping):
            return any(_is_equal(value, right) for right in self._composites)
        return _scalar_key(value) in self._scalars


def _scalar_key(value: Any) -> object:
    """Return a hashable key that is equal for equal JSON scalars only.

    Numbers become text, because Python salts the hash of text. So no caller can send thousands of
    numbers with equal hashes.
    """
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return (str, value)
    if isinstance(value, float) and not value.is_integer():
        return value.hex()
    return hex(int(value))


def _count_comparisons(condition: Any) -> int:
    """Return the number of comparisons that a condition needs per item."""
    operands = condition.values() if isinstance(condition, dict) else (condition,)
    return sum(
        1 + sum(isinstance(value, list | dict) for value in operand)
        if isinstance(operand, list)
        else 1
        for operand in operands
    )


OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "eq": _is_equal,
    "ne": lambda value, operand: not _is_equal(value, operand),
    "gt": _make_comparison(lambda left, right: bool(left > right)),
    "gte": _make_comparison(lambda left, right: bool(left >= right)),
    "lt": _make_comparison(lambda left, right: bool(left < right)),
    "lte": _make_comparison(lambda left, right: bool(left <= right)),
    "in": lambda value, operand: value in operand,
    "nin": lambda value, operand: value not in operand,
    "contains": _contains,
    "starts_with": _starts_with,
}
EXISTS: Final = "exists"
"""The operator that tests for the field and not for its value: null counts as present."""
_OPERATOR_NAMES: Final = (*OPERATORS, EXISTS)
_LIST_OPERATORS: Final = ("in", "nin")
_OPERAND_TYPES: Final = {"in": (list, "array"), "nin": (list, "array"), EXISTS: (bool, "boolean")}


def _make_predicate(field: str, condition: Any) -> ItemPredicate:
    """Return the predicate of a condition.

    A value means equality, a list means any of its values, an object contains operators.
    """
    if isinstance(condition, list):
        values = _ValueSet(condition)
        return lambda item: value_at(item, field) in values
    if not isinstance(condition, dict):
        return lambda item: _is_equal(value_at(item, field), condition)
    param = f"filter.{errors.shorten(field)}"
    unknown = [name for name in condition if name not in _OPERATOR_NAMES]
    if unknown or not condition:
        raise errors.unknown_field(param, unknown, _OPERATOR_NAMES)
    for name, operand in condition.items():
        schema, type_name = _OPERAND_TYPES.get(name, (object, ""))
        if not isinstance(operand, schema):
            raise errors.wrong_type(f"{param}.{name}", type_name, "another type")
    must_exist = condition.get(EXISTS)
    pairs = [
        (OPERATORS[name], _ValueSet(operand) if name in _LIST_OPERATORS else operand)
        for name, operand in condition.items()
        if name != EXISTS
    ]

    def test(item: Item) -> bool:
        if must_exist is not None and has_at(item, field) is not must_exist:
            return False
        value = value_at(item, field)
        return all(operator(value, operand) for operator, operand in pairs)

    return test


MAX_SORT_KEYS: Final = 3
DEFAULT_PAGE: Final = 20
MAX_PAGE: Final = 100
SHAPING_NAMES: Final = frozenset(
    {"query", "filter", "sort", "aggregate", "include_items", "edges"}
) | (PAGING_NAMES)
"""All parameters about collections."""
ITEMS: Final = "items"
"""The option that names the collection if a result contains several."""


class CollectionSchema(msgspec.Struct, frozen=True):
    """The schema of a collection's items."""

    name: str
    """Cursors are valid for the collection of this name only."""
    fields: frozenset[str] | None = None
    """The fields for filter, sort and aggregates. None: the fields of the items."""
    id: str = "id"
    """The field that identifies items."""
    text: tuple[str, ...] = ()
    """The fields that a query searches. Empty: all."""
    sort: tuple[tuple[str, bool], ...] = ()
    """The default order: fields, and True for descending."""
    unsortable: frozenset[str] = frozenset()
    """Fields that are not allowed in filter and sort, such as some computed ones."""


class CollectionPage(msgspec.Struct, frozen=True):
    """A page of a collection, and its page info."""

    items: list[Any]
    total: int
    info: dict[str, Any]
    """`pageInfo` or `pagination`, by this name."""
    aggregations: dict[str, Any] | None = None
    is_aggregate_only: bool = False
    """True if only aggregates were requested."""
    edges: list[str] | None = None
    """A cursor for every item, if edges were requested."""
    clamped: int = 0
    """The requested number of items if it exceeds the maximum, else 0."""

    def data(self, select: Callable[[Any], Any] | None = None) -> dict[str, Any]:
        """Return the page as response data.

        Args:
            select: selects the fields of an item.
        """
        data: dict[str, Any] = {}
        if self.aggregations is not None:
            data["aggregations"] = self.aggregations
        if self.is_aggregate_only:
            return data
        items = self.items if select is None else [select(item) for item in self.items]
        if self.edges is None:
            data["items"] = items
        else:
            data["edges"] = [
                {"node": node, "cursor": cursor}
                for node, cursor in zip(items, self.edges, strict=True)
            ]
        return data | self.info


def query_collection(
    items: Sequence[Item],
    params: Mapping[str, Any],
    schema: CollectionSchema,
    cursors: CursorCodec,
    *,
    page: int = DEFAULT_PAGE,
    maximum: int = MAX_PAGE,
) -> CollectionPage:
    """Return the requested page of a collection. Raises AqlError.

    Members of `spec` that are not about collections are ignored.
    """
    page_request = read_page_request(params, page, maximum)
    keys = _read_sort_keys(params.get("sort"), schema)
    conditions = params.get("filter")
    fields = schema.fields
    if conditions is not None:
        items = filter_items(items, conditions, fields)
        _check_sortable("filter", conditions, schema)
    query = params.get("query")
    is_ranked = False
    if query is not None and (terms := terms_of(query)):
        items = search_items(items, terms, schema.text)
        is_ranked = True
    if keys or not is_ranked:
        if fields is None and items and params.get("sort") is not None:
            check_fields("sort", (field for field, _ in keys), fields_of(items))
        items = _sort_items(items, keys or schema.sort, schema)
    order = blake2b(
        _encode([query, conditions, [list(item) for item in keys or schema.sort]]), digest_size=6
    ).digest()
    aggregations = None
    if params.get("aggregate") is not None:
        aggregations = aggregate(items, params["aggregate"], _aggregate_fields(items, fields))
        if params.get("include_items") is not True:
            return CollectionPage([], len(items), {}, aggregations, is_aggregate_only=True)
    cursor_maker = _CursorMaker(schema, keys or schema.sort, order, cursors)
    part = _PAGE_FUNCTIONS[page_request.style](items, page_request, cursor_maker)
    edges = None
    if params.get("edges") is True and page_request.style == "cursors":
        start = part.start
        edges = [cursor_maker(item, start + index) for index, item in enumerate(part.items)]
    return CollectionPage(
        part.items, len(items), part.info, aggregations, False, edges, page_request.clamped
    )


def _aggregate_fields(
    items: Sequence[Item], fields: frozenset[str] | None
) -> Collection[str] | None:
    """Return the fields for aggregates.

    The fields of an empty collection of a server are unknown.
    """
    return fields if fields is not None or not items else fields_of(items)


# -- order


def _read_sort_keys(sort: Any, schema: CollectionSchema) -> tuple[tuple[str, bool], ...]:
    """Return the sort keys: fields, and True for descending."""
    if sort is None:
        return ()
    sort_keys = sort if isinstance(sort, list) else [sort]
    if not 0 < len(sort_keys) <= MAX_SORT_KEYS:
        raise errors.wrong_type("sort", f"1 to {MAX_SORT_KEYS} keys", str(len(sort_keys)))
    keys = []
    for sort_key_spec in sort_keys:
        if not isinstance(sort_key_spec, dict) or not isinstance(sort_key_spec.get("field"), str):
            raise errors.wrong_type("sort", "an object {field, order}", "another type")
        unknown = [name for name in sort_key_spec if name not in ("field", "order")]
        if unknown:
            raise errors.unknown_field("sort", unknown, ("field", "order"))
        order = sort_key_spec.get("order", "asc")
        if order not in ("asc", "desc"):
            raise errors.AqlError(
                "VALIDATION_INVALID_ENUM",
                "Parameter 'sort.order' must be 'asc' or 'desc'.",
                {"param_name": "sort.order", "allowed": ["asc", "desc"]},
            )
        keys.append((sort_key_spec["field"], order == "desc"))
    if schema.fields is not None:
        check_fields("sort", (field for field, _ in keys), schema.fields)
    _check_sortable("sort", [field for field, _ in keys], schema)
    return tuple(keys)


def _check_sortable(param: str, names: Any, schema: CollectionSchema) -> None:
    unknown = [name for name in names if name in schema.unsortable]
    if unknown:
        valid = sorted((schema.fields or frozenset()) - schema.unsortable)
        raise errors.unknown_field(param, unknown, valid)


def _sort_items(
    items: Sequence[Item], keys: Sequence[tuple[str, bool]], schema: CollectionSchema
) -> Sequence[Item]:
    """Sort items. Equal items are ordered by id. Without keys, the order does not change."""
    if not keys:
        return items
    ordered = sorted(items, key=lambda item: sort_key(value_at(item, schema.id)))
    for field, descending in reversed(keys):
        ordered.sort(key=_sort_key_of(field), reverse=descending)
        # Items without a value are last, in both directions.
        ordered.sort(key=_is_missing(field))
    return ordered


def _sort_key_of(field: str) -> Callable[[Item], tuple[int, Any]]:
    return lambda item: sort_key(value_at(item, field))


def _is_missing(field: str) -> Callable[[Item], bool]:
    return lambda item: value_at(item, field) is None


# -- pages


class _CursorMaker:
    """Creates the cursors of a collection, and finds their items."""

    def __init__(
        self,
        schema: CollectionSchema,
        keys: Sequence[tuple[str, bool]],
        order: bytes,
        cursors: CursorCodec,
    ) -> None:
        self._schema = schema
        self._keys = keys
        self._order = order
        self._cursors = cursors

    def __call__(self, item: Item, ordinal: int) -> str:
        values = [value_at(item, field) for field, _ in self._keys]
        id = value_at(item, self._schema.id)
        return self._cursors.seal(
            CursorPosition(self._schema.name, ordinal, id, values, self._order)
        )

    def index(self, items: Sequence[Item], cursor: Any, param: str) -> tuple[int, bool]:
        """Return the current or former position of a cursor's item, and True if the item still
        exists.
        """
        position = self._cursors.open(cursor, self._schema.name, self._order, param)
        field, id = self._schema.id, position.id
        if id is not None:
            for index, item in enumerate(items):
                if _clip(value_at(item, field)) == id:
                    return index, True
            if self._keys:
                return self._former_index(items, position), False
            return min(position.ordinal, len(items)), False
        return min(position.ordinal, len(items)), position.ordinal < len(items)

    def _former_index(self, items: Sequence[Item], position: CursorPosition) -> int:
        for index, item in enumerate(items):
            if self._is_after(item, position):
                return index
        return len(items)

    def _is_after(self, item: Item, position: CursorPosition) -> bool:
        for (field, descending), previous in zip(self._keys, position.values, strict=False):
            value = value_at(item, field)
            if (value is None) is not (previous is None):
                return value is None
            current, previous_key = sort_key(_clip(value)), sort_key(previous)
            if current != previous_key:
                return current < previous_key if descending else current > previous_key
        return sort_key(_clip(value_at(item, self._schema.id))) > sort_key(position.id)


def _clip(value: Any) -> Any:
    return value[:64] if isinstance(value, str) else value


class _PagePart(msgspec.Struct, frozen=True):
    """The items of a page, their start index, and the page info."""

    items: list[Item]
    start: int
    info: dict[str, Any]


def _page_by_cursor(
    items: Sequence[Item], page_request: PageRequest, cursor_maker: _CursorMaker
) -> _PagePart:
    total = len(items)
    if page_request.backward:
        end = total
        if page_request.cursor is not None:
            end = cursor_maker.index(items, page_request.cursor, "before")[0]
        start = max(0, end - page_request.size)
    else:
        start = 0
        if page_request.cursor is not None:
            index, exists = cursor_maker.index(items, page_request.cursor, "after")
            start = index + exists
        end = min(total, start + page_request.size)
    part = list(items[start:end])
    info: dict[str, Any] = {"hasNextPage": end < total, "hasPreviousPage": start > 0}
    if part:
        info["startCursor"] = cursor_maker(part[0], start)
        info["endCursor"] = cursor_maker(part[-1], end - 1)
    info["totalCount"] = total
    return _PagePart(part, start, {"pageInfo": info})


def _page_by_offset(items: Sequence[Item], page_request: PageRequest, _: _CursorMaker) -> _PagePart:
    start = page_request.offset
    part = list(items[start : start + page_request.size])
    info = {
        "limit": page_request.size,
        "offset": start,
        "returned": len(part),
        "total_items": len(items),
        "has_more": start + len(part) < len(items),
    }
    return _PagePart(part, start, {"pagination": info})


def _page_by_number(items: Sequence[Item], page_request: PageRequest, _: _CursorMaker) -> _PagePart:
    start = (page_request.page - 1) * page_request.size
    part = list(items[start : start + page_request.size])
    info = {
        "page": page_request.page,
        "page_size": page_request.size,
        "total_items": len(items),
        "total_pages": -(-len(items) // page_request.size),
        "has_more": start + len(part) < len(items),
    }
    return _PagePart(part, start, {"pagination": info})


_PAGE_FUNCTIONS: Final[
    dict[str, Callable[[Sequence[Item], PageRequest, _CursorMaker], _PagePart]]
] = {
    "cursors": _page_by_cursor,
    "offsets": _page_by_offset,
    "pages": _page_by_number,
}
