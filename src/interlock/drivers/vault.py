"""The vault: the source of secret values. Values are never stored, shown or logged here.

A vault asks its backends in order, each time a value is needed, so that a rotated secret is used at
the next start of a server. Access rights are checked before.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from interlock.core.config import ConfigError
from interlock.core.config.problems import InvalidValueError
from interlock.errors import AUTH_REQUIRED, InterlockError
from interlock.manifests import secret_names
from interlock.manifests.model import SecretEntry, SecretsInventory
from interlock.manifests.secret_handle import (
    AccessRecorder,
    SecretBackend,
    SecretContext,
    SecretHandle,
    check_access,
    fetch_value,
)
from interlock.manifests.secret_handle import VaultError as VaultError
from interlock.manifests.secret_names import default_name, default_slug

_MAX_FILE_BYTES: Final = 1024 * 1024
_MIN_MILLISECONDS: Final = 1e11
"""Timestamps from this value on are in milliseconds. In seconds it would be the year 5138."""
_VARIABLE_NAME: Final = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)")
_QUOTED: Final = re.compile(r"(['\"])(.*)\1")

_log = logging.getLogger("interlock.drivers")


TokenRenewer = Callable[[SecretEntry, Mapping[str, Any]], Awaitable[str]]
"""Renews an expired token: receives the stored grant and returns its replacement. The renewer
stores it. Raises VaultError."""


def entry_named(name: str, inventory: SecretsInventory) -> SecretEntry | None:
    """Return the secret of `${secrets.NAME}`. Raises VaultError if it is ambiguous."""
    try:
        return secret_names.find_entry(name, inventory)
    except InvalidValueError as error:
        raise VaultError(f"{error.message}: {error.hint}") from None


# -- backends


class MemoryBackend:
    """Values in memory, by slug."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    async def fetch(self, slug: str, backend: Mapping[str, Any]) -> str | None:
        return self._values.get(slug) or None


class EnvironmentBackend:
    """Environment variables, by default those of this process. The operator decides which variables
    may be used: an inventory is the driver's own file and could name any."""

    def __init__(self, allowed: Iterable[str], environ: Mapping[str, str] = os.environ) -> None:
        """Args:
        allowed: names, or patterns with `*`.
        """
        self._allowed = tuple(allowed)
        self._environ = environ

    async def fetch(self, slug: str, backend: Mapping[str, Any]) -> str | None:
        name = _variable(slug, backend)
        if not any(fnmatchcase(name, pattern) for pattern in self._allowed):
            return None
        return self._environ.get(name) or None


class EnvFileBackend:
    """A file of `NAME=value` lines. It is read at every request."""

    def __init__(self, path: Path, *, warn: Callable[[str], None] = _log.warning) -> None:
        self._path = path
        self._warn = warn
        self._warned = False

    async def fetch(self, slug: str, backend: Mapping[str, Any]) -> str | None:
        return read_env_file(self._text()).get(_variable(slug, backend)) or None

    def _text(self) -> str:
        try:
            with self._path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                content = file.read(_MAX_FILE_BYTES + 1)
            text = content.decode("utf-8")
        except FileNotFoundError:
            return ""
        except OSError as error:
            reason = str(error.strerror).lower()
            raise VaultError(f"{self._path} cannot be read ({reason})") from None
        except UnicodeDecodeError:
            raise VaultError(f"{self._path} is not UTF-8 text") from None
        if len(content) > _MAX_FILE_BYTES:
            raise VaultError(f"{self._path} is larger than 1 MiB")
        if mode & 0o077 and not self._warned:
            self._warned = True
            self._warn(f"{self._path} is readable by other users. Run: chmod 600 {self._path}")
        return text


class ConfigBackend:
    """Values that the config defines by references, by slug."""

    def __init__(self, references: Mapping[str, str], resolve: Callable[[str], str]) -> None:
        """Args:
        resolve: returns the value of a reference. Raises ConfigError, which contains names of
            variables and files but no values.
        """
        self._references = references
        self._resolve = resolve

    async def fetch(self, slug: str, backend: Mapping[str, Any]) -> str | None:
        reference = self._references.get(slug)
        if reference is None:
            return None
        try:
            return self._resolve(reference) or None
        except ConfigError as error:
            raise VaultError(f"drivers.secrets.{slug}: {error.message}") from None


def read_env_file(text: str) -> dict[str, str]:
    """Parse lines of `NAME=value`. `export`, `#` and quotes are supported, nothing is expanded. The
    last value of a name counts."""
    values: dict[str, str] = {}
    for line in text.split("\n"):
        name_text, equals, right = line.partition("=")
        name, value = _VARIABLE_NAME.fullmatch(name_text.strip()), right.strip()
        if equals and name is not None:
            quoted = _QUOTED.fullmatch(value)
            values[name[1]] = value if quoted is None else quoted[2]
    return values


def _variable(slug: str, backend: Mapping[str, Any]) -> str:
    return str(backend.get("env") or default_name(slug))


# -- the vault


