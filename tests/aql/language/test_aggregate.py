"""Tests of the aggregates of collections."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.aql.language import collections, errors
from interlock.aql.language.errors import AqlError
from tests.protocol.json_values import objects, values

ROWS: list[dict[str, Any]] = [
    {"status": "done", "ms": 10, "who": {"name": "a"}},
    {"status": "done", "ms": 30, "who": {"name": "b"}},
    {"status": None, "ms": None},
    {"ms": "slow", "ok": True},
]


@pytest.mark.spec("AQ-AGG-1-1")
@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"count": True}, 4),
        ({"count": "status"}, 2),
        ({"sum": "ms"}, 40),
        ({"avg": "ms"}, 20),
        ({"min": "ms"}, 10),
        ({"max": "ms"}, 30),
        ({"min": "status"}, "done"),
        ({"avg": "status"}, None),
        ({"max": "ok"}, None),
        ({"sum": "ok"}, 0),
        ({"group_by": "status"}, {"done": 2, "null": 2}),
        ({"group_by": "status", "count": True}, {"done": 2, "null": 2}),
        ({"group_by": "status", "sum": "ms"}, {"done": 40, "null": 0}),
        ({"group_by": "who.name"}, {"a": 1, "b": 1, "null": 2}),
        ({"group_by": "ok"}, {"null": 3, "true": 1}),
    ],
)
def test_computes_each_function(wanted: dict[str, Any], found: Any) -> None:
    assert collections.aggregate(ROWS, {"x": wanted}) == {"x": found}


@pytest.mark.spec("AQ-AGG-1-1")
@pytest.mark.parametrize(
    "spec",
    [
        7, [], {}, {"x": 1}, {"x": {}}, {"x": {"median": "ms"}}, {"x": {"sum": True}},
        {"x": {"sum": "weight"}}, {"x": {"group_by": 1}}, {"x": {"group_by": "weight"}},
        {"x": {"sum": "ms", "avg": "ms"}}, {"x": {"count": False}}, {"x": {"sum": ""}},
        {str(number): {"count": True} for number in range(21)},
    ],
)  # fmt: skip
def test_rejects_unsupported_aggregates(spec: Any) -> None:
    with pytest.raises(AqlError) as caught:
        collections.aggregate(ROWS, spec, {"status", "ms", "who", "ok"})
    assert caught.value.code.startswith("VALIDATION_")
    assert errors.is_safe_message(caught.value.message)


def test_limits_groups() -> None:
    with pytest.raises(AqlError) as caught:
        collections.aggregate([{"a": number} for number in range(1_001)], {"x": {"group_by": "a"}})
    assert caught.value.code == "VALIDATION_OUT_OF_RANGE"


def test_returns_null_for_numbers_beyond_floats() -> None:
    assert collections.aggregate([{"a": 10**400}, {"a": 1.5}], {"x": {"sum": "a"}}) == {"x": None}
    assert collections.aggregate([{"a": 10**400}], {"x": {"avg": "a"}}) == {"x": None}


def test_describes_functions_and_fields() -> None:
    assert collections.describe_aggregates({"b", "a"}) == {
        "functions": ["count", "group_by", "sum", "avg", "min", "max"],
        "fields": ["a", "b"],
    }


@given(st.lists(objects, max_size=6), st.sampled_from(collections.FUNCTIONS), st.text(min_size=1))
def test_returns_json_numbers_for_any_items(items: Any, function: str, field: str) -> None:
    found = collections.aggregate(items, {"x": {function: field}})
    json.dumps(found)


@given(st.lists(st.dictionaries(st.just("a"), values, max_size=1), max_size=8))
def test_counts_every_item_in_exactly_one_group(items: list[dict[str, Any]]) -> None:
    found = collections.aggregate(items, {"x": {"group_by": "a"}})["x"]
    assert sum(found.values()) == len(items)
