"""Where the values of secrets come from. Nothing of them is kept here, shown or logged.

A vault asks its backends, one after the other, each time that a value is needed: what was rotated
is noticed at the next start of a server. Who may have one is asked before.
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
from interlock.core.config.problems import BadValue
from interlock.errors import AUTH_REQUIRED, InterlockError
from interlock.manifests import secret_names
from interlock.manifests.model import SecretEntry, SecretsInventory
from interlock.manifests.secret_handle import (
    AccessRecorder,
    SecretBackend,
    SecretContext,
    SecretHandle,
    access_to,
    asked,
)
from interlock.manifests.secret_handle import VaultError as VaultError
from interlock.manifests.secret_names import default_name, default_slug

_LONGEST_FILE: Final = 1024 * 1024
_MILLISECONDS_FROM: Final = 1e11
"""A moment as large as this is in milliseconds: in seconds it is the year 5138."""
_LEFT_SIDE: Final = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)")
_QUOTED: Final = re.compile(r"(['\"])(.*)\1")

_log = logging.getLogger("interlock.drivers")


TokenRenewer = Callable[[SecretEntry, Mapping[str, Any]], Awaitable[str]]
"""Gets a new token for one that has ended: what the vault had → what is in its place. Keeping it
is its own affair. Raises VaultError."""


def entry_named(name: str, inventory: SecretsInventory) -> SecretEntry | None:
    """The secret that `${secrets.NAME}` means. Raises VaultError when it could be two."""
    try:
        return secret_names.entry_named(name, inventory)
    except BadValue as bad:
        raise VaultError(f"{bad.message}: {bad.hint}") from None


# -- backends


class MemoryBackend:
    """Values that a program was given, by slug."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    async def fetch(self, slug: str, backend: Mapping[str, Any]) -> str | None:
        return self._values.get(slug) or None


class EnvironmentBackend:
    """Variables, by default those of this process. Which of them, the operator says: an inventory
    is the driver's own file, and could name any."""

    def __init__(self, allowed: Iterable[str], environ: Mapping[str, str] = os.environ) -> None:
        """`allowed`: names, or patterns of names with `*`."""
        self._allowed = tuple(allowed)
        self._environ = environ

    async def fetch(self, slug: str, backend: Mapping[str, Any]) -> str | None:
        name = _variable(slug, backend)
        if not any(fnmatchcase(name, pattern) for pattern in self._allowed):
            return None
        return self._environ.get(name) or None


class EnvFileBackend:
    """A file of `NAME=value` lines. Read anew each time."""

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
                content = file.read(_LONGEST_FILE + 1)
            text = content.decode("utf-8")
        except FileNotFoundError:
            return ""
        except OSError as error:
            why = str(error.strerror).lower()
            raise VaultError(f"{self._path} cannot be read ({why})") from None
        except UnicodeDecodeError:
            raise VaultError(f"{self._path} is not UTF-8 text") from None
        if len(content) > _LONGEST_FILE:
            raise VaultError(f"{self._path} is larger than 1 MiB")
        if mode & 0o077 and not self._warned:
            self._warned = True
            self._warn(f"{self._path} can be read by others: chmod 600 {self._path}")
        return text


class ConfigBackend:
    """References of the config, by slug, and what makes a value of one."""

    def __init__(self, references: Mapping[str, str], resolve: Callable[[str], str]) -> None:
        """`resolve` raises ConfigError, which names variables and files and no values."""
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
    """Lines of `NAME=value`, as many programs write them: `export`, `#` and quotes are understood,
    nothing is expanded. Of a name that comes twice the last one counts."""
    values: dict[str, str] = {}
    for line in text.split("\n"):
        left, equals, right = line.partition("=")
        found, value = _LEFT_SIDE.fullmatch(left.strip()), right.strip()
        if equals and found is not None:
            quoted = _QUOTED.fullmatch(value)
            values[found[1]] = value if quoted is None else quoted[2]
    return values


def _variable(slug: str, backend: Mapping[str, Any]) -> str:
    return str(backend.get("env") or default_name(slug))


# -- the vault


