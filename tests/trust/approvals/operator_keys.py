"""Operators with a key or a passkey of their own, for tests of the chain."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from interlock.trust.approvals.proofs import Passkey
from interlock.trust.operators.chain import SUBJECT, DraftEntry, Enrolment
from interlock.trust.operators.operators import enrol_key
from interlock.trust.operators.store import Invitation
from tests.trust.approvals.authenticator import SoftKey
from tests.trust.approvals_web.office import signed


class Operator:
    """One with an Ed25519 key."""

    def __init__(self, name: str, tools: tuple[str, ...] = ()) -> None:
        self.name = name
        self.key = Ed25519PrivateKey.generate()
        self.enrolled = enrol_key(self.pem, Invitation(name, tools))

    @property
    def pem(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def sign(self, draft: DraftEntry, **changes: Any) -> str:
        return signed(self.key, {**draft.claims, **changes})


class PasskeyOperator:
    """One with a passkey."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.soft = SoftKey()
        self.enrolled = Enrolment.from_passkey(
            Passkey(name, self.soft.id, self.soft.public, self.soft.algorithm, self.soft.rp_id)
        )

    def sign(self, draft: DraftEntry) -> str:
        return self.soft.proof(draft.audience, SUBJECT, draft.digest)
