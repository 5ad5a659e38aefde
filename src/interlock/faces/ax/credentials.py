"""What a subserver shows its parent: the proof of its authority, and its side of TLS.

Reads the files of certificates; the clock is given. What it is given in confidence never stands in
an error.
"""

from __future__ import annotations

import secrets
import ssl
from typing import TYPE_CHECKING, Final

from interlock.config import ParentConfig
from interlock.errors import CONFIG, InterlockError
from interlock.ports import Clock
from interlock.protocol.ax import Proof, dns_name

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, OKPKey, RSAKey

PROOF_SECONDS: Final = 300
"""A proof is made for one registration; clocks may differ a little."""
_EC_ALGORITHMS: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}


def tls_context(parent: ParentConfig) -> ssl.SSLContext:
    """TLS to a parent: 1.3, its certificate checked, ours shown. Raises InterlockError."""
    try:
        context = ssl.create_default_context(cafile=parent.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if parent.certificate is not None:
            context.load_cert_chain(parent.certificate, parent.key)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(one for one in (parent.ca, parent.certificate, parent.key) if one)
        why = error.strerror or "they do not fit together"
        raise InterlockError(
            CONFIG, f"TLS to the parent cannot be set up with {files}: {why}."
        ) from None
    return context


def mint_proof(authority: str, key: str, aggregator_id: str, wall_clock: Clock) -> Proof:
    """A token that proves an authority to one parent, once. Raises InterlockError."""
    try:
        from joserfc import jwt
    except ImportError:
        raise InterlockError(
            CONFIG, "A proof of authority needs the package joserfc: install interlock[oauth]."
        ) from None
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
