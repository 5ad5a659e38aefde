"""The difference of two definitions of an MCP tool, or of two lists of them.

Callers make arguments from a tool's schema, so what a schema does not name counts as not sent: a
new optional parameter breaks nobody. What a tool does to the world belongs to its contract, too: a
caller that relied on a tool to change nothing is broken by one that deletes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from interlock.contracts.diff.changes import ChangeReason, SchemaChange, below, shown
from interlock.contracts.diff.documents import escaped
from interlock.contracts.diff.schemas import diff_schemas
from interlock.core.catalog.effects import Annotations, EffectLevel, classify

_R = ChangeReason

_WORDS: Final = ("title", "description")
_HINTS: Final = {
    # What a hint means when a tool does not give it, and which value promises more.
    "readOnlyHint": (False, True, "changes nothing"),
    "destructiveHint": (True, False, "destroys nothing"),
    "idempotentHint": (False, True, "can be repeated without harm"),
    "openWorldHint": (True, False, "reaches nothing outside"),
}
_KNOWN: Final = ("name", "inputSchema", "outputSchema", "annotations", *_WORDS)


def diff_tools(
    old: Mapping[str, Any], new: Mapping[str, Any], *, strict: bool = False
) -> list[SchemaChange]:
    """What changed in a tool: its arguments, its results, what it does, and what it says of itself.

    `strict`: arguments that its schema does not name count as sent, too.
    """
    changes: list[SchemaChange] = []
    if old.get("name") != new.get("name"):
        sentence = f"It was called {old.get('name')}, and is called {new.get('name')} now."
        changes.append(
            SchemaChange(_R.TOOL_RENAMED, "/name", True, sentence, old.get("name"), new.get("name"))
        )
    arguments = diff_schemas(_arguments(old), _arguments(new), "input", strict=strict)
    changes += below("/inputSchema", arguments)
    changes += _results(old.get("outputSchema"), new.get("outputSchema"), strict)
    changes += _effects(_hints(old), _hints(new))
    changes += _said(old, new)
    return sorted(changes, key=lambda one: (not one.breaking, one.path, one.reason))


def diff_tool_lists(
    old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]], *, strict: bool = False
) -> list[SchemaChange]:
    """What changed between two lists of tools, as `tools/list` answers them."""
    before = {str(tool.get("name")): tool for tool in old}
    after = {str(tool.get("name")): tool for tool in new}
    changes: list[SchemaChange] = []
    for name in sorted(before.keys() | after.keys()):
        path = f"/tools/{escaped(name)}"
        if name not in after:
            changes.append(SchemaChange(_R.TOOL_REMOVED, path, True, f"{name} is gone."))
        elif name not in before:
            changes.append(SchemaChange(_R.TOOL_ADDED, path, False, f"{name} is new."))
        else:
            changes += below(path, diff_tools(before[name], after[name], strict=strict))
    return sorted(changes, key=lambda one: (not one.breaking, one.path, one.reason))


def _arguments(tool: Mapping[str, Any]) -> Any:
    schema = tool.get("inputSchema")
    if schema is None:
        schema = {"type": "object"}
    if isinstance(schema, dict) and schema.get("type") == "object" and "properties" not in schema:
        # A tool that names no parameters is called with none.
        return {**schema, "properties": {}}
    return schema


def _results(old: Any, new: Any, strict: bool) -> list[SchemaChange]:
    if old is None and new is None:
        return []
    if old is None:
        sentence = "It says now what its results look like."
        return [SchemaChange(_R.OUTPUT_ADDED, "/outputSchema", False, sentence)]
    if new is None:
        sentence = "It no longer says what its results look like; whoever reads them relied on it."
        return [SchemaChange(_R.OUTPUT_REMOVED, "/outputSchema", True, sentence, shown(old))]
    return below("/outputSchema", diff_schemas(old, new, "output", strict=strict))


def _hints(tool: Mapping[str, Any]) -> dict[str, bool | None]:
    given = tool.get("annotations")
    said = given if isinstance(given, dict) else {}
    return {name: said[name] if isinstance(said.get(name), bool) else None for name in _HINTS}


def _effects(old: dict[str, bool | None], new: dict[str, bool | None]) -> list[SchemaChange]:
    was, now = _level(old), _level(new)
    changes: list[SchemaChange] = []
    for name, (usual, promise, words) in _HINTS.items():
        before = usual if old[name] is None else old[name]
        after = usual if new[name] is None else new[name]
        if name == "destructiveHint":
            if old["readOnlyHint"] and new["readOnlyHint"]:
                # A tool that changes nothing destroys nothing, whatever it says of that.
                continue
            if before is after and old["readOnlyHint"] is new["readOnlyHint"] and was is not now:
                # That it destroys is what MCP assumes, and something else when it says so.
                changes.append(_effect(name, was, now, old[name], new[name]))
                continue
        if before is after:
            continue
        raised = before is promise
        sentence = f"It {'no longer says' if raised else 'says now'} that it {words}"
        sentence += f": it was {was.label}, and is {now.label} now." if was is not now else "."
        reason = _R.EFFECT_RAISED if raised else _R.EFFECT_LOWERED
        changes.append(
            SchemaChange(reason, f"/annotations/{name}", raised, sentence, before, after)
        )
    return changes


def _effect(
    name: str, was: EffectLevel, now: EffectLevel, before: bool | None, after: bool | None
) -> SchemaChange:
    raised = now > was
    reason = _R.EFFECT_RAISED if raised else _R.EFFECT_LOWERED
    sentence = f"It was {was.label}, and is {now.label} now."
    return SchemaChange(reason, f"/annotations/{name}", raised, sentence, before, after)


def _level(hints: dict[str, bool | None]) -> EffectLevel:
    said = Annotations(hints["readOnlyHint"], hints["destructiveHint"])
    return classify("", said, {}).level


def _said(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[SchemaChange]:
    """Words for people and models, and members that nobody here knows."""
    changes: list[SchemaChange] = []
    for word in sorted({*old, *new, "annotations"} - {"_meta"}):
        before, after = old.get(word), new.get(word)
        path = f"/{escaped(word)}"
        if word == "annotations":
            before = before.get("title") if isinstance(before, dict) else None
            after = after.get("title") if isinstance(after, dict) else None
            path = "/annotations/title"
        elif word in _KNOWN and word not in _WORDS:
            continue
        if before == after:
            continue
        described = word in _WORDS or word == "annotations"
        reason = _R.DESCRIPTION_CHANGED if described else _R.ANNOTATION_CHANGED
        sentence = f"Its {word if word in _WORDS else path.rpartition('/')[2]} is another."
        changes.append(SchemaChange(reason, path, False, sentence, shown(before), shown(after)))
    return changes
