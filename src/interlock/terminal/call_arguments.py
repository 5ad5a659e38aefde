"""Tool arguments on the command line: the options of a call, and the conversion of `key=value` to
the types of the tool's schema.

count=3          a number or a text, as the schema says
tags=a tags=b    a list, if the schema has an array
note=@file.txt   the text of a file; `@@` is a literal `@` at the beginning
filter:={"a":1}  JSON, taken literally
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from interlock.terminal.options import read_duration

KeyValueArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Arguments of the tool: key=value, key=@file or key:=JSON.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="OBJECT",
        help="Pass all arguments as one JSON object. @file reads the object from a file.",
        show_default=False,
    ),
]
JsonOutputOption = Annotated[
    bool,
    typer.Option(
        "--json-output",
        help="Print the structured result as JSON, or the whole result if it has none.",
    ),
]

_ARGUMENT_PATTERN: Final = re.compile(r"(?P<key>[^=:]+|[^=]+?)(?P<raw>:)?=(?P<value>.*)", re.DOTALL)
_MAX_REFERENCES: Final = 20
_MAX_DIGITS: Final = 4_000
"""Few JSON parsers accept an integer with more digits."""
_TYPES: Final = frozenset(
    ("array", "boolean", "integer", "null", "number", "object", "string"),
)


class ArgumentError(ValueError):
    """An argument that does not match the tool's schema. The message is for a person."""


def check_argument_form(arguments: list[str] | None, json: str | None) -> None:
    """Reject arguments that are given both as key=value and as --json. Raises BadParameter."""
    if json is not None and arguments:
        raise typer.BadParameter("Pass the arguments as key=value or as --json, not both.")


def read_timeout(text: str | None) -> float | None:
    """Return the seconds of --timeout. Raises BadParameter."""
    return None if text is None else read_duration(text, "--timeout")


def read_arguments(pairs: list[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert `key=value` pairs to the types of the schema. Raises ArgumentError."""
    arguments: dict[str, Any] = {}
    lists: set[str] = set()
    for pair in pairs:
        match = _ARGUMENT_PATTERN.fullmatch(pair)
        if match is None:
            raise ArgumentError(f"{pair!r} is not an argument. Write key=value or key:=JSON")
        key, text = match["key"], _read_text(match["key"], match["value"])
        if match["raw"]:
            value = _decode_value(key, text)
        else:
            value = _convert(key, text, _find_property(key, schema), schema)
        if key not in arguments:
            arguments[key] = value
            continue
        if key not in lists and not isinstance(arguments[key], list):
            raise ArgumentError(f"{key} occurs twice, but the tool takes one value")
        lists.add(key)
        arguments[key] += value if isinstance(value, list) else [value]
    return arguments


def read_json_object(text: str) -> dict[str, Any]:
    """Decode a JSON object with all arguments, from the text or from `@file`.

    Raises ArgumentError.
    """
    value = _decode_value("--json", _read_text("--json", text))
    if not isinstance(value, dict):
        raise ArgumentError('--json takes a JSON object, such as \'{"text": "hello"}\'')
    return value


def _read_text(key: str, value: str) -> str:
    if value.startswith("@@"):
        return value[1:]
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ArgumentError(f"{key}: cannot read the file {value[1:]!r}: {reason}") from None


def _decode_value(key: str, text: str) -> Any:
    try:
        return _decode_json(text)
    except UnicodeEncodeError:
        raise ArgumentError(f"{key} has half of a surrogate pair, which is not valid") from None
    except RecursionError:
        raise ArgumentError(f"{key} is nested too deeply") from None
    except ValueError as error:
        raise ArgumentError(f"{key} is not JSON: {error}") from None


def _decode_json(text: str) -> Any:
    """Decode JSON, and check that the value can be encoded again.

    Raises ValueError and RecursionError.
    """
    value = json.loads(
        text, parse_constant=_parse_finite, parse_float=_parse_finite, parse_int=_parse_integer
    )
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _parse_integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number has more than {_MAX_DIGITS} digits")
    return int(text)


def _parse_finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        # JSON has no infinity and no NaN. Some encoders write null instead.
        raise ValueError(f"{text[:20]} is not a JSON number")
    return number


def _convert(
    key: str, text: str, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0
) -> Any:
    """Convert the text to the first type of the schema that it matches."""
    for choice in _allowed_values(schema):
        # An enumeration or a constant need not say its type.
        if not isinstance(choice, str) and json.dumps(choice) == text:
            return choice
    types = _allowed_types(schema, root)
    if not types or (types == {"string"}):
        return text
    if "null" in types and text == "null":
        return None
    if "boolean" in types and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if types & {"integer", "number"}:
        number = _parse_number(text, integer_only="number" not in types)
        if number is not None:
            return number
    if types & {"array", "object"}:
        value = _decode_container(text, types)
        if value is not None:
            return value
        if "array" in types and not text.startswith("["):
            items = _resolve_reference(schema, root).get("items")
            if not isinstance(items, dict) or depth >= _MAX_REFERENCES:
                items = {}
            return [_convert(key, text, items, root, depth + 1)]
    if "string" in types:
        return text
    raise ArgumentError(f"{key} must be {_format_types(sorted(types))}. Found {text!r}")


def _parse_number(text: str, *, integer_only: bool) -> int | float | None:
    try:
        return int(text)
    except ValueError:
        if integer_only:
            return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number - number == 0 else None


def _decode_container(text: str, types: set[str]) -> Any:
    try:
        value = _decode_json(text)
    except (ValueError, RecursionError):
        return None
    actual_type = (
        "array" if isinstance(value, list) else "object" if isinstance(value, dict) else ""
    )
    return value if actual_type in types else None


def _find_property(key: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    definition = properties.get(key) if isinstance(properties, dict) else None
    return definition if isinstance(definition, dict) else {}


def _resolve_reference(target: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow `$ref` within the schema. Return an empty schema if a reference cannot be resolved."""
    for _ in range(_MAX_REFERENCES):
        reference = target.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return target
        node: Any = root
        for step in reference[2:].split("/"):
            node = node.get(step) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            return {}
        target = node
    return {}


def _allowed_types(schema: Mapping[str, Any], root: Mapping[str, Any]) -> set[str]:
    """Return every JSON type that the schema names.

    The schema is not validated and its references may be circular, so each part is visited once.
    """
    types: set[str] = set()
    visited_ids: set[int] = set()
    unvisited: list[Mapping[str, Any]] = [schema]
    while unvisited:
        part = _resolve_reference(unvisited.pop(), root)
        if id(part) in visited_ids:
            continue
        visited_ids.add(id(part))
        type_value = part.get("type")
        names = type_value if isinstance(type_value, list) else [type_value]
        types |= {name for name in names if isinstance(name, str) and name in _TYPES}
        for keyword in ("anyOf", "oneOf"):
            choices = part.get(keyword)
            if isinstance(choices, list):
                unvisited += [choice for choice in choices if isinstance(choice, dict)]
    return types


def _allowed_values(schema: Mapping[str, Any]) -> list[Any]:
    choices = schema.get("enum")
    if "const" in schema:
        return [schema["const"]]
    return choices if isinstance(choices, list) else []


def _format_types(types: list[str]) -> str:
    return " or ".join(f"an {name}" if name[0] in "aio" else f"a {name}" for name in types)
