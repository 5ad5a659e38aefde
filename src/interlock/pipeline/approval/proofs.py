"""Is this a proof? What somebody outside the calling model says about exactly one approval.

A proof is a compact JWS whose claims name this node (`aud`), the approval (`jti`), what would be
called (`args_sha256`), until when it holds (`exp`) and what was decided (`decision`). It is held
against the trust anchors, and against the approval. Other kinds can be registered by the word that
they begin with. Nothing that a caller gets to see is a proof of anything.
"""

from __future__ import annotations

import asyncio
import warnings
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from interlock.errors import FORBIDDEN, PROOF_INVALID, InterlockError
from interlock.pipeline.approval.anchors import OPERATOR, POLICY_ENGINE, SERVICE, Anchor, Anchors
from interlock.pipeline.approval.record import VERIFY, Approval

APPROVE: Final = "approve"
REFUSE: Final = "refuse"
PASSKEY: Final = "passkey"
LONGEST_AHEAD: Final = 15 * 60.0
"""A proof that holds for longer is none: it could be kept for a rainy day."""
LEEWAY: Final = 60.0
"""So much may two clocks differ, where that lets nobody use a proof for longer."""
MOST_PROOF: Final = 16 * 1024
_MOST_REASON: Final = 500
_MOST_TOKEN: Final = 200
_ALGORITHMS: Final = frozenset({"EdDSA", "Ed25519", "ES256", "HS256"})


class Verdict(msgspec.Struct, frozen=True):
    """What a proof says, once it is believed."""

    anchor: str
    kind: str
    """`operator`, `policy_engine`, `service` or `passkey`."""
    decision: str
    reason: str = ""
    token: str = ""
    """A service's one-time token, which is used with this."""
    used: Callable[[], bool] | None = None
    """Writes down that it was used, and waits for the disk. False: it does not count after all."""


async def _as_it_is() -> None:
    """Nobody enrols, and nobody is removed."""


Checker = Callable[[Approval, str, float], Verdict]
"""Takes the approval, the proof and the wall clock's time. Raises InterlockError."""


class Proofs:
    """Looks at proofs of every kind."""

    def __init__(self, anchors: Anchors) -> None:
        self.anchors = anchors
        self.look: Callable[[], Awaitable[None]] = _as_it_is
        """Sees who was enrolled or removed meanwhile. Set by the node."""
        self._checkers: dict[str, Checker] = {}

    def register(self, kind: str, checker: Checker) -> None:
        """Have proofs that begin with `kind:` looked at by somebody else."""
        self._checkers[kind] = checker

    async def judge(
        self, approval: Approval, proof: str, wall_clock: Callable[[], float]
    ) -> Verdict:
        """What a proof says that counts from now on. The one way to act on a proof, wherever it
        came in: whoever was removed a moment ago counts no more. Raises InterlockError."""
        await self.look()
        verdict = self.check(approval, proof, wall_clock())
        if verdict.used is not None:
            loop = asyncio.get_running_loop()
            if not await loop.run_in_executor(None, verdict.used):
                raise invalid("it was used elsewhere meanwhile: it may have been copied")
        return verdict

    def check(self, approval: Approval, proof: str, now: float) -> Verdict:
        """Raises InterlockError unless it is a proof about this approval, by those who are known
        here and now. Nothing is used up by that: see `judge`."""
        if not isinstance(proof, str) or not proof:
            raise invalid("there is none: a human's signature is needed")
        if len(proof) > MOST_PROOF:
            raise invalid("it is too long")
        kind, colon, rest = proof.partition(":")
        if colon:
            checker = self._checkers.get(kind)
            if checker is None:
                raise invalid("it is of no kind that is known here")
            verdict = checker(approval, rest, now)
        else:
            verdict = self._signed(approval, proof, now)
        self._must_fit(approval, verdict)
        return verdict

    def _must_fit(self, approval: Approval, verdict: Verdict) -> None:
        """What holds for every kind of proof. Raises InterlockError."""
        caller = approval.caller
        # One person may have several keys: what is said of any of them holds for the person.
        known = self.anchors.named(verdict.anchor) or [Anchor(verdict.anchor, verdict.kind)]
        if any(one.is_caller(caller.name, caller.above) for one in known):
            raise InterlockError(
                FORBIDDEN, f"{verdict.anchor} asked for this call, and cannot confirm it as well."
            )
        if not all(one.may_confirm(approval.tool) for one in known):
            raise invalid(f"{verdict.anchor} may not confirm calls of {approval.tool}")
        if approval.action == VERIFY and verdict.kind not in (OPERATOR, PASSKEY):
            raise invalid("this call must be verified by a human's own key or passkey")
        if verdict.decision not in (APPROVE, REFUSE):
            raise invalid("its `decision` is neither `approve` nor `refuse`")

    # -- signatures

    def _signed(self, approval: Approval, proof: str, now: float) -> Verdict:
        header = _header(proof)
        anchor, payload = self._believed(proof, header)
        try:
            claims = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            claims = None
        if not isinstance(claims, dict):
            raise invalid("its claims are no JSON object")
        _check_claims(approval, claims, now)
        token = ""
        if anchor.kind == POLICY_ENGINE and claims.get("nonce") != approval.nonce:
            raise invalid("its `nonce` is not that of the approval")
        if anchor.kind == SERVICE:
            given = claims.get("token_id")
            if not isinstance(given, str) or not 1 <= len(given) <= _MOST_TOKEN:
                raise invalid("a service's proof needs a `token_id` of its own")
            token = given
        reason = claims.get("reason")
        return Verdict(
            anchor.name,
            anchor.kind,
            claims["decision"],
            reason[:_MOST_REASON] if isinstance(reason, str) else "",
            token,
        )

    def _believed(self, proof: str, header: dict[str, Any]) -> tuple[Anchor, bytes]:
        """Whose signature it is, and what is signed. Raises InterlockError."""
        algorithm, kid = header["alg"], header.get("kid")
        fitting = [one for one in self.anchors if algorithm in one.algorithms]
        if kid is not None:
            # A hint only: it says where to look first, and proves nothing.
            fitting.sort(key=lambda one: one.name != kid)
        for anchor in fitting:
            payload = _verified(proof, anchor, algorithm)
            if payload is not None:
                return anchor, payload
        raise invalid("no trust anchor of this node signed it")


