"""Reads a folder of schemas: which files there are, and whose they are. The only room that looks at
a disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from interlock.contracts.schemas.artefacts import Kind, Known, known
from interlock.contracts.schemas.problems import Problem, SchemasWrong
from interlock.contracts.schemas.reader import MOST_BYTES

PATTERNS: Final[tuple[tuple[Kind, str], ...]] = (
    ("proto", "proto/**/*.proto"),
    ("json", "json/**/*.schema.json"),
    ("openapi", "openapi/**/*.yaml"),
    ("python", "python/**/*.py"),
)
"""What is looked for, below the folder."""
_MOST_FILES: Final = 10_000
_LOOKS_LIKE: Final = frozenset({".json", ".proto", ".yaml", ".yml"})


class Found(msgspec.Struct, frozen=True):
    """One file."""

    path: str
    """Relative to the folder."""
    kind: Kind
    text: str
    known: Known | None
    """Where it comes from, if it is generated. None: it is a source."""

    @property
    def generated(self) -> bool:
        return self.known is not None


def discover(folder: Path) -> list[Found]:
    """Every schema of a folder, in the order of their paths. Raises SchemasWrong for what cannot be
    read."""
    if not folder.is_dir():
        raise SchemasWrong(
            [
                Problem(
                    str(folder), "there is no such folder: it has proto/, json/ or openapi/ in it"
                )
            ]
        )
    found, problems = [], []
    for kind, path in _paths(folder):
        name = path.relative_to(folder).as_posix()
        try:
            text = _read(path, folder)
        except ValueError as wrong:
            problems.append(Problem(name, str(wrong)))
            continue
        about = known(name, text)
        if kind == "python" and about is None:
            # Somebody's own program.
            continue
        found.append(Found(name, kind, text, about))
    if problems:
        raise SchemasWrong(problems)
    return found


def passed_over(folder: Path) -> list[str]:
    """Files that look like schemas and are not taken for any, because of their names."""
    taken = {path for _, path in _paths(folder)}
    return sorted(
        path.relative_to(folder).as_posix()
        for kind, _ in PATTERNS
        for path in (folder / kind).rglob("*")
        if path.suffix in _LOOKS_LIKE and kind != "python" and path not in taken
    )


def _paths(folder: Path) -> Iterator[tuple[Kind, Path]]:
    count = 0
    for kind, pattern in PATTERNS:
        for path in sorted(folder.glob(pattern)):
            if not path.is_file() and not path.is_symlink():
                continue
            count += 1
            if count > _MOST_FILES:
                raise SchemasWrong(
                    [Problem(str(folder), f"there are more than {_MOST_FILES} files in it")]
                )
            yield kind, path


def _read(path: Path, folder: Path) -> str:
    """Raises ValueError, with a sentence."""
    try:
        if not path.resolve(strict=True).is_relative_to(folder.resolve()):
            raise ValueError("it leads out of the folder")
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES // 1024 // 1024} MB")
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is no UTF-8 text") from None
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None
