"""Drivers in Python: behaviour that data cannot express, beside a DRIVER.md.

`driver.py` exports `driver = define_driver(...)`. What it says is validated like front matter, in
either spelling of the fields; the front matter wins where both say something. Nothing is done when
a definition is made: hooks are kept and called later, by others.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
from msgspec import Struct, field

from interlock import errors
from interlock.core.config.problems import BadValue, ConfigError, Problem, one_of
from interlock.errors import InterlockError
from interlock.manifests import schemas
from interlock.manifests.document import Caution, ManifestDocument, ManifestError, in_order
from interlock.manifests.driver_reader import read_driver_fields
from interlock.manifests.fields import Schema
from interlock.manifests.model import DriverManifest, SecretEntry, ToolContract
from interlock.manifests.schemas import DRIVER, IO, MCP, SECRET, TOOL, explain
from interlock.manifests.secret_handle import (
    AccessRecorder,
    SecretBackend,
    SecretHandle,
    fetch_value,
    log_access,
)
from interlock.manifests.secrets_reader import FORBIDDEN, build_secret
from interlock.manifests.tool_reader import check_schema, read_contract_fields, self_contained
from interlock.protocol.json_pointer import build_pointer
from interlock.protocol.schema_cost import UNEXPLAINED, collect_errors

Hook = Callable[..., Any]
"""What a hook is called with, and what it answers, is the business of whoever calls it."""

_HOOKS: Final = (
    "build_arguments",
    "parse_tool_result",
    "login",
    "refresh",
    "health",
    "detect_expiry",
)
_TABLES: Final = ("execute", "transforms")
_UNNAMED: Final = Path("driver.py")


class DriverDefinition(Struct, frozen=True):
    """What a driver.py brings: fields as front matter has them, and hooks."""

    values: dict[str, Any] = field(default_factory=dict)
    build_arguments: Hook | None = None
    """Instead of `argument_mapping`."""
    parse_tool_result: Hook | None = None
    """Instead of `result_extract`."""
    execute: dict[str, Hook] = field(default_factory=dict)
    """By the id of the contract: instead of calling the server's tool."""
    transforms: dict[str, Hook] = field(default_factory=dict)
    """By the name that a mapping uses."""
    login: Hook | None = None
    refresh: Hook | None = None
    health: Hook | None = None
    detect_expiry: Hook | None = None

    @property
    def hooks(self) -> frozenset[str]:
        """The names of the hooks that are there."""
        named = {name for name in _HOOKS if getattr(self, name) is not None}
        return frozenset(named | {name for name in _TABLES if getattr(self, name)})

    def executes(self, contract_id: str) -> bool:
        """Whether a contract is served by code rather than by the server."""
        return contract_id in self.execute


def define_driver(
    definition: Mapping[str, Any] | None = None, /, **fields: Any
) -> DriverDefinition:
    """A driver's definition. Raises ManifestError for fields that front matter could not have.

    Fields may be missing: the DRIVER.md has them. Hooks: `build_arguments`, `parse_tool_result`,
    `execute` and `transforms` (by name), `login`, `refresh`, `health`, `detect_expiry`.
    """
    given = {snake(key): value for key, value in {**(definition or {}), **fields}.items()}
    problems: list[Problem] = []
    hooks: dict[str, Any] = {}
    for name in _HOOKS:
        hook = given.pop(name, None)
        if hook is not None and not callable(hook):
            problems.append(_problem(name, "this is not a function", "give a function"))
        hooks[name] = hook
    for name in _TABLES:
        table = given.pop(name, None) or {}
        if not isinstance(table, Mapping) or not all(callable(hook) for hook in table.values()):
            problems.append(_problem(name, "these are not functions", "give {name: function}"))
        else:
            hooks[name] = dict(table)
    try:
        values = put_right(given, DRIVER, MCP)
    except BadValue as bad:
        raise ManifestError([*problems, _problem("", bad.message, bad.hint)]) from None
    problems += _field_problems(values)
    if problems:
        raise ManifestError(problems)
    return DriverDefinition(values=values, **hooks)


