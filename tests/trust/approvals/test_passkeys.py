"""Proofs of passkeys are valid for one approval, one decision and one node, and only from the page
of this node with user verification."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from interlock.errors import PROOF_INVALID, InterlockError
from interlock.trust.approvals.proofs import (
    ALGORITHMS,
    EDDSA,
    ES256,
    PREFIX,
    RS256,
    Passkey,
    PasskeyChecker,
    PasskeyVerdict,
    from_base64url,
    to_base64url,
)
from tests.trust.approvals.authenticator import BE, BS, ORIGIN, UP, UV, SoftKey

NODE, ID, DIGEST = "node-1", "an-approval", "d" * 64
CODE = "ABCDE-FGHJK"


class PasskeyHarness:
    """Who is enrolled."""

    def __init__(self, *keys: SoftKey) -> None:
        self.counters: dict[bytes, int] = {}
        self.keys: dict[bytes, Passkey] = {}
        self.checker = PasskeyChecker(
            find=self.keys.get, record_use=self._used, origins=lambda: (ORIGIN,)
        )
        for key in keys:
            self.enrol(key)

    def enrol(self, key: SoftKey) -> Passkey:
        made = self.checker.read_created(key.created(CODE), CODE, "chief")
        self.keys[made.id] = made
        self.counters[made.id] = made.counter
        return made

    def _used(self, id: bytes, counter: int) -> bool:
        if counter <= self.counters[id]:
            return False
        self.counters[id] = counter
        return True

    def check(
        self, proof: str, audience: str = NODE, id: str = ID, digest: str = DIGEST
    ) -> PasskeyVerdict:
        result = self.checker.check(audience, id, digest, proof)
        if result.counter is not None:
            assert self._used(result.passkey.id, result.counter)
            self.keys[result.passkey.id] = msgspec.structs.replace(
                result.passkey, counter=result.counter
            )
        return result


def reject_message(harness: PasskeyHarness, proof: str, **about: str) -> str:
    with pytest.raises(InterlockError) as error:
        harness.check(proof, **about)
    assert error.value.failure is PROOF_INVALID
    return error.value.message


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_passkey_decides(algorithm: int) -> None:
    key = SoftKey(algorithm)
    harness = PasskeyHarness(key)
    result = harness.check(key.proof(NODE, ID, DIGEST, "approve"))
    assert (result.passkey.name, result.decision, result.reason) == ("chief", "approve", "")
    result = harness.check(key.proof(NODE, ID, DIGEST, "refuse", "nicht ☃\nheute"))
    assert (result.decision, result.reason) == ("refuse", "nicht ☃\nheute")


def test_passkey_proof_is_bound_to_its_challenge() -> None:
    key = SoftKey(counts=False)
    harness = PasskeyHarness(key)
    for about in ({"audience": "node-2"}, {"id": "another"}, {"digest": "e" * 64}):
        assert "another challenge" in reject_message(harness, key.proof(NODE, ID, DIGEST), **about)
    # Neither the decision nor the reason can be changed by whoever carries it.
    proof = key.proof(NODE, ID, DIGEST, "refuse", "no")
    members = json.loads(from_base64url(proof.removeprefix(PREFIX)))
    for changed in ({"decision": "approve"}, {"reason": "yes"}):
        forged = PREFIX + to_base64url(json.dumps({**members, **changed}).encode())
        assert "another challenge" in reject_message(harness, forged)


def test_passkey_proof_requires_origin_of_node() -> None:
    key = SoftKey()
    harness = PasskeyHarness(key)
    key.origin = "https://evil.example"
    assert "not of this node" in reject_message(harness, key.proof(NODE, ID, DIGEST))
    key.origin = ORIGIN
    for client in ({"crossOrigin": True}, {"topOrigin": "https://evil.example"}):
        key.client = client
        assert "not of this node" in reject_message(harness, key.proof(NODE, ID, DIGEST))
    key.client = {"type": "webauthn.create"}
    assert "another kind" in reject_message(harness, key.proof(NODE, ID, DIGEST))
    key.client = {}
    key.rp_id = "evil.example"
    assert "another host" in reject_message(harness, key.proof(NODE, ID, DIGEST))


def test_passkey_proof_requires_user_verification() -> None:
    key = SoftKey()
    harness = PasskeyHarness(key)
    for flags in (0, UP, UV):
        key.flags = flags
        assert "verify its owner" in reject_message(harness, key.proof(NODE, ID, DIGEST))
    key.flags = UP | UV | BS
    assert "contradict" in reject_message(harness, key.proof(NODE, ID, DIGEST))
    key.flags = UP | UV | BS | BE
    assert harness.check(key.proof(NODE, ID, DIGEST))


def test_detects_copied_passkey() -> None:
    key = SoftKey(counter=5)
    harness = PasskeyHarness(key)
    proof = key.proof(NODE, ID, DIGEST)
    assert harness.check(proof)
    assert "a copy" in reject_message(harness, proof)
    key.counter = 3
    assert "a copy" in reject_message(harness, key.proof(NODE, ID, DIGEST))
    # One that is synced between devices never counts.
    synced = SoftKey(counts=False)
    harness.enrol(synced)
    assert harness.check(synced.proof(NODE, ID, DIGEST))
    assert harness.check(synced.proof(NODE, ID, DIGEST))


def test_rejects_unenrolled_or_unsigned_passkey() -> None:
    key, stranger = SoftKey(), SoftKey()
    harness = PasskeyHarness(key)
    assert "not enrolled" in reject_message(harness, stranger.proof(NODE, ID, DIGEST))
    stranger.id = key.id
    assert "not of this passkey" in reject_message(harness, stranger.proof(NODE, ID, DIGEST))
    assert "not of this passkey" in reject_message(
        harness, key.proof(NODE, ID, DIGEST, signature="")
    )
    for proof in (
        "",
        PREFIX,
        PREFIX + "e30",
        PREFIX + "e30=",
        PREFIX + "!!",
        PREFIX + "A" * 20_000,
    ):
        reject_message(harness, proof)


def test_rejects_mismatched_passkey_algorithm() -> None:
    for claimed, real in ((EDDSA, ES256), (ES256, RS256), (RS256, EDDSA), (-999, ES256)):
        key = SoftKey(real)
        with pytest.raises(InterlockError, match="algorithm"):
            PasskeyHarness().checker.read_created(
                key.created(CODE, algorithm=claimed), CODE, "chief"
            )
    weak = SoftKey(RS256)
    weak.key = rsa.generate_private_key(65537, 1024)
    with pytest.raises(InterlockError, match="algorithm"):
        PasskeyHarness().enrol(weak)
    other = SoftKey(ES256)
    other.key = ec.generate_private_key(ec.SECP384R1())
    with pytest.raises(InterlockError, match="algorithm"):
        PasskeyHarness().enrol(other)
    spki = other.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(InterlockError, match="algorithm"):
        PasskeyHarness().checker.read_created(
            SoftKey().created(CODE, public_key=to_base64url(spki[:-3])), CODE, "chief"
        )


def test_enrolling_passkey_requires_code_and_origin() -> None:
    key = SoftKey()
    harness = PasskeyHarness()
    assert harness.checker.read_created(key.created("abcde fghjk"), CODE, "chief").id == key.id
    with pytest.raises(InterlockError, match="another challenge"):
        harness.checker.read_created(key.created("OTHER-CODE"), CODE, "chief")
    key.flags = UP
    with pytest.raises(InterlockError, match="owner"):
        harness.enrol(key)
    key.flags = UP | UV
    key.origin = "https://evil.example"
    with pytest.raises(InterlockError, match="not of this node"):
        harness.enrol(key)
    key.origin = ORIGIN
    for cut in (10, 37, 60):
        data = from_base64url(key.created(CODE).authenticator_data)[:cut]
        with pytest.raises(InterlockError):
            harness.checker.read_created(
                key.created(CODE, authenticator_data=to_base64url(data)), CODE, "chief"
            )


@given(st.binary(max_size=60))
def test_base64url_has_one_spelling(data: bytes) -> None:
    text = to_base64url(data)
    assert from_base64url(text) == data
    for other in (text + "=", text + "A=", f" {text}", text.replace("-", "+") + "+"):
        with pytest.raises(ValueError):
            from_base64url(other)


_KEY = SoftKey(EDDSA, counts=False)
_HARNESS = PasskeyHarness(_KEY)
_MEMBERS: dict[str, Any] = json.loads(
    from_base64url(_KEY.proof(NODE, ID, DIGEST).removeprefix(PREFIX))
)


@given(
    st.sampled_from(["client_data", "authenticator_data", "signature", "id"]),
    st.integers(0, 10_000),
    st.integers(1, 255),
)
def test_rejects_passkey_proof_with_any_changed_bit(member: str, place: int, change: int) -> None:
    data = bytearray(from_base64url(_MEMBERS[member]))
    data[place % len(data)] ^= change
    forged = {**_MEMBERS, member: to_base64url(bytes(data))}
    reject_message(_HARNESS, PREFIX + to_base64url(json.dumps(forged).encode()))


@given(st.text(max_size=200))
def test_rejects_arbitrary_passkey_proof(text: str) -> None:
    reject_message(_HARNESS, PREFIX + text)
