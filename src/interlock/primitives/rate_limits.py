"""Rate limits: a token bucket, a sliding window, and two small users of the window.

The time is given, in seconds of any clock. All of them need bounded memory, however many events
they count.

`TokenBucket` allows a rate on average and bursts up to a limit. `SlidingWindow` allows so many in
every stretch of time of one length. A clock that was set back gives nobody more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from math import inf
from typing import Final, Generic, TypeVar

from interlock.primitives.bounded_dict import BoundedDict

K = TypeVar("K", bound=Hashable)

_GROUPS: Final = 600
"""A window has about so many groups at most, however many events it counts."""
MAX_KEYS: Final = 10_000

Group = list[float]
"""When its first and its last event were, and how many events it has."""


class TokenBucket:
    """Tokens that come at `rate` a second, up to `burst` of them. Starts full."""

    __slots__ = ("_updated_at", "burst", "rate", "tokens")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self.tokens = burst
        self._updated_at = now

    def take(self, now: float) -> bool:
        """Take a token. False: there is none."""
        left = self.tokens
        if now > self._updated_at:
            left += (now - self._updated_at) * self.rate
        if left > self.burst:
            left = self.burst
        self._updated_at = now
        if left < 1:
            self.tokens = left
            return False
        self.tokens = left - 1
        return True


class SlidingWindow:
    """Counts the events of the last `period` seconds.

    Events that are close to each other are counted as one group, which counts for as long as its
    last event does. So an event may count a little longer than `period`, by `grain` at most.
    """

    __slots__ = ("_grain", "_groups", "count", "exact_until", "period")

    def __init__(self, period: float, grain: float | None = None) -> None:
        """
        Args:
            grain: events within so many seconds are one group. None: a 600th of the period.
        """
        self.period = period
        self.count = 0
        """As of the last `advance` or `add`."""
        self.exact_until = inf
        """Before this moment `count` is exact: `advance` would change nothing."""
        self._grain = period / _GROUPS if grain is None else grain
        self._groups: deque[Group] = deque()

    def advance(self, now: float) -> int:
        """Forget what is too old. Returns how many events count now."""
        groups, period = self._groups, self.period
        while groups and (not (first := groups[0])[2] or first[1] + period <= now):
            gone = groups.popleft()
            self.count -= int(gone[2])
            # What is given back of it later does not count any more.
            gone[2] = 0
        self.exact_until = groups[0][1] + period if groups else inf
        return self.count

    def add(self, now: float, amount: int = 1) -> Group:
        """Count an event, whatever the limit. Returns the group, for `give_back`."""
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

    def take(self, now: float, limit: int) -> bool:
        """Count an event if fewer than `limit` count now. False: it would be one too many."""
        if self.advance(now) >= limit:
            return False
        self.add(now)
        return True

    def remove(self, group: Group) -> None:
        """Uncount one event of this group: it did not happen."""
        if group[2]:
            group[2] -= 1
            self.count -= 1

    def wait_seconds(self, now: float, limit: int) -> float:
        """How many seconds until fewer than `limit` events count. 0: that is so now."""
        over = self.advance(now) - limit + 1
        if over <= 0:
            return 0.0
        for _, last, events in self._groups:
            over -= int(events)
            if over <= 0:
                return last + self.period - now
        return inf


class KeyedWindows(Generic[K]):
    """A sliding window for each key: `limit` events of one key within `period` seconds.

    Of the keys, the `most_keys` are remembered that had an event most recently.
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
        """Of how many keys something is remembered."""
        return len(self._windows)

    def wait_seconds(self, key: K) -> float:
        """How many seconds until the key may have another event. 0: now."""
        window = self._windows.get(key)
        if window is None:
            return 0.0
        now = self._clock()
        if not window.advance(now):
            del self._windows[key]
        return window.wait_seconds(now, self._limit)

    def add(self, key: K) -> None:
        """Count an event of this key, whatever the limit."""
        window = self._windows.get(key) or SlidingWindow(self._period)
        window.advance(now := self._clock())
        window.add(now)
        self._windows[key] = window


class Sampler:
    """Lets `limit` events through within `period` seconds, and counts the others.

    For logs and journals: one who does the same thing very often must not fill them. After a clock
    was set back it begins anew, because a journal must not be silent until then.
    """

    __slots__ = ("_last_time", "_limit", "_window", "suppressed")

    def __init__(self, limit: int, period: float) -> None:
        self._limit = limit
        self._last_time = -inf
        self.suppressed = 0
        """How many were suppressed since the last one that passed."""
        self._window = SlidingWindow(period)

    def sample(self, now: float) -> int | None:
        """Returns how many events were suppressed since the last one that passed. None: this event
        is suppressed, too."""
        if now < self._last_time:
            self._window = SlidingWindow(self._window.period)
        self._last_time = now
        if not self._window.take(now, self._limit):
            self.suppressed += 1
            return None
        suppressed, self.suppressed = self.suppressed, 0
        return suppressed
