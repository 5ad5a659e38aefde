"""The tokens of one upstream: from the store, by renewal, with the node's own credentials, or by a
person's sign-in.

Only one process renews a token: a refresh token is often valid for one use, and other commands of
the same user may have the same one.
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
from interlock.core.upstreams.oauth.errors import SignInFailedError, SignInProblem, convert_problems
from interlock.core.upstreams.oauth.fetch import fetch
from interlock.core.upstreams.oauth.grants import Grant, UpstreamGrants
from interlock.core.upstreams.oauth.requests import require_extra
from interlock.core.upstreams.oauth.sign_in import (
    SignInRequest,
    request_token,
    sign_in,
    sign_in_with_credentials,
)
from interlock.core.upstreams.oauth.urls import canonical
from interlock.core.upstreams.transports.credentials import SignInNeededError
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.primitives.rate_limits import SlidingWindow

if TYPE_CHECKING:
    from interlock.core.upstreams.oauth.bearer import BearerRegistry

LEASE_SECONDS: Final = 40.0
"""The time that one process may take for a renewal before another may try."""
_POLL_INTERVAL_SECONDS: Final = 0.25
_MAX_VISITS: Final = 3
_VISIT_PERIOD_SECONDS: Final = 60.0


class UpstreamTokens:
    """The current token of one upstream, and the ways to get another."""

    def __init__(self, key: str, bearers: BearerRegistry) -> None:
        self.line = b""
        """The header line. The same object as long as the token is the same."""
        self.renew_at = math.inf
        """The time of the next renewal."""
        self.grant: Grant | None = None
        self.connected = False
        """True if the server accepted a connection, with or without a token."""
        self.rejected_version: int | None = None
        """The version of the grant that the server rejected, while a person has to sign in."""
        self._key = key
        self._store = bearers.store
        self._browser = bearers.browser
        self._now = bearers.now
        self._sleep = bearers.sleep
        self._url = ""
        self._settings = OAuthConfig()
        self._grants = UpstreamGrants(bearers.store, key, "")
        self._add_secrets: Callable[[Iterable[str]], None] = lambda _: None
        self._version = 0
        self._visits = SlidingWindow(_VISIT_PERIOD_SECONDS)

    def configure(
        self, url: str, settings: OAuthConfig, add_secrets: Callable[[Iterable[str]], None]
    ) -> None:
        """Apply the settings of the server. `add_secrets` is called with every secret."""
        self._url, self._settings, self._add_secrets = url, settings, add_secrets
        if canonical(url) != self._grants.url:
            self._grants = UpstreamGrants(self._store, self._key, canonical(url))
            self._use(None, 0)

    @property
    def uses_own_credentials(self) -> bool:
        """True if the node signs in with its own credentials, without a person."""
        return self._settings.grant == "client_credentials"

    @property
    def is_expired(self) -> bool:
        """True if the token is known to be expired."""
        return self.grant is not None and 0 < self.grant.expires_at <= self._now()

    async def version(self) -> int:
        """Return the version of the grant in the store."""
        return await self._grants.version()

    def _use(self, grant: Grant | None, version: int) -> None:
        """Use this grant from now on."""
        self.grant, self._version = grant, version
        token = "" if grant is None else grant.access_token
        line = f"Authorization: Bearer {token}\r\n".encode() if token else b""
        if line != self.line:
            self.line = line
        self.renew_at = (grant.renew_at if grant is not None else 0.0) or math.inf
        if grant is not None:
            self._add_secrets(grant.secrets())

    async def load(self) -> bool:
        """Load the stored grant. Returns whether it was newer."""
        stored = await self._grants.grant()
        version = 0 if stored is None else stored.version
        if version == self._version:
            return False
        grant = None if stored is None or not self._is_usable(stored.grant) else stored.grant
        if self.uses_own_credentials and grant is not None and self.grant is not None:
            # For own credentials only the issuer is stored. The token is in memory.
            grant = self.grant
        self._use(grant, version)
        return True

    def _is_usable(self, grant: Grant) -> bool:
        """Return whether a grant was made for the current settings."""
        settings, client = self._settings, grant.client
        if settings.issuer is not None and settings.issuer.rstrip("/") != grant.issuer.rstrip("/"):
            return False
        if client.kind == "configured" or settings.client_id:
            return client.kind == "configured" and client.client_id == settings.client_id
        return True

    # -- getting other tokens. All of these raise InterlockError on failure.

    async def replace_rejected(
        self, status: int, challenge: BearerChallenge | None, sent_line: bytes
    ) -> None:
        """Get other credentials after the current ones were rejected."""
        if await self.load() and self.line and self.line != sent_line and not self.is_expired:
            return
        if status == 403 and self.line:
            await self._step_up(challenge or BearerChallenge())
        elif self.grant is not None and self.grant.refresh_token:
            await self.renew()
        else:
            await self.obtain(challenge)

    async def obtain(self, challenge: BearerChallenge | None, *, extra_scope: str = "") -> None:
        """Get a first token, or one with additional scopes."""
        if challenge is None and self.grant is None and self._settings == OAuthConfig():
            # Nothing indicates that the server requires a sign-in.
            raise await self._credentials_error()
        require_extra(self._key)
        request = SignInRequest(self._url, self._settings, challenge, self.grant, extra_scope)
        if self.uses_own_credentials:
            with convert_problems(self._key):
                grant = await sign_in_with_credentials(request, fetch, now=self._now())
            if self.grant is None or self.grant.issuer != grant.issuer:
                self._version = await self._grants.save(grant.without_tokens()) or 0
            self._use(grant, self._version)
            return
        if self._browser is None or not self._visits.count_if_below(self._now(), _MAX_VISITS):
            raise await self._sign_in_error()
        with convert_problems(self._key):
            grant = await sign_in(request, self._browser, self._grants, fetch, now=self._now())
        self._use(grant, await self._grants.save(grant) or 0)

    async def _step_up(self, challenge: BearerChallenge) -> None:
        """Get additional scopes: the token is valid, but not for this request."""
        previous = self.grant
        if (
            previous is None
            or not challenge.scope
            or scopes.includes_scopes(previous.requested_scope, challenge.scope)
        ):
            raise forbidden_error(self._key, challenge.scope)
        if self.uses_own_credentials or self._browser is not None:
            await self.obtain(challenge, extra_scope=previous.requested_scope)
            return
        missing_scope = scopes.join_scopes(previous.missing_scope, challenge.scope)
        if missing_scope != previous.missing_scope:
            updated = replace(previous, missing_scope=missing_scope)
            version = await self._grants.save(updated, replaces=self._version)
            if version is not None:
                self._use(updated, version)
        raise InterlockError(
            UPSTREAM_UNAVAILABLE,
            f"{self._key} requires more scopes for this call ({_printable(challenge.scope)}). "
            f"Run `interlock login {self._key}`, then repeat the call.",
        )

    async def renew(self) -> None:
        """Get a new token."""
        if self.uses_own_credentials:
            await self.obtain(None)
        elif self.grant is None or not self.grant.refresh_token:
            raise await self._sign_in_error()
        else:
            require_extra(self._key)
            await self._refresh_exclusively()

    async def _refresh_exclusively(self) -> None:
        holder = secrets.token_hex(8)
        waited_seconds = 0.0
        while not await self._grants.lease(holder, LEASE_SECONDS):
            # Another process is renewing the token; the result is valid here, too.
            await self._sleep(_POLL_INTERVAL_SECONDS)
            waited_seconds += _POLL_INTERVAL_SECONDS
            if await self.load() and self.line:
                return
            if waited_seconds > LEASE_SECONDS:
                problem = SignInProblem(
                    "another process is using its refresh token.", is_temporary=True
                )
                raise SignInFailedError(self._key, problem)
        try:
            if await self.load() and self.line:
                return
            if self.grant is None or not self.grant.refresh_token:
                raise await self._sign_in_error()
            await self._use_refresh_token(self.grant)
        finally:
            await self._grants.release(holder)

    async def _use_refresh_token(self, grant: Grant) -> None:
        client = grant.client
        if client.kind == "configured":
            client = replace(client, client_secret=self._settings.client_secret or "")
        fields = {"refresh_token": grant.refresh_token, "resource": grant.resource}
        try:
            with convert_problems(self._key):
                response = await request_token(
                    client,
                    grant.token_endpoint,
                    fields,
                    grant_type="refresh_token",
                    settings=self._settings,
                    fetch=fetch,
                )
        except SignInFailedError as error:
            code = error.problem.code
            if error.problem.is_temporary or not code:
                raise
            if code == "invalid_client" and client.kind != "registered":
                # A config error. Another sign-in would not help.
                raise
            if code == "invalid_client":
                await self._grants.delete_client(client)
            # A permanent rejection: a retry would be rejected, too.
            await self._save(grant.without_tokens())
            if not self.line:
                raise await self._sign_in_error() from None
        else:
            await self._save(grant.with_token(response, self._now()))

    async def _save(self, grant: Grant) -> None:
        """Save the result of a renewal, unless a person signed in meanwhile."""
        version = await self._grants.save(grant, replaces=self._version)
        if version is None:
            await self.load()
        else:
            self._use(grant, version)

    # -- errors

    async def _sign_in_error(self) -> SignInNeededError:
        suffix = " again" if self.grant is not None else ""
        return await self._record_rejection(
            f"{self._key} requires a sign-in{suffix}. Run `interlock login {self._key}`"
        )

    async def _credentials_error(self) -> SignInNeededError:
        return await self._record_rejection(
            f"{self._key} rejected the credentials (HTTP 401). Check `headers` of this server or, "
            f"if it requires a sign-in, run `interlock login {self._key}`"
        )

    async def _record_rejection(self, message: str) -> SignInNeededError:
        # A server that accepted a connection without a token rejects this request only.
        is_permanent = self.grant is not None or not self.connected
        if is_permanent:
            self.rejected_version = await self._grants.version()
        return SignInNeededError(message, is_permanent=is_permanent)


def insecure_error(key: str, challenge: BearerChallenge | None) -> InterlockError:
    """Return the error for a server to which no token may be sent."""
    if challenge is None:
        return rejected_error(key, 401)
    message = f"{key} requires a token, but its URL is plain http. Set `url` to its https URL."
    return InterlockError(UPSTREAM_UNAVAILABLE, message)


def rejected_error(key: str, status: int) -> InterlockError:
    """Return the error for rejected credentials that are not from a sign-in."""
    message = f"{key} rejected the credentials (HTTP {status}). Check `headers` of this server."
    return InterlockError(UPSTREAM_UNAVAILABLE, message)


def forbidden_error(key: str, scope: str | None = None) -> InterlockError:
    """Return the error for a rejection that a sign-in would not change."""
    if scope:
        message = f"it requires the scope {_printable(scope)}, which was requested already"
    else:
        message = "the scopes of the sign-in are not sufficient"
    return InterlockError(UPSTREAM_UNAVAILABLE, f"{key} rejected the call (HTTP 403): {message}.")


def _printable(scope: str) -> str:
    """Return a scope from another party in a form that is safe to print."""
    return "".join(character if character.isprintable() else "\ufffd" for character in scope[:200])
