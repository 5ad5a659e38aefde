"""Public keys of an issuer (JWKS, RFC 7517), by the algorithm that each may be used for.

Only keys that verify signatures count, and only of the types for the three accepted algorithms.
This module wraps `joserfc`, which is imported with the first signed token.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

MAX_KEYS: Final = 100
MIN_RSA_BITS: Final = 2048
_MAX_TRIED_KEYS: Final = 8
"""The maximum number of keys that are tried for a token without a key id."""
_MAX_HEADER_BYTES: Final = 8 * 1024
_PUBLIC_MEMBERS: Final = ("kty", "crv", "x", "y", "n", "e")


class PublicKey(msgspec.Struct, frozen=True):
    """A key, and its only algorithm."""

    kid: str | None
    algorithm: str
    key: Any
    thumbprint: str


class _Jwks(msgspec.Struct):
    keys: list[dict[str, Any]]


def read_keys(document: bytes) -> tuple[PublicKey, ...]:
    """Return the usable keys of a JWKS. Raises ValueError for an invalid document."""
    try:
        members = msgspec.json.decode(document, type=_Jwks).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("it is not a set of keys (JWKS)") from None
    if len(members) > MAX_KEYS:
        raise ValueError(f"it has more than {MAX_KEYS} keys")
    return tuple(key for member in members if (key := _read_key(member)) is not None)


def _read_key(member: dict[str, Any]) -> PublicKey | None:
    """Return a key. None: it has another purpose, or an unsupported type."""
    from joserfc.errors import JoseError, SecurityWarning
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    kinds: dict[object, tuple[str, type[RSAKey] | type[ECKey] | type[OKPKey]]] = {
        ("RSA", None): ("RS256", RSAKey),
        ("EC", "P-256"): ("ES256", ECKey),
        ("OKP", "Ed25519"): ("EdDSA", OKPKey),
    }
    kind, curve = member.get("kty"), member.get("crv")
    if not isinstance(kind, str) or not isinstance(curve, str | None):
        return None
    algorithm, reader = kinds.get((kind, None if kind == "RSA" else curve), ("", None))
    declared = member.get("alg", algorithm)
    # RFC 9864 defines a separate name for EdDSA with this curve.
    is_same = declared == algorithm or (algorithm == "EdDSA" and declared == "Ed25519")
    operations = member.get("key_ops", ["verify"])
    if (
        reader is None
        or not is_same
        or member.get("use", "sig") != "sig"
        or not isinstance(operations, list)
        or "verify" not in operations
    ):
        return None
    kid = member.get("kid")
    # If a private key was published by mistake, only its public part is used.
    public: dict[str, Any] = {name: member[name] for name in _PUBLIC_MEMBERS if name in member}
    try:
        with warnings.catch_warnings():
            # Weak keys are rejected below.
            warnings.simplefilter("ignore", SecurityWarning)
            key = reader.import_key(public)
        if isinstance(key, RSAKey) and key.public_key.key_size < MIN_RSA_BITS:
            return None
        thumbprint = key.thumbprint()
    except (JoseError, ValueError, TypeError):
        return None
    return PublicKey(kid if isinstance(kid, str) else None, algorithm, key, thumbprint)


def select_keys(keys: Iterable[PublicKey], kid: str | None, algorithm: str) -> list[PublicKey]:
    """Return the keys that may have made a signature.

    If two different keys have the key id, neither counts, because the id is ambiguous.
    """
    usable = [key for key in keys if key.algorithm == algorithm]
    if kid is None:
        return usable[:_MAX_TRIED_KEYS]
    named = [key for key in usable if key.kid == kid]
    return named if len({key.thumbprint for key in named}) == 1 else []


def verify_jws(token: str, keys: Sequence[PublicKey], algorithm: str) -> bytes | None:
    """Return the payload of a compact JWS that one of the keys signed. None: none of them did."""
    from joserfc import jws
    from joserfc.errors import JoseError, SecurityWarning

    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    registry.max_header_length = _MAX_HEADER_BYTES
    for key in keys:
        try:
            with warnings.catch_warnings():
                # joserfc deprecates the name `EdDSA`, which is still common.
                warnings.simplefilter("ignore", SecurityWarning)
                verified = jws.deserialize_compact(token, key.key, registry=registry)
        except (JoseError, ValueError, TypeError):
            # Another key may have signed it.
            continue
        return bytes(verified.payload)
    return None
