"""The operation `introspect`: lists operations, describes them, and finds those that fit a task.

A bare list is complete. A search answers with the few that fit, and with the parameters of the best
of them, so that one question is enough. Nobody is told of an operation that it could not call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from interlock.aql.danger import TRUST
from interlock.aql.execution_states import LIFECYCLE
from interlock.aql.language.cursors import CursorCodec, CursorPosition
from interlock.aql.language.errors import AqlError
from interlock.aql.operations import (
    AFTER,
    FEATURES,
    FIRST,
    INPUT,
    LONGEST_LINE,
    BuiltinOperation,
    Operation,
    OperationCatalogBuilder,
    OperationSnapshot,
    Parameter,
    SchemaProperties,
    one_line,
    read,
    type_of,
)
from interlock.aql.search.searcher import Searcher
from interlock.aql.view import cost, is_shown, visible
from interlock.core.catalog.offering import Tool
from interlock.core.catalog.snapshot import View
from interlock.errors import ProtocolError
from interlock.primitives.bounded_dict import BoundedDict
from interlock.protocol.aql_terms import BUILTIN_KEY, SPEC_VERSION, Category, Danger, OperationView
from interlock.protocol.jsonrpc import decode_members, decode_value

# -- Parameters as introspection shows them: all that keeps a client from guessing, and no more.
#
# What is nested does not fit into a flat list: it is drawn as a short line, and has its own type.

LONGEST_EXAMPLE: Final = 200
_LONGEST_ITEMS: Final = 300
_LONGEST_SHAPE: Final = 600
_BRIEF: Final = 100
_MOST_WITH_PROSE: Final = 8
"""Of those that are told briefly, only so many are explained."""
_MOST_VALUES: Final = 60
_MOST_DRAWN: Final = 120
"""Parts of a schema in one line. A schema may lead in circles, or be as wide as it is deep."""
_DEEPEST: Final = 3
_CARRIED: Final = ("minimum", "maximum", "minLength", "maxLength", "pattern", "format")
_NUMBERS: Final = frozenset({"minimum", "maximum"})
_WHOLES: Final = frozenset({"minLength", "maxLength"})


def parameter_info(
    one: Parameter, surface: SchemaProperties | None = None, most: int = _LONGEST_SHAPE
) -> dict[str, Any]:
    """A parameter with all that keeps a client from guessing. `most`: characters of prose."""
    schema = without_null(one.schema, surface)
    info: dict[str, Any] = {"name": one.name, "type": one.type, "required": one.required}
    about = one_line(one.description, most)
    if one.deprecated:
        notice = one.deprecated if len(one.deprecated) > 10 else "do not use it in new requests"
        about = f"Deprecated: {notice}. {about}".strip()
    if one.type in ("object", "any"):
        drawn = shape(schema, surface, 2 * most)
        if drawn not in ("object", "any"):
            about = f"{about} Shape: {drawn}".strip()
    if about:
        info["description"] = about
    if "default" in one.schema:
        info["default"] = one.schema["default"]
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        info["enum"] = values[:_MOST_VALUES]
    for word in _CARRIED:
        value = schema.get(word)
        if _lawful(word, value):
            info[word] = value
    if one.type == "array":
        items = schema.get("items")
        if isinstance(items, dict):
            info["items"] = _items(items, surface, most)
    if one.sensitive:
        info["sensitive"] = True
    return info


def _lawful(word: str, value: Any) -> bool:
    if word in _NUMBERS:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if word in _WHOLES:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return isinstance(value, str) and 0 < len(value) <= LONGEST_EXAMPLE


def without_null(schema: dict[str, Any], surface: SchemaProperties | None) -> dict[str, Any]:
    """`anyOf: [X, null]` is X that may be left out."""
    for word in ("anyOf", "oneOf"):
        parts = schema.get(word)
        if isinstance(parts, list):
            kept = [part for part in parts if isinstance(part, dict) and part.get("type") != "null"]
            if len(kept) == 1 and "type" not in schema:
                only = surface.followed(kept[0]) if surface is not None else kept[0]
                return {**schema, **only}
    return schema


def _items(items: dict[str, Any], surface: SchemaProperties | None, most: int) -> dict[str, Any]:
    """The schema of an array's items, as far as it is short."""
    followed = surface.followed(items) if surface is not None else items
    encoded = msgspec.json.encode(followed)
    if len(encoded) <= min(most, _LONGEST_ITEMS) and b'"$ref"' not in encoded:
        return followed
    drawn = shape(followed, surface, most)
    short: dict[str, Any] = {"type": type_of(followed)}
    if drawn != short["type"]:
        short["description"] = f"Shape: {drawn}"
    return short


