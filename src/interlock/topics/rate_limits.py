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
"""The time for which the counts of a member are stored after it left. After that its limits are
fresh."""
MAX_FORMER_MEMBERS: Final = 1_000
"""The maximum number of such members. The counts of the first to leave are removed first."""


class MemberRateLimits:
    """The rate limits of all members of one room, by member id."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._messages: dict[str, TokenBucket] = {}
        self._rate_errors: dict[str, TokenBucket] = {}
        self._rejections: dict[str, TokenBucket] = {}
        self._notices: dict[str, float] = {}
        self._former_members: dict[str, float] = {}
        """Members that left, and when, oldest first."""

    # -- limits

    def allows_message(self, id: str, rate: int) -> bool:
        """Return whether a member may send another message, at `rate` per second."""
        return self._take_token(self._messages, id, rate, rate)

    def allows_rate_error(self, id: str) -> bool:
        """Return whether to tell a member again that it exceeds the rate limit."""
        return self._take_token(
            self._rate_errors, id, MAX_RATE_ERRORS_PER_SECOND, MAX_RATE_ERRORS_PER_SECOND
        )

    def allows_rejection(self, id: str) -> bool:
        """Return whether a member may stay although another of its messages was rejected."""
        return self._take_token(
            self._rejections, id, MAX_REJECTIONS_PER_SECOND, 2 * MAX_REJECTIONS_PER_SECOND
        )

    def allows_notice(self, id: str) -> bool:
        """Return whether to tell the others about another violation of a member."""
        now = self._clock()
        if now - self._notices.get(id, -NOTICE_INTERVAL_SECONDS) < NOTICE_INTERVAL_SECONDS:
            return False
        self._notices[id] = now
        return True

    def _take_token(self, buckets: dict[str, TokenBucket], id: str, rate: int, burst: int) -> bool:
        now = self._clock()
        bucket = buckets.get(id)
        if bucket is None:
            bucket = buckets[id] = TokenBucket(rate, burst, now)
        elif bucket.rate != rate:
            bucket.rate, bucket.burst = rate, burst
        return bucket.take_token(now)

    # -- joining and leaving

    def on_join(self, id: str) -> None:
        """Continue with the counts of a member that joins again."""
        self._former_members.pop(id, None)

    def on_leave(self, id: str, *, keeps_id: bool) -> None:
        """Keep or remove the counts of a member that left.

        Args:
            keeps_id: True if the next member with this id is the same participant.
        """
        former_members, oldest_allowed = self._former_members, self._clock() - RETENTION_SECONDS
        while former_members and (
            len(former_members) >= MAX_FORMER_MEMBERS
            or next(iter(former_members.values())) <= oldest_allowed
        ):
            oldest = next(iter(former_members))
            del former_members[oldest]
            self._remove(oldest)
        if keeps_id:
            former_members[id] = self._clock()
        else:
            self._remove(id)

    def _remove(self, id: str) -> None:
        for counts in (self._messages, self._rate_errors, self._rejections, self._notices):
            counts.pop(id, None)

    def __len__(self) -> int:
        """The number of members with counts."""
        counts = (
            self._messages,
            self._rate_errors,
            self._rejections,
            self._notices,
            self._former_members,
        )
        return len(set().union(*counts))
