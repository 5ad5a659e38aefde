"""Scheduling of the garbage collector of a node.

Reference counts free almost everything that a call creates. So the collector should not traverse
the whole node repeatedly: objects that exist after the start are frozen, and the thresholds are
high. But objects in a cycle keep their buffers until a collection, and calls alone would never
reach the thresholds. So young objects are collected by a timer, and all objects when the process
has grown.
"""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

COLLECT_SECONDS: Final = 60.0
"""Seconds between two collections of young objects. A collection takes less than a millisecond."""
GROWTH_BYTES: Final = 64 * 1024 * 1024
"""The growth of the process in bytes that triggers a full collection."""
_THRESHOLDS: Final = (20_000, 50, 100)
_STATM: Final = Path("/proc/self/statm")


def measure_memory() -> int:
    """Return the resident memory of this process in bytes; its maximum if the system does not
    tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * resource.getpagesize()
    except OSError:
        maximum = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return maximum if sys.platform == "darwin" else maximum * 1024


class GarbageCollector:
    """Runs collections by a timer."""

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], Any],
        memory: Callable[[], int] = measure_memory,
    ) -> None:
        self._call_later = call_later
        self._memory = memory
        self._baseline = 0
        self._timer: Any = None

    def start(self) -> None:
        """Freeze existing objects and start the timer."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        self._baseline = self._memory()
        self._timer = self._call_later(COLLECT_SECONDS, self._collect)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _collect(self) -> None:
        memory = self._memory()
        if memory - self._baseline >= GROWTH_BYTES:
            gc.collect()
            # The memory still in use is the new baseline: only further growth triggers again.
            self._baseline = self._memory()
        else:
            gc.collect(1)
            self._baseline = min(self._baseline, memory)
        self._timer = self._call_later(COLLECT_SECONDS, self._collect)
