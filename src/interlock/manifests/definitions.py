"""Definitions of drivers, contracts and secrets in Python.

A `driver.py` beside a DRIVER.md exports `driver = define_driver(...)`. Its fields are validated
like front matter, and may be in camel case. Where both declare a field, the front matter takes
precedence. A definition calls no hook: the node calls hooks later.
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
from interlock.core.config.problems import (
    ConfigError,
    InvalidValueError,
    Problem,
    join_alternatives,
)
from interlock.errors import InterlockError
from interlock.manifests import schemas
from interlock.manifests.document import Caution, ManifestDocument, ManifestError, sort_problems
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
from interlock.manifests.tool_reader import (
    check_schema,
    include_builtin_schemas,
    read_contract_fields,
)
from interlock.protocol.json_pointer import build_pointer
from interlock.protocol.schema_cost import UNEXPLAINED, collect_errors

Hook = Callable[..., Any]
"""A function of a driver.py. The caller of a hook defines its arguments and its result."""

_HOOKS: Final = (
    "build_arguments",
    "parse_tool_result",
    "login",
    "refresh",
    "health",
    "detect_expiry",
)
_TABLES: Final = ("execute", "transforms")
_DEFAULT_FILE: Final = Path("driver.py")


class DriverDefinition(Struct, frozen=True):
    """The content of a driver.py: fields of the front matter, and hooks."""

    values: dict[str, Any] = field(default_factory=dict)
    build_arguments: Hook | None = None
    """Replaces `argument_mapping`."""
    parse_tool_result: Hook | None = None
    """Replaces `result_extract`."""
    execute: dict[str, Hook] = field(default_factory=dict)
    """By id of the contract. Replaces the call of the server's tool."""
    transforms: dict[str, Hook] = field(default_factory=dict)
    """By name in a mapping."""
    login: Hook | None = None
    refresh: Hook | None = None
    health: Hook | None = None
    detect_expiry: Hook | None = None

    @property
    def hooks(self) -> frozenset[str]:
        """The names of the defined hooks."""
        functions = {name for name in _HOOKS if getattr(self, name) is not None}
        return frozenset(functions | {name for name in _TABLES if getattr(self, name)})

    def executes(self, contract_id: str) -> bool:
        """Return whether driver.py executes a contract instead of the server."""
        return contract_id in self.execute


def define_driver(
    definition: Mapping[str, Any] | None = None, /, **fields: Any
) -> DriverDefinition:
    """Define a driver. Raises ManifestError for fields that are invalid in front matter.

    Fields may be missing if the DRIVER.md has them. The hooks are `build_arguments`,
    `parse_tool_result`, `execute` and `transforms` (by name), `login`, `refresh`, `health` and
    `detect_expiry`.
    """
    members = {to_snake_case(key): value for key, value in {**(definition or {}), **fields}.items()}
    problems: list[Problem] = []
    hooks: dict[str, Any] = {}
    for name in _HOOKS:
        hook = members.pop(name, None)
        if hook is not None and not callable(hook):
            problems.append(_problem(name, "this is not a function", "pass a function"))
        hooks[name] = hook
    for name in _TABLES:
        table = members.pop(name, None) or {}
        if not isinstance(table, Mapping) or not all(callable(hook) for hook in table.values()):
            problems.append(_problem(name, "these are not functions", "pass {name: function}"))
        else:
            hooks[name] = dict(table)
    try:
        values = normalize_names(members, DRIVER, MCP)
    except InvalidValueError as bad:
        raise ManifestError([*problems, _problem("", bad.message, bad.hint)]) from None
    problems += _field_problems(values)
    if problems:
        raise ManifestError(problems)
    return DriverDefinition(values=values, **hooks)


def define_mcp_driver(
    definition: Mapping[str, Any] | None = None, /, **fields: Any
) -> DriverDefinition:
    """Define a driver of the kind mcp, as `define_driver` does."""
    return define_driver({"kind": "mcp", **(definition or {}), **fields})


