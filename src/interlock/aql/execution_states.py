"""The states of an execution, as a table. Nothing here knows what runs.

A terminal state changes no more, but for a retry of what failed. The draft draws an edge from
failed to cancelled that its own list of transitions does not have: the list counts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from interlock.aql.language.errors import AqlError

# -- The states of an execution, in the draft's words, and what introspection says of them.


class State(StrEnum):
    """Where an execution is. There are no others here."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


LIFECYCLE: Final[dict[str, Any]] = {
    "states": [state.value for state in State],
    "supports_cancel": True,
    "supports_retry": True,
    "progress_reporting": True,
}
"""Of every operation that can be an execution."""


__all__ = ["LIFECYCLE", "MOVES", "TERMINAL", "Event", "State", "after", "diagram"]


class Event(StrEnum):
    """What moves it."""

    BEGIN = "begin"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    RETRY = "retry"


MOVES: Final[dict[tuple[State, Event], State]] = {
    (State.PENDING, Event.BEGIN): State.RUNNING,
    (State.PENDING, Event.CANCEL): State.CANCELLED,
    (State.RUNNING, Event.COMPLETE): State.COMPLETED,
    (State.RUNNING, Event.FAIL): State.FAILED,
    (State.RUNNING, Event.CANCEL): State.CANCELLED,
    (State.FAILED, Event.RETRY): State.RUNNING,
}
TERMINAL: Final = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})


def after(state: State, event: Event) -> State:
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
    lines = ["stateDiagram-v2", f"    [*] --> {State.PENDING}"]
    lines += [f"    {before} --> {then}: {event}" for (before, event), then in MOVES.items()]
    lines += [f"    {state} --> [*]" for state in State if state in TERMINAL]
    return "\n".join(lines)
