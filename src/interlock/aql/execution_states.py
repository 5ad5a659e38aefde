"""The states of an execution, as a table. Nothing here knows what runs.

A terminal state changes no more, but for a retry of what failed. The draft draws an edge from
failed to cancelled that its own list of transitions does not have: the list counts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from interlock.aql.language.errors import AqlError

# -- The states of an execution, in the draft's words, and what introspection says of them.


class ExecutionState(StrEnum):
    """The state of an execution. There are no others."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


LIFECYCLE: Final[dict[str, Any]] = {
    "states": [state.value for state in ExecutionState],
    "supports_cancel": True,
    "supports_retry": True,
    "progress_reporting": True,
}
"""Of every operation that can be an execution."""


__all__ = ["LIFECYCLE", "MOVES", "TERMINAL", "ExecutionEvent", "ExecutionState", "after", "diagram"]


class ExecutionEvent(StrEnum):
    """What changes the state of an execution."""

    BEGIN = "begin"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    RETRY = "retry"


MOVES: Final[dict[tuple[ExecutionState, ExecutionEvent], ExecutionState]] = {
    (ExecutionState.PENDING, ExecutionEvent.BEGIN): ExecutionState.RUNNING,
    (ExecutionState.PENDING, ExecutionEvent.CANCEL): ExecutionState.CANCELLED,
    (ExecutionState.RUNNING, ExecutionEvent.COMPLETE): ExecutionState.COMPLETED,
    (ExecutionState.RUNNING, ExecutionEvent.FAIL): ExecutionState.FAILED,
    (ExecutionState.RUNNING, ExecutionEvent.CANCEL): ExecutionState.CANCELLED,
    (ExecutionState.FAILED, ExecutionEvent.RETRY): ExecutionState.RUNNING,
}
TERMINAL: Final = frozenset(
    {ExecutionState.COMPLETED, ExecutionState.FAILED, ExecutionState.CANCELLED}
)


def after(state: ExecutionState, event: ExecutionEvent) -> ExecutionState:
    """Where it is then. Raises AqlError for what cannot happen in this state."""
    moved = MOVES.get((state, event))
    if moved is None:
        possible = [one.value for (before, one) in MOVES if before is state]
        offered = f"Possible now: {', '.join(possible)}." if possible else "It has ended for good."
        raise AqlError(
            "CONFLICT_INVALID_STATE",
            f"An execution with status '{state}' cannot {event}. {offered}",
            {"current_status": state.value, "action": event.value, "possible": possible},
        )
    return moved


def diagram() -> str:
    """The table as a drawing, for the page about executions."""
    lines = ["stateDiagram-v2", f"    [*] --> {ExecutionState.PENDING}"]
    lines += [f"    {before} --> {then}: {event}" for (before, event), then in MOVES.items()]
    lines += [f"    {state} --> [*]" for state in ExecutionState if state in TERMINAL]
    return "\n".join(lines)