class Vault:
    """Backends in the order in which they are asked."""

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
        """What a secret stands for now; None when no backend has it. Raises VaultError.

        Whoever asks has made sure that it may be asked: `bind` does.
        """
        found = await self._kept(entry)
        return await self._token(entry, found) if found and entry.kind == "oauth" else found

    async def has(self, entry: SecretEntry) -> bool:
        """Whether there is a value, be it one that has to be renewed. Raises VaultError."""
        return await self._kept(entry) is not None

    async def _kept(self, entry: SecretEntry) -> str | None:
        for backend in self._backends:
            found = await asked(backend, entry)
            if found:
                return found
        return None

    async def _token(self, entry: SecretEntry, kept: str) -> str:
        """The access token of a sign-in that is kept as JSON; anything else is the token."""
        grant = _grant(kept)
        if grant is None:
            return kept
        if not grant.ended(self._now()):
            return grant.access_token
        if self._renew is None:
            raise VaultError(f"the sign-in behind {entry.slug} has ended: sign in again")
        renewed = await self._renew(entry, grant.said)
        newer = _grant(renewed)
        if newer is not None and newer.ended(self._now()):
            raise VaultError(f"the sign-in behind {entry.slug} has ended, and so has the new one")
        return renewed if newer is None else newer.access_token


class _Grant(Struct, frozen=True):
    access_token: str
    expires_at: float | None
    said: dict[str, Any]

    def __repr__(self) -> str:
        return f"_Grant(expires_at={self.expires_at})"

    def ended(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


def _grant(text: str) -> _Grant | None:
    try:
        said = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    token = _first(said, ("access_token", "accessToken"))
    if not isinstance(token, str) or not token:
        return None
    return _Grant(token, _moment(_first(said, ("expires_at", "expiresAt"))), said)


def _first(said: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((said[name] for name in names if name in said), None)


def _moment(said: Any) -> float | None:
    """Seconds since 1970, from a number of them, of milliseconds, or a date."""
    if isinstance(said, bool) or said is None:
        return None
    if isinstance(said, int | float):
        return said / 1000 if said >= _MILLISECONDS_FROM else float(said)
    try:
        moment = datetime.fromisoformat(str(said))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


# -- Who may have a secret: asked first, written down always, and only then is a vault asked.
#
# A driver's server serves several tools at once, so what is asked is whether any tool that the
# driver implements may have the secret bound. What is written down names the secret and never its
# value.


class SecretRequester(Struct, frozen=True):
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
    def context(self) -> SecretContext:
        """The same, as an inventory speaks of it. Who has no name is nobody's user."""
        named = {"driver": self.driver, "userId": self.user, "workflow": self.workflow}
        return {
            "role": self.roles,
            "cap": self.roles,
            "tool": self.tools,
            **{kind: name for kind, name in named.items() if name},
        }


class SecretValues(dict[str, str]):
    """Values by NAME, for `${secrets.NAME}`. Shows its names only."""

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
    """The values for a driver's server, by NAME. Raises InterlockError.

    Who may have only some of them gets none, and no vault is asked for any.
    """
    wanted: dict[str, SecretHandle] = {}
    for name in dict.fromkeys(names):
        wanted[name] = SecretHandle(_listed(name, inventory), vault, record, now)
    for handle in wanted.values():
        if requester.is_kept_from(handle.slug):
            handle.deny("bind", requester.context, purpose)
            raise InterlockError(
                AUTH_REQUIRED,
                f"{requester.driver} may not have the secret {handle.slug}: drivers.secrets_for in "
                "interlock.yaml keeps it for others.",
                data={"secret": handle.slug, "driver": requester.driver, "operation": "bind"},
            )
        handle.require("bind", requester.context, purpose)
    values = SecretValues()
    for name, handle in wanted.items():
        values[name] = await handle.reveal(requester.context, purpose=purpose, operation="bind")
    return values


async def unresolved(
    names: Iterable[str], *, inventory: SecretsInventory, vault: Vault, requester: SecretRequester
) -> list[str]:
    """Which of these secrets could not be bound now. Nobody is given anything, so nothing is
    written down; who may not have one is not told whether it is there."""
    left: list[str] = []
    for name in dict.fromkeys(names):
        try:
            entry = entry_named(name, inventory)
            there = (
                entry is not None
                and not requester.is_kept_from(entry.slug)
                and access_to(entry, "bind", requester.context).granted
                and await vault.has(entry)
            )
        except VaultError:
            there = False
        if not there:
            left.append(name)
    return left


def _listed(name: str, inventory: SecretsInventory) -> SecretEntry:
    try:
        entry = entry_named(name, inventory)
    except VaultError as trouble:
        raise InterlockError(AUTH_REQUIRED, f"${{secrets.{name}}}: {trouble}.") from None
    if entry is None:
        raise InterlockError(
            AUTH_REQUIRED,
            f"${{secrets.{name}}} is in no inventory: list it in the driver's SECRETS.md "
            f"(slug {default_slug(name)}).",
            data={"name": name},
        )
    return entry
