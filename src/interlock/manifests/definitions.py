"""Drivers in Python: behaviour that data cannot express, beside a DRIVER.md.

`driver.py` exports `driver = define_driver(...)`. What it says is validated like front matter, in
either spelling of the fields; the front matter wins where both say something. Nothing is done when
a definition is made: hooks are kept and called later, by others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from interlock import errors
from interlock.core.config.problems import BadValue, ConfigError, Problem, one_of
from interlock.errors import InterlockError
from interlock.manifests.document import Document
from interlock.manifests.driver import DriverManifest
from interlock.manifests.driver_reader import read_fields
from interlock.manifests.findings import Caution, ManifestError, in_order
from interlock.manifests.schema_errors import explain
from interlock.manifests.schemas import DRIVER, MCP
from interlock.manifests.spelling import put_right, snake

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
    document = Document(str(manifest.file), {**added, **manifest.source})
    reading = read_fields(document, manifest.file, has_code=True, digest=manifest.digest)
    return reading.unwrap(), cautions


def manifest_of(definition: DriverDefinition, file: Path = _UNNAMED) -> DriverManifest:
    """The driver that a definition stands for alone. Raises ManifestError."""
    document = Document(str(file), definition.values)
    return read_fields(document, file, has_code=True).unwrap()


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
        errors.by_name("execute_binding_mismatch"),
        f"The execute of driver.py does not match implements: {'; '.join(parts)}.",
        {"missing": missing, "surplus": surplus},
    )


def _field_problems(values: dict[str, Any]) -> list[Problem]:
    """What front matter could not say. A definition that is whole is looked at like a file."""
    document = Document(str(_UNNAMED), values)
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
            found = read_fields(document, _UNNAMED, has_code=True).problems
        except ConfigError as error:
            found = error.problems
    return found


def _problem(path: str, message: str, hint: str) -> Problem:
    return Problem(str(_UNNAMED), 0, 0, path, message, hint)


defineDriver = define_driver
defineMcpDriver = define_mcp_driver
