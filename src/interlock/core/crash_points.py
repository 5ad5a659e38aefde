"""Points at which a test can kill the node, along the route of an approved call.

The environment variable `INTERLOCK_FAULT` names a point. The process ends there as by `kill -9`.
Without the variable this module does nothing.
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
"""In the order in which a call passes them. The last one is inside every commit of the store."""

_POINT: Final = os.environ.get("INTERLOCK_FAULT", "")
_SKIPPED_PASSES: Final = int(os.environ.get("INTERLOCK_FAULT_AFTER", "0") or "0")
"""The number of times that the point is passed before the process ends there."""
ARMED: Final = bool(_POINT)
"""True if a crash point is set. Code checks it before it calls `reach`."""
_passes = 0


def reach(point: str) -> None:
    """End the process if this is the crash point that the environment names."""
    if point == _POINT:
        _kill_process()


def _kill_process() -> None:
    global _passes
    _passes += 1
    if _passes > _SKIPPED_PASSES:
        os.kill(os.getpid(), signal.SIGKILL)