def shape(schema: Any, surface: SchemaProperties | None = None, most: int = _LONGEST_SHAPE) -> str:
    """A schema as a short line: `{title: string, state?: "open"|"closed"}`."""
    drawn = _Drawing(surface).line(schema, 0)
    return drawn if len(drawn) <= most else drawn[: most - 1] + "…"


class _Drawing:
    """One line, with so many parts and no more."""

    __slots__ = ("_left", "_surface")

    def __init__(self, surface: SchemaProperties | None) -> None:
        self._surface = surface
        self._left = _MOST_DRAWN

    def line(self, schema: Any, depth: int) -> str:
        self._left -= 1
        if self._surface is not None:
            schema = self._surface.followed(schema)
        if not isinstance(schema, dict) or self._left <= 0:
            return "any"
        schema = without_null(schema, self._surface)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and 0 < len(values) <= _MOST_VALUES:
            return "|".join(msgspec.json.encode(value).decode()[:40] for value in values)
        kind = type_of(schema)
        if depth >= _DEEPEST:
            return kind
        for word in ("oneOf", "anyOf"):
            parts = schema.get(word)
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
        properties, wanted = schema.get("properties"), schema.get("required")
        if not isinstance(properties, dict) or not properties:
            return ""
        required = wanted if isinstance(wanted, list) else []
        fields = []
        for key, value in properties.items():
            if self._left <= 0:
                fields.append("…")
                break
            optional = "" if key in required else "?"
            fields.append(f"{one_line(key, 60)}{optional}: {self.line(value, depth + 1)}")
        return "{" + ", ".join(fields) + "}"


def parameters_info(
    operation: Operation, *, features: bool = True, brief: bool = False
) -> list[dict[str, Any]]:
    """Everything that an operation accepts in `params`. `brief`: with little prose."""
    signature = operation.signature
    surface = None if operation.native is not None else surface_of(operation)
    most = _BRIEF if brief else _LONGEST_SHAPE
    made = [parameter_info(one, surface, most) for one in signature.parameters if not one.inside]
    inside = [one for one in signature.parameters if one.inside]
    if inside:
        made.append(_input(operation, inside, surface))
    if features:
        made += [parameter_info(FEATURES[name]) for name in sorted(signature.features)]
    if brief:
        made.sort(key=lambda one: not one["required"])
        for one in made[_MOST_WITH_PROSE:]:
            one.pop("description", None)
    return made


def _input(
    operation: Operation, inside: list[Parameter], surface: SchemaProperties | None
) -> dict[str, Any]:
    fields = ", ".join(
        f"{one.name}{'' if one.required else '?'}: {shape(one.schema, surface)}" for one in inside
    )
    if len(fields) > _LONGEST_SHAPE:
        fields = fields[: _LONGEST_SHAPE - 1] + "…"
    return {
        "name": INPUT,
        "type": "object",
        "required": True,
        "description": f"What to change: {{{fields}}} (type {type_name(operation, INPUT)})",
    }


def surface_of(operation: Operation) -> SchemaProperties:
    try:
        return SchemaProperties(operation.tool.input_schema())
    except (KeyError, ProtocolError):
        return SchemaProperties({})