def define_mcp_driver(
    definition: Mapping[str, Any] | None = None, /, **fields: Any
) -> DriverDefinition:
    """`define_driver` for a driver whose kind is mcp."""
    return define_driver({"kind": "mcp", **(definition or {}), **fields})


def merge(
    manifest: DriverManifest, definition: DriverDefinition
) -> tuple[DriverManifest, list[Caution]]:
    """The driver with what only its definition says. Front matter wins, and says so.

    Raises ManifestError when the two do not make a driver together.
    """
    cautions = [
        Caution(
            str(manifest.file),
            0,
            "front_matter_wins",
            f"driver.py says something else for {name} than the front matter, which is used",
        )
        for name, value in definition.values.items()
        if name in manifest.source and manifest.source[name] != value
    ]
    added = {
        name: value for name, value in definition.values.items() if name not in manifest.source
    }
    if not added:
        return manifest, cautions
    document = ManifestDocument(str(manifest.file), {**added, **manifest.source})
    reading = read_driver_fields(document, manifest.file, has_code=True, digest=manifest.digest)
    return reading.unwrap(), cautions


def manifest_of(definition: DriverDefinition, file: Path = _UNNAMED) -> DriverManifest:
    """The driver that a definition stands for alone. Raises ManifestError."""
    document = ManifestDocument(str(file), definition.values)
    return read_driver_fields(document, file, has_code=True).unwrap()


def check_execute(definition: DriverDefinition, contract_ids: Iterable[str]) -> None:
    """Raise InterlockError unless `execute` has a body for each contract, or none at all."""
    if not definition.execute:
        return
    wanted, given = set(contract_ids), set(definition.execute)
    if wanted == given:
        return
    parts = []
    if missing := sorted(wanted - given):
        parts.append(f"it has no body for {one_of(missing)}")
    if surplus := sorted(given - wanted):
        parts.append(f"it has one for {one_of(surplus)}, which the driver does not implement")
    raise InterlockError(
        errors.failure_by_name("execute_binding_mismatch"),
        f"The execute of driver.py does not match implements: {'; '.join(parts)}.",
        {"missing": missing, "surplus": surplus},
    )


def _field_problems(values: dict[str, Any]) -> list[Problem]:
    """What front matter could not say. A definition that is whole is looked at like a file."""
    document = ManifestDocument(str(_UNNAMED), values)
    is_mcp = values.get("kind") == "mcp"
    universal = explain(document, "driver", whole=False)
    own = explain(document, "mcp", whole=False) if is_mcp else []
    unknown = [
        _problem(name, "this is not a field of a driver", "see AIP-30 and AIP-32")
        for name in values
        if name not in DRIVER["properties"] and name not in MCP["properties"]
    ]
    found = in_order(universal, own) + unknown
    needed = [*DRIVER["required"], *(MCP["required"] if is_mcp else ())]
    if not found and all(name in values for name in needed):
        try:
            found = read_driver_fields(document, _UNNAMED, has_code=True).problems
        except ConfigError as error:
            found = error.problems
    return found


def _problem(path: str, message: str, hint: str) -> Problem:
    return Problem(str(_UNNAMED), 0, 0, path, message, hint)


defineDriver = define_driver
defineMcpDriver = define_mcp_driver


# -- Contracts, inputs and outputs, and secrets in Python.
#
# What they are given is validated like the front matter of a TOOL.md or SECRETS.md, in either
# spelling of the fields. Models of pydantic are turned into JSON Schema, and only that is kept.

_SPELLINGS: Final = {
    "inputSchema": "inputs",
    "input_schema": "inputs",
    "outputSchema": "outputs",
    "output_schema": "outputs",
    "context_schema": "contextSchema",
}
_MOST_PROBLEMS: Final = 20


class InputProblem(Struct, frozen=True):
    """What is wrong with an input, and where, as a JSON pointer."""

    pointer: str
    message: str


