"""Rate limits: a token bucket, a sliding window, and two classes that use the window.

The caller passes the time, in seconds of any clock. All of them need bounded memory for any number
of events.

`TokenBucket` allows an average rate and bursts up to a limit. `SlidingWindow` limits the number of
events in every period of one length. A clock that is set back allows no additional events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from math import inf
from typing import Final, Generic, TypeVar

from interlock.primitives.bounded_dict import BoundedDict

K = TypeVar("K", bound=Hashable)

_MAX_GROUPS: Final = 600
"""Approximate maximum number of groups in a window, for any number of events."""
MAX_KEYS: Final = 10_000

Group = list[float]
"""The times of its first and its last event, and the number of events."""


class TokenBucket:
    """Tokens that are added at `rate` per second, up to `burst`. The bucket starts full."""

    __slots__ = ("_updated_at", "burst", "rate", "tokens")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self.tokens = burst
        self._updated_at = now

    def take_token(self, now: float) -> bool:
        """Take a token. Return False if there is none."""
        tokens = self.tokens
        if now > self._updated_at:
            tokens += (now - self._updated_at) * self.rate
        if tokens > self.burst:
            tokens = self.burst
        self._updated_at = now
        if tokens < 1:
            self.tokens = tokens
            return False
        self.tokens = tokens - 1
        return True


class SlidingWindow:
    """Counts the events of the last `period` seconds.

    Events close to each other form one group, which counts as long as its last event. So an event
    may count slightly longer than `period`, by `grain` at most.
    """

    __slots__ = ("_grain", "_groups", "count", "exact_until", "period")

    def __init__(self, period: float, grain: float | None = None) -> None:
        """
        Args:
            grain: events within this number of seconds are one group. None: period / 600.
        """
        self.period = period
        self.count = 0
        """As of the last `advance` or `add`."""
        self.exact_until = inf
        """Before this time `count` is exact: `advance` would change nothing."""
        self._grain = period / _MAX_GROUPS if grain is None else grain
        self._groups: deque[Group] = deque()

    def advance(self, now: float) -> int:
        """Remove expired events. Return the current number of events."""
        groups, period = self._groups, self.period
        while groups and (not (first := groups[0])[2] or first[1] + period <= now):
            expired = groups.popleft()
            self.count -= int(expired[2])
            # A later `remove` of one of its events has no effect.
            expired[2] = 0
        self.exact_until = groups[0][1] + period if groups else inf
        return self.count

    def add(self, now: float, amount: int = 1) -> Group:
        """Count an event without a limit. Return its group, for `remove`."""
        self.count += amount
        groups = self._groups
        if groups:
            group = groups[-1]
            if now - group[0] < self._grain:
                if now > group[1]:
                    group[1] = now
                group[2] += amount
                return group
        else:
            self.exact_until = now + self.period
        group = [now, now, amount]
        groups.append(group)
        return group

    def count_if_below(self, now: float, limit: int) -> bool:
        """Count an event if there are fewer than `limit`. Return False otherwise."""
        if self.advance(now) >= limit:
            return False
        self.add(now)
        return True

    def remove(self, group: Group) -> None:
        """Remove one event of this group."""
        if group[2]:
            group[2] -= 1
            self.count -= 1

    def wait_seconds(self, now: float, limit: int) -> float:
        """Return the seconds until there are fewer than `limit` events. 0: now."""
        excess = self.advance(now) - limit + 1
        if excess <= 0:
            return 0.0
        for _, last, events in self._groups:
            excess -= int(events)
            if excess <= 0:
                return last + self.period - now
        return inf


class KeyedWindows(Generic[K]):
    """A sliding window for each key: `limit` events of one key within `period` seconds.

    It stores the `max_keys` keys with the most recent events.
    """

    def __init__(
        self,
        limit: int,
        period: float,
        clock: Callable[[], float],
        *,
        max_keys: int = MAX_KEYS,
    ) -> None:
        self._limit = limit
        self._period = period
        self._clock = clock
        self._windows: BoundedDict[K, SlidingWindow] = BoundedDict(max_keys)

    def __len__(self) -> int:
        """Return the number of stored keys."""
        return len(self._windows)

    def wait_seconds(self, key: K) -> float:
        """Return the seconds until the key may have another event. 0: now."""
        window = self._windows.get(key)
        if window is None:
            return 0.0
        now = self._clock()
        if not window.advance(now):
            del self._windows[key]
        return window.wait_seconds(now, self._limit)

    def add(self, key: K) -> None:
        """Count an event of this key without a limit."""
        window = self._windows.get(key) or SlidingWindow(self._period)
        window.advance(now := self._clock())
        window.add(now)
        self._windows[key] = window


class Sampler:
    """Passes `limit` events within `period` seconds, and counts the others.

    For logs and journals, so that a frequent event does not fill them. It starts again after the
    clock was set back, so that no events are lost until the old time.
    """

    __slots__ = ("_last_time", "_limit", "_window", "suppressed")

    def __init__(self, limit: int, period: float) -> None:
        self._limit = limit
        self._last_time = -inf
        self.suppressed = 0
        """Number of suppressed events since the last one that passed."""
        self._window = SlidingWindow(period)

    def sample(self, now: float) -> int | None:
        """Return the number of suppressed events since the last one that passed. None: this event
        is suppressed, too."""
        if now < self._last_time:
            self._window = SlidingWindow(self._window.period)
        self._last_time = now
        if not self._window.count_if_below(now, self._limit):
            self.suppressed += 1
            return None
        suppressed, self.suppressed = self.suppressed, 0
        return suppressed
