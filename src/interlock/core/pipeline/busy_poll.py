"""Busy polling while one call is in flight.

Waking a process takes longer than all the work of the node for a call. So while a single call is
running, and for a moment after its response, the event loop polls instead of sleeping. That costs
at most a few ten-thousandths of a second of one core per call. With several running calls the loop
is awake anyway. With one core, polling would take time from the server that it waits for. Polling
starts only after several single calls in a row: every burst of calls also begins with one call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sized
from typing import Any, Final

from interlock.core.ports import Clock

ANSWER_SECONDS: Final = 100e-6
"""The time for which the loop polls for the response. After this time it sleeps normally."""
NEXT_SECONDS: Final = 60e-6
"""The time for which it polls for the next call of the same client, after the response."""

MIN_SINGLE_CALLS: Final = 8
"""Number of single calls in a row before the loop polls."""


def can_busy_poll() -> bool:
    """Return whether the process has several cores, so that one can be used for polling."""
    if not hasattr(os, "sched_getaffinity") or not hasattr(os, "sched_yield"):
        return False
    return len(os.sched_getaffinity(0)) > 1


class BusyPoll:
    """Keeps the event loop from sleeping for a moment."""

    __slots__ = (
        "_call_soon",
        "_clock",
        "_deadline",
        "_is_polling",
        "_poll_callback",
        "_running_calls",
        "single_calls",
    )

    def __init__(
        self, running_calls: Sized, clock: Clock, call_soon: Callable[[Callable[[], None]], Any]
    ) -> None:
        self._running_calls = running_calls
        self._clock = clock
        self._call_soon = call_soon
        self._is_polling = False
        self._deadline = 0.0
        self.single_calls = 0
        """Number of single calls in a row. The pipeline resets it when several calls run."""
        self._poll_callback = self._poll

    def start(self, now: float) -> None:
        """Start to poll. Called after the only running call was sent."""
        self.single_calls += 1
        if self.single_calls <= MIN_SINGLE_CALLS:
            return
        self._deadline = now + ANSWER_SECONDS
        if not self._is_polling:
            self._is_polling = True
            self._call_soon(self._poll_callback)

    def _poll(self) -> None:
        calls = len(self._running_calls)
        remaining = self._deadline - self._clock()
        if calls < 2 and (remaining > 0 or (calls == 0 and remaining > -NEXT_SECONDS)):
            # Other processes may need this core, even the server that is polled for.
            os.sched_yield()
            self._call_soon(self._poll_callback)
        else:
            self._is_polling = False
