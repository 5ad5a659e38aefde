"""Messages of Protobuf as JSON Schema (2020-12). Pure.

Two styles: that of ProtoJSON, which every Protobuf library writes, and the plain one of a file that
says so (`interlock/schema/options.proto`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from interlock.contracts.schemas.proto import (
    OPTIONAL,
    REQUIRED,
    EnumType,
    FieldDeclaration,
    MessageDeclaration,
    ProtoFiles,
    local_name,
)

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
SECRET: Final = "password"
"""The format of what nobody shows."""
Schema = dict[str, Any]
ReferenceMaker = Callable[[str], str]
"""From the full name of a type to the `$ref` that leads to it."""

_WIDE: Final = {
    **dict.fromkeys(("int64", "sint64", "sfixed64"), (r"^-?[0-9]+$", "int64")),
    **dict.fromkeys(("uint64", "fixed64"), (r"^[0-9]+$", "uint64")),
}
_SCALARS: Final[dict[str, Schema]] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "bytes": {"type": "string", "contentEncoding": "base64"},
    "double": {"type": "number"},
    "float": {"type": "number"},
}
_SIGNED: Final = ("int32", "sint32", "sfixed32")
_KNOWN: Final[dict[str, Schema]] = {
    "Any": {"type": "object", "properties": {"@type": {"type": "string"}}, "required": ["@type"]},
    "Duration": {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]{1,9})?s$"},
    "Empty": {"type": "object", "maxProperties": 0},
    "FieldMask": {"type": "string"},
    "ListValue": {"type": "array"},
    "NullValue": {"type": "null"},
    "Struct": {"type": "object"},
    "Timestamp": {"type": "string", "format": "date-time"},
    "Value": {},
}
_WRAPPED: Final = {
    f"{kind}Value": kind.lower()
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_GOOGLE: Final = "google.protobuf."


def schema_of(protos: ProtoFiles, message: MessageDeclaration) -> Schema:
    """A message as a schema that needs no other: what it speaks of stands in its `$defs`."""

    def refer(full_name: str) -> str:
        return f"#/$defs/{local_name(full_name, message.package)}"

    schema = {"$schema": DIALECT, "title": message.name, **definition(protos, message, refer)}
    others = closure(protos, [message.full_name])
    if message.full_name not in _used_by(protos, others):
        others.remove(message.full_name)
    if others:
        schema["$defs"] = {
            local_name(one, message.package): define(protos, one, refer) for one in sorted(others)
        }
    return schema


def define(protos: ProtoFiles, full_name: str, refer: ReferenceMaker) -> Schema:
    """A message or an enum, by its full name."""
    if full_name in protos.enums:
        return enum_schema(protos.enums[full_name])
    return definition(protos, protos.messages[full_name], refer)


def definition(protos: ProtoFiles, message: MessageDeclaration, refer: ReferenceMaker) -> Schema:
    """A message, without what it speaks of."""
    about: Schema = {"description": message.about} if message.about else {}
    if message.deprecated:
        about["deprecated"] = True
    if message.inline:
        refs = [type_schema(protos, one, refer, plain=message.plain) for one in message.fields]
        return {**about, "anyOf": refs}
    schema: Schema = {"type": "object", **about}
    if message.fields:
        schema["properties"] = {
            one.json_name: field_schema(protos, one, refer, plain=message.plain)
            for one in message.fields
        }
    required = [one.json_name for one in message.fields if is_required(one, message)]
    if required:
        schema["required"] = required
    if message.closed:
        schema["additionalProperties"] = False
    return schema


def is_required(field: FieldDeclaration, message: MessageDeclaration) -> bool:
    """Whether it is always there. Of a `oneof` only one is."""
    if REQUIRED in field.behaviors:
        return True
    return message.plain and OPTIONAL not in field.behaviors and not field.oneof


def field_schema(
    protos: ProtoFiles, field: FieldDeclaration, refer: ReferenceMaker, *, plain: bool
) -> Schema:
    """A field with everything about it."""
    schema = type_schema(protos, field, refer, plain=plain)
    if field.key:
        schema = {"type": "object", "additionalProperties": schema}
        if field.key not in ("string", "bool"):
            schema["propertyNames"] = {"pattern": "^-?[0-9]+$"}
        elif field.key == "bool":
            schema["propertyNames"] = {"enum": ["true", "false"]}
    elif field.repeated:
        schema = {"type": "array", "items": schema}
    if field.optional:
        schema = or_null(schema)
    if field.secret and field.kind == "string":
        schema["format"] = SECRET
    if field.about:
        schema["description"] = field.about
    if field.deprecated:
        schema["deprecated"] = True
    return schema


def type_schema(
    protos: ProtoFiles, field: FieldDeclaration, refer: ReferenceMaker, *, plain: bool
) -> Schema:
    """One value of a field."""
    if field.kind in ("message", "enum"):
        known = _well_known(field.type, plain=plain)
        return known if known is not None else {"$ref": refer(field.type)}
    return _scalar(field.kind, plain=plain)


def or_null(schema: Schema) -> Schema:
    """The same, or null."""
    if not schema:
        return {}
    kind = schema.get("type")
    if isinstance(kind, str) and "enum" not in schema:
        return {**schema, "type": [kind, "null"]}
    if isinstance(kind, list):
        return {**schema, "type": [*kind, "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def enum_schema(enum: EnumType) -> Schema:
    """An enum, as the words that are written for its values."""
    schema: Schema = {"type": "string", "enum": words_of(enum)}
    if enum.about:
        schema["description"] = enum.about
    return schema


def words_of(enum: EnumType) -> list[str]:
    """The words of an enum. Plainly written, that nothing was said (0) is no word."""
    if not enum.plain:
        return list(dict.fromkeys(one.word or one.name for one in enum.values))
    prefix = _upper_snake(enum.full_name.rpartition(".")[2]) + "_"
    return list(
        dict.fromkeys(
            one.word or one.name.removeprefix(prefix).lower()
            for one in enum.values
            if one.number != 0
        )
    )


def closure(protos: ProtoFiles, names: list[str]) -> set[str]:
    """These types and everything that they speak of; Protobuf's own are not among it."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found or name.startswith(_GOOGLE):
            continue
        found.add(name)
        message = protos.messages.get(name)
        if message is not None:
            waiting += [one.type for one in message.fields if one.type]
    return found


def _used_by(protos: ProtoFiles, names: set[str]) -> set[str]:
    """The types that fields of these messages are of."""
    messages = [protos.messages[one] for one in names if one in protos.messages]
    return {one.type for message in messages for one in message.fields}


def _scalar(kind: str, *, plain: bool) -> Schema:
    if kind in _WIDE:
        pattern, format = _WIDE[kind]
        if not plain:
            return {"type": ["string", "integer"], "format": format, "pattern": pattern}
        least = {"minimum": 0} if format == "uint64" else {}
        return {"type": "integer", "format": format, **least}
    if kind in _SCALARS:
        return dict(_SCALARS[kind])
    if kind in _SIGNED:
        return {"type": "integer", "format": "int32"}
    return {"type": "integer", "format": "uint32", "minimum": 0}


def _well_known(full_name: str, *, plain: bool) -> Schema | None:
    if not full_name.startswith(_GOOGLE):
        return None
    name = full_name.removeprefix(_GOOGLE)
    if name in _WRAPPED:
        return or_null(_scalar(_WRAPPED[name], plain=plain))
    # A type of Protobuf that has no form of its own in JSON is any object.
    return dict(_KNOWN.get(name, {"type": "object"}))


def _upper_snake(name: str) -> str:
    """`TreeState` → `TREE_STATE`."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return parted.upper()
