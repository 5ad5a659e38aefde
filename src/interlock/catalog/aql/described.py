"""Parameters as introspection shows them: all that keeps a client from guessing, and no more.

What is nested does not fit into a flat list: it is drawn as a short line, and has its own type.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from interlock.catalog.aql.operation import Operation, Parameter
from interlock.catalog.aql.parameters import FEATURES, INPUT, Surface, one_line, type_of
from interlock.errors import ProtocolError

LONGEST: Final = 200
_LONGEST_ITEMS: Final = 300
_LONGEST_SHAPE: Final = 600
_BRIEF: Final = 100
_MOST_WITH_PROSE: Final = 8
"""Of those that are told briefly, only so many are explained."""
_MOST_VALUES: Final = 60
_MOST_DRAWN: Final = 120
"""Parts of a schema in one line. A schema may lead in circles, or be as wide as it is deep."""
_DEEPEST: Final = 3
_CARRIED: Final = ("minimum", "maximum", "minLength", "maxLength", "pattern", "format")
_NUMBERS: Final = frozenset({"minimum", "maximum"})
_WHOLES: Final = frozenset({"minLength", "maxLength"})


def parameter_info(
    one: Parameter, surface: Surface | None = None, most: int = _LONGEST_SHAPE
) -> dict[str, Any]:
    """A parameter with all that keeps a client from guessing. `most`: characters of prose."""
    schema = without_null(one.schema, surface)
    info: dict[str, Any] = {"name": one.name, "type": one.type, "required": one.required}
    about = one_line(one.description, most)
    if one.deprecated:
        notice = one.deprecated if len(one.deprecated) > 10 else "do not use it in new requests"
        about = f"Deprecated: {notice}. {about}".strip()
    if one.type in ("object", "any"):
        drawn = shape(schema, surface, 2 * most)
        if drawn not in ("object", "any"):
            about = f"{about} Shape: {drawn}".strip()
    if about:
        info["description"] = about
    if "default" in one.schema:
        info["default"] = one.schema["default"]
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        info["enum"] = values[:_MOST_VALUES]
    for word in _CARRIED:
        value = schema.get(word)
        if _lawful(word, value):
            info[word] = value
    if one.type == "array":
        items = schema.get("items")
        if isinstance(items, dict):
            info["items"] = _items(items, surface, most)
    if one.sensitive:
        info["sensitive"] = True
    return info


def _lawful(word: str, value: Any) -> bool:
    if word in _NUMBERS:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if word in _WHOLES:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return isinstance(value, str) and 0 < len(value) <= LONGEST


def without_null(schema: dict[str, Any], surface: Surface | None) -> dict[str, Any]:
    """`anyOf: [X, null]` is X that may be left out."""
    for word in ("anyOf", "oneOf"):
        parts = schema.get(word)
        if isinstance(parts, list):
            kept = [part for part in parts if isinstance(part, dict) and part.get("type") != "null"]
            if len(kept) == 1 and "type" not in schema:
                only = surface.followed(kept[0]) if surface is not None else kept[0]
                return {**schema, **only}
    return schema


def _items(items: dict[str, Any], surface: Surface | None, most: int) -> dict[str, Any]:
    """The schema of an array's items, as far as it is short."""
    followed = surface.followed(items) if surface is not None else items
    encoded = msgspec.json.encode(followed)
    if len(encoded) <= min(most, _LONGEST_ITEMS) and b'"$ref"' not in encoded:
        return followed
    drawn = shape(followed, surface, most)
    short: dict[str, Any] = {"type": type_of(followed)}
    if drawn != short["type"]:
        short["description"] = f"Shape: {drawn}"
    return short


def shape(schema: Any, surface: Surface | None = None, most: int = _LONGEST_SHAPE) -> str:
    """A schema as a short line: `{title: string, state?: "open"|"closed"}`."""
    drawn = _Drawing(surface).line(schema, 0)
    return drawn if len(drawn) <= most else drawn[: most - 1] + "…"


class _Drawing:
    """One line, with so many parts and no more."""

    __slots__ = ("_left", "_surface")

    def __init__(self, surface: Surface | None) -> None:
        self._surface = surface
        self._left = _MOST_DRAWN

    def line(self, schema: Any, depth: int) -> str:
        self._left -= 1
        if self._surface is not None:
            schema = self._surface.followed(schema)
        if not isinstance(schema, dict) or self._left <= 0:
            return "any"
        schema = without_null(schema, self._surface)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and 0 < len(values) <= _MOST_VALUES:
            return "|".join(msgspec.json.encode(value).decode()[:40] for value in values)
        kind = type_of(schema)
        if depth >= _DEEPEST:
            return kind
        for word in ("oneOf", "anyOf"):
            parts = schema.get(word)
            if isinstance(parts, list) and parts:
                lines = [self.line(part, depth + 1) for part in parts[:8]]
                return " | ".join(dict.fromkeys(lines))
        if kind == "object":
            return self._fields(schema, depth) or kind
        if kind == "array":
            inner = self.line(schema.get("items"), depth + 1)
            return f"({inner})[]" if " " in inner else f"{inner}[]"
        return kind

    def _fields(self, schema: dict[str, Any], depth: int) -> str:
        properties, wanted = schema.get("properties"), schema.get("required")
        if not isinstance(properties, dict) or not properties:
            return ""
        required = wanted if isinstance(wanted, list) else []
        fields = []
        for key, value in properties.items():
            if self._left <= 0:
                fields.append("…")
                break
            optional = "" if key in required else "?"
            fields.append(f"{one_line(key, 60)}{optional}: {self.line(value, depth + 1)}")
        return "{" + ", ".join(fields) + "}"


def parameters_info(
    operation: Operation, *, features: bool = True, brief: bool = False
) -> list[dict[str, Any]]:
    """Everything that an operation accepts in `params`. `brief`: with little prose."""
    signature = operation.signature
    surface = None if operation.native is not None else surface_of(operation)
    most = _BRIEF if brief else _LONGEST_SHAPE
    made = [parameter_info(one, surface, most) for one in signature.parameters if not one.inside]
    inside = [one for one in signature.parameters if one.inside]
    if inside:
        made.append(_input(operation, inside, surface))
    if features:
        made += [parameter_info(FEATURES[name]) for name in sorted(signature.features)]
    if brief:
        made.sort(key=lambda one: not one["required"])
        for one in made[_MOST_WITH_PROSE:]:
            one.pop("description", None)
    return made


def _input(
    operation: Operation, inside: list[Parameter], surface: Surface | None
) -> dict[str, Any]:
    fields = ", ".join(
        f"{one.name}{'' if one.required else '?'}: {shape(one.schema, surface)}" for one in inside
    )
    if len(fields) > _LONGEST_SHAPE:
        fields = fields[: _LONGEST_SHAPE - 1] + "…"
    return {
        "name": INPUT,
        "type": "object",
        "required": True,
        "description": f"What to change: {{{fields}}} (type {type_name(operation, INPUT)})",
    }


def surface_of(operation: Operation) -> Surface:
    try:
        return Surface(operation.tool.input_schema())
    except (KeyError, ProtocolError):
        return Surface({})


def pascal(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def type_name(operation: Operation, member: str) -> str:
    """What a part of an operation is called as a type."""
    return pascal(operation.name) + pascal(member)
