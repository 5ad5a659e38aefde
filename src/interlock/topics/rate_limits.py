"""How much the members of a room may still say, and be told, in a second.

Counts alone, never what was said. They outlive their member for a moment, so that nobody shakes
them off by leaving and coming back. No clock of its own: it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from interlock.primitives.rate_limits import TokenBucket

MOST_ANSWERED: Final = 10
"""So often in a second a member hears that it says too much; the rest is dropped and counted."""
MOST_REFUSED: Final = 100
"""So many messages of one member may be refused in a second, and twice as many at once. It is let
go with more: to answer what goes nowhere must not be what a node does."""
NOTICE_SECONDS: Final = 1.0
"""How often others hear, at most, that one member said what it may not."""
REMEMBERED_SECONDS: Final = 3.0
"""So long the counts of who left are kept: after that, it has as much left again as anybody."""
MOST_REMEMBERED: Final = 1_000
"""Of so many of them; the first to leave are forgotten first."""


class MemberRateLimits:
    """The rate limits of all members of one room, by their ids."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: dict[str, TokenBucket] = {}
        self._answered: dict[str, TokenBucket] = {}
        self._refused: dict[str, TokenBucket] = {}
        self._noticed: dict[str, float] = {}
        self._gone: dict[str, float] = {}
        """Who left, and when, the first to leave first."""

    # -- what counts

    def may_say(self, id: str, rate: int) -> bool:
        """Whether it may say one more, of `rate` in a second."""
        return self._take(self._said, id, rate, rate)

    def may_be_answered(self, id: str) -> bool:
        """Whether it hears once more that it says too much."""
        return self._take(self._answered, id, MOST_ANSWERED, MOST_ANSWERED)

    def may_be_refused(self, id: str) -> bool:
        """Whether it may stay, although one more of its messages went nowhere."""
        return self._take(self._refused, id, MOST_REFUSED, 2 * MOST_REFUSED)

    def may_be_noticed(self, id: str) -> bool:
        """Whether the others hear once more that it said what it may not."""
        now = self._clock()
        if now - self._noticed.get(id, -NOTICE_SECONDS) < NOTICE_SECONDS:
            return False
        self._noticed[id] = now
        return True

    def _take(self, buckets: dict[str, TokenBucket], id: str, rate: int, most: int) -> bool:
        now = self._clock()
        bucket = buckets.get(id)
        if bucket is None:
            bucket = buckets[id] = TokenBucket(rate, most, now)
        elif bucket.rate != rate:
            bucket.rate, bucket.burst = rate, most
        return bucket.take(now)

    # -- who comes and goes

    def came(self, id: str) -> None:
        """It goes on where it was."""
        self._gone.pop(id, None)

    def left(self, id: str, *, comes_back: bool) -> None:
        """`comes_back`: whether who comes next by that id is the same one."""
        gone, before = self._gone, self._clock() - REMEMBERED_SECONDS
        while gone and (len(gone) >= MOST_REMEMBERED or next(iter(gone.values())) <= before):
            oldest = next(iter(gone))
            del gone[oldest]
            self._forget(oldest)
        if comes_back:
            gone[id] = self._clock()
        else:
            self._forget(id)

    def _forget(self, id: str) -> None:
        for counts in (self._said, self._answered, self._refused, self._noticed):
            counts.pop(id, None)

    def __len__(self) -> int:
        """Of how many something is known."""
        counts = (self._said, self._answered, self._refused, self._noticed, self._gone)
        return len(set().union(*counts))