def merge(
    manifest: DriverManifest, definition: DriverDefinition
) -> tuple[DriverManifest, list[Caution]]:
    """Return the driver with the fields that only its definition has.

    The front matter takes precedence, with a caution. Raises ManifestError if the result is not a
    valid driver.
    """
    cautions = [
        Caution(
            str(manifest.file),
            0,
            "front_matter_wins",
            f"{name} of driver.py differs from the front matter and is ignored",
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
    result = read_driver_fields(document, manifest.file, has_code=True, digest=manifest.digest)
    return result.unwrap(), cautions


def build_manifest(definition: DriverDefinition, file: Path = _DEFAULT_FILE) -> DriverManifest:
    """Build the manifest of a definition without a DRIVER.md. Raises ManifestError."""
    document = ManifestDocument(str(file), definition.values)
    return read_driver_fields(document, file, has_code=True).unwrap()


def check_execute(definition: DriverDefinition, contract_ids: Iterable[str]) -> None:
    """Raise InterlockError if `execute` is not empty and does not match the contracts exactly."""
    if not definition.execute:
        return
    contracts, functions = set(contract_ids), set(definition.execute)
    if contracts == functions:
        return
    parts = []
    if missing := sorted(contracts - functions):
        parts.append(f"it has no function for {join_alternatives(missing)}")
    if surplus := sorted(functions - contracts):
        parts.append(
            f"it has a function for {join_alternatives(surplus)}, which the driver does not serve"
        )
    raise InterlockError(
        errors.failure_by_name("execute_binding_mismatch"),
        f"The execute of driver.py does not match implements: {'; '.join(parts)}.",
        {"missing": missing, "surplus": surplus},
    )


def _field_problems(values: dict[str, Any]) -> list[Problem]:
    """Return the problems of fields. A complete definition is checked like a DRIVER.md."""
    document = ManifestDocument(str(_DEFAULT_FILE), values)
    is_mcp = values.get("kind") == "mcp"
    universal_problems = explain(document, "driver", complete=False)
    mcp_problems = explain(document, "mcp", complete=False) if is_mcp else []
    unknown = [
        _problem(name, "this is not a field of a driver", "see AIP-30 and AIP-32")
        for name in values
        if name not in DRIVER["properties"] and name not in MCP["properties"]
    ]
    problems = sort_problems(universal_problems, mcp_problems) + unknown
    required = [*DRIVER["required"], *(MCP["required"] if is_mcp else ())]
    if not problems and all(name in values for name in required):
        try:
            problems = read_driver_fields(document, _DEFAULT_FILE, has_code=True).problems
        except ConfigError as error:
            problems = error.problems
    return problems


def _problem(path: str, message: str, hint: str) -> Problem:
    return Problem(str(_DEFAULT_FILE), 0, 0, path, message, hint)


defineDriver = define_driver
defineMcpDriver = define_mcp_driver


# -- Definitions of contracts, inputs and outputs, and secrets.
#
# Their fields are validated like the front matter of a TOOL.md or SECRETS.md, and may be in camel
# case. Pydantic models are converted to JSON Schema.

_SPELLINGS: Final = {
    "inputSchema": "inputs",
    "input_schema": "inputs",
    "outputSchema": "outputs",
    "output_schema": "outputs",
    "context_schema": "contextSchema",
}
_MAX_PROBLEMS: Final = 20


class InputProblem(Struct, frozen=True):
    """An error of an input, and its position as a JSON pointer."""

    pointer: str
    message: str


class IoHandle(Struct, frozen=True):
    """The schemas of inputs and outputs."""

    inputs: dict[str, Any]
    outputs: dict[str, Any]
    inputs_files: dict[str, Any] = field(default_factory=dict)
    outputs_files: dict[str, Any] = field(default_factory=dict)

    @property
    def has_files(self) -> bool:
        """True if files are passed, which no MCP driver supports."""
        return bool(self.inputs_files or self.outputs_files)

    def validate_input(self, value: Any) -> tuple[InputProblem, ...]:
        """Return the errors of an input. Empty: it is valid."""
        validator = jsonschema_rs.Draft202012Validator(
            self.inputs,
            registry=schemas.registry(),
            retriever=schemas.no_retrieval,
            mask="the value",
        )
        if validator.is_valid(value):
            return ()
        errors = collect_errors(validator, self.inputs, value, _MAX_PROBLEMS)
        if errors is None:
            return (InputProblem("", UNEXPLAINED),)
        return tuple(
            InputProblem(build_pointer(error.instance_path), error.message) for error in errors
        )

    validateInput = validate_input


def define_io(
    inputs: Any = None,
    outputs: Any = None,
    inputs_files: Mapping[str, Any] | None = None,
    outputs_files: Mapping[str, Any] | None = None,
    **aliases: Any,
) -> IoHandle:
    """Define inputs and outputs with schemas or models. Raises ManifestError."""
    inputs_files = aliases.pop("inputsFiles", inputs_files) or {}
    outputs_files = aliases.pop("outputsFiles", outputs_files) or {}
    if aliases:
        name = next(iter(aliases))
        raise ManifestError([_field_problem("", f"{name} is not a field", "see AIP-16")])
    problems: list[Problem] = []
    schemas_by_name: dict[str, dict[str, Any]] = {}
    for name, value in (("inputs", inputs), ("outputs", outputs)):
        schema = _as_schema(value) if value is not None else {}
        faults = check_schema(schema)
        problems += [_field_problem(name, fault.message, fault.hint) for fault in faults]
        schemas_by_name[name] = schema or {"type": "object"}
    for name, files in (("inputsFiles", inputs_files), ("outputsFiles", outputs_files)):
        rule = {"$ref": f"{IO['$id']}#/$defs/{name}"}
        if not jsonschema_rs.Draft202012Validator(rule, registry=schemas.registry()).is_valid(
            dict(files)
        ):
            problems.append(_field_problem(name, "these are not files", "write {key: {path: …}}"))
    if problems:
        raise ManifestError(problems)
    return IoHandle(
        include_builtin_schemas(schemas_by_name["inputs"]),
        include_builtin_schemas(schemas_by_name["outputs"]),
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
    """Define a contract. Raises ManifestError for fields that are invalid in a TOOL.md."""
    members: dict[str, Any] = {}
    for key, value in {**(definition or {}), **fields}.items():
        name = _SPELLINGS.get(key, key)
        if name in members:
            raise ManifestError(
                [_field_problem(name, f"{name} is passed twice", "remove one of the two")]
            )
        members[name] = value
    if "execute" in members:
        raise ManifestError(
            [
                _field_problem(
                    "execute",
                    "a contract has no implementation: since AIP-30, a driver implements it",
                    "pass it to define_driver as execute={contract id: function}",
                )
            ]
        )
    if io is not None:
        if io.has_files:
            raise ManifestError(
                [
                    _field_problem(
                        "io", "files cannot be passed to an MCP server", "pass values only"
                    )
                ]
            )
        members = {"inputs": io.inputs, "outputs": io.outputs, **members}
    for name in ("inputs", "outputs", "contextSchema"):
        if name in members:
            members[name] = _as_schema(members[name])
    if "contextSchema" in members:
        metadata = members.get("metadata") or {}
        members["metadata"] = {**metadata, "contextSchema": members.pop("contextSchema")}
    try:
        values = normalize_names(members, TOOL)
    except InvalidValueError as bad:
        raise ManifestError([_field_problem("", bad.message, bad.hint)]) from None
    return read_contract_fields(ManifestDocument(str(file), values), file).unwrap()


class _SingleBackendVault(Struct, frozen=True):
    """A vault with one backend."""

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
    """Define a secret, without its value. Raises ManifestError.

    Args:
        record: records each granted and denied access.
    """
    try:
        values = normalize_names({**(definition or {}), **fields}, SECRET)
    except InvalidValueError as bad:
        raise ManifestError([_field_problem("", bad.message, bad.hint)]) from None
    document = ManifestDocument(str(file), values)
    problems = [
        _field_problem(
            name, f"{name} could contain the secret itself", "keep the secret in the vault"
        )
        for name in FORBIDDEN
        if name in values
    ]
    problems = problems or explain(document, "secret")
    if problems:
        raise ManifestError(problems)
    backend = None if vault is None else _SingleBackendVault(vault)
    return SecretHandle(build_secret(values, file), backend, record, now)


def _as_schema(value: Any) -> Any:
    """Return a schema unchanged, or the schema of a pydantic model."""
    build_schema = getattr(value, "model_json_schema", None)
    return build_schema() if callable(build_schema) else value


def _field_problem(path: str, message: str, hint: str) -> Problem:
    return Problem("", 0, 0, path, message, hint)


defineTool = define_tool
defineIO = define_io
defineSecret = define_secret


# -- Field names in camel case: `protocolVersion` for `protocol_version`.
#
# Only the names of schema fields are converted. Names that the author chose (variables, inputs,
# metadata) are unchanged.

_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])([A-Z])")
_MAX_DEPTH: Final = 64


def to_snake_case(name: str) -> str:
    """Convert a name to snake case: `protocolVersion` → `protocol_version`."""
    return _CAPITAL.sub(lambda capital: f"_{capital[1].lower()}", name)


def normalize_names(value: Any, *schemas: Schema) -> Any:
    """Return a value as plain data, with the field names of its schemas.

    Raises InvalidValueError if a field occurs in both spellings, if the value is not plain data,
    or if it is nested too deeply.
    """
    return _normalize_names(value, schemas, 0)


def _normalize_names(value: Any, schemas: Sequence[Schema], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise InvalidValueError("this is nested too deeply", "use fewer levels")
    if isinstance(value, Mapping):
        branches = [branch for schema in schemas for branch in _branches(schema)]
        fields = {name for branch in branches for name in branch.get("properties", {})}
        result: dict[str, Any] = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                raise InvalidValueError("a key is not text", "use names as keys")
            name = key if key in fields or to_snake_case(key) not in fields else to_snake_case(key)
            if name in result:
                raise InvalidValueError(
                    f"{name} is passed twice", "remove one of the two spellings"
                )
            member_schemas = tuple(_member_schemas(branches, name))
            result[name] = _normalize_names(inner, member_schemas, depth + 1)
        return result
    if isinstance(value, (list, tuple, set, frozenset)):
        members = sorted(value) if isinstance(value, (set, frozenset)) else value
        item_schemas = tuple(
            branch["items"]
            for schema in schemas
            for branch in _branches(schema)
            if isinstance(branch.get("items"), dict)
        )
        return [_normalize_names(inner, item_schemas, depth + 1) for inner in members]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise InvalidValueError(
        f"{type(value).__name__} is not allowed in a manifest", "use plain data"
    )


def _branches(schema: Schema) -> Iterator[Schema]:
    """Yield a schema, and the schemas in it that apply to the same value."""
    yield schema
    for keyword in ("allOf", "anyOf", "oneOf"):
        for inner in schema.get(keyword, ()):
            yield from _branches(inner)
    if isinstance(schema.get("then"), dict):
        yield from _branches(schema["then"])


def _member_schemas(branches: Sequence[Schema], name: str) -> Iterator[Schema]:
    for branch in branches:
        properties = branch.get("properties", {})
        if name in properties:
            yield properties[name]
        elif isinstance(branch.get("additionalProperties"), dict):
            yield branch["additionalProperties"]
