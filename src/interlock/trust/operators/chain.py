"""The operators of a node as a signed chain: every change names the entry before it and is signed
by an operator of that time.

The first entry has no operator before it: it is trusted on first use, or signed by an operator of
the config where the config names one. So whoever can write the file can neither add an operator to
the chain nor take one out of it: an entry without a valid signature does not count, and neither
does any entry after it. Pure: files and clocks are the caller's.
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
    jws_header,
    to_base64url,
    verified_by,
)

SUBJECT: Final = "operators"
"""`jti` of what an operator signs about the chain: no approval has such an id."""
NEW_CHAIN: Final = "new"
"""`aud` of what an operator of the config signs about the first entry."""
LONGEST_ENTRY: Final = 64 * 1024


class Enrolment(msgspec.Struct, frozen=True):
    """Something with which an operator confirms."""

    id: str
    """The thumbprint of a key, or a passkey's credential id, in base64url."""
    name: str
    """The operator."""
    kind: Literal["key", "passkey"]
    algorithm: str
    """Of a key `EdDSA` or `ES256`; of a passkey the COSE number."""
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
    def of_passkey(one: Passkey) -> Enrolment:
        return Enrolment(
            id=to_base64url(one.id),
            name=one.name,
            kind="passkey",
            algorithm=str(one.algorithm),
            public=one.public,
            rp_id=one.rp_id,
            counter=one.counter,
            tools=one.tools,
            caller=one.caller,
        )


class ChainEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One change of who the operators are."""

    number: int
    """1 for the first."""
    previous: str
    """The link of the entry before; empty for the first."""
    time: float
    enrol: tuple[Enrolment, ...] = ()
    remove: tuple[str, ...] = ()
    """Ids of keys and passkeys."""
    recovery: bool = False
    """Not signed by an operator: all keys were lost."""


class DraftEntry(NamedTuple):
    """An entry that is to be signed: in JSON, and what the proof has to be about."""

    entry: bytes
    audience: str
    digest: str

    @property
    def claims(self) -> dict[str, str]:
        """What a proof says of it."""
        return {
            "aud": self.audience,
            "jti": SUBJECT,
            "args_sha256": self.digest,
            "decision": APPROVE,
        }


class OperatorChainHead(msgspec.Struct, frozen=True):
    """The end of a chain, by which a cut or another chain is noticed."""

    number: int
    link: str


class Chain(NamedTuple):
    """What of a chain could be verified."""

    operators: tuple[Enrolment, ...] = ()
    """In the order in which they were enrolled."""
    links: tuple[str, ...] = ()
    """One for each entry that counts."""
    problem: str = ""
    """Why the entry after those does not count. Empty: all of them do."""

    @property
    def head(self) -> OperatorChainHead | None:
        return OperatorChainHead(len(self.links), self.links[-1]) if self.links else None

    def holds(self, head: OperatorChainHead | None) -> bool:
        """Whether it goes on from there."""
        if head is None:
            return True
        return 0 < head.number <= len(self.links) and self.links[head.number - 1] == head.link

    def draft(
        self, *, time: float, enrol: Iterable[Enrolment] = (), remove: Iterable[str] = (),
        recovery: bool = False,
    ) -> DraftEntry:  # fmt: skip
        """The next entry."""
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
        """By what a signature names this chain: the link of its first entry."""
        return self.links[0] if self.links else NEW_CHAIN


Recovered = Callable[[int, str, str], bool]
"""Whether an entry without an operator's signature counts: its number, its digest, its proof."""


def _never(number: int, digest: str, proof: str) -> bool:
    return False


def verify_chain(
    rows: Iterable[tuple[bytes, str]],
    *,
    roots: Sequence[Enrolment] = (),
    known: OperatorChainHead | None = None,
    recovered: Recovered = _never,
) -> Chain:
    """Who the operators are, by these entries and their proofs.

    Args:
        roots: operators of the config. Where there are some, one of them signs the first entry.
        known: the end of the chain as it was seen earlier: a chain that goes on from there needs no
            root again, which may have left the config meanwhile.
        recovered: asked about entries of a recovery.
    """
    chain = Chain()
    waiting = Chain()
    for raw, proof in rows:
        # A first entry without a root's signature counts only if it was seen earlier.
        current = waiting if waiting.links else chain
        try:
            unsigned = _check_next(current, raw, proof, roots, recovered)
            added = _extend(current, raw, proof)
        except (InterlockError, ValueError, TypeError, msgspec.MsgspecError) as error:
            words = error.message if isinstance(error, InterlockError) else str(error)
            return chain._replace(problem=f"entry {len(current.links) + 1}: {words}")
        if unsigned or waiting.links:
            waiting = added
            if known is not None and waiting.holds(known):
                chain, waiting = waiting, Chain()
        else:
            chain = added
    if waiting.links:
        return chain._replace(
            problem=f"entry {len(chain.links) + 1}: the config names operators, and none signed it"
        )
    return chain


def _check_next(
    chain: Chain, raw: bytes, proof: str, roots: Sequence[Enrolment], recovered: Recovered
) -> bool:
    """Whether a root should have signed the entry and did not. Raises InterlockError."""
    entry = decode_entry(raw)
    number = len(chain.links) + 1
    if entry.number != number or entry.previous != (chain.links[-1] if chain.links else ""):
        raise _invalid("it does not follow the entry before it")
    by_id = {one.id: one for one in chain.operators}
    if any(one.id in by_id for one in entry.enrol) or len({one.id for one in entry.enrol}) != len(
        entry.enrol
    ):
        raise _invalid("it enrols a key that is enrolled already")
    if any(id not in by_id for id in entry.remove):
        raise _invalid("it removes a key that is not enrolled")
    if not chain.operators and not entry.recovery:
        # The first one, also after the last one was removed: there is nobody who could sign.
        trusted = {_without_history(one) for one in roots}
        if not trusted:
            return False
        if entry.enrol and all(_without_history(one) in trusted for one in entry.enrol):
            # It says no more than the config does. An id alone would not do: a passkey's is
            # whatever its authenticator says.
            return False
        return not _is_signed(DraftEntry(raw, chain.audience, digest_of(raw)), proof, roots)
    if entry.recovery:
        if not chain.links or not recovered(number, digest_of(raw), proof):
            raise _invalid("nobody recovered the operators in this way")
        return False
    signer = check_proof(DraftEntry(raw, chain.audience, digest_of(raw)), proof, chain.operators)
    _must_be_allowed(signer, entry, chain.operators)
    return False


