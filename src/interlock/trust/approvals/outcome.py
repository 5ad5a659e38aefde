"""How an approval ends: what a call came to, written into its record, and told again from it. Pure.

Three things can be known of a call that was let through: it was answered (`done`), it was never
sent (`void`), or neither can be said (`lost`).
"""

from __future__ import annotations

from typing import Final

from interlock.core.call import Outcome, RelayedError
from interlock.core.journal.audit import OK, TOOL_ERROR
from interlock.errors import (
    APPROVAL_REFUSED,
    BUDGET_EXCEEDED,
    CANCELLED,
    CONFIRMATION_EXPIRED,
    DEADLINE_EXCEEDED,
    INTERNAL,
    SHUTTING_DOWN,
    TOO_BUSY,
    UNRECORDABLE,
    UPSTREAM_LOST,
    UPSTREAM_PROTOCOL,
    InterlockError,
    ProtocolError,
)
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_value
from interlock.protocol.mcp import Era
from interlock.trust.approvals.record import (
    DISPATCHING,
    DONE,
    LOST,
    MOST_RESULT,
    REFUSED,
    VOID,
    Approval,
)
from interlock.trust.approvals.response import (
    REQUIRED,
    error_of,
    needed_below,
    outcome_of,
    trouble_of,
)

_UNANSWERED: Final = frozenset(
    {DEADLINE_EXCEEDED, UPSTREAM_LOST, UPSTREAM_PROTOCOL, CANCELLED, SHUTTING_DOWN, INTERNAL}
)
"""How a call that left fails without an answer of its upstream."""
_NOT_NOW: Final = frozenset({TOO_BUSY, BUDGET_EXCEEDED})
"""How a node below turns away who asks, before anything happens."""
_MOST_NOTE: Final = 500
_TOO_LONG: Final = encode_value(
    {"content": [{"type": "text", "text": "It was executed. Its result was too long to be kept."}]}
)


def with_outcome(record: Approval, outcome: Outcome, collected: bool, now: float) -> Approval:
    """The record of a call that was answered. `collected`: whether its caller hears it now."""
    word = TOOL_ERROR if outcome.glance is not None and outcome.glance.is_error else OK
    below, until = needed_below(outcome.result) or ("", 0.0)
    too_long = len(outcome.result) > MOST_RESULT
    return record.step(
        DONE,
        ended=now,
        outcome=REQUIRED if below else word,
        result=_TOO_LONG if too_long else outcome.result,
        era=(Era.SESSION if too_long else outcome.era).value,
        # Another gate below is no end: the same call is answered with it until it is passed.
        collected=collected and not below,
        below=below,
        below_until=until,
    )


def after_below(record: Approval, outcome: Outcome, now: float) -> Approval:
    """The record of a call that waited for a gate below, which was decided by now."""
    if not _refused_below(outcome):
        return with_outcome(record, outcome, False, now)
    error = InterlockError(APPROVAL_REFUSED, f"{record.tool} was not called: it was refused below.")
    return record.step(
        DONE,
        ended=now,
        outcome=error.failure.name,
        trouble=trouble_of(error),
        result=b"",
        below="",
        below_until=0.0,
        collected=False,
    )


def _refused_below(outcome: Outcome) -> bool:
    """Whether this is what a node says of a call that a human refused, and no result of a tool."""
    try:
        members = decode_members(outcome.result)
        return "content" not in members and decode_value(members["status"]) == REFUSED
    except (KeyError, ProtocolError):
        return False


def with_error(
    record: Approval, error: InterlockError, collected: bool, now: float, *, dispatched: bool
) -> Approval:
    """The record of a call that failed. `dispatched`: whether the call left the node."""
    dispatched = dispatched and record.state == DISPATCHING
    if record.below and _says_nothing(record, error, dispatched):
        return record.step(DONE)
    state, note = DONE, ""
    if not dispatched:
        state, note = VOID, f"It was not executed: {error.message}"
    elif error.failure in _UNANSWERED:
        state, note = LOST, f"Whether it was executed is not known: {error.message}"
    return record.step(
        state,
        ended=now,
        outcome=error.failure.name,
        trouble=trouble_of(error),
        note=note[:_MOST_NOTE],
        collected=collected,
        result=b"",
        below="",
        below_until=0.0,
    )


def _says_nothing(record: Approval, error: InterlockError, dispatched: bool) -> bool:
    """Whether a call that waits at a gate below does so still, after somebody asked there and was
    told this: the question did not get there, or the gate has no time for it, or the call that was
    let through there is still under way."""
    if not isinstance(error, RelayedError):
        return not dispatched
    under_way = (error.data or {}).get("confirmation_id") == record.below
    return error.failure in _NOT_NOW or (error.failure is DEADLINE_EXCEEDED and under_way)


def told(record: Approval) -> tuple[Outcome | None, InterlockError | None]:
    """What there is to say about an approval that is over."""
    if record.result:
        return outcome_of(record), None
    about = {"confirmation_id": record.id, "state": record.state}
    if record.trouble is not None:
        return None, error_of(record.trouble)
    if record.state == REFUSED:
        why = f": {record.note}" if record.note else "."
        return None, InterlockError(
            APPROVAL_REFUSED, f"{record.tool} was not called: {record.by} refused it{why}", about
        )
    failure = UPSTREAM_LOST if record.state == LOST else CONFIRMATION_EXPIRED
    return None, InterlockError(failure, f"{record.tool}: {record.note}", about)


def worth_telling(record: Approval) -> bool:
    """Whether its caller, who asks once more, should hear of it before anything else happens."""
    return record.state in (DONE, REFUSED, LOST) or record.trouble is not None


def unwritten() -> InterlockError:
    return InterlockError(
        UNRECORDABLE,
        "The call was not made: its approval cannot be written down now. Try again later.",
    )
