"""Comparison of two descriptions of one type, member by member. Pure.

Compared are the values that a type allows: members, required members, types, null, and enum values.
Descriptions, formats and numeric limits are ignored: they do not make it another type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from interlock.contracts.schemas.json_schema import Schema
from interlock.protocol.json_pointer import resolve_pointer

DRIFT: Final = "Schema drift detected for type {type}: {diff}"
_MAX_LISTED: Final = 10
_MAX_DEPTH: Final = 40
_TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean"})


class TypeDescription(msgspec.Struct, frozen=True):
    """One description of a type."""

    location: str
    """The location, for messages."""
    schema: Schema
    root: Schema
    """The document that contains the schema, for `$ref`s."""


def format_drift(type: str, diff: Iterable[str]) -> str:
    """Return the message about a type whose descriptions differ."""
    differences = list(diff)
    listed = "; ".join(differences[:_MAX_LISTED])
    remainder = len(differences) - _MAX_LISTED
    return DRIFT.format(
        type=type, diff=f"{listed}; and {remainder} more" if remainder > 0 else listed
    )


def find_differences(left: TypeDescription, right: TypeDescription) -> list[str]:
    """Return the differences between two descriptions, each with the path of the member."""
    return list(_Comparison(left, right).compare("", left.schema, right.schema, 0))


class _SchemaSummary(msgspec.Struct):
    """The values that a schema allows, with `$ref`s resolved and null separated."""

    types: frozenset[str]
    null: bool = False
    enum_values: frozenset[str] | None = None
    properties: dict[str, Any] = {}
    required: frozenset[str] = frozenset()
    items: Any = None
    additional: Any = None
    """The schema of members without a name here."""
    alternatives: list[Any] = []


class _Comparison:
    def __init__(self, left: TypeDescription, right: TypeDescription) -> None:
        self._left = left
        self._right = right
        self._visited: set[tuple[int, int]] = set()

    def compare(self, path: str, left: Any, right: Any, depth: int) -> Iterator[str]:
        left_schema, right_schema = (
            resolve_ref(left, self._left.root),
            resolve_ref(right, self._right.root),
        )
        pair = id(left_schema), id(right_schema)
        if pair in self._visited or depth > _MAX_DEPTH:
            # A recursive type.
            return
        self._visited.add(pair)
        yield from self._compare(
            path, summarize(left_schema, self._left), summarize(right_schema, self._right), depth
        )

    def _compare(
        self, path: str, left: _SchemaSummary, right: _SchemaSummary, depth: int
    ) -> Iterator[str]:
        label = path or "it"
        if left.types != right.types:
            yield (
                f"{label} is {_format_types(left.types)} in {self._left.location} and "
                f"{_format_types(right.types)} in {self._right.location}"
            )
            return
        if left.null != right.null:
            yield f"{label} may be null in {self._location(left.null)} only"
        if left.enum_values != right.enum_values:
            yield from self._compare_enums(label, left.enum_values, right.enum_values)
        yield from self._compare_members(path, left, right, depth)
        for suffix, left_child, right_child in (
            ("[]", left.items, right.items),
            ("{}", left.additional, right.additional),
        ):
            if left_child is not None and right_child is not None:
                yield from self.compare(f"{path}{suffix}", left_child, right_child, depth + 1)
        if len(left.alternatives) != len(right.alternatives):
            yield (
                f"{label} has {len(left.alternatives)} alternatives in {self._left.location} and "
                f"{len(right.alternatives)} in {self._right.location}"
            )
            return
        for number, (left_child, right_child) in enumerate(
            zip(left.alternatives, right.alternatives, strict=True)
        ):
            yield from self.compare(f"{path}|{number}", left_child, right_child, depth + 1)

    def _compare_members(
        self, path: str, left: _SchemaSummary, right: _SchemaSummary, depth: int
    ) -> Iterator[str]:
        for name in dict.fromkeys([*left.properties, *right.properties]):
            member_path = f"{path}.{name}" if path else name
            in_left, in_right = name in left.properties, name in right.properties
            if in_left and in_right:
                if name in left.required ^ right.required:
                    location = self._location(name in left.required)
                    yield f"{member_path} is required in {location} only"
                left_child, right_child = left.properties[name], right.properties[name]
                yield from self.compare(member_path, left_child, right_child, depth + 1)
            else:
                yield f"{member_path} is in {self._location(in_left)} only"

    def _compare_enums(
        self, label: str, left: frozenset[str] | None, right: frozenset[str] | None
    ) -> Iterator[str]:
        if left is None or right is None:
            yield f"{label} is limited to certain values in {self._location(left is not None)} only"
            return
        for value in sorted(left ^ right):
            yield f"{label} may be {value} in {self._location(value in left)} only"

    def _location(self, left: bool) -> str:
        return self._left.location if left else self._right.location


def resolve_ref(schema: Any, root: Schema) -> Any:
    """Resolve the `$ref` of a schema, as long as it points into its own document."""
    visited: set[str] = set()
    while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        ref = schema["$ref"]
        if ref in visited or not ref.startswith("#"):
            break
        visited.add(ref)
        target = resolve_pointer(root, ref[1:])
        if target is None:
            break
        schema = target
    return schema


def summarize(schema: Any, description: TypeDescription) -> _SchemaSummary:
    """Return what a schema allows."""
    if not isinstance(schema, dict):
        return _SchemaSummary(_TYPES, null=True)
    schema = merge_all_of(schema, description.root)
    # A value or null, as a choice.
    for keyword in ("anyOf", "oneOf"):
        options = schema.get(keyword)
        if not isinstance(options, list):
            continue
        others = [
            option
            for option in options
            if resolve_ref(option, description.root) != {"type": "null"}
        ]
        null = len(others) < len(options)
        if len(others) == 1:
            summary = summarize(resolve_ref(others[0], description.root), description)
            summary.null = summary.null or null
            return summary
        return _SchemaSummary(frozenset(), null=null, alternatives=others)
    return _summarize_keywords(schema)


def _summarize_keywords(schema: Schema) -> _SchemaSummary:
    declared = schema.get("type")
    types = (
        {declared}
        if isinstance(declared, str)
        else set(declared)
        if isinstance(declared, list)
        else set()
    )
    enum_values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    summary = _SchemaSummary(frozenset(types) - {"null"}, null="null" in types)
    if isinstance(enum_values, list):
        summary.null = summary.null or None in enum_values
        summary.enum_values = frozenset(
            msgspec.json.encode(value).decode() for value in enum_values if value is not None
        )
        if not types:
            summary.types = frozenset(
                _json_type(value) for value in enum_values if value is not None
            )
    elif not types:
        summary.types, summary.null = _infer_types(schema)
    properties = schema.get("properties")
    summary.properties = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    summary.required = frozenset(required if isinstance(required, list) else ())
    summary.items = schema.get("items")
    additional = schema.get("additionalProperties")
    summary.additional = additional if isinstance(additional, dict) else None
    return summary


def _infer_types(schema: Schema) -> tuple[frozenset[str], bool]:
    """Return the types of a schema without `type`, and whether null is allowed."""
    if "properties" in schema:
        return frozenset({"object"}), False
    if "items" in schema:
        return frozenset({"array"}), False
    return _TYPES, True


def merge_all_of(schema: Schema, root: Schema, depth: int = 0) -> Schema:
    """Merge the members of `allOf` into a schema."""
    parts = schema.get("allOf")
    if not isinstance(parts, list) or depth > _MAX_DEPTH:
        return schema
    merged = {key: value for key, value in schema.items() if key != "allOf"}
    for part in parts:
        resolved = resolve_ref(part, root)
        if not isinstance(resolved, dict):
            continue
        resolved = merge_all_of(resolved, root, depth + 1)
        for key, value in resolved.items():
            if key == "properties" and isinstance(value, dict):
                merged[key] = {**merged.get(key, {}), **value}
            elif key == "required" and isinstance(value, list):
                merged[key] = [*merged.get(key, []), *value]
            else:
                merged.setdefault(key, value)
    return merged


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def _format_types(types: frozenset[str]) -> str:
    if types == _TYPES:
        return "anything"
    return " or ".join(sorted(types)) or "a choice"
