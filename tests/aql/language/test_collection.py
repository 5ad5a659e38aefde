"""Tests of collections: search, filter, sort, aggregates and pagination."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.aql.language import errors
from interlock.aql.language.collections import (
    MAX_COMPARISONS,
    CollectionPage,
    CollectionSchema,
    _scalar_key,
    query_collection,
)
from interlock.aql.language.cursors import CursorCodec
from interlock.aql.language.errors import AqlError
from tests.support.line_count import count_lines_run

CURSORS = CursorCodec(b"k" * 32)
FOREIGN = CollectionSchema("foreign")
NOTES = CollectionSchema(
    "notes",
    frozenset({"id", "title", "size", "tags", "state", "_computed.age"}),
    sort=(("size", True),),
    text=("title",),
    unsortable=frozenset({"_computed.age"}),
)
ITEMS = [
    {"id": "a", "title": "Alpha beta", "size": 3, "state": "open", "tags": ["x", "y"]},
    {"id": "b", "title": "Beta gamma", "size": 1, "state": "closed", "tags": []},
    {"id": "c", "title": "Gamma alpha", "size": 2, "state": "open", "tags": ["x"]},
    {"id": "d", "title": "Delta", "state": "open", "tags": ["z"]},
]


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([-0.0, 0.5, 1.0, 3.0, 1e300, 2.0**61 - 1, 2**61 - 1, float("inf")]),
    st.sampled_from(["", "1", "0x1", "inf", "None", "a"]),
)


def list_ids(page: CollectionPage) -> list[str]:
    return [one["id"] for one in page.items]


def query_items(
    spec: dict[str, Any], kind: CollectionSchema = FOREIGN, items: Any = ITEMS, **more: Any
) -> CollectionPage:
    return query_collection(items, spec, kind, CURSORS, **more)


def get_error(
    spec: dict[str, Any], kind: CollectionSchema = FOREIGN, items: Any = ITEMS
) -> AqlError:
    with pytest.raises(AqlError) as caught:
        query_items(spec, kind, items)
    assert errors.is_safe_message(caught.value.message)
    return caught.value


# -- which items


def test_compares_long_value_lists_by_hash() -> None:
    items = [{"id": str(number), "size": number} for number in range(100)]

    def lines(values: int) -> int:
        wanted = {"nin": [f"v{number}" for number in range(values)]}
        return count_lines_run(lambda: query_items({"filter": {"size": wanted}}, items=items))

    more = 2_000
    assert lines(more) - lines(1) < more * 20 < more * len(items)


@pytest.mark.parametrize("multiple", [2**61 - 1, 2**64 * (2**61 - 1)])
def test_finds_numbers_of_equal_hash_without_scan(multiple: int) -> None:
    numbers = [multiple * number for number in range(1, 500)]
    assert len({hash(number) for number in numbers}) == 1
    items = [{"id": "a", "size": numbers[-1]}, {"id": "b", "size": numbers[-1] + 1}]
    assert list_ids(query_items({"filter": {"size": {"in": numbers}}}, items=items)) == ["a"]
    assert len({hash(_scalar_key(number)) for number in numbers}) == len(numbers)


@given(
    value=st.one_of(SCALARS, st.lists(SCALARS, max_size=2)),
    listed=st.lists(st.one_of(SCALARS, st.lists(SCALARS, max_size=2)), max_size=6),
)
def test_in_matches_any_equal_value_and_nin_matches_none(value: Any, listed: list[Any]) -> None:
    def same(other: Any) -> bool:
        return isinstance(value, bool) is isinstance(other, bool) and value == other

    items = [{"id": "a", "at": value}]
    expected = ["a"] if any(map(same, listed)) else []
    assert list_ids(query_items({"filter": {"at": listed}}, items=items)) == expected
    assert list_ids(query_items({"filter": {"at": {"in": listed}}}, items=items)) == expected
    assert (list_ids(query_items({"filter": {"at": {"nin": listed}}}, items=items)) == []) is bool(
        expected
    )


def test_rejects_filter_with_too_many_comparisons() -> None:
    items = [{"id": str(number), "tags": [1 + number]} for number in range(1_001)]
    arrays = [[-number] for number in range(MAX_COMPARISONS // 1_000)]
    error = get_error({"filter": {"tags": {"nin": arrays}}}, items=items)
    assert error.code == "VALIDATION_PAYLOAD_TOO_LARGE"
    assert error.data is not None
    assert error.data["limit_value"] == MAX_COMPARISONS < error.data["actual_value"]
    assert query_items({"filter": {"tags": {"nin": arrays[:10]}}}, items=items).total == len(items)


@pytest.mark.spec("AQ-CQ-4.1-1")
def test_query_words_are_alternatives_and_quotes_make_phrase() -> None:
    assert set(list_ids(query_items({"query": "alpha beta"}))) == {"a", "b", "c"}
    assert list_ids(query_items({"query": "alpha beta"}))[0] == "a"
    assert list_ids(query_items({"query": '"alpha beta"'})) == ["a"]
    assert list_ids(query_items({"query": '"beta alpha"'})) == []
    assert list_ids(query_items({"query": 'delta "GAMMA  Alpha"'})) == ["c", "d"]
    assert set(list_ids(query_items({"query": "  "}))) == {"a", "b", "c", "d"}
    assert list_ids(query_items({"query": 'x"'})) == ["a", "c"]
    assert list_ids(query_items({"query": "x"}, NOTES)) == []


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ({"state": "open"}, "acd"),
        ({"state": ["closed", "gone"]}, "b"),
        ({"state": {"ne": "open"}}, "b"),
        ({"size": {"gt": 1, "lte": 3}}, "ac"),
        ({"size": {"gte": 2}}, "ac"),
        ({"size": {"lt": 2}}, "b"),
        ({"size": {"exists": False}}, "d"),
        ({"size": {"exists": True}}, "abc"),
        ({"size": True}, ""),
        ({"size": 1.0}, "b"),
        ({"tags": {"contains": "x"}}, "ac"),
        ({"title": {"contains": "ALPHA"}}, "ac"),
        ({"title": {"starts_with": "Ga"}}, "c"),
        ({"state": {"nin": ["open"]}}, "b"),
        ({"size": {"in": [1, 3]}, "state": {"eq": "open"}}, "a"),
        ({"tags": []}, ""),
        ({}, "abcd"),
    ],
)
def test_filters_items(conditions: dict[str, Any], found: str) -> None:
    assert list_ids(query_items({"filter": conditions})) == list(found)


@pytest.mark.spec("AQ-CQ-2-1")
def test_rejects_filter_on_unknown_field() -> None:
    for kind in (FOREIGN, NOTES):
        error = get_error({"filter": {"stat": "open"}}, kind)
        assert error.code == "VALIDATION_UNKNOWN_FIELD"
        assert error.data is not None
        assert error.data["unknown_fields"] == ["stat"]
        assert error.data["did_you_mean"] == "state"
        assert "'stat'" in error.message


@pytest.mark.parametrize(
    "conditions",
    ["x", [], 7, {"size": {"near": 1}}, {"size": {}}, {"size": {"in": 3}},
     {"size": {"exists": "yes"}}, dict.fromkeys(map(str, range(51)), 1)],
)  # fmt: skip
def test_rejects_invalid_filters(conditions: Any) -> None:
    assert get_error({"filter": conditions}).code.startswith("VALIDATION_")


@pytest.mark.parametrize(
    ("conditions", "param", "expected"),
    [
        ({"size": {"lt": "2"}}, "filter.size.lt", "number"),
        ({"size": "2"}, "filter.size", "number"),
        ({"title": {"gt": 5}}, "filter.title.gt", "string"),
        ({"title": 5}, "filter.title", "string"),
        ({"size": {"gt": [1]}}, "filter.size.gt", "string or number"),
    ],
)
def test_rejects_filter_of_incomparable_values(conditions: Any, param: str, expected: str) -> None:
    error = get_error({"filter": conditions})
    assert error.code == "VALIDATION_INVALID_TYPE"
    assert error.data is not None
    assert (error.data["param_name"], error.data["expected_type"]) == (param, expected)


def test_compares_times_with_times() -> None:
    items = [{"id": "a", "at": "2026-02-04T10:30:00Z", "any": "x"}, {"id": "b", "at": None}]
    kind = CollectionSchema("things")
    error = get_error({"filter": {"at": {"gt": "yesterday"}}}, kind, items)
    assert error.code == "VALIDATION_INVALID_TYPE"
    assert list_ids(query_items({"filter": {"at": {"gt": "2026-02-04"}}}, kind, items)) == ["a"]
    assert list_ids(query_items({"filter": {"any": {"gt": "w"}}}, kind, items)) == ["a"]


def test_treats_null_as_existing_value() -> None:
    items = [{"id": "a", "n": {"x": None}}, {"id": "b", "n": {}}, {"id": "c", "n": {"x": 1}}]
    kind = CollectionSchema("things")
    assert list_ids(query_items({"filter": {"n.x": {"exists": False}}}, kind, items)) == ["b"]
    assert list_ids(query_items({"filter": {"n.x": {"exists": True}}}, kind, items)) == ["a", "c"]
    assert list_ids(
        query_items({"filter": {"n.x": {"exists": True, "ne": None}}}, kind, items)
    ) == ["c"]


@pytest.mark.parametrize("query", [7, [], {}, "x" * 1_001])
def test_rejects_invalid_queries(query: Any) -> None:
    assert get_error({"query": query}).code.startswith("VALIDATION_")


# -- order


def test_sorts_in_both_orders_with_missing_values_last() -> None:
    assert list_ids(query_items({"sort": {"field": "size"}})) == ["b", "c", "a", "d"]
    assert list_ids(query_items({"sort": {"field": "size", "order": "desc"}})) == [
        "a",
        "c",
        "b",
        "d",
    ]
    both = [{"field": "state"}, {"field": "size", "order": "desc"}]
    assert list_ids(query_items({"sort": both})) == ["b", "a", "c", "d"]
    assert list_ids(query_items({}, NOTES)) == ["a", "c", "b", "d"]
    assert list_ids(query_items({})) == ["a", "b", "c", "d"]


def test_sorts_values_of_mixed_types() -> None:
    anything: list[Any] = [None, "a", 2, True, [1], {}, 1.5, "A"]
    mixed = [{"id": n, "v": v} for n, v in enumerate(anything)]
    page = query_items({"sort": {"field": "v"}}, items=mixed)
    assert [one["v"] for one in page.items][:4] == [1.5, 2, "A", "a"]
    assert page.items[-1]["v"] is None


@pytest.mark.parametrize(
    "sort",
    ["size", 7, {}, {"field": 1}, {"field": "size", "order": "up"}, {"field": "size", "by": 1}, [],
     [{"field": "size"}] * 4, {"field": "weight"}],
)  # fmt: skip
def test_rejects_invalid_sorts(sort: Any) -> None:
    for kind in (FOREIGN, NOTES):
        assert get_error({"sort": sort}, kind).code.startswith("VALIDATION_")


def test_rejects_sort_and_filter_of_computed_field() -> None:
    for spec in ({"sort": {"field": "_computed.age"}}, {"filter": {"_computed.age": 1}}):
        assert get_error(spec, NOTES).code == "VALIDATION_UNKNOWN_FIELD"


# -- pages


@pytest.mark.spec("AQ-PG-3.1-1", "AQ-OPS-4.4.3-1")
def test_returns_first_middle_last_and_empty_page() -> None:
    first = query_items({"first": 2}).data()
    info = first["pageInfo"]
    assert (info["hasNextPage"], info["hasPreviousPage"]) == (True, False)
    assert info["totalCount"] == 4
    second = query_items({"first": 1, "after": info["startCursor"]}).info["pageInfo"]
    assert (second["hasNextPage"], second["hasPreviousPage"]) == (True, True)
    middle = query_items({"first": 1, "after": info["endCursor"]}).data()
    assert [one["id"] for one in middle["items"]] == ["c"]
    assert middle["pageInfo"]["hasNextPage"] is True
    assert middle["pageInfo"]["hasPreviousPage"] is True
    last = query_items({"first": 5, "after": middle["pageInfo"]["endCursor"]}).data()
    assert [one["id"] for one in last["items"]] == ["d"]
    assert (last["pageInfo"]["hasNextPage"], last["pageInfo"]["hasPreviousPage"]) == (False, True)
    assert last["pageInfo"]["startCursor"] == last["pageInfo"]["endCursor"]
    empty = query_items({"filter": {"state": "gone"}}).data()
    assert empty == {
        "items": [],
        "pageInfo": {"hasNextPage": False, "hasPreviousPage": False, "totalCount": 0},
    }


def test_pages_backwards() -> None:
    last = query_items({"last": 2})
    assert list_ids(last) == ["c", "d"]
    before = last.info["pageInfo"]["startCursor"]
    assert list_ids(query_items({"last": 3, "before": before})) == ["a", "b"]


@pytest.mark.spec("AQ-OPS-4.4.3-1")
def test_pages_by_offset_and_by_number() -> None:
    assert query_items({"limit": 2, "offset": 1}).data()["pagination"] == {
        "limit": 2, "offset": 1, "returned": 2, "total_items": 4, "has_more": True,
    }  # fmt: skip
    assert query_items({"page": 2, "page_size": 3}).data()["pagination"] == {
        "page": 2, "page_size": 3, "total_items": 4, "total_pages": 2, "has_more": False,
    }  # fmt: skip
    assert list_ids(query_items({"offset": 99})) == []
    assert list_ids(query_items({"page": 9})) == []


def test_returns_edges_on_request() -> None:
    data = query_items({"first": 2, "edges": True}).data()
    assert "items" not in data
    assert [one["node"]["id"] for one in data["edges"]] == ["a", "b"]
    assert data["edges"][1]["cursor"] == data["pageInfo"]["endCursor"]
    again = query_items({"first": 1, "after": data["edges"][0]["cursor"]})
    assert list_ids(again) == ["b"]


@pytest.mark.spec("AQ-PG-2.3-1")
@pytest.mark.parametrize(
    "spec",
    [
        {"first": 1, "last": 1},
        {"after": "cursor"},
        {"before": "cursor"},
        {"first": 1, "before": "cursor"},
        {"last": 1, "after": "cursor"},
    ],
)
def test_rejects_invalid_parameter_combinations(spec: dict[str, Any]) -> None:
    cursor = query_items({"first": 1}).info["pageInfo"]["endCursor"]
    error = get_error(
        {name: cursor if value == "cursor" else value for name, value in spec.items()}
    )
    assert error.code == "VALIDATION_INVALID_TYPE"
    assert error.data is not None
    assert error.data["hint"]


@pytest.mark.spec("AQ-CQ-2-1")
@pytest.mark.parametrize(
    "spec", [{"first": 1, "offset": 0}, {"limit": 1, "page": 1}, {"last": 1, "page_size": 2}]
)
def test_rejects_mixed_pagination_styles(spec: dict[str, Any]) -> None:
    error = get_error(spec)
    assert error.code == "VALIDATION_INVALID_TYPE"
    assert error.data is not None
    assert "one pair" in error.data["hint"]


@pytest.mark.parametrize("size", [0, -1, "5", 1.5, True, []])
@pytest.mark.parametrize("name", ["first", "last", "limit", "page", "page_size"])
def test_rejects_invalid_page_sizes(name: str, size: Any) -> None:
    assert get_error({name: size}).code in ("VALIDATION_OUT_OF_RANGE", "VALIDATION_INVALID_TYPE")


@pytest.mark.spec("AQ-PG-5.2-1")
def test_limits_page_length() -> None:
    many = [{"id": number} for number in range(2_000)]
    assert len(query_items({}, items=many).items) == 20
    clamped = query_items({"first": 5_000}, items=many)
    assert (len(clamped.items), clamped.clamped) == (100, 5_000)
    assert len(query_items({"limit": 5_000}, items=many, maximum=1_500).items) == 1_000
    assert query_items({"first": 100}, items=many).clamped == 0


@pytest.mark.spec("AQ-PG-6.4-1")
def test_rejects_cursor_of_other_collection_or_order() -> None:
    cursor = query_items({"first": 1}).info["pageInfo"]["endCursor"]
    for spec, kind in (
        ({}, NOTES),
        ({"sort": {"field": "size"}}, FOREIGN),
        ({"filter": {"state": "open"}}, FOREIGN),
        ({"query": "alpha"}, FOREIGN),
    ):
        error = get_error({"first": 1, "after": cursor, **spec}, kind)
        assert error.code == "VALIDATION_INVALID_TYPE"
        assert error.data is not None
        assert error.data["param_name"] == "after"


def read_pages(
    items: list[dict[str, Any]], spec: dict[str, Any], kind: CollectionSchema
) -> list[Any]:
    seen: list[Any] = []
    after: dict[str, Any] = {}
    for _ in range(len(items) + 1):
        page = query_collection(items, {**spec, **after}, kind, CURSORS)
        seen += page.items
        if not page.info["pageInfo"]["hasNextPage"]:
            break
        after = {"after": page.info["pageInfo"]["endCursor"]}
    return seen


ROWS = st.lists(
    st.fixed_dictionaries(
        {"id": st.integers(0, 10_000) | st.text(max_size=80)},
        optional={"v": st.none() | st.integers(-3, 3) | st.text("ab", max_size=2)},
    ),
    unique_by=lambda row: str(row["id"])[:64],
    max_size=12,
)


@pytest.mark.spec("AQ-PG-5.2-1")
@given(ROWS, st.integers(1, 5), st.booleans(), st.booleans())
def test_pages_return_every_item_once(
    rows: list[dict[str, Any]], size: int, ordered: bool, descending: bool
) -> None:
    spec: dict[str, Any] = {"first": size}
    if ordered and any("v" in row for row in rows):
        spec["sort"] = {"field": "v", "order": "desc" if descending else "asc"}
    whole = query_collection(rows, {**spec, "first": 100}, FOREIGN, CURSORS).items
    assert read_pages(rows, spec, FOREIGN) == whole
    assert sorted(map(str, whole)) == sorted(map(str, rows))


@pytest.mark.spec("AQ-PG-5.2-1")
@given(ROWS, st.integers(1, 3), st.data())
def test_pages_never_repeat_items_after_changes(
    rows: list[dict[str, Any]], size: int, data: st.DataObject
) -> None:
    kind = CollectionSchema("k", frozenset({"id", "v"}), sort=(("v", False),))
    page = query_collection(rows, {"first": size}, kind, CURSORS)
    if not page.info["pageInfo"]["hasNextPage"]:
        return
    after = page.info["pageInfo"]["endCursor"]
    new = [{"id": f"new{number}", "v": number} for number in range(-3, 3)]
    gone = data.draw(st.sampled_from(rows))
    changed = [row for row in rows if row is not gone] + new
    seen = page.items + read_pages_after(changed, size, after, kind)
    names = [str(row["id"]) for row in seen]
    assert len(names) == len(set(names))
    assert {str(row["id"]) for row in rows if row is not gone} <= set(names)


def read_pages_after(
    items: list[dict[str, Any]], size: int, after: str, kind: CollectionSchema
) -> list[Any]:
    seen: list[Any] = []
    for _ in range(len(items) + 1):
        page = query_collection(items, {"first": size, "after": after}, kind, CURSORS)
        seen += page.items
        if not page.info["pageInfo"]["hasNextPage"]:
            return seen
        after = page.info["pageInfo"]["endCursor"]
    return seen


def test_pages_items_without_ids() -> None:
    bare = [{"v": number} for number in range(5)]
    assert read_pages(bare, {"first": 2}, FOREIGN) == bare


# -- numbers


@pytest.mark.spec("AQ-AGG-1-1")
def test_aggregates_after_filter_without_items() -> None:
    spec = {
        "filter": {"state": "open"},
        "aggregate": {"by_state": {"group_by": "state", "count": True}, "all": {"count": True}},
    }
    assert query_items(spec, NOTES).data() == {"aggregations": {"by_state": {"open": 3}, "all": 3}}
    with_items = query_items({**spec, "include_items": True, "first": 1}, NOTES).data()
    assert with_items["aggregations"]["all"] == 3
    assert len(with_items["items"]) == 1
    assert with_items["pageInfo"]["totalCount"] == 3


def test_selects_fields_of_items_only() -> None:
    data = query_items({"first": 1}).data(lambda item: {"id": item["id"]})
    assert data["items"] == [{"id": "a"}]
    assert "endCursor" in data["pageInfo"]
