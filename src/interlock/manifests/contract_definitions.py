"""Contracts, inputs and outputs, and secrets in Python.

What they are given is validated like the front matter of a TOOL.md or SECRETS.md, in either
spelling of the fields. Models of pydantic are turned into JSON Schema, and only that is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
from msgspec import Struct, field

from interlock.core.config.problems import BadValue, Problem
from interlock.manifests import schemas
from interlock.manifests.document import Document
from interlock.manifests.findings import ManifestError
from interlock.manifests.schema_errors import explain
from interlock.manifests.schemas import IO, SECRET, TOOL
from interlock.manifests.secret import SecretEntry
from interlock.manifests.secret_handle import Backend, Record, SecretHandle, asked, to_log
from interlock.manifests.secrets_reader import FORBIDDEN, build_secret
from interlock.manifests.spelling import put_right
from interlock.manifests.tool import ToolContract
from interlock.manifests.tool_reader import check_schema, read_fields, self_contained
from interlock.protocol.json_pointer import pointer_to
from interlock.protocol.schema_cost import UNEXPLAINED, errors_of

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
        errors = errors_of(validator, self.inputs, value, _MOST_PROBLEMS)
        if errors is None:
            return (InputProblem("", UNEXPLAINED),)
        return tuple(InputProblem(pointer_to(one.instance_path), one.message) for one in errors)

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
        raise ManifestError([_problem("", f"{next(iter(spelt))} is not a field", "see AIP-16")])
    problems: list[Problem] = []
    found: dict[str, dict[str, Any]] = {}
    for name, value in (("inputs", inputs), ("outputs", outputs)):
        schema = _as_schema(value) if value is not None else {}
        faults = check_schema(schema)
        problems += [_problem(name, fault.message, fault.hint) for fault in faults]
        found[name] = schema or {"type": "object"}
    for name, files in (("inputsFiles", inputs_files), ("outputsFiles", outputs_files)):
        rule = {"$ref": f"{IO['$id']}#/$defs/{name}"}
        if not jsonschema_rs.Draft202012Validator(rule, registry=schemas.registry()).is_valid(
            dict(files)
        ):
            problems.append(_problem(name, "these are not files", "write {key: {path: …}}"))
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
            raise ManifestError([_problem(name, f"{name} is given twice", "keep one of the two")])
        given[name] = value
    if "execute" in given:
        raise ManifestError(
            [
                _problem(
                    "execute",
                    "a contract has no body: since AIP-30 a driver has it",
                    "give it to define_driver as execute={contract id: function}",
                )
            ]
        )
    if io is not None:
        if io.has_files:
            raise ManifestError(
                [_problem("io", "files cannot be passed to an MCP server", "pass values only")]
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
        raise ManifestError([_problem("", bad.message, bad.hint)]) from None
    return read_fields(Document(str(file), values), file).unwrap()


class _OneBackend(Struct, frozen=True):
    """A vault that asks nobody else."""

    backend: Backend

    async def value(self, entry: SecretEntry) -> str | None:
        return await asked(self.backend, entry)


def define_secret(
    definition: Mapping[str, Any] | None = None,
    /,
    *,
    vault: Backend | None = None,
    record: Record = to_log,
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
        raise ManifestError([_problem("", bad.message, bad.hint)]) from None
    document = Document(str(file), values)
    problems = [
        _problem(name, f"{name} could hold the secret itself", "keep it in the vault")
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


def _problem(path: str, message: str, hint: str) -> Problem:
    return Problem("", 0, 0, path, message, hint)


defineTool = define_tool
defineIO = define_io
defineSecret = define_secret
