"""What a tool is to the conversation that serves it, and how types become JSON Schemas. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Raw

Report = Callable[[float, float, str], None]
"""How a slow tool tells its progress: done, total, and a line for a person."""


class ToolError(Exception):
    """A tool cannot do what it was asked. The sentence goes to the model, which may try again."""


class ToolResult(NamedTuple):
    """What a tool gives back: a text for the model and, where it has a shape, the data."""

    text: str
    data: Any = None


class ServedTool(Protocol):
    """A tool that can be listed and called."""

    def listed(self) -> dict[str, Any]:
        """The tool as `tools/list` shows it."""
        ...

    def start(self, arguments: Raw, report: Report) -> ToolResult | Awaitable[ToolResult]:
        """Call it. Raises ToolError, also for arguments that do not fit."""
        ...


def read_arguments(name: str, shape: Any, raw: Raw | bytes) -> Any:
    """The arguments of a tool, checked. Raises ToolError with a sentence about the wrong one."""
    try:
        values = msgspec.json.decode(raw)
        if isinstance(values, dict):
            # To JSON Schema 6.0 is an integer; to msgspec it is not.
            values = {
                key: int(value) if isinstance(value, float) and value.is_integer() else value
                for key, value in values.items()
            }
        return msgspec.convert(values, shape)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        where = f"Argument `{place.strip('`').lstrip('.')}`" if place else "The arguments"
        problem = problem[:1].lower() + problem[1:]
        raise ToolError(
            f"{where} of {name} cannot be used: {problem}. The tool's input schema says what fits."
        ) from None


def build_schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type without references, which every client can read.

    Raises TypeError for a type that holds itself: no such schema ends.
    """
    schema = msgspec.json.schema(kind)
    parts: dict[str, Any] = schema.pop("$defs", {})
    plain: dict[str, Any] = _without_references(schema, parts, ())
    return plain


def _without_references(schema: Any, parts: dict[str, Any], within: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return [_without_references(item, parts, within) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in within:
            raise TypeError(f"{name} holds itself: use a plain dict or list there.")
        return _without_references(parts[name], parts, (*within, name))
    # Class names and docstrings are for readers of the program, not of the tool list.
    is_struct = schema.get("type") == "object"
    return {
        key: (
            {name: _without_references(inner, parts, within) for name, inner in value.items()}
            if key == "properties"
            else _without_references(value, parts, within)
        )
        for key, value in schema.items()
        if not (is_struct and key in ("title", "description"))
    }
