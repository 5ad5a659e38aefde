"""JSON pointers (RFC 6901): a place in a value, written as a text. Nothing here raises."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

_MOST_DIGITS: Final = 9
"""Of an index. No list is as long, and a number may have more digits than can be read."""


def build_pointer(steps: Iterable[str | int]) -> str:
    """The pointer that these steps make. None: the whole value."""
    return "".join(f"/{escape_step(str(step))}" for step in steps)


def escape_step(name: str) -> str:
    """A member's name as pointers have it."""
    return name.replace("~", "~0").replace("/", "~1")


def unescape_step(step: str) -> str:
    """The name that a step of a pointer stands for."""
    return step.replace("~1", "/").replace("~0", "~")


def resolve_pointer(value: Any, pointer: str) -> Any:
    """What a pointer leads to. None: nothing is there, or it is no pointer."""
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
    return name.isdecimal() and name.isascii() and len(name) <= _MOST_DIGITS
