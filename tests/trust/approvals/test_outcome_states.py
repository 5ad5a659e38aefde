"""The state that a failed call leaves its approval in: `void` only where nothing left the node."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core.call import RelayedError, UpstreamLostError, UpstreamResponseError
from interlock.errors import (
    CANCELLED,
    DEADLINE_EXCEEDED,
    INTERNAL,
    SHUTTING_DOWN,
    UPSTREAM_LOST,
    UPSTREAM_PROTOCOL,
    InterlockError,
    all_failures,
)
from interlock.trust.approvals.record import APPROVED, DISPATCHING, DONE, LOST, VOID
from interlock.trust.approvals.response import with_error
from tests.trust.approvals.test_proofs import approval

UNANSWERED = {
    CANCELLED, DEADLINE_EXCEEDED, INTERNAL, SHUTTING_DOWN, UPSTREAM_LOST, UPSTREAM_PROTOCOL,
}  # fmt: skip


def state_after(error: InterlockError, *, dispatched: bool, before: str = DISPATCHING) -> str:
    record = approval().with_state(APPROVED)
    if before == DISPATCHING:
        record = record.with_state(DISPATCHING)
    return with_error(record, error, False, 1.0, dispatched=dispatched).state


@pytest.mark.parametrize("failure", all_failures(), ids=lambda failure: failure.name)
def test_only_undispatched_call_is_void(failure: Any) -> None:
    plain, relayed = InterlockError(failure, "m"), RelayedError(failure, "m")
    for error in (plain, relayed, UpstreamLostError(failure, "m", was_sent=False)):
        assert state_after(error, dispatched=False) == VOID
        assert state_after(error, dispatched=True) == (LOST if failure in UNANSWERED else DONE)
    # An approval that was not yet used is not used up by a call that stopped before.
    assert state_after(plain, dispatched=True, before=APPROVED) == VOID


def test_upstream_error_response_is_done() -> None:
    assert state_after(UpstreamResponseError(-1, "m", None), dispatched=True) == DONE
