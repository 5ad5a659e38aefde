"""A TOOL.md to a `ToolContract`, strictly, or everything that is wrong with it at once.

A contract says what a tool takes, gives and changes, never how it is done. Its schemas come out
usable: valid, without references to elsewhere, and without circles.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urljoin

import jsonschema_rs
from msgspec import Struct

from interlock.core.config.problems import ConfigError, KeyPath, Problem, quoted
from interlock.manifests import schemas
from interlock.manifests.document import (
    Caution,
    ManifestDocument,
    ReadResult,
    in_order,
    read_document,
    read_source,
    whole_file,
)
from interlock.manifests.fields import build
from interlock.manifests.model import Example, ToolContract
from interlock.manifests.schemas import DIALECT, explain
from interlock.protocol.json_pointer import resolve_pointer
from interlock.protocol.schema_cost import BACKTRACK_LIMIT, SchemaWork

# -- Schemas that a stranger wrote: are they JSON Schema 2020-12, and can they be used without
# harm?
#
# Nothing is fetched: a schema refers to itself or to one of ours. A reference that leads back to
# itself without ever going deeper into a value would never end, so it is refused.

MOST_VALUES: Final = 50_000
"""More than any schema of a tool has."""
MOST_DEPTH: Final = 64

_DIALECT_BASE: Final = "https://json-schema.org/draft/2020-12/"
_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)
_SMALLER: Final = "use fewer parts, fewer references, or smaller counts in patterns"
_KEEP_IT_HERE: Final = 'put it under $defs and refer to it as "#/$defs/name"'
# Keywords whose schemas look at the same value again.
_SAME_VALUE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SAME_VALUE: Final = ("not", "if", "then", "else")
# Keywords with schemas in them: by name, in a list, or one.
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTED: Final = (*_SAME_VALUE_LISTS, "prefixItems")
_ONE: Final = (
    *_SAME_VALUE, "items", "additionalProperties", "contains", "propertyNames", "contentSchema",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip


class SchemaFault(Struct, frozen=True):
    """What is wrong with a schema, and where in it."""

    path: KeyPath
    message: str
    hint: str


def check_schema(schema: Any) -> list[SchemaFault]:
    """Everything that is wrong with a schema; nothing when it can be used."""
    size = _size(schema, 0)
    if size > MOST_VALUES:
        return [
            SchemaFault((), f"the schema has more than {MOST_VALUES} values", "use a smaller one")
        ]
    if size < 0:
        return [SchemaFault((), "the schema is nested too deeply", "use fewer levels")]
    if not isinstance(schema, dict):
        return [SchemaFault((), "a schema is an object here", "write {type: object, …}")]
    dialect = schema.get("$schema", DIALECT)
    if dialect != DIALECT and dialect != f"{DIALECT}#":
        shown = quoted(dialect) if isinstance(dialect, str) else "this"
        return [SchemaFault(("$schema",), f"{shown} is not the dialect here", f"write {DIALECT}")]
    excessive = SchemaWork(schema).compile_problem
    if excessive:
        return [SchemaFault((), f"to use the schema would take too long: {excessive}", _SMALLER)]
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as error:
        path = tuple(error.instance_path)
        return [SchemaFault(path, "this is not JSON Schema 2020-12", _about(error))]
    except ValueError:
        return [SchemaFault((), "this is not JSON Schema 2020-12", "check it")]
    faults = _Resources(schema).faults()
    if faults:
        return faults
    try:
        jsonschema_rs.Draft202012Validator(
            schema,
            registry=schemas.registry(),
            retriever=schemas.no_retrieval,
            pattern_options=_PATTERNS,
        )
    except jsonschema_rs.ValidationError as error:
        path = tuple(error.instance_path)
        return [SchemaFault(path, "this cannot be used as a schema", _about(error))]
    except (ValueError, jsonschema_rs.ReferencingError):
        return [SchemaFault((), "a reference in it leads nowhere", _KEEP_IT_HERE)]
    return []


def self_contained(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that was checked, with ours in it that it refers to: it needs nobody then."""
    needed: dict[str, dict[str, Any]] = {}
    waiting = [schema]
    while waiting:
        for _, _, target in _references(waiting.pop()):
            address = target.partition("#")[0]
            known = schemas.at_address(address) if address and address not in needed else None
            if known is not None:
                needed[address] = known
                waiting.append(known)
    if not needed:
        return schema
    return {**schema, "$defs": {**schema.get("$defs", {}), **needed}}


def _about(error: jsonschema_rs.ValidationError) -> str:
    said = error.message.partition("\n")[0]
    return said if len(said) <= 160 else f"{said[:160]}…"


