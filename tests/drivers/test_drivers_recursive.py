"""Contracts with recursive schemas: read, compared and validated without hanging."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlock.contracts.diff.schemas import diff_schemas
from interlock.contracts.registry.validation import ValidatorCache
from interlock.protocol.schema_cost import UNEXPLAINED
from tests.drivers.driver_workspace import ANY, Workspace, running

pytestmark = pytest.mark.usefixtures("no_leaks")

TREE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}
BY_NAME: dict[str, Any] = {
    "type": "object",
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            **TREE,
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
            },
        }
    },
}
TANGLED: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/again"}]}},
    "$defs": {"again": {"allOf": [{"$ref": "#"}]}},
}
DEEP: dict[str, Any] = {"name": "a", "children": [{"name": "b", "children": [{"name": "c"}]}]}


@pytest.mark.parametrize("schema", [TREE, BY_NAME], ids=["root", "by name"])
async def test_recursive_contract_is_validated_at_every_depth(
    tmp_path: Path, schema: dict[str, Any]
) -> None:
    workspace = Workspace(tmp_path)
    outputs: dict[str, Any] = {
        "type": "object",
        "properties": {"arguments": {"$ref": "#/$defs/tree"}},
        "required": ["arguments"],
        "$defs": BY_NAME["$defs"],
    }
    contract = workspace.contract("tree.show", inputs=schema, outputs=outputs)
    workspace.driver("tree-mcp", workspace.serves(contract, "show"))

    async with running(workspace) as node:
        assert (await node.call("tree.show", **DEEP))["arguments"] == DEEP
        wrong: dict[str, Any] = {
            "name": "a",
            "children": [{"name": "b", "children": [{"name": 3}]}],
        }
        error = await node.refused("tree.show", **wrong)
        assert error.failure.name == "invalid_arguments"
        assert "children.0.children.0.name" in error.message
        more: dict[str, Any] = {"name": "a", "children": [{"name": "b", "more": 1}]}
        assert (await node.refused("tree.show", **more)).failure.name == "invalid_arguments"
        assert node.status("tree-mcp").state == "running"


async def test_invalid_call_does_not_block_others(tmp_path: Path) -> None:
    """Fourteen braces: to find every way in which they do not fit takes seconds, and each brace
    more doubles that."""
    workspace = Workspace(tmp_path)
    contract = workspace.contract("tree.show", inputs=TANGLED, outputs=ANY)
    workspace.driver("tree-mcp", workspace.serves(contract, "show"))
    value: Any = 5
    for _ in range(14):
        value = {"n": value}

    async with running(workspace) as node:
        error = await node.refused("tree.show", **value)
        assert error.failure.name == "invalid_arguments"
        assert UNEXPLAINED in error.message
        assert (await node.call("tree.show", n={"n": {}}))["arguments"] == {"n": {"n": {}}}


async def test_invalid_response_does_not_block_others(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    outputs = {**TANGLED, "required": ["n"]}
    contract = workspace.contract("tree.show", inputs=ANY, outputs=outputs)
    workspace.driver("tree-mcp", workspace.serves(contract, "show", result_extract="$.arguments"))
    value: Any = {"n": 5}
    for _ in range(13):
        value = {"n": value}

    async with running(workspace) as node:
        error = await node.refused("tree.show", **value)
        assert error.failure.name == "output_parse_failed"


def test_registry_validation_terminates_quickly() -> None:
    value: Any = 5
    for _ in range(14):
        value = {"n": value}
    (wrong,) = ValidatorCache().check("tangled", TANGLED, value)
    assert (wrong.path, wrong.message) == ("", UNEXPLAINED)
    assert ValidatorCache().check("tangled", TANGLED, {"n": {"n": {}}}) == []


async def test_dropped_input_is_rejected_at_top_level_only(tmp_path: Path) -> None:
    """Narrowing is about inputs of the call: a member of the same name further down is data."""
    workspace = Workspace(tmp_path)
    optional = {**TREE, "required": []}
    contract = workspace.contract("tree.show", inputs=optional, outputs=ANY)
    entry = workspace.serves(contract, "show", schema_narrowing={"drop_inputs": ["name"]})
    workspace.driver("tree-mcp", entry)

    async with running(workspace) as node:
        arguments: dict[str, Any] = {"children": [{"name": "b"}]}
        assert (await node.call("tree.show", **arguments))["arguments"] == arguments
        error = await node.refused("tree.show", name="a")
        assert error.failure.name == "input_unsupported"


@pytest.mark.parametrize("schema", [TREE, BY_NAME], ids=["root", "by name"])
def test_recursive_schema_changes_are_reported_once(schema: dict[str, Any]) -> None:
    assert diff_schemas(schema, schema, "input") == []
    # The same, said in another way, and unfolded once.
    assert not [schema for schema in diff_schemas(TREE, BY_NAME, "input") if schema.breaking]
    once = {**TREE, "properties": {**TREE["properties"]}}
    once["properties"]["children"] = {"type": "array", "items": {**TREE, **_absolute()}}
    once["$defs"] = {"tree": BY_NAME["$defs"]["tree"]}
    assert not [item for item in diff_schemas(schema, once, "input") if item.breaking]
    smaller = {
        **TREE, "properties": {**TREE["properties"], "name": {"type": "string", "maxLength": 3}},
    }  # fmt: skip
    changes = diff_schemas(schema, smaller, "input")
    assert [change for change in changes if change.breaking]
    assert not [item for item in diff_schemas(smaller, schema, "input") if item.breaking]


def _absolute() -> dict[str, Any]:
    children = {"type": "array", "items": {"$ref": "#/$defs/tree"}}
    return {"properties": {"name": {"type": "string"}, "children": children}}


async def test_break_below_reference_blocks_contract(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.contract("tree.show", inputs=TREE, outputs=ANY)
    workspace.driver("tree-mcp", workspace.serves("./tools/tree.show-1/TOOL.md", "show"))
    config = workspace.config(more="contracts: {on_break: hold}\n")
    number = {**TREE, "properties": {**TREE["properties"], "name": {"type": "number"}}}
    nested = {
        **TREE,
        "properties": {
            "name": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1},
        },
    }

    async with running(workspace, config) as node:
        assert (await node.call("tree.show", **DEEP))["arguments"] == DEEP
        for broken in (number, nested):
            workspace.contract("tree.show", inputs=broken, outputs=ANY)
            await node.until(lambda: "tree.show" not in node.tools, "it is held")
            (found,) = node.drivers.broken_contracts()
            assert found.tool == "tree.show"
            workspace.contract("tree.show", inputs=TREE, outputs=ANY)
            await node.until(lambda: "tree.show" in node.tools, "it is back")
