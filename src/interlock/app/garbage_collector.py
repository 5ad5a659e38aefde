"""When the garbage collector of a node runs.

What a call makes is freed by its reference counts. Little is left for the collector, so it is kept
from walking over the whole node again and again: what is there after the start is frozen, and the
thresholds are high. But what dies in a cycle holds its buffers until somebody collects it, and
calls alone would never reach the thresholds. So young objects are collected by the clock, and all
of them when the process has grown.
"""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

EVERY: Final = 60.0
"""Seconds between two collections of young objects. One takes less than a millisecond."""
GROWTH: Final = 64 * 1024 * 1024
"""Bytes by which the process has to grow before everything is collected."""
_THRESHOLDS: Final = (20_000, 50, 100)
_STATM: Final = Path("/proc/self/statm")


def memory_in_use() -> int:
    """The bytes of this process that are in memory; where the system does not tell, the most that
    ever were."""
    try:
        return int(_STATM.read_bytes().split()[1]) * resource.getpagesize()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


class GarbageCollector:
    """Collects by the clock."""

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], Any],
        memory: Callable[[], int] = memory_in_use,
    ) -> None:
        self._call_later = call_later
        self._memory = memory
        self._before = 0
        self._timer: Any = None

    def start(self) -> None:
        """Freeze what is there, and collect what comes and goes from now on."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        self._before = self._memory()
        self._timer = self._call_later(EVERY, self._collect)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _collect(self) -> None:
        memory = self._memory()
        if memory - self._before >= GROWTH:
            gc.collect()
            # What is still in use counts as before: only further growth is another reason.
            self._before = self._memory()
        else:
            gc.collect(1)
            self._before = min(self._before, memory)
        self._timer = self._call_later(EVERY, self._collect)
