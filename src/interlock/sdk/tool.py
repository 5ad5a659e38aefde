"""The interface of a served tool, and JSON Schemas of types. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Raw

Report = Callable[[float, float, str], None]
"""Reports the progress of a slow tool: done, total, and a line for a person."""


class ToolError(Exception):
    """A tool failed. The message is sent to the model, which may try again."""


class ToolResult(NamedTuple):
    """The result of a tool: a text for the model, and structured data if there is any."""

    text: str
    data: Any = None


class ServedTool(Protocol):
    """A tool that can be listed and called."""

    def listed(self) -> dict[str, Any]:
        """Return the entry of the tool in `tools/list`."""
        ...

    def start(self, arguments: Raw, report: Report) -> ToolResult | Awaitable[ToolResult]:
        """Call the tool. Raises ToolError, also for invalid arguments."""
        ...


def read_arguments(name: str, shape: Any, raw: Raw | bytes) -> Any:
    """Decode and check the arguments of a tool. Raises ToolError for the first invalid one."""
    try:
        values = msgspec.json.decode(raw)
        if isinstance(values, dict):
            # In JSON Schema 6.0 is an integer, in msgspec it is not.
            values = {
                key: int(value) if isinstance(value, float) and value.is_integer() else value
                for key, value in values.items()
            }
        return msgspec.convert(values, shape)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        subject = f"Argument `{path.strip('`').lstrip('.')}`" if path else "The arguments"
        problem = problem[:1].lower() + problem[1:]
        raise ToolError(
            f"{subject} of {name} cannot be used: {problem}. See the input schema of the tool."
        ) from None


def build_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type without references, which every client can read.

    Raises:
        TypeError: the type is recursive, so its schema would be infinite.
    """
    schema = msgspec.json.schema(kind)
    definitions: dict[str, Any] = schema.pop("$defs", {})
    inlined: dict[str, Any] = _inline_references(schema, definitions, ())
    return inlined


def _inline_references(schema: Any, definitions: dict[str, Any], parents: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return [_inline_references(item, definitions, parents) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in parents:
            raise TypeError(f"{name} is recursive. Use a plain dict or list there.")
        return _inline_references(definitions[name], definitions, (*parents, name))
    # Class names and docstrings are for developers, not for the tool list.
    is_struct = schema.get("type") == "object"
    return {
        key: (
            {name: _inline_references(inner, definitions, parents) for name, inner in value.items()}
            if key == "properties"
            else _inline_references(value, definitions, parents)
        )
        for key, value in schema.items()
        if not (is_struct and key in ("title", "description"))
    }
