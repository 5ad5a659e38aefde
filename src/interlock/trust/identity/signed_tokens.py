"""Signed tokens (JWT, RFC 9068) of the issuers in the config.

The claims are read first, and used only after a key of exactly the named issuer has verified the
signature, with an algorithm that the config accepts from that issuer. The key, the algorithm and
the location of the keys never come from the token.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from interlock.core.pipeline.authentication import KnownToken, PendingIdentity
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
from interlock.trust.identity.keys import PublicKey, verify_jws

MAX_TOKEN_LENGTH: Final = 16 * 1024
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
_KNOWN_ALGORITHMS: Final = frozenset({"RS256", "ES256", "EdDSA"})


class KeySource(Protocol):
    """The public keys of one issuer."""

    def find(self, kid: str | None, algorithm: str) -> Sequence[PublicKey]:
        """Return the known keys that may have made a signature."""
        ...

    def request_refresh(self) -> PendingIdentity | None:
        """Return what to wait for if the keys may have changed. None: they were read just now."""
        ...

    @property
    def problem(self) -> str | None:
        """Return why the last read of the keys failed. None: it succeeded."""
        ...


class Revocations(Protocol):
    """The revocations of this node."""

    def is_revoked(self, name: str, jti: str | None, issued: float | None) -> bool: ...


class Issuer(msgspec.Struct, frozen=True):
    """An issuer whose tokens are accepted."""

    issuer: str
    algorithms: frozenset[str]
    audience: Callable[[], Sequence[str]]
    keys: KeySource
    mapping: ClaimMapping


class SignedTokens:
    """Finds the callers of signed tokens."""

    requires_token: bool = True

    def __init__(
        self,
        issuers: Iterable[Issuer],
        *,
        revocations: Revocations,
        reserved_names: Container[str] = frozenset(),
        wall_clock: Callable[[], float],
    ) -> None:
        self._issuers = {issuer.issuer: issuer for issuer in issuers}
        self._revocations = revocations
        self._reserved_names = reserved_names
        self._clock = wall_clock

    def find(self, bearer: str) -> KnownToken | None:
        """Return the caller of a token. None: it is no JWT, or its issuer is unknown.

        Raises InterlockError for an invalid token of a known issuer, and PendingIdentity while keys
        are missing.
        """
        parts = bearer.split(".")
        if len(parts) != 3 or len(bearer) > MAX_TOKEN_LENGTH:
            return None
        header, unverified = _decode_part(parts[0]), _decode_part(parts[1])
        if header is None or unverified is None:
            return None
        name = unverified.get("iss")
        issuer = self._issuers.get(name) if isinstance(name, str) else None
        if issuer is None:
            return None
        algorithm = _check_header(header, issuer)
        claims = self._verify(bearer, header.get("kid"), algorithm, issuer)
        now = self._clock()
        expires_at = check_times(claims, now)
        assert expires_at is not None
        check_audience(claims, issuer.audience())
        caller = read_caller(
            claims, issuer.mapping, expires_at=expires_at, reserved_names=self._reserved_names
        )
        if self._revocations.is_revoked(caller.name, _text(claims.get("jti")), issued_at(claims)):
            raise token_error("the token was revoked")
        return KnownToken(caller, expires_at + LEEWAY_SECONDS, expires_at + LEEWAY_SECONDS)

    def _verify(self, token: str, kid: object, algorithm: str, issuer: Issuer) -> Claims:
        if kid is not None and not isinstance(kid, str):
            raise token_error("the key id of the token is no string")
        keys = issuer.keys.find(kid, algorithm)
        if not keys:
            pending = issuer.keys.request_refresh()
            if pending is not None:
                raise pending
            if issuer.keys.problem is not None:
                raise token_error(
                    "the keys of the token's issuer cannot be read now. Try again later"
                )
            raise token_error("the issuer has no key for the `kid` and `alg` of the token")
        payload = verify_jws(token, keys, algorithm)
        claims = None if payload is None else _decode_object(payload)
        if claims is None:
            # Without a key id, a wrong signature is the only sign of a new key.
            pending = issuer.keys.request_refresh() if kid is None else None
            if pending is not None:
                raise pending
            raise token_error("the signature is not of the token's issuer")
        if claims.get("iss") != issuer.issuer:
            raise token_error("another issuer made the token (`iss`)")
        return claims


def _check_header(header: Claims, issuer: Issuer) -> str:
    """Return the algorithm of an acceptable header. Raises InterlockError."""
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in _KNOWN_ALGORITHMS & issuer.algorithms:
        raise token_error("the issuer of the token may not use its algorithm (`alg`)")
    if "crit" in header or "b64" in header or "zip" in header:
        raise token_error("the token uses an extension that is not supported (`crit`)")
    kind = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise token_error("the token is for another purpose (`typ`)")
    return algorithm


def _decode_part(part: str) -> Claims | None:
    """Decode a part of a token. None: it is no JSON object."""
    if "=" in part:
        return None
    try:
        # Strict: a lenient reader accepts tokens that others do not.
        raw = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return _decode_object(raw)


def _decode_object(raw: bytes) -> Claims | None:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
