"""What a JSON Schema says on the face of it: its members, which are required, and basic types.

Contracts and tools are held against each other with this when a driver is registered. It is no
subtyping: local references and `allOf` are followed, alternatives are united, and whatever cannot
be seen counts as allowed. What is refused by it would really have failed. A stranger's schema may
refer to itself, be huge or be nonsense: the work is bounded, and nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

from interlock.protocol.json_pointer import resolve_pointer

TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_MOST_LAYERS: Final = 64
_DEEPEST: Final = 16
_MOST_VIEWS: Final = 4096
"""Of one document: alternatives of alternatives grow without end."""
_ALTERNATIVES: Final = ("anyOf", "oneOf")


class SchemaView:
    """All that holds for one place of an instance, whatever the rest of it is."""

    def __init__(
        self, schemas: Iterable[Any], document: Any, budget: list[int], depth: int = 0
    ) -> None:
        self._document = document
        self._budget = budget
        self._depth = depth
        self.certain = True
        """False: there is a reference here that could not be followed."""
        self.layers: list[dict[str, Any]] = []
        self.impossible = False
        """No value fits: the schema is `false`."""
        budget[0] -= 1
        if budget[0] >= 0:
            self._take(schemas)
        else:
            self.certain = False

    @classmethod
    def of(cls, schema: Any) -> SchemaView:
        """The root of a schema."""
        return cls((schema,), schema, [_MOST_VIEWS])

    def _take(self, schemas: Iterable[Any]) -> None:
        waiting = list(schemas)
        seen: set[int] = set()
        while waiting:
            schema = waiting.pop(0)
            if schema is False:
                self.impossible = True
            if not isinstance(schema, dict) or id(schema) in seen:
                continue
            if len(seen) == _MOST_LAYERS:
                self.certain = False
                return
            seen.add(id(schema))
            self.layers.append(schema)
            reference = schema.get("$ref")
            if reference is not None:
                target = _pointed(self._document, reference)
                if target is None:
                    self.certain = False
                else:
                    waiting.append(target)
            if "$dynamicRef" in schema:
                self.certain = False
            every = schema.get("allOf")
            if isinstance(every, list):
                waiting += every

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The members that are declared, in their order."""
        return tuple(dict.fromkeys(name for found in self._all("properties") for name in found))

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
        """Whether members that are not declared are refused for certain."""
        if not self.certain or any(
            word in layer for layer in self.layers for word in _ALTERNATIVES
        ):
            return False
        return any(
            layer.get(word) is False
            for layer in self.layers
            for word in ("additionalProperties", "unevaluatedProperties")
        )

    def member(self, name: str) -> SchemaView | None:
        """What is declared of a member. None: nothing is, by its name or by a pattern."""
        found = [declared[name] for declared in self._all("properties") if name in declared]
        for patterns in self._all("patternProperties"):
            found += [schema for pattern, schema in patterns.items() if _matches(pattern, name)]
        return self._below(found) if found else None

    def other_member(self) -> SchemaView | None:
        """What is said of members that are not declared. None: nothing is."""
        found = [
            layer["additionalProperties"]
            for layer in self.layers
            if layer.get("additionalProperties") not in (None, False)
        ]
        return self._below(found) if found else None

    def item(self, index: int | None = None) -> SchemaView | None:
        """What is said of an item: of this one, or of all that have no place of their own."""
        found = []
        for layer in self.layers:
            first = layer.get("prefixItems")
            if index is not None and isinstance(first, list) and 0 <= index < len(first):
                found.append(first[index])
            elif "items" in layer:
                found.append(layer["items"])
        return self._below(found) if found else None

    def alternatives(self) -> Iterator[SchemaView]:
        """Its branches, if it has some."""
        if self._depth < _DEEPEST:
            for layer in self.layers:
                for word in _ALTERNATIVES:
                    branches = layer.get(word)
                    if isinstance(branches, list):
                        for branch in branches[:_MOST_LAYERS]:
                            yield self._below([branch])

    @cached_property
    def types(self) -> frozenset[str]:
        """The types that a value here can have. `number` always comes with `integer`."""
        if self.impossible:
            return frozenset()
        possible = TYPES
        for layer in self.layers:
            possible &= _types_of(layer)
        if self._depth >= _DEEPEST:
            return possible
        for layer in self.layers:
            for word in _ALTERNATIVES:
                branches = layer.get(word)
                if isinstance(branches, list) and branches:
                    united: frozenset[str] = frozenset()
                    for branch in branches[:_MOST_LAYERS]:
                        united |= self._below([branch]).types
                    if len(branches) <= _MOST_LAYERS:
                        possible &= united
        return possible

    def _all(self, word: str) -> Iterator[dict[str, Any]]:
        for layer in self.layers:
            found = layer.get(word)
            if isinstance(found, dict):
                yield found

    def _below(self, schemas: list[Any]) -> SchemaView:
        return SchemaView(schemas, self._document, self._budget, self._depth + 1)


def _types_of(layer: dict[str, Any]) -> frozenset[str]:
    """The types that one schema itself leaves."""
    possible = TYPES
    said = layer.get("type")
    if isinstance(said, str):
        said = [said]
    if isinstance(said, list):
        named = {one for one in said if isinstance(one, str)}
        possible &= named | ({"integer"} if "number" in named else set())
    if "const" in layer:
        possible &= type_of(layer["const"])
    values = layer.get("enum")
    if isinstance(values, list):
        possible &= frozenset().union(*(type_of(one) for one in values))
    return possible


def type_of(value: Any) -> frozenset[str]:
    """The types that a value has: 1 is a number and an integer."""
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


def _pointed(document: Any, reference: Any) -> Any:
    """What a local reference leads to. None: it is none, or leads nowhere."""
    if reference == "#":
        return document
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    return resolve_pointer(document, unquote(reference[1:]))


def _matches(pattern: Any, name: str) -> bool:
    """Whether a pattern may take a name. Patterns of strangers are not run: only plain ones are
    looked at, any other may."""
    if isinstance(pattern, str) and re.fullmatch(r"\^[\w-]*", pattern):
        return name.startswith(pattern[1:])
    return True
