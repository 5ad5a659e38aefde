"""Protobuf for types and APIs that are described in another language. Pure: text in, text out.

A JSON Schema becomes a message with a `Struct`, which carries a value over gRPC. An OpenAPI
document becomes a service whose methods have HTTP rules, for gateways that translate between the
two.
"""

from __future__ import annotations

import keyword
import re
import textwrap
from pathlib import PurePosixPath
from typing import Any, Final

from interlock.contracts.schemas.drift import TypeDescription, resolve_ref, summarize
from interlock.contracts.schemas.json_schema import Schema
from interlock.contracts.schemas.openapi import METHODS, resolve

WRAPPERS: Final = "wrappers"
"""The folder below `proto/`, and the first part of the package."""
TRANSCODING: Final = "transcoding"
_SCALARS: Final = {
    "string": "string",
    "boolean": "bool",
    "integer": "int64",
    "number": "double",
}
_TRANSCODED_METHODS: Final = ("get", "put", "post", "delete", "patch")
_WIDTH: Final = 96


def wrapper_path(file: str) -> str:
    """Return the path of the wrapper of a JSON Schema: `json/a/b.schema.json` →
    `wrappers/a/b.proto`."""
    stem = file.removeprefix("json/").removesuffix(".schema.json")
    return f"{WRAPPERS}/{'/'.join(_to_identifier(part) for part in stem.split('/'))}.proto"


def format_wrapper(file: str, schema: Schema) -> str:
    """Return a file with a message that carries a value of this schema."""
    path = PurePosixPath(wrapper_path(file))
    package = ".".join(path.parent.parts)
    name = type_name(schema, file)
    description = str(schema.get("description") or f"A value of {file}.")
    summary = summarize(resolve_ref(schema, schema), TypeDescription(file, schema, schema))
    kind = "Struct" if summary.types == {"object"} and not summary.null else "Value"
    return (
        f'\nsyntax = "proto3";\n\npackage {package};\n\n'
        'import "google/protobuf/struct.proto";\n\n'
        f"{_comment(description)}message {name} {{\n"
        f"{_comment(f'The value. Its schema is {file}.', 2)}"
        f"  google.protobuf.{kind} value = 1;\n}}\n"
    )


def type_name(schema: Schema, file: str) -> str:
    """Return the name of a type: its title, or else its file name, in camel case."""
    title = schema.get("title")
    stem = PurePosixPath(file).name.removesuffix(".schema.json")
    return (
        to_camel_case(title if isinstance(title, str) and to_camel_case(title) else stem) or "Type"
    )


def transcoding_path(file: str) -> str:
    """Return the path of the service of an OpenAPI document."""
    stem = file.removeprefix("openapi/").removesuffix(".yaml")
    return f"{TRANSCODING}/{'/'.join(_to_identifier(part) for part in stem.split('/'))}.proto"


def format_transcoding(file: str, document: Schema) -> str:
    """Return a file with a service that has a method for every operation of the document."""
    path = PurePosixPath(transcoding_path(file))
    package = ".".join((*path.parent.parts, path.stem))
    title = to_camel_case(str(document["info"]["title"])) or "Api"
    messages, methods = [], []
    for path_template, item in document.get("paths", {}).items():
        path_item = resolve(document, item)
        for http_method in METHODS if isinstance(path_item, dict) else ():
            if http_method in _TRANSCODED_METHODS and isinstance(path_item.get(http_method), dict):
                message, method = _method(document, path_template, http_method, path_item)
                messages.append(message)
                methods.append(method)
    description = str(document["info"].get("description") or document["info"]["title"])
    return (
        f'\nsyntax = "proto3";\n\npackage {package};\n\n'
        'import "google/api/annotations.proto";\nimport "google/protobuf/struct.proto";\n\n'
        f"{_comment(description)}service {title} {{\n{''.join(methods)}}}\n\n" + "\n".join(messages)
    )


def _method(
    document: Schema, path_template: str, http_method: str, item: Schema
) -> tuple[str, str]:
    operation = item[http_method]
    name = operation_name(operation, path_template, http_method)
    path = path_template
    lines = []
    references = [*item.get("parameters", []), *operation.get("parameters", [])]
    parameters = [
        parameter
        for parameter in (resolve(document, reference) for reference in references)
        if parameter["in"] != "cookie"
    ]
    number = 0
    for parameter in parameters:
        if parameter["in"] == "header":
            continue
        number += 1
        field = _to_identifier(parameter["name"])
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", f"{{{field}}}")
        schema = resolve_ref(parameter.get("schema", {}), document)
        lines.append(_comment(str(parameter.get("description") or parameter["name"]), 2))
        lines.append(
            f"  {_field_type(schema, document)} {field} = "
            f"{number}{_json_name_option(parameter['name'])};\n"
        )
    body = ""
    if "requestBody" in operation:
        number += 1
        body = "body"
        lines.append(_comment("The body of the request.", 2))
        lines.append(f"  google.protobuf.Value body = {number};\n")
    description = (
        operation.get("summary")
        or operation.get("description")
        or f"{http_method.upper()} {path_template}"
    )
    message = f"{_comment(f'The request of {name}.')}message {name}Request {{\n{''.join(lines)}}}\n"
    http_rule = f'      {http_method}: "{path}"\n' + (f'      body: "{body}"\n' if body else "")
    method = (
        f"{_comment(str(description), 2)}"
        f"  rpc {name}({name}Request) returns (google.protobuf.Value) {{\n"
        f"    option (google.api.http) = {{\n{http_rule}    }};\n  }}\n"
    )
    return message, method


def operation_name(operation: Schema, path: str, http_method: str) -> str:
    """Return the name of an operation in camel case: `getOrder` → `GetOrder`."""
    id = operation.get("operationId")
    return (
        to_camel_case(id if isinstance(id, str) else f"{http_method} {path}")
        or http_method.capitalize()
    )


def _field_type(schema: Any, document: Schema) -> str:
    summary = summarize(
        schema, TypeDescription("", schema if isinstance(schema, dict) else {}, document)
    )
    if summary.types == {"array"}:
        items = summarize(resolve_ref(summary.items, document), TypeDescription("", {}, document))
        return f"repeated {_scalar(items.types) or 'string'}"
    return _scalar(summary.types) or "string"


def _scalar(types: frozenset[str]) -> str | None:
    return _SCALARS.get(next(iter(types))) if len(types) == 1 else None


def _json_name_option(name: str) -> str:
    """Return the option for the JSON name of a field, where the default of Protobuf may differ."""
    is_quotable = name.isprintable() and not any(character in name for character in '"\\')
    return f' [json_name = "{name}"]' if is_quotable and name[0] != "[" else ""


def to_camel_case(text: str) -> str:
    """Return a name in camel case: `get order-v2` → `GetOrderV2`. A leading digit gets a prefix."""
    words = re.findall(r"[A-Za-z0-9]+", text)
    name = "".join(word[:1].upper() + word[1:] for word in words)
    return f"T{name}" if name[:1].isdigit() else name


def _to_identifier(text: str) -> str:
    """Return a name for a field or a package: lower case, and not a keyword."""
    separated = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    identifier = re.sub(r"[^a-z0-9]+", "_", separated.lower()).strip("_") or "it"
    return (
        f"{identifier}_"
        if keyword.iskeyword(identifier)
        else f"n{identifier}"
        if identifier[0].isdigit()
        else identifier
    )


def _comment(text: str, indent: int = 0) -> str:
    lines = textwrap.wrap(" ".join(text.split()), _WIDTH - indent, break_long_words=False)
    return "".join(f"{' ' * indent}// {line}\n" for line in lines)