def _without_history(one: Enrolment) -> Enrolment:
    """Who somebody is and what they may confirm, without what changes by use."""
    return msgspec.structs.replace(one, created=0.0, counter=0)


def _extend(chain: Chain, raw: bytes, proof: str) -> Chain:
    entry = decode_entry(raw)
    left = [one for one in chain.operators if one.id not in entry.remove]
    new = [msgspec.structs.replace(one, created=entry.time) for one in entry.enrol]
    return Chain((*left, *new), (*chain.links, link_of(raw, proof)))


def check_proof(draft: DraftEntry, proof: str, operators: Collection[Enrolment]) -> Enrolment:
    """Which of the operators signed the entry. Raises InterlockError."""
    if not proof:
        raise _invalid("no operator signed it")
    if proof.startswith(PREFIX):
        passkeys = {one.passkey.id: one for one in operators if one.kind == "passkey"}

        def find(id: bytes) -> Passkey | None:
            return passkeys[id].passkey if id in passkeys else None

        checker = PasskeyChecker(find=find, used=lambda *_: True, origins=_EveryOrigin)
        said = checker.check(draft.audience, SUBJECT, draft.digest, proof)
        if said.decision != APPROVE:
            raise _invalid("the operator did not agree to it")
        return passkeys[said.passkey.id]
    algorithm = jws_header(proof)["alg"]
    for one in operators:
        if one.kind != "key" or algorithm not in algorithms_of(one):
            continue
        payload = verified_by(proof, key_of(one), algorithm)
        if payload is not None:
            claims = msgspec.json.decode(payload)
            if not isinstance(claims, dict) or any(
                claims.get(name) != value for name, value in draft.claims.items()
            ):
                raise _invalid("the signature is about something else")
            return one
    raise _invalid("no operator signed it")


def _is_signed(draft: DraftEntry, proof: str, operators: Collection[Enrolment]) -> bool:
    try:
        check_proof(draft, proof, operators)
    except InterlockError:
        return False
    return True


class _EveryOrigin(tuple[str, ...]):
    """Which page it was is checked when the proof comes in. Its host is part of what is signed."""

    def __contains__(self, origin: object) -> bool:
        return True


def _must_be_allowed(signer: Enrolment, entry: ChainEntry, operators: Sequence[Enrolment]) -> None:
    """Who may confirm some tools only cannot make somebody who may more. Raises InterlockError."""
    own = [one for one in operators if one.name == signer.name]
    callers = {one.caller for one in own if one.caller}
    if callers and any(
        one.name == signer.name and one.caller not in callers for one in entry.enrol
    ):
        # Otherwise an operator could confirm its own calls with another key.
        raise _invalid(f"{signer.name} is a caller, and its further keys must say so, too")
    limits = [set(one.tools) for one in own if one.tools]
    if not limits:
        return
    allowed = set.intersection(*limits)
    for one in entry.enrol:
        if one.name != signer.name or not one.tools or not set(one.tools) <= allowed:
            raise _invalid(
                f"{signer.name} may confirm some tools only, and enrols nobody who may more"
            )
    names = {one.id: one.name for one in operators}
    if any(names[id] != signer.name for id in entry.remove):
        raise _invalid(f"{signer.name} may confirm some tools only, and removes nobody else")


# -- the parts of an entry


def encode_entry(entry: ChainEntry) -> bytes:
    """The one way in which an entry is written."""
    return msgspec.json.encode(entry, order="deterministic")


def decode_entry(raw: bytes) -> ChainEntry:
    """Raises InterlockError for bytes that are no entry, or not written in the one way."""
    try:
        if len(raw) > LONGEST_ENTRY:
            raise ValueError("it is too long")
        entry = msgspec.json.decode(raw, type=ChainEntry)
        if encode_entry(entry) != raw:
            raise ValueError("it is not in canonical form")
    except (msgspec.MsgspecError, ValueError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(f"it cannot be read ({error})") from None
    return entry


def digest_of(raw: bytes) -> str:
    """What is signed of an entry."""
    return sha256(raw).hexdigest()


def link_of(raw: bytes, proof: str) -> str:
    """By what the next entry names this one: the entry and its proof."""
    return sha256(raw + b"\n" + proof.encode("utf-8", "surrogatepass")).hexdigest()


def algorithms_of(one: Enrolment) -> tuple[str, ...]:
    """How a key signs: the names that a signature may say."""
    return ("EdDSA", "Ed25519") if one.algorithm == "EdDSA" else (one.algorithm,)


def key_of(one: Enrolment) -> Any:
    """Its public key. Raises InterlockError."""
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey

    kind = OKPKey if one.algorithm == "EdDSA" else ECKey
    try:
        return kind.import_key(one.public)
    except (JoseError, ValueError, TypeError) as wrong:
        raise _invalid(f"the key {one.id} of {one.name} cannot be used ({wrong})") from None


def _invalid(why: str) -> InterlockError:
    return InterlockError(PROOF_INVALID, why)
