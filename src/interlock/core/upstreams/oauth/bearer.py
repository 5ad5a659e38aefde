"""OAuth credentials of upstreams for their transports while the node runs.

If several calls find an expired token at once, it is renewed once and all calls use the result.
Tokens that `interlock login` stores are loaded at the next rejection, renewal or connection.

Most upstreams need no token. The rest of this package is loaded when the first one does.
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
from interlock.core.upstreams.transports.credentials import OnCredentialsResult, SignInNeededError
from interlock.errors import INTERNAL, INTERNAL_ERROR_TEXT, InterlockError

if TYPE_CHECKING:
    from interlock.core.upstreams.oauth.grants import GrantStore
    from interlock.core.upstreams.oauth.sign_in import Browser
    from interlock.core.upstreams.oauth.tokens import UpstreamTokens

POLL_INTERVAL_SECONDS: Final = 1.0
"""The interval at which the token store is checked while a sign-in is needed."""
MAX_WAIT_SECONDS: Final = 60.0
"""After this time the server is asked again: it may no longer require a sign-in."""
_RETRY_SECONDS: Final = 30.0

_log = logging.getLogger("interlock.upstreams")

AddSecrets = Callable[[Iterable[str]], None]
"""Receives all secrets, so that they are masked."""


def can_use_oauth(server: ServerConfig) -> bool:
    """Return whether the node may sign in to a server: it has a URL and no own credentials."""
    has_authorization = any(name.lower() == "authorization" for name in server.headers)
    return server.url is not None and server.oauth.enabled and not has_authorization


class OAuthBearer:
    """The OAuth credentials for one upstream."""

    def __init__(self, key: str, bearers: BearerRegistry) -> None:
        self.idle = True
        self._key = key
        self._bearer_registry = bearers
        self._now = bearers.now
        self._server = ServerConfig()
        self._add_secrets: AddSecrets = lambda _: None
        self._connected = False
        self._tokens: UpstreamTokens | None = None
        """The source of tokens. None: none was needed yet."""
        self._task: asyncio.Task[None] | None = None
        self._waiting_callbacks: list[OnCredentialsResult] = []

    # -- for connectors

    async def wait_for_sign_in(self) -> None:
        """While a person has to sign in, wait until that happened or the server is asked again."""
        tokens, waited_seconds = self._tokens, 0.0
        if tokens is None or tokens.rejected_version is None:
            return
        while (
            waited_seconds < MAX_WAIT_SECONDS and await tokens.version() == tokens.rejected_version
        ):
            await self._bearer_registry.sleep(POLL_INTERVAL_SECONDS)
            waited_seconds += POLL_INTERVAL_SECONDS
        tokens.rejected_version = None

    async def prepare(self, server: ServerConfig, add_secrets: AddSecrets) -> OAuthBearer | None:
        """Prepare a new connection. Returns None if this server gets no tokens.

        Raises:
            InterlockError: no token could be obtained.
        """
        self._server, self._add_secrets, self._connected = server, add_secrets, False
        if not can_use_oauth(server):
            return None
        # The legacy transport does not report the challenge, so the token is obtained early.
        obtains_early = server.transport == "sse" and server.oauth.grant == "client_credentials"
        if self._tokens is None and not obtains_early and not self._bearer_registry.store.exists():
            return self
        tokens = self._get_tokens()
        if tokens is None:
            return None
        await self.wait_renewed()
        try:
            await tokens.load()
        except InterlockError as error:
            # Most servers need no token. Those that do will reject the request.
            _log.warning("upstream %s: %s", self._key, error.message)
        if tokens.is_expired:
            await tokens.renew()
        elif obtains_early and not tokens.line:
            await tokens.obtain(None)
        self.idle = not tokens.line
        return self

    def _get_tokens(self) -> UpstreamTokens | None:
        """Return the source of tokens for this server. None: it must not get any."""
        from interlock.core.upstreams.oauth.tokens import UpstreamTokens
        from interlock.core.upstreams.oauth.urls import is_secure

        url = self._server.url or ""
        if not is_secure(url):
            # Over plain http others could read a token.
            return None
        if self._tokens is None:
            self._tokens = UpstreamTokens(self._key, self._bearer_registry)
        self._tokens.connected = self._connected
        self._tokens.configure(url, self._server.oauth, self._add_secrets)
        return self._tokens

    def on_connected(self) -> None:
        """Record that a connection was opened."""
        self._connected = True
        if self._tokens is not None:
            self._tokens.connected = True

    async def wait_renewed(self) -> None:
        """Wait for the renewal in progress, if there is one."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self, seconds: float) -> None:
        """Let a renewal finish: an interrupted one would lose the refresh token."""
        task = self._task
        if task is not None:
            await asyncio.wait([task], timeout=seconds)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -- BearerCredentials

    def current(self) -> bytes:
        tokens = self._tokens
        if tokens is None:
            return b""
        if self._now() >= tokens.renew_at and self._task is None:
            tokens.renew_at = math.inf
            self._start(tokens.renew, early=True)
        return tokens.line

    def on_rejected(
        self, status: int, challenge: bytes, sent_line: bytes, on_result: OnCredentialsResult
    ) -> None:
        from interlock.core.upstreams.oauth.challenge import INSUFFICIENT_SCOPE, bearer_challenge
        from interlock.core.upstreams.oauth.tokens import (
            forbidden_error,
            insecure_error,
            rejected_error,
        )

        tokens = self._tokens or self._get_tokens()
        parsed_challenge = bearer_challenge(challenge.decode("latin-1"))
        if status == 403 and (
            parsed_challenge is None or parsed_challenge.error != INSUFFICIENT_SCOPE
        ):
            on_result(
                forbidden_error(self._key) if sent_line else rejected_error(self._key, status)
            )
        elif tokens is None:
            on_result(insecure_error(self._key, parsed_challenge))
        elif tokens.line and tokens.line != sent_line:
            # A newer token is available already.
            on_result(None)
        else:
            self._waiting_callbacks.append(on_result)
            if self._task is None:
                self._start(
                    lambda: tokens.replace_rejected(status, parsed_challenge, sent_line),
                    early=False,
                )

    def _start(self, work: Callable[[], Awaitable[None]], *, early: bool) -> None:
        self._task = asyncio.get_running_loop().create_task(
            self._run(work, early=early), name=f"token:{self._key}"
        )

    async def _run(self, work: Callable[[], Awaitable[None]], *, early: bool) -> None:
        error: InterlockError | None = None
        try:
            await work()
        except InterlockError as exc:
            error = exc
        except Exception:
            _log.exception("upstream %s: cannot get a token, error in the node", self._key)
            error = InterlockError(INTERNAL, INTERNAL_ERROR_TEXT)
        finally:
            self._task = None
            self.idle = self._tokens is None or not self._tokens.line
            callbacks, self._waiting_callbacks = self._waiting_callbacks, []
        if early and error is not None and not isinstance(error, SignInNeededError):
            # The old token is still valid for a while, so a later attempt may succeed.
            _log.warning("upstream %s: %s", self._key, error.message)
            if self._tokens is not None:
                self._tokens.renew_at = self._now() + _RETRY_SECONDS
        for on_result in callbacks:
            try:
                on_result(error)
            except Exception:
                # An error of one call must not affect the others.
                _log.exception("upstream %s: cannot continue a call", self._key)


RENEWAL_TIMEOUT_SECONDS: Final = 3.0
"""The time that renewals in progress may take when the node stops."""


class BearerRegistry:
    """Creates bearers, and stops them in order."""

    def __init__(
        self,
        store: GrantStore,
        *,
        browser: Browser | None = None,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """
        Args:
            browser: signs in without a person. None: a person has to run `interlock login`.
        """
        self.store = store
        self.browser = browser
        self.now = now
        self.sleep = sleep
        self._bearers: WeakSet[OAuthBearer] = WeakSet()

    def bearer(self, key: str) -> OAuthBearer:
        """Return the credentials of one upstream."""
        bearer = OAuthBearer(key, self)
        self._bearers.add(bearer)
        return bearer

    async def close(self) -> None:
        """Stop all renewals."""
        await asyncio.gather(
            *(bearer.close(RENEWAL_TIMEOUT_SECONDS) for bearer in list(self._bearers))
        )
