"""How fast one subserver may speak: so many notifications in any second, the rest wait in a row.

A subserver that says more than can wait loses the oldest of it, and that is counted and told. What
it says stays in its order. Time and timers are given; nothing else is touched here.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from interlock.core.ports import Clock
from interlock.primitives.rate_limits import SlidingWindow

_SECOND: Final = 1.0
_SOON: Final = 0.1
"""A burst hardly ever comes in one piece: it is told of as one."""
_AT_LEAST: Final = 0.001
"""Timers may be a hair early; nobody spins until they are not."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""However few they are, no more than this of them waits."""

_log = logging.getLogger("interlock.upstreams")


class NotificationLimiter:
    """The pace of one subserver, over all its connections."""

    def __init__(
        self,
        *,
        per_second: int,
        kept: int,
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], Any],
        on_overflow: Callable[[int], None] | None = None,
    ) -> None:
        """`on_overflow` is told how many were dropped so far, at most once in a second."""
        self.dropped = 0
        """How many notifications nobody will ever hear."""
        self.thinned = 0
        """How much progress was left out: what comes after it says more."""
        self._per_second = per_second
        self._kept = kept
        self._clock = clock
        self._call_later = call_later
        self.on_overflow = on_overflow
        self._passed = SlidingWindow(_SECOND)
        """Those that went, progress among them."""
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._size = 0
        self._timer: Any = None
        self._notice: Any = None
        self._told_at = -_SECOND

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def configure(self, *, per_second: int, kept: int) -> None:
        self._per_second = per_second
        self._kept = kept
        while len(self._waiting) > kept:
            self._drop_oldest()

    def give(self, deliver: Callable[[], None], size: int = 0) -> None:
        """Deliver a notification of `size` bytes: now, or when it is its turn, or never."""
        now = self._clock()
        if not self._waiting and self._has_room(now):
            self._passed.add(now)
            deliver()
            return
        self._waiting.append((deliver, size))
        self._size += size
        while len(self._waiting) > self._kept or self._size > MOST_BYTES:
            self._drop_oldest()
        self._wake_later(now)

    def lets_progress_by(self) -> bool:
        """Whether progress may be told now. It never waits: it would come after the result. It has
        what the others leave."""
        now = self._clock()
        if not self._waiting and self._has_room(now):
            self._passed.add(now)
            return True
        self.thinned += 1
        return False

    def lost(self) -> None:
        """Another one that nobody will ever hear."""
        self.dropped += 1
        if self._notice is None and self.on_overflow is not None:
            wait = max(_SOON, self._told_at + _SECOND - self._clock())
            self._notice = self._call_later(wait, self._tell)

    def silence(self) -> None:
        """The subserver is gone: what waits is not delivered any more."""
        while self._waiting:
            self._drop_oldest()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Nobody is told anything any more."""
        self.on_overflow = None
        self.silence()
        if self._notice is not None:
            self._notice.cancel()
            self._notice = None

    def _has_room(self, now: float) -> bool:
        return self._passed.advance(now) < self._per_second

    def _drop_oldest(self) -> None:
        _, size = self._waiting.popleft()
        self._size -= size
        self.lost()

    def _wake_later(self, now: float) -> None:
        if self._timer is None and self._waiting:
            wait = self._passed.wait_seconds(now, self._per_second)
            self._timer = self._call_later(max(wait, _AT_LEAST), self._wake)

    def _wake(self) -> None:
        self._timer = None
        now = self._clock()
        while self._waiting and self._has_room(now):
            deliver, size = self._waiting.popleft()
            self._size -= size
            self._passed.add(now)
            try:
                deliver()
            except Exception:
                # The others still have their turn.
                _log.exception("a notification could not be passed on")
        self._wake_later(now)

    def _tell(self) -> None:
        self._notice = None
        self._told_at = self._clock()
        if self.on_overflow is not None:
            self.on_overflow(self.dropped)
