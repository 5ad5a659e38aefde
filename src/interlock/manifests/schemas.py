"""Our JSON Schemas of manifests, and what they have against one, in sentences.

The schemas of manifests are derived from the structs of `model.py`; the schema of inputs and
outputs (AIP-16) is known under both addresses that published manifests use for it. Nothing is ever
fetched.
A value is quoted only where the schema says what kind of thing it is (`title`), and never where
somebody could have put a secret by mistake (`writeOnly`).
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal, get_args

import jsonschema_rs
from jsonschema_rs import ValidationError, ValidationErrorKind

from interlock.core.config.problems import KeyPath, Problem, one_of, quoted
from interlock.manifests.document import ManifestDocument
from interlock.manifests.fields import Schema, object_schema, text
from interlock.manifests.model import (
    IO_ADDRESSES,
    MCP_FIELDS,
    SERVER_FIELDS,
    DriverManifest,
    McpBinding,
    NonEmptyText,
    SecretEntry,
    ServerBlock,
    ToolContract,
)
from interlock.protocol.json_pointer import unescape_step

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_FILES: Final[Schema] = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "properties": {
            "path": {"type": "string", "minLength": 1},
            "mode": {"enum": ["ro", "rw"]},
            "contentType": {"type": "string"},
        },
        "required": ["path"],
        "additionalProperties": False,
    },
}
IO: Final[Schema] = {
    "$schema": DIALECT,
    "$id": "urn:interlock:schema:aip-16:io",
    "title": "What goes in and what comes out (AIP-16)",
    "type": "object",
    "$defs": {
        "jsonSchema": {
            "type": "object",
            "title": "a JSON Schema",
            "description": "write an object such as {type: object, properties: {…}}",
        },
        "inputs": {"$ref": "#/$defs/jsonSchema"},
        "outputs": {"$ref": "#/$defs/jsonSchema"},
        "inputsFiles": _FILES,
        "outputsFiles": _FILES,
    },
}

REF_ADDRESS: Final = "https://agentproto.sh/docs/aip-27/REF.schema.json"
REF: Final[Schema] = {
    "$schema": DIALECT,
    "$id": REF_ADDRESS,
    "title": "A reference (AIP-27)",
    "anyOf": [
        {"type": "string", "pattern": "^[a-z][a-z0-9_]*:.+"},
        {
            "type": "object",
            "properties": {"kind": {"type": "string", "pattern": "^[a-z][a-z0-9_]*$"}},
            "required": ["kind"],
        },
    ],
}
"""Published contracts refer to it in their inputs."""

TOOL: Final[Schema] = {
    "$schema": DIALECT,
    "$id": "urn:interlock:schema:aip-14:tool",
    "title": "The front matter of a TOOL.md (AIP-14)",
    **object_schema(ToolContract),
}

SECRET: Final = object_schema(
    SecretEntry,
    more={
        "exposures": {
            "type": "array",
            "items": {"type": "object", "properties": {"kind": NonEmptyText}, "required": ["kind"]},
        }
    },
)
SECRETS: Final[Schema] = {
    "$schema": DIALECT,
    "$id": "urn:interlock:schema:aip-19:secrets",
    "title": "The front matter of a SECRETS.md (AIP-19)",
    "type": "object",
    "properties": {
        "secrets": {"type": "array", "items": SECRET, "minItems": 1, "maxItems": 10_000}
    },
    "required": ["secrets"],
    "additionalProperties": False,
}

# What AIP-30 says of every driver, and AIP-32 of one that is an MCP server. The top level takes
# other keys (the kinds of drivers have their own); everything below takes only what is named.

_SHA_256: Final = Annotated[
    str, text("a SHA-256", "write 64 hexadecimal digits", pattern="^[0-9a-fA-F]{64}$")
]
DRIVER: Final[Schema] = {
    "$schema": DIALECT,
    "$id": "urn:interlock:schema:aip-30:driver",
    "title": "The front matter of a DRIVER.md (AIP-30)",
    **object_schema(
        DriverManifest,
        [name for name in DriverManifest.__struct_fields__ if name not in MCP_FIELDS],
        more={
            "install": {
                "items": {
                    "properties": {
                        "sha256": Annotated[
                            str,
                            text(
                                "a SHA-256",
                                "write 64 hexadecimal digits",
                                pattern="^[0-9a-fA-F]{64}$",
                            ),
                        ]
                    }
                }
            },
            "network": {"properties": {"ingress": {"type": "array", "items": NonEmptyText}}},
            "examples": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"goal": str, "note": str},
                    "required": ["goal"],
                },
            },
        },
    ),
}


def _server_schema() -> Schema:
    """Each kind of server has its own fields, and takes others."""
    fields = object_schema(ServerBlock)["properties"]
    return {
        "type": "object",
        "properties": {"kind": fields["kind"]},
        "required": ["kind"],
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
                "then": {
                    "properties": {name: fields[name] for name in names},
                    "required": [names[0]],
                },
            }
            for kind, names in SERVER_FIELDS.items()
        ],
    }


MCP: Final[Schema] = {
    "$schema": DIALECT,
    "$id": "urn:interlock:schema:aip-32:mcp",
    "title": "The front matter of a DRIVER.md whose kind is mcp (AIP-32)",
    **object_schema(
        DriverManifest,
        MCP_FIELDS,
        required=("kind", "server", "transport"),
        more={
            "kind": {"const": "mcp"},
            "implements": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "metadata": {"type": "object", "properties": {"mcp": McpBinding}}
                    },
                },
            },
        },
    ),
}
MCP["properties"]["server"] = _server_schema()


ManifestName = Literal["driver", "mcp", "tool", "io", "secrets"]
MANIFEST_NAMES: Final[tuple[ManifestName, ...]] = get_args(ManifestName)

_SCHEMAS: Final[dict[str, Schema]] = {
    "driver": DRIVER,
    "mcp": MCP,
    "tool": TOOL,
    "io": IO,
    "secrets": SECRETS,
    # One secret alone, as define_secret takes it.
    "secret": {"$schema": DIALECT, "$id": "urn:interlock:schema:aip-19:secret", **SECRET},
    # Both parts of a driver in one go, to find out quickly that there is nothing to explain.
    "whole-driver": {
        "$schema": DIALECT,
        "$id": "urn:interlock:schema:aip-32:whole-driver",
        "allOf": [
            {"$ref": DRIVER["$id"]},
            {"if": {"properties": {"kind": {"const": "mcp"}}}, "then": {"$ref": MCP["$id"]}},
        ],
    },
}


def manifest_schema(name: ManifestName) -> dict[str, Any]:
    """A schema of ours, to keep: what an editor or another program validates with."""
    return copy.deepcopy(_SCHEMAS[name])


def schema_named(name: str) -> Schema:
    """A schema of ours, to look into."""
    return _SCHEMAS[name]


def at_address(address: str) -> Schema | None:
    """The schema that is known under an address, with or without a fragment."""
    return _addresses().get(address.partition("#")[0])


@cache
def _addresses() -> dict[str, Schema]:
    known: dict[str, Schema] = {schema["$id"]: schema for schema in _SCHEMAS.values()}
    for address in IO_ADDRESSES:
        # Under an address, a schema must not say that it lives at another one.
        known[address] = {**IO, "$id": address}
    known[REF_ADDRESS] = REF
    return known


@cache
def registry() -> jsonschema_rs.Registry:
    """All of them, by address. Whoever validates with it fetches nothing."""
    return jsonschema_rs.Registry(
        list(_addresses().items()), draft=jsonschema_rs.Draft202012, retriever=no_retrieval
    )


@cache
def validator(name: str) -> jsonschema_rs.Validator:
    """What checks values against one of our schemas."""
    return jsonschema_rs.Draft202012Validator(
        _SCHEMAS[name], registry=registry(), retriever=no_retrieval, mask="the value"
    )


def no_retrieval(address: str) -> Any:
    """A schema from a stranger must not make anybody fetch anything."""
    raise ValueError(f"schemas may not refer to {address}")


# -- what a schema has against a manifest

Kind = ValidationErrorKind

_ABOUT_TEXT: Final = (Kind.Pattern, Kind.MinLength, Kind.MaxLength)
_TYPE_NAMES: Final = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "keys and values",
    "null": "nothing",
}
_TYPE_HINTS: Final = {
    "string": "put it in quotes",
    "integer": "write digits only",
    "number": "write digits only",
    "boolean": "write true or false",
    "array": "write [a, b], or one line with a dash for each",
    "object": "write key: value lines",
}


def explain(
    document: ManifestDocument,
    name: str,
    special: Mapping[str, tuple[str, str]] | None = None,
    *,
    whole: bool = True,
) -> list[Problem]:
    """Everything that the schema called `name` has against a document.

    `special` has the message and hint for top-level keys that deserve better than "unknown key".
    Not `whole`: nothing is missing at the top level.
    """
    return _Explainer(document, schema_named(name), special or {}, whole).problems(
        validator(name).iter_errors(document.value)
    )


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, or an empty text."""
    words = list(known)
    close = difflib.get_close_matches(word, words, n=1)
    close = close or difflib.get_close_matches(word.lower().replace("-", "_"), words, n=1)
    close = close or [one for one in words if len(word) > 2 and one.startswith(word)]
    return close[0] if close else ""


