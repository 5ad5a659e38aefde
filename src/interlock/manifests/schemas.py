"""The JSON Schemas of manifests, and messages for their validation errors.

The schemas are derived from the structs of `model.py`. The schema of inputs and outputs (AIP-16)
has both addresses that published manifests use. No schema is fetched.

A message quotes a value only if its schema has a `title`, and never if the value may be a secret by
mistake (`writeOnly`).
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal, get_args

import jsonschema_rs
from jsonschema_rs import ValidationError, ValidationErrorKind

from interlock.core.config.problems import KeyPath, Problem, join_alternatives, quote
from interlock.manifests.document import ManifestDocument
from interlock.manifests.fields import Schema, derive_object_schema, text
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
    "title": "The inputs and outputs of a contract (AIP-16)",
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
"""The inputs of published contracts refer to this schema."""

TOOL: Final[Schema] = {
    "$schema": DIALECT,
    "$id": "urn:interlock:schema:aip-14:tool",
    "title": "The front matter of a TOOL.md (AIP-14)",
    **derive_object_schema(ToolContract),
}

SECRET: Final = derive_object_schema(
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

# AIP-30 applies to all drivers, AIP-32 to MCP servers. Other keys are accepted at the top level
# only, because each kind of driver has keys of its own.

_SHA_256: Final = Annotated[
    str, text("a SHA-256", "write 64 hexadecimal digits", pattern="^[0-9a-fA-F]{64}$")
]
DRIVER: Final[Schema] = {
    "$schema": DIALECT,
    "$id": "urn:interlock:schema:aip-30:driver",
    "title": "The front matter of a DRIVER.md (AIP-30)",
    **derive_object_schema(
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
    """Return the schema of `server`. Each kind has its own fields. Other keys are accepted."""
    fields = derive_object_schema(ServerBlock)["properties"]
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
    **derive_object_schema(
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
    # A single secret, for define_secret.
    "secret": {"$schema": DIALECT, "$id": "urn:interlock:schema:aip-19:secret", **SECRET},
    # Both parts of a driver, for a fast check without messages.
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
    """Return a copy of a schema, for editors and other programs."""
    return copy.deepcopy(_SCHEMAS[name])


def find_schema(address: str) -> Schema | None:
    """Return the schema with an address. A fragment of the address is ignored."""
    return _schemas_by_address().get(address.partition("#")[0])


@cache
def _schemas_by_address() -> dict[str, Schema]:
    schemas: dict[str, Schema] = {schema["$id"]: schema for schema in _SCHEMAS.values()}
    for address in IO_ADDRESSES:
        # The `$id` of a schema must be the address at which it is registered.
        schemas[address] = {**IO, "$id": address}
    schemas[REF_ADDRESS] = REF
    return schemas


@cache
def registry() -> jsonschema_rs.Registry:
    """Return all schemas by address. Validation with this registry fetches nothing."""
    return jsonschema_rs.Registry(
        list(_schemas_by_address().items()), draft=jsonschema_rs.Draft202012, retriever=no_retrieval
    )


@cache
def validator(name: str) -> jsonschema_rs.Validator:
    """Return the validator of a schema."""
    return jsonschema_rs.Draft202012Validator(
        _SCHEMAS[name], registry=registry(), retriever=no_retrieval, mask="the value"
    )


def no_retrieval(address: str) -> Any:
    """Reject the retrieval of a schema: untrusted schemas must not cause requests."""
    raise ValueError(f"schemas cannot refer to {address}")


# -- messages for validation errors

Kind = ValidationErrorKind

_TEXT_ERRORS: Final = (Kind.Pattern, Kind.MinLength, Kind.MaxLength)
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
    "array": "write [a, b], or one line with a dash for each item",
    "object": "write key: value lines",
}


def explain(
    document: ManifestDocument,
    name: str,
    key_advice: Mapping[str, tuple[str, str]] | None = None,
    *,
    complete: bool = True,
) -> list[Problem]:
    """Return the problems of a document by a schema.

    Args:
        name: the name of the schema.
        key_advice: for keys at the top level, the message and the hint instead of "unknown key".
        complete: whether required keys at the top level must be present.
    """
    return _Explainer(document, _SCHEMAS[name], key_advice or {}, complete).explain_all(
        validator(name).iter_errors(document.value)
    )


def nearest(word: str, names: Iterable[str]) -> str:
    """Return the name that is similar to a word. Empty: there is none."""
    candidates = list(names)
    matches = difflib.get_close_matches(word, candidates, n=1)
    matches = matches or difflib.get_close_matches(word.lower().replace("-", "_"), candidates, n=1)
    matches = matches or [name for name in candidates if len(word) > 2 and name.startswith(word)]
    return matches[0] if matches else ""


def suggest_key(word: str, keys: Iterable[str]) -> str:
    """Return the advice for an unknown key."""
    candidates = sorted(keys)
    similar_key = nearest(word, candidates)
    if similar_key:
        return f'did you mean "{similar_key}"?'
    return f"the keys here are {', '.join(candidates)}"


class _Explainer:
    """Explains the validation errors of one document."""

    def __init__(
        self,
        document: ManifestDocument,
        schema: Schema,
        key_advice: Mapping[str, tuple[str, str]],
        complete: bool,
    ) -> None:
        self._document = document
        self._schema = schema
        self._key_advice = key_advice
        self._complete = complete
        self._misspelled: dict[KeyPath, set[str]] = {}

    def explain_all(self, errors: Iterable[ValidationError]) -> list[Problem]:
        # Unknown keys are first: a misspelled required key is then not reported as missing, too.
        ordered = sorted(
            errors, key=lambda error: not isinstance(error.kind, Kind.AdditionalProperties)
        )
        problems: list[Problem] = []
        reported: set[KeyPath] = set()
        for error in ordered:
            if isinstance(error.kind, _TEXT_ERRORS):
                # One problem of a text is enough: its hint covers all of them.
                path = tuple(error.instance_path)
                if path in reported:
                    continue
                reported.add(path)
            problems += self._explain(error)
        return problems

    def _explain(self, error: ValidationError) -> list[Problem]:
        path: KeyPath = tuple(error.instance_path)
        schema = _resolve_path(self._schema, error.evaluation_path[:-1])
        value = _value_at(self._document.value, path)
        match error.kind:
            case Kind.AdditionalProperties(unexpected=unexpected):
                return [self._explain_unknown(key, schema, path) for key in unexpected]
            case Kind.Required(property=key):
                return self._explain_missing(key, schema, path, value)
            case Kind.AnyOf(context=context) | Kind.OneOfNotValid(context=context):
                return self._explain_branches(context, path, schema, value)
            case Kind.PropertyNames(error=inner):
                key = str(inner.instance)
                message = f"{quote(key)} is not {schema.get('title', 'a key')}"
                hint = schema.get("description", "write another key")
                return [self._document.problem((*path, key), message, hint)]
        message, hint = _explain_kind(error.kind, schema, value)
        return [self._document.problem(path, message, hint)]

    def _explain_missing(
        self, key: str, schema: Schema, path: KeyPath, value: Any
    ) -> list[Problem]:
        if key in self._misspelled.get(path, ()) or (not path and not self._complete):
            return []
        # An object that accepts other keys reports no typo, so typos are found here.
        unknown_keys = [name for name in value if name not in schema.get("properties", {})]
        typo = next((name for name in unknown_keys if nearest(name, [key])), "")
        hint = f'did you write "{typo}" instead of {key}?' if typo else f"add {key}"
        return [self._document.problem(path, f"{key} is missing", hint)]

    def _explain_unknown(self, key: str, schema: Schema, path: KeyPath) -> Problem:
        key_path = (*path, key)
        if not path and key in self._key_advice:
            return self._document.problem(key_path, *self._key_advice[key])
        keys = schema.get("properties", {})
        self._misspelled.setdefault(path, set()).add(nearest(key, keys))
        return self._document.problem(key_path, "unknown key", suggest_key(key, keys))

    def _explain_branches(
        self, context: list[list[ValidationError]], path: KeyPath, schema: Schema, value: Any
    ) -> list[Problem]:
        """Explain the errors of the alternative that has the type of the value."""
        branches = schema.get("anyOf") or schema.get("oneOf") or []
        for branch, errors in zip(branches, context, strict=False):
            if branch.get("type") == _type_of(value):
                return self.explain_all(errors)
        expected = join_alternatives(
            [_TYPE_NAMES.get(branch.get("type", ""), "a value") for branch in branches]
        )
        hint = schema.get("description", f"write {expected}")
        message = f"expected {expected}, found {_describe_type(value)}"
        return [self._document.problem(path, message, hint)]


def _explain_kind(kind: ValidationErrorKind, schema: Schema, value: Any) -> tuple[str, str]:
    title, hint = schema.get("title", ""), schema.get("description", "")
    match kind:
        case Kind.Type(types=types):
            if value is None:
                return "there is no value here", "write a value, or remove the key"
            expected_types = join_alternatives([_TYPE_NAMES.get(name, name) for name in types])
            message = f"expected {expected_types}, found {_describe_type(value)}"
            return message, _type_hint(types, schema, value)
        case Kind.Enum(options=options):
            choices = [str(option) for option in options]
            label = quote(value) if isinstance(value, str) else _describe_type(value)
            similar_choice = nearest(value, choices) if isinstance(value, str) else ""
            if similar_choice:
                return f"{label} is not one of the choices", f'did you mean "{similar_choice}"?'
            return f"{label} is not one of the choices", f"write {join_alternatives(choices)}"
        case Kind.Constant(expected_value=expected):
            return f"this must be {expected}", f"write {expected}"
        case Kind.Pattern():
            quotable = isinstance(value, str) and title and not schema.get("writeOnly")
            label = quote(value) if quotable else "this"
            return f"{label} is not {title or 'a valid value'}", hint or "write another value"
        case Kind.MinLength():
            return "the text is too short", hint or "write a longer text, or remove the key"
        case Kind.MaxLength(limit=limit):
            return f"the text is longer than {limit} characters", hint or "shorten it"
        case Kind.Minimum(limit=limit):
            return f"this must be at least {limit}", f"write {limit} or more"
        case Kind.Maximum(limit=limit):
            return f"this must be at most {limit}", f"write {limit} or less"
        case Kind.MinItems(limit=limit):
            if limit == 1:
                return "the list is empty", "add an item"
            return f"the list has fewer than {limit} items", "add an item"
        case Kind.MaxItems(limit=limit):
            return f"the list has more than {limit} items", "remove some"
        case Kind.UniqueItems():
            return "the list has duplicates", "remove them"
        case Kind.MinProperties() | Kind.MaxProperties():
            return f"this is not {title or 'valid'}", hint or "write exactly one key"
    return f"this is not {title or 'a valid value'}", hint or "write another value"


def _type_hint(types: list[str], schema: Schema, value: Any) -> str:
    hint = str(schema.get("description", ""))
    if types == ["string"] and not isinstance(value, (dict, list)):
        # A number in quotes, such as "1.0", would not match a pattern.
        return hint if hint and "pattern" in schema else "put it in quotes"
    if types == ["string"] and not hint:
        return "write a single value"
    return hint or _TYPE_HINTS.get(types[0], "write another value")


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "string"), (int, "integer"), (float, "number"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object" if isinstance(value, dict) else "null"


def _describe_type(value: Any) -> str:
    name = _type_of(value)
    return {"integer": "a number", "object": "keys and values"}.get(name, _TYPE_NAMES[name])


def _value_at(value: Any, path: KeyPath) -> Any:
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _resolve_path(schema: Any, steps: list[str | int]) -> Schema:
    """Return the subschema at an evaluation path of the validator. References are followed."""
    root = schema
    for step in steps:
        if step == "$ref" and isinstance(schema, dict):
            root, schema = _resolve_reference(root, schema["$ref"])
            continue
        try:
            schema = schema[step]
        except (KeyError, IndexError, TypeError):
            return {}
    while isinstance(schema, dict) and "$ref" in schema and len(schema) == 1:
        root, schema = _resolve_reference(root, schema["$ref"])
    return schema if isinstance(schema, dict) else {}


def _resolve_reference(root: Schema, reference: str) -> tuple[Schema, Any]:
    address, _, pointer = reference.partition("#")
    if address:
        root = find_schema(address) or {}
    schema: Any = root
    for step in pointer.split("/")[1:]:
        schema = schema.get(unescape_step(step), {})
    return root, schema
