"""The OAuth credentials of upstreams, as their links use them while the node runs.

However many calls find out at once that a token has ended, one renewal is made, and all of them go
on with what it brought. What `interlock login` stores is taken up when the next refusal, renewal
or connection comes along.

Most upstreams never want a token: the rest of this package is loaded when the first one does.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from interlock.core.config import ServerConfig
from interlock.core.upstreams.transports.credentials import Settle, SignInNeededError
from interlock.errors import INTERNAL, InterlockError

if TYPE_CHECKING:
    from interlock.core.upstreams.oauth.grants import GrantStore
    from interlock.core.upstreams.oauth.sign_in import Browser
    from interlock.core.upstreams.oauth.tokens import UpstreamTokens

LOOK_AGAIN: Final = 1.0
"""How often a node that waits for a human looks whether one has come."""
WAIT_AT_MOST: Final = 60.0
"""After so long it asks the server again: it may no longer want a sign-in."""
_RETRY: Final = 30.0

_log = logging.getLogger("interlock.upstreams")

Learn = Callable[[Iterable[str]], None]
"""Is told every secret that comes by, so that it can be masked."""


def wants_oauth(server: ServerConfig) -> bool:
    """Whether the node may sign in to a server: it has a URL, and no credentials of its own."""
    own = any(name.lower() == "authorization" for name in server.headers)
    return server.url is not None and server.oauth.enabled and not own


class OAuthBearer:
    """The credentials for one upstream."""

    def __init__(self, key: str, bearers: BearerRegistry) -> None:
        self.idle = True
        self._key = key
        self._bearer_registry = bearers
        self._now = bearers.now
        self._server = ServerConfig()
        self._learn: Learn = lambda _: None
        self._connected = False
        self._tokens: UpstreamTokens | None = None
        """Where they come from; None for as long as nobody asked for any."""
        self._work: asyncio.Task[None] | None = None
        self._waiting: list[Settle] = []

    # -- for whoever connects

    async def until_worth_trying(self) -> None:
        """While only a human can help, wait until one did, or until it is time to ask again."""
        tokens, waited = self._tokens, 0.0
        if tokens is None or tokens.missed is None:
            return
        while waited < WAIT_AT_MOST and await tokens.stamp() == tokens.missed:
            await self._bearer_registry.sleep(LOOK_AGAIN)
            waited += LOOK_AGAIN
        tokens.missed = None

    async def prepare(self, server: ServerConfig, learn: Learn) -> OAuthBearer | None:
        """Be ready for a new connection; None when this server gets no tokens.

        Raises InterlockError.
        """
        self._server, self._learn, self._connected = server, learn, False
        if not wants_oauth(server):
            return None
        # That transport does not show the challenge, so it is not waited for.
        at_once = server.transport == "sse" and server.oauth.grant == "client_credentials"
        if self._tokens is None and not at_once and not self._bearer_registry.store.exists():
            return self
        tokens = self._have_tokens()
        if tokens is None:
            return None
        await self.settled()
        try:
            await tokens.load()
        except InterlockError as error:
            # Most servers want no token at all. Those that do will be told.
            _log.warning("%s: %s", self._key, error.message)
        if tokens.ended:
            await tokens.renewed()
        elif at_once and not tokens.line:
            await tokens.obtain(None)
        self.idle = not tokens.line
        return self

    def _have_tokens(self) -> UpstreamTokens | None:
        """Where tokens for this server come from; None when none may be sent to it."""
        from interlock.core.upstreams.oauth.tokens import UpstreamTokens
        from interlock.core.upstreams.oauth.urls import is_secure

        url = self._server.url or ""
        if not is_secure(url):
            # Over plain http a token would be anybody's.
            return None
        if self._tokens is None:
            self._tokens = UpstreamTokens(self._key, self._bearer_registry)
        self._tokens.connected = self._connected
        self._tokens.configure(url, self._server.oauth, self._learn)
        return self._tokens

    def opened(self) -> None:
        """The server has let us in."""
        self._connected = True
        if self._tokens is not None:
            self._tokens.connected = True

    async def settled(self) -> None:
        """Wait for the renewal that is under way, if one is."""
        if self._work is not None:
            await asyncio.wait([self._work])

    async def close(self, seconds: float) -> None:
        """Let a renewal come to its end: half of one would lose the refresh token."""
        work = self._work
        if work is not None:
            await asyncio.wait([work], timeout=seconds)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    # -- Bearer

    def current(self) -> bytes:
        tokens = self._tokens
        if tokens is None:
            return b""
        if self._now() >= tokens.renew and self._work is None:
            tokens.renew = math.inf
            self._start(tokens.renewed, early=True)
        return tokens.line

    def refused(self, status: int, challenge: bytes, sent: bytes, settle: Settle) -> None:
        from interlock.core.upstreams.oauth.challenge import INSUFFICIENT_SCOPE, bearer_challenge
        from interlock.core.upstreams.oauth.tokens import forbidden, insecure, not_ours

        tokens = self._tokens or self._have_tokens()
        asked = bearer_challenge(challenge.decode("latin-1"))
        if status == 403 and (asked is None or asked.error != INSUFFICIENT_SCOPE):
            settle(forbidden(self._key) if sent else not_ours(self._key, status))
        elif tokens is None:
            settle(insecure(self._key, asked))
        elif tokens.line and tokens.line != sent:
            # Somebody was faster: there is a newer one already.
            settle(None)
        else:
            self._waiting.append(settle)
            if self._work is None:
                self._start(lambda: tokens.mend(status, asked, sent), early=False)

    def _start(self, work: Callable[[], Awaitable[None]], *, early: bool) -> None:
        self._work = asyncio.get_running_loop().create_task(
            self._do(work, early=early), name=f"token:{self._key}"
        )

    async def _do(self, work: Callable[[], Awaitable[None]], *, early: bool) -> None:
        error: InterlockError | None = None
        try:
            await work()
        except InterlockError as failed:
            error = failed
        except Exception:
            _log.exception("%s: getting its token failed inside the node", self._key)
            error = InterlockError(INTERNAL, f"The node failed while signing in to {self._key}.")
        finally:
            self._work = None
            self.idle = self._tokens is None or not self._tokens.line
            waiting, self._waiting = self._waiting, []
        if early and error is not None and not isinstance(error, SignInNeededError):
            # The old token is still good for a while, and another try may do better.
            _log.warning("%s: %s", self._key, error.message)
            if self._tokens is not None:
                self._tokens.renew = self._now() + _RETRY
        for settle in waiting:
            try:
                settle(error)
            except Exception:
                # One call's trouble is not that of the others.
                _log.exception("%s: a call could not go on", self._key)


LAST_RENEWALS: Final = 3.0
"""How long renewals under way may still take when the node stops."""


class BearerRegistry:
    """Makes bearers, and lets them end in order."""

    def __init__(
        self,
        store: GrantStore,
        *,
        browser: Browser | None = None,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """With a `browser` the node signs in by itself; without one it asks for a human."""
        self.store = store
        self.browser = browser
        self.now = now
        self.sleep = sleep
        self._bearers: WeakSet[OAuthBearer] = WeakSet()

    def bearer(self, key: str) -> OAuthBearer:
        """The tokens of one upstream."""
        bearer = OAuthBearer(key, self)
        self._bearers.add(bearer)
        return bearer

    async def close(self) -> None:
        """End what is under way."""
        await asyncio.gather(*(one.close(LAST_RENEWALS) for one in list(self._bearers)))
