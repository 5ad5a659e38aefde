"""The operation `introspect`: lists operations, describes them, and finds operations for a task.

A list without a search is complete. A search returns the best matches, and the parameters of the
best of them, so that one request is enough. Callers see only operations that they may call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from interlock.aql.danger import TRUST_LEVELS
from interlock.aql.execution_states import LIFECYCLE
from interlock.aql.language.cursors import CursorCodec, CursorPosition
from interlock.aql.language.errors import AqlError
from interlock.aql.operations import (
    AFTER,
    FEATURES,
    FIRST,
    INPUT,
    MAX_LIST_DESCRIPTION,
    BuiltinOperation,
    Operation,
    OperationCatalogBuilder,
    OperationSnapshot,
    Parameter,
    SchemaProperties,
    one_line,
    read_parameters,
    type_of,
)
from interlock.aql.search.searcher import Searcher
from interlock.aql.view import is_visible, list_visible, token_costs
from interlock.core.catalog.offering import Tool
from interlock.core.catalog.snapshot import View
from interlock.errors import ProtocolError
from interlock.primitives.bounded_dict import BoundedDict
from interlock.protocol.aql_terms import BUILTIN_KEY, SPEC_VERSION, Category, Danger, OperationView
from interlock.protocol.jsonrpc import decode_members, decode_value

# Parameters as introspection shows them: everything that keeps a client from guessing.
#
# Nested structures do not fit into a flat list. They are shown as a short line, and have a type of
# their own.

MAX_CONSTRAINT_TEXT: Final = 200
_MAX_ITEMS_SCHEMA: Final = 300
_MAX_SHAPE: Final = 600
_MAX_BRIEF: Final = 100
_MAX_BRIEF_DESCRIPTIONS: Final = 8
"""In brief descriptions only so many parameters have a description."""
_MAX_VALUES: Final = 60
_MAX_SHAPE_PARTS: Final = 120
"""Maximum number of schema parts in one line. A schema may be circular or very wide."""
_MAX_SHAPE_DEPTH: Final = 3
_COPIED_KEYWORDS: Final = ("minimum", "maximum", "minLength", "maxLength", "pattern", "format")
_NUMBER_KEYWORDS: Final = frozenset({"minimum", "maximum"})
_LENGTH_KEYWORDS: Final = frozenset({"minLength", "maxLength"})


def parameter_info(
    parameter: Parameter,
    schema_properties: SchemaProperties | None = None,
    max_characters: int = _MAX_SHAPE,
) -> dict[str, Any]:
    """Return a parameter as introspection shows it.

    Args:
        max_characters: maximum number of characters of the description.
    """
    schema = without_null(parameter.schema, schema_properties)
    info: dict[str, Any] = {
        "name": parameter.name,
        "type": parameter.type,
        "required": parameter.required,
    }
    description = one_line(parameter.description, max_characters)
    if parameter.deprecated:
        notice = parameter.deprecated if len(parameter.deprecated) > 10 else "do not use it"
        description = f"Deprecated: {notice}. {description}".strip()
    if parameter.type in ("object", "any"):
        shape_text = shape(schema, schema_properties, 2 * max_characters)
        if shape_text not in ("object", "any"):
            description = f"{description} Shape: {shape_text}".strip()
    if description:
        info["description"] = description
    if "default" in parameter.schema:
        info["default"] = parameter.schema["default"]
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        info["enum"] = values[:_MAX_VALUES]
    for keyword in _COPIED_KEYWORDS:
        value = schema.get(keyword)
        if _is_valid_keyword(keyword, value):
            info[keyword] = value
    if parameter.type == "array":
        items = schema.get("items")
        if isinstance(items, dict):
            info["items"] = _items(items, schema_properties, max_characters)
    if parameter.sensitive:
        info["sensitive"] = True
    return info


def _is_valid_keyword(keyword: str, value: Any) -> bool:
    if keyword in _NUMBER_KEYWORDS:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if keyword in _LENGTH_KEYWORDS:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return isinstance(value, str) and 0 < len(value) <= MAX_CONSTRAINT_TEXT


def without_null(
    schema: dict[str, Any], schema_properties: SchemaProperties | None
) -> dict[str, Any]:
    """Return the schema X of `anyOf: [X, null]`, an optional X."""
    for keyword in ("anyOf", "oneOf"):
        parts = schema.get(keyword)
        if isinstance(parts, list):
            non_null = [
                part for part in parts if isinstance(part, dict) and part.get("type") != "null"
            ]
            if len(non_null) == 1 and "type" not in schema:
                single = (
                    schema_properties.resolve(non_null[0])
                    if schema_properties is not None
                    else non_null[0]
                )
                return {**schema, **single}
    return schema


def _items(
    items: dict[str, Any], schema_properties: SchemaProperties | None, max_characters: int
) -> dict[str, Any]:
    """Return the schema of an array's items if it is short, else a short description of it."""
    resolved = schema_properties.resolve(items) if schema_properties is not None else items
    encoded = msgspec.json.encode(resolved)
    if len(encoded) <= min(max_characters, _MAX_ITEMS_SCHEMA) and b'"$ref"' not in encoded:
        return resolved
    shape_text = shape(resolved, schema_properties, max_characters)
    summary: dict[str, Any] = {"type": type_of(resolved)}
    if shape_text != summary["type"]:
        summary["description"] = f"Shape: {shape_text}"
    return summary


def shape(
    schema: Any, schema_properties: SchemaProperties | None = None, max_characters: int = _MAX_SHAPE
) -> str:
    """Return a schema as a short line: `{title: string, state?: "open"|"closed"}`."""
    shape_text = _ShapeFormatter(schema_properties).line(schema, 0)
    return (
        shape_text if len(shape_text) <= max_characters else shape_text[: max_characters - 1] + "…"
    )


