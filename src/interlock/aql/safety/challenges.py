"""Out-of-band verification: challenges, and the limit of wrong codes.

A challenge is an approval of the tool `unblock` with a code beside it: to decide the approval and
to enter the code have the same effect. A wrong code ends the challenge and makes another. A right
code is used once."""

from __future__ import annotations

import asyncio
import logging
import secrets
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Final

from msgspec.structs import replace

from interlock.aql.config import SafetyConfig
from interlock.aql.language.errors import AqlError
from interlock.aql.safety.approval_requests import UNBLOCK, ApprovalInbox, ApprovalRequests
from interlock.aql.safety.codes import VerificationCodes, fits
from interlock.aql.safety.store import CodeAttempts, SafetyChallenge, SafetyStore, Tier
from interlock.core.call import Caller, Principal, principal
from interlock.core.redaction import redact
from interlock.errors import PROOF_INVALID, InterlockError
from interlock.primitives.backoff import exponential_delay
from interlock.trust.approvals.proofs import APPROVE, OPERATOR, ProofVerdict, invalid
from interlock.trust.approvals.record import Approval

CODE: Final = "code"
"""The kind of proof that a right code is. What follows it is drawn for one use, in this module."""
MOST_SHOWN: Final = 200
_WRITTEN_WITHIN: Final = 10.0
_MOST_TIMES: Final = 1024.0

_log = logging.getLogger("interlock.safety")

JournalFunction = Callable[[str, str, str], None]
"""name, word, detail: an entry of the journal."""


