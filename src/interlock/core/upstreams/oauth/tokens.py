"""Getting the tokens of one upstream: from the store, by renewal, by the node's own credentials, or
not without a human.

A renewal is made by one process only: a refresh token is often good for one use, and other commands
of the same user may hold the same one.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from interlock.core.config.model import OAuthConfig
from interlock.core.upstreams.oauth import challenge as scopes
from interlock.core.upstreams.oauth.challenge import BearerChallenge
from interlock.core.upstreams.oauth.errors import SignInFailedError, SignInProblem, told
from interlock.core.upstreams.oauth.fetch import fetch
from interlock.core.upstreams.oauth.grants import Grant, UpstreamGrants
from interlock.core.upstreams.oauth.requests import require_extra
from interlock.core.upstreams.oauth.sign_in import (
    SignInRequest,
    ask_for_token,
    by_credentials,
    sign_in,
)
from interlock.core.upstreams.oauth.urls import canonical
from interlock.core.upstreams.transports.credentials import SignInNeededError
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.primitives.rate_limits import SlidingWindow

if TYPE_CHECKING:
    from interlock.core.upstreams.oauth.bearer import BearerRegistry

LEASE: Final = 40.0
"""How long one process may take for a renewal before another may try."""
_POLL: Final = 0.25
_MOST_VISITS: Final = 3
_VISITS_WITHIN: Final = 60.0


class UpstreamTokens:
    """What there is for one upstream, and the ways to have something better."""

    def __init__(self, key: str, bearers: BearerRegistry) -> None:
        self.line = b""
        """The header line; the same object for as long as the token is the same."""
        self.renew = math.inf
        """When the token should be renewed."""
        self.grant: Grant | None = None
        self.connected = False
        """Whether the server has let us in, with a token or without."""
        self.missed: int | None = None
        """The version of the grant that was not good enough, while a human is waited for."""
        self._key = key
        self._store = bearers.store
        self._browser = bearers.browser
        self._now = bearers.now
        self._sleep = bearers.sleep
        self._url = ""
        self._settings = OAuthConfig()
        self._wallet = UpstreamGrants(bearers.store, key, "")
        self._learn: Callable[[Iterable[str]], None] = lambda _: None
        self._stamp = 0
        self._visits = SlidingWindow(_VISITS_WITHIN)

    def configure(
        self, url: str, settings: OAuthConfig, learn: Callable[[Iterable[str]], None]
    ) -> None:
        """Be for this server from now on; `learn` is told every secret."""
        self._url, self._settings, self._learn = url, settings, learn
        if canonical(url) != self._wallet.url:
            self._wallet = UpstreamGrants(self._store, self._key, canonical(url))
            self._take(None, 0)

    @property
    def by_itself(self) -> bool:
        """Whether the node signs in with credentials of its own, without a human."""
        return self._settings.grant == "client_credentials"

    @property
    def ended(self) -> bool:
        """Whether the token is known to be over."""
        return self.grant is not None and 0 < self.grant.ends <= self._now()

    async def stamp(self) -> int:
        """The version of the grant in the store."""
        return await self._wallet.stamp()

    def _take(self, grant: Grant | None, stamp: int) -> None:
        """Use this grant from now on."""
        self.grant, self._stamp = grant, stamp
        token = "" if grant is None else grant.access_token
        line = f"Authorization: Bearer {token}\r\n".encode() if token else b""
        if line != self.line:
            self.line = line
        self.renew = (grant.renew if grant is not None else 0.0) or math.inf
        if grant is not None:
            self._learn(grant.secrets())

    async def load(self) -> bool:
        """Look into the store; whether there was something newer."""
        kept = await self._wallet.grant()
        stamp = 0 if kept is None else kept.stamp
        if stamp == self._stamp:
            return False
        grant = None if kept is None or not self._fits(kept.grant) else kept.grant
        if self.by_itself and grant is not None and self.grant is not None:
            # Of these only who gave them is stored: the token is in memory.
            grant = self.grant
        self._take(grant, stamp)
        return True

    def _fits(self, grant: Grant) -> bool:
        """Whether a grant was made for the settings of now."""
        settings, client = self._settings, grant.client
        if settings.issuer is not None and settings.issuer.rstrip("/") != grant.issuer.rstrip("/"):
            return False
        if client.kind == "configured" or settings.client_id:
            return client.kind == "configured" and client.client_id == settings.client_id
        return True

    # -- having something better. All of these raise InterlockError when there is nothing.

    async def mend(self, status: int, asked: BearerChallenge | None, sent: bytes) -> None:
        """Have other credentials than those that were refused."""
        if await self.load() and self.line and self.line != sent and not self.ended:
            return
        if status == 403 and self.line:
            await self._step_up(asked or BearerChallenge())
        elif self.grant is not None and self.grant.refresh_token:
            await self.renewed()
        else:
            await self.obtain(asked)

    async def obtain(self, asked: BearerChallenge | None, *, more: str = "") -> None:
        """A first token, or one for `more` scopes."""
        if asked is None and self.grant is None and self._settings == OAuthConfig():
            # Nothing says that it is a sign-in that it wants.
            raise await self._refusal()
        require_extra(self._key)
        occasion = SignInRequest(self._url, self._settings, asked, self.grant, more)
        if self.by_itself:
            with told(self._key):
                grant = await by_credentials(occasion, fetch, now=self._now())
            if self.grant is None or self.grant.issuer != grant.issuer:
                self._stamp = await self._wallet.keep(grant.spent()) or 0
            self._take(grant, self._stamp)
            return
        if self._browser is None or not self._visits.take(self._now(), _MOST_VISITS):
            raise await self._need_somebody()
        with told(self._key):
            grant = await sign_in(occasion, self._browser, self._wallet, fetch, now=self._now())
        self._take(grant, await self._wallet.keep(grant) or 0)

    async def _step_up(self, asked: BearerChallenge) -> None:
        """The token is good, but not for this."""
        before = self.grant
        if before is None or not asked.scope or scopes.covers(before.asked, asked.scope):
            raise forbidden(self._key, asked.scope)
        if self.by_itself or self._browser is not None:
            await self.obtain(asked, more=before.asked)
            return
        wanted = scopes.union(before.wanted, asked.scope)
        if wanted != before.wanted:
            noted = replace(before, wanted=wanted)
            stamp = await self._wallet.keep(noted, instead_of=self._stamp)
            if stamp is not None:
                self._take(noted, stamp)
        raise InterlockError(
            UPSTREAM_UNAVAILABLE,
            f"{self._key} wants more rights for this ({_shown(asked.scope)}): "
            f"run `interlock login {self._key}`, and call again.",
        )

    async def renewed(self) -> None:
        """A new token for the old one."""
        if self.by_itself:
            await self.obtain(None)
        elif self.grant is None or not self.grant.refresh_token:
            raise await self._need_somebody()
        else:
            require_extra(self._key)
            await self._refresh()

    async def _refresh(self) -> None:
        holder = secrets.token_hex(8)
        waited = 0.0
        while not await self._wallet.lease(holder, LEASE):
            # Another process is at it; what it gets is good for us too.
            await self._sleep(_POLL)
            waited += _POLL
            if await self.load() and self.line:
                return
            if waited > LEASE:
                trouble = SignInProblem("another process holds its refresh token.", passing=True)
                raise SignInFailedError(self._key, trouble)
        try:
            if await self.load() and self.line:
                return
            if self.grant is None or not self.grant.refresh_token:
                raise await self._need_somebody()
            await self._use_refresh_token(self.grant)
        finally:
            await self._wallet.release(holder)

    async def _use_refresh_token(self, grant: Grant) -> None:
        client = grant.client
        if client.kind == "configured":
            client = replace(client, client_secret=self._settings.client_secret or "")
        fields = {"refresh_token": grant.refresh_token, "resource": grant.resource}
        try:
            with told(self._key):
                answer = await ask_for_token(
                    client,
                    grant.token_endpoint,
                    fields,
                    grant_type="refresh_token",
                    settings=self._settings,
                    fetch=fetch,
                )
        except SignInFailedError as failed:
            code = failed.trouble.code
            if failed.trouble.passing or not code:
                raise
            if code == "invalid_client" and client.kind != "registered":
                # The fault is in the config, and signing in again does not mend it.
                raise
            if code == "invalid_client":
                await self._wallet.forget_client(client)
            # It is refused for good: asking again would only be refused again.
            await self._keep(grant.spent())
            if not self.line:
                raise await self._need_somebody() from None
        else:
            await self._keep(grant.with_token(answer, self._now()))

    async def _keep(self, grant: Grant) -> None:
        """Keep what came of a renewal, unless a human signed in meanwhile: theirs is newer."""
        stamp = await self._wallet.keep(grant, instead_of=self._stamp)
        if stamp is None:
            await self.load()
        else:
            self._take(grant, stamp)

    # -- when it is not to be had

    async def _need_somebody(self) -> SignInNeededError:
        again = " again" if self.grant is not None else ""
        return await self._miss(
            f"{self._key} needs you to sign in{again}: run `interlock login {self._key}`"
        )

    async def _refusal(self) -> SignInNeededError:
        return await self._miss(
            f"{self._key} refused the node's credentials (HTTP 401): check the `headers` of this "
            f"server or, if it wants a sign-in, run `interlock login {self._key}`"
        )

    async def _miss(self, sentence: str) -> SignInNeededError:
        # Who was let in without a token is refused this one thing, not everything.
        lasting = self.grant is not None or not self.connected
        if lasting:
            self.missed = await self._wallet.stamp()
        return SignInNeededError(sentence, lasting=lasting)


def insecure(key: str, asked: BearerChallenge | None) -> InterlockError:
    """A refusal by a server to which no token may be sent."""
    if asked is None:
        return not_ours(key, 401)
    why = f"{key} wants a token, and is reached over plain http: use its https URL."
    return InterlockError(UPSTREAM_UNAVAILABLE, why)


def not_ours(key: str, status: int) -> InterlockError:
    """A refusal that has nothing to do with signing in."""
    why = (
        f"{key} refused the node's credentials (HTTP {status}): check the `headers` of this server."
    )
    return InterlockError(UPSTREAM_UNAVAILABLE, why)


def forbidden(key: str, scope: str | None = None) -> InterlockError:
    """A refusal that no sign-in would change."""
    if scope:
        why = f"it wants the scope {_shown(scope)}, which it was asked for already"
    else:
        why = "what the node signed in with is not enough"
    return InterlockError(UPSTREAM_UNAVAILABLE, f"{key} refuses this (HTTP 403): {why}.")


def _shown(scope: str) -> str:
    """A scope that somebody else wrote, fit for a sentence."""
    return "".join(one if one.isprintable() else "\ufffd" for one in scope[:200])
