"""What reading a manifest finds: problems, which refuse it, and cautions, which do not.

Problems are those of the config (`config.problems`), so that a person reads one kind of sentence
everywhere. Nothing here ever holds a secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from msgspec import Struct, field

from interlock import errors
from interlock.core.config.problems import (
    ConfigError,
    KeyPath,
    Problem,
    format_path,
    problem_as_data,
)
from interlock.errors import InterlockError

T = TypeVar("T")


class Caution(Struct, frozen=True, order=True):
    """One thing that a person should look at. Line 0 means the file as a whole."""

    file: str
    line: int
    code: str
    sentence: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.sentence}" if where else self.sentence


class ManifestError(ConfigError):
    """A manifest that cannot be used. `problems` are in the order in which the parts of the format
    are checked (AIP-30 before AIP-32), and in the order of the file within a part."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        ordered = list(problems)
        super().__init__(ordered)
        self.problems = ordered
        InterlockError.__init__(
            self,
            errors.CONFIG,
            "\n".join(str(problem) for problem in ordered),
            {"problems": [problem_as_data(problem) for problem in ordered]},
        )


class Reading(Struct, Generic[T]):
    """What came of reading one file."""

    value: T | None = None
    """None when there are problems."""
    problems: list[Problem] = field(default_factory=list)
    cautions: list[Caution] = field(default_factory=list)

    def unwrap(self, cautions: list[Caution] | None = None) -> T:
        """The value. Raises ManifestError; cautions are added to the list that is given."""
        if cautions is not None:
            cautions.extend(self.cautions)
        if self.value is None:
            raise ManifestError(self.problems)
        return self.value


def whole_file(file: str, message: str, hint: str = "") -> Problem:
    """A problem of the file as a whole."""
    return Problem(file, 0, 0, "", message, hint)


def in_order(*parts: list[Problem]) -> list[Problem]:
    """The problems part by part, each part in the order of the file, none twice."""
    ordered: dict[tuple[int, int, str, str], Problem] = {}
    for part in parts:
        for problem in sorted(part):
            ordered.setdefault(
                (problem.line, problem.column, problem.path, problem.message), problem
            )
    return list(ordered.values())


def shown(path: KeyPath) -> str:
    """A path as messages show it: `implements[0].version`."""
    return format_path(path)
