"""The state table of executions. It does not depend on how an execution runs.

A terminal state is final, except that a failed execution can be retried. The state diagram of the
draft has an edge from failed to cancelled that its list of transitions does not have. This table
follows the list.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from interlock.aql.language.errors import AqlError

# The states of an execution, as the draft names them, and the lifecycle that introspection returns.


class ExecutionState(StrEnum):
    """A state of an execution."""

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
"""The lifecycle of every operation that can run as an execution."""


__all__ = [
    "LIFECYCLE",
    "TERMINAL",
    "TRANSITIONS",
    "ExecutionEvent",
    "ExecutionState",
    "diagram",
    "next_state_of",
]


class ExecutionEvent(StrEnum):
    """An event that changes the state of an execution."""

    BEGIN = "begin"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    RETRY = "retry"


TRANSITIONS: Final[dict[tuple[ExecutionState, ExecutionEvent], ExecutionState]] = {
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


def next_state_of(state: ExecutionState, event: ExecutionEvent) -> ExecutionState:
    """Return the state after an event.

    Raises AqlError if the event is not possible in this state.
    """
    next_state = TRANSITIONS.get((state, event))
    if next_state is None:
        possible = [other.value for (before, other) in TRANSITIONS if before is state]
        hint = f"Possible now: {', '.join(possible)}." if possible else "This state is final."
        raise AqlError(
            "CONFLICT_INVALID_STATE",
            f"An execution with status '{state}' cannot {event}. {hint}",
            {"current_status": state.value, "action": event.value, "possible": possible},
        )
    return next_state


def diagram() -> str:
    """Return the table as a Mermaid diagram, for the documentation page."""
    lines = ["stateDiagram-v2", f"    [*] --> {ExecutionState.PENDING}"]
    lines += [
        f"    {before} --> {next_state}: {event}"
        for (before, event), next_state in TRANSITIONS.items()
    ]
    lines += [f"    {state} --> [*]" for state in ExecutionState if state in TERMINAL]
    return "\n".join(lines)