def _size(value: Any, depth: int) -> int:
    """How many values there are in one; -1 when it is nested too deeply."""
    if depth > MOST_DEPTH:
        return -1
    if not isinstance(value, (dict, list)):
        return 1
    total = 1
    for inner in value.values() if isinstance(value, dict) else value:
        size = _size(inner, depth + 1)
        if size < 0:
            return -1
        total += size
        if total > MOST_VALUES:
            break
    return total


def _below(schema: dict[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """A schema and all schemas in it, each with its place. Data in it is not looked at."""
    yield path, schema
    for word in _NAMED:
        named = schema.get(word)
        if isinstance(named, dict):
            for name, inner in named.items():
                if isinstance(inner, dict):
                    yield from _below(inner, (*path, word, name))
    for word in _LISTED:
        listed = schema.get(word)
        if isinstance(listed, list):
            for index, inner in enumerate(listed):
                if isinstance(inner, dict):
                    yield from _below(inner, (*path, word, index))
    for word in _ONE:
        inner = schema.get(word)
        if isinstance(inner, dict):
            yield from _below(inner, (*path, word))


def _references(schema: dict[str, Any]) -> Iterator[tuple[KeyPath, dict[str, Any], str]]:
    """The references in a schema: where each stands, the schema it stands in, where it leads."""
    for path, inner in _below(schema, ()):
        for word in ("$ref", "$dynamicRef"):
            if isinstance(inner.get(word), str):
                yield (*path, word), inner, inner[word]


class _Resources:
    """The schemas inside a schema, by address, and where their references lead."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._roots: dict[str, dict[str, Any]] = {}
        self._anchors: dict[tuple[str, str], dict[str, Any]] = {}
        self._bases: dict[int, str] = {}
        self._paths: dict[int, KeyPath] = {}

    def faults(self) -> list[SchemaFault]:
        references = list(_references(self._schema))
        if not references:
            return []
        self._collect()
        found = [
            fault
            for path, holder, target in references
            if (fault := self._unreachable(path, holder, target)) is not None
        ]
        return found or self._endless()

    def _collect(self) -> None:
        bases: dict[KeyPath, str] = {}
        for path, schema in _below(self._schema, ()):
            above = path
            while above and (above := above[:-1]) not in bases:
                pass
            base = bases.get(above, "")
            own = schema.get("$id")
            if isinstance(own, str):
                base = urljoin(base, own).partition("#")[0]
            if isinstance(own, str) or not path:
                self._roots[base] = schema
            bases[path] = self._bases[id(schema)] = base
            self._paths[id(schema)] = path
            for word in ("$anchor", "$dynamicAnchor"):
                if isinstance(schema.get(word), str):
                    self._anchors[base, schema[word]] = schema

    def _unreachable(
        self, path: KeyPath, holder: dict[str, Any], target: str
    ) -> SchemaFault | None:
        address = self._address(holder, target)
        if address in self._roots:
            if self._target(holder, target) is None:
                return SchemaFault(path, f"{quoted(target)} leads nowhere", _KEEP_IT_HERE)
            return None
        if address.startswith(_DIALECT_BASE) or schemas.at_address(address) is not None:
            return None
        return SchemaFault(
            path, f"a schema may not refer to {quoted(target)}: nothing is fetched", _KEEP_IT_HERE
        )

    def _address(self, holder: dict[str, Any], target: str) -> str:
        base = self._bases.get(id(holder), "")
        return urljoin(base, target.partition("#")[0]) if target[:1] != "#" else base

    def _target(self, holder: dict[str, Any], target: str) -> dict[str, Any] | bool | None:
        """The schema that a reference leads to, None where it leads nowhere (here)."""
        address = self._address(holder, target)
        found: Any = self._roots.get(address)
        fragment = unquote(target.partition("#")[2])
        if found is None:
            return None
        if fragment and not fragment.startswith("/"):
            return self._anchors.get((address, fragment))
        found = resolve_pointer(found, fragment)
        return found if isinstance(found, (dict, bool)) else None

    def _again(self, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The schemas that look at the same value as this one."""
        for word in ("$ref", "$dynamicRef"):
            if isinstance(schema.get(word), str):
                target = self._target(schema, schema[word])
                if isinstance(target, dict):
                    yield target
        for word in _SAME_VALUE_LISTS:
            for inner in schema.get(word, ()):
                if isinstance(inner, dict):
                    yield inner
        for word in _SAME_VALUE:
            if isinstance(schema.get(word), dict):
                yield schema[word]
        for inner in schema.get("dependentSchemas", {}).values():
            if isinstance(inner, dict):
                yield inner

    def _endless(self) -> list[SchemaFault]:
        """A circle of schemas that all look at the same value."""
        done: set[int] = set()
        for _, start in _below(self._schema, ()):
            if id(start) in done:
                continue
            under_way = {id(start): None}
            stack = [(start, self._again(start))]
            while stack:
                schema, rest = stack[-1]
                following = next(rest, None)
                if following is None:
                    done.add(id(schema))
                    under_way.pop(id(schema), None)
                    stack.pop()
                elif id(following) in under_way:
                    return [
                        SchemaFault(
                            self._paths.get(id(schema), ()),
                            "this leads back to itself and would never end",
                            "let the reference stand below properties or items",
                        )
                    ]
                elif id(following) not in done:
                    under_way[id(following)] = None
                    stack.append((following, self._again(following)))
        return []


CONTRACT_FILE: Final = "TOOL.md"

_OF_A_DRIVER: Final = "move it to the DRIVER.md that implements the contract (AIP-30)"
SPECIAL: Final = {
    **{
        key: (f"a contract has no {key}: how it is done is a driver's matter", _OF_A_DRIVER)
        for key in ("code", "run", "runner", "secrets", "network", "entry")
    },
    "implements": (
        "contracts do not implement actions here: AIP-39 is not supported",
        "remove it; drivers name the contract under their own implements",
    ),
    **{
        key: (
            f"{key} is not part of a contract: files are not passed in and out here",
            "describe the values under inputs and outputs",
        )
        for key in ("inputsFiles", "outputsFiles", "_workflowFsRoot")
    },
    "contextSchema": ("contextSchema stands under metadata", "write it as metadata.contextSchema"),
    "execute": ("a contract has no body", _OF_A_DRIVER),
}
_OBJECT: Final = {"type": "object"}
_UNNAMED: Final = Path(CONTRACT_FILE)


def read_contract(
    source: Path | str, *, file: Path | None = None, cautions: list[Caution] | None = None
) -> ToolContract:
    """The contract in a file, or in a text. Raises ManifestError with all problems."""
    if isinstance(source, str):
        return parse_contract(source, file or _UNNAMED).unwrap(cautions)
    return load_contract(source).unwrap(cautions)


def load_contract(path: Path, *, follow: bool = True) -> ReadResult[ToolContract]:
    """The contract in a file, and what was found on the way."""
    try:
        source = read_source(path, follow=follow)
    except ConfigError as error:
        return ReadResult(problems=error.problems)
    return parse_contract(source.text, path, digest=source.digest)


def parse_contract(text: str, file: Path, *, digest: str = "") -> ReadResult[ToolContract]:
    """The contract in a text, and what was found on the way."""
    try:
        document = read_document(text, str(file))
    except ConfigError as error:
        return ReadResult(problems=error.problems)
    return read_contract_fields(document, file, digest=digest)


def read_contract_fields(
    document: ManifestDocument, file: Path, *, digest: str = ""
) -> ReadResult[ToolContract]:
    """The contract in a document, and what was found on the way."""
    values = document.value
    problems: list[Problem] = []
    if not schemas.validator("tool").is_valid(values):
        problems = explain(document, "tool", SPECIAL) or [
            whole_file(document.file, "this is not a contract", "see AIP-14")
        ]
    problems += _changes_unasked(document)
    problems += _schemas(document)
    if problems:
        return ReadResult(problems=in_order(problems))
    return ReadResult(build_contract(values, file, digest))


def build_contract(values: dict[str, Any], file: Path, digest: str = "") -> ToolContract:
    """The contract of values that are valid."""
    context = values.get("metadata", {}).get("contextSchema")
    contract: ToolContract = build(
        ToolContract,
        values,
        [],
        file=file,
        inputs=self_contained(values["inputs"] or dict(_OBJECT)),
        outputs=self_contained(values["outputs"] or dict(_OBJECT)),
        examples=tuple(
            build(Example, example, [], has_output="output" in example)
            for example in values.get("examples", ())
        ),
        context_schema=self_contained(context) if context is not None else None,
        digest=digest,
    )
    return contract


def _changes_unasked(document: ManifestDocument) -> list[Problem]:
    values = document.value
    if values.get("mutates") and values.get("approval", "auto") == "auto":
        where: KeyPath = ("approval",) if "approval" in values else ("mutates",)
        return [
            document.problem(
                where,
                "approval auto is not allowed for a contract that changes something",
                "write approval: on-mutate or approval: always",
            )
        ]
    return []


def _schemas(document: ManifestDocument) -> list[Problem]:
    values = document.value
    metadata = values.get("metadata")
    places: list[tuple[KeyPath, Any]] = [
        (("inputs",), values.get("inputs")),
        (("outputs",), values.get("outputs")),
    ]
    if isinstance(metadata, dict):
        places.append((("metadata", "contextSchema"), metadata.get("contextSchema")))
    problems: list[Problem] = []
    for path, schema in places:
        if not isinstance(schema, dict):
            continue  # missing, or said already
        for fault in check_schema(schema):
            problems.append(document.problem((*path, *fault.path), fault.message, fault.hint))
        if path == ("inputs",) and schema and schema.get("type") != "object":
            problems.append(
                document.problem(path, "inputs have names", "add type: object to the schema")
            )
    return problems
