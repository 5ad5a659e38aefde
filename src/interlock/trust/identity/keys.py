"""Public keys that an issuer publishes (a JWKS), read and sorted by what each may be used for.

Only keys that verify signatures count, and only of the kinds that the three accepted algorithms
need. The edge of `joserfc`, which is imported when the first signed token comes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

MOST_KEYS: Final = 100
SMALLEST_RSA: Final = 2048
_MOST_TRIED: Final = 8
"""Without a key id every key that fits is tried, but no more of them than this."""
_LONGEST_HEADER: Final = 8 * 1024
_PUBLIC: Final = ("kty", "crv", "x", "y", "n", "e")


class PublicKey(msgspec.Struct, frozen=True):
    """A key, and the one algorithm that it is for."""

    kid: str | None
    algorithm: str
    key: Any
    thumbprint: str


class _Jwks(msgspec.Struct):
    keys: list[dict[str, Any]]


def read_keys(document: bytes) -> tuple[PublicKey, ...]:
    """The keys of a JWKS that can be used here. Raises ValueError when it is none."""
    try:
        found = msgspec.json.decode(document, type=_Jwks).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("it is not a set of keys (JWKS)") from None
    if len(found) > MOST_KEYS:
        raise ValueError(f"it has more than {MOST_KEYS} keys")
    return tuple(key for one in found if (key := _read(one)) is not None)


def _read(member: dict[str, Any]) -> PublicKey | None:
    """None: a key for something else, or of a kind that is not used here."""
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
    said = member.get("alg", algorithm)
    # RFC 9864 has a name of its own for EdDSA with this curve.
    same = said == algorithm or (algorithm == "EdDSA" and said == "Ed25519")
    operations = member.get("key_ops", ["verify"])
    if (
        reader is None
        or not same
        or member.get("use", "sig") != "sig"
        or not isinstance(operations, list)
        or "verify" not in operations
    ):
        return None
    kid = member.get("kid")
    # Of a private key that somebody published by mistake only the public half is taken in.
    public: dict[str, Any] = {name: member[name] for name in _PUBLIC if name in member}
    try:
        with warnings.catch_warnings():
            # A weak key is left out just below.
            warnings.simplefilter("ignore", SecurityWarning)
            key = reader.import_key(public)
        if isinstance(key, RSAKey) and key.public_key.key_size < SMALLEST_RSA:
            return None
        thumbprint = key.thumbprint()
    except (JoseError, ValueError, TypeError):
        return None
    return PublicKey(kid if isinstance(kid, str) else None, algorithm, key, thumbprint)


def fitting(keys: Iterable[PublicKey], kid: str | None, algorithm: str) -> list[PublicKey]:
    """The keys that may have made a signature.

    Two different ones with the id that is asked for are none: nobody could say which is meant.
    """
    usable = [one for one in keys if one.algorithm == algorithm]
    if kid is None:
        return usable[:_MOST_TRIED]
    named = [one for one in usable if one.kid == kid]
    return named if len({one.thumbprint for one in named}) == 1 else []


def signed_payload(token: str, keys: Sequence[PublicKey], algorithm: str) -> bytes | None:
    """What a compact JWS says, if one of these keys signed it by this algorithm; else None."""
    from joserfc import jws
    from joserfc.errors import JoseError, SecurityWarning

    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    registry.max_header_length = _LONGEST_HEADER
    for one in keys:
        try:
            with warnings.catch_warnings():
                # `EdDSA` is the old word for what is good all the same.
                warnings.simplefilter("ignore", SecurityWarning)
                found = jws.deserialize_compact(token, one.key, registry=registry)
        except (JoseError, ValueError, TypeError):
            # Not by this key, then.
            continue
        return bytes(found.payload)
    return None
