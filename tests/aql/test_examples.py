"""Tests of generated example requests."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.aql import introspection
from interlock.protocol.aql_terms import Category
from tests.aql.operation_catalogs import (
    NEEDED,
    STRING,
    builtin_operation,
    operation_catalog,
    single_operation,
    tool,
)
from tests.support.offerings import definition


def example_params(schema: dict[str, Any], name: str = "run_it") -> dict[str, Any]:
    """Return the example parameters of a tool with this schema."""
    request = introspection.example_request(single_operation(definition(name, inputSchema=schema)))
    assert request["operation"] == f"s_{name}"
    params: dict[str, Any] = request["params"]
    return params


REQUIRED = [
    {"type": "string"},
    {"type": "string", "minLength": 12},
    {"type": "string", "maxLength": 3},
    {"type": "string", "pattern": "^[a-z]+$"},
    {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "email"},
    {"type": "string", "enum": ["b", "a"]},
    {"type": "integer", "minimum": 10, "maximum": 12},
    {"type": "integer", "exclusiveMinimum": 5, "multipleOf": 4},
    {"type": "integer", "maximum": -3},
    {"type": "number", "exclusiveMaximum": 1},
    {"type": "boolean"},
    {"type": "array", "items": {"type": "integer", "minimum": 7}, "minItems": 2},
    {"type": "array", "maxItems": 0, "items": {"type": "string"}},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"anyOf": [{"type": "null"}, {"type": "integer"}]},
    {"const": 42},
    {"$ref": "#/$defs/thing"},
    {"allOf": [{"$ref": "#/$defs/thing"}]},
    {},
]


@pytest.mark.spec("AQ-INT-8.2-1")
@pytest.mark.parametrize("required", REQUIRED, ids=str)
def test_example_matches_schema(required: dict[str, Any]) -> None:
    schema = {
        "type": "object",
        "properties": {"value": required, "other": {"type": "string"}},
        "required": ["value"],
        "$defs": {"thing": {"type": "object", "properties": {"n": {"type": "integer"}},
                            "required": ["n"]}},
    }  # fmt: skip
    params = example_params(schema)
    assert set(params) == {"value"}
    jsonschema_rs.validator_for(schema).validate(params)


def test_uses_examples_of_server() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "examples": ["octocat"]}, "b": {"default": 5}},
        "required": ["a", "b"],
    }
    assert example_params(schema) == {"a": "octocat", "b": 5}
    schema["properties"]["a"]["examples"] = ["x" * 1_000]  # type: ignore[index]
    assert example_params(schema)["a"] == "a"


def test_update_example_changes_field() -> None:
    found = single_operation(
        tool("update_issue", {"issue_id": NEEDED, "title": STRING, "body": STRING})
    )
    assert found.category is Category.UPDATE
    assert introspection.example_params(found) == {"issue_id": "id", "input": {"title": "title"}}
    found = single_operation(tool("set_state", {"id": NEEDED, "state": NEEDED}))
    assert introspection.example_params(found) == {"id": "id", "input": {"state": "state"}}


def test_builtin_operation_defines_example() -> None:
    own = builtin_operation("introspect", example={"query": "operations"})
    (one,) = operation_catalog(natives=(own,)).all()
    assert introspection.example_request(one) == {
        "operation": "introspect",
        "params": {"query": "operations"},
    }


def test_handles_circular_schemas_and_slow_patterns() -> None:
    wide = {f"p{n}": {"$ref": "#"} for n in range(30)}
    schema = {"type": "object", "properties": wide, "required": list(wide)}
    assert len(example_params(schema)) == 30
    example_params(
        {
            "type": "object",
            "properties": {
                "a": {"type": "string", "pattern": "^((a+)+)+$b"},
                "b": {"pattern": "("},
            },
            "required": ["a", "b"],
        }
    )


@given(
    st.dictionaries(
        st.sampled_from(
            ["minimum", "maximum", "minLength", "maxLength", "multipleOf", "minItems", "pattern",
             "exclusiveMinimum", "enum", "const", "default", "examples", "format", "type", "items"]
        ),
        st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False),
                  st.text(max_size=5), st.none(), st.booleans(),
                  st.lists(st.integers(), max_size=2)),
    )
)  # fmt: skip
def test_returns_example_for_invalid_schema(schema: dict[str, Any]) -> None:
    for kind in ("string", "integer", "number", "array", "object", None):
        one = {**schema, **({"type": kind} if kind else {})}
        params = example_params({"type": "object", "properties": {"a": one}, "required": ["a"]})
        assert set(params) == {"a"}
