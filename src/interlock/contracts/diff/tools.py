"""The differences of two definitions of an MCP tool, or of two lists of tools.

Callers build arguments from a tool's schema, so members that a schema does not name count as not
sent: a new optional parameter is compatible. The effect of a tool belongs to its contract: if a
read-only tool becomes destructive, callers break.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from interlock.contracts.diff.changes import (
    ChangeReason,
    SchemaChange,
    prefix_paths,
    truncate_value,
)
from interlock.contracts.diff.documents import escape_token
from interlock.contracts.diff.schemas import diff_schemas
from interlock.core.catalog.effects import Annotations, EffectLevel, classify

_R = ChangeReason

_TEXT_MEMBERS: Final = ("title", "description")
_HINTS: Final = {
    # The default of each hint, the value that promises more, and the promise.
    "readOnlyHint": (False, True, "changes nothing"),
    "destructiveHint": (True, False, "destroys nothing"),
    "idempotentHint": (False, True, "can be repeated without harm"),
    "openWorldHint": (True, False, "reaches nothing outside"),
}
_COMPARED_MEMBERS: Final = ("name", "inputSchema", "outputSchema", "annotations", *_TEXT_MEMBERS)


def diff_tools(
    old: Mapping[str, Any], new: Mapping[str, Any], *, strict: bool = False
) -> list[SchemaChange]:
    """Return the changes of a tool: its arguments, results, effects and descriptions.

    Args:
        strict: arguments that the schema does not name count as sent.
    """
    changes: list[SchemaChange] = []
    if old.get("name") != new.get("name"):
        message = f"The name changed from {old.get('name')} to {new.get('name')}."
        changes.append(
            SchemaChange(_R.TOOL_RENAMED, "/name", True, message, old.get("name"), new.get("name"))
        )
    arguments = diff_schemas(_arguments(old), _arguments(new), "input", strict=strict)
    changes += prefix_paths("/inputSchema", arguments)
    changes += _diff_results(old.get("outputSchema"), new.get("outputSchema"), strict)
    changes += _diff_effects(_hints(old), _hints(new))
    changes += _diff_texts(old, new)
    return sorted(changes, key=lambda change: (not change.breaking, change.path, change.reason))


def diff_tool_lists(
    old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]], *, strict: bool = False
) -> list[SchemaChange]:
    """Return the changes between two lists of tools, as `tools/list` returns them."""
    before = {str(tool.get("name")): tool for tool in old}
    after = {str(tool.get("name")): tool for tool in new}
    changes: list[SchemaChange] = []
    for name in sorted(before.keys() | after.keys()):
        path = f"/tools/{escape_token(name)}"
        if name not in after:
            changes.append(SchemaChange(_R.TOOL_REMOVED, path, True, f"{name} was removed."))
        elif name not in before:
            changes.append(SchemaChange(_R.TOOL_ADDED, path, False, f"{name} was added."))
        else:
            changes += prefix_paths(path, diff_tools(before[name], after[name], strict=strict))
    return sorted(changes, key=lambda change: (not change.breaking, change.path, change.reason))


def _arguments(tool: Mapping[str, Any]) -> Any:
    schema = tool.get("inputSchema")
    if schema is None:
        schema = {"type": "object"}
    if isinstance(schema, dict) and schema.get("type") == "object" and "properties" not in schema:
        # A tool without parameters is called without arguments.
        return {**schema, "properties": {}}
    return schema


def _diff_results(old: Any, new: Any, strict: bool) -> list[SchemaChange]:
    if old is None and new is None:
        return []
    if old is None:
        message = "The tool now declares a schema for its results."
        return [SchemaChange(_R.OUTPUT_ADDED, "/outputSchema", False, message)]
    if new is None:
        message = "The tool no longer declares a schema for its results. Readers may rely on it."
        return [
            SchemaChange(_R.OUTPUT_REMOVED, "/outputSchema", True, message, truncate_value(old))
        ]
    return prefix_paths("/outputSchema", diff_schemas(old, new, "output", strict=strict))


def _hints(tool: Mapping[str, Any]) -> dict[str, bool | None]:
    annotations = tool.get("annotations")
    hints = annotations if isinstance(annotations, dict) else {}
    return {name: hints[name] if isinstance(hints.get(name), bool) else None for name in _HINTS}


def _diff_effects(old: dict[str, bool | None], new: dict[str, bool | None]) -> list[SchemaChange]:
    old_level, new_level = _effect_level(old), _effect_level(new)
    changes: list[SchemaChange] = []
    for name, (default, promise, promise_text) in _HINTS.items():
        before = default if old[name] is None else old[name]
        after = default if new[name] is None else new[name]
        if name == "destructiveHint":
            if old["readOnlyHint"] and new["readOnlyHint"]:
                # A read-only tool is not destructive, whatever the hint says.
                continue
            if (
                before is after
                and old["readOnlyHint"] is new["readOnlyHint"]
                and old_level is not new_level
            ):
                # Tools are destructive by default in MCP, but an explicit hint has another level.
                changes.append(_effect_change(name, old_level, new_level, old[name], new[name]))
                continue
        if before is after:
            continue
        raised = before is promise
        message = f"It {'no longer promises' if raised else 'now promises'} that it {promise_text}"
        message += (
            f": its effect changed from {old_level.label} to {new_level.label}."
            if old_level is not new_level
            else "."
        )
        reason = _R.EFFECT_RAISED if raised else _R.EFFECT_LOWERED
        changes.append(SchemaChange(reason, f"/annotations/{name}", raised, message, before, after))
    return changes


def _effect_change(
    name: str,
    old_level: EffectLevel,
    new_level: EffectLevel,
    before: bool | None,
    after: bool | None,
) -> SchemaChange:
    raised = new_level > old_level
    reason = _R.EFFECT_RAISED if raised else _R.EFFECT_LOWERED
    message = f"The effect changed from {old_level.label} to {new_level.label}."
    return SchemaChange(reason, f"/annotations/{name}", raised, message, before, after)


def _effect_level(hints: dict[str, bool | None]) -> EffectLevel:
    annotations = Annotations(hints["readOnlyHint"], hints["destructiveHint"])
    return classify("", annotations, {}).level


def _diff_texts(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[SchemaChange]:
    """Return the changes of descriptions, and of members that are not compared."""
    changes: list[SchemaChange] = []
    for member in sorted({*old, *new, "annotations"} - {"_meta"}):
        before, after = old.get(member), new.get(member)
        path = f"/{escape_token(member)}"
        if member == "annotations":
            before = before.get("title") if isinstance(before, dict) else None
            after = after.get("title") if isinstance(after, dict) else None
            path = "/annotations/title"
        elif member in _COMPARED_MEMBERS and member not in _TEXT_MEMBERS:
            continue
        if before == after:
            continue
        is_description = member in _TEXT_MEMBERS or member == "annotations"
        reason = _R.DESCRIPTION_CHANGED if is_description else _R.ANNOTATION_CHANGED
        name = member if member in _TEXT_MEMBERS else path.rpartition("/")[2]
        message = f"{name} changed."
        changes.append(
            SchemaChange(
                reason, path, False, message, truncate_value(before), truncate_value(after)
            )
        )
    return changes
