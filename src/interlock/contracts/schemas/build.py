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
from interlock.contracts.schemas.cross_validation import across_languages, edited, of_params
from interlock.contracts.schemas.discovery import Found, discover, passed_over
from interlock.contracts.schemas.json_schema import schema_of
from interlock.contracts.schemas.openapi_checks import faults
from interlock.contracts.schemas.problems import Problem, SchemasWrong
from interlock.contracts.schemas.proto import Protos
from interlock.contracts.schemas.protobuf_compiler import compile_protos
from interlock.contracts.schemas.sources import PROTO_ROOT, Sources, read_sources, schema_problems

_BUILD: Final = "interlock contracts build"


class Row(msgspec.Struct, frozen=True):
    """One file that the pipeline found or made."""

    path: str
    kind: str
    source: str = ""
    """What it is generated from. Empty: it is canonical."""


class Built(msgspec.Struct, frozen=True):
    """What came of a run."""

    sources: Sources
    protos: Protos
    files: list[Row]
    artefacts: list[Artefact]
    written: list[str]
    """Artefacts that are not on the disk, or not so."""
    left_over: list[str]
    """Generated files that nothing generates any more."""
    passed_over: list[str]
    """Files with names by which nobody looks for schemas."""
    problems: list[Problem]
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

    def differing(self) -> list[Problem]:
        """What a check finds: that the disk is not as a build would leave it."""
        by_path = {one.path: one for one in self.artefacts}
        sources = {one.path: one.source for one in self.files}
        blamed = {one.file for one in self.problems}
        return [
            Problem(one, f"it is not what {by_path[one].source} gives: run `{_BUILD}`")
            for one in self.written
            if one not in blamed
        ] + [
            Problem(
                one, f"{sources.get(one, 'its source')} does not give it any more: run `{_BUILD}`"
            )
            for one in self.left_over
        ]


def build_all(
    folder: Path, out: Path | None = None, *, clock: Callable[[], float] = time.perf_counter
) -> Built:
    """Everything that the schemas of a folder give. `out`: where generated files lie, if that is
    another folder. Raises SchemasWrong for schemas that nothing can be generated from, and
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
    return Built(
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


def _from_protos(protos: Protos) -> Iterator[Artefact]:
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
    """Raises SchemasWrong where a generated file is not what it should be, or two are one."""
    problems: list[Problem] = []
    by_path: dict[str, Artefact] = {}
    for one in artefacts:
        other = by_path.setdefault(one.path, one)
        if other is not one:
            problems.append(
                Problem(one.source, f"{one.path} would be generated from {other.source} too")
            )
        if one.kind == "json" and one.document is not None:
            problems += schema_problems(one.path, one.document)
        elif one.kind == "openapi" and one.document is not None:
            problems += [Problem(one.path, fault) for fault in faults(one.document)]
    if problems:
        raise SchemasWrong(problems)


def _in_the_way(artefacts: Iterable[Artefact], found: Iterable[Found]) -> Iterator[Problem]:
    own = {one.path for one in found if not one.generated}
    for one in artefacts:
        if one.path in own:
            yield Problem(
                one.path,
                f"it lies where a file is generated from {one.source}, and says nothing of that: "
                "move it away, or delete it and build again",
            )


def _rows(found: Iterable[Found], artefacts: Iterable[Artefact]) -> list[Row]:
    rows = {one.path: Row(one.path, one.kind, one.source) for one in artefacts}
    for one in found:
        source = "" if one.known is None else one.known.provenance.source
        rows.setdefault(one.path, Row(one.path, one.kind, source))
    return [rows[path] for path in sorted(rows)]
