"""What is wrong with a schema, and where; a person jumps to it and a program counts it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from interlock.errors import INVALID_REQUEST, InterlockError


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is wrong."""

    file: str
    """Relative to the folder of schemas."""
    message: str
    line: int = 0
    """0: not known."""
    column: int = 0
    drift: bool = False
    """Two descriptions of one type say different things."""

    def __str__(self) -> str:
        place = [self.file, *(str(one) for one in (self.line, self.column) if one)]
        return f"{':'.join(place)}: {self.message}"


class SchemasWrong(InterlockError):
    """Schemas that cannot be used, with everything that is wrong with them."""

    __slots__ = ("problems",)

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        data: dict[str, Any] = {"problems": [msgspec.to_builtins(one) for one in problems]}
        super().__init__(INVALID_REQUEST, "\n".join(str(one) for one in problems), data)
