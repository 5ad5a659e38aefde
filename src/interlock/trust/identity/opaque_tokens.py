"""Opaque tokens: asks the servers that issued them (RFC 7662), and keeps their answers for a while.

An answer is kept for a minute at most, and no longer than the token is good: a token that is
revoked there is refused here within that time. The node asks with its own credentials.
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
    LEEWAY,
    ClaimMapping,
    Claims,
    caller_of,
    check_audience,
    check_times,
    issued,
    refused,
)
from interlock.trust.identity.signed_tokens import LONGEST_TOKEN, Revocations

WITHIN: Final = 10.0
"""How long a server may take to answer about a token."""
KEPT_FOR: Final = 60.0
"""How long an answer counts."""
FAILED_FOR: Final = 2.0
"""How long nobody asks again after a server could not be reached."""
MOST_ASKING: Final = 32
MOST_KEPT: Final = 10_000
_FORM: Final = "application/x-www-form-urlencoded"

_node_log = logging.getLogger("interlock.node")
_log = logging.getLogger("interlock.pipeline")


Good = BoundedDict[tuple[str, str], float]
"""Callers by name and id, and when their server last said that their token is good."""


class TokenIntrospector(Protocol):
    """Asks one server about a token."""

    async def __call__(self, token: str) -> Claims | None:
        """What it says of the token; None when it could not be asked. Never raises."""
        ...


class IntrospectionClient:
    """One introspection endpoint."""

    def __init__(self, url: str, client_id: str, client_secret: str, *, ask: Fetch = fetch) -> None:
        """Raises InterlockError for an address to which no secret may go."""
        if not is_secure(url):
            raise InterlockError(
                CONFIG, "A `url` of `identity.introspection` is not https: tokens are sent there."
            )
        # In this header both are written as in a form (RFC 6749, 2.3.1).
        pair = f"{quote(client_id, safe='')}:{quote(client_secret, safe='')}"
        self._authorization = "Basic " + base64.b64encode(pair.encode()).decode()
        self._url = url
        self._fetch = ask
        self.problem: str | None = None

    def __repr__(self) -> str:
        return f"IntrospectionClient({self._url})"

    async def __call__(self, token: str) -> dict[str, Any] | None:
        """What the server says of the token; None when it could not be asked. Never raises."""
        form = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        headers = {"Content-Type": _FORM, "Authorization": self._authorization}
        try:
            async with asyncio.timeout(WITHIN):
                answer = await self._fetch("POST", self._url, headers, form)
            if answer.status != 200:
                raise ValueError(f"HTTP {answer.status}")
            said = msgspec.json.decode(answer.body, type=dict[str, Any])
        except (
            SignInProblem,
            TimeoutError,
            ValueError,
            RecursionError,
            UnicodeDecodeError,
        ) as error:
            why = (
                error.reason
                if isinstance(error, SignInProblem)
                else str(error) or "it took too long"
            )
            if self.problem is None:
                _node_log.warning("%s cannot be asked about tokens: %s", self._url, why)
            self.problem = why
            return None
        if self.problem is not None:
            _node_log.info("%s can be asked about tokens again", self._url)
        self.problem = None
        return said


class IntrospectionServer(msgspec.Struct, frozen=True):
    """A server that knows opaque tokens, and what is made of what it says."""

    ask: TokenIntrospector
    audience: Callable[[], Sequence[str]]
    terms: ClaimMapping


class _Said(msgspec.Struct, frozen=True):
    """What came of asking: a caller, or a refusal."""

    until: float
    known: KnownToken | None = None
    refusal: InterlockError | None = None
    unreachable: bool = False
    """Nobody could be asked: then nothing is known that was not before."""


class OpaqueTokens:
    """Knows callers by asking for them."""

    requires_token: bool = True

    def __init__(
        self,
        authorities: Sequence[IntrospectionServer],
        *,
        revocations: Revocations,
        taken: Container[str] = frozenset(),
        wall_clock: Callable[[], float],
        good: Good | None = None,
    ) -> None:
        """They are asked in their order, until one knows the token. `good`: where it is written
        down who was said to be good; it outlives a change of the config."""
        self._good = Good(MOST_KEPT) if good is None else good
        self._authorities = tuple(authorities)
        self._revocations = revocations
        self._taken = taken
        self._clock = wall_clock
        self._said: BoundedDict[bytes, _Said] = BoundedDict(MOST_KEPT)
        self._asking: dict[bytes, asyncio.Task[None]] = {}

    def find(self, bearer: str) -> KnownToken | None:
        """Whose it is. Raises InterlockError, PendingIdentity when it has to be asked."""
        if not bearer or len(bearer) > LONGEST_TOKEN or not bearer.isascii():
            return None
        if not bearer.isprintable() or " " in bearer:
            return None
        digest = sha256(bearer.encode()).digest()
        said = self._said.get(digest)
        if said is not None and self._clock() < said.until:
            if said.refusal is not None:
                raise InterlockError(said.refusal.failure, said.refusal.message)
            return said.known
        if digest not in self._asking and len(self._asking) >= MOST_ASKING:
            raise InterlockError(
                TOO_BUSY, "As many tokens are being asked about as may be; try again."
            )
        raise PendingIdentity(lambda: self._settle(bearer, digest))

    def forget(self) -> None:
        """Something was revoked: ask anew."""
        self._said.clear()

    async def close(self) -> None:
        """The node stops: nobody is asked any more."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _settle(self, bearer: str, digest: bytes) -> None:
        """Ask, unless somebody does already."""
        asking = self._asking.get(digest)
        if asking is None:
            asking = self._asking[digest] = asyncio.get_running_loop().create_task(
                self._ask(bearer, digest), name="introspection"
            )
        # Whoever waits may give up; the others still want to know.
        await asyncio.shield(asking)

    async def _ask(self, bearer: str, digest: bytes) -> None:
        try:
            said = await self._first_who_knows(bearer)
        except Exception:
            # Whoever waits for it must not wait for ever.
            _log.exception("a token could not be asked about")
            said = _Said(self._clock() + FAILED_FOR, refusal=_unreachable(), unreachable=True)
        finally:
            del self._asking[digest]
        self._note(self._said.get(digest), said)
        self._said[digest] = said

    def _note(self, before: _Said | None, said: _Said) -> None:
        """Write down whose token is good, and whose is not any more."""
        if said.known is not None:
            self._good[said.known.caller.name, said.known.caller.id] = self._clock()
        elif before is not None and before.known is not None and not said.unreachable:
            self._good.pop((before.known.caller.name, before.known.caller.id), None)

    async def _first_who_knows(self, bearer: str) -> _Said:
        unreachable = False
        for authority in self._authorities:
            claims = await authority.ask(bearer)
            if claims is None:
                unreachable = True
            elif claims.get("active") is True:
                return self._judge(claims, authority)
        now = self._clock()
        if unreachable:
            return _Said(now + FAILED_FOR, refusal=_unreachable(), unreachable=True)
        return _Said(
            now + KEPT_FOR, refusal=refused("the token is not good any more, or never was")
        )

    def _judge(self, claims: Claims, authority: IntrospectionServer) -> _Said:
        now = self._clock()
        try:
            ends = check_times(claims, now, must_end=False)
            check_audience(claims, authority.audience())
            caller = caller_of(claims, authority.terms, ends=ends, taken=self._taken)
            jti = claims.get("jti")
            if self._revocations.is_revoked(
                caller.name, jti if isinstance(jti, str) else None, issued(claims)
            ):
                raise refused("the token was revoked")
        except InterlockError as refusal:
            return _Said(now + KEPT_FOR, refusal=refusal)
        over = None if ends is None else ends + LEEWAY
        until = now + KEPT_FOR if over is None else min(now + KEPT_FOR, over)
        return _Said(until, KnownToken(caller, until, over))


def _unreachable() -> InterlockError:
    return refused("the server that knows such tokens cannot be asked now; try again")
