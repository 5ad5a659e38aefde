"""Problems of a config with their positions, and the error that carries them.

Pure data and text. A problem never contains a secret: it names keys, variables and paths, but no
value that could be a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from interlock import errors
from interlock.errors import InterlockError

_PLAIN_KEY: Final = re.compile(r"[\w-]+", re.ASCII)

KeyPath = tuple[str | int, ...]
"""The path to a value: keys and list indexes, from the top of the document."""


def format_path(path: KeyPath) -> str:
    """`("servers", "My Server", "args", 0)` → `servers."My Server".args[0]`."""
    result = ""
    for step in path:
        if isinstance(step, int):
            result += f"[{step}]"
            continue
        key = step if _PLAIN_KEY.fullmatch(step) else json.dumps(step)
        result += f".{key}" if result else key
    return result


class Problem(Struct, frozen=True, order=True):
    """One problem. Line and column count from 1. Line 0 means the whole file."""

    file: str
    line: int
    column: int
    path: str
    message: str
    hint: str

    def __str__(self) -> str:
        where = [self.file] if self.file else []
        if self.line:
            where += [str(self.line), str(self.column)]
        parts = [":".join(where), self.path, self.message]
        sentence = ": ".join(part for part in parts if part)
        return f"{sentence}; {self.hint}" if self.hint else sentence


class ConfigError(InterlockError):
    """An invalid config. `problems` lists all of its problems in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: list[Problem] = sorted(problems)
        super().__init__(
            errors.CONFIG,
            "\n".join(str(problem) for problem in self.problems),
            {"problems": [problem_as_data(problem) for problem in self.problems]},
        )

    @classmethod
    def of(cls, message: str, hint: str = "", *, file: str = "") -> ConfigError:
        """Create an error about a whole file, or without a file."""
        return cls([Problem(file, 0, 0, "", message, hint)])


def problem_as_data(problem: Problem) -> dict[str, str | int]:
    """Return a problem as JSON data."""
    return {
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "path": problem.path,
        "message": problem.message,
        "hint": problem.hint,
    }


class InvalidValueError(ValueError):
    """An invalid value of a field. The reader adds its position."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def quote(text: str, limit: int = 60) -> str:
    """Quote text from the file for a message: one line, shortened."""
    return json.dumps(text if len(text) <= limit else f"{text[:limit]}…", ensure_ascii=False)


def join_alternatives(alternatives: Sequence[str]) -> str:
    """`["a", "b", "c"]` → `a, b or c`."""
    return (
        f"{', '.join(alternatives[:-1])} or {alternatives[-1]}"
        if len(alternatives) > 1
        else alternatives[0]
    )
