"""Holds every type that is described more than once against its other descriptions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from interlock.contracts.schemas import params
from interlock.contracts.schemas.artefacts import Artefact
from interlock.contracts.schemas.discovery import Found
from interlock.contracts.schemas.drift import Side, differences, sentence
from interlock.contracts.schemas.json_schema import Schema, schema_of
from interlock.contracts.schemas.problems import Problem
from interlock.contracts.schemas.proto import Protos
from interlock.contracts.schemas.reader import read_json, read_yaml
from interlock.contracts.schemas.sources import Sources

_REPAIR = "put the change into {source}, or delete the file and build again"


def edited(generated: Iterable[Found], artefacts: Iterable[Artefact]) -> Iterator[Problem]:
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
            yield Problem(one.path, f"{message}: {repair}", drift=True)


def _edits(found: Found, made: Artefact) -> Iterator[str]:
    if made.document is None:
        return
    if found.kind == "json":
        now = read_json(found.path, found.text)
        diff = differences(Side(made.source, made.document, made.document), _whole(found.path, now))
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
        left = Side(made.source, ours[name], made.document)
        diff = differences(left, Side(path, theirs[name], now))
        if diff:
            yield sentence(name, diff)


def across_languages(sources: Sources, protos: Protos) -> Iterator[Problem]:
    """Types that are canonical in more than one language, and are not the same there."""
    known: dict[str, Side] = {}
    for message in protos.messages.values():
        if message.file in protos.files:
            schema = schema_of(protos, message)
            side = Side(f"proto/{message.file}", schema, schema)
            known[message.full_name] = side
            # By its short name only where that is meant by nobody else.
            known.setdefault(message.name, side)
    for one in sources.types:
        yield from _against(known, one.name, _whole(one.file, one.schema))
        known.setdefault(one.name, _whole(one.file, one.schema))
    for api in sources.apis:
        for name, schema in _schemas(api.document).items():
            side = Side(f"{api.file} ({name})", schema, api.document)
            yield from _against(known, name, side)


def of_params(sources: Sources, artefacts: Iterable[Artefact]) -> Iterator[Problem]:
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
            yield Problem(file, sentence(name, diff), drift=True)


def _against(known: dict[str, Side], name: str, side: Side) -> Iterator[Problem]:
    other = known.get(name)
    if other is None:
        return
    diff = differences(other, side)
    if diff:
        yield Problem(side.where.partition(" ")[0], sentence(name, diff), drift=True)


def _whole(where: str, schema: Schema) -> Side:
    return Side(where, schema, schema)


def _schemas(document: Schema) -> dict[str, Schema]:
    components = document.get("components")
    schemas = components.get("schemas") if isinstance(components, dict) else None
    return schemas if isinstance(schemas, dict) else {}
