"""The canonical schemas of a folder, read and checked: what all others are generated from. Pure.

A file that names no source is one. Protobuf is only compiled later, together with what is generated
for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jsonschema_rs
import msgspec

from interlock.contracts.schemas.discovery import Found
from interlock.contracts.schemas.json_schema import DIALECT, Schema
from interlock.contracts.schemas.openapi_checks import faults
from interlock.contracts.schemas.problems import Problem, SchemasWrong
from interlock.contracts.schemas.reader import read_json, read_yaml
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


def read_sources(found: Iterable[Found]) -> Sources:
    """Raises SchemasWrong, with everything that is wrong."""
    sources = Sources({}, [], [])
    problems: list[Problem] = []
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
                problems += [Problem(one.path, fault) for fault in faults(document)]
                sources.apis.append(ApiSource(one.path, document))
        except SchemasWrong as wrong:
            problems += wrong.problems
    if problems:
        raise SchemasWrong(problems)
    return sources


def schema_problems(file: str, schema: Schema) -> list[Problem]:
    """What is wrong with a JSON Schema, by its meta-schema and by trying to use it."""
    dialect = schema.get("$schema", DIALECT)
    if dialect != DIALECT:
        return [Problem(file, f"$schema: only {DIALECT} is generated from, and this is {dialect}")]
    try:
        jsonschema_rs.meta.validate({**schema, "$schema": DIALECT})
        # Also what no meta-schema says: a pattern that is none, a `$ref` that leads nowhere.
        jsonschema_rs.Draft202012Validator(schema, retriever=_nothing)
    except jsonschema_rs.ValidationError as wrong:
        where = ".".join(str(one) for one in wrong.instance_path) or "the schema"
        return [Problem(file, f"{where}: {_first_line(wrong.message)}")]
    except (jsonschema_rs.ReferencingError, ValueError, RecursionError) as wrong:
        return [Problem(file, _first_line(str(wrong)))]
    return []


def _nothing(uri: str) -> Any:
    raise ValueError(f"it refers to {uri}, and nothing is fetched: put it under $defs")


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:500]
