"""A security key in software: makes passkeys and signs with them, rightly or as a test wants."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from interlock.trust.approvals.proofs import (
    EDDSA,
    ES256,
    PREFIX,
    RS256,
    PasskeyCreation,
    challenge,
    enrolment_challenge,
    to_base64url,
)

ORIGIN = "https://approve.example"
UP, UV, BE, BS, AT = 0x01, 0x04, 0x08, 0x10, 0x40


class SoftKey:
    """One passkey. What is said of it can be changed before it signs."""

    def __init__(self, algorithm: int = ES256, *, counter: int = 0, counts: bool = True) -> None:
        self.algorithm = algorithm
        self.id = os.urandom(20)
        self.counter = counter
        self.counts = counts
        self.origin = ORIGIN
        self.rp_id = "approve.example"
        self.flags = UP | UV
        self.client: dict[str, Any] = {}
        """What the browser's part says otherwise."""
        if algorithm == ES256:
            self.key: Any = ec.generate_private_key(ec.SECP256R1())
        elif algorithm == EDDSA:
            self.key = ed25519.Ed25519PrivateKey.generate()
        else:
            self.key = rsa.generate_private_key(65537, 2048)

    @property
    def public(self) -> bytes:
        result: bytes = self.key.public_key().public_bytes(
            Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        )
        return result

    def created(self, code: str, **changes: Any) -> PasskeyCreation:
        """What a browser sends after it made this passkey for a code."""
        data = self._head(self.flags | AT) + bytes(16) + len(self.id).to_bytes(2, "big") + self.id
        client = self._client("webauthn.create", enrolment_challenge(code))
        members = {
            "client_data": to_base64url(client),
            "authenticator_data": to_base64url(data + b"\xa0"),
            "public_key": to_base64url(self.public),
            "algorithm": self.algorithm,
        }
        return PasskeyCreation(**{**members, **changes})

    def proof(
        self, audience: str, id: str, digest: str, decision: str = "approve", reason: str = "",
        **changes: Any,
    ) -> str:  # fmt: skip
        """What a browser sends after this passkey signed a decision."""
        if self.counts:
            self.counter += 1
        asked = challenge(audience, id, digest, decision, reason)
        client = self._client("webauthn.get", asked)
        head = self._head(self.flags)
        members = {
            "id": to_base64url(self.id),
            "client_data": to_base64url(client),
            "authenticator_data": to_base64url(head),
            "signature": to_base64url(self._sign(head + sha256(client).digest())),
            "decision": decision,
            "reason": reason,
        }
        return PREFIX + to_base64url(json.dumps({**members, **changes}).encode())

    def _head(self, flags: int) -> bytes:
        rp = sha256(self.rp_id.encode()).digest()
        return rp + bytes([flags]) + self.counter.to_bytes(4, "big")

    def _client(self, type: str, asked: bytes) -> bytes:
        data = {
            "type": type,
            "challenge": to_base64url(asked),
            "origin": self.origin,
            "crossOrigin": False,
        }
        return json.dumps({**data, **self.client}).encode()

    def _sign(self, data: bytes) -> bytes:
        made: bytes
        if self.algorithm == ES256:
            made = self.key.sign(data, ec.ECDSA(SHA256()))
        elif self.algorithm == RS256:
            made = self.key.sign(data, padding.PKCS1v15(), SHA256())
        else:
            made = self.key.sign(data)
        return made
