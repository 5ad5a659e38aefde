"""The strict reader of TOOL.md. It returns a `ToolContract`, or all problems at once.

A contract declares the inputs, outputs and effects of a tool, and no implementation. The schemas of
a contract are valid, self-contained, and free of endless recursion.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urljoin

import jsonschema_rs
from msgspec import Struct

from interlock.core.config.problems import ConfigError, KeyPath, Problem, quote
from interlock.manifests import schemas
from interlock.manifests.document import (
    Caution,
    ManifestDocument,
    ReadResult,
    file_problem,
    read_document,
    read_source,
    sort_problems,
)
from interlock.manifests.fields import build
from interlock.manifests.model import Example, ToolContract
from interlock.manifests.schemas import DIALECT, explain
from interlock.protocol.json_pointer import resolve_pointer
from interlock.protocol.schema_cost import BACKTRACK_LIMIT, SchemaWork

# -- Checks of untrusted schemas: valid JSON Schema 2020-12, limited in size and cost.
#
# Nothing is fetched: a schema refers to itself or to a built-in schema. Validation of a reference
# that leads back to itself for the same value would never end, so such a schema is rejected.

MAX_SCHEMA_VALUES: Final = 50_000
"""More than any schema of a tool has."""
MAX_SCHEMA_DEPTH: Final = 64

_DIALECT_BASE: Final = "https://json-schema.org/draft/2020-12/"
_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)
_REDUCE_HINT: Final = "use fewer parts, fewer references, or smaller counts in patterns"
_DEFS_HINT: Final = 'put it under $defs and refer to it as "#/$defs/name"'
# Keywords whose schemas apply to the same value.
_SAME_VALUE_ARRAYS: Final = ("allOf", "anyOf", "oneOf")
_SAME_VALUE: Final = ("not", "if", "then", "else")
# Keywords with schemas: an object, an array, or one schema.
_OBJECTS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_ARRAYS: Final = (*_SAME_VALUE_ARRAYS, "prefixItems")
_SINGLE: Final = (
    *_SAME_VALUE, "items", "additionalProperties", "contains", "propertyNames", "contentSchema",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip


class SchemaFault(Struct, frozen=True):
    """An error in a schema, with its path."""

    path: KeyPath
    message: str
    hint: str


def check_schema(schema: Any) -> list[SchemaFault]:
    """Return all errors of a schema. Empty: it can be used."""
    size = _count_values(schema, 0)
    if size > MAX_SCHEMA_VALUES:
        return [
            SchemaFault(
                (), f"the schema has more than {MAX_SCHEMA_VALUES} values", "use a smaller schema"
            )
        ]
    if size < 0:
        return [SchemaFault((), "the schema is nested too deeply", "use fewer levels")]
    if not isinstance(schema, dict):
        return [SchemaFault((), "a schema must be an object here", "write {type: object, …}")]
    dialect = schema.get("$schema", DIALECT)
    if dialect != DIALECT and dialect != f"{DIALECT}#":
        label = quote(dialect) if isinstance(dialect, str) else "this dialect"
        return [SchemaFault(("$schema",), f"{label} is not supported", f"write {DIALECT}")]
    excessive = SchemaWork(schema).compile_problem
    if excessive:
        message = f"validation with the schema would take too long: {excessive}"
        return [SchemaFault((), message, _REDUCE_HINT)]
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as error:
        path = tuple(error.instance_path)
        return [SchemaFault(path, "this is not JSON Schema 2020-12", _summarize(error))]
    except ValueError:
        return [SchemaFault((), "this is not JSON Schema 2020-12", "check the schema")]
    faults = _ReferenceCheck(schema).find_faults()
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
        return [SchemaFault(path, "this cannot be used as a schema", _summarize(error))]
    except (ValueError, jsonschema_rs.ReferencingError):
        return [SchemaFault((), "a reference of the schema has no target", _DEFS_HINT)]
    return []


def include_builtin_schemas(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a checked schema that includes the built-in schemas to which it refers."""
    included: dict[str, dict[str, Any]] = {}
    queue = [schema]
    while queue:
        for _, _, target in _references(queue.pop()):
            address = target.partition("#")[0]
            if not address or address in included:
                continue
            builtin = schemas.find_schema(address)
            if builtin is not None:
                included[address] = builtin
                queue.append(builtin)
    if not included:
        return schema
    return {**schema, "$defs": {**schema.get("$defs", {}), **included}}


def _summarize(error: jsonschema_rs.ValidationError) -> str:
    line = error.message.partition("\n")[0]
    return line if len(line) <= 160 else f"{line[:160]}…"


def _count_values(value: Any, depth: int) -> int:
    """Return the number of values in a value. -1: it is nested too deeply."""
    if depth > MAX_SCHEMA_DEPTH:
        return -1
    if not isinstance(value, (dict, list)):
        return 1
    total = 1
    for inner in value.values() if isinstance(value, dict) else value:
        count = _count_values(inner, depth + 1)
        if count < 0:
            return -1
        total += count
        if total > MAX_SCHEMA_VALUES:
            break
    return total


