"""Backoff: the delay before a retry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_MAX_DOUBLINGS: Final = 60.0


def exponential_delay(attempt: int, initial: float, limit: float) -> float:
    """Return the delay before a retry: `initial`, doubled with each attempt, at most `limit`.

    Args:
        attempt: the number of the attempt, beginning with 0.
    """
    doubled: float = initial * 2.0 ** min(max(attempt, 0), _MAX_DOUBLINGS)
    return min(doubled, limit)


class Backoff:
    """Delays that double from `initial` to `limit`, until `reset`.

    Call `reset` after a success. A peer that was reached and lost at once is not a success: a reset
    there would cause retries without a delay.
    """

    __slots__ = ("_initial", "_jitter", "_limit", "delay")

    def __init__(
        self, initial: float, limit: float, *, jitter: Callable[[], float] | None = None
    ) -> None:
        """
        Args:
            jitter: returns numbers from 0 to 1, such as `random.random`. A delay is then between
                half and all of its value, so that many clients of a lost peer do not retry at the
                same time.
        """
        self._initial = initial
        self._limit = limit
        self._jitter = jitter
        self.delay = 0.0
        """The last delay, without jitter. 0: none since the last reset."""

    def next_delay(self, requested: float | None = None, *, limit: float | None = None) -> float:
        """Return the next delay in seconds.

        Args:
            requested: the delay that the peer requested (`Retry-After`, `retry:` of a stream). It
                replaces `initial`: the delay is not shorter, and doubles from there.
            limit: another maximum, for this delay only.
        """
        shortest = self._initial if requested is None else requested
        delay = max(self.delay * 2, shortest) if self.delay else shortest
        self.delay = delay = min(delay, self._limit if limit is None else limit)
        return delay if self._jitter is None else delay * (0.5 + self._jitter() / 2)

    def reset(self) -> None:
        """Start again with the initial delay, after a success."""
        self.delay = 0.0
