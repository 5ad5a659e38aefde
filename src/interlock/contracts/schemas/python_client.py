"""A generator of typed Python clients from OpenAPI documents. A client needs only the library
`msgspec`. Pure.

Every operation is a method; its parameters are arguments, and its response is a struct. Streaming
responses are iterators over events.
"""

from __future__ import annotations

import builtins
import keyword
import re
import textwrap
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any, Final

from interlock.contracts.schemas.drift import merge_all_of
from interlock.contracts.schemas.json_schema import SECRET, Schema
from interlock.contracts.schemas.openapi import EVENT, METHODS, resolve
from interlock.contracts.schemas.wrappers import operation_name, to_camel_case

# -- Schemas of an OpenAPI document as Python types: `msgspec` structs, literals and aliases. Pure.
#
# The text has the layout of code formatters, so that they do not change it.

WIDTH: Final = 100
_SCALARS: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}
_MAX_INLINE_DEPTH: Final = 8
"""An object that is nested deeper in unnamed objects becomes a plain dictionary."""
_RESERVED_ATTRIBUTES: Final = frozenset(
    {"bool", "dict", "float", "int", "list", "msgspec", "self", "str"}
)
"""Names that annotations use."""
_RESERVED_TYPES: Final = frozenset({"Any", "Client", "Iterator", "Literal", "ResponseError"})


