"""Schemas of contracts: schemas that take too long are rejected with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.drivers.contract_shape import ContractShape
from interlock.errors import INVALID_ARGUMENTS, TOOL_UNAVAILABLE, InterlockError
from interlock.manifests.schemas import IO, find_schema
from interlock.manifests.tool_reader import include_builtin_schemas
from tests.drivers.driver_decisions import READ, contract

ROLES = ("inputs", "outputs", "context_schema")
HUGE_PATTERN = {"properties": {"a": {"pattern": "((a{50}){50}){50}"}}}
TRIED = {"pattern": r"^(a|aa)+\1x$"}
"""A pattern that is matched by trying: each value may take as long as the limit allows."""
MANY_TRIED = {"properties": {"a": {"anyOf": [TRIED] * 60}}}
TWICE: dict[str, Any] = {"properties": {"child": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}}


def nested_value(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"child": value}
    return value


def shape_with(role: str, schema: dict[str, Any]) -> ContractShape:
    fields: dict[str, Any] = {role: {"type": "object", **schema}}
    return ContractShape(contract(**fields))


def rejection_of(shape: ContractShape, role: str, value: Any) -> str:
    """Why a value does not pass. Empty: it does."""
    if role == "outputs":
        problems = [] if shape.is_output(value) else shape.output_problems(value)
        return "; ".join(problem["problem"] for problem in problems)
    try:
        (shape.check_inputs if role == "inputs" else shape.check_context)(value)
    except InterlockError as error:
        return error.message if error.failure is INVALID_ARGUMENTS else ""
    return ""


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (HUGE_PATTERN, "its patterns are too large"),
        ({"allOf": [{"type": "object"}] * 20_000}, "it has more than 10000 objects"),
        (
            {"$defs": {"x": {"$id": "x", "type": "object"}}, "$ref": "#/$defs/x"},
            "its references may lead to several places",
        ),
    ],
    ids=["pattern", "size", "places"],
)
def test_rejects_contract_with_expensive_schema(
    role: str, schema: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InterlockError, match=reason) as error:
        shape_with(role, schema)
    assert error.value.failure is TOOL_UNAVAILABLE
    assert "image.create" in error.value.message


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (MANY_TRIED, {"a": "a" * 40}),
        ({"properties": {"a": {"not": {"anyOf": [TRIED] * 60}}}}, {"a": "b"}),
        (TWICE, nested_value(40)),
    ],
    ids=["tried patterns", "tried patterns that do not match", "doubled references"],
)
def test_rejects_value_that_is_expensive_to_validate(
    role: str, schema: dict[str, Any], value: Any
) -> None:
    shape = shape_with(role, schema)
    assert "would take too long" in rejection_of(shape, role, value)


@pytest.mark.parametrize("role", ROLES)
def test_ordinary_values_are_validated(role: str) -> None:
    plain: dict[str, Any] = {"properties": {"child": {"type": "object"}}}
    for schema in (TWICE, plain):
        shape = shape_with(role, schema)
        assert not rejection_of(shape, role, nested_value(3))
    shape = shape_with(role, {"required": ["child"]})
    assert "child" in rejection_of(shape, role, {})
    assert not rejection_of(shape, role, {"child": {"a" * 1000: ["b" * 100_000] * 100}})
    # What is no JSON is measured, too.
    assert not rejection_of(shape, role, {"child": 2**70})


def test_specification_schemas_are_accepted() -> None:
    address = IO["$id"]
    assert find_schema(address) is not None
    schema = include_builtin_schemas({"type": "object", "properties": {"io": {"$ref": address}}})
    assert schema["$defs"]
    shape = ContractShape(contract(inputs=schema))
    shape.check_inputs({})
    assert ContractShape(READ).is_output({"contents": "x"})
