"""Protobuf messages as JSON Schema (2020-12). Pure.

Two styles: ProtoJSON, which every Protobuf library writes, and the plain style of files that
declare it (`interlock/schema/options.proto`).
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
"""The format of values that must not be displayed."""
Schema = dict[str, Any]
ReferenceMaker = Callable[[str], str]
"""Returns the `$ref` to a type, given its full name."""

_INTEGERS_64_BIT: Final = {
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
_SIGNED_32_BIT: Final = ("int32", "sint32", "sfixed32")
_WELL_KNOWN_TYPES: Final[dict[str, Schema]] = {
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
_WRAPPER_TYPES: Final = {
    f"{kind}Value": kind.lower()
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_GOOGLE_PREFIX: Final = "google.protobuf."


def message_schema(protos: ProtoFiles, message: MessageDeclaration) -> Schema:
    """Return a self-contained schema of a message: the types that it refers to are in its
    `$defs`."""

    def refer(full_name: str) -> str:
        return f"#/$defs/{local_name(full_name, message.package)}"

    schema = {
        "$schema": DIALECT,
        "title": message.name,
        **message_definition(protos, message, refer),
    }
    referenced = referenced_types(protos, [message.full_name])
    if message.full_name not in _field_types(protos, referenced):
        referenced.remove(message.full_name)
    if referenced:
        schema["$defs"] = {
            local_name(full_name, message.package): type_definition(protos, full_name, refer)
            for full_name in sorted(referenced)
        }
    return schema


def type_definition(protos: ProtoFiles, full_name: str, refer: ReferenceMaker) -> Schema:
    """Return the schema of a message or an enum, by its full name."""
    if full_name in protos.enums:
        return enum_schema(protos.enums[full_name])
    return message_definition(protos, protos.messages[full_name], refer)


def message_definition(
    protos: ProtoFiles, message: MessageDeclaration, refer: ReferenceMaker
) -> Schema:
    """Return the schema of a message without the types that it refers to."""
    annotations: Schema = {"description": message.description} if message.description else {}
    if message.deprecated:
        annotations["deprecated"] = True
    if message.inline:
        refs = [type_schema(protos, field, refer, plain=message.plain) for field in message.fields]
        return {**annotations, "anyOf": refs}
    schema: Schema = {"type": "object", **annotations}
    if message.fields:
        schema["properties"] = {
            field.json_name: field_schema(protos, field, refer, plain=message.plain)
            for field in message.fields
        }
    required = [field.json_name for field in message.fields if is_required(field, message)]
    if required:
        schema["required"] = required
    if message.closed:
        schema["additionalProperties"] = False
    return schema


def is_required(field: FieldDeclaration, message: MessageDeclaration) -> bool:
    """Return whether a field is always present. A field of a `oneof` is not."""
    if REQUIRED in field.behaviors:
        return True
    return message.plain and OPTIONAL not in field.behaviors and not field.oneof


def field_schema(
    protos: ProtoFiles, field: FieldDeclaration, refer: ReferenceMaker, *, plain: bool
) -> Schema:
    """Return the schema of a field."""
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
        schema = make_nullable(schema)
    if field.secret and field.kind == "string":
        schema["format"] = SECRET
    if field.description:
        schema["description"] = field.description
    if field.deprecated:
        schema["deprecated"] = True
    return schema


def type_schema(
    protos: ProtoFiles, field: FieldDeclaration, refer: ReferenceMaker, *, plain: bool
) -> Schema:
    """Return the schema of one value of a field."""
    if field.kind in ("message", "enum"):
        well_known = _well_known(field.type, plain=plain)
        return well_known if well_known is not None else {"$ref": refer(field.type)}
    return _scalar(field.kind, plain=plain)


def make_nullable(schema: Schema) -> Schema:
    """Return a schema that also allows null."""
    if not schema:
        return {}
    kind = schema.get("type")
    if isinstance(kind, str) and "enum" not in schema:
        return {**schema, "type": [kind, "null"]}
    if isinstance(kind, list):
        return {**schema, "type": [*kind, "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def enum_schema(enum: EnumType) -> Schema:
    """Return the schema of an enum, with the JSON values of its members."""
    schema: Schema = {"type": "string", "enum": enum_values(enum)}
    if enum.description:
        schema["description"] = enum.description
    return schema


def enum_values(enum: EnumType) -> list[str]:
    """Return the JSON values of an enum. In the plain style, the value 0 ("unspecified") has
    none."""
    if not enum.plain:
        return list(dict.fromkeys(value.json_value or value.name for value in enum.values))
    prefix = _upper_snake(enum.full_name.rpartition(".")[2]) + "_"
    return list(
        dict.fromkeys(
            value.json_value or value.name.removeprefix(prefix).lower()
            for value in enum.values
            if value.number != 0
        )
    )


def referenced_types(protos: ProtoFiles, names: list[str]) -> set[str]:
    """Return these types and all types that they refer to, without the types of Protobuf itself."""
    types: set[str] = set()
    unvisited = list(names)
    while unvisited:
        name = unvisited.pop()
        if name in types or name.startswith(_GOOGLE_PREFIX):
            continue
        types.add(name)
        message = protos.messages.get(name)
        if message is not None:
            unvisited += [field.type for field in message.fields if field.type]
    return types


def _field_types(protos: ProtoFiles, names: set[str]) -> set[str]:
    """Return the types of the fields of these messages."""
    messages = [protos.messages[name] for name in names if name in protos.messages]
    return {field.type for message in messages for field in message.fields}


def _scalar(kind: str, *, plain: bool) -> Schema:
    if kind in _INTEGERS_64_BIT:
        pattern, format = _INTEGERS_64_BIT[kind]
        if not plain:
            return {"type": ["string", "integer"], "format": format, "pattern": pattern}
        minimum = {"minimum": 0} if format == "uint64" else {}
        return {"type": "integer", "format": format, **minimum}
    if kind in _SCALARS:
        return dict(_SCALARS[kind])
    if kind in _SIGNED_32_BIT:
        return {"type": "integer", "format": "int32"}
    return {"type": "integer", "format": "uint32", "minimum": 0}


def _well_known(full_name: str, *, plain: bool) -> Schema | None:
    if not full_name.startswith(_GOOGLE_PREFIX):
        return None
    name = full_name.removeprefix(_GOOGLE_PREFIX)
    if name in _WRAPPER_TYPES:
        return make_nullable(_scalar(_WRAPPER_TYPES[name], plain=plain))
    # A Protobuf type without a JSON form of its own is any object.
    return dict(_WELL_KNOWN_TYPES.get(name, {"type": "object"}))


def _upper_snake(name: str) -> str:
    """`TreeState` → `TREE_STATE`."""
    separated = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return separated.upper()