def invalid(why: str) -> InterlockError:
    """The error for a proof that is none."""
    return InterlockError(PROOF_INVALID, f"This proof does not count: {why}.")


def _header(proof: str) -> dict[str, Any]:
    """The protected header, of which nothing is believed yet. Raises InterlockError."""
    parts = proof.split(".")
    if len(parts) != 3 or not all(parts):
        raise invalid("it is not a compact JWS of three parts")
    try:
        raw = urlsafe_b64decode(parts[0] + "=" * (-len(parts[0]) % 4))
        header = msgspec.json.decode(raw)
    except (ValueError, msgspec.DecodeError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise invalid("its header cannot be read")
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
        raise invalid("its `alg` is not EdDSA, ES256 or, for a service, HS256")
    if "crit" in header or "b64" in header:
        raise invalid("its header asks for what is not known here")
    return header


def _verified(proof: str, anchor: Anchor, algorithm: str) -> bytes | None:
    """What an anchor signed. None: it did not."""
    from joserfc import jws
    from joserfc.errors import JoseError

    try:
        with warnings.catch_warnings():
            # Its name for Ed25519 is an old one; it is what everybody writes.
            warnings.simplefilter("ignore")
            return jws.deserialize_compact(proof, anchor.key, algorithms=[algorithm]).payload
    except (JoseError, ValueError, TypeError):
        return None


def _check_claims(approval: Approval, claims: dict[str, Any], now: float) -> None:
    """Raises InterlockError."""
    audience = claims.get("aud")
    if audience != approval.audience and audience != [approval.audience]:
        raise invalid("its `aud` is not this node")
    if claims.get("jti") != approval.id:
        raise invalid("it is about another approval (`jti`)")
    if claims.get("args_sha256") != approval.digest:
        raise invalid("it is about another call (`args_sha256`)")
    if claims.get("decision") not in (APPROVE, REFUSE):
        raise invalid("its `decision` is neither `approve` nor `refuse`")
    expires, issued = _time(claims.get("exp")), _time(claims.get("iat"))
    if expires is None or issued is None:
        raise invalid("it does not say when it was made and until when it holds (`iat`, `exp`)")
    not_before = _time(claims.get("nbf", issued))
    if now >= expires:
        raise invalid("it has expired (`exp`)")
    if expires > now + LONGEST_AHEAD + LEEWAY or expires - issued > LONGEST_AHEAD + LEEWAY:
        raise invalid("it holds for longer than 15 minutes (`exp`)")
    if issued > now + LEEWAY or not_before is None or not_before > now + LEEWAY:
        raise invalid("it is of the future (`iat`, `nbf`)")


def _time(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return None
