"""Field names as other languages spell them: `protocolVersion` for `protocol_version`.

Only names that a schema knows are put right. What an author named freely (variables, inputs,
metadata) stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from interlock.core.config.problems import BadValue
from interlock.manifests.schemas import Schema

_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])([A-Z])")
_MOST_DEPTH: Final = 64


def snake(name: str) -> str:
    """`protocolVersion` → `protocol_version`."""
    return _CAPITAL.sub(lambda capital: f"_{capital[1].lower()}", name)


def put_right(value: Any, *known: Schema) -> Any:
    """The value with the fields of these schemas in their own spelling, as plain data.

    Raises BadValue when a field is there in both, and for what is no data or too deep.
    """
    return _put_right(value, known, 0)


def _put_right(value: Any, known: Sequence[Schema], depth: int) -> Any:
    if depth > _MOST_DEPTH:
        raise BadValue("this is nested too deeply", "use fewer levels")
    if isinstance(value, Mapping):
        shapes = [shape for schema in known for shape in _shapes(schema)]
        fields = {name for shape in shapes for name in shape.get("properties", {})}
        result: dict[str, Any] = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                raise BadValue("a key is not text", "use names as keys")
            name = key if key in fields or snake(key) not in fields else snake(key)
            if name in result:
                raise BadValue(f"{name} is given twice", "keep one of the two spellings")
            result[name] = _put_right(inner, tuple(_below(shapes, name)), depth + 1)
        return result
    if isinstance(value, (list, tuple, set, frozenset)):
        members = sorted(value) if isinstance(value, (set, frozenset)) else value
        below = tuple(
            shape["items"]
            for schema in known
            for shape in _shapes(schema)
            if isinstance(shape.get("items"), dict)
        )
        return [_put_right(inner, below, depth + 1) for inner in members]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise BadValue(f"{type(value).__name__} cannot stand in a manifest", "use plain data")


def _shapes(schema: Schema) -> Iterator[Schema]:
    """A schema, and those that look at the same value."""
    yield schema
    for word in ("allOf", "anyOf", "oneOf"):
        for inner in schema.get(word, ()):
            yield from _shapes(inner)
    if isinstance(schema.get("then"), dict):
        yield from _shapes(schema["then"])


def _below(shapes: Sequence[Schema], name: str) -> Iterator[Schema]:
    for shape in shapes:
        properties = shape.get("properties", {})
        if name in properties:
            yield properties[name]
        elif isinstance(shape.get("additionalProperties"), dict):
            yield shape["additionalProperties"]
