"""A collection as it was asked for: searched, filtered, sorted, counted, and one page of it.

Pages hold on to items, not to numbers: the next one begins behind the item with which the last one
ended, wherever that is by then. So what is added meanwhile makes nothing appear twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from interlock.protocol.aql import aggregate, faults, paging, querying
from interlock.protocol.aql.aggregate import value_at
from interlock.protocol.aql.cursors import Cursors, Position
from interlock.protocol.aql.querying import Item, compared

MOST_KEYS: Final = 3
PAGE: Final = 20
MOST_PAGE: Final = 100
SHAPING: Final = frozenset({"query", "filter", "sort", "aggregate", "include_items", "edges"}) | (
    paging.NAMES
)
"""Every parameter that is about a collection."""
ITEMS: Final = "items"
"""Names the collection, where an answer holds several."""

_encode: Final = msgspec.json.Encoder(order="sorted").encode


class Kind(msgspec.Struct, frozen=True):
    """What is known of a collection."""

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


class Page(msgspec.Struct, frozen=True):
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
    kind: Kind,
    cursors: Cursors,
    *,
    page: int = PAGE,
    most: int = MOST_PAGE,
) -> Page:
    """What `spec` asks for of a collection. Members of it that are not about collections are not
    looked at. Raises AqlError."""
    wanted = paging.wanted(spec, page, most)
    keys = _keys(spec.get("sort"), kind)
    conditions = spec.get("filter")
    fields = kind.fields
    if conditions is not None:
        items = querying.filtered(items, conditions, fields)
        _refuse_unsortable("filter", conditions, kind)
    query = spec.get("query")
    ranked = False
    if query is not None and (terms := querying.terms_of(query)):
        items = querying.found(items, terms, kind.text)
        ranked = True
    if keys or not ranked:
        if fields is None and items and spec.get("sort") is not None:
            querying.check_fields("sort", (field for field, _ in keys), querying.fields_of(items))
        items = _sorted(items, keys or kind.sort, kind)
    order = blake2b(
        _encode([query, conditions, [list(one) for one in keys or kind.sort]]), digest_size=6
    ).digest()
    aggregations = None
    if spec.get("aggregate") is not None:
        aggregations = aggregate.run(items, spec["aggregate"], _numbered(items, fields))
        if spec.get("include_items") is not True:
            return Page([], len(items), {}, aggregations, only_numbers=True)
    seal = _Sealing(kind, keys or kind.sort, order, cursors)
    made = _PAGES[wanted.style](items, wanted, seal)
    edges = None
    if spec.get("edges") is True and wanted.style == "cursors":
        start = made.start
        edges = [seal(one, start + index) for index, one in enumerate(made.items)]
    return Page(made.items, len(items), made.info, aggregations, False, edges, wanted.clamped)


def _numbered(items: Sequence[Item], fields: frozenset[str] | None) -> Collection[str] | None:
    """The fields that can be counted by. Nothing is known of an empty foreign collection."""
    return fields if fields is not None or not items else querying.fields_of(items)


# -- order


def _keys(sort: Any, kind: Kind) -> tuple[tuple[str, bool], ...]:
    """What is sorted by: fields, and whether the largest is first."""
    if sort is None:
        return ()
    wanted = sort if isinstance(sort, list) else [sort]
    if not 0 < len(wanted) <= MOST_KEYS:
        raise faults.wrong_type("sort", f"1 to {MOST_KEYS} keys", str(len(wanted)))
    keys = []
    for one in wanted:
        if not isinstance(one, dict) or not isinstance(one.get("field"), str):
            raise faults.wrong_type("sort", "an object {field, order}", "another type")
        strange = [name for name in one if name not in ("field", "order")]
        if strange:
            raise faults.unknown_field("sort", strange, ("field", "order"))
        order = one.get("order", "asc")
        if order not in ("asc", "desc"):
            raise faults.AqlError(
                "VALIDATION_INVALID_ENUM",
                "Parameter 'sort.order' must be 'asc' or 'desc'.",
                {"param_name": "sort.order", "allowed": ["asc", "desc"]},
            )
        keys.append((one["field"], order == "desc"))
    if kind.fields is not None:
        querying.check_fields("sort", (field for field, _ in keys), kind.fields)
    _refuse_unsortable("sort", [field for field, _ in keys], kind)
    return tuple(keys)


def _refuse_unsortable(param: str, names: Any, kind: Kind) -> None:
    strange = [one for one in names if one in kind.unsortable]
    if strange:
        valid = sorted((kind.fields or frozenset()) - kind.unsortable)
        raise faults.unknown_field(param, strange, valid)


def _sorted(items: Sequence[Item], keys: Sequence[tuple[str, bool]], kind: Kind) -> Sequence[Item]:
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
        self, kind: Kind, keys: Sequence[tuple[str, bool]], order: bytes, cursors: Cursors
    ) -> None:
        self._kind = kind
        self._keys = keys
        self._order = order
        self._cursors = cursors

    def __call__(self, item: Item, ordinal: int) -> str:
        values = [value_at(item, field) for field, _ in self._keys]
        id = value_at(item, self._kind.id)
        return self._cursors.seal(Position(self._kind.name, ordinal, id, values, self._order))

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

    def _where_it_was(self, items: Sequence[Item], position: Position) -> int:
        for index, item in enumerate(items):
            if self._is_behind(item, position):
                return index
        return len(items)

    def _is_behind(self, item: Item, position: Position) -> bool:
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


def _by_cursor(items: Sequence[Item], wanted: paging.Wanted, seal: _Sealing) -> _Part:
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


def _by_offset(items: Sequence[Item], wanted: paging.Wanted, _: _Sealing) -> _Part:
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


def _by_page(items: Sequence[Item], wanted: paging.Wanted, _: _Sealing) -> _Part:
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


_PAGES: Final[dict[str, Callable[[Sequence[Item], paging.Wanted, _Sealing], _Part]]] = {
    "cursors": _by_cursor,
    "offsets": _by_offset,
    "pages": _by_page,
}
