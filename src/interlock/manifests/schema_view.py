"""A view of a JSON Schema: its members, required members, and basic types.

It compares contracts and tools when a driver is registered. It is not a subtype check: local
references and `allOf` are followed, alternatives are united, and unknown constraints count as
satisfied, so a reported mismatch is always real. An untrusted schema may be recursive, huge or
invalid: the work is limited, and nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

from interlock.protocol.json_pointer import resolve_pointer

TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_MAX_LAYERS: Final = 64
_MAX_DEPTH: Final = 16
_MAX_VIEWS: Final = 4096
"""For one document, because alternatives of alternatives grow without a limit."""
_ALTERNATIVES: Final = ("anyOf", "oneOf")


class SchemaView:
    """All schemas that apply to one place of an instance."""

    def __init__(
        self, schemas: Iterable[Any], document: Any, budget: list[int], depth: int = 0
    ) -> None:
        self._document = document
        self._budget = budget
        self._depth = depth
        self.certain = True
        """False if a reference could not be followed."""
        self.layers: list[dict[str, Any]] = []
        self.impossible = False
        """True if no value is valid: the schema is `false`."""
        budget[0] -= 1
        if budget[0] >= 0:
            self._collect(schemas)
        else:
            self.certain = False

    @classmethod
    def of(cls, schema: Any) -> SchemaView:
        """Return a view of the root of a schema."""
        return cls((schema,), schema, [_MAX_VIEWS])

    def _collect(self, schemas: Iterable[Any]) -> None:
        queue = list(schemas)
        seen: set[int] = set()
        while queue:
            schema = queue.pop(0)
            if schema is False:
                self.impossible = True
            if not isinstance(schema, dict) or id(schema) in seen:
                continue
            if len(seen) == _MAX_LAYERS:
                self.certain = False
                return
            seen.add(id(schema))
            self.layers.append(schema)
            reference = schema.get("$ref")
            if reference is not None:
                target = _resolve(self._document, reference)
                if target is None:
                    self.certain = False
                else:
                    queue.append(target)
            if "$dynamicRef" in schema:
                self.certain = False
            every = schema.get("allOf")
            if isinstance(every, list):
                queue += every

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The declared members, in their order."""
        return tuple(
            dict.fromkeys(
                name for declared in self._keyword_objects("properties") for name in declared
            )
        )

    @cached_property
    def required(self) -> frozenset[str]:
        return frozenset(
            name
            for layer in self.layers
            if isinstance(layer.get("required"), list)
            for name in layer["required"]
            if isinstance(name, str)
        )

    @cached_property
    def closed(self) -> bool:
        """True if undeclared members are certainly rejected."""
        if not self.certain or any(
            keyword in layer for layer in self.layers for keyword in _ALTERNATIVES
        ):
            return False
        return any(
            layer.get(keyword) is False
            for layer in self.layers
            for keyword in ("additionalProperties", "unevaluatedProperties")
        )

    def member(self, name: str) -> SchemaView | None:
        """Return the view of a declared member. None: it is not declared, by name or by pattern."""
        schemas = [
            declared[name] for declared in self._keyword_objects("properties") if name in declared
        ]
        for patterns in self._keyword_objects("patternProperties"):
            schemas += [schema for pattern, schema in patterns.items() if _matches(pattern, name)]
        return self._nested(schemas) if schemas else None

    def other_member(self) -> SchemaView | None:
        """Return the view of undeclared members. None: they have no schema."""
        schemas = [
            layer["additionalProperties"]
            for layer in self.layers
            if layer.get("additionalProperties") not in (None, False)
        ]
        return self._nested(schemas) if schemas else None

    def item(self, index: int | None = None) -> SchemaView | None:
        """Return the view of the item at `index`, or of items without a prefix schema."""
        schemas = []
        for layer in self.layers:
            prefix = layer.get("prefixItems")
            if index is not None and isinstance(prefix, list) and 0 <= index < len(prefix):
                schemas.append(prefix[index])
            elif "items" in layer:
                schemas.append(layer["items"])
        return self._nested(schemas) if schemas else None

    def alternatives(self) -> Iterator[SchemaView]:
        """Yield the views of its alternatives."""
        if self._depth < _MAX_DEPTH:
            for layer in self.layers:
                for keyword in _ALTERNATIVES:
                    branches = layer.get(keyword)
                    if isinstance(branches, list):
                        for branch in branches[:_MAX_LAYERS]:
                            yield self._nested([branch])

    @cached_property
    def types(self) -> frozenset[str]:
        """The possible types of a value. `number` always comes with `integer`."""
        if self.impossible:
            return frozenset()
        possible = TYPES
        for layer in self.layers:
            possible &= _types_of(layer)
        if self._depth >= _MAX_DEPTH:
            return possible
        for layer in self.layers:
            for keyword in _ALTERNATIVES:
                branches = layer.get(keyword)
                if isinstance(branches, list) and branches:
                    united: frozenset[str] = frozenset()
                    for branch in branches[:_MAX_LAYERS]:
                        united |= self._nested([branch]).types
                    if len(branches) <= _MAX_LAYERS:
                        possible &= united
        return possible

    def _keyword_objects(self, keyword: str) -> Iterator[dict[str, Any]]:
        for layer in self.layers:
            value = layer.get(keyword)
            if isinstance(value, dict):
                yield value

    def _nested(self, schemas: list[Any]) -> SchemaView:
        return SchemaView(schemas, self._document, self._budget, self._depth + 1)


def _types_of(layer: dict[str, Any]) -> frozenset[str]:
    """Return the types that one schema allows."""
    possible = TYPES
    declared = layer.get("type")
    if isinstance(declared, str):
        declared = [declared]
    if isinstance(declared, list):
        named = {name for name in declared if isinstance(name, str)}
        possible &= named | ({"integer"} if "number" in named else set())
    if "const" in layer:
        possible &= type_of(layer["const"])
    values = layer.get("enum")
    if isinstance(values, list):
        possible &= frozenset().union(*(type_of(value) for value in values))
    return possible


def type_of(value: Any) -> frozenset[str]:
    """Return the types of a value: 1 is a number and an integer."""
    if value is None:
        return frozenset({"null"})
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int):
        return frozenset({"integer", "number"})
    if isinstance(value, float):
        return frozenset({"integer", "number"} if value.is_integer() else {"number"})
    if isinstance(value, str):
        return frozenset({"string"})
    return frozenset({"array"} if isinstance(value, list | tuple) else {"object"})


def _resolve(document: Any, reference: Any) -> Any:
    """Return the target of a local reference. None: it is not local, or has no target."""
    if reference == "#":
        return document
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    return resolve_pointer(document, unquote(reference[1:]))


def _matches(pattern: Any, name: str) -> bool:
    """Return whether a pattern may match a name. Untrusted patterns are not run: simple prefixes
    are compared, any other pattern may match."""
    if isinstance(pattern, str) and re.fullmatch(r"\^[\w-]*", pattern):
        return name.startswith(pattern[1:])
    return True
