"""Out-of-band verification: challenges, and the limit of wrong codes.

A challenge is an approval of the tool `unblock` together with a code. Deciding the approval and
entering the code have the same effect. A wrong code ends the challenge and creates another one. A
valid code can be used once.
"""

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
from interlock.aql.safety.codes import VerificationCodes, matches_code
from interlock.aql.safety.store import CodeAttempts, SafetyChallenge, SafetyStore, Tier
from interlock.core.call import Caller, Principal, principal
from interlock.core.redaction import redact
from interlock.errors import PROOF_INVALID, InterlockError
from interlock.primitives.backoff import exponential_delay
from interlock.trust.approvals.proofs import APPROVE, OPERATOR, ProofVerdict, invalid_proof
from interlock.trust.approvals.record import Approval

CODE: Final = "code"
"""The kind of proof for a valid code. The proof itself is a single-use value of this module."""
MAX_HINT_CHARACTERS: Final = 200
_WRITE_TIMEOUT_SECONDS: Final = 10.0
_MAX_LOCKOUT_FACTOR: Final = 1024.0

_log = logging.getLogger("interlock.safety")

JournalFunction = Callable[[str, str, str], None]
"""Writes a journal entry: name, event, detail."""


class CodeAttemptLimiter:
    """Limits wrong codes, per principal over all challenges and restarts.

    It uses two clocks, so that a clock that is set back grants no further attempts. It is no
    `SlidingWindow`: every failure is stored, and each lockout doubles the waiting time.
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
        self._wall_clock = wall_clock
        self._attempts: dict[Principal, CodeAttempts] = {}
        self._locked_until: dict[Principal, float] = {}
        """Ends of lockouts on the monotonic clock."""

    def load(self, attempts_list: Iterable[CodeAttempts]) -> None:
        now = self._wall_clock()
        for attempts in attempts_list:
            self._attempts[attempts.owner] = attempts
            remaining = min(attempts.until - now, self._lockout(attempts.locked))
            if remaining > 0:
                self._locked_until[attempts.owner] = self._clock() + remaining

    def wait(self, owner: Principal) -> float:
        """Return how many seconds a principal must wait. 0: it may try."""
        attempts = self._attempts.get(owner)
        if attempts is None:
            return 0.0
        remaining = self._locked_until.get(owner, 0.0) - self._clock()
        by_wall_clock = attempts.until - self._wall_clock()
        # Never longer than the lockout, even if the clock was set back.
        return max(remaining, min(by_wall_clock, self._lockout(attempts.locked)), 0.0)

    def record_failure(self, owner: Principal) -> float:
        """Record a wrong code. Returns how many seconds the principal must wait."""
        now, config = self._wall_clock(), self.config
        attempts = self._attempts.get(owner) or CodeAttempts(owner)
        # Failures in the future were recorded before the clock was set back. They count.
        recent = [
            failed_at for failed_at in attempts.failures if failed_at > now - config.attempts_within
        ]
        failures = (*recent, now)[-config.attempts :]
        locked, until = attempts.locked, attempts.until
        if len(failures) >= config.attempts:
            locked += 1
            failures = ()
            until = now + self._lockout(locked)
            self._locked_until[owner] = self._clock() + self._lockout(locked)
        self._save(CodeAttempts(owner, failures, locked, until))
        return self.wait(owner)

    def reset(self, owner: Principal) -> None:
        """Reset the limit after a valid code."""
        attempts = self._attempts.pop(owner, None)
        self._locked_until.pop(owner, None)
        if attempts is not None:
            try:
                self._store.delete(attempts)
            except InterlockError as error:
                _log.warning(
                    "invalid codes of %s: cannot reset them in the store: %s", owner[0], error
                )

    def _lockout(self, locked: int) -> float:
        window = self.config.attempts_within
        if not self.config.lockout:
            return window
        return exponential_delay(locked - 1, window, window * _MAX_LOCKOUT_FACTOR)

    def _save(self, attempts: CodeAttempts) -> None:
        self._attempts[attempts.owner] = attempts
        try:
            self._store.save(attempts)
        except InterlockError as error:
            _log.error(
                "invalid codes of %s: not stored, lost at exit: %s", attempts.owner[0], error
            )


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
        write_journal: JournalFunction,
        on_verified: Callable[[SafetyChallenge, str], None],
        on_replaced: Callable[[SafetyChallenge, SafetyChallenge], None],
        on_over: Callable[[SafetyChallenge], object],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        """
        Args:
            on_verified: called with a challenge that was passed, and with the operator or proof
                kind.
            on_replaced: called with a challenge and its replacement.
            on_over: called with each challenge that can no longer be passed.
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
        self._write_journal = write_journal
        self._clock = clock
        self._wall_clock = wall_clock
        self._open: dict[str, SafetyChallenge] = {}
        self._expiry_times: dict[str, float] = {}
        """Expiry of each challenge on the monotonic clock."""
        self._used: set[str] = set()
        """Challenges whose code was entered. Codes cannot be used twice."""
        self._write_events: dict[str, asyncio.Event] = {}
        self._proofs: dict[str, str] = {}
        """Single-use proofs of valid codes, with the approval that each confirms."""
        self._tasks: set[asyncio.Task[None]] = set()

    def configure(self, config: SafetyConfig) -> None:
        self.config = self.attempt_limiter.config = config

    # -- queries

    def __iter__(self) -> Iterator[SafetyChallenge]:
        return iter(
            [challenge for challenge in list(self._open.values()) if self._is_open(challenge)]
        )

    def get(self, id: str) -> SafetyChallenge | None:
        challenge = self._open.get(id)
        return challenge if challenge is not None and self._is_open(challenge) else None

    def find_open(
        self, owner: Principal, tier: Tier, execution: str = ""
    ) -> SafetyChallenge | None:
        """Return the open challenge of a principal."""
        return next(
            (
                challenge
                for challenge in self
                if challenge.owner == owner
                and challenge.tier == tier
                and execution in ("", challenge.execution)
            ),
            None,
        )

    def remaining_seconds(self, challenge: SafetyChallenge) -> float:
        """Return the remaining seconds, by the stricter of both clocks."""
        expires_at = self._expiry_times.get(challenge.id, 0.0)
        return max(0.0, min(challenge.expires - self._wall_clock(), expires_at - self._clock()))

    def _is_open(self, challenge: SafetyChallenge) -> bool:
        return (
            self.remaining_seconds(challenge) > 0 and self._wall_clock() >= challenge.created - 5.0
        )

    def load(self, stored: Iterable[SafetyChallenge]) -> None:
        """Load the challenges of an earlier process.

        Challenges that lift a block stay valid while their approval is pending. Others end with the
        process.
        """
        for challenge in stored:
            approval = self._approvals.find(challenge.approval) if challenge.approval else None
            if challenge.tier == "danger_zone" and approval is not None and approval.is_pending:
                self._open[challenge.id] = challenge
                remaining = min(
                    challenge.expires - self._wall_clock(), challenge.expires - challenge.created
                )
                self._expiry_times[challenge.id] = self._clock() + remaining
                self._write_events[challenge.id] = write_event = asyncio.Event()
                write_event.set()
            else:
                self._delete(challenge)
                if approval is not None and approval.is_pending:
                    self._run_in_background(
                        self._approval_requests.withdraw(
                            challenge.approval, "The node was restarted."
                        )
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
        """Create a challenge, show its code and request its approval. Return its id.

        The approval may not be on disk yet.
        """
        now = self._wall_clock()
        id = str(uuid.uuid4())
        short_hint = redact(" ".join(hint.split()))[:MAX_HINT_CHARACTERS]
        code_digest = self.codes.create(id, describe_challenge(caller, element, short_hint, tier))
        challenge = SafetyChallenge(
            id,
            principal(caller),
            caller,
            element,
            short_hint,
            tier,
            now,
            now + self.config.challenge,
            code_digest,
            execution,
            step=step,
        )
        self._open[id] = challenge
        self._expiry_times[id] = self._clock() + self.config.challenge
        self._write_events[id] = asyncio.Event()
        self._save(challenge)
        self._write_journal(caller.name, "challenge_issued", f"challenge:{id} {tier} {short_hint}")
        self._request_approval(challenge)
        return id

    def _request_approval(self, challenge: SafetyChallenge) -> None:
        try:
            self._approval_requests.create(
                UNBLOCK,
                challenge.caller,
                {
                    "element_name": challenge.element,
                    "principal": list(challenge.owner),
                    "challenge_id": challenge.id,
                    "hint": challenge.hint,
                    "tier": challenge.tier,
                },
                "An operator must verify this step of an agent."
                if challenge.tier == "verify"
                else "This agent is blocked. Approve only to unblock it.",
            )
        except InterlockError as error:
            # The agent stays blocked, and the challenge can be requested again.
            _log.error("challenge %s: no approval request: %s", challenge.id, error.message)

    def renew(self, id: str) -> str | None:
        """Replace a challenge whose code was lost.

        Returns the new id, or None for an unknown id.
        """
        old = self._open.get(id)
        return None if old is None else self._replace(old, "The challenge was renewed.")

    def _replace(self, old: SafetyChallenge, reason: str) -> str:
        self.close(old, reason)
        new = self._open[
            self.issue(old.caller, old.element, old.hint, old.tier, old.execution, old.step)
        ]
        self._on_replaced(old, new)
        return new.id

    # -- verification of codes

    async def verify_code(self, caller: Caller, id: str, code: str) -> SafetyChallenge:
        """Check a code. Raises AqlError. The error never contains parts of the code."""
        owner = principal(caller)
        wait = self.attempt_limiter.wait(owner)
        if wait > 0:
            self._write_journal(caller.name, "verification_limited", f"challenge:{id[:40]}")
            raise lockout_error(wait)
        challenge = self._open.get(id)
        if challenge is None or challenge.owner != owner or id in self._used:
            raise self._failure(caller, id, "unknown", "TOKEN_INVALID", "Unknown challenge.")
        if not self._is_open(challenge):
            self.close(challenge, "The challenge expired.")
            raise self._failure(
                caller, id, "expired", "TOKEN_EXPIRED", "This challenge has expired."
            )
        if not matches_code(challenge.code_digest, code):
            self._used.add(id)
            error = self._failure(
                caller,
                id,
                "wrong_code",
                "TOKEN_INVALID",
                "Invalid code. The challenge cannot be used again.",
            )
            error.data = {
                **(error.data or {}),
                "challenge_id": self._replace(challenge, "An invalid code was entered."),
            }
            raise error
        self._used.add(id)
        self.codes.remove(id)
        await self._confirm_by_code(challenge, caller)
        self.attempt_limiter.reset(owner)
        return challenge

    def _failure(self, caller: Caller, id: str, reason: str, code: str, message: str) -> AqlError:
        wait = self.attempt_limiter.record_failure(principal(caller))
        self._write_journal(caller.name, "verification_failed", f"challenge:{id[:40]} {reason}")
        details: dict[str, Any] = {"reason": reason}
        if wait > 0:
            details["retry_after_ms"] = int(wait * 1000) + 1
        return AqlError(code, message, details)

    async def _confirm_by_code(self, challenge: SafetyChallenge, caller: Caller) -> None:
        """Confirm the approval of a challenge by its code. Raises InterlockError."""
        await self.wait_written(challenge.id)
        approval = self._open.get(challenge.id, challenge).approval
        if not approval:
            raise AqlError(
                "INTERNAL_ERROR", "This challenge is not stored. An operator can renew it."
            )
        proof_value = secrets.token_urlsafe(32)
        self._proofs[proof_value] = approval
        try:
            await self._approvals.confirm(approval, f"{CODE}:{proof_value}", caller)
        finally:
            self._proofs.pop(proof_value, None)

    async def wait_written(self, id: str) -> None:
        """Wait until the approval of a challenge is on disk, or known to be missing."""
        write_event = self._write_events.get(id)
        if write_event is not None and not write_event.is_set():
            try:
                async with asyncio.timeout(_WRITE_TIMEOUT_SECONDS):
                    await write_event.wait()
            except TimeoutError:
                _log.error("challenge %s: the approval was not written in time", id)

    def verify_proof(self, approval: Approval, proof_value: str, now: float) -> ProofVerdict:
        """Verify a proof of the kind `code`.

        Such proofs exist only between a valid code and its approval, so clients cannot send one.
        Raises InterlockError.
        """
        if self._proofs.pop(proof_value, None) != approval.id:
            raise invalid_proof("a code is entered with verify_challenge")
        return ProofVerdict(CODE, OPERATOR, APPROVE)

    # -- state changes

    def on_approval(self, approval: Approval, arguments: dict[str, Any]) -> None:
        """Handle a state change of a challenge's approval.

        Args:
            arguments: the arguments of the call, while the approval is pending.
        """
        if approval.is_pending:
            challenge = self._open.get(str(arguments.get("challenge_id")))
            if challenge is None:
                self._run_in_background(
                    self._approval_requests.withdraw(approval.id, "The challenge has ended.")
                )
            else:
                self._open[challenge.id] = pending_challenge = replace(
                    challenge, approval=approval.id
                )
                self._save(pending_challenge)
                self._write_events[challenge.id].set()
        elif approval.is_final:
            challenge = next(
                (
                    candidate
                    for candidate in self._open.values()
                    if candidate.approval == approval.id
                ),
                None,
            )
            if challenge is not None:
                self._remove(challenge)

    def complete(self, approval: str, id: str) -> SafetyChallenge:
        """Handle a passed challenge, when its approved call runs.

        Raises:
            InterlockError: The approval belongs to no challenge, so the loop did not create this
                call.
        """
        challenge = self._open.get(id)
        if not approval or challenge is None or challenge.approval != approval:
            raise InterlockError(PROOF_INVALID, "This approval belongs to no open challenge.")
        record = self._approvals.find(approval)
        passed_by = CODE if record is None else record.by
        self._on_verified(challenge, passed_by)
        self._write_journal(
            challenge.owner[0], "challenge_passed", f"challenge:{id} by {passed_by}"
        )
        for other_challenge in list(self._open.values()):
            if (
                other_challenge is not challenge
                and other_challenge.owner == challenge.owner
                and other_challenge.tier == challenge.tier
                and other_challenge.tier == "danger_zone"
            ):
                self.close(other_challenge, "Another challenge was passed.")
        self._remove(challenge)
        return challenge

    def close(self, challenge: SafetyChallenge, reason: str) -> None:
        """End a challenge and withdraw its approval."""
        approval = self._open.get(challenge.id, challenge).approval
        self._remove(challenge)
        if approval:
            self._run_in_background(self._approval_requests.withdraw(approval, reason))

    def _remove(self, challenge: SafetyChallenge) -> None:
        self.codes.remove(challenge.id)
        self._open.pop(challenge.id, None)
        self._expiry_times.pop(challenge.id, None)
        self._write_events.pop(challenge.id, None)
        self._used.discard(challenge.id)
        self._delete(challenge)
        self._on_over(challenge)

    def prune(self) -> None:
        """Close expired challenges."""
        for challenge in list(self._open.values()):
            if not self._is_open(challenge):
                self.close(challenge, "The challenge expired.")

    def _save(self, challenge: SafetyChallenge) -> None:
        # Only challenges that lift a block are stored. Others end with the process.
        if challenge.tier == "danger_zone":
            try:
                self._store.save(challenge)
            except InterlockError as error:
                _log.error("challenge %s: not stored, ends with the node: %s", challenge.id, error)

    def _delete(self, challenge: SafetyChallenge) -> None:
        try:
            self._store.delete(challenge)
        except InterlockError as error:
            _log.warning("challenge %s: cannot delete it: %s", challenge.id, error)

    def _run_in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def describe_challenge(caller: Caller, element: str, hint: str, tier: Tier) -> str:
    """Return the sentence that an operator sees with a code. Text of the agent is quoted on one
    line.
    """
    quoted = "".join(
        character if character.isprintable() else "?" for character in f"{element[:60]}: {hint}"
    )
    verb_phrase = "is blocked after" if tier == "danger_zone" else "wants to do"
    return (
        f"The agent of {caller.name} {verb_phrase} “{quoted}”. "
        "Share the code only to let it continue."
    )


def lockout_error(wait: float) -> AqlError:
    seconds = int(wait) + 1
    return AqlError(
        "RATE_LIMIT_EXCEEDED",
        f"Too many invalid codes. Try again in {seconds} s.",
        {"reason": "too_many_attempts", "retry_after_ms": int(wait * 1000) + 1},
    )