class TypeGenerator:
    """The Python types of one document. Inline objects get names."""

    def __init__(self, document: Schema) -> None:
        self._document = document
        self._depth = 0
        """The number of unnamed objects around the current schema."""
        components = {
            name: merge_all_of(schema, document) if isinstance(schema, dict) else schema
            for name, schema in document.get("components", {}).get("schemas", {}).items()
        }
        self._schemas: dict[str, Any] = dict(components)
        self._names = {name: self._type_name(name) for name in components}
        self._structs: dict[str, str] = {}
        self._aliases: dict[str, str] = {}
        self._unions = {name for name, schema in components.items() if _is_union(schema)}
        for name, schema in components.items():
            self._add_type(self._names[name], schema)

    def text(self) -> str:
        """Return the code of all types: literals first, then structs, then aliases of both."""
        literals = [alias for alias in self._aliases.values() if " = Literal[" in alias]
        other_aliases = [alias for alias in self._aliases.values() if " = Literal[" not in alias]
        parts = ["".join(literals), *self._structs.values(), "".join(other_aliases)]
        return "\n\n".join(part for part in parts if part)

    def annotation(self, schema: Any, hint: str = "Value") -> str:
        """Return the annotation for a schema.

        Args:
            hint: the name for an unnamed object.
        """
        if not isinstance(schema, dict) or not schema:
            return "Any"
        parts = schema.get("allOf")
        if isinstance(parts, list) and len(parts) == 1 and isinstance(parts[0], dict):
            # A reference with a description of its own.
            schema = {**parts[0], **{key: value for key, value in schema.items() if key != "allOf"}}
        elif isinstance(parts, list):
            schema = merge_all_of(schema, self._document)
        ref = schema.get("$ref")
        if isinstance(ref, str):
            name = ref.rpartition("/")[2]
            # msgspec cannot tell the members of a union of structs apart inside another union.
            return "Any" if name in self._unions else self._names.get(name, "Any")
        for keyword_ in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword_), list):
                return self._union_annotation(schema[keyword_], hint)
        if isinstance(schema.get("enum"), list):
            return format_literal(schema["enum"])
        if "const" in schema:
            return format_literal([schema["const"]])
        types = schema.get("type")
        if isinstance(types, list):
            return _union(
                self._kind_annotation({**schema, "type": type}, type, hint) for type in types
            )
        return self._kind_annotation(schema, types, hint)

    def response_types(self, schema: Any, hint: str) -> list[str]:
        """Return the types that a response may have. The client uses the first that fits."""
        name = str(schema.get("$ref", "")).rpartition("/")[2] if isinstance(schema, dict) else ""
        if name in self._unions:
            return [self.annotation(option, hint) for option in self._schemas[name]["anyOf"]]
        return [self.annotation(schema, hint)]

    # -- making

    def _kind_annotation(self, schema: Schema, kind: Any, hint: str) -> str:
        if kind == "array":
            return f"list[{self.annotation(schema.get('items'), hint)}]"
        if kind == "object" or "properties" in schema:
            if schema.get("properties") and self._depth < _MAX_INLINE_DEPTH:
                name = self._free_name(to_camel_case(hint))
                self._depth += 1
                self._add_type(name, schema)
                self._depth -= 1
                return name
            return f"dict[str, {self.annotation(schema.get('additionalProperties'), hint)}]"
        return _SCALARS.get(kind, "Any")

    def _union_annotation(self, options: list[Any], hint: str) -> str:
        annotations = [self.annotation(option, hint) for option in options]
        structs = [
            annotation
            for annotation in annotations
            if annotation in self._structs or annotation in self._names.values()
        ]
        # msgspec can decode a union with at most one struct.
        return "Any" if len(structs) > 1 else _union(annotations)

    def _add_type(self, name: str, schema: Any) -> None:
        if isinstance(schema, dict) and schema.get("properties") is not None:
            self._structs[name] = ""
            self._structs[name] = self._struct(name, schema)
            return
        if _is_union(schema):
            annotations = [
                self._names.get(option["$ref"].rpartition("/")[2], "Any")
                for option in schema["anyOf"]
            ]
            text = " | ".join(annotations)
        else:
            text = self.annotation(schema, name)
        description = format_docstring(_description(schema), "") if _description(schema) else ""
        self._aliases[name] = f"{_format_alias(name, text)}{description}"

    def _struct(self, name: str, schema: Schema) -> str:
        required = schema.get("required", [])
        lines = [f"class {name}(msgspec.Struct, kw_only=True, omit_defaults=True):\n"]
        description = _description(schema)
        if description:
            lines.append(format_docstring(description, "    "))
        fields = []
        attributes: set[str] = set()
        properties = schema["properties"]
        for member, member_schema in properties.items():
            attribute = attribute_name(member)
            while attribute in attributes:
                attribute += "_"
            attributes.add(attribute)
            annotation = self.annotation(member_schema, f"{name}{to_camel_case(member)}")
            default = _default_value(member, attribute, annotation, required=member in required)
            if (
                member not in required
                and annotation != "Any"
                and "None" not in annotation.split(" | ")
            ):
                annotation = f"{annotation} | None"
            fields.append(_format_field(attribute, annotation, default))
            if isinstance(member_schema, dict) and member_schema.get("description"):
                fields.append(format_docstring(member_schema["description"], "    "))
        if description and fields:
            lines.append("\n")
        if any(
            isinstance(member_schema, dict) and member_schema.get("format") == SECRET
            for member_schema in properties.values()
        ):
            fields.append(f'\n    def __repr__(self) -> str:\n        return "{name}(…)"\n')
        return "".join(lines + fields) if description or fields else f"{lines[0]}    pass\n"

    # -- names

    def _type_name(self, component: str) -> str:
        name = to_camel_case(component.replace(".", " ")) or "Type"
        return f"{name}Type" if name in _RESERVED_TYPES or hasattr(builtins, name) else name

    def _free_name(self, name: str) -> str:
        number, free = 2, name
        while free in self._structs or free in self._names.values():
            free, number = f"{name}{number}", number + 1
        return free


def _is_union(schema: Any) -> bool:
    """Return whether a schema is a choice between named types."""
    options = schema.get("anyOf") if isinstance(schema, dict) else None
    return (
        isinstance(options, list)
        and len(options) > 1
        and all(
            isinstance(option, dict) and isinstance(option.get("$ref"), str) for option in options
        )
    )


def _description(schema: Any) -> str:
    return str(schema.get("description") or "") if isinstance(schema, dict) else ""


