"""The canonical schemas of a folder, read and checked: what all others are generated from. Pure.

A file that names no source is one. Protobuf is only compiled later, together with what is generated
for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import msgspec

from interlock.contracts.schemas.artefacts import ArtefactHeader, ArtefactKind, known
from interlock.contracts.schemas.json_schema import DIALECT, Schema
from interlock.contracts.schemas.openapi import faults
from interlock.contracts.schemas.reader import (
    MOST_BYTES,
    SchemaError,
    SchemaProblem,
    read_json,
    read_yaml,
)
from interlock.contracts.schemas.wrappers import type_name

PROTO_ROOT = "proto/"


class TypeSource(msgspec.Struct, frozen=True):
    """A JSON Schema that somebody wrote."""

    file: str
    name: str
    schema: Schema


class ApiSource(msgspec.Struct, frozen=True):
    """An OpenAPI document that somebody wrote."""

    file: str
    document: Schema


class Sources(msgspec.Struct, frozen=True):
    """All that is canonical."""

    protos: dict[str, str]
    """Texts, by the names by which they import each other."""
    types: list[TypeSource]
    apis: list[ApiSource]


def read_sources(found: Iterable[SchemaFile]) -> Sources:
    """Raises SchemaError, with everything that is wrong."""
    sources = Sources({}, [], [])
    problems: list[SchemaProblem] = []
    for one in found:
        if one.generated:
            continue
        try:
            if one.kind == "proto":
                sources.protos[one.path.removeprefix(PROTO_ROOT)] = one.text
            elif one.kind == "json":
                schema = read_json(one.path, one.text)
                problems += schema_problems(one.path, schema)
                sources.types.append(TypeSource(one.path, type_name(schema, one.path), schema))
            elif one.kind == "openapi":
                document = read_yaml(one.path, one.text)
                problems += [SchemaProblem(one.path, fault) for fault in faults(document)]
                sources.apis.append(ApiSource(one.path, document))
        except SchemaError as wrong:
            problems += wrong.problems
    if problems:
        raise SchemaError(problems)
    return sources


def schema_problems(file: str, schema: Schema) -> list[SchemaProblem]:
    """What is wrong with a JSON Schema, by its meta-schema and by trying to use it."""
    dialect = schema.get("$schema", DIALECT)
    if dialect != DIALECT:
        return [
            SchemaProblem(file, f"$schema: only {DIALECT} is generated from, and this is {dialect}")
        ]
    try:
        jsonschema_rs.meta.validate({**schema, "$schema": DIALECT})
        # Also what no meta-schema says: a pattern that is none, a `$ref` that leads nowhere.
        jsonschema_rs.Draft202012Validator(schema, retriever=_nothing)
    except jsonschema_rs.ValidationError as wrong:
        where = ".".join(str(one) for one in wrong.instance_path) or "the schema"
        return [SchemaProblem(file, f"{where}: {_first_line(wrong.message)}")]
    except (jsonschema_rs.ReferencingError, ValueError, RecursionError) as wrong:
        return [SchemaProblem(file, _first_line(str(wrong)))]
    return []


def _nothing(uri: str) -> Any:
    raise ValueError(f"it refers to {uri}, and nothing is fetched: put it under $defs")


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:500]


# -- Reads a folder of schemas: which files there are, and whose they are. The only code that looks
# at a disk.

PATTERNS: Final[tuple[tuple[ArtefactKind, str], ...]] = (
    ("proto", "proto/**/*.proto"),
    ("json", "json/**/*.schema.json"),
    ("openapi", "openapi/**/*.yaml"),
    ("python", "python/**/*.py"),
)
"""What is looked for, below the folder."""
_MOST_FILES: Final = 10_000
_LOOKS_LIKE: Final = frozenset({".json", ".proto", ".yaml", ".yml"})


class SchemaFile(msgspec.Struct, frozen=True):
    """One file."""

    path: str
    """Relative to the folder."""
    kind: ArtefactKind
    text: str
    known: ArtefactHeader | None
    """Where it comes from, if it is generated. None: it is a source."""

    @property
    def generated(self) -> bool:
        return self.known is not None


def discover(folder: Path) -> list[SchemaFile]:
    """Every schema of a folder, in the order of their paths. Raises SchemaError for what cannot be
    read."""
    if not folder.is_dir():
        raise SchemaError(
            [
                SchemaProblem(
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
            problems.append(SchemaProblem(name, str(wrong)))
            continue
        about = known(name, text)
        if kind == "python" and about is None:
            # Somebody's own program.
            continue
        found.append(SchemaFile(name, kind, text, about))
    if problems:
        raise SchemaError(problems)
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


def _paths(folder: Path) -> Iterator[tuple[ArtefactKind, Path]]:
    count = 0
    for kind, pattern in PATTERNS:
        for path in sorted(folder.glob(pattern)):
            if not path.is_file() and not path.is_symlink():
                continue
            count += 1
            if count > _MOST_FILES:
                raise SchemaError(
                    [SchemaProblem(str(folder), f"there are more than {_MOST_FILES} files in it")]
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
