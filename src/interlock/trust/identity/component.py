"""The identity of callers, as one component made from the config.

A node has one `IdentityComponent`. It provides the `authenticator`, learns where the node listens,
and reports callers whose tokens were revoked or have expired.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.core.call import Caller, Credentials
from interlock.core.config import Config, resolve, resolve_tokens
from interlock.core.config.checks import RESERVED_CALLER_NAMES, identity_problems
from interlock.core.config.trust import IntrospectionConfig, IssuerConfig, TokenConfig
from interlock.core.paths import access_path
from interlock.core.pipeline.authentication import LOCAL_CALLER, PARENT_KIND, Authenticator
from interlock.core.ports import Clock
from interlock.core.server.http.resource_metadata import Challenges, ResourceMetadata
from interlock.core.upstreams.oauth.fetch import Fetch, fetch
from interlock.errors import CONFIG, InterlockError
from interlock.trust.identity.api_tokens import ApiTokens, caller_of_token
from interlock.trust.identity.certificates import Certificates
from interlock.trust.identity.claims import ClaimMapping
from interlock.trust.identity.key_sets import KeySet
from interlock.trust.identity.opaque_tokens import (
    MAX_CACHED_TOKENS,
    IntrospectionClient,
    IntrospectionServer,
    LastValid,
    OpaqueTokens,
)
from interlock.trust.identity.revocation_watch import AccessWatch, NamesCallback, RevokedCallback
from interlock.trust.identity.signed_tokens import Issuer, SignedTokens

FIRST_KEYS_TIMEOUT_SECONDS: Final = 3.0
"""The time for which a starting node waits for the keys of its issuers."""
RECALL_SECONDS: Final = 15 * 60.0
"""The time for which the caller of an opaque token without an end can be recalled, after its server
last said that the token is valid. The token itself is not stored, so the server cannot be asked
again."""

_log = logging.getLogger("interlock.node")


class CallerComplement:
    """All callers except these. For methods that keep the sessions of the callers in a
    container."""

    def __init__(self, names: Container[str]) -> None:
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name not in self._names


class RegistrantCallers:
    """Callers that may register a subserver."""

    def __init__(self, may_register: Callable[[str], bool]) -> None:
        self._may_register = may_register

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._may_register(name)


class _Parts(msgspec.Struct):
    """The objects made from one config."""

    config: Config
    authenticator: Authenticator
    key_sets: dict[str, KeySet]
    """By issuer."""
    opaque: OpaqueTokens | None
    callers: dict[tuple[str, str], Caller]
    """Callers that the config names, by kind and name."""


class IdentityComponent:
    """Authenticates the callers of a node."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        on_revoked: RevokedCallback = lambda _: None,
        on_expired: NamesCallback = lambda _: None,
        clock: Clock = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        call_later: Callable[[float, Callable[[], None]], Any] | None = None,
        fetch: Fetch = fetch,
    ) -> None:
        """Args:
        on_revoked: called with callers whose sessions, streams and calls must end now.
        on_expired: called with callers whose tokens have expired. They get no more notifications
            until they present a new token.

        Raises InterlockError for an unusable config.
        """
        self._environ = environ
        self._base_dir = base_dir
        self._clock = clock
        self._wall_clock = wall_clock
        self._fetch = fetch
        self._url = ""
        self._read_hop_token: Callable[[Credentials], Caller | None] | None = None
        self._refreshing: set[asyncio.Task[None]] = set()
        self._last_valid = LastValid(MAX_CACHED_TOKENS)
        self._api_tokens = ApiTokens(wall_clock)
        self._has_warned_of_ignored_token = False
        self.watch = AccessWatch(
            access_path(config, environ, base_dir),
            self._api_tokens,
            seconds=config.identity.revocation_seconds,
            wall_clock=wall_clock,
            call_later=call_later or _call_later,
            clear_cache=self._clear_cache,
            on_revoked=on_revoked,
            on_expired=on_expired,
            on_check=self._refresh_keys,
        )
        self.registrants = RegistrantCallers(self.may_register)
        self._parts = self._build(config, {})
        self.challenges = Challenges()
        """Tells rejected clients where to get a token."""
        self.challenges.metadata = self.metadata()

    # -- Authentication

    @property
    def authenticator(self) -> Authenticator:
        """The authentication stage. `configure` replaces it."""
        return self._parts.authenticator

    @property
    def minted(self) -> Callable[[Credentials], Caller | None] | None:
        """Reads the token that the parent node made for one call."""
        return self._read_hop_token

    @minted.setter
    def minted(self, read: Callable[[Credentials], Caller | None] | None) -> None:
        self._read_hop_token = self._parts.authenticator.verify_hop_token = read

    def is_known(self, name: str) -> bool:
        """Return whether a caller of this name may be connected."""
        return (
            name in RESERVED_CALLER_NAMES
            or any(name == known_name for _, known_name in self._parts.callers)
            or self.watch.is_active(name)
            or name in self._api_tokens.access.good_names(self._wall_clock())
        )

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.is_known(name)

    def may_register(self, name: str) -> bool:
        """Return whether a caller of this name may register a subserver."""
        now = self._wall_clock()
        configured = [
            caller_entry
            for (_, known_name), caller_entry in self._parts.callers.items()
            if known_name == name
        ]
        access = self._api_tokens.access
        tokens = [token for token in access.tokens.values() if token.name == name]
        if configured or tokens:
            return any(caller.can_register for caller in configured) or any(
                token.state(now) == "good" and "register" in token.may for token in tokens
            )
        return self.watch.is_active(name)

    def recall(self, caller: Caller) -> Caller | None:
        """Return an earlier caller with its current rights. None: it may no longer call.

        This also works after a restart, without the credentials. A signed token then counts until
        its end, unless a token of its subject was revoked. An opaque token without an end counts
        for a while after its server said that it is valid, unless the server says otherwise; after
        a restart the server has not said so. A caller of the parent node counts until its
        credentials there expire, as long as there is a parent.
        """
        now = self._wall_clock()
        if caller.expires_at is not None and now >= caller.expires_at:
            return None
        if caller.kind in ("jwt", "introspection"):
            revoked = self._api_tokens.is_revoked(caller.name, caller.id, None)
            if revoked or not self._has_issuer(caller):
                return None
            return (
                caller
                if caller.expires_at is not None or self._was_valid_recently(caller)
                else None
            )
        if caller.kind == "token" and caller.id:
            token = self._api_tokens.access.tokens.get(caller.id)
            if token is None or token.state(now) != "good" or token.name != caller.name:
                return None
            return caller_of_token(token)
        if caller.kind == PARENT_KIND:
            sections = self._parts.config.sections
            has_parent = any(PARENT_KIND in section.CALLER_KINDS for section in sections)
            return caller if has_parent else None
        return self._parts.callers.get((caller.kind, caller.name))

    def _was_valid_recently(self, caller: Caller) -> bool:
        """Return whether the server of a token said recently that the token is valid."""
        if caller.kind != "introspection":
            return False
        last_valid_at = self._last_valid.get((caller.name, caller.id))
        return last_valid_at is not None and self._wall_clock() - last_valid_at < RECALL_SECONDS

    def _has_issuer(self, caller: Caller) -> bool:
        """Return whether the config still has an issuer that may have issued the token."""
        identity = self._parts.config.identity
        if caller.kind == "jwt":
            prefixes = [issuer.prefix for issuer in identity.issuers]
        else:
            prefixes = [server.prefix for server in identity.introspection]
        return any(caller.name.startswith(prefix) for prefix in prefixes)

    @property
    def resource(self) -> str:
        """The name of this node in tokens: its public address (RFC 8707)."""
        return self._parts.config.identity.resource or self._url

    def metadata(self) -> ResourceMetadata | None:
        """Return the metadata that tells clients where to get a token. None: there is no issuer."""
        issuers = [issuer.issuer for issuer in self._parts.config.identity.issuers]
        if not issuers or not self.resource:
            return None
        return ResourceMetadata(self.resource, issuers, mcp_path=self._parts.config.path)

    def problems(self) -> list[str]:
        """Return the current problems, for the status of the node."""
        problems = [
            f"Issuer {keys.issuer}: its keys cannot be read: {keys.problem}"
            for keys in self._parts.key_sets.values()
            if keys.problem is not None
        ]
        return problems if self.watch.problem is None else [self.watch.problem, *problems]

    # -- Start and stop

    def set_url(self, url: str) -> None:
        """Set where the node listens: its name in tokens, unless the config has another."""
        self._url = url
        self.challenges.metadata = self.metadata()

    async def start(self) -> None:
        """Start the checks, and read the keys of every issuer once, with a short wait."""
        self.watch.start()
        self._refresh_keys()
        if self._refreshing:
            await asyncio.wait(self._refreshing, timeout=FIRST_KEYS_TIMEOUT_SECONDS)

    async def close(self) -> None:
        await self.watch.stop()
        for keys in self._parts.key_sets.values():
            await keys.close()
        if self._parts.opaque is not None:
            await self._parts.opaque.close()
        await asyncio.gather(*self._refreshing, return_exceptions=True)

    # -- Configuration

    def check(self, config: Config) -> None:
        """Raise InterlockError for an unusable config. Changes nothing."""
        self._build(config, self._parts.key_sets)

    def configure(self, config: Config) -> None:
        """Use a new config. Raises InterlockError, and changes nothing, for an unusable one."""
        before = self._parts
        self._parts = self._build(config, before.key_sets)
        self.challenges.metadata = self.metadata()
        self.watch.seconds = config.identity.revocation_seconds
        if before.config.identity.introspection != config.identity.introspection:
            self._last_valid.clear()
        if before.config.identity != config.identity:
            self.watch.retain_only(self._api_tokens.access.good_names(self._wall_clock()))
        self._refresh_keys()

    def _build(self, config: Config, key_sets: Mapping[str, KeySet]) -> _Parts:
        """Create the objects for a config.

        Args:
            key_sets: the key sets of the previous config. Unchanged ones are kept.
        """
        identity = config.identity
        _check_identity(config)
        certificates = Certificates(identity.certificates) if identity.certificates else None
        scopes = identity.local_scopes
        local = Caller(
            LOCAL_CALLER.name,
            roles=tuple(identity.local_roles),
            scopes=None if scopes is None else tuple(scopes),
        )
        configs = resolve_tokens(config.tokens, environ=self._environ, base_dir=self._base_dir)
        tokens = {secret: _create_caller(token) for secret, token in configs.items()}
        named = [local, *tokens.values(), *(() if certificates is None else certificates.callers)]
        reserved = _ReservedNames(frozenset(caller.name for caller in named), self._api_tokens)
        keys = {
            issuer.issuer: self._key_set(issuer, key_sets.get(issuer.issuer))
            for issuer in identity.issuers
        }
        sources: list[Any] = [self._api_tokens]
        if identity.issuers:
            issuers = [self._issuer(issuer, keys[issuer.issuer]) for issuer in identity.issuers]
            sources.append(
                SignedTokens(
                    issuers,
                    revocations=self._api_tokens,
                    reserved_names=reserved,
                    wall_clock=self._wall_clock,
                )
            )
        opaque = None
        if identity.introspection:
            opaque = OpaqueTokens(
                [self._introspection_server(server) for server in identity.introspection],
                revocations=self._api_tokens,
                reserved_names=reserved,
                wall_clock=self._wall_clock,
                last_valid=self._last_valid,
            )
            sources.append(opaque)
        authenticator = Authenticator(
            tokens,
            sources=sources,
            certificates=certificates,
            local=local,
            wall_clock=self._wall_clock,
            on_verified=self.watch.record_login,
            on_ignored_token=self._on_ignored_token,
        )
        authenticator.verify_hop_token = self._read_hop_token
        callers = {(caller.kind, caller.name): caller for caller in named}
        return _Parts(config, authenticator, keys, opaque, callers)

    def _on_ignored_token(self) -> None:
        if not self._has_warned_of_ignored_token:
            self._has_warned_of_ignored_token = True
            _log.warning(
                "tokens: a caller on this machine presents a token that is not checked, because "
                "the config has no `tokens` and no issuers. All callers on this machine are %s",
                LOCAL_CALLER.name,
            )

    def _key_set(self, config: IssuerConfig, before: KeySet | None) -> KeySet:
        if before is not None and before.config == config:
            return before
        return KeySet(
            config,
            self._base_dir,
            clock=self._clock,
            fetch=self._fetch,
            on_removed=self._clear_cache,
        )

    def _issuer(self, config: IssuerConfig, keys: KeySet) -> Issuer:
        return Issuer(
            config.issuer,
            frozenset(config.algorithms),
            lambda: config.audience or [self.resource],
            keys,
            ClaimMapping(
                "jwt",
                (config.name_claim,),
                config.roles_claim,
                config.prefix,
                config.scopes,
                config.may,
            ),
        )

    def _introspection_server(self, config: IntrospectionConfig) -> IntrospectionServer:
        client = IntrospectionClient(
            config.url,
            self._resolve(config.client_id),
            self._resolve(config.client_secret),
            fetch=self._fetch,
        )
        names = ("sub", "username", "client_id")
        return IntrospectionServer(
            client,
            lambda: config.audience or [self.resource],
            ClaimMapping("introspection", names, prefix=config.prefix, may=config.may),
        )

    def _resolve(self, text: str) -> str:
        return resolve(text, environ=self._environ, base_dir=self._base_dir)

    # -- Internals

    def _clear_cache(self) -> None:
        """Remove cached results, because a token was revoked or a key was removed."""
        self._parts.authenticator.clear_cache()
        if self._parts.opaque is not None:
            self._parts.opaque.clear_cache()

    def _refresh_keys(self) -> None:
        """Read keys that are due, before a caller has to wait for them."""
        for keys in self._parts.key_sets.values():
            keys.remove_expired()
            if keys.is_due and not any(task.get_name() == keys.issuer for task in self._refreshing):
                task = asyncio.get_running_loop().create_task(keys.refresh(), name=keys.issuer)
                self._refreshing.add(task)
                task.add_done_callback(self._refreshing.discard)


class _ReservedNames:
    """Names of callers with credentials of this node, which no other token may claim."""

    def __init__(self, names: frozenset[str], tokens: ApiTokens) -> None:
        self._names = names
        self._tokens = tokens

    def __contains__(self, name: object) -> bool:
        return name in self._names or any(
            token.name == name for token in self._tokens.access.tokens.values()
        )


def _create_caller(config: TokenConfig) -> Caller:
    return Caller(
        config.name,
        can_call="call" in config.may,
        can_register="register" in config.may,
        can_join="join" in config.may,
        can_view_approvals="approve" in config.may,
        kind="token",
        roles=tuple(config.roles),
        scopes=None if config.scopes is None else tuple(config.scopes),
    )


def _check_identity(config: Config) -> None:
    """Check rules between sections of the config. Raises InterlockError."""
    tls = config.tls
    client_ca = tls is not None and tls.client_ca is not None
    for problem in identity_problems(config.identity, client_ca=client_ca):
        place = ".".join(str(step) for step in problem.path)
        raise InterlockError(CONFIG, f"`{place}`: {problem.message}; {problem.hint}.")


def _call_later(seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, callback)
