"""Rate limits of the members of a room: messages that they send, and errors that they are sent.

Only counts are stored. They outlive their member for a moment, so that leaving and joining again
does not reset them. Callers pass the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from interlock.primitives.rate_limits import TokenBucket

MAX_RATE_ERRORS_PER_SECOND: Final = 10
"""The maximum rate of errors about the rate limit. Further messages are dropped and counted."""
MAX_REJECTIONS_PER_SECOND: Final = 100
"""The maximum rate of rejected messages of one member, with a burst of twice as many. Above it the
member is disconnected: a node must not be busy with errors."""
NOTICE_INTERVAL_SECONDS: Final = 1.0
"""The minimum time between two notices to the others about violations of one member."""
RETENTION_SECONDS: Final = 3.0
"""How long the counts of a member are stored after it left. After that its limits are fresh."""
MAX_FORMER_MEMBERS: Final = 1_000
"""The maximum number of such members. The counts of the first to leave are removed first."""


class MemberRateLimits:
    """The rate limits of all members of one room, by member id."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: dict[str, TokenBucket] = {}
        self._answered: dict[str, TokenBucket] = {}
        self._refused: dict[str, TokenBucket] = {}
        self._noticed: dict[str, float] = {}
        self._gone: dict[str, float] = {}
        """Members that left, and when, oldest first."""

    # -- limits

    def may_say(self, id: str, rate: int) -> bool:
        """Return whether a member may send another message, at `rate` per second."""
        return self._take(self._said, id, rate, rate)

    def may_be_answered(self, id: str) -> bool:
        """Return whether to tell a member again that it exceeds the rate limit."""
        return self._take(
            self._answered, id, MAX_RATE_ERRORS_PER_SECOND, MAX_RATE_ERRORS_PER_SECOND
        )

    def may_be_refused(self, id: str) -> bool:
        """Return whether a member may stay although another of its messages was rejected."""
        return self._take(
            self._refused, id, MAX_REJECTIONS_PER_SECOND, 2 * MAX_REJECTIONS_PER_SECOND
        )

    def may_be_noticed(self, id: str) -> bool:
        """Return whether to tell the others about another violation of a member."""
        now = self._clock()
        if now - self._noticed.get(id, -NOTICE_INTERVAL_SECONDS) < NOTICE_INTERVAL_SECONDS:
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

    # -- joining and leaving

    def came(self, id: str) -> None:
        """Continue with the counts of a member that joins again."""
        self._gone.pop(id, None)

    def left(self, id: str, *, comes_back: bool) -> None:
        """Keep or remove the counts of a member that left.

        Args:
            comes_back: True if the next member with this id is the same participant.
        """
        gone, before = self._gone, self._clock() - RETENTION_SECONDS
        while gone and (len(gone) >= MAX_FORMER_MEMBERS or next(iter(gone.values())) <= before):
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
        """The number of members with counts."""
        counts = (self._said, self._answered, self._refused, self._noticed, self._gone)
        return len(set().union(*counts))