class IoHandle(Struct, frozen=True):
    """What goes in and what comes out."""

    inputs: dict[str, Any]
    outputs: dict[str, Any]
    inputs_files: dict[str, Any] = field(default_factory=dict)
    outputs_files: dict[str, Any] = field(default_factory=dict)

    @property
    def has_files(self) -> bool:
        """Whether files are to be passed, which no MCP driver can do."""
        return bool(self.inputs_files or self.outputs_files)

    def validate_input(self, value: Any) -> tuple[InputProblem, ...]:
        """What is wrong with an input; nothing when it fits."""
        validator = jsonschema_rs.Draft202012Validator(
            self.inputs,
            registry=schemas.registry(),
            retriever=schemas.no_retrieval,
            mask="the value",
        )
        if validator.is_valid(value):
            return ()
        errors = collect_errors(validator, self.inputs, value, _MOST_PROBLEMS)
        if errors is None:
            return (InputProblem("", UNEXPLAINED),)
        return tuple(InputProblem(build_pointer(one.instance_path), one.message) for one in errors)

    validateInput = validate_input


def define_io(
    inputs: Any = None,
    outputs: Any = None,
    inputs_files: Mapping[str, Any] | None = None,
    outputs_files: Mapping[str, Any] | None = None,
    **spelt: Any,
) -> IoHandle:
    """What goes in and what comes out, as schemas or models. Raises ManifestError."""
    inputs_files = spelt.pop("inputsFiles", inputs_files) or {}
    outputs_files = spelt.pop("outputsFiles", outputs_files) or {}
    if spelt:
        raise ManifestError([_wrong("", f"{next(iter(spelt))} is not a field", "see AIP-16")])
    problems: list[Problem] = []
    found: dict[str, dict[str, Any]] = {}
    for name, value in (("inputs", inputs), ("outputs", outputs)):
        schema = _as_schema(value) if value is not None else {}
        faults = check_schema(schema)
        problems += [_wrong(name, fault.message, fault.hint) for fault in faults]
        found[name] = schema or {"type": "object"}
    for name, files in (("inputsFiles", inputs_files), ("outputsFiles", outputs_files)):
        rule = {"$ref": f"{IO['$id']}#/$defs/{name}"}
        if not jsonschema_rs.Draft202012Validator(rule, registry=schemas.registry()).is_valid(
            dict(files)
        ):
            problems.append(_wrong(name, "these are not files", "write {key: {path: …}}"))
    if problems:
        raise ManifestError(problems)
    return IoHandle(
        self_contained(found["inputs"]),
        self_contained(found["outputs"]),
        dict(inputs_files),
        dict(outputs_files),
    )


def define_tool(
    definition: Mapping[str, Any] | None = None,
    /,
    *,
    io: IoHandle | None = None,
    file: Path = Path("driver.py"),
    **fields: Any,
) -> ToolContract:
    """A contract. Raises ManifestError for what a TOOL.md could not have."""
    given: dict[str, Any] = {}
    for key, value in {**(definition or {}), **fields}.items():
        name = _SPELLINGS.get(key, key)
        if name in given:
            raise ManifestError([_wrong(name, f"{name} is given twice", "keep one of the two")])
        given[name] = value
    if "execute" in given:
        raise ManifestError(
            [
                _wrong(
                    "execute",
                    "a contract has no body: since AIP-30 a driver has it",
                    "give it to define_driver as execute={contract id: function}",
                )
            ]
        )
    if io is not None:
        if io.has_files:
            raise ManifestError(
                [_wrong("io", "files cannot be passed to an MCP server", "pass values only")]
            )
        given = {"inputs": io.inputs, "outputs": io.outputs, **given}
    for name in ("inputs", "outputs", "contextSchema"):
        if name in given:
            given[name] = _as_schema(given[name])
    if "contextSchema" in given:
        metadata = given.get("metadata") or {}
        given["metadata"] = {**metadata, "contextSchema": given.pop("contextSchema")}
    try:
        values = put_right(given, TOOL)
    except BadValue as bad:
        raise ManifestError([_wrong("", bad.message, bad.hint)]) from None
    return read_contract_fields(ManifestDocument(str(file), values), file).unwrap()


