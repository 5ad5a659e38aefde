"""The operators of a node as a signed chain: each change names the entry before it and is signed by
an operator of that time.

The first entry has no earlier operator: it is trusted on first use, or signed by an operator of the
config if the config names one. An entry without a valid signature does not count, nor does any
entry after it. So write access to the file is not enough to add or remove an operator. Pure: the
caller provides files and clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

import msgspec

from interlock.errors import PROOF_INVALID, InterlockError
from interlock.trust.approvals.proofs import (
    APPROVE,
    PREFIX,
    Passkey,
    PasskeyChecker,
    from_base64url,
    read_jws_header,
    to_base64url,
    verify_jws,
)

SUBJECT: Final = "operators"
"""The `jti` of signatures about the chain. No approval has this id."""
NEW_CHAIN: Final = "new"
"""The `aud` of the signature of an operator of the config about the first entry."""
MAX_ENTRY_BYTES: Final = 64 * 1024


class Enrolment(msgspec.Struct, frozen=True):
    """A key or passkey with which an operator approves."""

    id: str
    """The thumbprint of a key, or the credential id of a passkey, in base64url."""
    name: str
    """The name of the operator."""
    kind: Literal["key", "passkey"]
    algorithm: str
    """For a key `EdDSA` or `ES256`; for a passkey the COSE number."""
    public: bytes
    """The public key (SubjectPublicKeyInfo, DER)."""
    rp_id: str = ""
    counter: int = 0
    tools: tuple[str, ...] = ()
    caller: str = ""
    created: float = 0.0

    @property
    def passkey(self) -> Passkey:
        return Passkey(
            name=self.name,
            id=from_base64url(self.id),
            public=self.public,
            algorithm=int(self.algorithm),
            rp_id=self.rp_id,
            counter=self.counter,
            tools=self.tools,
            caller=self.caller,
        )

    @staticmethod
    def from_passkey(passkey: Passkey) -> Enrolment:
        return Enrolment(
            id=to_base64url(passkey.id),
            name=passkey.name,
            kind="passkey",
            algorithm=str(passkey.algorithm),
            public=passkey.public,
            rp_id=passkey.rp_id,
            counter=passkey.counter,
            tools=passkey.tools,
            caller=passkey.caller,
        )


class ChainEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of the operators."""

    number: int
    """1 for the first."""
    previous: str
    """The link of the entry before. Empty for the first."""
    time: float
    enrol: tuple[Enrolment, ...] = ()
    remove: tuple[str, ...] = ()
    """Ids of keys and passkeys."""
    recovery: bool = False
    """True for an entry without the signature of an operator, after all keys were lost."""


class DraftEntry(NamedTuple):
    """An entry that is to be signed, as JSON, and what the proof must be about."""

    entry: bytes
    audience: str
    digest: str

    @property
    def claims(self) -> dict[str, str]:
        """The claims of a proof for the entry."""
        return {
            "aud": self.audience,
            "jti": SUBJECT,
            "args_sha256": self.digest,
            "decision": APPROVE,
        }


class OperatorChainHead(msgspec.Struct, frozen=True):
    """The end of a chain. It reveals a chain that was cut or replaced."""

    number: int
    link: str


class Chain(NamedTuple):
    """The verified part of a chain."""

    operators: tuple[Enrolment, ...] = ()
    """In the order of their enrolment."""
    links: tuple[str, ...] = ()
    """One link for each entry that counts."""
    problem: str = ""
    """Why the next entry does not count. Empty: all entries count."""

    @property
    def head(self) -> OperatorChainHead | None:
        return OperatorChainHead(len(self.links), self.links[-1]) if self.links else None

    def contains(self, head: OperatorChainHead | None) -> bool:
        """Return whether the chain contains this head. None is the head of an empty chain."""
        if head is None:
            return True
        return 0 < head.number <= len(self.links) and self.links[head.number - 1] == head.link

    def draft(
        self, *, time: float, enrol: Iterable[Enrolment] = (), remove: Iterable[str] = (),
        recovery: bool = False,
    ) -> DraftEntry:  # fmt: skip
        """Return the next entry, unsigned."""
        entry = encode_entry(
            ChainEntry(
                number=len(self.links) + 1,
                previous=self.links[-1] if self.links else "",
                time=time,
                enrol=tuple(enrol),
                remove=tuple(remove),
                recovery=recovery,
            )
        )
        return DraftEntry(entry, self.audience, digest_of(entry))

    @property
    def audience(self) -> str:
        """The name of this chain in signatures: the link of its first entry."""
        return self.links[0] if self.links else NEW_CHAIN