def _default_value(member: str, attribute: str, kind: str, *, required: bool) -> str:
    """Return the default value of a field, as code."""
    if attribute == member:
        return "" if required else "None"
    name = quote_text(member)
    return (
        f"msgspec.field(name={name})" if required else f"msgspec.field(name={name}, default=None)"
    )


def _format_field(attribute: str, annotation: str, default: str) -> str:
    line = f"    {attribute}: {annotation}" + (f" = {default}" if default else "")
    if len(line) <= WIDTH:
        return f"{line}\n"
    if annotation.startswith("Literal["):
        return (
            f"    {attribute}: "
            f"{_format_long_literal(annotation, '    ')}{f' = {default}' if default else ''}\n"
        )
    return (
        f"    {attribute}: {annotation} = (\n        {default}\n    )\n" if default else f"{line}\n"
    )


def _format_alias(name: str, text: str) -> str:
    line = f"{name} = {text}\n"
    if len(line) <= WIDTH + 1 or not text.startswith("Literal["):
        return line
    return f"{name} = {_format_long_literal(text, '')}\n"


def _format_long_literal(text: str, indent: str) -> str:
    """Return `Literal["a", "b"]` with one line per value."""
    values = re.findall(r'"(?:[^"\\]|\\.)*"|[^,\[\]\s]+', text[len("Literal[") : -1])
    return "Literal[\n" + "".join(f"{indent}    {value},\n" for value in values) + f"{indent}]"


def format_literal(values: Iterable[Any]) -> str:
    """Return the type of an enum."""
    allowed = [value for value in values if isinstance(value, str | int | bool) or value is None]
    texts = [quote_text(value) if isinstance(value, str) else repr(value) for value in allowed]
    return f"Literal[{', '.join(texts)}]" if texts else "Any"


def _union(annotations: Iterable[str]) -> str:
    unique = list(dict.fromkeys(annotations))
    if "Any" in unique:
        return "Any"
    return " | ".join(
        [annotation for annotation in unique if annotation != "None"]
        + [annotation for annotation in unique if annotation == "None"]
    )


def attribute_name(member: str) -> str:
    """Return the Python name of a member: `participantId` → `participant_id`."""
    separated = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", member)
    name = re.sub(r"\W+", "_", separated).strip("_").lower() or "value"
    if name[0].isdigit():
        name = f"n{name}"
    return f"{name}_" if keyword.iskeyword(name) or name in _RESERVED_ATTRIBUTES else name


def quote_text(text: str) -> str:
    """Return a string literal, in double quotes unless single quotes need fewer escapes."""
    # repr selects single quotes for a text with both kinds of quotes.
    escaped = repr(text + "'\"")[1:-4].replace("\\'", "'")
    if text.count('"') > text.count("'"):
        return "'" + escaped.replace("'", "\\'") + "'"
    return '"' + escaped.replace('"', '\\"') + '"'


def format_docstring(text: str, indent: str) -> str:
    """Return a text as a docstring with wrapped lines."""
    escaped = " ".join(text.split()).replace("\\", "\\\\").replace('"""', "'''")
    if escaped.endswith('"'):
        escaped = escaped[:-1] + '\\"'
    lines = textwrap.wrap(
        f'"""{escaped}', WIDTH - len(indent) - 3, break_long_words=False, break_on_hyphens=False
    )
    if len(lines) > 1:
        lines = textwrap.wrap(
            f'"""{escaped}', WIDTH - len(indent), break_long_words=False, break_on_hyphens=False
        )
        return "".join(f"{indent}{line}\n" for line in lines) + f'{indent}"""\n'
    return f'{indent}{lines[0]}"""\n'


_JSON: Final = "application/json"
_EVENT_STREAM: Final = "text/event-stream"
_MAX_LINES: Final = 490
_RESERVED_METHODS: Final = frozenset({"close", "headers", "timeout", "url"})

_HEAD_TEMPLATE: Final = """
from __future__ import annotations

import http.client
{ssl}from collections.abc import {abc}
from typing import {typing}
from urllib.parse import {parse}

import msgspec

_JSON = "application/json"
{events}"""

