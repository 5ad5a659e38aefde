"""Tests of tools as contracts: arguments, results, effects and descriptions."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.contracts.diff.tools import diff_tool_lists, diff_tools
from tests.contracts.diff.schema_table import INTEGER, STRING, closed_obj, obj
from tests.contracts.diff.test_schema_table import label


def tool(**more: Any) -> dict[str, Any]:
    return {"name": "t", "description": "d", "inputSchema": obj({"a": STRING}), **more}


def tool_with(**said: bool) -> dict[str, Any]:
    return tool(annotations=said)


ROWS: list[tuple[str, dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    ("optional parameter", tool(), tool(inputSchema=obj({"a": STRING, "b": STRING})),
     ("FIELD_ADDED_OPTIONAL /inputSchema/properties/b",)),
    ("first parameter", tool(inputSchema={"type": "object"}), tool(),
     ("FIELD_ADDED_OPTIONAL /inputSchema/properties/a",)),
    ("required parameter", tool(), tool(inputSchema=obj({"a": STRING}, required=["a"])),
     ("!REQUIRED_FIELD_ADDED /inputSchema/properties/a",)),
    ("parameter of another type", tool(), tool(inputSchema=obj({"a": INTEGER})),
     ("!FIELD_TYPE_CHANGED /inputSchema/properties/a",)),
    ("parameter gone", tool(), tool(inputSchema=obj({})),
     ("!FIELD_REMOVED /inputSchema/properties/a",)),
    ("parameters closed", tool(), tool(inputSchema=closed_obj({"a": STRING})),
     ("!ADDITIONAL_PROPERTIES_CLOSED /inputSchema/additionalProperties",)),
    ("result described", tool(), tool(outputSchema=obj({"x": STRING})),
     ("OUTPUT_ADDED /outputSchema",)),
    ("result no longer described", tool(outputSchema=obj({"x": STRING})), tool(),
     ("!OUTPUT_REMOVED /outputSchema",)),
    ("result with more", tool(outputSchema=closed_obj({"x": STRING})),
     tool(outputSchema=closed_obj({"x": STRING, "y": STRING})),
     ("FIELD_ADDED_OPTIONAL /outputSchema/properties/y",)),
    ("result with less", tool(outputSchema=obj({"x": STRING}, required=["x"])),
     tool(outputSchema=obj({"x": STRING})),
     ("!REQUIRED_FIELD_DROPPED /outputSchema/properties/x",)),
    ("description", tool(), tool(description="e"), ("DESCRIPTION_CHANGED /description",)),
    ("title", tool(), tool(title="T"), ("DESCRIPTION_CHANGED /title",)),
    ("title as annotation", tool(), tool(annotations={"title": "T"}),
     ("DESCRIPTION_CHANGED /annotations/title",)),
    ("name", tool(), tool(name="u"), ("!TOOL_RENAMED /name",)),
    ("something else", tool(), tool(icons=[]), ("ANNOTATION_CHANGED /icons",)),
    ("meta is nobody's contract", tool(), tool(_meta={"x": 1}), ()),
    ("read-only no more", tool_with(readOnlyHint=True), tool_with(),
     ("!EFFECT_RAISED /annotations/readOnlyHint",)),
    ("read-only to destructive", tool_with(readOnlyHint=True), tool_with(destructiveHint=True),
     ("!EFFECT_RAISED /annotations/readOnlyHint",)),
    ("read-only now", tool_with(), tool_with(readOnlyHint=True),
     ("EFFECT_LOWERED /annotations/readOnlyHint",)),
    ("destructive", tool_with(destructiveHint=False), tool_with(destructiveHint=True),
     ("!EFFECT_RAISED /annotations/destructiveHint",)),
    ("destructive, said for the first time", tool_with(), tool_with(destructiveHint=True),
     ("!EFFECT_RAISED /annotations/destructiveHint",)),
    ("destructive of what reads", tool_with(readOnlyHint=True),
     tool_with(readOnlyHint=True, destructiveHint=True), ()),
    ("repeatable no more", tool_with(idempotentHint=True), tool_with(),
     ("!EFFECT_RAISED /annotations/idempotentHint",)),
    ("reaches outside", tool_with(openWorldHint=False), tool_with(),
     ("!EFFECT_RAISED /annotations/openWorldHint",)),
    ("what is usual, written out", tool_with(),
     tool_with(readOnlyHint=False, idempotentHint=False), ()),
    ("a hint that is none", tool_with(), {**tool(), "annotations": {"readOnlyHint": "yes"}}, ()),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), [row[1:] for row in ROWS],
                         ids=[row[0] for row in ROWS])  # fmt: skip
def test_names_changes_of_tool(
    old: dict[str, Any], new: dict[str, Any], expected: tuple[str, ...]
) -> None:
    assert [label(change) for change in diff_tools(old, new)] == list(expected)
    assert diff_tools(old, old) == []


def test_strict_comparison_reports_new_parameter() -> None:
    wider = tool(inputSchema=obj({"a": STRING, "b": STRING}))
    assert [label(change) for change in diff_tools(tool(), wider, strict=True)] == [
        "!FIELD_CLAIMED /inputSchema/properties/b"
    ]


def test_compares_tool_lists() -> None:
    old = [tool(name="a/b"), tool(name="c")]
    new = [tool(name="d"), tool(name="c", description="e")]
    assert [label(change) for change in diff_tool_lists(old, new)] == [
        "!TOOL_REMOVED /tools/a~1b",
        "DESCRIPTION_CHANGED /tools/c/description",
        "TOOL_ADDED /tools/d",
    ]


@pytest.mark.parametrize("schema", [3, [], "x", {"type": 3}, None])
def test_invalid_schema_is_breaking(schema: Any) -> None:
    broken = tool(inputSchema=schema)
    assert diff_tools(broken, broken) == []
    changes = diff_tools(tool(), broken)
    assert any(change.breaking for change in changes)