class _OneBackend(Struct, frozen=True):
    """A vault that asks nobody else."""

    backend: SecretBackend

    async def value(self, entry: SecretEntry) -> str | None:
        return await fetch_value(self.backend, entry)


def define_secret(
    definition: Mapping[str, Any] | None = None,
    /,
    *,
    vault: SecretBackend | None = None,
    record: AccessRecorder = log_access,
    now: Callable[[], float] = time.time,
    file: Path = Path("driver.py"),
    **fields: Any,
) -> SecretHandle:
    """A secret's entry, never its value. Raises ManifestError.

    `record`: writes down who was given it and who was not.
    """
    try:
        values = put_right({**(definition or {}), **fields}, SECRET)
    except BadValue as bad:
        raise ManifestError([_wrong("", bad.message, bad.hint)]) from None
    document = ManifestDocument(str(file), values)
    problems = [
        _wrong(name, f"{name} could hold the secret itself", "keep it in the vault")
        for name in FORBIDDEN
        if name in values
    ]
    problems = problems or explain(document, "secret")
    if problems:
        raise ManifestError(problems)
    kept = None if vault is None else _OneBackend(vault)
    return SecretHandle(build_secret(values, file), kept, record, now)


def _as_schema(value: Any) -> Any:
    """A schema as it is, or the one of a model that can make it."""
    make = getattr(value, "model_json_schema", None)
    return make() if callable(make) else value


def _wrong(path: str, message: str, hint: str) -> Problem:
    return Problem("", 0, 0, path, message, hint)


defineTool = define_tool
defineIO = define_io
defineSecret = define_secret


# -- Field names as other languages spell them: `protocolVersion` for `protocol_version`.
#
# Only names that a schema knows are put right. What an author named freely (variables, inputs,
# metadata) stays as it is.

_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])([A-Z])")
_MOST_DEPTH: Final = 64


def snake(name: str) -> str:
    """`protocolVersion` → `protocol_version`."""
    return _CAPITAL.sub(lambda capital: f"_{capital[1].lower()}", name)


def put_right(value: Any, *known: Schema) -> Any:
    """The value with the fields of these schemas in their own spelling, as plain data.

    Raises BadValue when a field is there in both, and for what is no data or too deep.
    """
    return _put_right(value, known, 0)


def _put_right(value: Any, known: Sequence[Schema], depth: int) -> Any:
    if depth > _MOST_DEPTH:
        raise BadValue("this is nested too deeply", "use fewer levels")
    if isinstance(value, Mapping):
        shapes = [shape for schema in known for shape in _shapes(schema)]
        fields = {name for shape in shapes for name in shape.get("properties", {})}
        result: dict[str, Any] = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                raise BadValue("a key is not text", "use names as keys")
            name = key if key in fields or snake(key) not in fields else snake(key)
            if name in result:
                raise BadValue(f"{name} is given twice", "keep one of the two spellings")
            result[name] = _put_right(inner, tuple(_below(shapes, name)), depth + 1)
        return result
    if isinstance(value, (list, tuple, set, frozenset)):
        members = sorted(value) if isinstance(value, (set, frozenset)) else value
        below = tuple(
            shape["items"]
            for schema in known
            for shape in _shapes(schema)
            if isinstance(shape.get("items"), dict)
        )
        return [_put_right(inner, below, depth + 1) for inner in members]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise BadValue(f"{type(value).__name__} cannot stand in a manifest", "use plain data")


def _shapes(schema: Schema) -> Iterator[Schema]:
    """A schema, and those that look at the same value."""
    yield schema
    for word in ("allOf", "anyOf", "oneOf"):
        for inner in schema.get(word, ()):
            yield from _shapes(inner)
    if isinstance(schema.get("then"), dict):
        yield from _shapes(schema["then"])


def _below(shapes: Sequence[Schema], name: str) -> Iterator[Schema]:
    for shape in shapes:
        properties = shape.get("properties", {})
        if name in properties:
            yield properties[name]
        elif isinstance(shape.get("additionalProperties"), dict):
            yield shape["additionalProperties"]
