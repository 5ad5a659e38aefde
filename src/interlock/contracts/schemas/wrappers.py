"""Protobuf for what is described elsewhere. Pure: text in, text out.

A tool's JSON Schema becomes a message around a `Struct`, to carry a value of it over gRPC; an
OpenAPI document becomes a service whose methods say where they are found over HTTP, for gateways
that translate between the two.
"""

from __future__ import annotations

import keyword
import re
import textwrap
from pathlib import PurePosixPath
from typing import Any, Final

from interlock.contracts.schemas.drift import TypeDescription, follow, see
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
_TRANSCODED: Final = ("get", "put", "post", "delete", "patch")
_WIDTH: Final = 96


def wrapper_path(file: str) -> str:
    """Where the wrapper of a JSON Schema lies: `json/a/b.schema.json` → `wrappers/a/b.proto`."""
    stem = file.removeprefix("json/").removesuffix(".schema.json")
    return f"{WRAPPERS}/{'/'.join(_word(one) for one in stem.split('/'))}.proto"


def wrapper(file: str, schema: Schema) -> str:
    """A message that carries a value of this schema."""
    path = PurePosixPath(wrapper_path(file))
    package = ".".join(path.parent.parts)
    name = type_name(schema, file)
    about = str(schema.get("description") or f"A value of {file}.")
    seen = see(follow(schema, schema), TypeDescription(file, schema, schema))
    kind = "Struct" if seen.types == {"object"} and not seen.null else "Value"
    return (
        f'\nsyntax = "proto3";\n\npackage {package};\n\n'
        'import "google/protobuf/struct.proto";\n\n'
        f"{_comment(about)}message {name} {{\n"
        f"{_comment(f'What {file} describes; it is validated against that.', 2)}"
        f"  google.protobuf.{kind} value = 1;\n}}\n"
    )


def type_name(schema: Schema, file: str) -> str:
    """What a type is called: its title, or else its file, in the form of a name."""
    title = schema.get("title")
    stem = PurePosixPath(file).name.removesuffix(".schema.json")
    return camel(title if isinstance(title, str) and camel(title) else stem) or "Type"


def transcoding_path(file: str) -> str:
    """Where the service of an OpenAPI document lies."""
    stem = file.removeprefix("openapi/").removesuffix(".yaml")
    return f"{TRANSCODING}/{'/'.join(_word(one) for one in stem.split('/'))}.proto"


def transcoding(file: str, document: Schema) -> str:
    """A service with a method for every operation of the document."""
    path = PurePosixPath(transcoding_path(file))
    package = ".".join((*path.parent.parts, path.stem))
    title = camel(str(document["info"]["title"])) or "Api"
    messages, methods = [], []
    for where, item in document.get("paths", {}).items():
        found = resolve(document, item)
        for verb in METHODS if isinstance(found, dict) else ():
            if verb in _TRANSCODED and isinstance(found.get(verb), dict):
                message, method = _method(document, where, verb, found)
                messages.append(message)
                methods.append(method)
    about = str(document["info"].get("description") or document["info"]["title"])
    return (
        f'\nsyntax = "proto3";\n\npackage {package};\n\n'
        'import "google/api/annotations.proto";\nimport "google/protobuf/struct.proto";\n\n'
        f"{_comment(about)}service {title} {{\n{''.join(methods)}}}\n\n" + "\n".join(messages)
    )


def _method(document: Schema, where: str, verb: str, item: Schema) -> tuple[str, str]:
    operation = item[verb]
    name = operation_name(operation, where, verb)
    path = where
    lines = []
    said = [*item.get("parameters", []), *operation.get("parameters", [])]
    parameters = [
        one for one in (resolve(document, part) for part in said) if one["in"] != "cookie"
    ]
    number = 0
    for one in parameters:
        if one["in"] == "header":
            continue
        number += 1
        field = _word(one["name"])
        if one["in"] == "path":
            path = path.replace(f"{{{one['name']}}}", f"{{{field}}}")
        schema = follow(one.get("schema", {}), document)
        lines.append(_comment(str(one.get("description") or one["name"]), 2))
        lines.append(
            f"  {_field_type(schema, document)} {field} = {number}{_named(one['name'])};\n"
        )
    body = ""
    if "requestBody" in operation:
        number += 1
        body = "body"
        lines.append(_comment("The body of the request.", 2))
        lines.append(f"  google.protobuf.Value body = {number};\n")
    about = operation.get("summary") or operation.get("description") or f"{verb.upper()} {where}"
    message = (
        f"{_comment(f'What {name} is asked with.')}message {name}Request {{\n{''.join(lines)}}}\n"
    )
    inside = f'      {verb}: "{path}"\n' + (f'      body: "{body}"\n' if body else "")
    method = (
        f"{_comment(str(about), 2)}"
        f"  rpc {name}({name}Request) returns (google.protobuf.Value) {{\n"
        f"    option (google.api.http) = {{\n{inside}    }};\n  }}\n"
    )
    return message, method


def operation_name(operation: Schema, path: str, verb: str) -> str:
    """What an operation is called, in the form of a type: `getOrder` → `GetOrder`."""
    id = operation.get("operationId")
    return camel(id if isinstance(id, str) else f"{verb} {path}") or verb.capitalize()


def _field_type(schema: Any, document: Schema) -> str:
    seen = see(schema, TypeDescription("", schema if isinstance(schema, dict) else {}, document))
    if seen.types == {"array"}:
        items = see(follow(seen.items, document), TypeDescription("", {}, document))
        return f"repeated {_scalar(items.types) or 'string'}"
    return _scalar(seen.types) or "string"


def _scalar(types: frozenset[str]) -> str | None:
    return _SCALARS.get(next(iter(types))) if len(types) == 1 else None


def _named(name: str) -> str:
    """The name in JSON, where Protobuf would make another one of the field's."""
    plain = name.isprintable() and not any(one in name for one in '"\\')
    return f' [json_name = "{name}"]' if plain and name[0] != "[" else ""


def camel(text: str) -> str:
    """`get order-v2` → `GetOrderV2`; what cannot begin a name gets a letter."""
    words = re.findall(r"[A-Za-z0-9]+", text)
    name = "".join(one[:1].upper() + one[1:] for one in words)
    return f"T{name}" if name[:1].isdigit() else name


def _word(text: str) -> str:
    """A name for a field or a package: lower case, and no word of a language."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    word = re.sub(r"[^a-z0-9]+", "_", parted.lower()).strip("_") or "it"
    return f"{word}_" if keyword.iskeyword(word) else f"n{word}" if word[0].isdigit() else word


def _comment(text: str, indent: int = 0) -> str:
    lines = textwrap.wrap(" ".join(text.split()), _WIDTH - indent, break_long_words=False)
    return "".join(f"{' ' * indent}// {line}\n" for line in lines)
