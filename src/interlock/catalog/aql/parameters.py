"""What an operation takes, read from its tool's schema: one table for checking, translating and
introspection. The schema itself stays what is validated against; this only knows its surface.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from interlock.catalog.aql import naming
from interlock.catalog.aql.operation import Native, Parameter, Signature
from interlock.protocol.aql.words import Category
from interlock.protocol.json_pointer import at_pointer

ANY: Final = "any"
TYPES: Final = frozenset({"string", "number", "integer", "boolean", "object", "array", ANY})
INPUT: Final = "input"
MOST: Final = 1_000
"""Parameters that are shown of one tool. A schema with more is a mistake or an attack."""
LONGEST_LINE: Final = 300
"""Characters of a parameter's description."""

_DEEPEST: Final = 16
_MOST_PARTS: Final = 500
"""Alternatives that are followed. They may lead in circles, ten at a time."""
_BLANK: Final = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]+"
)
_SECRET: Final = re.compile(
    r"(?:^|_)(?:password|passwd|passphrase|pwd|secret|api_?key|apikey|private_key|access_key"
    r"|token|credential|credentials|pin_code|cvv|ssn)(?:$|_)"
)
_NOT_SECRET: Final = re.compile(r"(?:^|_)(?:max|page|next|confirmation|num|count|cursor)_|_tokens$")


def one_line(text: str, most: int) -> str:
    """Text of a server on one line, without characters that hide things, and cut."""
    # Only so much of it is looked at, however long it is.
    text = _BLANK.sub(" ", text[: most * 4]).strip()
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def is_secret(name: str) -> bool:
    """Whether a parameter of this name holds what nobody should read over a shoulder."""
    return _SECRET.search(name) is not None and _NOT_SECRET.search(name) is None


class Surface:
    """The top level of a schema: properties, what of them is required, and whether others may
    come. References and alternatives are followed as far as that takes no guessing.
    """

    __slots__ = ("_left", "open", "properties", "required", "root")

    def __init__(self, schema: Any) -> None:
        self.root: dict[str, Any] = schema if isinstance(schema, dict) else {}
        self.properties: dict[str, Any] = {}
        self.open = False
        self._left = _MOST_PARTS
        self.required: set[str] = self._read(self.root, 0)

    def _read(self, schema: dict[str, Any], depth: int) -> set[str]:
        """Take over the properties of `schema`. Returns those that it requires."""
        schema = self.followed(schema)
        self._left -= 1
        own = schema.get("properties")
        if isinstance(own, dict):
            for key, value in own.items():
                if len(self.properties) >= MOST and key not in self.properties:
                    break
                self.properties.setdefault(key, value)
        others = schema.get("additionalProperties")
        if others is True or (isinstance(others, dict)) or schema.get("patternProperties"):
            self.open = True
        wanted = schema.get("required")
        required = (
            {one for one in wanted if isinstance(one, str)} if isinstance(wanted, list) else set()
        )
        if depth < _DEEPEST:
            for part in _parts(schema, "allOf"):
                if self._left > 0:
                    required |= self._read(part, depth + 1)
            for word in ("oneOf", "anyOf"):
                branches = [
                    self._read(part, depth + 1) for part in _parts(schema, word) if self._left > 0
                ]
                if branches:
                    required |= set.intersection(*branches)
        return required & self.properties.keys() if depth == 0 else required

    def followed(self, schema: Any) -> dict[str, Any]:
        """What a reference within this schema leads to. One that leads in a circle, or nowhere,
        leads to a schema that says nothing.
        """
        seen = 0
        while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
            found = self._at(schema["$ref"])
            seen += 1
            if found is None or seen > _DEEPEST:
                return {}
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            schema = {**found, **rest} if rest else found
        return schema if isinstance(schema, dict) else {}

    def _at(self, reference: str) -> dict[str, Any] | None:
        if not reference.startswith("#"):
            return None
        place = at_pointer(self.root, reference[1:])
        return place if isinstance(place, dict) else None


def _parts(schema: dict[str, Any], word: str) -> list[dict[str, Any]]:
    parts = schema.get(word)
    return (
        [part for part in parts if isinstance(part, dict)][:MOST] if isinstance(parts, list) else []
    )