_CLASS_TEMPLATE: Final = '''

class ResponseError(Exception):
    """A response with an error status."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body[:500].decode('utf-8', 'replace')}")
        self.status = status
        self.body = body

    @property
    def data(self) -> Any:
        """The decoded body. None: the body is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None


class Client:
    """%(description)s"""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """`url`: the server, without the path of an operation. `token`: the bearer token."""
        self._parts = urlsplit(url)
        if self._parts.scheme not in ("http", "https") or not self._parts.hostname:
            raise ValueError(f"{url!r} is not an http or https URL")
        self.headers = dict(headers or {})
        if token is not None:
            self.headers["Authorization"] = f"Bearer {token}"
        self.timeout = timeout
        self._ssl_context = ssl_context

    def __repr__(self) -> str:
        return f"Client({self._parts.scheme}://{self._parts.netloc})"
'''

_REQUEST_TEMPLATE: Final = '''
    # -- requests

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        payload: Any,
        accept: str,
        fields: Mapping[str, Any] | None = None,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        parts = self._parts
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=self.timeout, context=self._ssl_context
            )
        else:
            connection = http.client.HTTPConnection(
                parts.hostname or "", parts.port, timeout=self.timeout
            )
        pairs = [(name, _text(item)) for name, value in query.items() for item in _each(value)]
        target = parts.path.rstrip("/") + path + (f"?{urlencode(pairs)}" if pairs else "")
        headers = {**self.headers, "Accept": accept}
        for name, value in (fields or {}).items():
            if value is not None:
                headers[name] = _text(value)
        body = None
        if payload is not msgspec.UNSET:
            body = msgspec.json.encode(payload)
            headers["Content-Type"] = _JSON
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            if not 200 <= response.status < 300:
                raise ResponseError(response.status, response.read())
        except BaseException:
            connection.close()
            raise
        return connection, response

    def _request(
        self,
        method: str,
        path: str,
        types: tuple[Any, ...],
        query: Mapping[str, Any],
        payload: Any,
        fields: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the response as the first type that fits. Without types it is not read."""
        accept = "*/*" if types == (bytes,) else _JSON
        connection, response = self._open(method, path, query, payload, accept, fields)
        try:
            body = response.read()
        finally:
            connection.close()
        return body if types == (bytes,) else _decode(body, types) if types else None
'''

_STREAM_TEMPLATE: Final = '''
    def _stream(
        self,
        path: str,
        types: tuple[Any, ...],
        query: Mapping[str, Any],
        fields: Mapping[str, Any] | None = None,
    ) -> Iterator[Any]:
        """Yield the data of each event until the server or the caller ends the stream."""
        connection, response = self._open("GET", path, query, msgspec.UNSET, _EVENTS, fields)
        try:
            data: list[bytes] = []
            for raw_line in response:
                line = raw_line.rstrip(b"\\r\\n")
                if line.startswith(b"data:"):
                    data.append(line[5:].removeprefix(b" "))
                elif not line and data:
                    yield _decode(b"\\n".join(data), types)
                    data = []
        finally:
            connection.close()
'''

_FUNCTION_TEMPLATE: Final = """

def _decode(body: bytes, types: tuple[Any, ...]) -> Any:
    for type in types[:-1]:
        try:
            return msgspec.json.decode(body, type=type)
        except msgspec.ValidationError:
            continue
    return msgspec.json.decode(body, type=types[-1])


def _each(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
"""

_PATH_TEMPLATE: Final = """

def _path(value: Any) -> str:
    return quote(_text(value), safe="")
"""


def module_name(file: str) -> str:
    """Return the name of the module of a document: `openapi/interlock.v1.yaml` →
    `interlock_v1_client`."""
    stem = PurePosixPath(file).name.removesuffix(".yaml")
    return f"{attribute_name(stem)}_client"


def make_module(document: Schema) -> tuple[str, str]:
    """Return the docstring of the module, and the code after it."""
    info = document["info"]
    body = _module_body(document)
    is_long = body.count("\n") > _MAX_LINES
    size_note = " Longer than 500 lines because it is generated." if is_long else ""
    return format_docstring(
        f"A typed client of {info['title']} {info['version']}.{size_note}", ""
    ), body


