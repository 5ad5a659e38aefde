"""What of a run goes into a registry of contracts: each description under the name of its type.
Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Literal

import msgspec

from interlock.contracts.schemas.build import BuildResult
from interlock.contracts.schemas.json_schema import Schema
from interlock.contracts.schemas.proto import local_name

VERSION = "x-version"
"""In a JSON Schema that somebody wrote: its version."""
_ELSEWHERE = "schemas"
"""The domain of what lies in no folder of its own."""


class Publication(msgspec.Struct, frozen=True):
    """One description of one type."""

    name: str
    domain: str
    protocol: Literal["json-schema", "protobuf", "openapi"]
    document: bytes
    source: str
    version: str = ""
    """Empty: its author said none, and it gets the one that its change asks for."""


def publications(built: BuildResult) -> list[Publication]:
    """Every type and API of a run, whichever language describes it."""
    return [*_protobuf(built), *_generated(built), *_written(built)]


def _protobuf(built: BuildResult) -> Iterator[Publication]:
    for name, text in built.sources.protos.items():
        file = built.protos.files[name]
        api = built.protos.api(file.package)
        yield Publication(
            name=name,
            domain=file.package or _ELSEWHERE,
            protocol="protobuf",
            document=text.encode(),
            source=f"proto/{name}",
            version=api.version if api.title else "",
        )


def _generated(built: BuildResult) -> Iterator[Publication]:
    for one in built.artefacts:
        if one.document is None:
            continue
        message = built.protos.messages.get(one.type)
        package = one.type if one.kind == "openapi" else "" if message is None else message.package
        said = bool(built.protos.api(package).title) if package else bool(one.version)
        yield Publication(
            name=local_name(one.type, package) if one.kind == "json" else one.type or "api",
            domain=package or _ELSEWHERE,
            protocol="json-schema" if one.kind == "json" else "openapi",
            document=_encoded(one.document),
            source=one.source,
            version=one.version if said else "",
        )


def _written(built: BuildResult) -> Iterator[Publication]:
    for type in built.sources.types:
        version = type.schema.get(VERSION)
        yield Publication(
            name=type.name,
            domain=_folder(type.file),
            protocol="json-schema",
            document=_encoded(type.schema),
            source=type.file,
            version=version if isinstance(version, str) else "",
        )
    for api in built.sources.apis:
        info = api.document["info"]
        yield Publication(
            name=info["title"],
            domain=_folder(api.file),
            protocol="openapi",
            document=_encoded(api.document),
            source=api.file,
            version=info["version"],
        )


def _folder(file: str) -> str:
    """`json/tools/search.schema.json` → `tools`."""
    return ".".join(PurePosixPath(file).parent.parts[1:]) or _ELSEWHERE


def _encoded(document: Schema) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()
