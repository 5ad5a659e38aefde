"""Passkeys: is this a WebAuthn answer to exactly this question, by somebody who was enrolled?

Pure checking with `cryptography`: who is enrolled, and how often a passkey was used, is asked of
whoever keeps that. What a passkey signs is bound to one approval, its digest, the decision and the
reason, so it is of no use for anything else.
"""

from __future__ import annotations

import binascii
import hmac
import re
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection
from hashlib import sha256
from typing import Final, Literal, NamedTuple, NoReturn
from urllib.parse import urlsplit

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from interlock.errors import PROOF_INVALID, InterlockError
from interlock.trust.approvals.proofs import PASSKEY, Verdict
from interlock.trust.approvals.record import Approval

PREFIX: Final = f"{PASSKEY}:"
"""What a proof that a passkey made begins with; base64url of JSON follows."""

Decision = Literal["approve", "refuse"]

ES256: Final = -7
EDDSA: Final = -8
RS256: Final = -257
ALGORITHMS: Final = (EDDSA, ES256, RS256)
"""The COSE numbers of what is accepted, best first."""

LONGEST_PROOF: Final = 16 * 1024
_LEAST_RSA_BITS: Final = 2048
_PRESENT: Final = 0x01
_VERIFIED: Final = 0x04
_BACKUP_ELIGIBLE: Final = 0x08
_BACKED_UP: Final = 0x10
_HAS_CREDENTIAL: Final = 0x40
_HEAD: Final = 37
"""The digest of the relying party's name, the flags and the counter."""
_AAGUID: Final = 16
_LONGEST_ID: Final = 1023
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*")


class Passkey(msgspec.Struct, frozen=True):
    """One that was enrolled: whose it is, and what of it is needed to check a signature."""

    name: str
    """The operator."""
    id: bytes
    """The credential id."""
    public: bytes
    """The public key (SubjectPublicKeyInfo, DER)."""
    algorithm: int
    rp_id: str
    """The host of the pages that may use it."""
    counter: int = 0
    tools: tuple[str, ...] = ()
    """Globs of tools it may confirm. Empty: all."""
    caller: str = ""
    """Which caller its owner is, if it is one."""


class Said(NamedTuple):
    """What a passkey said about an approval."""

    passkey: Passkey
    decision: Decision
    reason: str
    counter: int | None = None
    """How often it was used by now, to be written down before this counts. None: it does not
    count, as those that are synced between devices."""


class _Assertion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the page sends of `navigator.credentials.get`; binary members are base64url."""

    id: str
    client_data: str
    authenticator_data: str
    signature: str
    decision: Decision
    reason: str = ""


class Creation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the page sends of `navigator.credentials.create`; binary members are base64url."""

    client_data: str
    authenticator_data: str
    public_key: str
    algorithm: int


class _ClientData(msgspec.Struct, frozen=True):
    type: str
    challenge: str
    origin: str
    crossOrigin: bool = False
    topOrigin: str | None = None


class _Authenticator(NamedTuple):
    rp_digest: bytes
    flags: int
    counter: int
    rest: bytes


def challenge(audience: str, id: str, digest: str, decision: str, reason: str) -> bytes:
    """What a passkey signs for a decision. None but the reason, the last, can hold a newline."""
    parts = ("interlock-approval-1", audience, id, digest, decision, reason)
    return sha256("\n".join(parts).encode("utf-8", "surrogatepass")).digest()


def enrolment_challenge(code: str) -> bytes:
    """What a new passkey is made for."""
    return sha256(f"interlock-enrolment-1\n{plain_code(code)}".encode()).digest()


def plain_code(code: str) -> str:
    """An enrolment code as it was made, however it was typed."""
    return "".join(one for one in code.upper() if one.isascii() and one.isalnum())