def _module_body(document: Schema) -> str:
    generator = _MethodGenerator(document)
    methods = "".join(generator.generate())
    types = generator.types.text()
    description = str(document["info"].get("description") or document["info"]["title"])
    docstring_text = format_docstring(description, "    ").strip()[3:-3]
    has_streams = generator.has_streams
    typing = ["Any", *(["Literal"] if "Literal[" in types or "Literal[" in methods else [])]
    parse = [*(["quote"] if generator.has_path_parameters else []), "urlencode", "urlsplit"]
    return "".join(
        (
            _HEAD_TEMPLATE.format(
                ssl="import ssl\n",
                abc=", ".join([*(["Iterator"] if has_streams else []), "Mapping"]),
                typing=", ".join(typing),
                parse=", ".join(parse),
                events='_EVENTS = "text/event-stream"\n' if has_streams else "",
            ),
            f"\n\n{types}" if types.startswith("class") else f"\n{types}" if types else "",
            _CLASS_TEMPLATE % {"description": docstring_text},
            methods,
            _REQUEST_TEMPLATE,
            _STREAM_TEMPLATE if has_streams else "",
            _FUNCTION_TEMPLATE,
            _PATH_TEMPLATE if generator.has_path_parameters else "",
        )
    )


class _MethodGenerator:
    def __init__(self, document: Schema) -> None:
        self._document = document
        self.types = TypeGenerator(document)
        self.has_streams = False
        self.has_path_parameters = False
        self._names: set[str] = set(_RESERVED_METHODS)

    def generate(self) -> list[str]:
        texts = []
        for path, item in self._document.get("paths", {}).items():
            path_item = resolve(self._document, item)
            for method in METHODS if isinstance(path_item, dict) else ():
                operation = path_item.get(method)
                if not isinstance(operation, dict):
                    continue
                if self._accepts_json(operation):
                    texts.append(self._method(path, method, operation, path_item))
                else:
                    texts.append(
                        f"\n    # {method.upper()} {path} is omitted: its body is not JSON.\n"
                    )
        return texts

    def _method(self, path: str, http_method: str, operation: Schema, item: Schema) -> str:
        title = operation_name(operation, path, http_method)
        name = self._free_name(attribute_name(title))
        references = [*item.get("parameters", []), *operation.get("parameters", [])]
        parameters = [resolve(self._document, reference) for reference in references]
        required, optional = [], []
        query: list[str] = []
        fields: list[str] = []
        target = path
        for parameter in parameters:
            argument = attribute_name(parameter["name"])
            kind = self.types.annotation(
                parameter.get("schema"), f"{title}{parameter['name'].capitalize()}"
            )
            if parameter["in"] == "path":
                self.has_path_parameters = True
                target = target.replace(f"{{{parameter['name']}}}", f"{{_path({argument})}}")
                required.append(f"{argument}: {kind}")
            elif parameter["in"] in ("query", "header"):
                values = query if parameter["in"] == "query" else fields
                values.append(f"{quote_text(parameter['name'])}: {argument}")
                if parameter.get("required") is True:
                    required.append(f"{argument}: {kind}")
                else:
                    optional.append(
                        f"{argument}: {kind if kind == 'Any' else _make_optional(kind)} = None"
                    )
        payload = self._body_argument(operation, title, required, optional)
        kinds, stream = self._response(operation, title)
        annotation = " | ".join(kinds) or "None"
        if stream:
            self.has_streams = True
        arguments = ["self", *required, *(["*", *optional] if optional else [])]
        return_type = f"Iterator[{annotation}]" if stream else annotation
        address = f'f"{target}"' if "{_path(" in target else quote_text(target)
        query_text = "{" + ", ".join(query) + "}"
        types_text = f"({', '.join(kinds)}{',' if len(kinds) == 1 else ''})"
        description = (
            operation.get("description")
            or operation.get("summary")
            or f"{http_method.upper()} {path}"
        )
        call = (
            ["self._stream", address, types_text, query_text]
            if stream
            else [
                "self._request",
                quote_text(http_method.upper()),
                address,
                types_text,
                query_text,
                payload,
            ]
        )
        if fields:
            call.append("{" + ", ".join(fields) + "}")
        return (
            "\n"
            + _format_call(f"    def {name}", arguments, f" -> {return_type}:", "    ")
            + format_docstring(_end_sentence(str(description)), "        ")
            + _format_return(call, annotation, stream)
        )

    def _accepts_json(self, operation: Schema) -> bool:
        body = resolve(self._document, operation.get("requestBody"))
        return not isinstance(body, dict) or _JSON in body["content"]

    def _body_argument(
        self, operation: Schema, title: str, required: list[str], optional: list[str]
    ) -> str:
        """Return the code of the body argument, and add the argument to the parameters."""
        body = resolve(self._document, operation.get("requestBody"))
        if not isinstance(body, dict):
            return "msgspec.UNSET"
        schema = body["content"].get(_JSON, {}).get("schema")
        kind = self.types.annotation(schema, f"{title}Body")
        name = attribute_name(kind) if re.fullmatch(r"[A-Z]\w*", kind) and kind != "Any" else "body"
        names = {parameter.partition(":")[0] for parameter in (*required, *optional)}
        while name in names:
            name += "_"
        if body.get("required") is True:
            required.append(f"{name}: {kind}")
        else:
            optional.append(f"{name}: {_make_optional(kind)} = None")
            return f"msgspec.UNSET if {name} is None else {name}"
        return name

    def _response(self, operation: Schema, title: str) -> tuple[list[str], bool]:
        """Return the types of a successful response, and whether it is a stream."""
        for status, response in operation["responses"].items():
            if not status.startswith("2"):
                continue
            content = resolve(self._document, response).get("content", {})
            if _JSON in content:
                return self._response_types(content[_JSON].get("schema"), title), False
            if _EVENT_STREAM in content:
                return self._response_types(content[_EVENT_STREAM].get(EVENT), title), True
            if content:
                return ["bytes"], False
        return [], False

    def _response_types(self, schema: Any, title: str) -> list[str]:
        return self.types.response_types(schema, f"{title}Response")

    def _free_name(self, name: str) -> str:
        free, number = name, 2
        while free in self._names:
            free, number = f"{name}_{number}", number + 1
        self._names.add(free)
        return free


