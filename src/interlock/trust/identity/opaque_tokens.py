"""Opaque tokens: asks introspection servers about them (RFC 7662), and caches the responses.

A response is cached for a minute at most, and no longer than the token is valid, so a token that is
revoked at its server is rejected here within that time. The node authenticates with its own
credentials.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Container, Sequence
from hashlib import sha256
from typing import Any, Final, Protocol
from urllib.parse import quote, urlencode

import msgspec

from interlock.core.pipeline.authentication import KnownToken, PendingIdentity
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.fetch import Fetch, fetch
from interlock.core.upstreams.oauth.urls import is_secure
from interlock.errors import CONFIG, TOO_BUSY, InterlockError
from interlock.primitives.bounded_dict import BoundedDict
from interlock.trust.identity.claims import (
    LEEWAY_SECONDS,
    ClaimMapping,
    Claims,
    check_audience,
    check_times,
    issued_at,
    read_caller,
    token_error,
)
from interlock.trust.identity.signed_tokens import MAX_TOKEN_LENGTH, Revocations

INTROSPECTION_TIMEOUT_SECONDS: Final = 10.0
CACHE_SECONDS: Final = 60.0
"""The time for which a response is valid."""
FAILURE_CACHE_SECONDS: Final = 2.0
"""The time for which a server is not asked again after a failure."""
MAX_REQUESTS: Final = 32
MAX_CACHED_TOKENS: Final = 10_000
_FORM: Final = "application/x-www-form-urlencoded"

_node_log = logging.getLogger("interlock.node")
_log = logging.getLogger("interlock.pipeline")


LastValid = BoundedDict[tuple[str, str], float]
"""The time of the last confirmation of a caller's token by its server, by name and id of the
caller."""


class TokenIntrospector(Protocol):
    """Asks a server about a token."""

    async def __call__(self, token: str) -> Claims | None:
        """Return the claims of a token. None: the server cannot be reached. Never raises."""
        ...


class IntrospectionClient:
    """A client of one introspection endpoint."""

    def __init__(
        self, url: str, client_id: str, client_secret: str, *, fetch: Fetch = fetch
    ) -> None:
        """Raises InterlockError for an address without https."""
        if not is_secure(url):
            raise InterlockError(
                CONFIG, "`identity.introspection`: a `url` is not https, and tokens are sent there."
            )
        # RFC 6749 §2.3.1: both values are form-encoded in this header.
        pair = f"{quote(client_id, safe='')}:{quote(client_secret, safe='')}"
        self._authorization = "Basic " + base64.b64encode(pair.encode()).decode()
        self._url = url
        self._fetch = fetch
        self.problem: str | None = None

    def __repr__(self) -> str:
        return f"IntrospectionClient({self._url})"

    async def __call__(self, token: str) -> dict[str, Any] | None:
        """Return the response of the server. None: it cannot be reached. Never raises."""
        form = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        headers = {"Content-Type": _FORM, "Authorization": self._authorization}
        try:
            async with asyncio.timeout(INTROSPECTION_TIMEOUT_SECONDS):
                response = await self._fetch("POST", self._url, headers, form)
            if response.status != 200:
                raise ValueError(f"HTTP {response.status}")
            claims = msgspec.json.decode(response.body, type=dict[str, Any])
        except (
            SignInProblem,
            TimeoutError,
            ValueError,
            RecursionError,
            UnicodeDecodeError,
        ) as error:
            reason = error.reason if isinstance(error, SignInProblem) else str(error) or "timeout"
            if self.problem is None:
                _node_log.warning("introspection server %s: request failed: %s", self._url, reason)
            self.problem = reason
            return None
        if self.problem is not None:
            _node_log.info("introspection server %s: works again", self._url)
        self.problem = None
        return claims


class IntrospectionServer(msgspec.Struct, frozen=True):
    """An introspection server, and how its responses become callers."""

    introspect: TokenIntrospector
    audience: Callable[[], Sequence[str]]
    mapping: ClaimMapping


class _CachedResult(msgspec.Struct, frozen=True):
    """The result for a token: a caller, or an error."""

    until: float
    login: KnownToken | None = None
    error: InterlockError | None = None
    unreachable: bool = False
    """True if no server could be asked, so the result says nothing about the token."""


class OpaqueTokens:
    """Finds the callers of opaque tokens."""

    requires_token: bool = True

    def __init__(
        self,
        servers: Sequence[IntrospectionServer],
        *,
        revocations: Revocations,
        reserved_names: Container[str] = frozenset(),
        wall_clock: Callable[[], float],
        last_valid: LastValid | None = None,
    ) -> None:
        """Args:
        servers: asked in this order, until one knows the token.
        last_valid: where valid tokens are recorded. It outlives a change of the config.
        """
        self._last_valid = LastValid(MAX_CACHED_TOKENS) if last_valid is None else last_valid
        self._servers = tuple(servers)
        self._revocations = revocations
        self._reserved_names = reserved_names
        self._clock = wall_clock
        self._results: BoundedDict[bytes, _CachedResult] = BoundedDict(MAX_CACHED_TOKENS)
        self._requests: dict[bytes, asyncio.Task[None]] = {}

    def find(self, bearer: str) -> KnownToken | None:
        """Return the caller of a token. None: it cannot be an opaque token.

        Raises InterlockError for an invalid token, and PendingIdentity if a server must be asked.
        """
        if not bearer or len(bearer) > MAX_TOKEN_LENGTH or not bearer.isascii():
            return None
        if not bearer.isprintable() or " " in bearer:
            return None
        digest = sha256(bearer.encode()).digest()
        result = self._results.get(digest)
        if result is not None and self._clock() < result.until:
            if result.error is not None:
                raise InterlockError(result.error.failure, result.error.message)
            return result.login
        if digest not in self._requests and len(self._requests) >= MAX_REQUESTS:
            raise InterlockError(
                TOO_BUSY, "Too many tokens are being checked at their servers. Try again later."
            )
        raise PendingIdentity(lambda: self._request(bearer, digest))

    def clear_cache(self) -> None:
        """Remove all cached results, because a token was revoked."""
        self._results.clear()

    async def close(self) -> None:
        """Cancel all requests: the node stops."""
        requests = list(self._requests.values())
        for task in requests:
            task.cancel()
        await asyncio.gather(*requests, return_exceptions=True)

    async def _request(self, bearer: str, digest: bytes) -> None:
        """Ask about a token, or wait for a request that is under way."""
        request = self._requests.get(digest)
        if request is None:
            request = self._requests[digest] = asyncio.get_running_loop().create_task(
                self._introspect(bearer, digest), name="introspection"
            )
        # A cancelled caller must not stop the request, because others may wait for it.
        await asyncio.shield(request)

    async def _introspect(self, bearer: str, digest: bytes) -> None:
        try:
            result = await self._ask_servers(bearer)
        except Exception:
            # Callers wait for the end of this task, so it must not fail.
            _log.exception("introspection: cannot check a token")
            result = _CachedResult(
                self._clock() + FAILURE_CACHE_SECONDS, error=_unreachable_error(), unreachable=True
            )
        finally:
            del self._requests[digest]
        self._record_validity(self._results.get(digest), result)
        self._results[digest] = result

    def _record_validity(self, before: _CachedResult | None, result: _CachedResult) -> None:
        """Record whose token is valid, and whose is no longer."""
        if result.login is not None:
            caller = result.login.caller
            self._last_valid[caller.name, caller.id] = self._clock()
        elif before is not None and before.login is not None and not result.unreachable:
            self._last_valid.pop((before.login.caller.name, before.login.caller.id), None)

    async def _ask_servers(self, bearer: str) -> _CachedResult:
        unreachable = False
        for server in self._servers:
            claims = await server.introspect(bearer)
            if claims is None:
                unreachable = True
            elif claims.get("active") is True:
                return self._read_result(claims, server)
        now = self._clock()
        if unreachable:
            return _CachedResult(
                now + FAILURE_CACHE_SECONDS, error=_unreachable_error(), unreachable=True
            )
        return _CachedResult(
            now + CACHE_SECONDS, error=token_error("no introspection server accepts the token")
        )

    def _read_result(self, claims: Claims, server: IntrospectionServer) -> _CachedResult:
        now = self._clock()
        try:
            expires_at = check_times(claims, now, must_end=False)
            check_audience(claims, server.audience())
            caller = read_caller(
                claims, server.mapping, expires_at=expires_at, reserved_names=self._reserved_names
            )
            jti = claims.get("jti")
            if self._revocations.is_revoked(
                caller.name, jti if isinstance(jti, str) else None, issued_at(claims)
            ):
                raise token_error("the token was revoked")
        except InterlockError as error:
            return _CachedResult(now + CACHE_SECONDS, error=error)
        invalid_at = None if expires_at is None else expires_at + LEEWAY_SECONDS
        until = now + CACHE_SECONDS if invalid_at is None else min(now + CACHE_SECONDS, invalid_at)
        return _CachedResult(until, KnownToken(caller, until, invalid_at))


def _unreachable_error() -> InterlockError:
    return token_error("the introspection server cannot check the token now. Try again later")
