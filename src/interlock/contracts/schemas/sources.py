"""The canonical schemas of a folder, from which all other files are generated.

A file that does not name a source is canonical. Protobuf is compiled later, together with the files
that are generated for it. Only `discover` and `find_ignored_files` read the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import msgspec

from interlock.contracts.schemas.artefacts import ArtefactHeader, ArtefactKind, read_header
from interlock.contracts.schemas.json_schema import DIALECT, Schema
from interlock.contracts.schemas.openapi import find_problems
from interlock.contracts.schemas.reader import (
    MAX_FILE_BYTES,
    SchemaError,
    SchemaProblem,
    read_json,
    read_yaml,
)
from interlock.contracts.schemas.wrappers import type_name

PROTO_ROOT = "proto/"


class TypeSource(msgspec.Struct, frozen=True):
    """A canonical JSON Schema."""

    file: str
    name: str
    schema: Schema


class ApiSource(msgspec.Struct, frozen=True):
    """A canonical OpenAPI document."""

    file: str
    document: Schema


class Sources(msgspec.Struct, frozen=True):
    """All canonical schemas."""

    protos: dict[str, str]
    """The text of each `.proto` file, by its import name."""
    types: list[TypeSource]
    apis: list[ApiSource]


def read_sources(files: Iterable[SchemaFile]) -> Sources:
    """Read the canonical files. Raises SchemaError with all problems."""
    sources = Sources({}, [], [])
    problems: list[SchemaProblem] = []
    for file in files:
        if file.is_generated:
            continue
        try:
            if file.kind == "proto":
                sources.protos[file.path.removeprefix(PROTO_ROOT)] = file.text
            elif file.kind == "json":
                schema = read_json(file.path, file.text)
                problems += schema_problems(file.path, schema)
                sources.types.append(TypeSource(file.path, type_name(schema, file.path), schema))
            elif file.kind == "openapi":
                document = read_yaml(file.path, file.text)
                problems += [
                    SchemaProblem(file.path, message) for message in find_problems(document)
                ]
                sources.apis.append(ApiSource(file.path, document))
        except SchemaError as error:
            problems += error.problems
    if problems:
        raise SchemaError(problems)
    return sources


def schema_problems(file: str, schema: Schema) -> list[SchemaProblem]:
    """Return the problems of a JSON Schema: check it against its meta-schema and compile it."""
    dialect = schema.get("$schema", DIALECT)
    if dialect != DIALECT:
        return [SchemaProblem(file, f"$schema must be {DIALECT}. Found {dialect}")]
    try:
        jsonschema_rs.meta.validate({**schema, "$schema": DIALECT})
        # Compile it, too: no meta-schema checks patterns and the targets of `$ref`.
        jsonschema_rs.Draft202012Validator(schema, retriever=_reject_retrieval)
    except jsonschema_rs.ValidationError as error:
        location = ".".join(str(step) for step in error.instance_path) or "the schema"
        return [SchemaProblem(file, f"{location}: {_first_line(error.message)}")]
    except (jsonschema_rs.ReferencingError, ValueError, RecursionError) as error:
        return [SchemaProblem(file, _first_line(str(error)))]
    return []


def _reject_retrieval(uri: str) -> Any:
    raise ValueError(
        f"it refers to {uri}, and external schemas are not fetched: put it under $defs"
    )


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:500]


# -- Discovery of schema files: the only code here that reads the disk.

PATTERNS: Final[tuple[tuple[ArtefactKind, str], ...]] = (
    ("proto", "proto/**/*.proto"),
    ("json", "json/**/*.schema.json"),
    ("openapi", "openapi/**/*.yaml"),
    ("python", "python/**/*.py"),
)
"""The kind and the file name pattern of schemas, below the folder."""
_MAX_FILES: Final = 10_000
_SCHEMA_ENDINGS: Final = frozenset({".json", ".proto", ".yaml", ".yml"})


class SchemaFile(msgspec.Struct, frozen=True):
    """A schema file on disk."""

    path: str
    """The path, relative to the folder."""
    kind: ArtefactKind
    text: str
    header: ArtefactHeader | None
    """The header of a generated file. None: the file is a source."""

    @property
    def is_generated(self) -> bool:
        return self.header is not None


def discover(folder: Path) -> list[SchemaFile]:
    """Return all schema files of a folder, sorted by path. Raises SchemaError for unreadable
    files."""
    if not folder.is_dir():
        raise SchemaError(
            [
                SchemaProblem(
                    str(folder),
                    "the folder does not exist. Name a folder with proto/, json/ or openapi/",
                )
            ]
        )
    files, problems = [], []
    for kind, path in _paths(folder):
        name = path.relative_to(folder).as_posix()
        try:
            text = _read(path, folder)
        except ValueError as error:
            problems.append(SchemaProblem(name, str(error)))
            continue
        header = read_header(name, text)
        if kind == "python" and header is None:
            # A program that was not generated.
            continue
        files.append(SchemaFile(name, kind, text, header))
    if problems:
        raise SchemaError(problems)
    return files


def find_ignored_files(folder: Path) -> list[str]:
    """Return files that look like schemas but are ignored because of their names."""
    schema_paths = {path for _, path in _paths(folder)}
    return sorted(
        path.relative_to(folder).as_posix()
        for kind, _ in PATTERNS
        for path in (folder / kind).rglob("*")
        if path.suffix in _SCHEMA_ENDINGS and kind != "python" and path not in schema_paths
    )


def _paths(folder: Path) -> Iterator[tuple[ArtefactKind, Path]]:
    count = 0
    for kind, pattern in PATTERNS:
        for path in sorted(folder.glob(pattern)):
            if not path.is_file() and not path.is_symlink():
                continue
            count += 1
            if count > _MAX_FILES:
                raise SchemaError(
                    [SchemaProblem(str(folder), f"the folder has more than {_MAX_FILES} files")]
                )
            yield kind, path


def _read(path: Path, folder: Path) -> str:
    """Read a file. Raises ValueError with a message for the user."""
    try:
        if not path.resolve(strict=True).is_relative_to(folder.resolve()):
            raise ValueError("the file is a link to a place outside the folder")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"the file has more than {MAX_FILE_BYTES // 1024 // 1024} MB")
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8 text") from None
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error.strerror}") from None
