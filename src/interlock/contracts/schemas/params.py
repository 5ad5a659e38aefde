"""The parameters of operations as JSON Schema, and whether the JSON Schemas that are there say the
same of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from interlock.contracts.schemas.drift import TypeDescription, differences
from interlock.contracts.schemas.json_schema import DIALECT, Schema
from interlock.contracts.schemas.openapi import METHODS, REQUEST_TYPE, resolve
from interlock.contracts.schemas.wrappers import operation_name


class OperationParams(msgspec.Struct, frozen=True):
    """What one operation is asked with, beside a body."""

    operation: str
    """`GET /orders/{id}`."""
    name: str
    """`GetOrderParams`."""
    request_type: str
    """The message whose fields they are, where that is known."""
    schema: Schema


def extract(document: Schema) -> list[OperationParams]:
    """The parameters of every operation that has any. `$ref`s are followed one step: schemas of the
    parameters may still refer to the document's components."""
    return list(_extracted(document))


def _extracted(document: Schema) -> Iterator[OperationParams]:
    for path, item in document.get("paths", {}).items():
        found = resolve(document, item)
        if not isinstance(found, dict):
            continue
        for method in METHODS:
            operation = found.get(method)
            if not isinstance(operation, dict):
                continue
            said = [*found.get("parameters", []), *operation.get("parameters", [])]
            parameters = [resolve(document, one) for one in said]
            if not parameters:
                continue
            name = f"{operation_name(operation, path, method)}Params"
            yield OperationParams(
                operation=f"{method.upper()} {path}",
                name=name,
                request_type=str(operation.get(REQUEST_TYPE, "")),
                schema=_schema(name, f"{method.upper()} {path}", parameters, document),
            )


def _schema(name: str, where: str, parameters: list[Schema], document: Schema) -> Schema:
    properties: dict[str, Any] = {}
    required = []
    for one in parameters:
        schema = one.get("schema", {})
        about = {"description": one["description"]} if one.get("description") else {}
        properties[one["name"]] = {**schema, **about} if isinstance(schema, dict) else schema
        if one.get("required") is True:
            required.append(one["name"])
    whole: Schema = {
        "$schema": DIALECT,
        "title": name,
        "description": f"The parameters of {where}.",
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
    }
    used = document.get("components", {}).get("schemas", {})
    if used and _refers(properties):
        # The pointers of the document lead to the same place in the schema.
        whole["components"] = {"schemas": used}
    return whole


def _refers(value: Any) -> bool:
    if isinstance(value, dict):
        return "$ref" in value or any(_refers(one) for one in value.values())
    return isinstance(value, list) and any(_refers(one) for one in value)


def disagreements(
    file: str, document: Schema, schemas: Mapping[str, tuple[str, Schema]]
) -> Iterator[tuple[str, list[str]]]:
    """For every operation whose parameters a JSON Schema describes too: the name of the type, and
    what differs. `schemas`: by the name of their type, each with its file."""
    for params in extract(document):
        stem = params.name.removesuffix("Params")
        for name in (params.request_type, params.name, f"{stem}Request"):
            if name and name in schemas:
                where, schema = schemas[name]
                diff = _of_params(
                    TypeDescription(f"{file} ({params.operation})", params.schema, document),
                    TypeDescription(where, schema, schema),
                )
                if diff:
                    yield name, diff


def _of_params(operation: TypeDescription, other: TypeDescription) -> list[str]:
    """What differs in the members that are parameters: the rest of a request is its body."""
    names = operation.schema["properties"]
    properties = other.schema.get("properties")
    if not isinstance(properties, dict):
        return differences(operation, other)
    missing = [f"{name} is in {operation.where} only" for name in names if name not in properties]
    both = [name for name in names if name in properties]
    return missing + differences(_narrowed(operation, both), _narrowed(other, both))


def _narrowed(side: TypeDescription, names: list[str]) -> TypeDescription:
    properties = side.schema["properties"]
    required = side.schema.get("required", [])
    schema = {
        "type": "object",
        "properties": {name: properties[name] for name in names},
        "required": [name for name in required if name in names],
    }
    return TypeDescription(side.where, schema, side.root)