class _ShapeFormatter:
    """Formats a schema as one line with a limited number of parts."""

    __slots__ = ("_remaining_parts", "_schema_properties")

    def __init__(self, schema_properties: SchemaProperties | None) -> None:
        self._schema_properties = schema_properties
        self._remaining_parts = _MAX_SHAPE_PARTS

    def line(self, schema: Any, depth: int) -> str:
        self._remaining_parts -= 1
        if self._schema_properties is not None:
            schema = self._schema_properties.resolve(schema)
        if not isinstance(schema, dict) or self._remaining_parts <= 0:
            return "any"
        schema = without_null(schema, self._schema_properties)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and 0 < len(values) <= _MAX_VALUES:
            return "|".join(msgspec.json.encode(value).decode()[:40] for value in values)
        kind = type_of(schema)
        if depth >= _MAX_SHAPE_DEPTH:
            return kind
        for keyword in ("oneOf", "anyOf"):
            parts = schema.get(keyword)
            if isinstance(parts, list) and parts:
                lines = [self.line(part, depth + 1) for part in parts[:8]]
                return " | ".join(dict.fromkeys(lines))
        if kind == "object":
            return self._fields(schema, depth) or kind
        if kind == "array":
            inner = self.line(schema.get("items"), depth + 1)
            return f"({inner})[]" if " " in inner else f"{inner}[]"
        return kind

    def _fields(self, schema: dict[str, Any], depth: int) -> str:
        properties, required_keys = schema.get("properties"), schema.get("required")
        if not isinstance(properties, dict) or not properties:
            return ""
        required = required_keys if isinstance(required_keys, list) else []
        fields = []
        for key, value in properties.items():
            if self._remaining_parts <= 0:
                fields.append("…")
                break
            optional = "" if key in required else "?"
            fields.append(f"{one_line(key, 60)}{optional}: {self.line(value, depth + 1)}")
        return "{" + ", ".join(fields) + "}"


def parameters_info(
    operation: Operation, *, features: bool = True, brief: bool = False
) -> list[dict[str, Any]]:
    """Return all parameters that an operation accepts in `params`.

    Args:
        brief: True for short descriptions.
    """
    signature = operation.signature
    schema_properties = None if operation.builtin is not None else load_properties(operation)
    max_characters = _MAX_BRIEF if brief else _MAX_SHAPE
    infos = [
        parameter_info(info, schema_properties, max_characters)
        for info in signature.parameters
        if not info.in_input
    ]
    input_parameters = [info for info in signature.parameters if info.in_input]
    if input_parameters:
        infos.append(_input_info(operation, input_parameters, schema_properties))
    if features:
        infos += [parameter_info(FEATURES[name]) for name in sorted(signature.features)]
    if brief:
        infos.sort(key=lambda info: not info["required"])
        for info in infos[_MAX_BRIEF_DESCRIPTIONS:]:
            info.pop("description", None)
    return infos


def _input_info(
    operation: Operation,
    input_parameters: list[Parameter],
    schema_properties: SchemaProperties | None,
) -> dict[str, Any]:
    fields = ", ".join(
        f"{parameter.name}{'' if parameter.required else '?'}: "
        f"{shape(parameter.schema, schema_properties)}"
        for parameter in input_parameters
    )
    if len(fields) > _MAX_SHAPE:
        fields = fields[: _MAX_SHAPE - 1] + "…"
    return {
        "name": INPUT,
        "type": "object",
        "required": True,
        "description": f"The changes: {{{fields}}} (type {type_name(operation, INPUT)})",
    }


def load_properties(operation: Operation) -> SchemaProperties:
    try:
        return SchemaProperties(operation.tool.input_schema())
    except (KeyError, ProtocolError):
        return SchemaProperties({})


