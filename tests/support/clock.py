"""Time that moves only when a test moves it."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

WALL_CLOCK_OFFSET = 1_800_000_000.0
"""Seconds between the monotonic and the wall clock of a `ManualClock`."""

SETTLING_TURNS = 30
"""Turns of the event loop in which everything happens that waits for no time to pass."""


class ManualTimer:
    """A timer of a `ManualClock`, as `call_later` of an event loop returns it."""

    def __init__(self, clock: ManualClock, time: float, callback: Callable[[], None]) -> None:
        self.time = time
        self.callback = callback
        self.is_cancelled = False
        self._clock = clock

    def cancel(self) -> None:
        self.is_cancelled = True
        self._clock.discard(self)


class ManualClock:
    """A monotonic and a wall clock, with the timers and sleeps that wait for them."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.sleeps: list[float] = []
        """The length of each sleep, in order."""
        self._timers: list[tuple[float, int, ManualTimer]] = []
        self._order = count()

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return WALL_CLOCK_OFFSET + self.now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(self, self.now + seconds, callback)
        heapq.heappush(self._timers, (timer.time, next(self._order), timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        """Wait until a test has advanced the clock by so many seconds."""
        self.sleeps.append(seconds)
        woken = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    def discard(self, timer: ManualTimer) -> None:
        remaining = [entry for entry in self._timers if entry[2] is not timer]
        if len(remaining) < len(self._timers):
            self._timers = remaining
            heapq.heapify(self._timers)

    @property
    def timers(self) -> int:
        """The number of timers and sleeps that wait."""
        return len(self._timers)

    def advance(self, seconds: float) -> None:
        """Let time pass. Each timer that becomes due runs at its own moment, in order."""
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            self.now, _, timer = heapq.heappop(self._timers)
            timer.callback()
        self.now = max(self.now, end)

    async def advance_slowly(self, seconds: float) -> None:
        """Let time pass, and let all tasks run that are ready after each timer."""
        end = self.now + seconds
        await run_ready_tasks(SETTLING_TURNS)
        while self._timers and self._timers[0][0] <= end:
            self.advance(self._timers[0][0] - self.now)
            await run_ready_tasks(SETTLING_TURNS)
        self.advance(end - self.now)
        await run_ready_tasks(SETTLING_TURNS)

    def stall(self, seconds: float) -> None:
        """Let time pass as if the event loop was blocked: each due timer runs late, at the end."""
        self.now += seconds
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2].callback()


async def run_ready_tasks(turns: int = 5) -> None:
    """Let every task and callback run that is ready, for a number of turns of the event loop."""
    for _ in range(turns):
        await asyncio.sleep(0)
