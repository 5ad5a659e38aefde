"""What the end of a call says about the next: whether it was sent, and how long its upstream wants
to be left alone.

Only what an upstream answered counts: what this node refuses, or one below, says nothing about it.
A status of HTTP holds for everybody. Words in an answer may be a caller's own, which the upstream
only repeats: they hold for that caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from interlock import errors
from interlock.call import Outcome, UpstreamAnsweredError, UpstreamGoneError
from interlock.errors import InterlockError
from interlock.pipeline.approval.answer import needed_below
from interlock.pipeline.aql import blame
from interlock.pipeline.aql.asking import Principal
from interlock.protocol.aql.envelope import text_of
from interlock.protocol.aql.faults import AqlError

LONGEST_WAIT: Final = 3600.0
"""However long an upstream wants to be left alone, it is tried again after this."""
_RETRY: Final = re.compile(
    r"(?:retry[-_ ]?after(?:[-_ ]?(?:seconds|secs?|ms))?|(?:try|retry) again (?:in|after)|wait)"
    r"[\"']?\s{0,3}[:=]?\s{0,3}[\"']?(\d{1,9}(?:\.\d{1,6})?)\s{0,2}"
    r"(milliseconds?|ms\b|seconds?|secs?|s\b|minutes?|mins?|m\b)?",
    re.IGNORECASE,
)
_TOO_MANY: Final = 429
_MOST_KEPT: Final = 10_000
_NEVER_SENT: Final = frozenset(
    one.name
    for one in (
        errors.INVALID_ARGUMENTS,
        errors.INVALID_PARAMS,
        errors.HEADER_MISMATCH,
        errors.UNAUTHENTICATED,
        errors.FORBIDDEN,
        errors.DENIED,
        errors.UNKNOWN_TOOL,
        errors.BUDGET_EXCEEDED,
        errors.TOOL_HELD,
        errors.TOO_BUSY,
        errors.CIRCUIT_OPEN,
        errors.CONFIRMATION_REQUIRED,
        errors.CONFIRMATION_EXPIRED,
        errors.APPROVAL_REFUSED,
        errors.PROOF_INVALID,
        errors.ALREADY_DECIDED,
        errors.UNRECORDABLE,
        errors.SHUTTING_DOWN,
    )
)


def wait_of(outcome: Outcome | None, error: InterlockError | None) -> float:
    """For how many seconds an upstream wants to be left alone. 0: it did not say so."""
    if isinstance(error, UpstreamGoneError):
        return _seconds_in(error.message) if error.status == _TOO_MANY else 0.0
    if isinstance(error, UpstreamAnsweredError):
        limited = blame.of_error(error).code == blame.LIMITED
        return _seconds_in(error.message) if limited else 0.0
    if error is not None or outcome is None or b'"isError"' not in outcome.result:
        return 0.0
    if blame.of_result(outcome.result).code != blame.LIMITED:
        return 0.0
    return _seconds_in(text_of(outcome.result))


def _seconds_in(text: str) -> float:
    found = _RETRY.search(text[:4_000])
    if found is None:
        return 0.0
    number, unit = float(found[1]), (found[2] or "").lower()
    if unit.startswith(("ms", "milli")) or "ms" in found[0].lower().partition(found[1])[0]:
        return number / 1000
    return number * 60 if unit.startswith("m") else number


def was_sent(outcome: Outcome | None, error: InterlockError | None) -> bool:
    """Whether a call that is over may have reached its upstream."""
    if error is None:
        return outcome is None or needed_below(outcome.result) is None
    if isinstance(error, AqlError):
        return False
    if isinstance(error, UpstreamGoneError):
        return error.sent
    return error.failure.name not in _NEVER_SENT


class LeftAlone:
    """Which upstreams want to be left alone, by whom, and until when. False: none does."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[tuple[str, Principal | None], float] = {}

    def __bool__(self) -> bool:
        return bool(self._until)

    def heed(
        self, server: str, whose: Principal, outcome: Outcome | None, error: InterlockError | None
    ) -> None:
        """Take what the end of a call says about its server."""
        wait = min(wait_of(outcome, error), LONGEST_WAIT)
        if wait <= 0:
            return
        if len(self._until) >= _MOST_KEPT:
            now = self._clock()
            self._until = {key: until for key, until in self._until.items() if until > now}
        key = (server, None if isinstance(error, UpstreamGoneError) else whose)
        self._until[key] = max(self._clock() + wait, self._until.get(key, 0.0))

    def left(self, server: str, whose: Principal) -> float:
        """For how many seconds it is not to be asked by this caller. What is over is forgotten."""
        longest = 0.0
        for key in ((server, None), (server, whose)):
            until = self._until.get(key)
            if until is None:
                continue
            left = until - self._clock()
            if left > 0:
                longest = max(longest, left)
            else:
                del self._until[key]
        return longest

    def by(self, whose: Principal) -> dict[str, float]:
        """The servers that this caller leaves alone, and for how many seconds."""
        servers = dict.fromkeys(server for server, of in self._until if of in (None, whose))
        left = {server: self.left(server, whose) for server in servers}
        return {server: seconds for server, seconds in left.items() if seconds > 0}
