"""A secret as a program uses it: what is known of it, whether somebody may have it, and its value.

Who asks is looked at first, every answer is written down, and only in between is a vault asked.
What is written down names the secret and never its value.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from inspect import isawaitable
from typing import Any, Final, Protocol

from msgspec import Struct

from interlock.errors import AUTH_REQUIRED, InterlockError
from interlock.manifests.model import AccessEntry, AccessOperation, SecretEntry, SecretKind
from interlock.manifests.secret_names import variable_name
from interlock.primitives.timestamps import format_utc_ms

OPEN: Final = "open"
"""What grants an operation that an inventory does not speak of."""

SecretContext = Mapping[str, str | Collection[str]]
"""On whose behalf a secret is wanted: `role`, `cap`, `tool`, `userId`, `workflow`, one each or
several; and `driver`, whose server is to have it."""

AccessRecorder = Callable[[dict[str, Any]], None]
"""Writes one row down. When it cannot, it raises, and the secret stays where it is."""

_log = logging.getLogger("interlock.secrets")


class VaultError(Exception):
    """Why a value cannot be had, as the rest of a sentence. Never holds a value."""


class SecretBackend(Protocol):
    """One place where values are."""

    def fetch(self, slug: str, backend: Mapping[str, Any]) -> Awaitable[str | None] | str | None:
        """The value now, or something to await that gives it; None when it is not here. `backend`
        is what the inventory says of it, and `env`, the variable that it is bound to. Raises
        VaultError."""
        ...


async def asked(backend: SecretBackend, entry: SecretEntry) -> str | None:
    """What one backend has for a secret. Raises VaultError."""
    found = backend.fetch(entry.slug, {**entry.backend, "env": variable_name(entry)})
    return await found if isawaitable(found) else found


class SecretVault(Protocol):
    """Where secrets really are."""

    async def value(self, entry: SecretEntry) -> str | None:
        """What a secret stands for now; None when it is not here. Raises VaultError."""


class AccessDecision(Struct, frozen=True):
    """Whether somebody may, and by which entry. None: the inventory names nobody for it."""

    granted: bool
    granted_by: AccessEntry | None = None
    reason: str = ""

    def __bool__(self) -> bool:
        return self.granted

    @property
    def words(self) -> str:
        """What grants it, for the record; nothing where nothing does."""
        if self.granted_by is None:
            return OPEN if self.granted else ""
        return f"{self.granted_by.kind}:{self.granted_by.value}"


def access_to(
    entry: SecretEntry, operation: AccessOperation, context: SecretContext
) -> AccessDecision:
    """Whether a context may do this with a secret: any one entry of its list is enough."""
    listed = entry.access.get(operation)
    if listed is None:
        return AccessDecision(True)
    for one in listed:
        if one.value and one.value in _several(context, one.kind):
            return AccessDecision(True, one)
    return AccessDecision(False, reason=f"nobody of this context may {operation} {entry.slug}")


def to_log(row: dict[str, Any]) -> None:
    """Writes a row to the log of this process, where no journal is at hand."""
    _log.info("%s", row)


class SecretHandle(Struct, frozen=True):
    """One secret of an inventory, or one that it could list."""

    entry: SecretEntry
    vault: SecretVault | None = None
    record: AccessRecorder = to_log
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

    def check_access(self, operation: AccessOperation, context: SecretContext) -> AccessDecision:
        """Whether a context may. Nothing is written down, for nobody is given anything."""
        return access_to(self.entry, operation, context)

    checkAccess = check_access

    async def reveal(
        self,
        context: SecretContext,
        *,
        purpose: str = "reveal",
        operation: AccessOperation = "reveal",
    ) -> str:
        """Its value, once it is written down that it was given. Raises InterlockError."""
        access = self.require(operation, context, purpose)
        value = await self._fetched()
        row = self._row("secret.reveal", operation, context, purpose)
        self.record({**row, "granted_by": access.words})
        return value

    def require(
        self, operation: AccessOperation, context: SecretContext, purpose: str
    ) -> AccessDecision:
        """Raises InterlockError, and writes it down, when somebody may not have it."""
        access = self.check_access(operation, context)
        if access.granted:
            return access
        self.deny(operation, context, purpose)
        driver, tools = _one(context, "driver"), sorted(_several(context, "tool"))
        raise InterlockError(
            AUTH_REQUIRED,
            f"{driver or _actor(context)} may not have the secret {self.slug}: "
            f"access.{operation} in {self.entry.file} names none of its tools "
            f"({', '.join(tools) or 'it has none'}) and no role of this node. "
            "Add one there, or a role under drivers.roles in interlock.yaml.",
            data={"secret": self.slug, "driver": driver, "operation": operation},
        )

    def deny(self, operation: AccessOperation, context: SecretContext, purpose: str) -> None:
        """Write down that somebody asked in vain."""
        self.record(self._row("secret.reveal.denied", operation, context, purpose))

    async def _fetched(self) -> str:
        name = variable_name(self.entry)
        about = {"secret": self.slug, "name": name}
        if self.vault is None:
            raise InterlockError(AUTH_REQUIRED, f"There is no vault for {self.slug}.", about)
        try:
            value = await self.vault.value(self.entry)
        except VaultError as trouble:
            raise InterlockError(
                AUTH_REQUIRED, f"The secret {self.slug} cannot be had: {trouble}.", about
            ) from None
        if value is None:
            raise missing(self.slug, name, self.entry.name)
        return value

    def _row(
        self, kind: str, operation: AccessOperation, context: SecretContext, purpose: str
    ) -> dict[str, Any]:
        return {
            "type": kind,
            "slug": self.slug,
            "actor": _actor(context),
            "purpose": purpose,
            "context": {
                "operation": operation,
                "driver": _one(context, "driver"),
                "tools": sorted(_several(context, "tool")),
            },
            "timestamp": format_utc_ms(self.now()),
        }


def missing(slug: str, name: str, called: str = "") -> InterlockError:
    """There is no value for a secret."""
    shown = f" ({called})" if called else ""
    return InterlockError(
        AUTH_REQUIRED,
        f"The secret {slug}{shown} has no value. Say in interlock.yaml where it is: `drivers: "
        f"{{secrets: {{{slug}: '${{env:{name}}}'}}}}` or '${{file:…}}'; or let drivers have the "
        f"node's own variable: `drivers: {{env_secrets: [{name}]}}`. Then set {name} before the "
        "node starts.",
        data={"secret": slug, "name": name},
    )


def _actor(context: SecretContext) -> str:
    driver = _one(context, "driver")
    return _one(context, "userId") or (f"driver:{driver}" if driver else "somebody unnamed")


def _one(context: SecretContext, kind: str) -> str:
    return next(iter(sorted(_several(context, kind))), "")


def _several(context: SecretContext, kind: str) -> Collection[str]:
    found = context.get(kind, ())
    return (found,) if isinstance(found, str) else found
