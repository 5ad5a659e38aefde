"""Staying awake for a lonely call.

To be woken takes a process longer than everything the node does with a call. So while a single
call is under way, and for a moment after its answer, the loop looks again instead of sleeping.
That costs a core at most a few ten thousandths of a second for every such call. With more calls
under way nobody need be woken; with one core only it would take the time of those it waits for.
And a call is lonely only if those before it were: between two waves of many there is a first one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sized
from typing import Any, Final

from interlock.core.ports import Clock

ANSWER_SECONDS: Final = 100e-6
"""How long it looks out for the answer. A server that takes longer is slept on."""
NEXT_SECONDS: Final = 60e-6
"""How long, after that, for the next call of the same client."""

ALONE_BEFORE: Final = 8
"""So many calls in a row must have been alone before the loop stays awake for one."""


def can_busy_poll() -> bool:
    """Whether the process has more than one core, and may give one away for a moment."""
    if not hasattr(os, "sched_getaffinity") or not hasattr(os, "sched_yield"):
        return False
    return len(os.sched_getaffinity(0)) > 1


class BusyPoll:
    """Keeps the loop from sleeping for a moment."""

    __slots__ = ("_again", "_awake", "_call_soon", "_clock", "_under_way", "_until", "alone")

    def __init__(
        self, under_way: Sized, clock: Clock, call_soon: Callable[[Callable[[], None]], Any]
    ) -> None:
        self._under_way = under_way
        self._clock = clock
        self._call_soon = call_soon
        self._awake = False
        self._until = 0.0
        self.alone = 0
        """How many calls in a row were the only ones. Set back by whoever sends one of several."""
        self._again = self._look_again

    def sent(self, now: float) -> None:
        """The only call under way has just been sent."""
        self.alone += 1
        if self.alone <= ALONE_BEFORE:
            return
        self._until = now + ANSWER_SECONDS
        if not self._awake:
            self._awake = True
            self._call_soon(self._again)

    def _look_again(self) -> None:
        calls = len(self._under_way)
        left = self._until - self._clock()
        if calls < 2 and (left > 0 or (calls == 0 and left > -NEXT_SECONDS)):
            # Somebody else may want this core: the one that is waited for, even.
            os.sched_yield()
            self._call_soon(self._again)
        else:
            self._awake = False