class PasskeyChecker:
    """Checks proofs that passkeys made."""

    def __init__(
        self,
        *,
        find: Callable[[bytes], Passkey | None],
        used: Callable[[bytes, int], bool],
        origins: Callable[[], Collection[str]],
    ) -> None:
        """`find` reads no file. `used` takes a passkey's id and its new counter, writes that down
        and says whether it is new; it waits for the disk. `origins`: where the approval page is."""
        self._find = find
        self._used = used
        self._origins = origins

    def __call__(self, approval: Approval, proof: str, now: float) -> Verdict:
        """What the proof, without its prefix, says of an approval. Raises PROOF_INVALID."""
        said = self.check(approval.audience, approval.id, approval.digest, proof)
        passkey, counter = said.passkey, said.counter
        used = None if counter is None else lambda: self._used(passkey.id, counter)
        return Verdict(passkey.name, PASSKEY, said.decision, said.reason, used=used)

    def check(self, audience: str, id: str, digest: str, proof: str) -> Said:
        """What the proof says of the approval `id` of that node. Raises PROOF_INVALID."""
        if len(proof) > LONGEST_PROOF:
            _refuse("The proof is too long.")
        try:
            raw = from_base64url(proof.removeprefix(PREFIX))
            assertion = msgspec.json.decode(raw, type=_Assertion)
            credential = from_base64url(assertion.id)
            client_data = from_base64url(assertion.client_data)
            authenticator_data = from_base64url(assertion.authenticator_data)
            signature = from_base64url(assertion.signature)
        except (ValueError, msgspec.MsgspecError):
            _refuse("The proof is not what a passkey makes.")
        passkey = self._find(credential)
        if passkey is None:
            _refuse("This passkey is not enrolled here.")
        expected = challenge(audience, id, digest, assertion.decision, assertion.reason)
        self._client(client_data, "webauthn.get", expected, passkey.rp_id)
        seen = _authenticator(authenticator_data, passkey.rp_id)
        signed = authenticator_data + sha256(client_data).digest()
        if not _signed_by(passkey.public, passkey.algorithm, signature, signed):
            _refuse("The signature is not this passkey's.")
        # Passkeys that are synced between devices do not count.
        counts = bool(seen.counter or passkey.counter)
        if counts and seen.counter <= passkey.counter:
            _refuse("This passkey was used elsewhere meanwhile: it may have been copied.")
        return Said(passkey, assertion.decision, assertion.reason, seen.counter if counts else None)

    def enrolled(self, created: Creation, code: str, name: str) -> Passkey:
        """The passkey that a page made with this enrolment code. Raises PROOF_INVALID."""
        try:
            client_data = from_base64url(created.client_data)
            authenticator_data = from_base64url(created.authenticator_data)
            public = from_base64url(created.public_key)
        except ValueError:
            _refuse("That is not what a browser makes for a new passkey.")
        origin = self._client(client_data, "webauthn.create", enrolment_challenge(code), None)
        rp_id = urlsplit(origin).hostname or ""
        seen = _authenticator(authenticator_data, rp_id)
        size = int.from_bytes(seen.rest[_AAGUID : _AAGUID + 2], "big")
        credential = seen.rest[_AAGUID + 2 : _AAGUID + 2 + size]
        if not seen.flags & _HAS_CREDENTIAL or not 0 < size <= _LONGEST_ID:
            _refuse("The authenticator made no passkey.")
        if len(credential) != size:
            _refuse("The authenticator's data is cut off.")
        if not _usable(public, created.algorithm):
            _refuse("The passkey's algorithm is not one of ES256, EdDSA and RS256.")
        return Passkey(name, credential, public, created.algorithm, rp_id, seen.counter)

    def _client(self, raw: bytes, type: str, expected: bytes, rp_id: str | None) -> str:
        """Check what the browser says of itself; returns the page's origin."""
        try:
            data = msgspec.json.decode(raw, type=_ClientData)
            answered = from_base64url(data.challenge)
        except (ValueError, msgspec.MsgspecError):
            _refuse("The browser's part of the proof cannot be read.")
        if data.type != type:
            _refuse("The passkey was used for something else.")
        if not hmac.compare_digest(answered, expected):
            _refuse("The passkey answered another question than this one.")
        if data.origin not in self._origins() or data.crossOrigin or data.topOrigin is not None:
            _refuse("The passkey was used on another page than this node's.")
        if rp_id is not None and urlsplit(data.origin).hostname != rp_id:
            _refuse("The passkey belongs to another host.")
        return data.origin


def to_base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def from_base64url(text: str) -> bytes:
    """Raises ValueError for anything but base64url without padding."""
    if not _BASE64URL.fullmatch(text):
        raise ValueError("not base64url")
    padded = text + "=" * (-len(text) % 4)
    try:
        data = b64decode(padded, altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if to_base64url(data) != text:
        # The same bytes must not have two spellings.
        raise ValueError("not canonical base64url")
    return data


def _authenticator(data: bytes, rp_id: str) -> _Authenticator:
    if len(data) < _HEAD:
        _refuse("The authenticator's data is cut off.")
    flags = data[32]
    if not hmac.compare_digest(data[:32], sha256(rp_id.encode()).digest()):
        _refuse("The passkey belongs to another host.")
    if not flags & _PRESENT or not flags & _VERIFIED:
        _refuse("The passkey did not make sure that its owner is there.")
    if flags & _BACKED_UP and not flags & _BACKUP_ELIGIBLE:
        _refuse("The authenticator contradicts itself.")
    return _Authenticator(data[:32], flags, int.from_bytes(data[33:37], "big"), data[_HEAD:])


def _usable(public: bytes, algorithm: int) -> bool:
    try:
        key = load_der_public_key(public)
    except (ValueError, UnsupportedAlgorithm):
        return False
    if algorithm == ES256:
        return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    if algorithm == EDDSA:
        return isinstance(key, ed25519.Ed25519PublicKey)
    if algorithm == RS256:
        return isinstance(key, rsa.RSAPublicKey) and key.key_size >= _LEAST_RSA_BITS
    return False


def _signed_by(public: bytes, algorithm: int, signature: bytes, data: bytes) -> bool:
    if not _usable(public, algorithm):
        return False
    key = load_der_public_key(public)
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, data, ec.ECDSA(SHA256()))
        elif isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, data)
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, data, padding.PKCS1v15(), SHA256())
    except InvalidSignature:
        return False
    return True


def _refuse(why: str) -> NoReturn:
    raise InterlockError(PROOF_INVALID, why)