RecoveryCheck = Callable[[int, str, str], bool]
"""Returns whether an entry without an operator's signature counts. Takes its number, digest and
proof."""


def _reject_recovery(number: int, digest: str, proof: str) -> bool:
    return False


def verify_chain(
    rows: Iterable[tuple[bytes, str]],
    *,
    roots: Sequence[Enrolment] = (),
    known_head: OperatorChainHead | None = None,
    is_recovered: RecoveryCheck = _reject_recovery,
) -> Chain:
    """Verify entries and their proofs, and return the chain with its operators.

    Args:
        roots: the operators of the config. If there are any, one of them signs the first entry.
        known_head: the end of the chain as it was seen earlier. A chain that contains it needs no
            signature of a root, who may have left the config meanwhile.
        is_recovered: checks entries of a recovery.
    """
    chain = Chain()
    unconfirmed = Chain()
    for raw, proof in rows:
        # A first entry without a root's signature counts only if it was seen earlier.
        current = unconfirmed if unconfirmed.links else chain
        try:
            needs_root = _check_next(current, raw, proof, roots, is_recovered)
            extended = _extend(current, raw, proof)
        except (InterlockError, ValueError, TypeError, msgspec.MsgspecError) as error:
            reason = error.message if isinstance(error, InterlockError) else str(error)
            return chain._replace(problem=f"entry {len(current.links) + 1}: {reason}")
        if needs_root or unconfirmed.links:
            unconfirmed = extended
            if known_head is not None and unconfirmed.contains(known_head):
                chain, unconfirmed = unconfirmed, Chain()
        else:
            chain = extended
    if unconfirmed.links:
        return chain._replace(
            problem=f"entry {len(chain.links) + 1}: no operator of the config signed it"
        )
    return chain


def _check_next(
    chain: Chain,
    raw: bytes,
    proof: str,
    roots: Sequence[Enrolment],
    is_recovered: RecoveryCheck,
) -> bool:
    """Check the next entry. Return whether the signature of a root is missing. Raises
    InterlockError."""
    entry = decode_entry(raw)
    number = len(chain.links) + 1
    if entry.number != number or entry.previous != (chain.links[-1] if chain.links else ""):
        raise _invalid("it does not follow the entry before it")
    by_id = {operator.id: operator for operator in chain.operators}
    if any(enrolment.id in by_id for enrolment in entry.enrol) or len(
        {enrolment.id for enrolment in entry.enrol}
    ) != len(entry.enrol):
        raise _invalid("it enrols a key that is enrolled already")
    if any(id not in by_id for id in entry.remove):
        raise _invalid("it removes a key that is not enrolled")
    if not chain.operators and not entry.recovery:
        # The first entry, or the first after the last operator was removed: nobody can sign it.
        trusted = {_without_history(root) for root in roots}
        if not trusted:
            return False
        if entry.enrol and all(_without_history(new) in trusted for new in entry.enrol):
            # It only repeats the config. Comparing ids is not enough: a passkey's authenticator
            # chooses the id itself.
            return False
        return not _is_signed(DraftEntry(raw, chain.audience, digest_of(raw)), proof, roots)
    if entry.recovery:
        if not chain.links or not is_recovered(number, digest_of(raw), proof):
            raise _invalid("its recovery was not authorized")
        return False
    signer = check_proof(DraftEntry(raw, chain.audience, digest_of(raw)), proof, chain.operators)
    _check_permission(signer, entry, chain.operators)
    return False


def _without_history(enrolment: Enrolment) -> Enrolment:
    """Return an enrolment without the values that change by use."""
    return msgspec.structs.replace(enrolment, created=0.0, counter=0)


def _extend(chain: Chain, raw: bytes, proof: str) -> Chain:
    entry = decode_entry(raw)
    remaining = [operator for operator in chain.operators if operator.id not in entry.remove]
    new = [msgspec.structs.replace(operator, created=entry.time) for operator in entry.enrol]
    return Chain((*remaining, *new), (*chain.links, link_of(raw, proof)))


