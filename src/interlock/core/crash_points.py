"""Places where a test may kill the node: each point of the way of a call that is approved.

`INTERLOCK_FAULT` in the environment names one of them, and the process ends there as by `kill -9`.
Without it nothing here does anything.
"""

from __future__ import annotations

import os
import signal
from typing import Final

POINTS: Final = (
    "hold.begun",
    "hold.written",
    "confirm.checked",
    "confirm.approved",
    "gate.checked",
    "gate.dispatching",
    "dispatch.begun",
    "dispatch.recorded",
    "dispatch.sent",
    "dispatch.answered",
    "outcome.written",
    "collect.begun",
    "collect.written",
    "refuse.checked",
    "refuse.written",
    "store.committing",
)
"""In the order in which a call passes them; the last is inside every commit of the store."""

_AT: Final = os.environ.get("INTERLOCK_FAULT", "")
_AFTER: Final = int(os.environ.get("INTERLOCK_FAULT_AFTER", "0") or "0")
"""How often the point is passed unharmed first."""
ARMED: Final = bool(_AT)
"""Whether the process is to end at one of them. Looked at before `at`, which only tests call."""
_passed = 0


def at(point: str) -> None:
    """The call is here now."""
    if point == _AT:
        _die()


def _die() -> None:
    global _passed
    _passed += 1
    if _passed > _AFTER:
        os.kill(os.getpid(), signal.SIGKILL)
