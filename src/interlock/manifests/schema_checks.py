"""Schemas that a stranger wrote: are they JSON Schema 2020-12, and can they be used without harm?

Nothing is fetched: a schema refers to itself or to one of ours. A reference that leads back to
itself without ever going deeper into a value would never end, so it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote, urljoin

import jsonschema_rs
from msgspec import Struct

from interlock.config.problems import KeyPath, quoted
from interlock.manifests import schemas
from interlock.manifests.schema_parts import DIALECT
from interlock.protocol.json_pointer import at_pointer

MOST_VALUES: Final = 50_000
"""More than any schema of a tool has."""
MOST_DEPTH: Final = 64

_DIALECT_BASE: Final = "https://json-schema.org/draft/2020-12/"
_KEEP_IT_HERE: Final = 'put it under $defs and refer to it as "#/$defs/name"'
# Keywords whose schemas look at the same value again.
_SAME_VALUE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SAME_VALUE: Final = ("not", "if", "then", "else")
# Keywords with schemas in them: by name, in a list, or one.
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTED: Final = (*_SAME_VALUE_LISTS, "prefixItems")
_ONE: Final = (
    *_SAME_VALUE, "items", "additionalProperties", "contains", "propertyNames", "contentSchema",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip


class SchemaFault(Struct, frozen=True):
    """What is wrong with a schema, and where in it."""

    path: KeyPath
    message: str
    hint: str


def check_schema(schema: Any) -> list[SchemaFault]:
    """Everything that is wrong with a schema; nothing when it can be used."""
    size = _size(schema, 0)
    if size > MOST_VALUES:
        return [
            SchemaFault((), f"the schema has more than {MOST_VALUES} values", "use a smaller one")
        ]
    if size < 0:
        return [SchemaFault((), "the schema is nested too deeply", "use fewer levels")]
    if not isinstance(schema, dict):
        return [SchemaFault((), "a schema is an object here", "write {type: object, …}")]
    dialect = schema.get("$schema", DIALECT)
    if dialect != DIALECT and dialect != f"{DIALECT}#":
        shown = quoted(dialect) if isinstance(dialect, str) else "this"
        return [SchemaFault(("$schema",), f"{shown} is not the dialect here", f"write {DIALECT}")]
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as error:
        path = tuple(error.instance_path)
        return [SchemaFault(path, "this is not JSON Schema 2020-12", _about(error))]
    except ValueError:
        return [SchemaFault((), "this is not JSON Schema 2020-12", "check it")]
    faults = _Resources(schema).faults()
    if faults:
        return faults
    try:
        jsonschema_rs.Draft202012Validator(
            schema, registry=schemas.registry(), retriever=schemas.no_retrieval
        )
    except jsonschema_rs.ValidationError as error:
        path = tuple(error.instance_path)
        return [SchemaFault(path, "this cannot be used as a schema", _about(error))]
    except (ValueError, jsonschema_rs.ReferencingError):
        return [SchemaFault((), "a reference in it leads nowhere", _KEEP_IT_HERE)]
    return []


def self_contained(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that was checked, with ours in it that it refers to: it needs nobody then."""
    needed: dict[str, dict[str, Any]] = {}
    waiting = [schema]
    while waiting:
        for _, _, target in _references(waiting.pop()):
            address = target.partition("#")[0]
            known = schemas.at_address(address) if address and address not in needed else None
            if known is not None:
                needed[address] = known
                waiting.append(known)
    if not needed:
        return schema
    return {**schema, "$defs": {**schema.get("$defs", {}), **needed}}


def _about(error: jsonschema_rs.ValidationError) -> str:
    said = error.message.partition("\n")[0]
    return said if len(said) <= 160 else f"{said[:160]}…"


def _size(value: Any, depth: int) -> int:
    """How many values there are in one; -1 when it is nested too deeply."""
    if depth > MOST_DEPTH:
        return -1
    if not isinstance(value, (dict, list)):
        return 1
    total = 1
    for inner in value.values() if isinstance(value, dict) else value:
        size = _size(inner, depth + 1)
        if size < 0:
            return -1
        total += size
        if total > MOST_VALUES:
            break
    return total


