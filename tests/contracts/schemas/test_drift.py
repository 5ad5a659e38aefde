"""Tests of the differences between two descriptions of one type."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.contracts.schemas.drift import TypeDescription, find_differences, format_drift

BASE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "count": {"type": "integer", "minimum": 0},
        "note": {"type": ["string", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "by": {"type": "object", "additionalProperties": {"type": "number"}},
        "state": {"$ref": "#/$defs/State"},
        "next": {"$ref": "#"},
    },
    "required": ["id", "state"],
    "$defs": {"State": {"type": "string", "enum": ["open", "sent"]}},
}


def change_properties(**properties: Any) -> dict[str, Any]:
    return {**BASE, "properties": {**BASE["properties"], **properties}}


def diff(left: Any, right: Any) -> list[str]:
    return find_differences(
        TypeDescription("a.proto", left, left), TypeDescription("b.json", right, right)
    )


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (change_properties(more={"type": "string"}), "more is in b.json only"),
        (
            change_properties(count={"type": "string"}),
            "count is integer in a.proto and string in b.json",
        ),
        (
            change_properties(count={"type": "number"}),
            "count is integer in a.proto and number in b.json",
        ),
        (change_properties(note={"type": "string"}), "note may be null in a.proto only"),
        (change_properties(id={"type": ["string", "null"]}), "id may be null in b.json only"),
        (
            change_properties(tags={"type": "string"}),
            "tags is array in a.proto and string in b.json",
        ),
        (
            change_properties(tags={"items": {"type": "integer"}}),
            "tags[] is string in a.proto and integer",
        ),
        (
            change_properties(by={"type": "object", "additionalProperties": {"type": "boolean"}}),
            "by{} is number in a.proto and boolean",
        ),
        (change_properties(state={"enum": ["open"]}), 'state may be "sent" in a.proto only'),
        (
            change_properties(state={"enum": ["open", "sent", "x"]}),
            'state may be "x" in b.json only',
        ),
        (
            change_properties(state={"type": "string"}),
            "state is limited to certain values in a.proto only",
        ),
        ({**BASE, "required": ["id"]}, "state is required in a.proto only"),
        ({**BASE, "required": ["id", "state", "count"]}, "count is required in b.json only"),
        ({"type": "array"}, "it is object in a.proto and array in b.json"),
        ({}, "it is object in a.proto and anything in b.json"),
        (
            change_properties(next={"anyOf": [{"type": "string"}, {"type": "integer"}]}),
            "next is object in a.proto and a choice in b.json",
        ),
    ],
)
def test_names_different_member(other: dict[str, Any], words: str) -> None:
    (told,) = diff(BASE, other)
    assert words in told
    # It is one from the other side, too.
    assert len(diff(other, BASE)) == 1


def test_renamed_member_is_two_differences() -> None:
    properties = dict(BASE["properties"])
    properties["number"] = properties.pop("count")
    assert diff(BASE, {**BASE, "properties": properties}) == [
        "count is in a.proto only",
        "number is in b.json only",
    ]


@pytest.mark.parametrize(
    "other",
    [
        {**BASE, "description": "Something else.", "title": "X", "$comment": "y"},
        change_properties(count={"type": "integer", "maximum": 5, "format": "int32"}),
        change_properties(note={"anyOf": [{"type": "string"}, {"type": "null"}]}),
        change_properties(note={"oneOf": [{"type": "null"}, {"type": "string"}]}),
        change_properties(state={"type": "string", "enum": ["sent", "open"]}),
        change_properties(state={"allOf": [{"$ref": "#/$defs/State"}]}),
        {
            "allOf": [
                {"type": "object", "properties": BASE["properties"], "required": ["id"]},
                {"required": ["state"]},
            ],
            "$defs": BASE["$defs"],
        },
    ],
)
def test_equivalent_descriptions_are_equal(other: dict[str, Any]) -> None:
    assert diff(BASE, other) == []
    assert diff(other, BASE) == []


def test_compares_cyclic_types() -> None:
    cyclic = {
        "$ref": "#/$defs/A",
        "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}},
    }
    assert diff(cyclic, cyclic) == []
    deep: dict[str, Any] = {"type": "object", "properties": {"a": {"$ref": "#"}}}
    unrolled = {
        "type": "object",
        "properties": {"a": {"type": "object", "properties": {"a": deep}}},
    }
    assert diff(deep, {**unrolled, **deep}) == []


def test_formats_drift_message() -> None:
    assert format_drift("Order", ["a is in x only"]) == (
        "Schema drift detected for type Order: a is in x only"
    )
    assert format_drift("Order", [str(one) for one in range(12)]).endswith("; 9; and 2 more")


_schemas = st.recursive(
    st.sampled_from(
        [{"type": "string"}, {"type": "integer"}, {"type": ["number", "null"]}, {}, True]
    ),
    lambda inner: st.one_of(
        st.builds(lambda one: {"type": "array", "items": one}, inner),
        st.builds(
            lambda members, required: {
                "type": "object",
                "properties": members,
                "required": [name for name in members if name in required],
            },
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.sets(st.sampled_from("abc")),
        ),
        st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner),
    ),
    max_leaves=6,
)


@given(_schemas, _schemas)
def test_comparison_is_symmetric(left: Any, right: Any) -> None:
    assert diff(left, left) == []
    assert bool(diff(left, right)) == bool(diff(right, left))
