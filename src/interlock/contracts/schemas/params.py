"""Parameters of OpenAPI operations as JSON Schema, and their comparison with existing JSON
Schemas. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from interlock.contracts.schemas.drift import TypeDescription, find_differences
from interlock.contracts.schemas.json_schema import DIALECT, Schema
from interlock.contracts.schemas.openapi import METHODS, REQUEST_TYPE, resolve
from interlock.contracts.schemas.wrappers import operation_name


class OperationParams(msgspec.Struct, frozen=True):
    """The parameters of one operation, without its body."""

    operation: str
    """Such as `GET /orders/{id}`."""
    name: str
    """Such as `GetOrderParams`."""
    request_type: str
    """The message whose fields they are, if the document names it."""
    schema: Schema


def extract_parameters(document: Schema) -> list[OperationParams]:
    """Return the parameters of every operation that has any.

    A `$ref` to a parameter is resolved. Schemas of parameters may still refer to components of the
    document.
    """
    return list(_extract(document))


def _extract(document: Schema) -> Iterator[OperationParams]:
    for path, item in document.get("paths", {}).items():
        path_item = resolve(document, item)
        if not isinstance(path_item, dict):
            continue
        for method in METHODS:
            operation = path_item.get(method)
            if not isinstance(operation, dict):
                continue
            references = [*path_item.get("parameters", []), *operation.get("parameters", [])]
            parameters = [resolve(document, reference) for reference in references]
            if not parameters:
                continue
            name = f"{operation_name(operation, path, method)}Params"
            yield OperationParams(
                operation=f"{method.upper()} {path}",
                name=name,
                request_type=str(operation.get(REQUEST_TYPE, "")),
                schema=_schema(name, f"{method.upper()} {path}", parameters, document),
            )


def _schema(name: str, operation: str, parameters: list[Schema], document: Schema) -> Schema:
    properties: dict[str, Any] = {}
    required = []
    for parameter in parameters:
        parameter_schema = parameter.get("schema", {})
        text = parameter.get("description")
        description = {"description": text} if text else {}
        properties[parameter["name"]] = (
            {**parameter_schema, **description}
            if isinstance(parameter_schema, dict)
            else parameter_schema
        )
        if parameter.get("required") is True:
            required.append(parameter["name"])
    schema_document: Schema = {
        "$schema": DIALECT,
        "title": name,
        "description": f"The parameters of {operation}.",
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
    }
    components = document.get("components", {}).get("schemas", {})
    if components and _has_ref(properties):
        # A `$ref` of the document resolves in this schema, too, because the paths are equal.
        schema_document["components"] = {"schemas": components}
    return schema_document


def _has_ref(value: Any) -> bool:
    if isinstance(value, dict):
        return "$ref" in value or any(_has_ref(child) for child in value.values())
    return isinstance(value, list) and any(_has_ref(child) for child in value)


def find_parameter_drift(
    file: str, document: Schema, schemas: Mapping[str, tuple[str, Schema]]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the types whose JSON Schema differs from the parameters of an operation, with the
    differences.

    Args:
        schemas: the file and the schema of each type, by the name of the type.
    """
    for params in extract_parameters(document):
        stem = params.name.removesuffix("Params")
        for name in (params.request_type, params.name, f"{stem}Request"):
            if name and name in schemas:
                schema_file, schema = schemas[name]
                found_differences = _compare_parameters(
                    TypeDescription(f"{file} ({params.operation})", params.schema, document),
                    TypeDescription(schema_file, schema, schema),
                )
                if found_differences:
                    yield name, found_differences


def _compare_parameters(operation: TypeDescription, other: TypeDescription) -> list[str]:
    """Return the differences in the members that are parameters. The other members of a request
    are its body."""
    names = operation.schema["properties"]
    properties = other.schema.get("properties")
    if not isinstance(properties, dict):
        return find_differences(operation, other)
    missing = [
        f"{name} is in {operation.location} only" for name in names if name not in properties
    ]
    common = [name for name in names if name in properties]
    return missing + find_differences(
        _select_members(operation, common), _select_members(other, common)
    )


def _select_members(side: TypeDescription, names: list[str]) -> TypeDescription:
    properties = side.schema["properties"]
    required = side.schema.get("required", [])
    schema = {
        "type": "object",
        "properties": {name: properties[name] for name in names},
        "required": [name for name in required if name in names],
    }
    return TypeDescription(side.location, schema, side.root)
