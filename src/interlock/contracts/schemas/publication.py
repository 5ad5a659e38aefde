"""The contracts that a build publishes in a registry: each description under the name of its
type. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Literal

import msgspec

from interlock.contracts.schemas.build import BuildResult
from interlock.contracts.schemas.json_schema import Schema
from interlock.contracts.schemas.proto import local_name

VERSION_KEY = "x-version"
"""The member with the version of a JSON Schema that was written by hand."""
_DEFAULT_DOMAIN = "schemas"
"""The domain of schemas that are in no subfolder."""


class Publication(msgspec.Struct, frozen=True):
    """One description of one type."""

    name: str
    domain: str
    protocol: Literal["json-schema", "protobuf", "openapi"]
    document: bytes
    source: str
    version: str = ""
    """Empty: the source declares no version. The registry then assigns the version that the
    change requires."""


def list_publications(result: BuildResult) -> list[Publication]:
    """Return every type and API of a build, in each language that describes it."""
    return [
        *_protobuf_publications(result),
        *_generated_publications(result),
        *_canonical_publications(result),
    ]


def _protobuf_publications(result: BuildResult) -> Iterator[Publication]:
    for name, text in result.sources.protos.items():
        file = result.protos.files[name]
        api = result.protos.api(file.package)
        yield Publication(
            name=name,
            domain=file.package or _DEFAULT_DOMAIN,
            protocol="protobuf",
            document=text.encode(),
            source=f"proto/{name}",
            version=api.version if api.title else "",
        )


def _generated_publications(result: BuildResult) -> Iterator[Publication]:
    for artefact in result.artefacts:
        if artefact.document is None:
            continue
        message = result.protos.messages.get(artefact.type)
        package = (
            artefact.type
            if artefact.kind == "openapi"
            else ""
            if message is None
            else message.package
        )
        declares_version = (
            bool(result.protos.api(package).title) if package else bool(artefact.version)
        )
        yield Publication(
            name=local_name(artefact.type, package)
            if artefact.kind == "json"
            else artefact.type or "api",
            domain=package or _DEFAULT_DOMAIN,
            protocol="json-schema" if artefact.kind == "json" else "openapi",
            document=_encode(artefact.document),
            source=artefact.source,
            version=artefact.version if declares_version else "",
        )


def _canonical_publications(result: BuildResult) -> Iterator[Publication]:
    for type in result.sources.types:
        version = type.schema.get(VERSION_KEY)
        yield Publication(
            name=type.name,
            domain=_folder(type.file),
            protocol="json-schema",
            document=_encode(type.schema),
            source=type.file,
            version=version if isinstance(version, str) else "",
        )
    for api in result.sources.apis:
        info = api.document["info"]
        yield Publication(
            name=info["title"],
            domain=_folder(api.file),
            protocol="openapi",
            document=_encode(api.document),
            source=api.file,
            version=info["version"],
        )


def _folder(file: str) -> str:
    """Return the domain of a file: `json/tools/search.schema.json` → `tools`."""
    return ".".join(PurePosixPath(file).parent.parts[1:]) or _DEFAULT_DOMAIN


def _encode(document: Schema) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()
