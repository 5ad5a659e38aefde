"""Time that a test turns, and a channel of two ends in memory."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

TURNS = 30
"""So many turns of the loop let everything happen that waits for no time to pass."""


async def settle() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


class Time:
    """A clock, and sleepers that wake when the test has turned it far enough."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        """How long everybody wanted to sleep, in order."""
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._numbers), woken))
        await woken

    async def turn(self, seconds: float) -> None:
        """Let so much time pass, and everything happen that it brings."""
        end = self.now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                self.now = max(self.now, due)
                woken.set_result(None)
                await settle()
        self.now = end
        await settle()


def _ignore(_: object) -> None:
    """Nobody listens yet."""


class End:
    """One end of a channel in memory. What is sent arrives in the next turn of the loop."""

    def __init__(self, label: str) -> None:
        self.peer = "local"
        self.peer_names: tuple[str, ...] = ()
        self.label = label
        self.close_reason = ""
        self.on_message: Callable[[bytes], None] = _ignore
        self.on_close: Callable[[str], None] = _ignore
        self.is_open = True
        self.other: End

    def send(self, payload: bytes) -> None:
        if self.is_open:
            asyncio.get_running_loop().call_soon(self.other._arrived, payload)

    def close(self, code: int = 1000, reason: str = "") -> None:
        if self.is_open:
            self.is_open = False
            self.on_message = _ignore
            asyncio.get_running_loop().call_soon(self.other._ended, reason)

    async def wait_closed(self) -> None:
        return

    def _arrived(self, payload: bytes) -> None:
        if self.is_open:
            self.on_message(payload)

    def _ended(self, reason: str) -> None:
        if self.is_open:
            self.is_open = False
            self.close_reason = reason
            self.on_close("it closed the channel" + (f": {reason}" if reason else ""))


def pair(label: str = "pair") -> tuple[End, End]:
    here, there = End(label), End(label)
    here.other, there.other = there, here
    return here, there
