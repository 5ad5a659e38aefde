"""The pipeline: from a folder of schemas to everything that is generated from them, and to what is
wrong with either. Nothing is written here.

Discover, compile, generate, validate, hold against each other; whoever runs it writes, publishes
and tells. The order is that of the specification (4.6.3).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from interlock.contracts.schemas import openapi, params, python_client, wrappers
from interlock.contracts.schemas.artefacts import Artefact, commented_text, json_text, yaml_text
from interlock.contracts.schemas.drift import TypeDescription, differences, sentence
from interlock.contracts.schemas.json_schema import Schema, schema_of
from interlock.contracts.schemas.openapi import faults
from interlock.contracts.schemas.proto import ProtoFiles
from interlock.contracts.schemas.protobuf_compiler import compile_protos
from interlock.contracts.schemas.reader import SchemaError, SchemaProblem, read_json, read_yaml
from interlock.contracts.schemas.sources import (
    PROTO_ROOT,
    SchemaFile,
    Sources,
    discover,
    passed_over,
    read_sources,
    schema_problems,
)

_BUILD: Final = "interlock contracts build"


class FileEntry(msgspec.Struct, frozen=True):
    """One file that the pipeline found or made."""

    path: str
    kind: str
    source: str = ""
    """What it is generated from. Empty: it is canonical."""


class BuildResult(msgspec.Struct, frozen=True):
    """What came of a run."""

    sources: Sources
    protos: ProtoFiles
    files: list[FileEntry]
    artefacts: list[Artefact]
    written: list[str]
    """Artefacts that are not on the disk, or not so."""
    left_over: list[str]
    """Generated files that nothing generates any more."""
    passed_over: list[str]
    """Files with names by which nobody looks for schemas."""
    problems: list[SchemaProblem]
    """Why nothing may be written."""
    generation_duration: float
    """Seconds."""

    @property
    def schema_count(self) -> int:
        """Descriptions of types and APIs; programs do not count."""
        return sum(1 for one in self.files if one.kind != "python")

    @property
    def drift_violations(self) -> int:
        return sum(1 for one in self.problems if one.drift)

    def differing(self) -> list[SchemaProblem]:
        """What a check finds: that the disk is not as a build would leave it."""
        by_path = {one.path: one for one in self.artefacts}
        sources = {one.path: one.source for one in self.files}
        blamed = {one.file for one in self.problems}
        return [
            SchemaProblem(one, f"it is not what {by_path[one].source} gives: run `{_BUILD}`")
            for one in self.written
            if one not in blamed
        ] + [
            SchemaProblem(
                one, f"{sources.get(one, 'its source')} does not give it any more: run `{_BUILD}`"
            )
            for one in self.left_over
        ]


def build_all(
    folder: Path, out: Path | None = None, *, clock: Callable[[], float] = time.perf_counter
) -> BuildResult:
    """Everything that the schemas of a folder give. `out`: where generated files lie, if that is
    another folder. Raises SchemaError for schemas that nothing can be generated from, and
    InterlockError without a compiler for Protobuf."""
    began = clock()
    found = discover(folder)
    lying = found if out is None or out == folder else discover(out) if out.is_dir() else []
    generated = [one for one in lying if one.generated]
    sources = read_sources(found)
    carried = list(_for_protobuf(sources))
    texts = {one.path.removeprefix(PROTO_ROOT): one.text for one in carried}
    protos = compile_protos({**texts, **sources.protos}).only(sources.protos)
    artefacts = [*_from_protos(protos), *carried, *_params(sources)]
    artefacts += list(_clients(sources, artefacts))
    _check_made(artefacts)
    problems = [
        *_in_the_way(artefacts, found),
        *edited(generated, artefacts),
        *across_languages(sources, protos),
        *of_params(sources, artefacts),
    ]
    texts_there = {one.path: one.text for one in generated}
    made = {one.path for one in artefacts}
    return BuildResult(
        sources=sources,
        protos=protos,
        files=_rows(found, artefacts),
        artefacts=artefacts,
        written=[one.path for one in artefacts if texts_there.get(one.path) != one.text],
        passed_over=passed_over(folder),
        left_over=[one.path for one in generated if one.path not in made],
        problems=problems,
        generation_duration=clock() - began,
    )


# -- generating


def _from_protos(protos: ProtoFiles) -> Iterator[Artefact]:
    for package in protos.packages():
        version = protos.api(package).version
        folder = f"json/{package.replace('.', '/')}".rstrip("/")
        for file in protos.of_package(package):
            source = f"{PROTO_ROOT}{file.name}"
            for message in file.messages:
                if "." in message.name:
                    # It stands in the schema of the one that it is in.
                    continue
                schema = schema_of(protos, message)
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
            sources = [one.name for one in protos.of_package(package) if one.services]
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


def _for_protobuf(sources: Sources) -> Iterator[Artefact]:
    """Protobuf for what is described elsewhere."""
    for one in sources.types:
        text = commented_text("", wrappers.wrapper(one.file, one.schema), one.file, "//")
        path = f"{PROTO_ROOT}{wrappers.wrapper_path(one.file)}"
        yield Artefact(path, "proto", one.name, "", one.file, text)
    for api in sources.apis:
        text = commented_text("", wrappers.transcoding(api.file, api.document), api.file, "//")
        path = f"{PROTO_ROOT}{wrappers.transcoding_path(api.file)}"
        title, version = api.document["info"]["title"], api.document["info"]["version"]
        yield Artefact(path, "proto", title, version, api.file, text)


def _params(sources: Sources) -> Iterator[Artefact]:
    """JSON Schemas for the parameters of APIs that somebody wrote."""
    there = {one.name for one in sources.types}
    for api in sources.apis:
        stem = api.file.removeprefix("openapi/").removesuffix(".yaml")
        for one in params.extract(api.document):
            if one.name in there or one.request_type in there:
                # Its author wrote it; that both agree is looked at later.
                continue
            yield Artefact(
                path=f"json/{stem}/{one.name}.schema.json",
                kind="json",
                type=one.name,
                version=api.document["info"]["version"],
                source=api.file,
                text=json_text(one.schema, api.file),
                document=one.schema,
            )


def _clients(sources: Sources, artefacts: Iterable[Artefact]) -> Iterator[Artefact]:
    documents = [(one.file, one.file, one.document) for one in sources.apis]
    documents += [
        (one.path, one.source, one.document)
        for one in artefacts
        if one.kind == "openapi" and one.document is not None
    ]
    for file, source, document in documents:
        head, body = python_client.module(document)
        yield Artefact(
            path=f"python/{python_client.module_name(file)}.py",
            kind="python",
            type=document["info"]["title"],
            version=document["info"]["version"],
            source=source,
            text=commented_text(head, body, source, "#"),
        )


# -- validating


def _check_made(artefacts: Iterable[Artefact]) -> None:
    """Raises SchemaError where a generated file is not what it should be, or two are one."""
    problems: list[SchemaProblem] = []
    by_path: dict[str, Artefact] = {}
    for one in artefacts:
        other = by_path.setdefault(one.path, one)
        if other is not one:
            problems.append(
                SchemaProblem(one.source, f"{one.path} would be generated from {other.source} too")
            )
        if one.kind == "json" and one.document is not None:
            problems += schema_problems(one.path, one.document)
        elif one.kind == "openapi" and one.document is not None:
            problems += [SchemaProblem(one.path, fault) for fault in faults(one.document)]
    if problems:
        raise SchemaError(problems)


def _in_the_way(
    artefacts: Iterable[Artefact], found: Iterable[SchemaFile]
) -> Iterator[SchemaProblem]:
    own = {one.path for one in found if not one.generated}
    for one in artefacts:
        if one.path in own:
            yield SchemaProblem(
                one.path,
                f"it lies where a file is generated from {one.source}, and says nothing of that: "
                "move it away, or delete it and build again",
            )


def _rows(found: Iterable[SchemaFile], artefacts: Iterable[Artefact]) -> list[FileEntry]:
    rows = {one.path: FileEntry(one.path, one.kind, one.source) for one in artefacts}
    for one in found:
        source = "" if one.known is None else one.known.provenance.source
        rows.setdefault(one.path, FileEntry(one.path, one.kind, source))
    return [rows[path] for path in sorted(rows)]


# -- Holds every type that is described more than once against its other descriptions. Pure.

_REPAIR = "put the change into {source}, or delete the file and build again"


def edited(
    generated: Iterable[SchemaFile], artefacts: Iterable[Artefact]
) -> Iterator[SchemaProblem]:
    """Generated files that somebody edited: what they say now and their source does not."""
    by_path = {one.path: one for one in artefacts}
    for one in generated:
        if one.known is None or not one.known.edited:
            continue
        made = by_path.get(one.path)
        source = one.known.provenance.source
        told = [] if made is None else list(_edits(one, made))
        for message in told or ["it is generated, and was edited by hand"]:
            repair = _REPAIR.format(source=source)
            yield SchemaProblem(one.path, f"{message}: {repair}", drift=True)


def _edits(found: SchemaFile, made: Artefact) -> Iterator[str]:
    if made.document is None:
        return
    if found.kind == "json":
        now = read_json(found.path, found.text)
        diff = differences(
            TypeDescription(made.source, made.document, made.document), _whole(found.path, now)
        )
        if diff:
            yield sentence(made.type, diff)
    elif found.kind == "openapi":
        now = read_yaml(found.path, found.text)
        yield from _components(found.path, now, made)


def _components(path: str, now: Schema, made: Artefact) -> Iterator[str]:
    assert made.document is not None
    ours, theirs = _schemas(made.document), _schemas(now)
    for name in dict.fromkeys([*ours, *theirs]):
        if name not in ours or name not in theirs:
            where = made.source if name in ours else path
            yield sentence(name, [f"it is in {where} only"])
            continue
        left = TypeDescription(made.source, ours[name], made.document)
        diff = differences(left, TypeDescription(path, theirs[name], now))
        if diff:
            yield sentence(name, diff)


def across_languages(sources: Sources, protos: ProtoFiles) -> Iterator[SchemaProblem]:
    """Types that are canonical in more than one language, and are not the same there."""
    known: dict[str, TypeDescription] = {}
    for message in protos.messages.values():
        if message.file in protos.files:
            schema = schema_of(protos, message)
            side = TypeDescription(f"proto/{message.file}", schema, schema)
            known[message.full_name] = side
            # By its short name only where that is meant by nobody else.
            known.setdefault(message.name, side)
    for one in sources.types:
        yield from _against(known, one.name, _whole(one.file, one.schema))
        known.setdefault(one.name, _whole(one.file, one.schema))
    for api in sources.apis:
        for name, schema in _schemas(api.document).items():
            side = TypeDescription(f"{api.file} ({name})", schema, api.document)
            yield from _against(known, name, side)


def of_params(sources: Sources, artefacts: Iterable[Artefact]) -> Iterator[SchemaProblem]:
    """Parameters of operations that a JSON Schema describes otherwise."""
    schemas: dict[str, tuple[str, Schema]] = {}
    documents = [(one.file, one.document) for one in sources.apis]
    for made in artefacts:
        if made.document is None:
            continue
        if made.kind == "json":
            schemas[made.type] = (made.source, made.document)
        elif made.kind == "openapi":
            documents.append((made.path, made.document))
    schemas |= {one.name: (one.file, one.schema) for one in sources.types}
    for file, document in documents:
        for name, diff in params.disagreements(file, document, schemas):
            yield SchemaProblem(file, sentence(name, diff), drift=True)


def _against(
    known: dict[str, TypeDescription], name: str, side: TypeDescription
) -> Iterator[SchemaProblem]:
    other = known.get(name)
    if other is None:
        return
    diff = differences(other, side)
    if diff:
        yield SchemaProblem(side.where.partition(" ")[0], sentence(name, diff), drift=True)


def _whole(where: str, schema: Schema) -> TypeDescription:
    return TypeDescription(where, schema, schema)


def _schemas(document: Schema) -> dict[str, Schema]:
    components = document.get("components")
    schemas = components.get("schemas") if isinstance(components, dict) else None
    return schemas if isinstance(schemas, dict) else {}
