"""An issuer of signed tokens for tests: honest ones, and every kind of dishonest one."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import warnings
from collections.abc import Sequence
from typing import Any

from joserfc import jws
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, OKPKey, RSAKey

from interlock.core.pipeline.authentication import PendingIdentity
from interlock.trust.identity.keys import PublicKey, read_keys, select_keys

ISSUER = "https://login.example.com"
NODE = "https://node.example.com/mcp"
NOW = 1_800_000_000.0
RSA = RSAKey.generate_key(2048)
"""Making one takes long: all tests share it."""

Key = RSAKey | ECKey | OKPKey
ALGORITHMS = {RSAKey: "RS256", ECKey: "ES256", OKPKey: "EdDSA"}


def new_key(algorithm: str) -> Key:
    if algorithm == "RS256":
        return RSA
    return ECKey.generate_key("P-256") if algorithm == "ES256" else OKPKey.generate_key("Ed25519")


def part(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def claims(**changes: Any) -> dict[str, Any]:
    """What an honest token says; None leaves a claim out."""
    usual = {
        "iss": ISSUER, "aud": NODE, "sub": "somebody", "iat": NOW - 10, "exp": NOW + 600,
        "jti": "t-1", "scope": "read write:github.*",
    }  # fmt: skip
    return {name: value for name, value in {**usual, **changes}.items() if value is not None}


class Signer:
    """Signs with one key at a time, and shows the public halves of as many as it is told to."""

    def __init__(self, algorithm: str = "ES256", kid: str | None = "k1") -> None:
        self.key = new_key(algorithm)
        self.kid = kid
        self.shown: list[dict[str, Any]] = [self.public()]

    def public(self, **changes: Any) -> dict[str, Any]:
        member = {**self.key.as_dict(private=False), **changes}
        return member if self.kid is None else {"kid": self.kid, **member}

    def rotate(self, kid: str, *, overlap: bool = True) -> None:
        self.key, self.kid = new_key(ALGORITHMS[type(self.key)]), kid
        self.shown = [*(self.shown if overlap else []), self.public()]

    def jwks(self) -> bytes:
        return json.dumps({"keys": self.shown}).encode()

    def token(self, header: dict[str, Any] | None = None, **changes: Any) -> str:
        named = {} if self.kid is None else {"kid": self.kid}
        full = {"alg": ALGORITHMS[type(self.key)], **named, **(header or {})}
        return self.sign(full, json.dumps(claims(**changes)).encode())

    def sign(self, header: dict[str, Any], payload: bytes) -> str:
        algorithm = ALGORITHMS[type(self.key)]
        registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
        odd = "crit" in header or "b64" in header or not isinstance(header.get("typ", ""), str)
        if header["alg"] == algorithm and not odd:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SecurityWarning)
                return str(jws.serialize_compact(header, payload, self.key, registry=registry))
        # A header that no honest library would write: the signature is right all the same.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)
            model = registry.get_alg(algorithm)
        signed = f"{part(header)}.{part(payload)}"
        return f"{signed}.{part(model.sign(signed.encode(), self.key))}"

    def with_secret(self, secret: bytes, **changes: Any) -> str:
        """Signed with HS256, by a secret that everybody knows: the public key."""
        signed = f"{part({'alg': 'HS256', 'kid': self.kid})}.{part(claims(**changes))}"
        return f"{signed}.{part(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


class ShownKeys:
    """The keys of a signer, as they are now: nothing to wait for."""

    def __init__(self, signer: Signer) -> None:
        self.signer = signer
        self.problem: str | None = None

    def find(self, kid: str | None, algorithm: str) -> Sequence[PublicKey]:
        return select_keys(read_keys(self.signer.jwks()), kid, algorithm)

    def request_refresh(self) -> PendingIdentity | None:
        return None
