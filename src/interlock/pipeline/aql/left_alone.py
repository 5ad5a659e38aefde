"""What the end of a call says about the next: whether it was sent, and how long its upstream wants
to be left alone."""

from __future__ import annotations

import re
from typing import Final

from interlock import errors
from interlock.call import Outcome, UpstreamGoneError
from interlock.errors import InterlockError
from interlock.pipeline.approval.answer import needed_below
from interlock.pipeline.aql import blame
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
    if error is not None:
        wanted = (error.data or {}).get("retry_after_ms")
        limited = error.failure is errors.BUDGET_EXCEEDED or (
            isinstance(error, UpstreamGoneError) and error.status == 429
        )
        if limited and isinstance(wanted, int | float):
            return max(0.0, wanted / 1000)
        return _seconds_in(error.message) if limited else 0.0
    if outcome is None or b'"isError"' not in outcome.result:
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
