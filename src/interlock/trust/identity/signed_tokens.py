"""Signed tokens (JWT) of issuers that the config names.

What a token says about itself is read first, and believed only once a key of exactly the issuer
that it names has signed it, by an algorithm that the config accepts from that issuer. The key, the
algorithm and the place where keys are found never come from the token.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from interlock.core.pipeline.authentication import KnownToken, PendingIdentity
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
from interlock.trust.identity.keys import PublicKey, signed_payload

LONGEST_TOKEN: Final = 16 * 1024
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
_KNOWN_ALGORITHMS: Final = frozenset({"RS256", "ES256", "EdDSA"})


class KeySource(Protocol):
    """The public keys of one issuer."""

    def find(self, kid: str | None, algorithm: str) -> Sequence[PublicKey]:
        """Those that may have made a signature, among the keys that are known now."""
        ...

    def ask(self) -> PendingIdentity | None:
        """What to wait for, when its keys may be others by now; None: they were just read."""
        ...

    @property
    def problem(self) -> str | None:
        """Why its keys could not be read the last time; None when they could."""
        ...


class Revocations(Protocol):
    """What was taken back before its time."""

    def is_revoked(self, name: str, jti: str | None, issued: float | None) -> bool: ...


class Issuer(msgspec.Struct, frozen=True):
    """Somebody whose tokens are believed."""

    issuer: str
    algorithms: frozenset[str]
    audience: Callable[[], Sequence[str]]
    keys: KeySource
    terms: ClaimMapping


class SignedTokens:
    """Knows the callers of every issuer."""

    requires_token: bool = True

    def __init__(
        self,
        issuers: Iterable[Issuer],
        *,
        revocations: Revocations,
        taken: Container[str] = frozenset(),
        wall_clock: Callable[[], float],
    ) -> None:
        self._issuers = {one.issuer: one for one in issuers}
        self._revocations = revocations
        self._taken = taken
        self._clock = wall_clock

    def find(self, bearer: str) -> KnownToken | None:
        """Whose it is; None when it is no JWT, or one of an issuer that nobody here knows.

        Raises InterlockError for one of ours that does not count, and PendingIdentity when keys are
        missing.
        """
        parts = bearer.split(".")
        if len(parts) != 3 or len(bearer) > LONGEST_TOKEN:
            return None
        header, claimed = _json(parts[0]), _json(parts[1])
        if header is None or claimed is None:
            return None
        named = claimed.get("iss")
        issuer = self._issuers.get(named) if isinstance(named, str) else None
        if issuer is None:
            return None
        algorithm = _algorithm(header, issuer)
        claims = self._signed(bearer, header.get("kid"), algorithm, issuer)
        now = self._clock()
        ends = check_times(claims, now)
        assert ends is not None
        check_audience(claims, issuer.audience())
        caller = caller_of(claims, issuer.terms, ends=ends, taken=self._taken)
        if self._revocations.is_revoked(caller.name, _text(claims.get("jti")), issued(claims)):
            raise refused("the token was revoked")
        return KnownToken(caller, ends + LEEWAY, ends + LEEWAY)

    def _signed(self, token: str, kid: object, algorithm: str, issuer: Issuer) -> Claims:
        if kid is not None and not isinstance(kid, str):
            raise refused("the key id of the token is no text")
        keys = issuer.keys.find(kid, algorithm)
        if not keys:
            unsettled = issuer.keys.ask()
            if unsettled is not None:
                raise unsettled
            if issuer.keys.problem is not None:
                raise refused("the keys of the token's issuer cannot be read now; try again")
            raise refused("no key of its issuer is the one that signed the token")
        payload = signed_payload(token, keys, algorithm)
        claims = None if payload is None else _object(payload)
        if claims is None:
            # Without a key id nothing says that the key is a new one, except that none fits.
            unsettled = issuer.keys.ask() if kid is None else None
            if unsettled is not None:
                raise unsettled
            raise refused("the signature is not one of the token's issuer")
        if claims.get("iss") != issuer.issuer:
            raise refused("the token was made by somebody else (`iss`)")
        return claims


def _algorithm(header: Claims, issuer: Issuer) -> str:
    """The algorithm of a header that may be believed at all. Raises InterlockError."""
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in _KNOWN_ALGORITHMS & issuer.algorithms:
        raise refused("the token is signed by an algorithm that is not accepted from its issuer")
    if "crit" in header or "b64" in header or "zip" in header:
        raise refused("the token demands that something is understood which is not (`crit`)")
    kind = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise refused("the token is signed for another purpose (`typ`)")
    return algorithm


def _json(part: str) -> Claims | None:
    """A part of a token as an object; None when it is none."""
    if "=" in part:
        return None
    try:
        # Nothing but the alphabet itself: lenient readers see tokens that others do not.
        raw = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return _object(raw)


def _object(raw: bytes) -> Claims | None:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