class CodeAttemptLimiter:
    """Limits wrong codes: counted by principal, over all its challenges and over restarts, and by
    two clocks, so that one that is set back gives nobody more attempts.

    No `SlidingWindow`: every failure is stored, and too many lock the caller out for a time that
    doubles with each lockout.
    """

    def __init__(
        self,
        store: SafetyStore,
        config: SafetyConfig,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self.config = config
        self._store = store
        self._clock = clock
        self._now = wall_clock
        self._of: dict[Principal, CodeAttempts] = {}
        self._until: dict[Principal, float] = {}
        """The same on the clock that never goes back."""

    def load(self, found: Iterable[CodeAttempts]) -> None:
        now = self._now()
        for one in found:
            self._of[one.who] = one
            left = min(one.until - now, self._lockout(one.locked))
            if left > 0:
                self._until[one.who] = self._clock() + left

    def wait(self, who: Principal) -> float:
        """For how many seconds nothing is taken from it. 0: it may try."""
        known = self._of.get(who)
        if known is None:
            return 0.0
        left = self._until.get(who, 0.0) - self._clock()
        by_wall = known.until - self._now()
        # Never longer than it was locked out for, however far the clock was set back.
        return max(left, min(by_wall, self._lockout(known.locked)), 0.0)

    def failed(self, who: Principal) -> float:
        """One more was wrong. Returns for how long nothing more is taken."""
        now, config = self._now(), self.config
        known = self._of.get(who) or CodeAttempts(who)
        # One that lies in the future was made before the clock was set back: it counts.
        recent = [at for at in known.failures if at > now - config.attempts_within]
        failures = (*recent, now)[-config.attempts :]
        locked, until = known.locked, known.until
        if len(failures) >= config.attempts:
            locked += 1
            failures = ()
            until = now + self._lockout(locked)
            self._until[who] = self._clock() + self._lockout(locked)
        self._keep(CodeAttempts(who, failures, locked, until))
        return self.wait(who)

    def passed(self, who: Principal) -> None:
        """The right one was entered: it begins anew."""
        known = self._of.pop(who, None)
        self._until.pop(who, None)
        if known is not None:
            try:
                self._store.drop(known)
            except InterlockError as error:
                _log.warning("wrong codes of %s are remembered too long: %s", who[0], error)

    def _lockout(self, locked: int) -> float:
        within = self.config.attempts_within
        if not self.config.lockout:
            return within
        return exponential_delay(locked - 1, within, within * _MOST_TIMES)

    def _keep(self, attempts: CodeAttempts) -> None:
        self._of[attempts.who] = attempts
        try:
            self._store.keep(attempts)
        except InterlockError as error:
            _log.error("wrong codes of %s count until the node stops: %s", attempts.who[0], error)


class SafetyChallenges:
    """The open challenges of a node."""

    def __init__(
        self,
        config: SafetyConfig,
        *,
        store: SafetyStore,
        codes: VerificationCodes,
        approval_requests: ApprovalRequests,
        approvals: ApprovalInbox,
        note: JournalFunction,
        on_verified: Callable[[SafetyChallenge, str], None],
        on_replaced: Callable[[SafetyChallenge, SafetyChallenge], None],
        on_over: Callable[[SafetyChallenge], object],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        """
        Args:
            on_verified: Called with a challenge that a human passed, and by what.
            on_replaced: Called with a challenge, and the one that replaces it.
            on_over: Called with each challenge that can no longer be passed.
        """
        self.config = config
        self.codes = codes
        self.attempt_limiter = CodeAttemptLimiter(store, config, clock=clock, wall_clock=wall_clock)
        self._on_verified = on_verified
        self._on_replaced = on_replaced
        self._on_over = on_over
        self._store = store
        self._approval_requests = approval_requests
        self._approvals = approvals
        self._note = note
        self._clock = clock
        self._now = wall_clock
        self._open: dict[str, SafetyChallenge] = {}
        self._ends: dict[str, float] = {}
        """When each is over, on the clock that never goes back."""
        self._spent: set[str] = set()
        """Whose code was entered: it counts no second time."""
        self._written: dict[str, asyncio.Event] = {}
        self._tickets: dict[str, str] = {}
        """What stands for a code that was right, for the approval that it is about."""
        self._tasks: set[asyncio.Task[None]] = set()

    def configure(self, config: SafetyConfig) -> None:
        self.config = self.attempt_limiter.config = config

    # -- what there is

    def __iter__(self) -> Iterator[SafetyChallenge]:
        return iter([one for one in list(self._open.values()) if self._is_open(one)])

    def get(self, id: str) -> SafetyChallenge | None:
        found = self._open.get(id)
        return found if found is not None and self._is_open(found) else None

    def of(self, who: Principal, tier: Tier, execution: str = "") -> SafetyChallenge | None:
        """The open challenge of somebody."""
        return next(
            (
                one
                for one in self
                if one.who == who and one.tier == tier and execution in ("", one.execution)
            ),
            None,
        )

    def left(self, challenge: SafetyChallenge) -> float:
        """For how many seconds it is open, by either clock."""
        ends = self._ends.get(challenge.id, 0.0)
        return max(0.0, min(challenge.expires - self._now(), ends - self._clock()))

    def _is_open(self, challenge: SafetyChallenge) -> bool:
        return self.left(challenge) > 0 and self._now() >= challenge.created - 5.0

    def load(self, found: Iterable[SafetyChallenge]) -> None:
        """What an earlier process left. A pause for verification ends with the process; what lifts
        a block is still good, as far as its approval still waits."""
        for one in found:
            approval = self._approvals.find(one.approval) if one.approval else None
            if one.tier == "danger_zone" and approval is not None and approval.waits:
                self._open[one.id] = one
                left = min(one.expires - self._now(), one.expires - one.created)
                self._ends[one.id] = self._clock() + left
                self._written[one.id] = written = asyncio.Event()
                written.set()
            else:
                self._drop(one)
                if approval is not None and approval.waits:
                    self._later(
                        self._approval_requests.withdraw(one.approval, "The node was started anew.")
                    )

    # -- issuing

    def issue(
        self,
        caller: Caller,
        element: str,
        hint: str,
        tier: Tier,
        execution: str = "",
        step: str = "",
    ) -> str:
        """A new challenge; its id. Its code is shown by now, and its approval on its way to the
        disk."""
        now = self._now()
        id = str(uuid.uuid4())
        shown = redact(" ".join(hint.split()))[:MOST_SHOWN]
        sealed = self.codes.draw(id, sentence(caller, element, shown, tier))
        challenge = SafetyChallenge(
            id,
            principal(caller),
            caller,
            element,
            shown,
            tier,
            now,
            now + self.config.challenge,
            sealed,
            execution,
            step=step,
        )
        self._open[id] = challenge
        self._ends[id] = self._clock() + self.config.challenge
        self._written[id] = asyncio.Event()
        self._keep(challenge)
        self._note(caller.name, "challenge_issued", f"challenge:{id} {tier} {shown}")
        self._put(challenge)
        return id

    def _put(self, challenge: SafetyChallenge) -> None:
        try:
            self._approval_requests.put(
                UNBLOCK,
                challenge.caller,
                {
                    "element_name": challenge.element,
                    "principal": list(challenge.who),
                    "challenge_id": challenge.id,
                    "hint": challenge.hint,
                    "tier": challenge.tier,
                },
                "A human has to verify this step of an agent."
                if challenge.tier == "verify"
                else "This agent is blocked. Approve only to let it act again.",
            )
        except InterlockError as error:
            # It stays blocked, and can be asked for again.
            _log.error("challenge %s waits for nobody: %s", challenge.id, error.message)

    def renew(self, id: str) -> str | None:
        """Another one in place of this, whose code is lost. None: there is none of this id."""
        old = self._open.get(id)
        return None if old is None else self._instead(old, "It was renewed.")

    def _instead(self, old: SafetyChallenge, why: str) -> str:
        self.close(old, why)
        new = self._open[
            self.issue(old.caller, old.element, old.hint, old.tier, old.execution, old.step)
        ]
        self._on_replaced(old, new)
        return new.id

    # -- entering a code

    async def verify(self, caller: Caller, id: str, code: str) -> SafetyChallenge:
        """Enter a code. Raises AqlError; nothing of the code is in what it raises."""
        who = principal(caller)
        wait = self.attempt_limiter.wait(who)
        if wait > 0:
            self._note(caller.name, "verification_limited", f"challenge:{id[:40]}")
            raise limited(wait)
        challenge = self._open.get(id)
        if challenge is None or challenge.who != who or id in self._spent:
            raise self._failed(caller, id, "unknown", "TOKEN_INVALID", "No such challenge is open.")
        if not self._is_open(challenge):
            self.close(challenge, "It was not answered in time.")
            raise self._failed(
                caller, id, "expired", "TOKEN_EXPIRED", "This challenge has expired."
            )
        if not fits(challenge.sealed, code):
            self._spent.add(id)
            wrong = self._failed(
                caller, id, "wrong_code", "TOKEN_INVALID", "This code is wrong, and used up."
            )
            wrong.data = {
                **(wrong.data or {}),
                "challenge_id": self._instead(challenge, "A wrong code was entered."),
            }
            raise wrong
        self._spent.add(id)
        self.codes.forget(id)
        await self._decided_by_code(challenge, caller)
        self.attempt_limiter.passed(who)
        return challenge

    def _failed(self, caller: Caller, id: str, why: str, code: str, message: str) -> AqlError:
        wait = self.attempt_limiter.failed(principal(caller))
        self._note(caller.name, "verification_failed", f"challenge:{id[:40]} {why}")
        details: dict[str, Any] = {"reason": why}
        if wait > 0:
            details["retry_after_ms"] = int(wait * 1000) + 1
        return AqlError(code, message, details)

    async def _decided_by_code(self, challenge: SafetyChallenge, caller: Caller) -> None:
        """The same as a proof, for the same approval. Raises InterlockError."""
        await self.written(challenge.id)
        approval = self._open.get(challenge.id, challenge).approval
        if not approval:
            raise AqlError(
                "INTERNAL_ERROR", "This challenge is not written down: an operator can renew it."
            )
        ticket = secrets.token_urlsafe(32)
        self._tickets[ticket] = approval
        try:
            await self._approvals.confirm(approval, f"{CODE}:{ticket}", caller)
        finally:
            self._tickets.pop(ticket, None)

    async def written(self, id: str) -> None:
        """Until its approval is on disk, or it is clear that it will not be."""
        written = self._written.get(id)
        if written is not None and not written.is_set():
            try:
                async with asyncio.timeout(_WRITTEN_WITHIN):
                    await written.wait()
            except TimeoutError:
                _log.error("challenge %s was never written down", id)

    def proof(self, approval: Approval, ticket: str, now: float) -> ProofVerdict:
        """Looks at proofs of the kind `code`. There is one only between a right code and its
        approval: nobody can bring one from outside. Raises InterlockError."""
        if self._tickets.pop(ticket, None) != approval.id:
            raise invalid("a code is entered with verify_challenge")
        return ProofVerdict(CODE, OPERATOR, APPROVE)

    # -- what became of it

    def heard(self, approval: Approval, arguments: dict[str, Any]) -> None:
        """A step of the approval of one of them. `arguments`: read while it waits."""
        if approval.waits:
            challenge = self._open.get(str(arguments.get("challenge_id")))
            if challenge is None:
                self._later(
                    self._approval_requests.withdraw(approval.id, "The challenge is over already.")
                )
            else:
                self._open[challenge.id] = held = replace(challenge, approval=approval.id)
                self._keep(held)
                self._written[challenge.id].set()
        elif approval.over:
            found = next((one for one in self._open.values() if one.approval == approval.id), None)
            if found is not None:
                self._forget(found)

    def passed(self, approval: str, id: str) -> SafetyChallenge:
        """A human let it through, and the node does what was asked. Raises InterlockError for an
        approval that is of no challenge: such a call was never put by the loop."""
        challenge = self._open.get(id)
        if not approval or challenge is None or challenge.approval != approval:
            raise InterlockError(PROOF_INVALID, "No challenge is open for this approval.")
        record = self._approvals.find(approval)
        by = CODE if record is None else record.by
        self._on_verified(challenge, by)
        self._note(challenge.who[0], "challenge_passed", f"challenge:{id} by {by}")
        for other in list(self._open.values()):
            if (
                other is not challenge
                and other.who == challenge.who
                and other.tier == challenge.tier
                and other.tier == "danger_zone"
            ):
                self.close(other, "Another challenge was passed.")
        self._forget(challenge)
        return challenge

    def close(self, challenge: SafetyChallenge, why: str) -> None:
        """It can no longer be passed, by a code or otherwise."""
        approval = self._open.get(challenge.id, challenge).approval
        self._forget(challenge)
        if approval:
            self._later(self._approval_requests.withdraw(approval, why))

    def _forget(self, challenge: SafetyChallenge) -> None:
        self.codes.forget(challenge.id)
        self._open.pop(challenge.id, None)
        self._ends.pop(challenge.id, None)
        self._written.pop(challenge.id, None)
        self._spent.discard(challenge.id)
        self._drop(challenge)
        self._on_over(challenge)

    def prune(self) -> None:
        """Close those whose time is over."""
        for one in list(self._open.values()):
            if not self._is_open(one):
                self.close(one, "It was not answered in time.")

    def _keep(self, challenge: SafetyChallenge) -> None:
        # A pause ends with the process: only what lifts a block is kept.
        if challenge.tier == "danger_zone":
            try:
                self._store.keep(challenge)
            except InterlockError as error:
                _log.error("challenge %s is good until the node stops: %s", challenge.id, error)

    def _drop(self, challenge: SafetyChallenge) -> None:
        try:
            self._store.drop(challenge)
        except InterlockError as error:
            _log.warning("challenge %s could not be forgotten: %s", challenge.id, error)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def sentence(caller: Caller, element: str, hint: str, tier: Tier) -> str:
    """What a human reads beside a code. What the agent wrote is quoted, in one line."""
    plain = "".join(one if one.isprintable() else "?" for one in f"{element[:60]}: {hint}")
    what = "is blocked after" if tier == "danger_zone" else "wants to do"
    return f"The agent of {caller.name} {what} “{plain}”. Give the code only if it may go on."


def limited(wait: float) -> AqlError:
    seconds = int(wait) + 1
    return AqlError(
        "RATE_LIMIT_EXCEEDED",
        f"Too many wrong codes. Try again in {seconds} s.",
        {"reason": "too_many_attempts", "retry_after_ms": int(wait * 1000) + 1},
    )
