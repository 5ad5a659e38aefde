"""What a passkey signed counts for one approval, one decision and one node, and only from the page
of this node with its owner there."""

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


class Desk:
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
        said = self.checker.check(audience, id, digest, proof)
        if said.counter is not None:
            assert self._used(said.passkey.id, said.counter)
            self.keys[said.passkey.id] = msgspec.structs.replace(said.passkey, counter=said.counter)
        return said


def refused(desk: Desk, proof: str, **about: str) -> str:
    with pytest.raises(InterlockError) as caught:
        desk.check(proof, **about)
    assert caught.value.failure is PROOF_INVALID
    return caught.value.message


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_passkey_decides(algorithm: int) -> None:
    key = SoftKey(algorithm)
    desk = Desk(key)
    said = desk.check(key.proof(NODE, ID, DIGEST, "approve"))
    assert (said.passkey.name, said.decision, said.reason) == ("chief", "approve", "")
    said = desk.check(key.proof(NODE, ID, DIGEST, "refuse", "nicht ☃\nheute"))
    assert (said.decision, said.reason) == ("refuse", "nicht ☃\nheute")


def test_it_counts_for_one_question_only() -> None:
    key = SoftKey(counts=False)
    desk = Desk(key)
    for about in ({"audience": "node-2"}, {"id": "another"}, {"digest": "e" * 64}):
        assert "another challenge" in refused(desk, key.proof(NODE, ID, DIGEST), **about)
    # Neither the decision nor the reason can be changed by whoever carries it.
    proof = key.proof(NODE, ID, DIGEST, "refuse", "no")
    members = json.loads(from_base64url(proof.removeprefix(PREFIX)))
    for changed in ({"decision": "approve"}, {"reason": "yes"}):
        forged = PREFIX + to_base64url(json.dumps({**members, **changed}).encode())
        assert "another challenge" in refused(desk, forged)


def test_only_the_page_of_this_node() -> None:
    key = SoftKey()
    desk = Desk(key)
    key.origin = "https://evil.example"
    assert "not of this node" in refused(desk, key.proof(NODE, ID, DIGEST))
    key.origin = ORIGIN
    for client in ({"crossOrigin": True}, {"topOrigin": "https://evil.example"}):
        key.client = client
        assert "not of this node" in refused(desk, key.proof(NODE, ID, DIGEST))
    key.client = {"type": "webauthn.create"}
    assert "another kind" in refused(desk, key.proof(NODE, ID, DIGEST))
    key.client = {}
    key.rp_id = "evil.example"
    assert "another host" in refused(desk, key.proof(NODE, ID, DIGEST))


def test_its_owner_must_be_there() -> None:
    key = SoftKey()
    desk = Desk(key)
    for flags in (0, UP, UV):
        key.flags = flags
        assert "verify its owner" in refused(desk, key.proof(NODE, ID, DIGEST))
    key.flags = UP | UV | BS
    assert "contradict" in refused(desk, key.proof(NODE, ID, DIGEST))
    key.flags = UP | UV | BS | BE
    assert desk.check(key.proof(NODE, ID, DIGEST))


def test_a_copy_of_it_is_noticed() -> None:
    key = SoftKey(counter=5)
    desk = Desk(key)
    proof = key.proof(NODE, ID, DIGEST)
    assert desk.check(proof)
    assert "a copy" in refused(desk, proof)
    key.counter = 3
    assert "a copy" in refused(desk, key.proof(NODE, ID, DIGEST))
    # One that is synced between devices never counts.
    synced = SoftKey(counts=False)
    desk.enrol(synced)
    assert desk.check(synced.proof(NODE, ID, DIGEST))
    assert desk.check(synced.proof(NODE, ID, DIGEST))


def test_only_what_is_enrolled_and_signed() -> None:
    key, stranger = SoftKey(), SoftKey()
    desk = Desk(key)
    assert "not enrolled" in refused(desk, stranger.proof(NODE, ID, DIGEST))
    stranger.id = key.id
    assert "not of this passkey" in refused(desk, stranger.proof(NODE, ID, DIGEST))
    assert "not of this passkey" in refused(desk, key.proof(NODE, ID, DIGEST, signature=""))
    for proof in (
        "",
        PREFIX,
        PREFIX + "e30",
        PREFIX + "e30=",
        PREFIX + "!!",
        PREFIX + "A" * 20_000,
    ):
        refused(desk, proof)


def test_an_algorithm_is_not_taken_for_another() -> None:
    for claimed, real in ((EDDSA, ES256), (ES256, RS256), (RS256, EDDSA), (-999, ES256)):
        key = SoftKey(real)
        with pytest.raises(InterlockError, match="algorithm"):
            Desk().checker.read_created(key.created(CODE, algorithm=claimed), CODE, "chief")
    weak = SoftKey(RS256)
    weak.key = rsa.generate_private_key(65537, 1024)
    with pytest.raises(InterlockError, match="algorithm"):
        Desk().enrol(weak)
    other = SoftKey(ES256)
    other.key = ec.generate_private_key(ec.SECP384R1())
    with pytest.raises(InterlockError, match="algorithm"):
        Desk().enrol(other)
    spki = other.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(InterlockError, match="algorithm"):
        Desk().checker.read_created(
            SoftKey().created(CODE, public_key=to_base64url(spki[:-3])), CODE, "chief"
        )


def test_enrolling_needs_the_code_and_the_page() -> None:
    key = SoftKey()
    desk = Desk()
    assert desk.checker.read_created(key.created("abcde fghjk"), CODE, "chief").id == key.id
    with pytest.raises(InterlockError, match="another challenge"):
        desk.checker.read_created(key.created("OTHER-CODE"), CODE, "chief")
    key.flags = UP
    with pytest.raises(InterlockError, match="owner"):
        desk.enrol(key)
    key.flags = UP | UV
    key.origin = "https://evil.example"
    with pytest.raises(InterlockError, match="not of this node"):
        desk.enrol(key)
    key.origin = ORIGIN
    for cut in (10, 37, 60):
        data = from_base64url(key.created(CODE).authenticator_data)[:cut]
        with pytest.raises(InterlockError):
            desk.checker.read_created(
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
_DESK = Desk(_KEY)
_MEMBERS: dict[str, Any] = json.loads(
    from_base64url(_KEY.proof(NODE, ID, DIGEST).removeprefix(PREFIX))
)


@given(
    st.sampled_from(["client_data", "authenticator_data", "signature", "id"]),
    st.integers(0, 10_000),
    st.integers(1, 255),
)
def test_no_bit_of_it_can_be_changed(member: str, place: int, change: int) -> None:
    data = bytearray(from_base64url(_MEMBERS[member]))
    data[place % len(data)] ^= change
    forged = {**_MEMBERS, member: to_base64url(bytes(data))}
    refused(_DESK, PREFIX + to_base64url(json.dumps(forged).encode()))


@given(st.text(max_size=200))
def test_anything_else_is_no_proof(text: str) -> None:
    refused(_DESK, PREFIX + text)