def suggestion(word: str, known: Iterable[str]) -> str:
    """What to write instead of an unknown key."""
    words = sorted(known)
    meant = nearest(word, words)
    return f'did you mean "{meant}"?' if meant else f"the keys here are {', '.join(words)}"


class _Explainer:
    def __init__(
        self,
        document: ManifestDocument,
        schema: Schema,
        special: Mapping[str, tuple[str, str]],
        whole: bool,
    ) -> None:
        self._document = document
        self._schema = schema
        self._special = special
        self._whole = whole
        self._misspelt: dict[KeyPath, set[str]] = {}

    def problems(self, found: Iterable[ValidationError]) -> list[Problem]:
        failures = list(found)
        # Unknown keys first: one that was meant to be a required key is then not also missing.
        failures.sort(key=lambda error: not isinstance(error.kind, Kind.AdditionalProperties))
        problems: list[Problem] = []
        said: set[KeyPath] = set()
        for error in failures:
            if isinstance(error.kind, _ABOUT_TEXT):
                # One sentence says what to write; a second about the same text adds nothing.
                path = tuple(error.instance_path)
                if path in said:
                    continue
                said.add(path)
            problems += self._explained(error)
        return problems

    def _explained(self, error: ValidationError) -> list[Problem]:
        path: KeyPath = tuple(error.instance_path)
        schema = _walk(self._schema, error.evaluation_path[:-1])
        value = _value_at(self._document.value, path)
        match error.kind:
            case Kind.AdditionalProperties(unexpected=unexpected):
                return [self._unknown(key, schema, path) for key in unexpected]
            case Kind.Required(property=key):
                return self._missing(key, schema, path, value)
            case Kind.AnyOf(context=context) | Kind.OneOfNotValid(context=context):
                return self._branches(context, path, schema, value)
            case Kind.PropertyNames(error=inner):
                key = str(inner.instance)
                message = f"{quoted(key)} is not {schema.get('title', 'a key')}"
                hint = schema.get("description", "write another key")
                return [self._document.problem((*path, key), message, hint)]
        message, hint = _sentence(error.kind, schema, value)
        return [self._document.problem(path, message, hint)]

    def _missing(self, key: str, schema: Schema, path: KeyPath, value: Any) -> list[Problem]:
        if key in self._misspelt.get(path, ()) or (not path and not self._whole):
            return []
        # An open object does not complain of a slip, so it is looked for here.
        others = [one for one in value if one not in schema.get("properties", {})]
        slip = next((one for one in others if nearest(one, [key])), "")
        hint = f'is "{slip}" meant to be {key}?' if slip else f"add {key}"
        return [self._document.problem(path, f"{key} is missing", hint)]

    def _unknown(self, key: str, schema: Schema, path: KeyPath) -> Problem:
        where = (*path, key)
        if not path and key in self._special:
            return self._document.problem(where, *self._special[key])
        known = schema.get("properties", {})
        self._misspelt.setdefault(path, set()).add(nearest(key, known))
        return self._document.problem(where, "unknown key", suggestion(key, known))

    def _branches(
        self, context: list[list[ValidationError]], path: KeyPath, schema: Schema, value: Any
    ) -> list[Problem]:
        """Several shapes are possible: explain the one that was meant, going by its type."""
        shapes = schema.get("anyOf") or schema.get("oneOf") or []
        for shape, failures in zip(shapes, context, strict=False):
            if shape.get("type") == _type_of(value):
                return self.problems(failures)
        wanted = one_of([_TYPE_NAMES.get(shape.get("type", ""), "a value") for shape in shapes])
        hint = schema.get("description", f"write {wanted}")
        return [self._document.problem(path, f"expected {wanted}, found {_found(value)}", hint)]


