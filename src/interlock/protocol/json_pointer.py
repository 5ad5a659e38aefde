"""JSON pointers (RFC 6901). Nothing here raises."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

_MAX_INDEX_DIGITS: Final = 9
"""Maximum digits of an index. Longer numbers could exceed the limit of `int`."""


def build_pointer(steps: Iterable[str | int]) -> str:
    """Return the pointer for a path of names and indices. An empty path is the whole value."""
    return "".join(f"/{escape_step(str(step))}" for step in steps)


def escape_step(name: str) -> str:
    """Escape the name of a member for a pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def unescape_step(step: str) -> str:
    """Return the name of a member from a step of a pointer."""
    return step.replace("~1", "/").replace("~0", "~")


def resolve_pointer(value: Any, pointer: str) -> Any:
    """Return the value at a pointer. None: there is no value, or the pointer is invalid."""
    if pointer and not pointer.startswith("/"):
        return None
    for step in pointer.split("/")[1:]:
        name = unescape_step(step)
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and _is_index(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _is_index(name: str) -> bool:
    return name.isdecimal() and name.isascii() and len(name) <= _MAX_INDEX_DIGITS
