"""A secret for programs: its metadata, access checks, and its value.

Access is checked first, each result is recorded, and only then the vault is asked. A record names
the secret and never its value.
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
"""The grant for an operation that the inventory does not restrict."""

SecretContext = Mapping[str, str | Collection[str]]
"""On whose behalf a secret is requested: `role`, `cap`, `tool`, `userId`, `workflow`, one or
several values each; and `driver`, the driver whose server gets the secret."""

AccessRecorder = Callable[[dict[str, Any]], None]
"""Writes one access record. It raises if it cannot, and then the secret is not given."""

_log = logging.getLogger("interlock.secrets")


class VaultError(Exception):
    """The reason why a value is not available, as the rest of a sentence. Never contains a
    value."""


class SecretBackend(Protocol):
    """A place that holds values."""

    def fetch(self, slug: str, backend: Mapping[str, Any]) -> Awaitable[str | None] | str | None:
        """Return the current value, or an awaitable of it. None: it is not here. Raises VaultError.

        Args:
            backend: the members of the inventory entry, and `env`, the variable of the secret.
        """
        ...


async def fetch_value(backend: SecretBackend, entry: SecretEntry) -> str | None:
    """Return the value of a secret in one backend. None: it is not there. Raises VaultError."""
    result = backend.fetch(entry.slug, {**entry.backend, "env": variable_name(entry)})
    return await result if isawaitable(result) else result


class SecretVault(Protocol):
    """Finds the values of secrets."""

    async def value(self, entry: SecretEntry) -> str | None:
        """Return the current value of a secret. None: it is not here. Raises VaultError."""


class AccessDecision(Struct, frozen=True):
    """The result of an access check, with the entry that grants it."""

    granted: bool
    granted_by: AccessEntry | None = None
    reason: str = ""

    def __bool__(self) -> bool:
        return self.granted

    @property
    def grant(self) -> str:
        """The grant, for the record. Empty: there is none."""
        if self.granted_by is None:
            return OPEN if self.granted else ""
        return f"{self.granted_by.kind}:{self.granted_by.value}"


def check_access(
    entry: SecretEntry, operation: AccessOperation, context: SecretContext
) -> AccessDecision:
    """Return whether a context may use a secret. One matching entry of the access list is
    enough."""
    entries = entry.access.get(operation)
    if entries is None:
        return AccessDecision(True)
    for access in entries:
        if access.value and access.value in _values(context, access.kind):
            return AccessDecision(True, access)
    return AccessDecision(False, reason=f"this context may not {operation} {entry.slug}")


def log_access(row: dict[str, Any]) -> None:
    """Write an access record to the log, where no journal is available."""
    _log.info("secret access: %s", row)


class SecretHandle(Struct, frozen=True):
    """A secret of an inventory, or a secret of the same form that a program defines."""

    entry: SecretEntry
    vault: SecretVault | None = None
    record: AccessRecorder = log_access
    now: Callable[[], float] = time.time

    @property
    def slug(self) -> str:
        return self.entry.slug

    @property
    def namespace(self) -> str:
        """The part of the slug before the `/`."""
        return self.entry.slug.rpartition("/")[0]

    @property
    def kind(self) -> SecretKind:
        return self.entry.kind

    @property
    def access(self) -> Mapping[AccessOperation, tuple[AccessEntry, ...]]:
        return self.entry.access

    @property
    def audit(self) -> dict[str, Any]:
        """The time for which its records are kept, and how it is classified."""
        entry = self.entry
        return {
            "retention": entry.retention,
            "pii": entry.pii,
            "classification": list(entry.classification),
        }

    def check_access(self, operation: AccessOperation, context: SecretContext) -> AccessDecision:
        """Return whether a context may use the secret. Nothing is recorded."""
        return check_access(self.entry, operation, context)

    checkAccess = check_access

    async def reveal(
        self,
        context: SecretContext,
        *,
        purpose: str = "reveal",
        operation: AccessOperation = "reveal",
    ) -> str:
        """Return the value, after the access is recorded. Raises InterlockError."""
        access = self.require(operation, context, purpose)
        value = await self._fetch_value()
        row = self._access_row("secret.reveal", operation, context, purpose)
        self.record({**row, "granted_by": access.grant})
        return value

    def require(
        self, operation: AccessOperation, context: SecretContext, purpose: str
    ) -> AccessDecision:
        """Check access. Raises InterlockError, and records the denial, when it is not granted."""
        access = self.check_access(operation, context)
        if access.granted:
            return access
        self.record_denial(operation, context, purpose)
        driver, tools = _first_value(context, "driver"), sorted(_values(context, "tool"))
        raise InterlockError(
            AUTH_REQUIRED,
            f"{driver or _actor(context)} may not use the secret {self.slug}: "
            f"access.{operation} in {self.entry.file} names none of its tools "
            f"({', '.join(tools) or 'it has none'}) and no role of this node. "
            "Add a tool there, or a role under drivers.roles in interlock.yaml.",
            data={"secret": self.slug, "driver": driver, "operation": operation},
        )

    def record_denial(
        self, operation: AccessOperation, context: SecretContext, purpose: str
    ) -> None:
        """Record that access was denied."""
        self.record(self._access_row("secret.reveal.denied", operation, context, purpose))

    async def _fetch_value(self) -> str:
        name = variable_name(self.entry)
        about = {"secret": self.slug, "name": name}
        if self.vault is None:
            raise InterlockError(AUTH_REQUIRED, f"No vault can provide {self.slug}.", about)
        try:
            value = await self.vault.value(self.entry)
        except VaultError as error:
            raise InterlockError(
                AUTH_REQUIRED, f"The secret {self.slug} is not available: {error}.", about
            ) from None
        if value is None:
            raise missing_error(self.slug, name, self.entry.name)
        return value

    def _access_row(
        self, kind: str, operation: AccessOperation, context: SecretContext, purpose: str
    ) -> dict[str, Any]:
        return {
            "type": kind,
            "slug": self.slug,
            "actor": _actor(context),
            "purpose": purpose,
            "context": {
                "operation": operation,
                "driver": _first_value(context, "driver"),
                "tools": sorted(_values(context, "tool")),
            },
            "timestamp": format_utc_ms(self.now()),
        }


def missing_error(slug: str, name: str, title: str = "") -> InterlockError:
    """Return the error for a secret without a value."""
    label = f" ({title})" if title else ""
    return InterlockError(
        AUTH_REQUIRED,
        f"The secret {slug}{label} has no value. Name its source in interlock.yaml: `drivers: "
        f"{{secrets: {{{slug}: '${{env:{name}}}'}}}}` or '${{file:…}}'. Or let drivers use the "
        f"variable of the node: `drivers: {{env_secrets: [{name}]}}`, and set {name} before the "
        "node starts.",
        data={"secret": slug, "name": name},
    )


def _actor(context: SecretContext) -> str:
    driver = _first_value(context, "driver")
    return _first_value(context, "userId") or (f"driver:{driver}" if driver else "unknown caller")


def _first_value(context: SecretContext, kind: str) -> str:
    return next(iter(sorted(_values(context, kind))), "")


def _values(context: SecretContext, kind: str) -> Collection[str]:
    values = context.get(kind, ())
    return (values,) if isinstance(values, str) else values
