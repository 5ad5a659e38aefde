"""What is wrong with a config: each problem with its place, and the error that carries them all.

Pure data and text. A problem never holds a secret: whoever makes one names keys, variables and
paths, not values that could be one.
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
"""The way to a value: keys and list positions, from the top of the document."""


def format_path(path: KeyPath) -> str:
    """`("servers", "My Server", "args", 0)` → `servers."My Server".args[0]`."""
    shown = ""
    for step in path:
        if isinstance(step, int):
            shown += f"[{step}]"
            continue
        key = step if _PLAIN_KEY.fullmatch(step) else json.dumps(step)
        shown += f".{key}" if shown else key
    return shown


class Problem(Struct, frozen=True, order=True):
    """One thing that is wrong. Line and column count from 1; line 0 means the file as a whole."""

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
    """A config that cannot be used. `problems` has all of them, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: list[Problem] = sorted(problems)
        super().__init__(
            errors.CONFIG,
            "\n".join(str(problem) for problem in self.problems),
            {"problems": [problem_as_data(problem) for problem in self.problems]},
        )

    @classmethod
    def of(cls, message: str, hint: str = "", *, file: str = "") -> ConfigError:
        """An error about a whole file, or about no file at all."""
        return cls([Problem(file, 0, 0, "", message, hint)])


def problem_as_data(problem: Problem) -> dict[str, str | int]:
    """The problem for a program: the fields under their names."""
    return {
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "path": problem.path,
        "message": problem.message,
        "hint": problem.hint,
    }


class BadValue(ValueError):
    """A value that its field cannot take. The reader adds where it stands."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def quoted(text: str, limit: int = 60) -> str:
    """Text from the file for use inside a message: one line, in quotes, not endless."""
    return json.dumps(text if len(text) <= limit else f"{text[:limit]}…", ensure_ascii=False)


def one_of(words: Sequence[str]) -> str:
    """`["a", "b", "c"]` → `a, b or c`."""
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