def pascal(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def type_name(operation: Operation, member: str) -> str:
    """What a part of an operation is called as a type."""
    return pascal(operation.name) + pascal(member)


# -- The types that introspection knows: those of the language, and those that tools bring along.

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
        _enum("DangerLevel", "How bad it can get.", [one.label for one in Danger]),
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
        result = SchemaProperties(schema)
        yield _record(
            type_name(operation, "result"),
            f"What {operation.name} gives.",
            *(_as_it_is(one, result) for one in read(result)),
        )


def _nested(name: str, one: Parameter, surface: SchemaProperties) -> TypeDetails | None:
    schema = without_null(one.schema, surface)
    about = one_line(one.description, LONGEST_EXAMPLE)
    parts = schema.get("oneOf") or schema.get("anyOf")
    if isinstance(parts, list) and len(parts) > 1:
        kinds = dict.fromkeys(type_of(surface.followed(part)) for part in parts)
        return _union(name, f"{about} {shape(schema, surface)}".strip(), *kinds)
    if not isinstance(schema.get("properties"), dict):
        return None
    inner = SchemaProperties({**surface.root, **schema})
    fields = [_as_it_is(each, inner) for each in read(SchemaProperties(schema))]
    return _record(name, about, *fields)


def _as_it_is(one: Parameter, surface: SchemaProperties) -> dict[str, Any]:
    """A field of something nested: there keys are not renamed."""
    return {**parameter_info(one, surface), "name": one.own}


# -- Examples made from schemas: a request that an operation would take, with what it requires.
#
# The values are made up, but lawful as far as a schema can be followed: what it gives as an
# example, a default or an allowed value comes first.

_EXAMPLES_DEEPEST: Final = 5
_MOST_PARTS: Final = 200
_LONGEST_PATTERN: Final = 200
_LONGEST_TEXT: Final = 64
_MOST_ITEMS: Final = 8
_LONGEST_GIVEN: Final = 120
"""Characters of an example that a server gives itself; a longer one is not repeated."""

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
# Short, because a pattern may be one that takes its time.
_TRIES: Final = (
    "example", "a", "1", "A", "abc", "ABC", "12", "123", "1.0.0", "2026-01-31", "a/b", "/a", "./a",
    "a@b.co", "@a", "#a", "#aaaaaa", "v1.0", "0x1", "a-b", "a_b", "a:b", "AB-12", "A_B", "09:00",
    "1h", "10%", "~", "*", "main", "true", "a.b", "a.txt", "U0A", "C0A", "+491234567",
)  # fmt: skip


def request(operation: Operation, name: str = "") -> dict[str, Any]:
    """A request with everything that an operation requires, as a client sends it."""
    native = operation.native
    if native is not None and native.example:
        return {"operation": operation.name, "params": native.example}
    return {"operation": name or operation.name, "params": params(operation)}


def params(operation: Operation) -> dict[str, Any]:
    """The parameters of such a request. An update changes one field at least."""
    making = _Making(SchemaProperties(_root(operation)))
    made: dict[str, Any] = {}
    inside: dict[str, Any] = {}
    first: tuple[str, Any] | None = None
    for one in operation.signature.parameters:
        value = None
        if one.required or (one.inside and first is None):
            value = making.value(one.schema, one.name, 0)
        if one.inside:
            first = first or (one.name, value)
            if one.required:
                inside[one.name] = value
        elif one.required:
            made[one.name] = value
    if INPUT in operation.signature.required and first is not None and INPUT not in made:
        made[INPUT] = inside or dict([first])
    return made


def _root(operation: Operation) -> Any:
    return {} if operation.native is not None else operation.tool.input_schema()


class _Making:
    """Makes values of one schema, so many parts and no more: it may lead in circles."""

    __slots__ = ("_left", "_surface")

    def __init__(self, surface: SchemaProperties) -> None:
        self._surface = surface
        self._left = _MOST_PARTS

    def value(self, schema: Any, name: str, depth: int) -> Any:
        self._left -= 1
        schema = self._surface.followed(schema)
        given = _given(schema)
        if given is not None:
            return given[0]
        deeper = depth < _EXAMPLES_DEEPEST and self._left > 0
        for word in ("oneOf", "anyOf", "allOf"):
            parts = schema.get(word)
            if deeper and isinstance(parts, list) and parts and "type" not in schema:
                useful = [one for one in parts if self._surface.followed(one).get("type") != "null"]
                return self.value((useful or parts)[0], name, depth + 1)
        kind = type_of(schema)
        if kind in ("integer", "number"):
            return _number(schema, kind)
        if kind == "boolean":
            return True
        if kind == "array":
            return self._list(schema, name, depth, deeper)
        if kind == "object":
            return self._object(schema, depth, deeper)
        return _text(schema, name)

    def _list(self, schema: dict[str, Any], name: str, depth: int, deeper: bool) -> list[Any]:
        least = min(_whole(schema.get("minItems"), 0), _MOST_ITEMS)
        items = schema.get("items")
        if not deeper or items is None:
            return [_text({}, name)] * least
        most = _whole(schema.get("maxItems"), _MOST_ITEMS)
        one = self.value(items, name.removesuffix("s"), depth + 1)
        return [one] * min(max(least, 1), most)

    def _object(self, schema: dict[str, Any], depth: int, deeper: bool) -> dict[str, Any]:
        properties, required = schema.get("properties"), schema.get("required")
        if not deeper or not isinstance(properties, dict) or not isinstance(required, list):
            return {}
        return {
            key: self.value(properties[key], key, depth + 1)
            for key in required
            if isinstance(key, str) and key in properties and self._left > 0
        }


def _given(schema: dict[str, Any]) -> tuple[Any] | None:
    """A value that the schema itself names."""
    if "const" in schema:
        return (schema["const"],)
    for word in ("examples", "enum"):
        values = schema.get(word)
        if isinstance(values, list) and values and len(str(values[0])) <= _LONGEST_GIVEN:
            return (values[0],)
    for word in ("example", "default"):
        if schema.get(word) is not None and len(str(schema[word])) <= _LONGEST_GIVEN:
            return (schema[word],)
    return None


def _text(schema: dict[str, Any], name: str) -> str:
    known = _FORMATS.get(str(schema.get("format")))
    if known is not None:
        return known
    least = _whole(schema.get("minLength"), 0)
    most = max(_whole(schema.get("maxLength"), _LONGEST_TEXT), least)
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and len(pattern) <= _LONGEST_PATTERN:
        found = _matching(pattern, least, most)
        if found is not None:
            return found
    text = name.rpartition("_")[2] if name.endswith(("_id", "_url")) else name
    text = (text or "text")[:most]
    return text + "x" * (min(least, _LONGEST_TEXT) - len(text))


def _matching(pattern: str, least: int, most: int) -> str | None:
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    for text in _TRIES:
        if least <= len(text) <= most and compiled.search(text):
            return text
    return None


def _number(schema: dict[str, Any], kind: str) -> int | float:
    value: int | float = max(1, _bound(schema, "minimum", 1))
    above = _bound(schema, "exclusiveMinimum", value - 1)
    if value <= above:
        value = above + 1
    value = min(value, _bound(schema, "maximum", value))
    below = _bound(schema, "exclusiveMaximum", value + 1)
    if value >= below:
        value = below - 1
    step = _bound(schema, "multipleOf", 0)
    if step > 0 and value % step:
        value = step * -(-value // step)
    return int(value) if kind == "integer" and abs(value) < 2**53 else value


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**31 else otherwise


def _bound(schema: dict[str, Any], word: str, otherwise: int | float) -> int | float:
    value = schema.get(word)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15:
        return value
    return otherwise


# -- One operation as introspection shows it: in a line, in full, and what else may be asked for.
#
# By default an answer has exactly the members that the draft's schema knows; the rest is behind
# `include`.

INCLUDES: Final = (
    "parameters", "danger", "source", "input_schema", "output_schema", "field_selection",
    "pagination", "description", "lifecycle",
)  # fmt: skip
"""What may be asked for besides."""
LONGEST: Final = 1_000
"""Characters of a description in details."""
_LONGEST_WHOLE: Final = 20_000
_LONGEST_FOUND: Final = 200
_WARNED_OF: Final = Danger.DESTRUCTIVE
"""From here on a description says it."""

_PRESETS: Final = ["minimal", "standard", "full"]


class OperationDescriber:
    """Describes the operations of one catalog in one face."""

    __slots__ = ("_face", "_operation_catalog", "_operations", "_trust")

    def __init__(
        self,
        operations: OperationCatalogBuilder,
        operation_catalog: OperationSnapshot,
        face: OperationView,
        trust: Callable[[str], str],
    ) -> None:
        self._operations = operations
        self._operation_catalog = operation_catalog
        self._face = face
        self._trust = trust

    def line(self, one: Operation) -> dict[str, Any]:
        """As it stands in a list: exactly these members."""
        return {
            "name": self._operation_catalog.name_in(one, self._face),
            "semantic_category": one.category.value,
            "endpoint": self._face.find_family(one.name, one.category).name,
            "description": one_line(one.description, LONGEST_LINE) or f"Calls {one.canonical}.",
        }

    def tool(self, one: Operation) -> str:
        """The MCP tool by which it is called."""
        if self._face.mode == "single":
            return self._face.single_tool
        return self._face.find_family(one.name, one.category).tool

    def found(self, one: Operation) -> dict[str, Any]:
        """As one of a search: everything that is needed to call it."""
        return {
            **self.line(one),
            "description": self._about(one, _LONGEST_FOUND, source=False),
            "mcpTool": self.tool(one),
            "parameters": parameters_info(one, features=False, brief=True),
        }

    def whole(self, one: Operation, include: Iterable[str] = ()) -> dict[str, Any]:
        """Everything about it."""
        name = self._operation_catalog.name_in(one, self._face)
        made: dict[str, Any] = {
            **self.line(one),
            "mcpTool": self.tool(one),
            "description": self._about(one, LONGEST),
            "permissions": {
                "readOnly": one.category.is_read_only,
                "destructive": one.category.is_destructive,
            },
            "parameters": parameters_info(one),
            "returns": returns(one),
            "examples": [{"request": request(one, name)}],
        }
        for block in include:
            if block in _BLOCKS:
                made[block] = _BLOCKS[block](self, one)
        return made

    def _about(self, one: Operation, most: int, *, source: bool = True) -> str:
        """Its description, and what a caller should know of it besides."""
        settings = self._operations.settings(one.canonical)
        said = one.description if one.native is not None else one.tool.description
        parts = [one_line(said, most)]
        if settings.deprecated:
            instead = f" Use {settings.replacement} instead." if settings.replacement else ""
            parts.append(f"Deprecated since {one_line(settings.deprecated, 60)}.{instead}")
        if one.danger >= _WARNED_OF:
            parts.append(f"Danger: {one.danger.label}; a human may have to confirm it.")
        if source and one.tool.upstream != BUILTIN_KEY:
            parts.append(f"(Tool {one.canonical}.)")
        return " ".join(part for part in parts if part)

    # -- blocks that are asked for

    def danger(self, one: Operation) -> dict[str, Any]:
        settings = self._operations.settings(one.canonical)
        return {
            "level": one.danger.label,
            "dangerous": one.danger >= _WARNED_OF,
            "reasons": list(one.reasons),
            "confirmation_message": settings.confirmation_message,
            "cooldown_seconds": settings.cooldown,
            "requires_reauth": False,
            "audit_context": [each.name for each in one.signature.parameters if not each.sensitive],
        }

    def source(self, one: Operation) -> dict[str, Any]:
        return {
            "tool": one.canonical,
            "server": one.server or None,
            "effect": one.tool.effect_name,
            "trust": self._trust(one.server) if one.server else None,
            "confidence": one.confidence,
            "needs_review": one.needs_review,
            "origins": dict(one.origins),
            "map_to": {
                each.name: each.own for each in one.signature.parameters if each.own != each.name
            },
            "open": one.signature.open,
        }

    def input_schema(self, one: Operation) -> Any:
        """The schema that arguments are validated with, in the server's own names."""
        return surface_of(one).root

    def output_schema(self, one: Operation) -> Any:
        return output_schema(one)

    def lifecycle(self, one: Operation) -> dict[str, Any] | None:
        """What becomes of it as an execution, where it can be one."""
        return LIFECYCLE if one.native is None or one.native.lifecycle else None

    def field_selection(self, one: Operation) -> dict[str, Any]:
        reads = one.category is Category.READ
        return {
            "supported": reads,
            "presets": _PRESETS if reads else [],
            "parameters": sorted(
                name if name in one.signature.features else f"_{name}"
                for name in ("fields", "preset")
            )
            if reads
            else [],
        }

    def pagination(self, one: Operation) -> dict[str, Any]:
        names = one.signature.names
        if one.native is not None:
            return {"supported": "first" in names, "style": "cursors"}
        own = sorted(names & _PAGING)
        return {
            "supported": one.category is Category.READ,
            "style": "upstream" if own else "cursors",
            "parameters": own or ["_first", "_after"],
        }

    def description(self, one: Operation) -> str:
        """All of it that is of use, where the usual is cut."""
        return self._about(one, _LONGEST_WHOLE)

    def parameters(self, one: Operation) -> list[dict[str, Any]]:
        return parameters_info(one)


_PAGING: Final = frozenset(
    {
        "page", "per_page", "page_size", "limit", "offset", "cursor", "first", "after", "last",
        "before", "page_token", "start_cursor", "next_token", "max_results", "count",
    }
)  # fmt: skip
_BLOCKS: Final[dict[str, Callable[[OperationDescriber, Operation], Any]]] = {
    name: getattr(OperationDescriber, name) for name in INCLUDES
}


MOST_FOUND: Final = 10
"""Operations of a search, unless more are asked for."""
MOST_FOUND_WITH_PARAMETERS: Final = 8
IN_DETAIL: Final = 3
"""So many of them with their parameters."""
MOST_PAGE: Final = 100
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

_LONGEST_NAME: Final = 600
_MOST_KEPT: Final = 16
_MOST_WHOLE: Final = 20
"""So many operations are described wholly in one answer."""
_encode: Final = msgspec.json.Encoder().encode

Report = Callable[[Any], Any]
"""Takes an `AqlRequest`, gives what a query such as `quota_status` is answered with."""


def _no_warning(asked: Any, code: str, message: str, details: dict[str, Any]) -> None:
    """Where nobody wants to know."""


class IntrospectOperation:
    """Answers `introspect`."""

    def __init__(
        self,
        operations: OperationCatalogBuilder,
        book_of: Callable[[], OperationSnapshot],
        search: Searcher,
        *,
        view_of: Callable[[Any], View | None] = lambda _: None,
        protocol_info: Callable[[Any], Mapping[str, Any]] = lambda _: {},
        reports: Mapping[str, Report] | None = None,
        cursors: CursorCodec,
        response_bytes: Callable[[], int] = lambda: 10 * 1024 * 1024,
        trust: Callable[[str], str] = lambda _: "validated",
        warn: Callable[[Any, str, str, dict[str, Any]], None] = _no_warning,
    ) -> None:
        """`view_of`: what the caller of a call sees, None for everything. `protocol_info` adds to
        `_protocol`, such as limits and the session's id. `reports`: query → its answer."""
        self._operations = operations
        self._book_of = book_of
        self._search = search
        self._view_of = view_of
        self._protocol_info = protocol_info
        self._reports = dict(reports or {})
        self._cursors = cursors
        self._response_bytes = response_bytes
        self._trust = trust
        self._warn = warn
        self._typed_book: OperationSnapshot | None = None
        self._typed: BoundedDict[Hashable, list[TypeDetails]] = BoundedDict(_MOST_KEPT)

    def natives(self) -> list[BuiltinOperation]:
        return [
            BuiltinOperation(
                name="introspect",
                category=Category.READ,
                effect="read_only",
                description=(
                    "Find operations by what they do, and see their parameters. Also types, limits "
                    "and capabilities."
                ),
                parameters=PARAMETERS,
                returns="IntrospectionData",
                free=True,
                example={"query": "operations", "search": "create an issue"},
                answer=self.answer,
            )
        ]

    def answer(self, asked: Any) -> dict[str, Any]:
        """What an `AqlRequest` asks for. Raises AqlError."""
        params: dict[str, Any] = asked.params or {}
        query = params.get("query")
        if query == "operations":
            return self._of_operations(asked, params)
        if query == "types":
            return self._of_types(asked, params)
        if query == "capabilities":
            return {"capabilities": self._protocol(asked)}
        if query == "adapter_info":
            return {"adapter_info": self._adapter(asked)}
        if query in QUERIES:
            report = self._reports.get(query)
            return {query: None if report is None else report(asked)}
        raise AqlError(
            "INVALID_QUERY_TYPE",
            f"Unknown query. Supported: {', '.join(QUERIES)}.",
            {"param_name": "query", "supported": list(QUERIES)},
        )

    # -- operations

    def _of_operations(self, asked: Any, params: dict[str, Any]) -> dict[str, Any]:
        operation_catalog, face = self._book_of(), asked.face
        details = OperationDescriber(self._operations, operation_catalog, face, self._trust)
        view = self._view_of(asked.call)
        include = [one for one in params.get("include") or () if one in INCLUDES]
        name = params.get("name")
        if name is not None:
            one = operation_catalog.find_in(str(name)[:_LONGEST_NAME], face)
            shown = one is not None and _may_call(one, view)
            # Most include it out of habit; details have them anyway.
            blocks = [block for block in include if block != "parameters"]
            return {"operation": details.whole(one, blocks) if one and shown else None}
        namespace = params.get("namespace") or face.namespace
        category = None if params.get("category") is None else Category(params["category"])
        wish = params.get("search")
        if wish is not None:
            return self._found(
                asked, operation_catalog, details, view, namespace, category, include
            )
        listed = [
            one
            for one in visible(operation_catalog, view, namespace)
            if (category is None or one.category is category)
            and (one.native is None or not params.get("namespace"))
        ]
        return self._listed(asked, params, details, listed, include)

    def _found(
        self,
        asked: Any,
        operation_catalog: OperationSnapshot,
        details: OperationDescriber,
        view: View | None,
        namespace: str,
        category: Category | None,
        include: Sequence[str],
    ) -> dict[str, Any]:
        params = asked.params
        detailed = bool(include)
        usual = MOST_FOUND_WITH_PARAMETERS if detailed else MOST_FOUND
        most = _count(params.get("first"), usual)

        def sees(tool: Tool) -> bool:
            one = operation_catalog.of(tool)
            if one.native is not None:
                return not params.get("namespace") and is_shown(one, view)
            if namespace and not operation_catalog.within(one, namespace):
                return False
            return view is None or view.includes(tool)

        caller = getattr(getattr(asked.call, "caller", None), "name", "")
        hits = self._search.search(
            str(params["search"]), sees, most, category=category, caller=caller
        )
        made = []
        for place, hit in enumerate(hits[:most]):
            if detailed and place < IN_DETAIL:
                line = details.found(hit.operation)
                extra = [block for block in include if block != "parameters"]
                if extra:
                    whole = details.whole(hit.operation, extra)
                    line |= {block: whole[block] for block in extra}
            else:
                line = details.line(hit.operation)
            made.append(line)
        return {"_protocol": {"version": SPEC_VERSION}, "operations": made}

    def _listed(
        self,
        asked: Any,
        params: dict[str, Any],
        details: OperationDescriber,
        listed: list[Operation],
        include: Sequence[str],
    ) -> dict[str, Any]:
        """All of them, or a page. What is longer than an answer may be has pages by itself."""
        data: dict[str, Any] = {"_protocol": self._protocol(asked)}
        describe = details.line
        if include:
            blocks = [block for block in include if block != "parameters"]

            def describe(one: Operation) -> dict[str, Any]:
                return details.whole(one, blocks)

        # Whole descriptions take their time, and everybody else waits for it.
        most = _MOST_WHOLE if include else len(listed)
        return data | self._paged(
            asked, params, "operations", listed, lambda one: one.name, describe, most
        )

    # -- types

    def _of_types(self, asked: Any, params: dict[str, Any]) -> dict[str, Any]:
        operation_catalog, view = self._book_of(), self._view_of(asked.call)
        namespace = params.get("namespace") or asked.face.namespace
        name = params.get("name")
        if name is not None:
            return {
                "type": _type(
                    str(name)[:_LONGEST_NAME], visible(operation_catalog, view, namespace)
                )
            }
        return self._paged(
            asked,
            params,
            "types",
            self._types(operation_catalog, view, namespace),
            lambda one: str(one["name"]),
            lambda one: one,
        )

    def _types(
        self, operation_catalog: OperationSnapshot, view: View | None, namespace: str
    ) -> list[TypeDetails]:
        """Every type in a line. Kept: of a large catalog it takes its time to find them all."""
        if operation_catalog is not self._typed_book:
            self._typed_book = operation_catalog
            self._typed.clear()
        key = (None if view is None else view.key, namespace)
        lines = self._typed.get(key)
        if lines is None:
            known = dict(PROTOCOL)
            for one in visible(operation_catalog, view, namespace):
                for brought in of_operation(one):
                    known.setdefault(brought["name"], brought)
            lines = self._typed[key] = [
                {word: one[word] for word in ("name", "kind", "description") if one.get(word)}
                for one in known.values()
            ]
        return lines

    # -- pages

    def _paged(
        self,
        asked: Any,
        params: dict[str, Any],
        kind: str,
        every: list[Any],
        name_of: Callable[[Any], str],
        describe: Callable[[Any], dict[str, Any]],
        most: int | None = None,
    ) -> dict[str, Any]:
        """The part that was asked for, cut where an answer would be too long, or has `most`."""
        order = _order(params)
        start = 0
        if params.get("after") is not None:
            position = self._cursors.open(params["after"], kind, order)
            start = _behind(position, [name_of(one) for one in every])
        wanted = params.get("first")
        asked_for = wanted is not None or params.get("after") is not None
        end = start + _count(wanted, MOST_PAGE) if asked_for else len(every)
        if most is not None:
            end = min(end, start + most)
        # Half of it, for what stands around: an answer may be given twice, as text and structured.
        room = self._response_bytes() // 3
        made: list[dict[str, Any]] = []
        for one in every[start:end]:
            line = describe(one)
            room -= len(_encode(line)) + 1
            if room < 0 and made:
                break
            made.append(line)
        reached = start + len(made)
        data: dict[str, Any] = {kind: made}
        if not asked_for and reached == len(every):
            return data
        last = name_of(every[reached - 1]) if made else None
        cursor = None
        if last is not None:
            cursor = self._cursors.seal(CursorPosition(kind, reached - 1, last, [], order))
        data["pageInfo"] = {
            "hasNextPage": reached < len(every),
            "hasPreviousPage": start > 0,
            "endCursor": cursor,
        }
        if not asked_for:
            self._warn(
                asked,
                SHORTENED,
                f"Only {len(made)} of {len(every)} {kind} fit into one answer. "
                "Ask for the next with 'after', or use 'search'.",
                {"returned": len(made), "total": len(every)},
            )
        return data

    # -- about the node

    def _protocol(self, asked: Any) -> dict[str, Any]:
        mode = asked.face.mode
        return {
            "version": SPEC_VERSION,
            "conformance": "level-2",
            "mode": mode if mode in ("single", "all") else "semantic",
            "capabilities": dict(CAPABILITIES),
            **self._protocol_info(asked),
        }

    def _adapter(self, asked: Any) -> dict[str, Any]:
        """Which servers there are, and how much of each is seen."""
        operation_catalog, view = self._book_of(), self._view_of(asked.call)
        face: OperationView = asked.face
        seen = visible(operation_catalog, view, face.namespace)
        servers: dict[str, dict[str, Any]] = {}
        by_category = dict.fromkeys((one.value for one in Category), 0)
        by_family: dict[str, int] = {}
        for one in seen:
            by_category[one.category.value] += 1
            family = face.find_family(one.name, one.category).name
            by_family[family] = by_family.get(family, 0) + 1
            if one.native is None:
                server = servers.setdefault(
                    one.tool.segment,
                    {
                        "namespace": one.tool.segment,
                        "operations": 0,
                        "trust_level": self._trust(one.server),
                    },
                )
                server["operations"] += 1
        report = self._reports.get("adapter_info")
        return {
            "operations": len(seen),
            "by_category": by_category,
            "by_endpoint": by_family,
            "namespaces": sorted(servers.values(), key=lambda one: str(one["namespace"])),
            "endpoints": list(face.tools),
            "tokens": cost(face, operation_catalog, view),
            **(report(asked) if report is not None else {}),
        }


def natives(
    operations: OperationCatalogBuilder,
    book_of: Callable[[], OperationSnapshot],
    search: Searcher,
    **more: Any,
) -> list[BuiltinOperation]:
    """`introspect`, as the node offers it. `more` as `IntrospectOperation` takes it."""
    return IntrospectOperation(operations, book_of, search, **more).natives()


def _may_call(one: Operation, view: View | None) -> bool:
    """Whoever names one is told of it also where it is in no list."""
    free = one.native is not None and one.native.free
    return free or view is None or view.includes(one.tool)


def _type(name: str, seen: Iterable[Operation]) -> TypeDetails | None:
    """A type by its name. Only operations are looked at that could have brought it along."""
    known = PROTOCOL.get(name)
    if known is not None:
        return known
    for one in seen:
        if one.native is not None or name.startswith(pascal(one.name)):
            for brought in of_operation(one):
                if brought["name"] == name:
                    return brought
    return None


def _count(asked: Any, otherwise: int) -> int:
    if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
        return otherwise
    return min(asked, MOST_PAGE)


def _order(params: Mapping[str, Any]) -> bytes:
    said = [params.get(name) for name in ("query", "namespace", "category", "include")]
    return blake2b(_encode(said), digest_size=6).digest()


def _behind(position: CursorPosition, names: Sequence[str]) -> int:
    """Where a page goes on: behind what it ended with, else where that was."""
    at = position.ordinal
    if not (0 <= at < len(names) and names[at].startswith(str(position.id))):
        # A cursor keeps the beginning of a long name.
        at = next((i for i, one in enumerate(names) if one[:64] == position.id), at)
    return max(0, min(at + 1, len(names)))


def _parameter(name: str, about: str, required: bool = False, **schema: Any) -> Parameter:
    schema.setdefault("type", "string")
    return Parameter(name, name, schema["type"], required, schema, about)


PARAMETERS: Final = (
    _parameter(
        "query",
        f"One of {', '.join(QUERIES)}.",
        True,
        minLength=1,
        maxLength=64,
    ),
    _parameter("name", "Of one operation or type: then everything about it.", maxLength=600),
    _parameter(
        "search",
        "A short request: verb, object, product. Gives the operations that fit, the best first.",
        maxLength=10_000,
    ),
    _parameter(
        "include",
        "parameters with a search gives those of the best three. Others are blocks of details.",
        type="array",
        items={"type": "string", "enum": list(INCLUDES)},
        maxItems=len(INCLUDES),
    ),
    _parameter("namespace", "Only operations of this server.", maxLength=255),
    _parameter("category", "Only this category.", enum=[one.value for one in Category]),
    FIRST,
    AFTER,
)
"""No enum for `query`: what is none has a code of its own."""