def to_pascal_case(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def type_name(operation: Operation, member: str) -> str:
    """Return the type name of a part of an operation."""
    return to_pascal_case(operation.name) + to_pascal_case(member)


# The types that introspection knows: types of the language and types of tools.

TypeDetails = dict[str, Any]
TOOL_RESULT: Final = "ToolResult"


# -- types of the language


def _field(name: str, type: str, description: str = "", required: bool = True) -> dict[str, Any]:
    info: dict[str, Any] = {"name": name, "type": type, "required": required}
    return {**info, "description": description} if description else info


def _enum(name: str, description: str, values: Iterable[str]) -> TypeDetails:
    return {"name": name, "kind": "enum", "description": description, "values": list(values)}


def _record(name: str, description: str, *fields: dict[str, Any]) -> TypeDetails:
    return {"name": name, "kind": "object", "description": description, "fields": list(fields)}


def _union(name: str, description: str, *members: str) -> TypeDetails:
    return {"name": name, "kind": "union", "description": description, "members": list(members)}


def _scalar(name: str, description: str) -> TypeDetails:
    return {"name": name, "kind": "scalar", "description": description}


PROTOCOL_TYPES: Final[dict[str, TypeDetails]] = {
    type_details["name"]: type_details
    for type_details in (
        _enum(
            "SemanticCategory",
            "The category of an operation.",
            [category.value for category in Category],
        ),
        _record(
            "OperationInput",
            "A request: operation with params, or operations. Keys of params with a leading _ are "
            "options of the request: _fields, _preset, _dry_run, _async, _confirmation, "
            "_request_id, _quota_continue; for results that are lists also "
            "_items (which list), _filter, _sort, _aggregate, _first, _after. Others are rejected.",
            _field("operation", "string", "The name of the operation.", False),
            _field("params", "object", "The parameters.", False),
            _field("operations", "array", "A batch: a list of requests.", False),
        ),
        _union("OperationResult", "Every response.", "OperationSuccess", "OperationFailure"),
        _record(
            "OperationSuccess",
            "The operation was executed.",
            _field("success", "boolean", "Always true."),
            _field("data", "any", "The result."),
            _field("warnings", "array", "Warnings.", False),
        ),
        _record(
            "OperationFailure",
            "The operation failed.",
            _field("success", "boolean", "Always false."),
            _field("error", "OperationError", "The error."),
        ),
        _record(
            "OperationError",
            "An error.",
            _field("code", "string", "For programs."),
            _field("message", "string", "For people: the error and the next step."),
            _field("details", "object", "More information.", False),
        ),
        _record(
            "EndpointPermissions",
            "The permissions of an operation.",
            _field("readOnly", "boolean", "It changes nothing."),
            _field("destructive", "boolean", "It may change or remove existing data."),
        ),
        _record(
            "Warning",
            "A warning of an operation that was executed.",
            _field("code", "string"),
            _field("message", "string"),
            _field("details", "object", "", False),
            _field("severity", "string", "", False),
        ),
        _enum("DangerLevel", "The danger of an operation.", [level.label for level in Danger]),
        _enum("TrustLevel", "The trust in a server.", TRUST_LEVELS),
        _union(
            "IntrospectionData",
            "The result of introspect: operations, operation, types or type.",
            "OperationList", "OperationDetails", "TypeList", "TypeDetails",
        ),
        _record("OperationList", "Operations.", _field("operations", "array")),
        _record("TypeList", "Types.", _field("types", "array")),
        _record(
            "OperationDetails",
            "All information about an operation.",
            _field("name", "string"),
            _field("semantic_category", "SemanticCategory"),
            _field("endpoint", "string", "The family of its endpoint."),
            _field("mcpTool", "string", "The name of the MCP tool for calls."),
            _field("description", "string"),
            _field("permissions", "EndpointPermissions"),
            _field("parameters", "array"),
            _field("returns", "object"),
            _field("examples", "array", "", False),
        ),
        _record(
            "TypeDetails",
            "All information about a type.",
            _field("name", "string"),
            _field("kind", "string"),
            _field("description", "string", "", False),
        ),
        _union(
            TOOL_RESULT,
            "The result of a server: its structured content, else its text parsed as JSON, else "
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


# -- types of tools


def result_type(operation: Operation) -> dict[str, Any]:
    """Return the type of an operation's result."""
    builtin = operation.builtin
    if builtin is not None:
        protocol_type = PROTOCOL_TYPES.get(builtin.returns)
        return {
            "name": builtin.returns,
            "kind": protocol_type["kind"] if protocol_type else "object",
        }
    if output_schema(operation) is not None:
        return {"name": type_name(operation, "result"), "kind": "object"}
    return {"name": TOOL_RESULT, "kind": "union"}


def output_schema(operation: Operation) -> dict[str, Any] | None:
    """Return the output schema of a tool. None: it has none for an object."""
    tool = operation.tool
    if b'"outputSchema"' not in tool.listed:
        return None
    try:
        schema = decode_value(decode_members(b"{" + tool.listed[1:])["outputSchema"])
    except (KeyError, ProtocolError):
        return None
    return schema if isinstance(schema, dict) and type_of(schema) == "object" else None


def operation_types(operation: Operation) -> Iterator[TypeDetails]:
    """Yield the types of an operation: its input, its result and nested objects."""
    builtin = operation.builtin
    if builtin is not None:
        if builtin.returns not in PROTOCOL_TYPES:
            fields = [_field(*parameter, required=False) for parameter in builtin.return_fields]
            yield _record(builtin.returns, f"The result of {operation.name}.", *fields)
        return
    signature = operation.signature
    schema_properties = load_properties(operation)
    input_parameters = [parameter for parameter in signature.parameters if parameter.in_input]
    if input_parameters:
        yield _record(
            type_name(operation, INPUT),
            f"The changes of {operation.name}.",
            *(parameter_info(parameter, schema_properties) for parameter in input_parameters),
        )
    for parameter in signature.parameters:
        if parameter.type in ("object", "any"):
            nested = _nested(type_name(operation, parameter.name), parameter, schema_properties)
            if nested is not None:
                yield nested
    schema = output_schema(operation)
    if schema is not None:
        result = SchemaProperties(schema)
        yield _record(
            type_name(operation, "result"),
            f"The result of {operation.name}.",
            *(_nested_field(parameter, result) for parameter in read_parameters(result)),
        )


def _nested(
    name: str, parameter: Parameter, schema_properties: SchemaProperties
) -> TypeDetails | None:
    schema = without_null(parameter.schema, schema_properties)
    description = one_line(parameter.description, MAX_CONSTRAINT_TEXT)
    parts = schema.get("oneOf") or schema.get("anyOf")
    if isinstance(parts, list) and len(parts) > 1:
        kinds = dict.fromkeys(type_of(schema_properties.resolve(part)) for part in parts)
        return _union(name, f"{description} {shape(schema, schema_properties)}".strip(), *kinds)
    if not isinstance(schema.get("properties"), dict):
        return None
    inner = SchemaProperties({**schema_properties.root, **schema})
    fields = [
        _nested_field(parameter, inner) for parameter in read_parameters(SchemaProperties(schema))
    ]
    return _record(name, description, *fields)


def _nested_field(parameter: Parameter, schema_properties: SchemaProperties) -> dict[str, Any]:
    """Return a field of a nested object, with its original name."""
    return {**parameter_info(parameter, schema_properties), "name": parameter.upstream_name}


# Example requests generated from schemas, with all required parameters.
#
# The values are invented but valid as far as a schema can be followed. Examples, defaults and
# allowed values of the schema are preferred.

_MAX_EXAMPLE_DEPTH: Final = 5
_MAX_EXAMPLE_PARTS: Final = 200
_MAX_PATTERN: Final = 200
_MAX_EXAMPLE_TEXT: Final = 64
_MAX_EXAMPLE_ITEMS: Final = 8
_MAX_SCHEMA_EXAMPLE: Final = 120
"""Maximum length of an example of the server. A longer one is not used."""

_FORMATS: Final = {
    "date-time": "2026-01-31T09:00:00Z",
    "date": "2026-01-31",
    "time": "09:00:00Z",
    "email": "user@example.com",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "hostname": "example.com",
}
# A short list, because patterns may be slow.
_EXAMPLE_TEXTS: Final = (
    "example", "a", "1", "A", "abc", "ABC", "12", "123", "1.0.0", "2026-01-31", "a/b", "/a", "./a",
    "a@b.co", "@a", "#a", "#aaaaaa", "v1.0", "0x1", "a-b", "a_b", "a:b", "AB-12", "A_B", "09:00",
    "1h", "10%", "~", "*", "main", "true", "a.b", "a.txt", "U0A", "C0A", "+491234567",
)  # fmt: skip


def example_request(operation: Operation, name: str = "") -> dict[str, Any]:
    """Return an example request with all required parameters."""
    builtin = operation.builtin
    if builtin is not None and builtin.example:
        return {"operation": operation.name, "params": builtin.example}
    return {"operation": name or operation.name, "params": example_params(operation)}


def example_params(operation: Operation) -> dict[str, Any]:
    """Return example parameters. An UPDATE changes at least one field."""
    generator = _ExampleGenerator(SchemaProperties(_root(operation)))
    values: dict[str, Any] = {}
    input_values: dict[str, Any] = {}
    first_field: tuple[str, Any] | None = None
    for parameter in operation.signature.parameters:
        value = None
        if parameter.required or (parameter.in_input and first_field is None):
            value = generator.value(parameter.schema, parameter.name, 0)
        if parameter.in_input:
            first_field = first_field or (parameter.name, value)
            if parameter.required:
                input_values[parameter.name] = value
        elif parameter.required:
            values[parameter.name] = value
    if INPUT in operation.signature.required and first_field is not None and INPUT not in values:
        values[INPUT] = input_values or dict([first_field])
    return values


def _root(operation: Operation) -> Any:
    return {} if operation.builtin is not None else operation.tool.input_schema()


class _ExampleGenerator:
    """Generates example values of a schema, with a limited number of parts. The schema may be
    circular.
    """

    __slots__ = ("_remaining_parts", "_schema_properties")

    def __init__(self, schema_properties: SchemaProperties) -> None:
        self._schema_properties = schema_properties
        self._remaining_parts = _MAX_EXAMPLE_PARTS

    def value(self, schema: Any, name: str, depth: int) -> Any:
        self._remaining_parts -= 1
        schema = self._schema_properties.resolve(schema)
        known_value = _value_in_schema(schema)
        if known_value is not None:
            return known_value[0]
        can_nest = depth < _MAX_EXAMPLE_DEPTH and self._remaining_parts > 0
        for keyword in ("oneOf", "anyOf", "allOf"):
            parts = schema.get(keyword)
            if can_nest and isinstance(parts, list) and parts and "type" not in schema:
                non_null = [
                    part
                    for part in parts
                    if self._schema_properties.resolve(part).get("type") != "null"
                ]
                return self.value((non_null or parts)[0], name, depth + 1)
        kind = type_of(schema)
        if kind in ("integer", "number"):
            return _example_number(schema, kind)
        if kind == "boolean":
            return True
        if kind == "array":
            return self._list(schema, name, depth, can_nest)
        if kind == "object":
            return self._object(schema, depth, can_nest)
        return _example_text(schema, name)

    def _list(self, schema: dict[str, Any], name: str, depth: int, can_nest: bool) -> list[Any]:
        minimum = min(_int_or_default(schema.get("minItems"), 0), _MAX_EXAMPLE_ITEMS)
        items = schema.get("items")
        if not can_nest or items is None:
            return [_example_text({}, name)] * minimum
        maximum = _int_or_default(schema.get("maxItems"), _MAX_EXAMPLE_ITEMS)
        item = self.value(items, name.removesuffix("s"), depth + 1)
        return [item] * min(max(minimum, 1), maximum)

    def _object(self, schema: dict[str, Any], depth: int, can_nest: bool) -> dict[str, Any]:
        properties, required = schema.get("properties"), schema.get("required")
        if not can_nest or not isinstance(properties, dict) or not isinstance(required, list):
            return {}
        return {
            key: self.value(properties[key], key, depth + 1)
            for key in required
            if isinstance(key, str) and key in properties and self._remaining_parts > 0
        }


def _value_in_schema(schema: dict[str, Any]) -> tuple[Any] | None:
    """Return a value that the schema itself contains, in a tuple."""
    if "const" in schema:
        return (schema["const"],)
    for keyword in ("examples", "enum"):
        values = schema.get(keyword)
        if isinstance(values, list) and values and len(str(values[0])) <= _MAX_SCHEMA_EXAMPLE:
            return (values[0],)
    for keyword in ("example", "default"):
        if schema.get(keyword) is not None and len(str(schema[keyword])) <= _MAX_SCHEMA_EXAMPLE:
            return (schema[keyword],)
    return None


def _example_text(schema: dict[str, Any], name: str) -> str:
    format_example = _FORMATS.get(str(schema.get("format")))
    if format_example is not None:
        return format_example
    minimum = _int_or_default(schema.get("minLength"), 0)
    maximum = max(_int_or_default(schema.get("maxLength"), _MAX_EXAMPLE_TEXT), minimum)
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and len(pattern) <= _MAX_PATTERN:
        match = _find_match(pattern, minimum, maximum)
        if match is not None:
            return match
    text = name.rpartition("_")[2] if name.endswith(("_id", "_url")) else name
    text = (text or "text")[:maximum]
    return text + "x" * (min(minimum, _MAX_EXAMPLE_TEXT) - len(text))


def _find_match(pattern: str, minimum: int, maximum: int) -> str | None:
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    for text in _EXAMPLE_TEXTS:
        if minimum <= len(text) <= maximum and compiled.search(text):
            return text
    return None


def _example_number(schema: dict[str, Any], kind: str) -> int | float:
    value: int | float = max(1, _bound(schema, "minimum", 1))
    exclusive_minimum = _bound(schema, "exclusiveMinimum", value - 1)
    if value <= exclusive_minimum:
        value = exclusive_minimum + 1
    value = min(value, _bound(schema, "maximum", value))
    exclusive_maximum = _bound(schema, "exclusiveMaximum", value + 1)
    if value >= exclusive_maximum:
        value = exclusive_maximum - 1
    step = _bound(schema, "multipleOf", 0)
    if step > 0 and value % step:
        value = step * -(-value // step)
    return int(value) if kind == "integer" and abs(value) < 2**53 else value


def _int_or_default(value: Any, default: int) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**31 else default


def _bound(schema: dict[str, Any], keyword: str, default: int | float) -> int | float:
    value = schema.get(keyword)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15:
        return value
    return default


# Operations as introspection shows them: in a list, in full, and with optional blocks.
#
# By default, a response has exactly the members of the draft's schema. `include` adds others.

INCLUDES: Final = (
    "parameters", "danger", "source", "input_schema", "output_schema", "field_selection",
    "pagination", "description", "lifecycle",
)  # fmt: skip
"""The optional blocks of a description."""
MAX_DESCRIPTION: Final = 1_000
"""Maximum length of a description in details, in characters."""
_MAX_LONG_DESCRIPTION: Final = 20_000
_MAX_FOUND_DESCRIPTION: Final = 200
_WARNING_LEVEL: Final = Danger.DESTRUCTIVE
"""The lowest level at which the description contains a warning."""

_PRESETS: Final = ["minimal", "standard", "full"]


class OperationDescriber:
    """Describes the operations of one catalog in one view."""

    __slots__ = ("_operation_catalog", "_operations", "_trust", "_view")

    def __init__(
        self,
        operations: OperationCatalogBuilder,
        operation_catalog: OperationSnapshot,
        operation_view: OperationView,
        trust: Callable[[str], str],
    ) -> None:
        self._operations = operations
        self._operation_catalog = operation_catalog
        self._view = operation_view
        self._trust = trust

    def describe_briefly(self, operation: Operation) -> dict[str, Any]:
        """Return an operation as a list entry, with exactly these members."""
        return {
            "name": self._operation_catalog.name_in(operation, self._view),
            "semantic_category": operation.category.value,
            "endpoint": self._view.find_family(operation.name, operation.category).name,
            "description": one_line(operation.description, MAX_LIST_DESCRIPTION)
            or f"Calls {operation.canonical}.",
        }

    def tool(self, operation: Operation) -> str:
        """Return the MCP tool that calls the operation."""
        if self._view.mode == "single":
            return self._view.single_tool
        return self._view.find_family(operation.name, operation.category).tool

    def describe_match(self, operation: Operation) -> dict[str, Any]:
        """Return an operation as a search result, with everything that a call needs."""
        return {
            **self.describe_briefly(operation),
            "description": self._description(operation, _MAX_FOUND_DESCRIPTION, source=False),
            "mcpTool": self.tool(operation),
            "parameters": parameters_info(operation, features=False, brief=True),
        }

    def describe_fully(self, operation: Operation, include: Iterable[str] = ()) -> dict[str, Any]:
        """Return the full description of an operation."""
        name = self._operation_catalog.name_in(operation, self._view)
        description: dict[str, Any] = {
            **self.describe_briefly(operation),
            "mcpTool": self.tool(operation),
            "description": self._description(operation, MAX_DESCRIPTION),
            "permissions": {
                "readOnly": operation.category.is_read_only,
                "destructive": operation.category.is_destructive,
            },
            "parameters": parameters_info(operation),
            "returns": result_type(operation),
            "examples": [{"request": example_request(operation, name)}],
        }
        for block in include:
            if block in _BLOCKS:
                description[block] = _BLOCKS[block](self, operation)
        return description

    def _description(
        self, operation: Operation, max_characters: int, *, source: bool = True
    ) -> str:
        """Return the description of an operation, with notes for callers."""
        settings = self._operations.settings(operation.canonical)
        text = (
            operation.description if operation.builtin is not None else operation.tool.description
        )
        parts = [one_line(text, max_characters)]
        if settings.deprecated:
            replacement = f" Use {settings.replacement} instead." if settings.replacement else ""
            parts.append(f"Deprecated since {one_line(settings.deprecated, 60)}.{replacement}")
        if operation.danger >= _WARNING_LEVEL:
            parts.append(f"Danger: {operation.danger.label}; it may need approval.")
        if source and operation.tool.upstream != BUILTIN_KEY:
            parts.append(f"(Tool {operation.canonical}.)")
        return " ".join(part for part in parts if part)

    # -- optional blocks

    def danger(self, operation: Operation) -> dict[str, Any]:
        settings = self._operations.settings(operation.canonical)
        return {
            "level": operation.danger.label,
            "dangerous": operation.danger >= _WARNING_LEVEL,
            "reasons": list(operation.reasons),
            "confirmation_message": settings.confirmation_message,
            "cooldown_seconds": settings.cooldown,
            "requires_reauth": False,
            "audit_context": [
                parameter.name
                for parameter in operation.signature.parameters
                if not parameter.sensitive
            ],
        }

    def source(self, operation: Operation) -> dict[str, Any]:
        return {
            "tool": operation.canonical,
            "server": operation.server or None,
            "effect": operation.tool.effect_name,
            "trust": self._trust(operation.server) if operation.server else None,
            "confidence": operation.confidence,
            "needs_review": operation.needs_review,
            "origins": dict(operation.origins),
            "map_to": {
                parameter.name: parameter.upstream_name
                for parameter in operation.signature.parameters
                if parameter.upstream_name != parameter.name
            },
            "open": operation.signature.open,
        }

    def input_schema(self, operation: Operation) -> Any:
        """Return the schema that validates the arguments, with the names of the server."""
        return load_properties(operation).root

    def output_schema(self, operation: Operation) -> Any:
        return output_schema(operation)

    def lifecycle(self, operation: Operation) -> dict[str, Any] | None:
        """Return the lifecycle as an execution. None: it cannot be one."""
        return LIFECYCLE if operation.builtin is None or operation.builtin.lifecycle else None

    def field_selection(self, operation: Operation) -> dict[str, Any]:
        is_read = operation.category is Category.READ
        return {
            "supported": is_read,
            "presets": _PRESETS if is_read else [],
            "parameters": sorted(
                name if name in operation.signature.features else f"_{name}"
                for name in ("fields", "preset")
            )
            if is_read
            else [],
        }

    def pagination(self, operation: Operation) -> dict[str, Any]:
        names = operation.signature.names
        if operation.builtin is not None:
            return {"supported": "first" in names, "style": "cursors"}
        paging_parameters = sorted(names & _PAGING)
        return {
            "supported": operation.category is Category.READ,
            "style": "upstream" if paging_parameters else "cursors",
            "parameters": paging_parameters or ["_first", "_after"],
        }

    def description(self, operation: Operation) -> str:
        """Return the long description."""
        return self._description(operation, _MAX_LONG_DESCRIPTION)

    def parameters(self, operation: Operation) -> list[dict[str, Any]]:
        return parameters_info(operation)


_PAGING: Final = frozenset(
    {
        "page", "per_page", "page_size", "limit", "offset", "cursor", "first", "after", "last",
        "before", "page_token", "start_cursor", "next_token", "max_results", "count",
    }
)  # fmt: skip
_BLOCKS: Final[dict[str, Callable[[OperationDescriber, Operation], Any]]] = {
    name: getattr(OperationDescriber, name) for name in INCLUDES
}


DEFAULT_MATCHES: Final = 10
"""Default number of search results."""
DEFAULT_MATCHES_WITH_PARAMETERS: Final = 8
DETAILED_MATCHES: Final = 3
"""Number of search results with parameters."""
MAX_PAGE: Final = 100
QUERIES: Final = (
    "operations", "types", "capabilities", "adapter_info", "quota_status", "safety_policy",
)  # fmt: skip
CAPABILITIES: Final = {
    "batch": True,
    "field_selection": True,
    "aggregations": True,
    "computed_fields": True,
    "pagination": True,
    "relationship_queries": True,
    "warnings": True,
    "confirmation": True,
    "dangerous_operations": True,
}
SHORTENED: Final = "INTROSPECTION_SHORTENED"

_MAX_NAME_CHARACTERS: Final = 600
_MAX_CACHED_TYPES: Final = 16
_MAX_FULL_DESCRIPTIONS: Final = 20
"""Maximum number of full descriptions in one response."""
_encode: Final = msgspec.json.Encoder().encode

Report = Callable[[Any], Any]
"""Takes an `AqlRequest`, returns the response to a query such as `quota_status`."""


def _ignore_warning(request: Any, code: str, message: str, details: dict[str, Any]) -> None:
    """Ignore the warning."""


class IntrospectOperation:
    """The operation `introspect`."""

    def __init__(
        self,
        operations: OperationCatalogBuilder,
        get_operation_catalog: Callable[[], OperationSnapshot],
        search: Searcher,
        *,
        view_of: Callable[[Any], View | None] = lambda _: None,
        protocol_info: Callable[[Any], Mapping[str, Any]] = lambda _: {},
        reports: Mapping[str, Report] | None = None,
        cursors: CursorCodec,
        response_bytes: Callable[[], int] = lambda: 10 * 1024 * 1024,
        trust: Callable[[str], str] = lambda _: "validated",
        warn: Callable[[Any, str, str, dict[str, Any]], None] = _ignore_warning,
    ) -> None:
        """
        Args:
            view_of: returns the tools that the caller of a call sees. None: all.
            protocol_info: returns further members of `_protocol`, such as limits and the session
                id.
            reports: the responses of further queries, by query.
        """
        self._operations = operations
        self._get_operation_catalog = get_operation_catalog
        self._search = search
        self._view_of = view_of
        self._protocol_info = protocol_info
        self._reports = dict(reports or {})
        self._cursors = cursors
        self._response_bytes = response_bytes
        self._trust = trust
        self._warn = warn
        self._typed_catalog: OperationSnapshot | None = None
        self._type_lines: BoundedDict[Hashable, list[TypeDetails]] = BoundedDict(_MAX_CACHED_TYPES)

    def builtin_operations(self) -> list[BuiltinOperation]:
        return [
            BuiltinOperation(
                name="introspect",
                category=Category.READ,
                effect="read_only",
                description=(
                    "Find operations by task, and see their parameters. Also types, limits "
                    "and capabilities."
                ),
                parameters=PARAMETERS,
                returns="IntrospectionData",
                free=True,
                example={"query": "operations", "search": "create an issue"},
                answer=self.answer,
            )
        ]

    def answer(self, request: Any) -> dict[str, Any]:
        """Answer a request. Raises AqlError."""
        params: dict[str, Any] = request.params or {}
        query = params.get("query")
        if query == "operations":
            return self._query_operations(request, params)
        if query == "types":
            return self._query_types(request, params)
        if query == "capabilities":
            return {"capabilities": self._protocol(request)}
        if query == "adapter_info":
            return {"adapter_info": self._adapter_info(request)}
        if query in QUERIES:
            report = self._reports.get(query)
            return {query: None if report is None else report(request)}
        raise AqlError(
            "INVALID_QUERY_TYPE",
            f"Unknown query. Supported: {', '.join(QUERIES)}.",
            {"param_name": "query", "supported": list(QUERIES)},
        )

    # -- operations

    def _query_operations(self, request: Any, params: dict[str, Any]) -> dict[str, Any]:
        operation_catalog, operation_view = self._get_operation_catalog(), request.operation_view
        describer = OperationDescriber(
            self._operations, operation_catalog, operation_view, self._trust
        )
        view = self._view_of(request.call)
        include = [operation for operation in params.get("include") or () if operation in INCLUDES]
        name = params.get("name")
        if name is not None:
            operation = operation_catalog.find_in(str(name)[:_MAX_NAME_CHARACTERS], operation_view)
            is_allowed = operation is not None and _is_callable(operation, view)
            # Many clients include parameters by habit. Full descriptions always have them.
            blocks = [block for block in include if block != "parameters"]
            return {
                "operation": describer.describe_fully(operation, blocks)
                if operation and is_allowed
                else None
            }
        namespace = params.get("namespace") or operation_view.namespace
        category = None if params.get("category") is None else Category(params["category"])
        task = params.get("search")
        if task is not None:
            return self._search_operations(
                request, operation_catalog, describer, view, namespace, category, include
            )
        operations = [
            operation
            for operation in list_visible(operation_catalog, view, namespace)
            if (category is None or operation.category is category)
            and (operation.builtin is None or not params.get("namespace"))
        ]
        return self._list_operations(request, params, describer, operations, include)

    def _search_operations(
        self,
        request: Any,
        operation_catalog: OperationSnapshot,
        describer: OperationDescriber,
        view: View | None,
        namespace: str,
        category: Category | None,
        include: Sequence[str],
    ) -> dict[str, Any]:
        params = request.params
        detailed = bool(include)
        default_count = DEFAULT_MATCHES_WITH_PARAMETERS if detailed else DEFAULT_MATCHES
        count = _count_or_default(params.get("first"), default_count)

        def sees(tool: Tool) -> bool:
            operation = operation_catalog.for_tool(tool)
            if operation.builtin is not None:
                return not params.get("namespace") and is_visible(operation, view)
            if namespace and not operation_catalog.is_within(operation, namespace):
                return False
            return view is None or view.includes(tool)

        caller = getattr(getattr(request.call, "caller", None), "name", "")
        hits = self._search.search(
            str(params["search"]), sees, count, category=category, caller=caller
        )
        lines = []
        for position, hit in enumerate(hits[:count]):
            if detailed and position < DETAILED_MATCHES:
                line = describer.describe_match(hit.operation)
                extra = [block for block in include if block != "parameters"]
                if extra:
                    full = describer.describe_fully(hit.operation, extra)
                    line |= {block: full[block] for block in extra}
            else:
                line = describer.describe_briefly(hit.operation)
            lines.append(line)
        return {"_protocol": {"version": SPEC_VERSION}, "operations": lines}

    def _list_operations(
        self,
        request: Any,
        params: dict[str, Any],
        describer: OperationDescriber,
        operations: list[Operation],
        include: Sequence[str],
    ) -> dict[str, Any]:
        """Return all operations, or a page of them. A list above the size limit gets pages."""
        data: dict[str, Any] = {"_protocol": self._protocol(request)}
        describe = describer.describe_briefly
        if include:
            blocks = [block for block in include if block != "parameters"]

            def describe(operation: Operation) -> dict[str, Any]:
                return describer.describe_fully(operation, blocks)

        # Full descriptions are slow, and block the event loop.
        max_items = _MAX_FULL_DESCRIPTIONS if include else len(operations)
        return data | self._make_page(
            request,
            params,
            "operations",
            operations,
            lambda operation: operation.name,
            describe,
            max_items,
        )

    # -- types

    def _query_types(self, request: Any, params: dict[str, Any]) -> dict[str, Any]:
        operation_catalog, view = self._get_operation_catalog(), self._view_of(request.call)
        namespace = params.get("namespace") or request.operation_view.namespace
        name = params.get("name")
        if name is not None:
            return {
                "type": _find_type(
                    str(name)[:_MAX_NAME_CHARACTERS],
                    list_visible(operation_catalog, view, namespace),
                )
            }
        return self._make_page(
            request,
            params,
            "types",
            self._list_types(operation_catalog, view, namespace),
            lambda type_details: str(type_details["name"]),
            lambda type_details: type_details,
        )

    def _list_types(
        self, operation_catalog: OperationSnapshot, view: View | None, namespace: str
    ) -> list[TypeDetails]:
        """Return a line for every type. Cached, because a large catalog takes long."""
        if operation_catalog is not self._typed_catalog:
            self._typed_catalog = operation_catalog
            self._type_lines.clear()
        key = (None if view is None else view.key, namespace)
        lines = self._type_lines.get(key)
        if lines is None:
            types = dict(PROTOCOL_TYPES)
            for operation in list_visible(operation_catalog, view, namespace):
                for type_details in operation_types(operation):
                    types.setdefault(type_details["name"], type_details)
            lines = self._type_lines[key] = [
                {
                    word: type_details[word]
                    for word in ("name", "kind", "description")
                    if type_details.get(word)
                }
                for type_details in types.values()
            ]
        return lines

    # -- pages

    def _make_page(
        self,
        request: Any,
        params: dict[str, Any],
        kind: str,
        items: list[Any],
        name_of: Callable[[Any], str],
        describe: Callable[[Any], dict[str, Any]],
        max_items: int | None = None,
    ) -> dict[str, Any]:
        """Return the requested page, shortened to the size limit or to `max_items`."""
        order = _query_digest(params)
        start = 0
        if params.get("after") is not None:
            position = self._cursors.open(params["after"], kind, order)
            start = _start_after(position, [name_of(item) for item in items])
        first = params.get("first")
        is_page_requested = first is not None or params.get("after") is not None
        end = start + _count_or_default(first, MAX_PAGE) if is_page_requested else len(items)
        if max_items is not None:
            end = min(end, start + max_items)
        # A third of the limit: a response may contain its data twice, as text and structured.
        remaining_bytes = self._response_bytes() // 3
        page: list[dict[str, Any]] = []
        for item in items[start:end]:
            line = describe(item)
            remaining_bytes -= len(_encode(line)) + 1
            if remaining_bytes < 0 and page:
                break
            page.append(line)
        end_index = start + len(page)
        data: dict[str, Any] = {kind: page}
        if not is_page_requested and end_index == len(items):
            return data
        last = name_of(items[end_index - 1]) if page else None
        cursor = None
        if last is not None:
            cursor = self._cursors.seal(CursorPosition(kind, end_index - 1, last, [], order))
        data["pageInfo"] = {
            "hasNextPage": end_index < len(items),
            "hasPreviousPage": start > 0,
            "endCursor": cursor,
        }
        if not is_page_requested:
            self._warn(
                request,
                SHORTENED,
                f"Only {len(page)} of {len(items)} {kind} fit into one response. "
                "Get the next ones with 'after', or use 'search'.",
                {"returned": len(page), "total": len(items)},
            )
        return data

    # -- about the node

    def _protocol(self, request: Any) -> dict[str, Any]:
        mode = request.operation_view.mode
        return {
            "version": SPEC_VERSION,
            "conformance": "level-2",
            "mode": mode if mode in ("single", "all") else "semantic",
            "capabilities": dict(CAPABILITIES),
            **self._protocol_info(request),
        }

    def _adapter_info(self, request: Any) -> dict[str, Any]:
        """Return the servers, and the number of visible operations of each."""
        operation_catalog, view = self._get_operation_catalog(), self._view_of(request.call)
        operation_view: OperationView = request.operation_view
        visible_operations = list_visible(operation_catalog, view, operation_view.namespace)
        servers: dict[str, dict[str, Any]] = {}
        by_category = dict.fromkeys((operation.value for operation in Category), 0)
        by_family: dict[str, int] = {}
        for operation in visible_operations:
            by_category[operation.category.value] += 1
            family = operation_view.find_family(operation.name, operation.category).name
            by_family[family] = by_family.get(family, 0) + 1
            if operation.builtin is None:
                server = servers.setdefault(
                    operation.tool.segment,
                    {
                        "namespace": operation.tool.segment,
                        "operations": 0,
                        "trust_level": self._trust(operation.server),
                    },
                )
                server["operations"] += 1
        report = self._reports.get("adapter_info")
        return {
            "operations": len(visible_operations),
            "by_category": by_category,
            "by_endpoint": by_family,
            "namespaces": sorted(
                servers.values(), key=lambda operation: str(operation["namespace"])
            ),
            "endpoints": list(operation_view.tools),
            "tokens": token_costs(operation_view, operation_catalog, view),
            **(report(request) if report is not None else {}),
        }


def introspection_operations(
    operations: OperationCatalogBuilder,
    get_operation_catalog: Callable[[], OperationSnapshot],
    search: Searcher,
    **options: Any,
) -> list[BuiltinOperation]:
    """Return the operation `introspect`. `more` are arguments of `IntrospectOperation`."""
    return IntrospectOperation(
        operations, get_operation_catalog, search, **options
    ).builtin_operations()


def _is_callable(operation: Operation, view: View | None) -> bool:
    """Return whether a caller may see an operation by name, even if no list contains it."""
    free = operation.builtin is not None and operation.builtin.free
    return free or view is None or view.includes(operation.tool)


def _find_type(name: str, visible_operations: Iterable[Operation]) -> TypeDetails | None:
    """Return a type by its name. Searches only operations that can have this type."""
    protocol_type = PROTOCOL_TYPES.get(name)
    if protocol_type is not None:
        return protocol_type
    for operation in visible_operations:
        if operation.builtin is not None or name.startswith(to_pascal_case(operation.name)):
            for type_details in operation_types(operation):
                if type_details["name"] == name:
                    return type_details
    return None


def _count_or_default(count: Any, default: int) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        return default
    return min(count, MAX_PAGE)


def _query_digest(params: Mapping[str, Any]) -> bytes:
    values = [params.get(name) for name in ("query", "namespace", "category", "include")]
    return blake2b(_encode(values), digest_size=6).digest()


def _start_after(position: CursorPosition, names: Sequence[str]) -> int:
    """Return the index where a page continues: after the last item, or after its former
    position."""
    index = position.ordinal
    if not (0 <= index < len(names) and names[index].startswith(str(position.id))):
        # A cursor holds only the beginning of a long name.
        index = next((i for i, name in enumerate(names) if name[:64] == position.id), index)
    return max(0, min(index + 1, len(names)))


def _parameter(name: str, description: str, required: bool = False, **schema: Any) -> Parameter:
    schema.setdefault("type", "string")
    return Parameter(name, name, schema["type"], required, schema, description)


PARAMETERS: Final = (
    _parameter(
        "query",
        f"One of {', '.join(QUERIES)}.",
        True,
        minLength=1,
        maxLength=64,
    ),
    _parameter("name", "An operation or type: return its full description.", maxLength=600),
    _parameter(
        "search",
        "A short request: verb, object, product. Returns the operations that fit, best first.",
        maxLength=10_000,
    ),
    _parameter(
        "include",
        "parameters: with a search, the parameters of the best three. Others: blocks of details.",
        type="array",
        items={"type": "string", "enum": list(INCLUDES)},
        maxItems=len(INCLUDES),
    ),
    _parameter("namespace", "Only operations of this server.", maxLength=255),
    _parameter("category", "Only this category.", enum=[category.value for category in Category]),
    FIRST,
    AFTER,
)
"""`query` has no enum, because unknown queries have their own error code."""
