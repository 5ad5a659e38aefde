"""How often a subserver says that it is alive: which heartbeats are worth any work. Pure."""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

MOST_IN_AN_INTERVAL: Final = 10
MOST_IN_A_SECOND: Final = 50
"""More heartbeats than these say nothing new: they are answered, and that is all."""
FLOOD: Final = 1000
"""More than so many in a second are no heartbeats any more."""


class Pace(Enum):
    STEADY = "steady"
    HASTY = "hasty"
    FLOOD = "flood"


class Pulse:
    """Counts in intervals and in seconds, each beginning with the first heartbeat in it."""

    def __init__(self, interval: float) -> None:
        """`interval`: the seconds between two heartbeats, as agreed on; 0: none were."""
        self._interval = interval
        self._interval_ends = self._second_ends = -math.inf
        self._in_interval = self._in_second = 0

    def beat(self, now: float) -> Pace:
        if now >= self._second_ends:
            self._second_ends, self._in_second = now + 1.0, 0
        if now >= self._interval_ends:
            self._interval_ends, self._in_interval = now + self._interval, 0
        self._in_second += 1
        self._in_interval += 1
        if self._in_second > FLOOD:
            return Pace.FLOOD
        if self._in_second > MOST_IN_A_SECOND or self._in_interval > MOST_IN_AN_INTERVAL:
            return Pace.HASTY
        return Pace.STEADY
