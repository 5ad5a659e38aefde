"""The states of an execution, in the draft's words, and what introspection says of them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final


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
