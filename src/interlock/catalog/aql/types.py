"""The types that introspection knows: those of the language, and those that tools bring along."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from interlock.catalog.aql.danger import TRUST
from interlock.catalog.aql.described import (
    LONGEST,
    parameter_info,
    shape,
    surface_of,
    type_name,
    without_null,
)
from interlock.catalog.aql.operation import Operation, Parameter
from interlock.catalog.aql.parameters import INPUT, Surface, one_line, read, type_of
from interlock.errors import ProtocolError
from interlock.protocol.aql.words import Category, Danger
from interlock.protocol.jsonrpc import decode_members, decode_value

TypeDetails = dict[str, Any]
TOOL_RESULT: Final = "ToolResult"


# -- types of the language


def _field(name: str, type: str, about: str = "", required: bool = True) -> dict[str, Any]:
    info: dict[str, Any] = {"name": name, "type": type, "required": required}
    return {**info, "description": about} if about else info


def _enum(name: str, about: str, values: Iterable[str]) -> TypeDetails:
    return {"name": name, "kind": "enum", "description": about, "values": list(values)}


def _record(name: str, about: str, *fields: dict[str, Any]) -> TypeDetails:
    return {"name": name, "kind": "object", "description": about, "fields": list(fields)}


def _union(name: str, about: str, *members: str) -> TypeDetails:
    return {"name": name, "kind": "union", "description": about, "members": list(members)}


def _scalar(name: str, about: str) -> TypeDetails:
    return {"name": name, "kind": "scalar", "description": about}


PROTOCOL: Final[dict[str, TypeDetails]] = {
    one["name"]: one
    for one in (
        _enum("SemanticCategory", "What an operation does.", [one.value for one in Category]),
        _record(
            "OperationInput",
            "A request: operation with params, or operations. Keys of params that begin with _ are "
            "about the request: _fields, _preset, _dry_run, _async, _confirmation, _request_id, "
            "_quota_continue; on results that are lists also "
            "_items (which list), _filter, _sort, _aggregate, _first, _after. Others are refused.",
            _field("operation", "string", "Its name.", False),
            _field("params", "object", "Its parameters.", False),
            _field("operations", "array", "A batch: a list of requests.", False),
        ),
        _union("OperationResult", "Every answer.", "OperationSuccess", "OperationFailure"),
        _record(
            "OperationSuccess",
            "It was done.",
            _field("success", "boolean", "Always true."),
            _field("data", "any", "What came of it."),
            _field("warnings", "array", "What should be known besides.", False),
        ),
        _record(
            "OperationFailure",
            "It was not done.",
            _field("success", "boolean", "Always false."),
            _field("error", "OperationError", "Why."),
        ),
        _record(
            "OperationError",
            "Why something was not done.",
            _field("code", "string", "For programs."),
            _field("message", "string", "For people: what is wrong and what to do."),
            _field("details", "object", "More of it.", False),
        ),
        _record(
            "EndpointPermissions",
            "What an operation may do.",
            _field("readOnly", "boolean", "It changes nothing."),
            _field("destructive", "boolean", "It may change or remove what is there."),
        ),
        _record(
            "Warning",
            "What did not keep an operation from being done.",
            _field("code", "string"),
            _field("message", "string"),
            _field("details", "object", "", False),
            _field("severity", "string", "", False),
        ),
        _enum("DangerLevel", "How bad it can get.", [one.word for one in Danger]),
        _enum("TrustLevel", "How far a server is trusted.", TRUST),
        _union(
            "IntrospectionData",
            "What introspect gives: operations, operation, types or type.",
            "OperationList", "OperationDetails", "TypeList", "TypeDetails",
        ),
        _record("OperationList", "Operations.", _field("operations", "array")),
        _record("TypeList", "Types.", _field("types", "array")),
        _record(
            "OperationDetails",
            "Everything about an operation.",
            _field("name", "string"),
            _field("semantic_category", "SemanticCategory"),
            _field("endpoint", "string", "The family of its endpoint."),
            _field("mcpTool", "string", "The MCP tool to call."),
            _field("description", "string"),
            _field("permissions", "EndpointPermissions"),
            _field("parameters", "array"),
            _field("returns", "object"),
            _field("examples", "array", "", False),
        ),
        _record(
            "TypeDetails",
            "Everything about a type.",
            _field("name", "string"),
            _field("kind", "string"),
            _field("description", "string", "", False),
        ),
        _union(
            TOOL_RESULT,
            "What a server answers: its structured content, else its text read as JSON, else "
            "{content: […]}.",
            "object", "array",
        ),
        _scalar("string", "Text in UTF-8."),
        _scalar("number", "A number."),
        _scalar("integer", "A whole number, within ±(2^53-1)."),
        _scalar("boolean", "true or false."),
        _scalar("object", "Keys and values."),
        _scalar("array", "A list."),
        _scalar("any", "Any value."),
    )
}  # fmt: skip


# -- types that tools bring along


def returns(operation: Operation) -> dict[str, Any]:
    """What an operation gives, in a line."""
    native = operation.native
    if native is not None:
        known = PROTOCOL.get(native.returns)
        return {"name": native.returns, "kind": known["kind"] if known else "object"}
    if output_schema(operation) is not None:
        return {"name": type_name(operation, "result"), "kind": "object"}
    return {"name": TOOL_RESULT, "kind": "union"}


def output_schema(operation: Operation) -> dict[str, Any] | None:
    """The schema of what a tool gives, if it has one for an object."""
    tool = operation.tool
    if b'"outputSchema"' not in tool.listed:
        return None
    try:
        schema = decode_value(decode_members(b"{" + tool.listed[1:])["outputSchema"])
    except (KeyError, ProtocolError):
        return None
    return schema if isinstance(schema, dict) and type_of(schema) == "object" else None


def of_operation(operation: Operation) -> Iterator[TypeDetails]:
    """The types that an operation brings along: its input, its result, and what is nested."""
    native = operation.native
    if native is not None:
        if native.returns not in PROTOCOL:
            fields = [_field(*one, required=False) for one in native.gives]
            yield _record(native.returns, f"What {operation.name} gives.", *fields)
        return
    signature = operation.signature
    surface = surface_of(operation)
    inside = [one for one in signature.parameters if one.inside]
    if inside:
        yield _record(
            type_name(operation, INPUT),
            f"What {operation.name} changes.",
            *(parameter_info(one, surface) for one in inside),
        )
    for one in signature.parameters:
        if one.type in ("object", "any"):
            nested = _nested(type_name(operation, one.name), one, surface)
            if nested is not None:
                yield nested
    schema = output_schema(operation)
    if schema is not None:
        result = Surface(schema)
        yield _record(
            type_name(operation, "result"),
            f"What {operation.name} gives.",
            *(_as_it_is(one, result) for one in read(result)),
        )


def _nested(name: str, one: Parameter, surface: Surface) -> TypeDetails | None:
    schema = without_null(one.schema, surface)
    about = one_line(one.description, LONGEST)
    parts = schema.get("oneOf") or schema.get("anyOf")
    if isinstance(parts, list) and len(parts) > 1:
        kinds = dict.fromkeys(type_of(surface.followed(part)) for part in parts)
        return _union(name, f"{about} {shape(schema, surface)}".strip(), *kinds)
    if not isinstance(schema.get("properties"), dict):
        return None
    inner = Surface({**surface.root, **schema})
    fields = [_as_it_is(each, inner) for each in read(Surface(schema))]
    return _record(name, about, *fields)


def _as_it_is(one: Parameter, surface: Surface) -> dict[str, Any]:
    """A field of something nested: there keys are not renamed."""
    return {**parameter_info(one, surface), "name": one.own}