def _below(schema: dict[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """A schema and all schemas in it, each with its place. Data in it is not looked at."""
    yield path, schema
    for word in _NAMED:
        named = schema.get(word)
        if isinstance(named, dict):
            for name, inner in named.items():
                if isinstance(inner, dict):
                    yield from _below(inner, (*path, word, name))
    for word in _LISTED:
        listed = schema.get(word)
        if isinstance(listed, list):
            for index, inner in enumerate(listed):
                if isinstance(inner, dict):
                    yield from _below(inner, (*path, word, index))
    for word in _ONE:
        inner = schema.get(word)
        if isinstance(inner, dict):
            yield from _below(inner, (*path, word))


def _references(schema: dict[str, Any]) -> Iterator[tuple[KeyPath, dict[str, Any], str]]:
    """The references in a schema: where each stands, the schema it stands in, where it leads."""
    for path, inner in _below(schema, ()):
        for word in ("$ref", "$dynamicRef"):
            if isinstance(inner.get(word), str):
                yield (*path, word), inner, inner[word]


class _Resources:
    """The schemas inside a schema, by address, and where their references lead."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._roots: dict[str, dict[str, Any]] = {}
        self._anchors: dict[tuple[str, str], dict[str, Any]] = {}
        self._bases: dict[int, str] = {}
        self._paths: dict[int, KeyPath] = {}

    def faults(self) -> list[SchemaFault]:
        references = list(_references(self._schema))
        if not references:
            return []
        self._collect()
        found = [
            fault
            for path, holder, target in references
            if (fault := self._unreachable(path, holder, target)) is not None
        ]
        return found or self._endless()

    def _collect(self) -> None:
        bases: dict[KeyPath, str] = {}
        for path, schema in _below(self._schema, ()):
            above = path
            while above and (above := above[:-1]) not in bases:
                pass
            base = bases.get(above, "")
            own = schema.get("$id")
            if isinstance(own, str):
                base = urljoin(base, own).partition("#")[0]
            if isinstance(own, str) or not path:
                self._roots[base] = schema
            bases[path] = self._bases[id(schema)] = base
            self._paths[id(schema)] = path
            for word in ("$anchor", "$dynamicAnchor"):
                if isinstance(schema.get(word), str):
                    self._anchors[base, schema[word]] = schema

    def _unreachable(
        self, path: KeyPath, holder: dict[str, Any], target: str
    ) -> SchemaFault | None:
        address = self._address(holder, target)
        if address in self._roots:
            if self._target(holder, target) is None:
                return SchemaFault(path, f"{quoted(target)} leads nowhere", _KEEP_IT_HERE)
            return None
        if address.startswith(_DIALECT_BASE) or schemas.at_address(address) is not None:
            return None
        return SchemaFault(
            path, f"a schema may not refer to {quoted(target)}: nothing is fetched", _KEEP_IT_HERE
        )

    def _address(self, holder: dict[str, Any], target: str) -> str:
        base = self._bases.get(id(holder), "")
        return urljoin(base, target.partition("#")[0]) if target[:1] != "#" else base

    def _target(self, holder: dict[str, Any], target: str) -> dict[str, Any] | bool | None:
        """The schema that a reference leads to, None where it leads nowhere (here)."""
        address = self._address(holder, target)
        found: Any = self._roots.get(address)
        fragment = unquote(target.partition("#")[2])
        if found is None:
            return None
        if fragment and not fragment.startswith("/"):
            return self._anchors.get((address, fragment))
        found = at_pointer(found, fragment)
        return found if isinstance(found, (dict, bool)) else None

    def _again(self, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The schemas that look at the same value as this one."""
        for word in ("$ref", "$dynamicRef"):
            if isinstance(schema.get(word), str):
                target = self._target(schema, schema[word])
                if isinstance(target, dict):
                    yield target
        for word in _SAME_VALUE_LISTS:
            for inner in schema.get(word, ()):
                if isinstance(inner, dict):
                    yield inner
        for word in _SAME_VALUE:
            if isinstance(schema.get(word), dict):
                yield schema[word]
        for inner in schema.get("dependentSchemas", {}).values():
            if isinstance(inner, dict):
                yield inner

    def _endless(self) -> list[SchemaFault]:
        """A circle of schemas that all look at the same value."""
        done: set[int] = set()
        for _, start in _below(self._schema, ()):
            if id(start) in done:
                continue
            under_way = {id(start): None}
            stack = [(start, self._again(start))]
            while stack:
                schema, rest = stack[-1]
                following = next(rest, None)
                if following is None:
                    done.add(id(schema))
                    under_way.pop(id(schema), None)
                    stack.pop()
                elif id(following) in under_way:
                    return [
                        SchemaFault(
                            self._paths.get(id(schema), ()),
                            "this leads back to itself and would never end",
                            "let the reference stand below properties or items",
                        )
                    ]
                elif id(following) not in done:
                    under_way[id(following)] = None
                    stack.append((following, self._again(following)))
        return []