def _sentence(kind: ValidationErrorKind, schema: Schema, value: Any) -> tuple[str, str]:
    title, hint = schema.get("title", ""), schema.get("description", "")
    match kind:
        case Kind.Type(types=types):
            if value is None:
                return "there is no value here", "write one, or remove the key"
            wanted = one_of([_TYPE_NAMES.get(one, one) for one in types])
            return f"expected {wanted}, found {_found(value)}", _type_hint(types, schema, value)
        case Kind.Enum(options=options):
            words = [str(option) for option in options]
            shown = quoted(value) if isinstance(value, str) else _found(value)
            meant = nearest(value, words) if isinstance(value, str) else ""
            advice = f'did you mean "{meant}"?' if meant else f"write {one_of(words)}"
            return f"{shown} is not one of the choices", advice
        case Kind.Constant(expected_value=expected):
            return f"this must be {expected}", f"write {expected}"
        case Kind.Pattern():
            quotable = isinstance(value, str) and title and not schema.get("writeOnly")
            shown = quoted(value) if quotable else "this"
            return f"{shown} is not {title or 'what is needed here'}", hint or "write another value"
        case Kind.MinLength():
            return "the text is too short", hint or "write something, or remove the key"
        case Kind.MaxLength(limit=limit):
            return f"the text is longer than {limit} characters", hint or "shorten it"
        case Kind.Minimum(limit=limit):
            return f"this must be at least {limit}", f"write {limit} or more"
        case Kind.Maximum(limit=limit):
            return f"this must be at most {limit}", f"write {limit} or less"
        case Kind.MinItems(limit=limit):
            return f"at least {limit} is needed here", "add one"
        case Kind.MaxItems(limit=limit):
            return f"these are more than {limit}", "use fewer"
        case Kind.UniqueItems():
            return "something stands here twice", "keep one of the two"
        case Kind.MinProperties() | Kind.MaxProperties():
            return f"this is not {title or 'what is needed here'}", hint or "name one key"
    return f"this is not {title or 'what is needed here'}", hint or "write another value"


