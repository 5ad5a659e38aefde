"""How often something may go wrong: whoever guesses is made to wait."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

_MOST_KNOWN: Final = 10_000


class Pace:
    """Counts failures by key within a sliding window."""

    def __init__(self, most: int, window: float, clock: Callable[[], float]) -> None:
        self._most = most
        self._window = window
        self._clock = clock
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, key: str) -> float:
        """How many seconds from now it may be tried again; 0 means now."""
        times = self._failed.get(key)
        if times is None:
            return 0.0
        now = self._clock()
        while times and times[0] <= now - self._window:
            times.popleft()
        if not times:
            del self._failed[key]
        return times[0] + self._window - now if len(times) >= self._most else 0.0

    def failed(self, key: str) -> None:
        """It went wrong once more."""
        times = self._failed.setdefault(key, deque(maxlen=self._most))
        times.append(self._clock())
        self._failed.move_to_end(key)
        if len(self._failed) > _MOST_KNOWN:
            self._failed.popitem(last=False)
