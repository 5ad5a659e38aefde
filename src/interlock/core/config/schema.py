"""The JSON Schema 2020-12 of `interlock.yaml` for editors, derived from the structs of `model.py`.

It accepts every file that the node accepts. `checks.py` checks what a schema cannot express: two
servers with the same segment, or a public address without a token.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import NODEFAULT, Struct, inspect, to_builtins

from interlock.core.config import quantities
from interlock.core.config.feature_sections import fields_of
from interlock.core.config.model import COMMAND_TRANSPORTS, URL_TRANSPORTS, Config, ServerConfig
from interlock.core.config.quantities import format_size
from interlock.core.config.scalars import unwrap
from interlock.primitives import durations

Schema = dict[str, Any]

_BY_KIND: Final[dict[str, Schema]] = {
    "duration": {
        "type": ["number", "string"],
        "exclusiveMinimum": 0,
        "pattern": durations.POSITIVE_DURATION_PATTERN,
    },
    "duration_or_zero": {
        "type": ["number", "string"],
        "minimum": 0,
        "pattern": durations.DURATION_PATTERN,
    },
    "size": {"type": ["integer", "string"], "minimum": 1, "pattern": quantities.SIZE_PATTERN},
    "scalar_reference": {"type": ["string", "number", "boolean"]},
    "secret_reference": {"type": "string", "pattern": quantities.SECRET_PATTERN},
    "url": {"type": "string", "pattern": quantities.URL_PATTERN},
    "parent_url": {"type": "string", "pattern": quantities.PARENT_URL_PATTERN},
    "authority": {"type": "string", "pattern": quantities.AUTHORITY_PATTERN},
    "listen": {
        "type": ["string", "integer"],
        "pattern": quantities.LISTEN_PATTERN,
        "minimum": 0,
        "maximum": quantities.MAX_PORT,
    },
}
_URL_OR_COMMAND: Final[Schema] = {
    "oneOf": [{"required": ["url"]}, {"required": ["command"]}],
    "dependentRequired": {
        "args": ["command"],
        "env": ["command"],
        "cwd": ["command"],
        "headers": ["url"],
        "oauth": ["url"],
    },
    "allOf": [
        {
            "if": {
                "required": ["transport"],
                "properties": {"transport": {"enum": list(COMMAND_TRANSPORTS)}},
            },
            "then": {"required": ["command"]},
        },
        {
            "if": {
                "required": ["transport"],
                "properties": {"transport": {"enum": list(URL_TRANSPORTS)}},
            },
            "then": {"required": ["url"]},
        },
    ],
}


def config_json_schema() -> Schema:
    """Return the schema as JSON data."""
    definitions: dict[str, Schema] = {}
    root = _struct_schema(Config, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "interlock.yaml",
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def _struct_schema(struct: type[Struct], definitions: dict[str, Schema]) -> Schema:
    fields = fields_of(struct)
    schema: Schema = {
        "description": (struct.__doc__ or "").strip().partition("\n")[0],
        "type": "object",
        "additionalProperties": False,
        "properties": {name: _field_schema(field, definitions) for name, field in fields.items()},
    }
    required = [name for name, field in fields.items() if field.required]
    if required:
        schema["required"] = required
    if struct is ServerConfig:
        schema.update(_URL_OR_COMMAND)
    return schema


def _field_schema(field: inspect.Field, definitions: dict[str, Schema]) -> Schema:
    declared, _, optional = unwrap(field.type)
    schema = _type_schema(field.type, definitions)
    # An empty block means an empty list, mapping or section.
    is_container = isinstance(declared, inspect.ListType | inspect.DictType | inspect.StructType)
    if optional or is_container:
        schema = _or_null(schema)
    annotations: Schema = {}
    if isinstance(field.type, inspect.Metadata):
        description = (field.type.extra_json_schema or {}).get("description")
        if description:
            annotations["description"] = description
    default = format_default(field)
    if default is not None:
        schema = {**schema, "default": default}
    return {**annotations, **schema}


def _type_schema(declared: inspect.Type, definitions: dict[str, Schema]) -> Schema:
    declared, kind, _ = unwrap(declared)
    if kind == "server":
        _define(ServerConfig, definitions)
        short_form = "A URL that starts with http:// or https://, or a command line."
        return {
            "anyOf": [
                {"type": "string", "minLength": 1, "description": short_form},
                {"$ref": "#/$defs/ServerConfig"},
            ]
        }
    if kind in _BY_KIND:
        return dict(_BY_KIND[kind])
    match declared:
        case inspect.StructType():
            _define(declared.cls, definitions)
            return {"$ref": f"#/$defs/{declared.cls.__name__}"}
        case inspect.DictType():
            return {
                "type": "object",
                "propertyNames": {"minLength": 1, **_constraints(unwrap(declared.key_type)[0])},
                "additionalProperties": _type_schema(declared.value_type, definitions),
            }
        case inspect.ListType():
            return {"type": "array", "items": _type_schema(declared.item_type, definitions)}
        case inspect.LiteralType():
            return {"enum": list(declared.values)}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            return {"type": "integer", **_constraints(declared)}
    return {"type": "string", **_constraints(declared)}


def _define(struct: type[Struct], definitions: dict[str, Schema]) -> None:
    if struct.__name__ not in definitions:
        definitions[struct.__name__] = {}
        definitions[struct.__name__] = _struct_schema(struct, definitions)


def _constraints(declared: inspect.Type) -> Schema:
    if isinstance(declared, inspect.IntType) and declared.ge is not None:
        return {"minimum": declared.ge}
    constraints: Schema = {}
    if isinstance(declared, inspect.StrType):
        if declared.min_length is not None:
            constraints["minLength"] = declared.min_length
        if declared.pattern is not None:
            constraints["pattern"] = declared.pattern
    return constraints


def _or_null(schema: Schema) -> Schema:
    kind = schema.get("type")
    if kind is None:
        return {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "type": [*(kind if isinstance(kind, list) else [kind]), "null"]}


def format_default(field: inspect.Field) -> Any:
    """Return the default as it is written in a config. None: it is missing or empty."""
    _, kind, _ = unwrap(field.type)
    if field.default is NODEFAULT or field.default is None or field.default == "":
        return None
    if kind in ("duration", "duration_or_zero"):
        return durations.format_duration(field.default)
    if kind == "size":
        return format_size(field.default)
    return to_builtins(field.default)
