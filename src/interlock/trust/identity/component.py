"""Everything by which a node knows its callers, put together from its config.

A node has one `IdentityComponent`: it provides the `authenticator`, learns where the node listens,
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
    MOST_KEPT,
    Good,
    IntrospectionClient,
    IntrospectionServer,
    OpaqueTokens,
)
from interlock.trust.identity.revocation_watch import AccessWatch, Told, ToldRevoked
from interlock.trust.identity.signed_tokens import Issuer, SignedTokens

FIRST_KEYS: Final = 3.0
"""How long a node that starts waits for the keys of its issuers."""
RECALLED_FOR: Final = 15 * 60.0
"""So long after a server last said that an opaque token without an end is good, its caller still
is who it was. The token itself is not kept, so nobody could ask again."""

_log = logging.getLogger("interlock.node")


class CallerComplement:
    """All callers except these: what is asked of whoever ends sessions of those who are not in."""

    def __init__(self, names: Container[str]) -> None:
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name not in self._names


class RegistrantCallers:
    """Callers who may have a subserver registered."""

    def __init__(self, may: Callable[[str], bool]) -> None:
        self._may = may

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._may(name)


class _Parts(msgspec.Struct):
    """What one config makes."""

    config: Config
    authenticator: Authenticator
    key_sets: dict[str, KeySet]
    """By issuer."""
    opaque: OpaqueTokens | None
    callers: dict[tuple[str, str], Caller]
    """Callers whom the config itself names, by kind and name."""


class IdentityComponent:
    """Who may come to this node."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        on_revoked: ToldRevoked = lambda _: None,
        on_expired: Told = lambda _: None,
        clock: Clock = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        call_later: Callable[[float, Callable[[], None]], Any] | None = None,
        ask: Fetch = fetch,
    ) -> None:
        """`on_revoked` gets the names of callers whose sessions, streams and calls must end now;
        `on_expired` those whose tokens ran out: they are told nothing more until they come with a
        new one. Raises InterlockError for a config that cannot be used."""
        self._environ = environ
        self._base_dir = base_dir
        self._clock = clock
        self._wall_clock = wall_clock
        self._fetch = ask
        self._listens = ""
        self._minted: Callable[[Credentials], Caller | None] | None = None
        self._refreshing: set[asyncio.Task[None]] = set()
        self._good = Good(MOST_KEPT)
        self._api_tokens = ApiTokens(wall_clock)
        self._told_unread = False
        self.watch = AccessWatch(
            access_path(config, environ, base_dir),
            self._api_tokens,
            seconds=config.identity.revocation_seconds,
            wall_clock=wall_clock,
            call_later=call_later or _on_this_loop,
            changed=self._forget,
            on_revoked=on_revoked,
            on_expired=on_expired,
            also=self._keep_keys,
        )
        self.registrants = RegistrantCallers(self.may_register)
        self._parts = self._build(config, {})
        self.challenges = Challenges()
        """Where refused clients are sent for a token."""
        self.challenges.metadata = self.metadata()

    # -- what the node asks

    @property
    def authenticator(self) -> Authenticator:
        """The first stage. Another one after `configure`."""
        return self._parts.authenticator

    @property
    def minted(self) -> Callable[[Credentials], Caller | None] | None:
        """Reads the token that the node above made for one call."""
        return self._minted

    @minted.setter
    def minted(self, reads: Callable[[Credentials], Caller | None] | None) -> None:
        self._minted = self._parts.authenticator.verify_hop_token = reads

    def known(self, name: str) -> bool:
        """Whether a caller of this name may be here: for ending sessions of those who may not."""
        return (
            name in RESERVED_CALLER_NAMES
            or any(name == one for _, one in self._parts.callers)
            or self.watch.is_active(name)
            or name in self._api_tokens.access.good_names(self._wall_clock())
        )

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.known(name)

    def may_register(self, name: str) -> bool:
        """Whether a caller of this name may have a subserver registered here."""
        now = self._wall_clock()
        named = [one for (_, kept), one in self._parts.callers.items() if kept == name]
        tokens = [one for one in self._api_tokens.access.tokens.values() if one.name == name]
        if named or tokens:
            return any(one.can_register for one in named) or any(
                one.state(now) == "good" and "register" in one.may for one in tokens
            )
        return self.watch.is_active(name)

    def recall(self, caller: Caller) -> Caller | None:
        """Somebody who called earlier, with the rights that it has now. None: it may not any more.

        Also after a restart, when it has not shown its token again: then a signed one counts as
        long as it says, unless anything of its subject was revoked. One whose end nobody said
        counts for a while after its server said that it is good, until the server says otherwise;
        after a restart nobody has said so. Who called through the parent counts as long as what it
        showed there does, and there is a parent.
        """
        now = self._wall_clock()
        if caller.expires_at is not None and now >= caller.expires_at:
            return None
        if caller.kind in ("jwt", "introspection"):
            revoked = self._api_tokens.is_revoked(caller.name, caller.id, None)
            if revoked or not self._believed(caller):
                return None
            return caller if caller.expires_at is not None or self._just_good(caller) else None
        if caller.kind == "token" and caller.id:
            token = self._api_tokens.access.tokens.get(caller.id)
            if token is None or token.state(now) != "good" or token.name != caller.name:
                return None
            return caller_of_token(token)
        if caller.kind == PARENT_KIND:
            sections = self._parts.config.sections
            return caller if any(PARENT_KIND in one.CALLER_KINDS for one in sections) else None
        return self._parts.callers.get((caller.kind, caller.name))

    def _just_good(self, caller: Caller) -> bool:
        """Whether its server has said not long ago that its token is good."""
        if caller.kind != "introspection":
            return False
        said = self._good.get((caller.name, caller.id))
        return said is not None and self._wall_clock() - said < RECALLED_FOR

    def _believed(self, caller: Caller) -> bool:
        """Whether the config still knows somebody who may have issued its token."""
        identity = self._parts.config.identity
        if caller.kind == "jwt":
            prefixes = [one.prefix for one in identity.issuers]
        else:
            prefixes = [one.prefix for one in identity.introspection]
        return any(caller.name.startswith(one) for one in prefixes)

    @property
    def resource(self) -> str:
        """The name of this node in tokens: its public address."""
        return self._parts.config.identity.resource or self._listens

    def metadata(self) -> ResourceMetadata | None:
        """What clients are told about where to get a token. None: there is nowhere to send them."""
        issuers = [one.issuer for one in self._parts.config.identity.issuers]
        if not issuers or not self.resource:
            return None
        return ResourceMetadata(self.resource, issuers, mcp_path=self._parts.config.path)

    def problems(self) -> list[str]:
        """What is wrong with it now, for whoever asks how the node fares."""
        found = [
            f"the keys of the issuer {one.issuer} cannot be read: {one.problem}"
            for one in self._parts.key_sets.values()
            if one.problem is not None
        ]
        return found if self.watch.problem is None else [self.watch.problem, *found]

    # -- life

    def listening_at(self, url: str) -> None:
        """Where the node listens: its name in tokens, unless the config has another."""
        self._listens = url
        self.challenges.metadata = self.metadata()

    async def start(self) -> None:
        """Begin to watch, and read the keys of every issuer once; waits for them a little."""
        self.watch.start()
        self._keep_keys()
        if self._refreshing:
            await asyncio.wait(self._refreshing, timeout=FIRST_KEYS)

    async def close(self) -> None:
        await self.watch.stop()
        for keys in self._parts.key_sets.values():
            await keys.close()
        if self._parts.opaque is not None:
            await self._parts.opaque.close()
        await asyncio.gather(*self._refreshing, return_exceptions=True)

    # -- change

    def check(self, config: Config) -> None:
        """Raises InterlockError for a config that cannot be used; changes nothing."""
        self._build(config, self._parts.key_sets)

    def configure(self, config: Config) -> None:
        """Run by a new config. Raises InterlockError, and changes nothing, when it cannot be."""
        before = self._parts
        self._parts = self._build(config, before.key_sets)
        self.challenges.metadata = self.metadata()
        self.watch.seconds = config.identity.revocation_seconds
        if before.config.identity.introspection != config.identity.introspection:
            self._good.clear()
        if before.config.identity != config.identity:
            self.watch.forget(self._api_tokens.access.good_names(self._wall_clock()))
        self._keep_keys()

    def _build(self, config: Config, key_sets: Mapping[str, KeySet]) -> _Parts:
        """`key_sets`: those of the config before, which stay where nothing of them changed."""
        identity = config.identity
        _check(config)
        certificates = Certificates(identity.certificates) if identity.certificates else None
        scopes = identity.local_scopes
        local = Caller(
            LOCAL_CALLER.name,
            roles=tuple(identity.local_roles),
            scopes=None if scopes is None else tuple(scopes),
        )
        known = resolve_tokens(config.tokens, environ=self._environ, base_dir=self._base_dir)
        tokens = {secret: _caller(one) for secret, one in known.items()}
        named = [local, *tokens.values(), *(() if certificates is None else certificates.callers)]
        taken = _Taken(frozenset(one.name for one in named), self._api_tokens)
        keys = {
            one.issuer: self._keys_of(one, key_sets.get(one.issuer)) for one in identity.issuers
        }
        sources: list[Any] = [self._api_tokens]
        if identity.issuers:
            issuers = [self._issuer(one, keys[one.issuer]) for one in identity.issuers]
            sources.append(
                SignedTokens(
                    issuers,
                    revocations=self._api_tokens,
                    taken=taken,
                    wall_clock=self._wall_clock,
                )
            )
        opaque = None
        if identity.introspection:
            opaque = OpaqueTokens(
                [self._authority(one) for one in identity.introspection],
                revocations=self._api_tokens,
                taken=taken,
                wall_clock=self._wall_clock,
                good=self._good,
            )
            sources.append(opaque)
        authenticator = Authenticator(
            tokens,
            sources=sources,
            certificates=certificates,
            local=local,
            wall_clock=self._wall_clock,
            on_verified=self.watch.record_login,
            on_ignored_token=self._came_unread,
        )
        authenticator.verify_hop_token = self._minted
        callers = {(one.kind, one.name): one for one in named}
        return _Parts(config, authenticator, keys, opaque, callers)

    def _came_unread(self) -> None:
        if not self._told_unread:
            self._told_unread = True
            _log.warning(
                "somebody on this machine shows a token, and nobody looks at it: there are no "
                "`tokens` and no issuers here, so whoever comes from this machine is %s",
                LOCAL_CALLER.name,
            )

    def _keys_of(self, one: IssuerConfig, before: KeySet | None) -> KeySet:
        if before is not None and before.config == one:
            return before
        return KeySet(one, self._base_dir, clock=self._clock, ask=self._fetch, on_lost=self._forget)

    def _issuer(self, one: IssuerConfig, keys: KeySet) -> Issuer:
        return Issuer(
            one.issuer,
            frozenset(one.algorithms),
            lambda: one.audience or [self.resource],
            keys,
            ClaimMapping(
                "jwt", (one.name_claim,), one.roles_claim, one.prefix, one.scopes, one.may
            ),
        )

    def _authority(self, one: IntrospectionConfig) -> IntrospectionServer:
        asks = IntrospectionClient(
            one.url, self._resolve(one.client_id), self._resolve(one.client_secret), ask=self._fetch
        )
        names = ("sub", "username", "client_id")
        return IntrospectionServer(
            asks,
            lambda: one.audience or [self.resource],
            ClaimMapping("introspection", names, prefix=one.prefix, may=one.may),
        )

    def _resolve(self, text: str) -> str:
        return resolve(text, environ=self._environ, base_dir=self._base_dir)

    # -- what goes on

    def _forget(self) -> None:
        """Something was revoked or rotated."""
        self._parts.authenticator.clear_cache()
        if self._parts.opaque is not None:
            self._parts.opaque.forget()

    def _keep_keys(self) -> None:
        """Read keys again before anybody has to wait for them."""
        for keys in self._parts.key_sets.values():
            keys.sweep()
            if keys.due and not any(one.get_name() == keys.issuer for one in self._refreshing):
                task = asyncio.get_running_loop().create_task(keys.refresh(), name=keys.issuer)
                self._refreshing.add(task)
                task.add_done_callback(self._refreshing.discard)


class _Taken:
    """Names that nobody else's token may claim."""

    def __init__(self, names: frozenset[str], tokens: ApiTokens) -> None:
        self._names = names
        self._tokens = tokens

    def __contains__(self, name: object) -> bool:
        return name in self._names or any(
            one.name == name for one in self._tokens.access.tokens.values()
        )


def _caller(one: TokenConfig) -> Caller:
    return Caller(
        one.name,
        can_call="call" in one.may,
        can_register="register" in one.may,
        can_join="join" in one.may,
        can_view_approvals="approve" in one.may,
        kind="token",
        roles=tuple(one.roles),
        scopes=None if one.scopes is None else tuple(one.scopes),
    )


def _check(config: Config) -> None:
    """What must hold between the parts. Raises InterlockError."""
    tls = config.tls
    client_ca = tls is not None and tls.client_ca is not None
    for problem in identity_problems(config.identity, client_ca=client_ca):
        place = ".".join(str(step) for step in problem.path)
        raise InterlockError(CONFIG, f"`{place}`: {problem.message}; {problem.hint}.")


def _on_this_loop(seconds: float, what: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, what)
