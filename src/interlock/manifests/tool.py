"""What a TOOL.md says (AIP-14): a contract that drivers serve. Frozen structs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct, field

from interlock.manifests.driver import CostClass, Retry


class Example(Struct, frozen=True):
    """A call and what comes of it, true for every driver."""

    input: dict[str, Any]
    output: Any = None
    has_output: bool = False
    note: str = ""
    name: str = ""


class Needs(Struct, frozen=True):
    """What a contract needs of its host, at least: hosts to reach, secrets, other tools."""

    network: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()


class DriverConstraints(Struct, frozen=True):
    """Which drivers may serve it."""

    forbid: tuple[str, ...] = ()
    """Ids of drivers, or kinds."""
    require_kind: tuple[str, ...] = ()


class ToolContract(Struct, frozen=True):
    """A whole TOOL.md."""

    file: Path
    id: str
    name: str
    description: str
    version: str
    inputs: dict[str, Any]
    """JSON Schema 2020-12."""
    outputs: dict[str, Any]
    idempotent: bool = False
    mutates: tuple[str, ...] = ()
    """`<class>:<scope>` each. Empty: it changes nothing."""
    requires: Needs = Needs()
    approval: str = "auto"
    """`auto`, `always`, `on-mutate` or `policy:<ref>`."""
    risk_level: int = 0
    """0 to 3; 3 cannot be undone."""
    cost_class: CostClass = "trivial"
    timeout_ms: int = 30_000
    retry: Retry | None = None
    default_implementation: str = ""
    driver_constraints: DriverConstraints = DriverConstraints()
    examples: tuple[Example, ...] = ()
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    context_schema: dict[str, Any] | None = None
    """`metadata.contextSchema`."""
    digest: str = ""
    """SHA-256 of the file, in hex."""

    @property
    def major(self) -> int:
        return int(self.version.split(".", 1)[0])

    @property
    def key(self) -> str:
        """`id@major`: two majors are two contracts."""
        return f"{self.id}@{self.major}"
