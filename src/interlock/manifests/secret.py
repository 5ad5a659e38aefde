"""What a SECRETS.md says (AIP-19): which secrets there are and who may have them; never a value."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

SecretKind = Literal["opaque", "oauth", "keypair", "json"]
AccessOperation = Literal["reveal", "bind", "rotate"]


class AccessEntry(Struct, frozen=True):
    """Who may: exactly one of the kinds."""

    kind: Literal["role", "userId", "cap", "tool", "workflow"]
    value: str


class SecretEntry(Struct, frozen=True):
    """One secret: its name, what it is for, and who may have it."""

    slug: str
    name: str
    description: str
    file: Path
    kind: SecretKind = "opaque"
    backend: dict[str, Any] = field(default_factory=dict)
    access: dict[AccessOperation, tuple[AccessEntry, ...]] = field(default_factory=dict)
    """An operation that is not named is open to everybody the host lets in."""
    retention: str = ""
    pii: bool = False
    classification: tuple[str, ...] = ()
    env: str = ""
    """The variable that it is bound to, where an exposure or metadata.bindings.env says so."""
    env_names: tuple[str, ...] = ()
    """All such variables; `env` is the first."""
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    line: int = 0
    """Where the entry stands in the file."""


class SecretsInventory(Struct, frozen=True):
    """Everything that the inventories of a workspace list, by slug."""

    entries: dict[str, SecretEntry] = field(default_factory=dict)
