"""Who may have a secret: asked first, written down always, and only then is a vault asked.

A driver's server serves several tools at once, so what is asked is whether any tool that the driver
implements may have the secret bound. What is written down names the secret and never its value.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from interlock.errors import AUTH_REQUIRED, InterlockError
from interlock.manifests.secret import (
    AccessEntry,
    AccessOperation,
    SecretEntry,
    SecretKind,
    SecretsInventory,
)
from interlock.upstreams.drivers.vault import Vault, VaultTrouble, entry_named, variable_of

OPEN: Final = "open"
"""What grants an operation that an inventory does not speak of."""

Record = Callable[[dict[str, Any]], None]
"""Writes one row down. When it cannot, it raises, and the secret stays where it is."""


class Asker(Struct, frozen=True):
    """On whose behalf a secret is wanted."""

    driver: str = ""
    tools: frozenset[str] = frozenset()
    """Every contract that the driver implements."""
    roles: frozenset[str] = frozenset()
    """Roles and capabilities."""
    user: str = ""
    workflow: str = ""

    @property
    def actor(self) -> str:
        return self.user or f"driver:{self.driver}"

    def is_meant_by(self, entry: AccessEntry) -> bool:
        match entry.kind:
            case "role" | "cap":
                return entry.value in self.roles
            case "tool":
                return entry.value in self.tools
            case "userId":
                return bool(self.user) and entry.value == self.user
            case "workflow":
                return bool(self.workflow) and entry.value == self.workflow


class Bound(dict[str, str]):
    """Values by NAME, for `${secrets.NAME}`. Shows its names only."""

    def __repr__(self) -> str:
        return f"Bound({', '.join(self)})"

    __str__ = __repr__


def granted_by(entry: SecretEntry, operation: AccessOperation, asker: Asker) -> str | None:
    """What lets somebody do this with a secret: an entry of its list, any one of them; None: no."""
    listed = entry.access.get(operation)
    if listed is None:
        return OPEN
    return next((f"{one.kind}:{one.value}" for one in listed if asker.is_meant_by(one)), None)


class SecretHandle(Struct, frozen=True):
    """A secret as a program uses it: what is known of it, and two things to do with it."""

    entry: SecretEntry
    vault: Vault
    record: Record
    now: Callable[[], float] = time.time

    @property
    def slug(self) -> str:
        return self.entry.slug

    @property
    def namespace(self) -> str:
        """What stands before the `/` of its slug."""
        return self.entry.slug.rpartition("/")[0]

    @property
    def kind(self) -> SecretKind:
        return self.entry.kind

    @property
    def access(self) -> Mapping[AccessOperation, tuple[AccessEntry, ...]]:
        return self.entry.access

    @property
    def audit(self) -> dict[str, Any]:
        """How long its rows are kept, and how it is classified."""
        entry = self.entry
        return {
            "retention": entry.retention,
            "pii": entry.pii,
            "classification": list(entry.classification),
        }

    def check_access(self, operation: AccessOperation, asker: Asker) -> bool:
        return granted_by(self.entry, operation, asker) is not None

    async def reveal(
        self, asker: Asker, *, purpose: str = "reveal", operation: AccessOperation = "reveal"
    ) -> str:
        """Its value, once it is written down that it was given. Raises InterlockError."""
        self.require(operation, asker, purpose)
        value = await self._fetched()
        by = granted_by(self.entry, operation, asker) or ""
        row = self._row("secret.reveal", operation, asker, purpose)
        self.record({**row, "granted_by": by})
        return value

    def require(self, operation: AccessOperation, asker: Asker, purpose: str) -> None:
        """Raises InterlockError, and writes it down, when somebody may not have it."""
        if self.check_access(operation, asker):
            return
        self.record(self._row("secret.reveal.denied", operation, asker, purpose))
        raise InterlockError(
            AUTH_REQUIRED,
            f"{asker.driver or asker.actor} may not have the secret {self.slug}: "
            f"access.{operation} in {self.entry.file} names none of its tools "
            f"({', '.join(sorted(asker.tools)) or 'it has none'}) and no role of this node. "
            "Add one there, or a role under drivers.roles in interlock.yaml.",
            data={"secret": self.slug, "driver": asker.driver, "operation": operation},
        )

    async def _fetched(self) -> str:
        name = variable_of(self.entry)
        about = {"secret": self.slug, "name": name}
        try:
            value = await self.vault.value(self.entry)
        except VaultTrouble as trouble:
            raise InterlockError(
                AUTH_REQUIRED, f"The secret {self.slug} cannot be had: {trouble}.", about
            ) from None
        if value is None:
            raise missing(self.slug, name, self.entry.name)
        return value

    def _row(
        self, kind: str, operation: AccessOperation, asker: Asker, purpose: str
    ) -> dict[str, Any]:
        return {
            "type": kind,
            "slug": self.slug,
            "actor": asker.actor,
            "purpose": purpose,
            "context": {
                "operation": operation,
                "driver": asker.driver,
                "tools": sorted(asker.tools),
            },
            "timestamp": datetime.fromtimestamp(self.now(), UTC).isoformat(timespec="milliseconds"),
        }


def define_secret(
    entry: SecretEntry, *, vault: Vault, record: Record, now: Callable[[], float] = time.time
) -> SecretHandle:
    """A handle for a secret of an inventory."""
    return SecretHandle(entry, vault, record, now)


async def bind(
    names: Iterable[str],
    *,
    inventory: SecretsInventory,
    vault: Vault,
    asker: Asker,
    record: Record,
    purpose: str = "spawn",
    now: Callable[[], float] = time.time,
) -> Bound:
    """The values for a driver's server, by NAME. Raises InterlockError.

    Who may have only some of them gets none, and no vault is asked for any.
    """
    wanted: dict[str, SecretHandle] = {}
    for name in dict.fromkeys(names):
        wanted[name] = define_secret(_listed(name, inventory), vault=vault, record=record, now=now)
    for handle in wanted.values():
        handle.require("bind", asker, purpose)
    values = Bound()
    for name, handle in wanted.items():
        values[name] = await handle.reveal(asker, purpose=purpose, operation="bind")
    return values


async def unresolved(
    names: Iterable[str], *, inventory: SecretsInventory, vault: Vault, asker: Asker
) -> list[str]:
    """Which of these secrets could not be bound now. Nobody is given anything, so nothing is
    written down; who may not have one is not told whether it is there."""
    left: list[str] = []
    for name in dict.fromkeys(names):
        try:
            entry = entry_named(name, inventory)
            may = entry is not None and granted_by(entry, "bind", asker) is not None
            there = may and entry is not None and await vault.has(entry)
        except VaultTrouble:
            there = False
        if not there:
            left.append(name)
    return left


def missing(slug: str, name: str, called: str = "") -> InterlockError:
    """There is no value for a secret."""
    shown = f" ({called})" if called else ""
    return InterlockError(
        AUTH_REQUIRED,
        f"The secret {slug}{shown} has no value. Set the environment variable {name} before the "
        f"node starts, or name its place in interlock.yaml: drivers: {{secrets: {{{slug}: "
        f"${{env:…}} or ${{file:…}}}}}}.",
        data={"secret": slug, "name": name},
    )


def _listed(name: str, inventory: SecretsInventory) -> SecretEntry:
    try:
        entry = entry_named(name, inventory)
    except VaultTrouble as trouble:
        raise InterlockError(AUTH_REQUIRED, f"${{secrets.{name}}}: {trouble}.") from None
    if entry is None:
        raise InterlockError(
            AUTH_REQUIRED,
            f"${{secrets.{name}}} is in no inventory: list it in the driver's SECRETS.md "
            f"(slug {name.lower().replace('_', '-')}).",
            data={"name": name},
        )
    return entry