def check_proof(draft: DraftEntry, proof: str, operators: Collection[Enrolment]) -> Enrolment:
    """Return the operator who signed the entry. Raises InterlockError."""
    if not proof:
        raise _invalid("no operator signed it")
    if proof.startswith(PREFIX):
        passkeys = {
            operator.passkey.id: operator for operator in operators if operator.kind == "passkey"
        }

        def find(id: bytes) -> Passkey | None:
            return passkeys[id].passkey if id in passkeys else None

        checker = PasskeyChecker(find=find, record_use=lambda *_: True, origins=_AnyOrigin)
        verdict = checker.check(draft.audience, SUBJECT, draft.digest, proof)
        if verdict.decision != APPROVE:
            raise _invalid("the operator rejected it")
        return passkeys[verdict.passkey.id]
    algorithm = read_jws_header(proof)["alg"]
    for operator in operators:
        if operator.kind != "key" or algorithm not in algorithms_of(operator):
            continue
        payload = verify_jws(proof, key_of(operator), algorithm)
        if payload is not None:
            claims = msgspec.json.decode(payload)
            if not isinstance(claims, dict) or any(
                claims.get(name) != value for name, value in draft.claims.items()
            ):
                raise _invalid("the signature is about something else")
            return operator
    raise _invalid("no operator signed it")


def _is_signed(draft: DraftEntry, proof: str, operators: Collection[Enrolment]) -> bool:
    try:
        check_proof(draft, proof, operators)
    except InterlockError:
        return False
    return True


class _AnyOrigin(tuple[str, ...]):
    """Contains every origin. The origin is checked when the proof arrives; its host is signed."""

    def __contains__(self, origin: object) -> bool:
        return True


def _check_permission(signer: Enrolment, entry: ChainEntry, operators: Sequence[Enrolment]) -> None:
    """Check that an operator who may approve some tools only grants no more than that. Raises
    InterlockError."""
    own_operators = [operator for operator in operators if operator.name == signer.name]
    callers = {operator.caller for operator in own_operators if operator.caller}
    if callers and any(
        new.name == signer.name and new.caller not in callers for new in entry.enrol
    ):
        # Otherwise an operator could approve its own calls with another key.
        raise _invalid(f"{signer.name} is a caller, and its other keys must name that caller")
    limits = [set(operator.tools) for operator in own_operators if operator.tools]
    if not limits:
        return
    allowed = set.intersection(*limits)
    for new in entry.enrol:
        if new.name != signer.name or not new.tools or not set(new.tools) <= allowed:
            raise _invalid(
                f"{signer.name} may approve some tools only, and cannot enrol others or more tools"
            )
    names = {operator.id: operator.name for operator in operators}
    if any(names[id] != signer.name for id in entry.remove):
        raise _invalid(f"{signer.name} may approve some tools only, and cannot remove others")


# -- Parts of an entry


def encode_entry(entry: ChainEntry) -> bytes:
    """Encode an entry in canonical form."""
    return msgspec.json.encode(entry, order="deterministic")


def decode_entry(raw: bytes) -> ChainEntry:
    """Decode an entry. Raises InterlockError for bytes that are no entry, or not in canonical
    form."""
    try:
        if len(raw) > MAX_ENTRY_BYTES:
            raise ValueError("it is too long")
        entry = msgspec.json.decode(raw, type=ChainEntry)
        if encode_entry(entry) != raw:
            raise ValueError("it is not in canonical form")
    except (msgspec.MsgspecError, ValueError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(f"it cannot be read ({error})") from None
    return entry


def digest_of(raw: bytes) -> str:
    """Return the digest of an entry that its proof signs."""
    return sha256(raw).hexdigest()


def link_of(raw: bytes, proof: str) -> str:
    """Return the link of an entry: a digest of the entry and its proof, which the next entry
    names."""
    return sha256(raw + b"\n" + proof.encode("utf-8", "surrogatepass")).hexdigest()


def algorithms_of(enrolment: Enrolment) -> tuple[str, ...]:
    """Return the algorithm names that signatures of a key may have."""
    return ("EdDSA", "Ed25519") if enrolment.algorithm == "EdDSA" else (enrolment.algorithm,)


def key_of(enrolment: Enrolment) -> Any:
    """Return the public key. Raises InterlockError."""
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey

    kind = OKPKey if enrolment.algorithm == "EdDSA" else ECKey
    try:
        return kind.import_key(enrolment.public)
    except (JoseError, ValueError, TypeError) as error:
        reason = f"the key {enrolment.id} of {enrolment.name} cannot be used ({error})"
        raise _invalid(reason) from None


def _invalid(reason: str) -> InterlockError:
    return InterlockError(PROOF_INVALID, reason)