def _type_hint(types: list[str], schema: Schema, value: Any) -> str:
    hint = str(schema.get("description", ""))
    if types == ["string"] and not isinstance(value, (dict, list)):
        # Quotes would not make 1.0 a version.
        return hint if hint and "pattern" in schema else "put it in quotes"
    if types == ["string"] and not hint:
        return "write one value"
    return hint or _TYPE_HINTS.get(types[0], "write another value")


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "string"), (int, "integer"), (float, "number"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object" if isinstance(value, dict) else "null"


def _found(value: Any) -> str:
    name = _type_of(value)
    return {"integer": "a number", "object": "keys and values"}.get(name, _TYPE_NAMES[name])


def _value_at(value: Any, path: KeyPath) -> Any:
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _walk(schema: Any, steps: list[str | int]) -> Schema:
    """The part of a schema that a path of the validator leads to. References are followed."""
    root = schema
    for step in steps:
        if step == "$ref" and isinstance(schema, dict):
            root, schema = _referred(root, schema["$ref"])
            continue
        try:
            schema = schema[step]
        except (KeyError, IndexError, TypeError):
            return {}
    while isinstance(schema, dict) and "$ref" in schema and len(schema) == 1:
        root, schema = _referred(root, schema["$ref"])
    return schema if isinstance(schema, dict) else {}


def _referred(root: Schema, reference: str) -> tuple[Schema, Any]:
    address, _, pointer = reference.partition("#")
    if address:
        root = at_address(address) or {}
    found: Any = root
    for step in pointer.split("/")[1:]:
        found = found.get(unescape_step(step), {})
    return root, found
