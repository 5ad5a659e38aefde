"""A JSON Schema 2020-12 of `interlock.yaml` for editors, made from the structs of `model.py`.

It takes every file that the node takes. What a schema cannot say (two servers with one segment, a
token for a public address) is left to `checks.py`.
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
_ONE_WAY_TO_REACH_IT: Final[Schema] = {
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
    """The schema as plain data, ready to be written as JSON."""
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
        "properties": {name: _field_schema(f, definitions) for name, f in fields.items()},
    }
    required = [name for name, known in fields.items() if known.required]
    if required:
        schema["required"] = required
    if struct is ServerConfig:
        schema.update(_ONE_WAY_TO_REACH_IT)
    return schema


def _field_schema(known: inspect.Field, definitions: dict[str, Schema]) -> Schema:
    declared, _, optional = unwrap(known.type)
    schema = _type_schema(known.type, definitions)
    # An empty block stands for an empty list, mapping or section.
    empty = isinstance(declared, inspect.ListType | inspect.DictType | inspect.StructType)
    if optional or empty:
        schema = _or_null(schema)
    described: Schema = {}
    if isinstance(known.type, inspect.Metadata):
        description = (known.type.extra_json_schema or {}).get("description")
        if description:
            described["description"] = description
    default = written_default(known)
    if default is not None:
        schema = {**schema, "default": default}
    return {**described, **schema}


def _type_schema(declared: inspect.Type, definitions: dict[str, Schema]) -> Schema:
    declared, kind, _ = unwrap(declared)
    if kind == "server":
        _define(ServerConfig, definitions)
        short = "A URL that starts with http:// or https://, or a command line."
        return {
            "anyOf": [
                {"type": "string", "minLength": 1, "description": short},
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


def written_default(known: inspect.Field) -> Any:
    """The default as a person would write it; None when there is nothing worth showing."""
    _, kind, _ = unwrap(known.type)
    if known.default is NODEFAULT or known.default is None or known.default == "":
        return None
    if kind in ("duration", "duration_or_zero"):
        return durations.format_duration(known.default)
    if kind == "size":
        return format_size(known.default)
    return to_builtins(known.default)