class Vault:
    """A vault with backends in the order of their use."""

    def __init__(
        self,
        backends: Sequence[SecretBackend],
        *,
        renew: TokenRenewer | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._backends = tuple(backends)
        self._renew = renew
        self._now = now

    async def value(self, entry: SecretEntry) -> str | None:
        """Return the current value of a secret. None: no backend has it. Raises VaultError.

        The caller must check the access first: `bind` does.
        """
        value = await self._find_value(entry)
        return await self._access_token(entry, value) if value and entry.kind == "oauth" else value

    async def has(self, entry: SecretEntry) -> bool:
        """Return whether a value exists, including one that must be renewed. Raises VaultError."""
        return await self._find_value(entry) is not None

    async def _find_value(self, entry: SecretEntry) -> str | None:
        for backend in self._backends:
            value = await fetch_value(backend, entry)
            if value:
                return value
        return None

    async def _access_token(self, entry: SecretEntry, stored: str) -> str:
        """Return the access token of a grant that is stored as JSON. Other text is the token
        itself."""
        grant = _parse_grant(stored)
        if grant is None:
            return stored
        if not grant.is_expired(self._now()):
            return grant.access_token
        if self._renew is None:
            raise VaultError(f"the token of {entry.slug} has expired: sign in again")
        renewed = await self._renew(entry, grant.values)
        new_grant = _parse_grant(renewed)
        if new_grant is not None and new_grant.is_expired(self._now()):
            raise VaultError(f"the token of {entry.slug} has expired, and so has the renewed token")
        return renewed if new_grant is None else new_grant.access_token


class _Grant(Struct, frozen=True):
    access_token: str
    expires_at: float | None
    values: dict[str, Any]

    def __repr__(self) -> str:
        return f"_Grant(expires_at={self.expires_at})"

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


def _parse_grant(text: str) -> _Grant | None:
    try:
        grant = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    if not isinstance(grant, dict):
        return None
    token = _first(grant, ("access_token", "accessToken"))
    if not isinstance(token, str) or not token:
        return None
    return _Grant(token, _parse_time(_first(grant, ("expires_at", "expiresAt"))), grant)


def _first(values: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((values[name] for name in names if name in values), None)


def _parse_time(value: Any) -> float | None:
    """Parse a time as seconds since 1970: a number of seconds or milliseconds, or an ISO date."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return value / 1000 if value >= _MIN_MILLISECONDS else float(value)
    try:
        parsed = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


# -- Access to secrets: the check comes first and is always recorded. Only then the vault is asked.
#
# A driver's server serves several tools, so the check is whether any tool that the driver
# implements may bind the secret. Records contain the name of the secret, never its value.


class SecretRequester(Struct, frozen=True):
    """The requester of a secret."""

    driver: str = ""
    tools: frozenset[str] = frozenset()
    """Ids of the contracts that the driver implements."""
    roles: frozenset[str] = frozenset()
    """Roles and capabilities of the node."""
    user: str = ""
    workflow: str = ""
    only_for: Mapping[str, Sequence[str]] = {}
    """Slugs that the operator limits to certain drivers."""

    def is_kept_from(self, slug: str) -> bool:
        """Return whether the operator limits a secret to other drivers."""
        return self.driver not in self.only_for.get(slug, (self.driver,))

    @property
    def context(self) -> SecretContext:
        """Return the requester in the terms of an inventory. A missing name matches no rule."""
        names = {"driver": self.driver, "userId": self.user, "workflow": self.workflow}
        return {
            "role": self.roles,
            "cap": self.roles,
            "tool": self.tools,
            **{kind: name for kind, name in names.items() if name},
        }


class SecretValues(dict[str, str]):
    """Secret values by NAME, for `${secrets.NAME}`. `repr` shows only the names."""

    def __repr__(self) -> str:
        return f"SecretValues({', '.join(self)})"

    __str__ = __repr__


async def bind(
    names: Iterable[str],
    *,
    inventory: SecretsInventory,
    vault: Vault,
    requester: SecretRequester,
    record: AccessRecorder,
    purpose: str = "spawn",
    now: Callable[[], float] = time.time,
) -> SecretValues:
    """Return the secret values for a driver's server, by NAME.

    If one secret is denied, no vault is asked for any.

    Raises:
        InterlockError: a secret is denied or has no value.
    """
    handles: dict[str, SecretHandle] = {}
    for name in dict.fromkeys(names):
        handles[name] = SecretHandle(_find_entry(name, inventory), vault, record, now)
    for handle in handles.values():
        if requester.is_kept_from(handle.slug):
            handle.record_denial("bind", requester.context, purpose)
            raise InterlockError(
                AUTH_REQUIRED,
                f"{requester.driver} must not use the secret {handle.slug}: drivers.secrets_for in "
                "interlock.yaml limits it to other drivers.",
                data={"secret": handle.slug, "driver": requester.driver, "operation": "bind"},
            )
        handle.require("bind", requester.context, purpose)
    values = SecretValues()
    for name, handle in handles.items():
        values[name] = await handle.reveal(requester.context, purpose=purpose, operation="bind")
    return values


async def unresolved(
    names: Iterable[str], *, inventory: SecretsInventory, vault: Vault, requester: SecretRequester
) -> list[str]:
    """Return the names of secrets that cannot be bound now. No values are read into a driver, so
    nothing is recorded. A denied secret is reported like a missing one."""
    missing: list[str] = []
    for name in dict.fromkeys(names):
        try:
            entry = entry_named(name, inventory)
            is_available = (
                entry is not None
                and not requester.is_kept_from(entry.slug)
                and check_access(entry, "bind", requester.context).granted
                and await vault.has(entry)
            )
        except VaultError:
            is_available = False
        if not is_available:
            missing.append(name)
    return missing


def _find_entry(name: str, inventory: SecretsInventory) -> SecretEntry:
    try:
        entry = entry_named(name, inventory)
    except VaultError as error:
        raise InterlockError(AUTH_REQUIRED, f"${{secrets.{name}}}: {error}.") from None
    if entry is None:
        raise InterlockError(
            AUTH_REQUIRED,
            f"${{secrets.{name}}} is not in an inventory. Add it to the driver's SECRETS.md "
            f"(slug {default_slug(name)}).",
            data={"name": name},
        )
    return entry
