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
    """Delays that double from `first` to `most`, until `reset`.

    The owner decides what a success is, and calls `reset` then. One that was reached and lost at
    once is no success: whoever resets there tries without a pause.
    """

    __slots__ = ("_initial", "_jitter", "_limit", "delay")

    def __init__(
        self, initial: float, limit: float, *, jitter: Callable[[], float] | None = None
    ) -> None:
        """
        Args:
            jitter: gives numbers from 0 to 1, such as `random.random`. A delay is then between
                half and all of what it would be, so that many who lost the same peer do not all
                come back at the same moment.
        """
        self._initial = initial
        self._limit = limit
        self._jitter = jitter
        self.delay = 0.0
        """The last delay, without jitter. 0: there was none since the last reset."""

    def next_delay(self, requested: float | None = None, *, limit: float | None = None) -> float:
        """Return the next delay in seconds.

        Args:
            wanted: what the peer asked for (`Retry-After`, `retry:` of a stream). It takes the
                place of `first`: the delay is no shorter, and doubles from there.
            most: another maximum, for this delay only.
        """
        shortest = self._initial if requested is None else requested
        delay = max(self.delay * 2, shortest) if self.delay else shortest
        self.delay = delay = min(delay, self._limit if limit is None else limit)
        return delay if self._jitter is None else delay * (0.5 + self._jitter() / 2)

    def reset(self) -> None:
        """It worked: the next failure begins with the first delay again."""
        self.delay = 0.0
