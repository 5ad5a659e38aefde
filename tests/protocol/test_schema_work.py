"""The cost of validating by a schema, estimated before it is spent."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.protocol.schema_cost import (
    MAX_PATTERN_STATES,
    MAX_SCHEMA_OBJECTS,
    SchemaWork,
    measure_pattern,
)

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]+$"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name"],
}


def double_references(levels: int, word: str = "allOf") -> dict[str, Any]:
    """Return a schema whose levels each refer twice to the next level."""
    parts: dict[str, Any] = {
        f"d{level}": {word: [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**parts, f"d{levels}": {"type": "object"}}}


def test_ordinary_schema_needs_no_measurement() -> None:
    work = SchemaWork(PERSON)
    assert work.problem == ""
    assert work.max_unmeasured_bytes > 64 * 1024
    assert work.can_validate({"name": "ada", "tags": ["x"] * 1000})


@pytest.mark.parametrize("word", ["allOf", "anyOf", "oneOf"])
def test_counts_doubled_references(word: str) -> None:
    few, many = SchemaWork(double_references(8, word)), SchemaWork(double_references(40, word))
    assert few.max_unmeasured_bytes > 0
    assert few.can_validate({"a": "hello"})
    assert many.max_unmeasured_bytes == 0
    assert not many.can_validate({"a": "hello"})


def test_measures_recursive_schema_by_value() -> None:
    tree = {"properties": {"children": {"items": {"$ref": "#"}}}}
    twice = {"properties": {"child": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}}
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"child": deep}
    assert SchemaWork(tree).max_unmeasured_bytes == SchemaWork(twice).max_unmeasured_bytes == 0
    assert SchemaWork(tree).can_validate({"children": [{"children": [{}]}] * 50})
    assert SchemaWork(twice).can_validate({"child": {"child": {}}})
    assert not SchemaWork(twice).can_validate(deep)


@pytest.mark.parametrize(
    ("pattern", "tries"),
    [
        (r"^[\w.*+-]+@[\w-]+\.[a-z]{2,63}$", False),
        (r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{12}$", False),
        (r"^\p{L}+$", False),
        (r"^(a|aa)+\1x$", True),
        (r"^(?!.*\.\.)x", True),
        (r"(?<=a)b", True),
        (r"^(?<n>a)\k<n>$", True),
        (r"a++b", True),
    ],
)
def test_recognizes_backtracking_patterns(pattern: str, tries: bool) -> None:
    states, result = measure_pattern(pattern)
    assert result is tries
    assert states < 2000


@pytest.mark.parametrize(
    "pattern",
    [
        "(.{0,100}){100}x",
        "((a{50}){50}){50}",
        "[[](a{500}){500}",
        "([)]a{500}){500}",
        "(?x)((a #)\n){500}){500}",
        r"(\w{1,100} ){100}",
    ],
)
def test_multiplies_repetitions(pattern: str) -> None:
    assert measure_pattern(pattern)[0] > MAX_PATTERN_STATES
    assert SchemaWork({"pattern": pattern}).problem


def test_limits_backtracking_patterns() -> None:
    part = {"pattern": r"^(a|aa)+\1x$"}
    assert SchemaWork({"anyOf": [part] * 10}).can_validate("a" * 40)
    assert not SchemaWork({"anyOf": [part] * 60}).can_validate("a" * 40)


def test_counts_comparisons_with_enum_objects() -> None:
    objects = {"items": {"enum": [{"v": number} for number in range(1000)]}}
    texts = {"items": {"enum": [f"v{number}" for number in range(1000)]}}
    assert not SchemaWork(objects).can_validate([{"v": 1}] * 1000)
    assert SchemaWork(texts).can_validate(["v1"] * 1000)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {f"p{number}": {} for number in range(MAX_SCHEMA_OBJECTS)}},
        {"allOf": [{"$ref": "#/$defs/a"}] * 3000, "$defs": {"a": {}}},
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        # What the reference leads to depends on the document that it is in.
        {
            "$defs": {"d": {}, "e": {"$id": "e", "$ref": "#/$defs/d", "$defs": {"d": {}}}},
            "$ref": "#/$defs/e",
        },
        {"$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x"}}, "$ref": "#x"},
    ],
)
def test_rejects_unusable_schema(schema: Any) -> None:
    assert SchemaWork(schema).problem


def test_rejects_deeply_nested_schema() -> None:
    schema: dict[str, Any] = {}
    for _ in range(20_000):
        schema = {"not": schema}
    work = SchemaWork(schema)
    assert work.problem
    assert not work.can_validate({})
    while schema:
        # Taken apart one by one: to free it at once would go as deep.
        schema = schema.pop("not")


def test_limits_cost_of_counting() -> None:
    wide: dict[str, Any] = {"items": {"properties": {f"p{number}": {} for number in range(2000)}}}
    assert not SchemaWork(wide).can_validate([1] * 100_000)
