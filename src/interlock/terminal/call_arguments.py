"""A tool call on the command line: its options, and `key=value` words converted to the arguments
that the tool's schema asks for.

count=3          by the schema: a number here, a text there
tags=a tags=b    a list, where the schema wants one
note=@file.txt   the text of a file; `@@` begins a text with an @
filter:={"a":1}  JSON as it stands
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from interlock.terminal.options import read_duration

WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Its arguments: key=value, key=@file, key:=JSON.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="OBJECT",
        help="All arguments as a JSON object; @file reads it from a file.",
        show_default=False,
    ),
]
JsonOutputOption = Annotated[
    bool,
    typer.Option(
        "--json-output",
        help="Print the structured result as JSON; the whole result when it has none.",
    ),
]

_WORD: Final = re.compile(r"(?P<key>[^=:]+|[^=]+?)(?P<raw>:)?=(?P<value>.*)", re.DOTALL)
_MOST_REFERENCES: Final = 20
_MOST_DIGITS: Final = 4_000
"""More are read by hardly anybody."""
_TYPES: Final = frozenset(
    ("array", "boolean", "integer", "null", "number", "object", "string"),
)


class ArgumentError(ValueError):
    """An argument that cannot be what the schema wants. The message is for a person."""


def check_argument_form(words: list[str] | None, json: str | None) -> None:
    """Refuse arguments as words and as --json at once. Raises BadParameter."""
    if json is not None and words:
        raise typer.BadParameter("give the arguments as key=value or as --json, not both.")


def read_timeout(text: str | None) -> float | None:
    """What --timeout says, in seconds. Raises BadParameter."""
    return None if text is None else read_duration(text, "--timeout")


def read_arguments(words: list[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments. Raises BadArgument."""
    arguments: dict[str, Any] = {}
    lists: set[str] = set()
    for word in words:
        match = _WORD.fullmatch(word)
        if match is None:
            raise ArgumentError(f"{word!r} is not an argument; write key=value, or key:=JSON")
        key, text = match["key"], _text(match["key"], match["value"])
        if match["raw"]:
            value = _json(key, text)
        else:
            value = _typed(key, text, _property(key, schema), schema)
        if key not in arguments:
            arguments[key] = value
            continue
        if key not in lists and not isinstance(arguments[key], list):
            raise ArgumentError(f"{key} is given twice, and the tool wants one value")
        lists.add(key)
        arguments[key] += value if isinstance(value, list) else [value]
    return arguments


def read_json_object(text: str) -> dict[str, Any]:
    """The arguments as one JSON object, in the text or in `@file`. Raises BadArgument."""
    value = _json("--json", _text("--json", text))
    if not isinstance(value, dict):
        raise ArgumentError('--json wants an object, such as \'{"text": "hello"}\'')
    return value


def _text(key: str, value: str) -> str:
    if value.startswith("@@"):
        return value[1:]
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ArgumentError(f"{key}: the file {value[1:]!r} cannot be read: {reason}") from None


def _json(key: str, text: str) -> Any:
    try:
        return _loaded(text)
    except UnicodeEncodeError:
        raise ArgumentError(f"{key} has half a character in it, which nobody can send") from None
    except RecursionError:
        raise ArgumentError(f"{key} is nested too deeply") from None
    except ValueError as error:
        raise ArgumentError(f"{key} is not JSON: {error}") from None


def _loaded(text: str) -> Any:
    """As it will be sent, or not at all. Raises ValueError and RecursionError."""
    value = json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_whole)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError("a number in it is too long")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        # Others would write null for it.
        raise ValueError(f"{text[:20]} is no number that it has")
    return number


def _typed(
    key: str, text: str, wanted: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0
) -> Any:
    """The text as the first of the wanted types that it can be."""
    for choice in _choices(wanted):
        # An enumeration or a constant need not say its type.
        if not isinstance(choice, str) and json.dumps(choice) == text:
            return choice
    types = _types(wanted, root)
    if not types or (types == {"string"}):
        return text
    if "null" in types and text == "null":
        return None
    if "boolean" in types and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if types & {"integer", "number"}:
        number = _number(text, whole="number" not in types)
        if number is not None:
            return number
    if types & {"array", "object"}:
        found = _container(text, types)
        if found is not None:
            return found
        if "array" in types and not text.startswith("["):
            items = _resolved(wanted, root).get("items")
            if not isinstance(items, dict) or depth >= _MOST_REFERENCES:
                items = {}
            return [_typed(key, text, items, root, depth + 1)]
    if "string" in types:
        return text
    raise ArgumentError(f"{key} must be {_one_of(sorted(types))}, and {text!r} is not")


def _number(text: str, *, whole: bool) -> int | float | None:
    try:
        return int(text)
    except ValueError:
        if whole:
            return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number - number == 0 else None


def _container(text: str, types: set[str]) -> Any:
    try:
        value = _loaded(text)
    except (ValueError, RecursionError):
        return None
    kind = "array" if isinstance(value, list) else "object" if isinstance(value, dict) else ""
    return value if kind in types else None


def _property(key: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    found = properties.get(key) if isinstance(properties, dict) else None
    return found if isinstance(found, dict) else {}


def _resolved(wanted: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a `$ref` within the schema leads to."""
    for _ in range(_MOST_REFERENCES):
        reference = wanted.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return wanted
        found: Any = root
        for step in reference[2:].split("/"):
            found = found.get(step) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            return {}
        wanted = found
    return {}


def _types(wanted: Mapping[str, Any], root: Mapping[str, Any]) -> set[str]:
    """Every JSON type that the schema allows, as far as it says so. Nobody has checked it, and what
    it refers to may go in circles: each part is looked at once."""
    types: set[str] = set()
    seen: set[int] = set()
    left: list[Mapping[str, Any]] = [wanted]
    while left:
        one = _resolved(left.pop(), root)
        if id(one) in seen:
            continue
        seen.add(id(one))
        said = one.get("type")
        named = said if isinstance(said, list) else [said]
        types |= {name for name in named if isinstance(name, str) and name in _TYPES}
        for word in ("anyOf", "oneOf"):
            choices = one.get(word)
            if isinstance(choices, list):
                left += [choice for choice in choices if isinstance(choice, dict)]
    return types


def _choices(wanted: Mapping[str, Any]) -> list[Any]:
    choices = wanted.get("enum")
    if "const" in wanted:
        return [wanted["const"]]
    return choices if isinstance(choices, list) else []


def _one_of(types: list[str]) -> str:
    return " or ".join(f"an {one}" if one[0] in "aio" else f"a {one}" for one in types)
