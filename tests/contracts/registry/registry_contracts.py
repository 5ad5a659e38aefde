"""Contracts for tests, and a registry for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from interlock.contracts.registry.git import GitChoice
from interlock.contracts.registry.records import (
    Contract,
    ContractProtocol,
    Provenance,
    StoredContract,
)
from interlock.contracts.registry.registry import ContractRegistry

NOW = 1_800_000_000.0
"""2027-01-15T08:00:00Z."""


def schema(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """Return an object schema with these properties."""
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(required),
    }


def contract(
    name: str = "Order",
    version: str = "1.0.0",
    document: Any = None,
    *,
    domain: str = "shop",
    protocol: ContractProtocol = "json-schema",
    source: str = "order.schema.json",
    generator: str = "interlock 1",
    timestamp: str = "2027-01-01T00:00:00Z",
) -> Contract:
    if document is None:
        document = schema(("id",), id="string")
    raw = document if isinstance(document, bytes) else msgspec.json.encode(document)
    return Contract(name, version, domain, protocol, raw, Provenance(source, generator, timestamp))


class RegistryBench:
    """A registry with a manual clock."""

    def __init__(self, folder: Path, means: GitChoice = "auto") -> None:
        self.folder = folder
        self.now = NOW
        self.backend_name: GitChoice = means
        self.registry = self.open()

    def open(self) -> ContractRegistry:
        return ContractRegistry(
            self.folder, backend=self.backend_name, lock_timeout=2.0, clock=lambda: self.now
        )

    def put(self, one: Contract, reason: str = "because") -> StoredContract:
        return self.registry.publish(one, author="operator", reason=reason)

    def close(self) -> None:
        self.registry.close()
