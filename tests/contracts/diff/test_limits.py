"""Tests of the comparison of large, deep and circular schemas."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest

from interlock.contracts.diff import documents as drafts
from interlock.contracts.diff.changes import ChangeReason, SchemaChange, breaking
from interlock.contracts.diff.documents import SchemaDocument, UnreadableSchema
from interlock.contracts.diff.schemas import diff_schemas
from tests.contracts.diff.schema_table import STRING, array, obj, text
from tests.contracts.diff.test_schema_table import label

# Ten megabytes take seconds. What would hang takes minutes, and machines are busy.
MAX_CPU_SECONDS = 60.0


def reasons(changes: list[SchemaChange]) -> set[ChangeReason]:
    return {change.reason for change in changes}


def diff_in_time(old: Any, new: Any) -> list[SchemaChange]:
    began = time.process_time()
    changes = diff_schemas(old, new, "input")
    assert time.process_time() - began < MAX_CPU_SECONDS
    return changes


def test_compares_ten_megabyte_schema() -> None:
    def field(number: int) -> dict[str, Any]:
        return text(description=f"Field number {number} of a great many.", maxLength=100 + number)

    old = obj({f"field_{number}": field(number) for number in range(90_000)})
    assert len(json.dumps(old)) > 9_000_000
    new = copy.deepcopy(old)
    new["properties"]["field_777"]["maxLength"] = 5
    new["properties"]["field_778"]["maxLength"] = 50_000
    assert [label(change) for change in diff_in_time(old, new)] == [
        "!CONSTRAINT_TIGHTENED /properties/field_777/maxLength",
        "CONSTRAINT_LOOSENED /properties/field_778/maxLength",
    ]


def test_too_many_changes_are_undecided_and_breaking() -> None:
    old = obj({f"f{number}": text(maxLength=number) for number in range(20_000)})
    new = obj({f"f{number}": text(maxLength=number + 1) for number in range(20_000)})
    changes = diff_in_time(old, new)
    assert len(changes) == 501
    assert changes[-1].message.startswith("There are ")
    assert changes[-1].breaking
    undecided = [change for change in changes if change.reason is ChangeReason.UNDECIDED]
    assert "too large to compare everything" in undecided[0].message


def reference_cycle(size: int, longest: int) -> dict[str, Any]:
    """Return a schema of types that form one large reference cycle."""
    return {
        "$ref": "#/$defs/T0",
        "$defs": {
            f"T{number}": obj({
                "next": {"$ref": f"#/$defs/T{(number + 1) % size}"},
                "value": text(maxLength=longest if number == 7 else 9),
            })
            for number in range(size)
        },
    }  # fmt: skip


def test_compares_large_reference_cycle() -> None:
    assert not breaking(diff_in_time(reference_cycle(400, 9), reference_cycle(400, 10)))
    tighter = diff_in_time(reference_cycle(400, 10), reference_cycle(400, 9))
    assert "!CONSTRAINT_TIGHTENED /$defs/T7/properties/value/maxLength" in map(label, tighter)


def test_compares_long_reordered_union() -> None:
    branches = [
        obj({"kind": {"const": number}, "v": text(maxLength=number)}, required=["kind"])
        for number in range(3_000)
    ]
    turned = copy.deepcopy(branches[::-1])
    assert reasons(diff_in_time({"anyOf": branches}, {"anyOf": turned})) == {ChangeReason.REWRITTEN}
    turned[5]["properties"]["v"]["maxLength"] = 7
    assert "!CONSTRAINT_TIGHTENED /anyOf/5/properties/v/maxLength" in map(
        label, diff_in_time({"anyOf": branches}, {"anyOf": turned})
    )


def test_compares_many_enum_values() -> None:
    few = {"enum": [f"value {number}" for number in range(100_000)]}
    more = {"enum": [*few["enum"], "another"]}
    assert [label(change) for change in diff_in_time(few, more)] == ["ENUM_VALUE_ADDED /enum"]
    assert [label(change) for change in diff_in_time(more, few)] == ["!ENUM_VALUE_REMOVED /enum"]


def test_nested_unions_end() -> None:
    def choices(size: int) -> dict[str, Any]:
        return {
            "allOf": [
                {"anyOf": [obj({f"p{at}": {"const": one}}, required=[f"p{at}"]) for one in "abcd"]}
                for at in range(size)
            ]
        }

    assert breaking(diff_in_time(choices(12), {**choices(12), "oneOf": choices(6)["allOf"]}))


def nested(levels: int) -> Any:
    schema: Any = STRING
    for _ in range(levels):
        schema = array(items=schema)
    return schema


def test_limits_depth() -> None:
    assert reasons(diff_in_time(nested(30), nested(31))) >= {ChangeReason.FIELD_TYPE_CHANGED}
    deep = diff_in_time(nested(140), nested(141))
    assert breaking(deep)
    too_deep = diff_in_time(nested(400), STRING)
    assert "nested more than 150 levels" in too_deep[0].message
    assert reasons(diff_in_time(nested(5_000), STRING)) == {ChangeReason.UNREADABLE}


def test_limits_enum_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "MAX_VALUES", 100)
    assert "more than 100 values" in diff_schemas({"enum": list(range(200))}, STRING)[0].message


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"not": {"$ref": "#"}},
        {"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, STRING]}}},
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}},
        {"dependentSchemas": {"a": {"$ref": "#"}}},
    ],
)
def test_rejects_self_reference(schema: dict[str, Any]) -> None:
    with pytest.raises(UnreadableSchema, match="leads back to itself"):
        SchemaDocument(schema)
    changes = diff_schemas(STRING, schema, "input")
    assert [change.reason for change in changes] == [ChangeReason.UNREADABLE]
    assert changes[0].breaking


@pytest.mark.parametrize(
    "schema",
    [None, 1, "x", [], {"properties": 1}, {"type": "strange"}, {"enum": float("nan")},
     {"enum": [object()]}, {1: 2}, {"const": "\ud800"}, {"pattern": "("},
     {"$schema": "http://json-schema.org/draft-04/schema#"}],
    # An object names its address, and two that share the tests must name the cases alike.
    ids=lambda schema: str(schema).partition(" object at ")[0],
)  # fmt: skip
def test_invalid_schema_is_breaking(schema: Any) -> None:
    assert breaking(diff_schemas(STRING, schema, "input"))
    assert breaking(diff_schemas(schema, {"type": "string", "minLength": 1}, "output"))


def test_fetches_no_remote_references() -> None:
    old = obj({"a": {"$ref": "https://127.0.0.1:1/schema"}, "b": {"enum": ["x"]}})
    new = obj({"a": {"$ref": "https://127.0.0.1:1/schema"}, "b": {"enum": ["x", "y"]}})
    assert [label(change) for change in diff_schemas(old, new, "input")] == [
        "ENUM_VALUE_ADDED /properties/b/enum"
    ]


@pytest.mark.parametrize("digits", [1, 9, 10, 4_301, 100_000])
def test_ignores_too_long_list_index(digits: int) -> None:
    document = SchemaDocument({"allOf": [STRING, STRING], "type": "string"})
    assert document.resolve("#/allOf/1")[0] is not None
    assert document.resolve(f"#/allOf/{'9' * digits}")[0] is None


def test_too_long_list_index_in_schema_is_breaking() -> None:
    far = f"#/allOf/{'9' * 5_000}"
    changes = diff_in_time({"allOf": [STRING]}, {"allOf": [STRING], "$ref": far})
    assert breaking(changes)


TRIED = {"pattern": r"^(a|aa)+\1x$"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": "((a{50}){50}){50}"}, "a"),
        ({"not": {"anyOf": [TRIED] * 60}}, "b"),
        ({"$defs": {"t": {"not": {"anyOf": [TRIED] * 60}}}, "$ref": "#/$defs/t"}, "b"),
    ],
    ids=["large pattern", "tried patterns", "behind a reference"],
)
def test_expensive_value_is_not_checked(schema: Any, value: Any) -> None:
    document = SchemaDocument(schema)
    node = document.find_node("", "")
    assert node is not None
    assert document.accepts(node, value) is None
    quick = SchemaDocument({"$defs": {"t": {"not": {"anyOf": [TRIED]}}}, "$ref": "#/$defs/t"})
    root = quick.find_node("", "")
    assert root is not None
    assert quick.accepts(root, "b") is True


def test_too_large_pattern_is_not_checked() -> None:
    document = SchemaDocument({})
    assert document.matches("((a{50}){50}){50}", "a") is None
    assert document.matches("a{5}", "aaaaa") is True
