"""Examples made from schemas: a request that an operation would take, with what it requires.

The values are made up, but lawful as far as a schema can be followed: what it gives as an example,
a default or an allowed value comes first.
"""

from __future__ import annotations

import re
from typing import Any, Final

from interlock.catalog.aql.operation import Operation
from interlock.catalog.aql.parameters import INPUT, Surface, type_of

_DEEPEST: Final = 5
_MOST_PARTS: Final = 200
_LONGEST_PATTERN: Final = 200
_LONGEST_TEXT: Final = 64
_MOST_ITEMS: Final = 8
_LONGEST_GIVEN: Final = 120
"""Characters of an example that a server gives itself; a longer one is not repeated."""

_FORMATS: Final = {
    "date-time": "2026-01-31T09:00:00Z",
    "date": "2026-01-31",
    "time": "09:00:00Z",
    "email": "user@example.com",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "hostname": "example.com",
}
# Short, because a pattern may be one that takes its time.
_TRIES: Final = (
    "example", "a", "1", "A", "abc", "ABC", "12", "123", "1.0.0", "2026-01-31", "a/b", "/a", "./a",
    "a@b.co", "@a", "#a", "#aaaaaa", "v1.0", "0x1", "a-b", "a_b", "a:b", "AB-12", "A_B", "09:00",
    "1h", "10%", "~", "*", "main", "true", "a.b", "a.txt", "U0A", "C0A", "+491234567",
)  # fmt: skip


def request(operation: Operation, name: str = "") -> dict[str, Any]:
    """A request with everything that an operation requires, as a client sends it."""
    native = operation.native
    if native is not None and native.example:
        return {"operation": operation.name, "params": native.example}
    return {"operation": name or operation.name, "params": params(operation)}


def params(operation: Operation) -> dict[str, Any]:
    """The parameters of such a request. An update changes one field at least."""
    making = _Making(Surface(_root(operation)))
    made: dict[str, Any] = {}
    inside: dict[str, Any] = {}
    first: tuple[str, Any] | None = None
    for one in operation.signature.parameters:
        value = None
        if one.required or (one.inside and first is None):
            value = making.value(one.schema, one.name, 0)
        if one.inside:
            first = first or (one.name, value)
            if one.required:
                inside[one.name] = value
        elif one.required:
            made[one.name] = value
    if INPUT in operation.signature.required and first is not None and INPUT not in made:
        made[INPUT] = inside or dict([first])
    return made


def _root(operation: Operation) -> Any:
    return {} if operation.native is not None else operation.tool.input_schema()


class _Making:
    """Makes values of one schema, so many parts and no more: it may lead in circles."""

    __slots__ = ("_left", "_surface")

    def __init__(self, surface: Surface) -> None:
        self._surface = surface
        self._left = _MOST_PARTS

    def value(self, schema: Any, name: str, depth: int) -> Any:
        self._left -= 1
        schema = self._surface.followed(schema)
        given = _given(schema)
        if given is not None:
            return given[0]
        deeper = depth < _DEEPEST and self._left > 0
        for word in ("oneOf", "anyOf", "allOf"):
            parts = schema.get(word)
            if deeper and isinstance(parts, list) and parts and "type" not in schema:
                useful = [one for one in parts if self._surface.followed(one).get("type") != "null"]
                return self.value((useful or parts)[0], name, depth + 1)
        kind = type_of(schema)
        if kind in ("integer", "number"):
            return _number(schema, kind)
        if kind == "boolean":
            return True
        if kind == "array":
            return self._list(schema, name, depth, deeper)
        if kind == "object":
            return self._object(schema, depth, deeper)
        return _text(schema, name)

    def _list(self, schema: dict[str, Any], name: str, depth: int, deeper: bool) -> list[Any]:
        least = min(_whole(schema.get("minItems"), 0), _MOST_ITEMS)
        items = schema.get("items")
        if not deeper or items is None:
            return [_text({}, name)] * least
        most = _whole(schema.get("maxItems"), _MOST_ITEMS)
        one = self.value(items, name.removesuffix("s"), depth + 1)
        return [one] * min(max(least, 1), most)

    def _object(self, schema: dict[str, Any], depth: int, deeper: bool) -> dict[str, Any]:
        properties, required = schema.get("properties"), schema.get("required")
        if not deeper or not isinstance(properties, dict) or not isinstance(required, list):
            return {}
        return {
            key: self.value(properties[key], key, depth + 1)
            for key in required
            if isinstance(key, str) and key in properties and self._left > 0
        }


def _given(schema: dict[str, Any]) -> tuple[Any] | None:
    """A value that the schema itself names."""
    if "const" in schema:
        return (schema["const"],)
    for word in ("examples", "enum"):
        values = schema.get(word)
        if isinstance(values, list) and values and len(str(values[0])) <= _LONGEST_GIVEN:
            return (values[0],)
    for word in ("example", "default"):
        if schema.get(word) is not None and len(str(schema[word])) <= _LONGEST_GIVEN:
            return (schema[word],)
    return None


def _text(schema: dict[str, Any], name: str) -> str:
    known = _FORMATS.get(str(schema.get("format")))
    if known is not None:
        return known
    least = _whole(schema.get("minLength"), 0)
    most = max(_whole(schema.get("maxLength"), _LONGEST_TEXT), least)
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and len(pattern) <= _LONGEST_PATTERN:
        found = _matching(pattern, least, most)
        if found is not None:
            return found
    text = name.rpartition("_")[2] if name.endswith(("_id", "_url")) else name
    text = (text or "text")[:most]
    return text + "x" * (min(least, _LONGEST_TEXT) - len(text))


def _matching(pattern: str, least: int, most: int) -> str | None:
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    for text in _TRIES:
        if least <= len(text) <= most and compiled.search(text):
            return text
    return None


def _number(schema: dict[str, Any], kind: str) -> int | float:
    value: int | float = max(1, _bound(schema, "minimum", 1))
    above = _bound(schema, "exclusiveMinimum", value - 1)
    if value <= above:
        value = above + 1
    value = min(value, _bound(schema, "maximum", value))
    below = _bound(schema, "exclusiveMaximum", value + 1)
    if value >= below:
        value = below - 1
    step = _bound(schema, "multipleOf", 0)
    if step > 0 and value % step:
        value = step * -(-value // step)
    return int(value) if kind == "integer" and abs(value) < 2**53 else value


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**31 else otherwise


def _bound(schema: dict[str, Any], word: str, otherwise: int | float) -> int | float:
    value = schema.get(word)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15:
        return value
    return otherwise
