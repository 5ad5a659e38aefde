"""Schemas that expand without a limit are rejected."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from interlock.drivers.contract_shape import ContractShape, SchemaSize
from interlock.errors import InterlockError
from tests.drivers.driver_decisions import READ, contract


def doubling_schema(steps: int, word: str = "allOf", how: str = "#/$defs/a{}") -> dict[str, Any]:
    """Each step refers to the next one twice."""
    parts: dict[str, Any] = {
        f"a{i}": {"$anchor": f"a{i}", "$id": f"a{i}", word: [{"$ref": how.format(i + 1)}] * 2}
        if how == "a{}"
        else {"$anchor": f"a{i}", word: [{"$ref": how.format(i + 1)}, {"$ref": how.format(i + 1)}]}
        for i in range(steps)
    }
    end: dict[str, Any] = {"$anchor": f"a{steps}", "type": "object"}
    parts[f"a{steps}"] = {**end, "$id": f"a{steps}"} if how == "a{}" else end
    return {"type": "object", "$defs": parts, "$ref": how.format(0)}


@pytest.mark.parametrize("form", ["#/$defs/a{}", "#a{}", "a{}", "#/%24defs/a{}"])
@pytest.mark.parametrize("schema_keyword", ["allOf", "anyOf", "oneOf"])
def test_exponential_schema_is_too_large(schema_keyword: str, form: str) -> None:
    assert SchemaSize(doubling_schema(30, schema_keyword, form)).is_too_large
    assert not SchemaSize(doubling_schema(5, schema_keyword, form)).is_too_large


def test_large_schema_is_found_below_any_member() -> None:
    grown = doubling_schema(30)
    parts = grown.pop("$defs")
    for name in ("enum", "const", "a"):
        assert SchemaSize({"$defs": parts, "properties": {name: grown}}).is_too_large


def test_recursive_schema_is_counted_once() -> None:
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    assert not SchemaSize(tree).is_too_large
    assert not SchemaSize({"$ref": "#"}).is_too_large
    assert not SchemaSize(READ.inputs).is_too_large


def test_deeply_nested_schema_is_too_large() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"not": deep}
    assert SchemaSize(deep).is_too_large


@pytest.mark.parametrize(
    ("member", "schema_keyword"),
    [("inputs", "inputs"), ("outputs", "outputs"), ("context_schema", "contextSchema")],
)
def test_rejects_contract_with_oversized_schema(member: str, schema_keyword: str) -> None:
    with pytest.raises(InterlockError) as error:
        ContractShape(replace(contract(), **{member: doubling_schema(30)}))
    assert f"`{schema_keyword}` has more than" in error.value.message