def type_of(schema: Any, depth: int = 0) -> str:
    """The type of a value, in one word."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return ANY
    said = schema.get("type")
    if isinstance(said, list):
        others = [kind for kind in said if kind != "null"]
        said = others[0] if len(others) == 1 else None
    if isinstance(said, str):
        return said if said in TYPES else ANY
    if "properties" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema:
        return "array"
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        kinds = {_kind(value) for value in values if value is not None}
        return kinds.pop() if len(kinds) == 1 else ANY
    for word in ("anyOf", "oneOf"):
        parts = schema.get(word)
        if isinstance(parts, list):
            kinds = {type_of(part, depth + 1) for part in parts if not _is_null(part)}
            return kinds.pop() if len(kinds) == 1 else ANY
    return ANY


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "string"), (int, "integer"), (float, "number"), (dict, "object")):
        if isinstance(value, kind):
            return name
    return "array"


def read(surface: Surface) -> list[Parameter]:
    """The parameters of a tool, in the order of its schema."""
    found = []
    for own, name in naming.parameters(surface.properties).items():
        schema = surface.followed(surface.properties[own])
        about = schema.get("description") or schema.get("title")
        found.append(
            Parameter(
                name=name,
                own=own,
                type=type_of(schema),
                required=own in surface.required,
                schema=schema,
                description=one_line(about, LONGEST_LINE) if isinstance(about, str) else "",
                sensitive=is_secret(name)
                or schema.get("writeOnly") is True
                or schema.get("format") == "password",
                deprecated="deprecated" if schema.get("deprecated") is True else "",
            )
        )
    return found


# -- features of the language that stand beside the parameters, each defined once

FEATURES: Final[dict[str, Parameter]] = {
    one.name: one
    for one in (
        Parameter(
            "fields", "fields", "array", False,
            {"type": "array", "items": {"type": "string"}},
            "Only these fields of the result, such as id or owner.name.",
        ),
        Parameter(
            "preset", "preset", "string", False,
            {"type": "string", "enum": ["minimal", "standard", "full"]},
            "Instead of fields: how much of the result.",
        ),
        Parameter(
            "dry_run", "dry_run", "boolean", False,
            {"type": "boolean", "default": False},
            "Say what would be done, and do nothing.",
        ),
        Parameter(
            "confirmation_token", "confirmation_token", "string", False,
            {"type": "string"},
            "From CONFIRMATION_REQUIRED, to collect what a human has approved.",
        ),
    )
}  # fmt: skip
FIRST: Final = Parameter(
    "first", "first", "integer", False,
    {"type": "integer", "minimum": 1},
    "So many of them: 20 unless you say so, no more than 100.",
)  # fmt: skip
AFTER: Final = Parameter(
    "after", "after", "string", False, {"type": "string", "maxLength": 1024},
    "The endCursor of the page before.",
)  # fmt: skip
"""Of every list that the node makes itself."""
_OF_READERS: Final = frozenset({"fields", "preset"})
_OF_WRITERS: Final = frozenset({"dry_run", "confirmation_token"})
_OF_LIFECYCLE: Final = frozenset({"confirmation_token"})


def features_of(category: Category, names: Iterable[str], native: Native | None) -> frozenset[str]:
    """What may stand beside parameters of these names."""
    if category is Category.READ:
        may = _OF_READERS
    elif native is not None and native.free:
        may = frozenset()
    elif native is not None and native.lifecycle:
        # A human may have to confirm it; to say what would be done says nothing.
        may = _OF_LIFECYCLE
    else:
        may = _OF_WRITERS
    return may.difference(names)


def sign(
    parameters: Sequence[Parameter],
    category: Category,
    *,
    native: Native | None = None,
    aliases: bool = True,
    open: bool = False,
) -> Signature:
    """The signature of an operation with these parameters."""
    by_name = {one.name: one for one in parameters}
    nested = any(one.inside for one in parameters)
    other: dict[str, str] = {}
    if aliases:
        other = {
            one.own: one.name
            for one in parameters
            if one.own != one.name and one.own not in by_name and not one.own.startswith("_")
        }
    outside = [one for one in parameters if not one.inside]
    names = {one.name for one in outside}
    required = {one.name for one in outside if one.required}
    if nested:
        names.add(INPUT)
        required.add(INPUT)
    return Signature(
        parameters=tuple(parameters),
        by_name=by_name,
        aliases=other,
        required=frozenset(required),
        names=frozenset(names),
        same=not nested and all(one.own == one.name for one in parameters),
        features=features_of(category, (*names, *other), native),
        open=open,
    )


def input_schema(parameters: Iterable[Parameter]) -> dict[str, Any]:
    """The schema of the tool that stands in the catalog for an operation of the node's own."""
    listed = list(parameters)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            one.own: {**one.schema, **({"description": one.description} if one.description else {})}
            for one in listed
        },
        "additionalProperties": False,
    }
    required = [one.own for one in listed if one.required]
    if required:
        schema["required"] = required
    return schema
