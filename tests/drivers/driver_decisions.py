"""Contracts, drivers and candidates for tests, with as little said as possible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from interlock.drivers.resolver import (
    Candidate,
    DriverChoice,
    DriverCondition,
    Machine,
    SelectionPolicy,
    route,
)
from interlock.manifests.model import (
    Cost,
    DriverManifest,
    ImplementedContract,
    McpBinding,
    ToolContract,
)

LINUX = Machine(os="linux", arch="x64", disk_mb=10_000, memory_mb=4_000)
ANYWHERE = SelectionPolicy()
NOW = 10_000.0


def contract(id: str = "image.create", **said: Any) -> ToolContract:
    values: dict[str, Any] = {
        "name": "A contract",
        "description": "Does something.",
        "version": "1.4.2",
        "inputs": {"type": "object", "properties": {"prompt": {"type": "string"}}},
        "outputs": {"type": "object"},
    }
    return ToolContract(file=Path("tools") / id / "TOOL.md", id=id, **{**values, **said})


def inputs(*required: str, **properties: Any) -> dict[str, Any]:
    """A schema of inputs: names of the required ones, then every property by its type or schema."""
    return {
        "type": "object",
        "properties": {
            name: {"type": said} if isinstance(said, str) else said
            for name, said in properties.items()
        },
        "required": list(required),
    }


READ = contract(
    "fs-read",
    inputs=inputs("path", path="string", mode="string", limit="integer"),
    outputs={
        "type": "object",
        "properties": {"contents": {"type": "string"}, "mime": {"type": "string"}},
        "required": ["contents"],
        "additionalProperties": False,
    },
)
"""A contract with something of everything."""


def entry(tool_name: str | None = "make", **said: Any) -> ImplementedContract:
    mcp = None
    if tool_name is not None:
        binding = {
            name: said.pop(name) for name in ("argument_mapping", "result_extract") if name in said
        }
        mcp = McpBinding(tool_name=tool_name, **binding)
    values: dict[str, Any] = {"tool": "image.create", "version": "^1.0.0", "mcp": mcp}
    return ImplementedContract(**{**values, **said})


def driver(id: str = "painter-mcp", **said: Any) -> DriverManifest:
    values: dict[str, Any] = {
        "name": id,
        "description": "A driver.",
        "version": "1.0.0",
        "kind": "mcp",
        "implements": (),
    }
    return DriverManifest(file=Path(".drivers") / id / "DRIVER.md", id=id, **{**values, **said})


def candidate(
    id: str = "painter-mcp",
    *,
    units: float | None = None,
    using: ImplementedContract | None = None,
    condition: DriverCondition | None = None,
    **said: Any,
) -> Candidate:
    if units is not None:
        said["cost"] = Cost(units_per_call=units)
    return Candidate(driver(id, **said), using or entry(), condition or DriverCondition())


def decide(
    *candidates: Candidate,
    of: ToolContract | None = None,
    given: tuple[str, ...] = ("prompt",),
    workspace: SelectionPolicy = ANYWHERE,
    machine: Machine = LINUX,
    pinned: str | None = None,
    now: float = NOW,
) -> DriverChoice:
    return route(
        of or contract(),
        candidates,
        given,
        workspace=workspace,
        machine=machine,
        pinned=pinned,
        now=now,
    )


def selected_ids(decision: DriverChoice) -> list[str]:
    """Those that are left, the best first."""
    return [item.driver.id for item in decision.order]


def rejection_reasons(decision: DriverChoice) -> dict[str, tuple[int, str]]:
    """Those that are not: id → phase and code."""
    return {item.driver.partition("@")[0]: (item.phase, item.code) for item in decision.rejected}
