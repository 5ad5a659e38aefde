"""Who may have a secret: asked first, written down always, and only then is a vault asked.

A driver's server serves several tools at once, so what is asked is whether any tool that the driver
implements may have the secret bound. What is written down names the secret and never its value.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from interlock.drivers.vault import Vault, VaultTrouble, entry_named
from interlock.errors import AUTH_REQUIRED, InterlockError
from interlock.manifests.model import SecretEntry, SecretsInventory
from interlock.manifests.secret_handle import Context, Record, SecretHandle, access_to
from interlock.manifests.secret_names import default_slug


class Asker(Struct, frozen=True):
    """On whose behalf a secret is wanted."""

    driver: str = ""
    tools: frozenset[str] = frozenset()
    """Every contract that the driver implements."""
    roles: frozenset[str] = frozenset()
    """Roles and capabilities."""
    user: str = ""
    workflow: str = ""
    only_for: Mapping[str, Sequence[str]] = {}
    """Slugs that the operator keeps for some drivers."""

    def is_kept_from(self, slug: str) -> bool:
        """Whether the operator keeps a secret for others."""
        return self.driver not in self.only_for.get(slug, (self.driver,))

    @property
    def context(self) -> Context:
        """The same, as an inventory speaks of it. Who has no name is nobody's user."""
        named = {"driver": self.driver, "userId": self.user, "workflow": self.workflow}
        return {
            "role": self.roles,
            "cap": self.roles,
            "tool": self.tools,
            **{kind: name for kind, name in named.items() if name},
        }


class Bound(dict[str, str]):
    """Values by NAME, for `${secrets.NAME}`. Shows its names only."""

    def __repr__(self) -> str:
        return f"Bound({', '.join(self)})"

    __str__ = __repr__


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
        wanted[name] = SecretHandle(_listed(name, inventory), vault, record, now)
    for handle in wanted.values():
        if asker.is_kept_from(handle.slug):
            handle.deny("bind", asker.context, purpose)
            raise InterlockError(
                AUTH_REQUIRED,
                f"{asker.driver} may not have the secret {handle.slug}: drivers.secrets_for in "
                "interlock.yaml keeps it for others.",
                data={"secret": handle.slug, "driver": asker.driver, "operation": "bind"},
            )
        handle.require("bind", asker.context, purpose)
    values = Bound()
    for name, handle in wanted.items():
        values[name] = await handle.reveal(asker.context, purpose=purpose, operation="bind")
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
            there = (
                entry is not None
                and not asker.is_kept_from(entry.slug)
                and access_to(entry, "bind", asker.context).granted
                and await vault.has(entry)
            )
        except VaultTrouble:
            there = False
        if not there:
            left.append(name)
    return left


def _listed(name: str, inventory: SecretsInventory) -> SecretEntry:
    try:
        entry = entry_named(name, inventory)
    except VaultTrouble as trouble:
        raise InterlockError(AUTH_REQUIRED, f"${{secrets.{name}}}: {trouble}.") from None
    if entry is None:
        raise InterlockError(
            AUTH_REQUIRED,
            f"${{secrets.{name}}} is in no inventory: list it in the driver's SECRETS.md "
            f"(slug {default_slug(name)}).",
            data={"name": name},
        )
    return entry
