"""Checks of foreign schemas: cycles, external references and sizes."""

from __future__ import annotations

import time
from typing import Any

import jsonschema_rs
import pytest

from interlock.manifests.tool_reader import MAX_SCHEMA_VALUES, check_schema, include_builtin_schemas

TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"children": {"type": "array", "items": {"$ref": "#"}}},
}


def fault_messages(schema: Any) -> list[str]:
    return [fault.message for fault in check_schema(schema)]


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        TREE,
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
        {"$ref": "#a", "$defs": {"x": {"$anchor": "a"}}},
        {"$ref": "item", "$defs": {"x": {"$id": "item", "type": "object"}}},
        {
            "$id": "https://a.example/root",
            "$ref": "other#/$defs/y",
            "$defs": {"x": {"$id": "other", "$defs": {"y": {"type": "string"}}}},
        },
        {"properties": {"$ref": {"type": "string"}, "default": {"type": "string"}}},
        {"const": {"$ref": "https://elsewhere.example/"}, "default": {"$ref": 5}},
        {
            "$defs": {"a/b": {}, "c~d": {}},
            "allOf": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/c~0d"}],
        },
        {
            "$dynamicAnchor": "node",
            "properties": {"left": {"$dynamicRef": "#node"}},
        },
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        {
            "$ref": "#/$defs/list",
            "$defs": {
                "list": {
                    "anyOf": [{"type": "null"}, {"properties": {"next": {"$ref": "#/$defs/list"}}}]
                }
            },
        },
    ],
)
def test_accepts_usable_schema(schema: dict[str, Any]) -> None:
    assert fault_messages(schema) == []
    validator = jsonschema_rs.Draft202012Validator(include_builtin_schemas(schema))
    validator.is_valid({"children": [{"children": []}]})


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"$ref": "#"}, ()),
        ({"allOf": [{"$ref": "#"}]}, ("allOf", 0)),
        ({"not": {"$ref": "#"}}, ("not",)),
        (
            {
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                "$ref": "#/$defs/a",
            },
            None,
        ),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, ("properties", "a")),
        ({"properties": {"default": {"$ref": "#/properties/default"}}}, ("properties", "default")),
        ({"if": {"type": "object"}, "then": {"anyOf": [{"$ref": "#"}]}}, None),
        ({"dependentSchemas": {"a": {"$ref": "#"}}}, None),
        ({"$dynamicAnchor": "x", "$dynamicRef": "#x"}, ()),
        ({"$anchor": "x", "oneOf": [{"$ref": "#x"}]}, None),
    ],
)
def test_rejects_endless_reference_cycle(schema: dict[str, Any], path: Any) -> None:
    (fault,) = check_schema(schema)
    assert "leads back to itself" in fault.message
    if path is not None:
        assert fault.path == path


@pytest.mark.parametrize(
    "target",
    [
        "https://elsewhere.example/schema.json",
        "http://127.0.0.1:1/x",
        "file:///etc/passwd",
        "other.json",
        "//elsewhere.example/x",
        "urn:example:x",
    ],
)
def test_rejects_external_reference(target: str) -> None:
    (fault,) = check_schema({"type": "object", "properties": {"a": {"$ref": target}}})
    assert fault.path == ("properties", "a", "$ref")
    assert "nothing is fetched" in fault.message
    assert "$defs" in fault.hint


@pytest.mark.parametrize("target", ["#/$defs/none", "#none", "#/properties/a/0"])
def test_rejects_unresolvable_reference(target: str) -> None:
    (fault,) = check_schema({"type": "object", "properties": {"a": {"$ref": target}}})
    assert "has no target" in fault.message


def test_checks_references_below_unknown_keywords() -> None:
    schema = {"$ref": "#/x-hidden", "x-hidden": {"$ref": "https://elsewhere.example/"}}
    assert fault_messages(schema) == ["this cannot be used as a schema"]


def test_limits_size_and_depth_quickly() -> None:
    many = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(500_000)}}
    begun = time.process_time()
    assert fault_messages(many) == [f"the schema has more than {MAX_SCHEMA_VALUES} values"]
    assert time.process_time() - begun < 5
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"items": deep}
    assert fault_messages(deep) == ["the schema is nested too deeply"]


def test_checks_many_references_quickly() -> None:
    chain = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(2000)}
    schema = {"$defs": {**chain, "d2000": {"type": "string"}}, "$ref": "#/$defs/d0"}
    begun = time.process_time()
    check_schema({**schema, "$defs": {**schema["$defs"], "d2000": {"$ref": "#"}}})  # type: ignore[dict-item]
    assert time.process_time() - begun < 10


def test_rejects_values_that_are_not_schema() -> None:
    assert fault_messages([]) == ["a schema must be an object here"]
    assert fault_messages(True) == ["a schema must be an object here"]
    assert fault_messages({"$schema": 5})[0].endswith("is not supported")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"pattern": "((a{50}){50}){50}"}, "its patterns are too large"),
        ({"patternProperties": {"(.{0,100}){100}x": {}}}, "its patterns are too large"),
        ({"allOf": [{"type": "object"}] * 11_000}, "it has more than 10000 objects"),
        (
            {"$defs": {"a": {}}, "allOf": [{"$ref": "#/$defs/a"}] * 3_000},
            "it has more than 2000 references",
        ),
    ],
)
def test_rejects_schema_that_compiles_too_slowly(schema: dict[str, Any], reason: str) -> None:
    assert fault_messages(schema) == [f"validation with the schema would take too long: {reason}"]
