"""Do two descriptions of one type say the same? What differs, member by member. Pure.

Compared is what a value may be: members, which of them must be there, types, null, words of an
enum. Descriptions, formats and limits of numbers are not: they do not make another type of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from interlock.contracts.schemas.json_schema import Schema
from interlock.protocol.json_pointer import resolve_pointer

DRIFT: Final = "Schema drift detected for type {type}: {diff}"
_MOST_SHOWN: Final = 10
_MOST_DEPTH: Final = 40
_TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean"})


class TypeDescription(msgspec.Struct, frozen=True):
    """One description of a type."""

    where: str
    """Where it stands, as a person finds it."""
    schema: Schema
    root: Schema
    """The document in which its `$ref`s lead somewhere."""


def sentence(type: str, diff: Iterable[str]) -> str:
    """What is said of a type whose descriptions differ."""
    found = list(diff)
    shown = "; ".join(found[:_MOST_SHOWN])
    more = len(found) - _MOST_SHOWN
    return DRIFT.format(type=type, diff=f"{shown}; and {more} more" if more > 0 else shown)


def differences(left: TypeDescription, right: TypeDescription) -> list[str]:
    """What is said by one side only, by the path of the member; empty when they agree."""
    return list(_Comparison(left, right).walk("", left.schema, right.schema, 0))


class _Seen(msgspec.Struct):
    """What a schema says, with its `$ref`s followed and null taken out."""

    types: frozenset[str]
    null: bool = False
    words: frozenset[str] | None = None
    properties: dict[str, Any] = {}
    required: frozenset[str] = frozenset()
    items: Any = None
    values: Any = None
    """What the members are that have no name here."""
    variants: list[Any] = []


class _Comparison:
    def __init__(self, left: TypeDescription, right: TypeDescription) -> None:
        self._left = left
        self._right = right
        self._met: set[tuple[int, int]] = set()

    def walk(self, path: str, left: Any, right: Any, depth: int) -> Iterator[str]:
        one, other = follow(left, self._left.root), follow(right, self._right.root)
        met = id(one), id(other)
        if met in self._met or depth > _MOST_DEPTH:
            # A type that speaks of itself.
            return
        self._met.add(met)
        yield from self._compare(path, see(one, self._left), see(other, self._right), depth)

    def _compare(self, path: str, left: _Seen, right: _Seen, depth: int) -> Iterator[str]:
        here = path or "it"
        if left.types != right.types:
            yield (
                f"{here} is {_of(left.types)} in {self._left.where} and {_of(right.types)} in "
                f"{self._right.where}"
            )
            return
        if left.null != right.null:
            yield f"{here} may be null in {self._where(left.null)} only"
        if left.words != right.words:
            yield from self._words(here, left.words, right.words)
        yield from self._members(path, left, right, depth)
        for of, one, other in (
            ("[]", left.items, right.items),
            ("{}", left.values, right.values),
        ):
            if one is not None and other is not None:
                yield from self.walk(f"{path}{of}", one, other, depth + 1)
        if len(left.variants) != len(right.variants):
            yield (
                f"{here} is one of {len(left.variants)} in {self._left.where} and of "
                f"{len(right.variants)} in {self._right.where}"
            )
            return
        for number, (one, other) in enumerate(zip(left.variants, right.variants, strict=True)):
            yield from self.walk(f"{path}|{number}", one, other, depth + 1)

    def _members(self, path: str, left: _Seen, right: _Seen, depth: int) -> Iterator[str]:
        for name in dict.fromkeys([*left.properties, *right.properties]):
            below = f"{path}.{name}" if path else name
            in_left, in_right = name in left.properties, name in right.properties
            if in_left and in_right:
                if name in left.required ^ right.required:
                    yield f"{below} is required in {self._where(name in left.required)} only"
                one, other = left.properties[name], right.properties[name]
                yield from self.walk(below, one, other, depth + 1)
            else:
                yield f"{below} is in {self._where(in_left)} only"

    def _words(
        self, here: str, left: frozenset[str] | None, right: frozenset[str] | None
    ) -> Iterator[str]:
        if left is None or right is None:
            yield f"{here} is limited to certain words in {self._where(left is not None)} only"
            return
        for word in sorted(left ^ right):
            yield f"{here} may be {word} in {self._where(word in left)} only"

    def _where(self, left: bool) -> str:
        return self._left.where if left else self._right.where


def follow(schema: Any, root: Schema) -> Any:
    """A schema with its `$ref` followed, as far as that leads inside its own document."""
    met: set[str] = set()
    while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        ref = schema["$ref"]
        if ref in met or not ref.startswith("#"):
            break
        met.add(ref)
        found = resolve_pointer(root, ref[1:])
        if found is None:
            break
        schema = found
    return schema


def see(schema: Any, side: TypeDescription) -> _Seen:
    """What a schema says, whichever way it is said."""
    if not isinstance(schema, dict):
        return _Seen(_TYPES, null=True)
    schema = merged(schema, side.root)
    # Something or null, said as a choice.
    for keyword in ("anyOf", "oneOf"):
        options = schema.get(keyword)
        if not isinstance(options, list):
            continue
        others = [one for one in options if follow(one, side.root) != {"type": "null"}]
        null = len(others) < len(options)
        if len(others) == 1:
            seen = see(follow(others[0], side.root), side)
            seen.null = seen.null or null
            return seen
        return _Seen(frozenset(), null=null, variants=others)
    return _plain(schema)


def _plain(schema: Schema) -> _Seen:
    said = schema.get("type")
    types = {said} if isinstance(said, str) else set(said) if isinstance(said, list) else set()
    words = schema.get("enum", [schema["const"]] if "const" in schema else None)
    seen = _Seen(frozenset(types) - {"null"}, null="null" in types)
    if isinstance(words, list):
        seen.null = seen.null or None in words
        seen.words = frozenset(
            msgspec.json.encode(one).decode() for one in words if one is not None
        )
        if not types:
            seen.types = frozenset(_type_of(one) for one in words if one is not None)
    elif not types:
        seen.types, seen.null = _implied(schema)
    properties = schema.get("properties")
    seen.properties = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    seen.required = frozenset(required if isinstance(required, list) else ())
    seen.items = schema.get("items")
    values = schema.get("additionalProperties")
    seen.values = values if isinstance(values, dict) else None
    return seen


def _implied(schema: Schema) -> tuple[frozenset[str], bool]:
    """The types of a schema that does not say any."""
    if "properties" in schema:
        return frozenset({"object"}), False
    if "items" in schema:
        return frozenset({"array"}), False
    return _TYPES, True


def merged(schema: Schema, root: Schema, depth: int = 0) -> Schema:
    """A schema with its `allOf` in it, as far as that is a matter of members."""
    parts = schema.get("allOf")
    if not isinstance(parts, list) or depth > _MOST_DEPTH:
        return schema
    whole = {key: value for key, value in schema.items() if key != "allOf"}
    for part in parts:
        one = follow(part, root)
        if not isinstance(one, dict):
            continue
        one = merged(one, root, depth + 1)
        for key, value in one.items():
            if key == "properties" and isinstance(value, dict):
                whole[key] = {**whole.get(key, {}), **value}
            elif key == "required" and isinstance(value, list):
                whole[key] = [*whole.get(key, []), *value]
            else:
                whole.setdefault(key, value)
    return whole


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def _of(types: frozenset[str]) -> str:
    if types == _TYPES:
        return "anything"
    return " or ".join(sorted(types)) or "a choice"
