"""The schema pipeline: generates all files from a folder of schemas, and reports problems. It
writes nothing.

The steps are discover, compile, generate, validate and compare, in the order of the specification
(4.6.3). The caller writes, publishes and reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from interlock.contracts.schemas import openapi, params, python_client, wrappers
from interlock.contracts.schemas.artefacts import Artefact, commented_text, json_text, yaml_text
from interlock.contracts.schemas.drift import TypeDescription, find_differences, format_drift
from interlock.contracts.schemas.json_schema import Schema, message_schema
from interlock.contracts.schemas.openapi import find_problems
from interlock.contracts.schemas.proto import ProtoFiles
from interlock.contracts.schemas.protobuf_compiler import compile_protos
from interlock.contracts.schemas.reader import SchemaError, SchemaProblem, read_json, read_yaml
from interlock.contracts.schemas.sources import (
    PROTO_ROOT,
    SchemaFile,
    Sources,
    discover,
    find_ignored_files,
    read_sources,
    schema_problems,
)

_BUILD_COMMAND: Final = "interlock contracts build"


class FileEntry(msgspec.Struct, frozen=True):
    """A file that a build read or generated."""

    path: str
    kind: str
    source: str = ""
    """The source from which it is generated. Empty: it is canonical."""


class BuildResult(msgspec.Struct, frozen=True):
    """The result of a build."""

    sources: Sources
    protos: ProtoFiles
    files: list[FileEntry]
    artefacts: list[Artefact]
    changed: list[str]
    """Generated files that are missing on disk or differ."""
    obsolete: list[str]
    """Generated files without a source."""
    ignored: list[str]
    """Files that look like schemas but are ignored because of their names."""
    problems: list[SchemaProblem]
    """Problems that forbid writing."""
    generation_duration: float
    """Seconds."""

    @property
    def schema_count(self) -> int:
        """The number of descriptions of types and APIs, without programs."""
        return sum(1 for file in self.files if file.kind != "python")

    @property
    def drift_violations(self) -> int:
        return sum(1 for problem in self.problems if problem.drift)

    def find_outdated(self) -> list[SchemaProblem]:
        """Return the problems of a check: files that a build would write or remove."""
        by_path = {artefact.path: artefact for artefact in self.artefacts}
        sources = {file.path: file.source for file in self.files}
        reported = {problem.file for problem in self.problems}
        outdated = [
            SchemaProblem(
                path, f"it differs from its source {by_path[path].source}. Run `{_BUILD_COMMAND}`"
            )
            for path in self.changed
            if path not in reported
        ]
        obsolete = [
            SchemaProblem(
                path,
                f"{sources.get(path, 'its source')} no longer generates it. Run `{_BUILD_COMMAND}`",
            )
            for path in self.obsolete
        ]
        return outdated + obsolete


def build_all(
    folder: Path, out: Path | None = None, *, clock: Callable[[], float] = time.perf_counter
) -> BuildResult:
    """Generate everything from the schemas of a folder.

    Args:
        out: the folder of the generated files, if it is another one.

    Raises:
        SchemaError: The schemas cannot be used.
        InterlockError: The Protobuf compiler is not installed.
    """
    started_at = clock()
    source_files = discover(folder)
    existing_files = (
        source_files if out is None or out == folder else discover(out) if out.is_dir() else []
    )
    generated_files = [file for file in existing_files if file.is_generated]
    sources = read_sources(source_files)
    proto_artefacts = list(_generate_protos(sources))
    texts = {artefact.path.removeprefix(PROTO_ROOT): artefact.text for artefact in proto_artefacts}
    protos = compile_protos({**texts, **sources.protos}).only(sources.protos)
    artefacts = [
        *_generate_from_protos(protos),
        *proto_artefacts,
        *_generate_parameters(sources),
    ]
    artefacts += list(_generate_clients(sources, artefacts))
    _check_generated(artefacts)
    problems = [
        *_find_conflicts(artefacts, source_files),
        *find_edited(generated_files, artefacts),
        *find_language_drift(sources, protos),
        *find_parameter_drift(sources, artefacts),
    ]
    existing_texts = {file.path: file.text for file in generated_files}
    generated_paths = {artefact.path for artefact in artefacts}
    return BuildResult(
        sources=sources,
        protos=protos,
        files=_list_files(source_files, artefacts),
        artefacts=artefacts,
        changed=[
            artefact.path
            for artefact in artefacts
            if existing_texts.get(artefact.path) != artefact.text
        ],
        ignored=find_ignored_files(folder),
        obsolete=[file.path for file in generated_files if file.path not in generated_paths],
        problems=problems,
        generation_duration=clock() - started_at,
    )


# -- generating


def _generate_from_protos(protos: ProtoFiles) -> Iterator[Artefact]:
    for package in protos.packages():
        version = protos.api(package).version
        folder = f"json/{package.replace('.', '/')}".rstrip("/")
        for file in protos.package_files(package):
            source = f"{PROTO_ROOT}{file.name}"
            for message in file.messages:
                if "." in message.name:
                    # A nested message is part of the schema of the message around it.
                    continue
                schema = message_schema(protos, message)
                yield Artefact(
                    path=f"{folder}/{message.name}.schema.json",
                    kind="json",
                    type=message.full_name,
                    version=version,
                    source=source,
                    text=json_text(schema, source),
                    document=schema,
                )
        if openapi.has_api(protos, package):
            sources = [file.name for file in protos.package_files(package) if file.services]
            source = f"{PROTO_ROOT}{sources[0]}"
            document = openapi.document(protos, package)
            yield Artefact(
                path=f"openapi/{package or 'api'}.yaml",
                kind="openapi",
                type=package,
                version=version,
                source=source,
                text=yaml_text(document, source),
                document=document,
            )


def _generate_protos(sources: Sources) -> Iterator[Artefact]:
    """Generate Protobuf for types that are described in another language."""
    for type_source in sources.types:
        text = commented_text(
            "",
            wrappers.format_wrapper(type_source.file, type_source.schema),
            type_source.file,
            "//",
        )
        path = f"{PROTO_ROOT}{wrappers.wrapper_path(type_source.file)}"
        yield Artefact(path, "proto", type_source.name, "", type_source.file, text)
    for api in sources.apis:
        text = commented_text(
            "", wrappers.format_transcoding(api.file, api.document), api.file, "//"
        )
        path = f"{PROTO_ROOT}{wrappers.transcoding_path(api.file)}"
        title, version = api.document["info"]["title"], api.document["info"]["version"]
        yield Artefact(path, "proto", title, version, api.file, text)


def _generate_parameters(sources: Sources) -> Iterator[Artefact]:
    """Generate JSON Schemas for the parameters of canonical APIs."""
    type_names = {type_source.name for type_source in sources.types}
    for api in sources.apis:
        stem = api.file.removeprefix("openapi/").removesuffix(".yaml")
        for parameters in params.extract_parameters(api.document):
            if parameters.name in type_names or parameters.request_type in type_names:
                # The schema is canonical: `find_parameter_drift` compares them later.
                continue
            yield Artefact(
                path=f"json/{stem}/{parameters.name}.schema.json",
                kind="json",
                type=parameters.name,
                version=api.document["info"]["version"],
                source=api.file,
                text=json_text(parameters.schema, api.file),
                document=parameters.schema,
            )


def _generate_clients(sources: Sources, artefacts: Iterable[Artefact]) -> Iterator[Artefact]:
    documents = [(api.file, api.file, api.document) for api in sources.apis]
    documents += [
        (artefact.path, artefact.source, artefact.document)
        for artefact in artefacts
        if artefact.kind == "openapi" and artefact.document is not None
    ]
    for file, source, document in documents:
        head, body = python_client.make_module(document)
        yield Artefact(
            path=f"python/{python_client.module_name(file)}.py",
            kind="python",
            type=document["info"]["title"],
            version=document["info"]["version"],
            source=source,
            text=commented_text(head, body, source, "#"),
        )


# -- validation


def _check_generated(artefacts: Iterable[Artefact]) -> None:
    """Raise SchemaError for an invalid generated file, and for two files with one path."""
    problems: list[SchemaProblem] = []
    by_path: dict[str, Artefact] = {}
    for artefact in artefacts:
        other = by_path.setdefault(artefact.path, artefact)
        if other is not artefact:
            problems.append(
                SchemaProblem(
                    artefact.source, f"{artefact.path} would be generated from {other.source}, too"
                )
            )
        if artefact.kind == "json" and artefact.document is not None:
            problems += schema_problems(artefact.path, artefact.document)
        elif artefact.kind == "openapi" and artefact.document is not None:
            problems += [
                SchemaProblem(artefact.path, message)
                for message in find_problems(artefact.document)
            ]
    if problems:
        raise SchemaError(problems)


def _find_conflicts(
    artefacts: Iterable[Artefact], files: Iterable[SchemaFile]
) -> Iterator[SchemaProblem]:
    canonical_paths = {file.path for file in files if not file.is_generated}
    for artefact in artefacts:
        if artefact.path in canonical_paths:
            yield SchemaProblem(
                artefact.path,
                f"it has the path of a file that is generated from {artefact.source}, but no "
                "header of a generated file. Move it, or delete it and build again",
            )


def _list_files(files: Iterable[SchemaFile], artefacts: Iterable[Artefact]) -> list[FileEntry]:
    entries = {
        artefact.path: FileEntry(artefact.path, artefact.kind, artefact.source)
        for artefact in artefacts
    }
    for file in files:
        source = "" if file.header is None else file.header.provenance.source
        entries.setdefault(file.path, FileEntry(file.path, file.kind, source))
    return [entries[path] for path in sorted(entries)]


# -- Drift: types with several descriptions that differ. Pure.

_REPAIR_HINT = "make the change in {source}, or delete the file and build again"


def find_edited(
    generated: Iterable[SchemaFile], artefacts: Iterable[Artefact]
) -> Iterator[SchemaProblem]:
    """Yield the problems of generated files that were edited: the differences from their source."""
    by_path = {artefact.path: artefact for artefact in artefacts}
    for file in generated:
        if file.header is None or not file.header.is_edited:
            continue
        artefact = by_path.get(file.path)
        source = file.header.provenance.source
        messages = [] if artefact is None else list(_find_edits(file, artefact))
        for message in messages or ["it is generated, but was edited by hand"]:
            repair = _REPAIR_HINT.format(source=source)
            yield SchemaProblem(file.path, f"{message}: {repair}", drift=True)


def _find_edits(file: SchemaFile, artefact: Artefact) -> Iterator[str]:
    if artefact.document is None:
        return
    if file.kind == "json":
        document = read_json(file.path, file.text)
        differences = find_differences(
            TypeDescription(artefact.source, artefact.document, artefact.document),
            _describe(file.path, document),
        )
        if differences:
            yield format_drift(artefact.type, differences)
    elif file.kind == "openapi":
        document = read_yaml(file.path, file.text)
        yield from _compare_components(file.path, document, artefact)


def _compare_components(path: str, document: Schema, artefact: Artefact) -> Iterator[str]:
    assert artefact.document is not None
    generated_schemas, edited_schemas = (
        _component_schemas(artefact.document),
        _component_schemas(document),
    )
    for name in dict.fromkeys([*generated_schemas, *edited_schemas]):
        if name not in generated_schemas or name not in edited_schemas:
            location = artefact.source if name in generated_schemas else path
            yield format_drift(name, [f"it is in {location} only"])
            continue
        left = TypeDescription(artefact.source, generated_schemas[name], artefact.document)
        differences = find_differences(left, TypeDescription(path, edited_schemas[name], document))
        if differences:
            yield format_drift(name, differences)


def find_language_drift(sources: Sources, protos: ProtoFiles) -> Iterator[SchemaProblem]:
    """Yield the types that are canonical in several languages and differ."""
    known_types: dict[str, TypeDescription] = {}
    for message in protos.messages.values():
        if message.file in protos.files:
            schema = message_schema(protos, message)
            description = TypeDescription(f"proto/{message.file}", schema, schema)
            known_types[message.full_name] = description
            # The short name is an alias, unless another type has it.
            known_types.setdefault(message.name, description)
    for type_source in sources.types:
        yield from _compare_with_known(
            known_types, type_source.name, _describe(type_source.file, type_source.schema)
        )
        known_types.setdefault(type_source.name, _describe(type_source.file, type_source.schema))
    for api in sources.apis:
        for name, schema in _component_schemas(api.document).items():
            description = TypeDescription(f"{api.file} ({name})", schema, api.document)
            yield from _compare_with_known(known_types, name, description)


def find_parameter_drift(
    sources: Sources, artefacts: Iterable[Artefact]
) -> Iterator[SchemaProblem]:
    """Yield the parameters of operations that a JSON Schema describes differently."""
    schemas: dict[str, tuple[str, Schema]] = {}
    documents = [(api.file, api.document) for api in sources.apis]
    for artefact in artefacts:
        if artefact.document is None:
            continue
        if artefact.kind == "json":
            schemas[artefact.type] = (artefact.source, artefact.document)
        elif artefact.kind == "openapi":
            documents.append((artefact.path, artefact.document))
    schemas |= {
        type_source.name: (type_source.file, type_source.schema) for type_source in sources.types
    }
    for file, document in documents:
        for name, differences in params.find_parameter_drift(file, document, schemas):
            yield SchemaProblem(file, format_drift(name, differences), drift=True)


def _compare_with_known(
    known_types: dict[str, TypeDescription], name: str, description: TypeDescription
) -> Iterator[SchemaProblem]:
    other = known_types.get(name)
    if other is None:
        return
    differences = find_differences(other, description)
    if differences:
        yield SchemaProblem(
            description.location.partition(" ")[0], format_drift(name, differences), drift=True
        )


def _describe(location: str, schema: Schema) -> TypeDescription:
    return TypeDescription(location, schema, schema)


def _component_schemas(document: Schema) -> dict[str, Schema]:
    components = document.get("components")
    schemas = components.get("schemas") if isinstance(components, dict) else None
    return schemas if isinstance(schemas, dict) else {}