def _make_optional(kind: str) -> str:
    return kind if "None" in kind.split(" | ") else f"{kind} | None"


def _end_sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _format_return(call: list[str], annotation: str, stream: bool) -> str:
    function, *arguments = call
    if stream:
        return _format_call(f"        return {function}", arguments, "", "        ")
    if annotation == "None":
        return _format_call(f"        {function}", arguments, "", "        ")
    assignment = f"        response: {annotation} = {function}"
    return _format_call(assignment, arguments, "", "        ") + "        return response\n"


def _format_call(start: str, arguments: list[str], end: str, indent: str) -> str:
    """Return a call or signature: on one line if it fits, else broken like code formatters do."""
    line = f"{start}({', '.join(arguments)}){end}"
    if len(line) <= WIDTH:
        return f"{line}\n"
    indented = f"{indent}    {', '.join(arguments)}"
    if len(indented) <= WIDTH:
        return f"{start}(\n{indented}\n{indent}){end}\n"
    lines = "".join(_format_argument(argument, f"{indent}    ") for argument in arguments)
    return f"{start}(\n{lines}{indent}){end}\n"


def _format_argument(text: str, indent: str) -> str:
    """Return an argument on a line of its own. A long mapping has one line per member."""
    if len(indent) + len(text) < WIDTH or not text.startswith("{"):
        return f"{indent}{text},\n"
    members = "".join(f"{indent}    {member},\n" for member in text[1:-1].split(", "))
    return f"{indent}{{\n{members}{indent}}},\n"
