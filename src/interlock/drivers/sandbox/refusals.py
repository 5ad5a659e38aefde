"""What a confined server was refused, told once and not a thousand times.

A server that is refused tries again, often at once and for ever. Whoever keeps the journal wants
to know that it tried, where to, and no more. No `Sampler`: a new place is always told, up to so
many places, and nothing is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from interlock.drivers.sandbox.patterns import Place

AGAIN: Final = 60.0
"""Seconds after which the same place is told once more."""
MOST: Final = 20
"""Places told within that time. A server that scans a network fills no journal."""

Tell = Callable[[str, int], None]


class Refusals:
    """Tells each place once in a while."""

    def __init__(
        self, tell: Tell | None, *, clock: Callable[[], float], again: float = AGAIN
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._again = again
        self._told: dict[Place, float] = {}
        """When each was told last; the oldest first."""

    def note(self, host: str, port: int) -> None:
        """A connection to this place was refused."""
        if self._tell is None:
            return
        now = self._clock()
        while self._told:
            oldest = next(iter(self._told))
            if now - self._told[oldest] < self._again:
                break
            del self._told[oldest]
        place = Place(host, port)
        if place in self._told or len(self._told) >= MOST:
            return
        self._told[place] = now
        self._tell(host, port)