def _subschemas(schema: dict[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """Yield a schema and all schemas in it, with their paths. Other data is ignored."""
    yield path, schema
    for keyword in _OBJECTS:
        members = schema.get(keyword)
        if isinstance(members, dict):
            for name, inner in members.items():
                if isinstance(inner, dict):
                    yield from _subschemas(inner, (*path, keyword, name))
    for keyword in _ARRAYS:
        elements = schema.get(keyword)
        if isinstance(elements, list):
            for index, inner in enumerate(elements):
                if isinstance(inner, dict):
                    yield from _subschemas(inner, (*path, keyword, index))
    for keyword in _SINGLE:
        inner = schema.get(keyword)
        if isinstance(inner, dict):
            yield from _subschemas(inner, (*path, keyword))


def _references(schema: dict[str, Any]) -> Iterator[tuple[KeyPath, dict[str, Any], str]]:
    """Yield the references of a schema: the path, the schema with the reference, and the target."""
    for path, inner in _subschemas(schema, ()):
        for keyword in ("$ref", "$dynamicRef"):
            if isinstance(inner.get(keyword), str):
                yield (*path, keyword), inner, inner[keyword]


class _ReferenceCheck:
    """Checks the references of a schema. It indexes the schemas in it by address."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._roots: dict[str, dict[str, Any]] = {}
        self._anchors: dict[tuple[str, str], dict[str, Any]] = {}
        self._bases: dict[int, str] = {}
        self._paths: dict[int, KeyPath] = {}

    def find_faults(self) -> list[SchemaFault]:
        references = list(_references(self._schema))
        if not references:
            return []
        self._index_schemas()
        faults = [
            fault
            for path, source, target in references
            if (fault := self._check_target(path, source, target)) is not None
        ]
        return faults or self._find_recursion()

    def _index_schemas(self) -> None:
        bases: dict[KeyPath, str] = {}
        for path, schema in _subschemas(self._schema, ()):
            parent = path
            while parent and (parent := parent[:-1]) not in bases:
                pass
            base = bases.get(parent, "")
            schema_id = schema.get("$id")
            if isinstance(schema_id, str):
                base = urljoin(base, schema_id).partition("#")[0]
            if isinstance(schema_id, str) or not path:
                self._roots[base] = schema
            bases[path] = self._bases[id(schema)] = base
            self._paths[id(schema)] = path
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(schema.get(keyword), str):
                    self._anchors[base, schema[keyword]] = schema

    def _check_target(
        self, path: KeyPath, source: dict[str, Any], target: str
    ) -> SchemaFault | None:
        address = self._resolve_address(source, target)
        if address in self._roots:
            if self._find_target(source, target) is None:
                return SchemaFault(path, f"{quote(target)} has no target", _DEFS_HINT)
            return None
        if address.startswith(_DIALECT_BASE) or schemas.find_schema(address) is not None:
            return None
        return SchemaFault(
            path, f"a schema cannot refer to {quote(target)}: nothing is fetched", _DEFS_HINT
        )

    def _resolve_address(self, source: dict[str, Any], target: str) -> str:
        base = self._bases.get(id(source), "")
        return urljoin(base, target.partition("#")[0]) if target[:1] != "#" else base

    def _find_target(self, source: dict[str, Any], target: str) -> dict[str, Any] | bool | None:
        """Return the target of a reference. None: it has none within this schema."""
        address = self._resolve_address(source, target)
        root: Any = self._roots.get(address)
        fragment = unquote(target.partition("#")[2])
        if root is None:
            return None
        if fragment and not fragment.startswith("/"):
            return self._anchors.get((address, fragment))
        schema = resolve_pointer(root, fragment)
        return schema if isinstance(schema, (dict, bool)) else None

    def _same_value_schemas(self, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the schemas that a schema applies to the same value."""
        for keyword in ("$ref", "$dynamicRef"):
            if isinstance(schema.get(keyword), str):
                target = self._find_target(schema, schema[keyword])
                if isinstance(target, dict):
                    yield target
        for keyword in _SAME_VALUE_ARRAYS:
            for inner in schema.get(keyword, ()):
                if isinstance(inner, dict):
                    yield inner
        for keyword in _SAME_VALUE:
            if isinstance(schema.get(keyword), dict):
                yield schema[keyword]
        for inner in schema.get("dependentSchemas", {}).values():
            if isinstance(inner, dict):
                yield inner

    def _find_recursion(self) -> list[SchemaFault]:
        """Return the error for a cycle of schemas that apply to the same value."""
        finished: set[int] = set()
        for _, start in _subschemas(self._schema, ()):
            if id(start) in finished:
                continue
            active = {id(start): None}
            stack = [(start, self._same_value_schemas(start))]
            while stack:
                schema, remaining = stack[-1]
                following = next(remaining, None)
                if following is None:
                    finished.add(id(schema))
                    active.pop(id(schema), None)
                    stack.pop()
                elif id(following) in active:
                    return [
                        SchemaFault(
                            self._paths.get(id(schema), ()),
                            "the reference leads back to itself, so validation would never end",
                            "move the reference below properties or items",
                        )
                    ]
                elif id(following) not in finished:
                    active[id(following)] = None
                    stack.append((following, self._same_value_schemas(following)))
        return []


CONTRACT_FILE: Final = "TOOL.md"

_DRIVER_HINT: Final = "move it to the DRIVER.md that implements the contract (AIP-30)"
KEY_ADVICE: Final = {
    **{
        key: (f"a contract has no {key}, because a driver implements it", _DRIVER_HINT)
        for key in ("code", "run", "runner", "secrets", "network", "entry")
    },
    "implements": (
        "contracts cannot implement actions, because AIP-39 is not supported",
        "remove it; a driver names the contract under implements",
    ),
    **{
        key: (
            f"{key} is not supported: a contract cannot pass files",
            "describe the values under inputs and outputs",
        )
        for key in ("inputsFiles", "outputsFiles", "_workflowFsRoot")
    },
    "contextSchema": ("contextSchema belongs to metadata", "write it as metadata.contextSchema"),
    "execute": ("a contract has no implementation", _DRIVER_HINT),
}
_OBJECT_SCHEMA: Final = {"type": "object"}
_DEFAULT_FILE: Final = Path(CONTRACT_FILE)


def read_contract(
    source: Path | str, *, file: Path | None = None, cautions: list[Caution] | None = None
) -> ToolContract:
    """Read the contract of a file or a text. Raises ManifestError with all problems."""
    if isinstance(source, str):
        return parse_contract(source, file or _DEFAULT_FILE).unwrap(cautions)
    return load_contract(source).unwrap(cautions)


def load_contract(path: Path, *, follow: bool = True) -> ReadResult[ToolContract]:
    """Read the contract of a file, with problems and cautions."""
    try:
        source = read_source(path, follow=follow)
    except ConfigError as error:
        return ReadResult(problems=error.problems)
    return parse_contract(source.text, path, digest=source.digest)


def parse_contract(text: str, file: Path, *, digest: str = "") -> ReadResult[ToolContract]:
    """Read the contract of a text, with problems and cautions."""
    try:
        document = read_document(text, str(file))
    except ConfigError as error:
        return ReadResult(problems=error.problems)
    return read_contract_fields(document, file, digest=digest)


def read_contract_fields(
    document: ManifestDocument, file: Path, *, digest: str = ""
) -> ReadResult[ToolContract]:
    """Read the contract of a document, with problems and cautions."""
    values = document.value
    problems: list[Problem] = []
    if not schemas.validator("tool").is_valid(values):
        problems = explain(document, "tool", KEY_ADVICE) or [
            file_problem(document.file, "this is not a contract", "see AIP-14")
        ]
    problems += _check_approval(document)
    problems += _check_schemas(document)
    if problems:
        return ReadResult(problems=sort_problems(problems))
    return ReadResult(build_contract(values, file, digest))


def build_contract(values: dict[str, Any], file: Path, digest: str = "") -> ToolContract:
    """Build a contract from valid values."""
    context = values.get("metadata", {}).get("contextSchema")
    contract: ToolContract = build(
        ToolContract,
        values,
        [],
        file=file,
        inputs=include_builtin_schemas(values["inputs"] or dict(_OBJECT_SCHEMA)),
        outputs=include_builtin_schemas(values["outputs"] or dict(_OBJECT_SCHEMA)),
        examples=tuple(
            build(Example, example, [], has_output="output" in example)
            for example in values.get("examples", ())
        ),
        context_schema=include_builtin_schemas(context) if context is not None else None,
        digest=digest,
    )
    return contract


def _check_approval(document: ManifestDocument) -> list[Problem]:
    values = document.value
    if values.get("mutates") and values.get("approval", "auto") == "auto":
        path: KeyPath = ("approval",) if "approval" in values else ("mutates",)
        return [
            document.problem(
                path,
                "approval auto is not allowed for a contract that changes something",
                "write approval: on-mutate or approval: always",
            )
        ]
    return []


def _check_schemas(document: ManifestDocument) -> list[Problem]:
    values = document.value
    metadata = values.get("metadata")
    candidates: list[tuple[KeyPath, Any]] = [
        (("inputs",), values.get("inputs")),
        (("outputs",), values.get("outputs")),
    ]
    if isinstance(metadata, dict):
        candidates.append((("metadata", "contextSchema"), metadata.get("contextSchema")))
    problems: list[Problem] = []
    for path, schema in candidates:
        if not isinstance(schema, dict):
            continue  # missing, or already reported
        for fault in check_schema(schema):
            problems.append(document.problem((*path, *fault.path), fault.message, fault.hint))
        if path == ("inputs",) and schema and schema.get("type") != "object":
            problems.append(
                document.problem(path, "inputs must be an object", "add type: object to the schema")
            )
    return problems
