"""The proof of an authority: a token for one parent, signed with the authority's key.

The clock is given. Nothing of the key ever stands in an error.
"""

from __future__ import annotations

import secrets
import warnings
from typing import TYPE_CHECKING, Final

from interlock.errors import CONFIG, InterlockError
from interlock.ports import Clock
from interlock.protocol.ax import Proof, dns_name

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, OKPKey, RSAKey

PROOF_SECONDS: Final = 300
"""A proof is made for one registration; clocks may differ a little."""
_EC_ALGORITHMS: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}


def check_key(key: str) -> None:
    """Raises InterlockError for what no authority can be proven with."""
    try:
        import joserfc  # noqa: F401
    except ImportError:
        raise InterlockError(
            CONFIG, "A proof of authority needs the package joserfc: install interlock[oauth]."
        ) from None
    _key(key)


def mint_proof(authority: str, key: str, aggregator_id: str, wall_clock: Clock) -> Proof:
    """A token that proves an authority to one parent, once. Raises InterlockError."""
    check_key(key)
    from joserfc import jwt

    signing, algorithm = _key(key)
    now = int(wall_clock())
    claims = {
        "sub": dns_name(authority),
        "aud": aggregator_id,
        "iat": now,
        "exp": now + PROOF_SECONDS,
        "jti": secrets.token_urlsafe(16),
    }
    header = {"alg": algorithm, "typ": "JWT"}
    with warnings.catch_warnings():
        # `EdDSA` has a newer name by now, which not every parent knows.
        warnings.simplefilter("ignore", category=UserWarning)
        return Proof("jwt", jwt.encode(header, claims, signing, algorithms=[algorithm]))


def _key(pem: str) -> tuple[RSAKey | ECKey | OKPKey, str]:
    """A private key, and how it signs."""
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    kinds: tuple[type[RSAKey | ECKey | OKPKey], ...] = (RSAKey, ECKey, OKPKey)
    for kind in kinds:
        try:
            key = kind.import_key(pem)
        except (JoseError, ValueError, TypeError):
            # Of another kind, or no key at all.
            continue
        if not key.is_private:
            continue
        if isinstance(key, RSAKey):
            return key, "RS256"
        if isinstance(key, ECKey) and key.curve_name in _EC_ALGORITHMS:
            return key, _EC_ALGORITHMS[key.curve_name]
        if isinstance(key, OKPKey) and key.curve_name in ("Ed25519", "Ed448"):
            return key, "EdDSA"
    raise InterlockError(
        CONFIG, "The authority's key is no private key (PEM) for Ed25519, ECDSA or RSA."
    )
