"""A rate limit for the notifications of one subserver. Notifications above the rate wait in order.

If too many wait, the oldest are dropped, counted and reported. Clocks and timers are parameters;
this module has no other side effects.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from interlock.core.ports import Clock
from interlock.primitives.rate_limits import SlidingWindow

_SECOND: Final = 1.0
_NOTICE_DELAY_SECONDS: Final = 0.1
"""Drops come in bursts: those within this time are reported together."""
_MIN_TIMER_SECONDS: Final = 0.001
"""Timers may fire slightly early. This delay prevents a busy loop."""
MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
"""The limit of the waiting notifications in bytes, whatever their number."""

_log = logging.getLogger("interlock.upstreams")


class NotificationLimiter:
    """The rate limit of one subserver, over all of its connections."""

    def __init__(
        self,
        *,
        per_second: int,
        max_waiting: int,
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], Any],
        on_overflow: Callable[[int], None] | None = None,
    ) -> None:
        """
        Args:
            per_second: the notifications that are delivered within one second.
            max_waiting: the notifications that may wait.
            on_overflow: called with the total of dropped ones, at most once per second.
        """
        self.dropped = 0
        """The number of notifications that were dropped."""
        self.skipped_progress = 0
        """The number of progress notifications that were skipped: later ones replace them."""
        self._per_second = per_second
        self._max_waiting = max_waiting
        self._clock = clock
        self._call_later = call_later
        self.on_overflow = on_overflow
        self._delivered = SlidingWindow(_SECOND)
        """Delivered notifications, progress included."""
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._size = 0
        self._timer: Any = None
        self._notice_timer: Any = None
        self._last_notice_at = -_SECOND

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def configure(self, *, per_second: int, max_waiting: int) -> None:
        self._per_second = per_second
        self._max_waiting = max_waiting
        while len(self._waiting) > max_waiting:
            self._drop_oldest()

    def submit(self, deliver: Callable[[], None], size: int = 0) -> None:
        """Deliver a notification of `size` bytes now or in its turn, or drop it."""
        now = self._clock()
        if not self._waiting and self._is_below_limit(now):
            self._delivered.add(now)
            deliver()
            return
        self._waiting.append((deliver, size))
        self._size += size
        while len(self._waiting) > self._max_waiting or self._size > MAX_WAITING_BYTES:
            self._drop_oldest()
        self._schedule(now)

    def allow_progress(self) -> bool:
        """Return whether progress may be sent now.

        Progress never waits, because it would arrive after the result. It uses the part of the rate
        that other notifications leave.
        """
        now = self._clock()
        if not self._waiting and self._is_below_limit(now):
            self._delivered.add(now)
            return True
        self.skipped_progress += 1
        return False

    def count_dropped(self) -> None:
        """Count a dropped notification."""
        self.dropped += 1
        if self._notice_timer is None and self.on_overflow is not None:
            delay = max(_NOTICE_DELAY_SECONDS, self._last_notice_at + _SECOND - self._clock())
            self._notice_timer = self._call_later(delay, self._report_overflow)

    def discard_waiting(self) -> None:
        """Discard waiting notifications because the subserver is gone."""
        while self._waiting:
            self._drop_oldest()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Discard waiting notifications and stop reporting."""
        self.on_overflow = None
        self.discard_waiting()
        if self._notice_timer is not None:
            self._notice_timer.cancel()
            self._notice_timer = None

    def _is_below_limit(self, now: float) -> bool:
        return self._delivered.advance(now) < self._per_second

    def _drop_oldest(self) -> None:
        _, size = self._waiting.popleft()
        self._size -= size
        self.count_dropped()

    def _schedule(self, now: float) -> None:
        if self._timer is None and self._waiting:
            delay = self._delivered.wait_seconds(now, self._per_second)
            self._timer = self._call_later(max(delay, _MIN_TIMER_SECONDS), self._deliver_waiting)

    def _deliver_waiting(self) -> None:
        self._timer = None
        now = self._clock()
        while self._waiting and self._is_below_limit(now):
            deliver, size = self._waiting.popleft()
            self._size -= size
            self._delivered.add(now)
            try:
                deliver()
            except Exception:
                # The others must still be delivered.
                _log.exception("notifications: cannot deliver a notification")
        self._schedule(now)

    def _report_overflow(self) -> None:
        self._notice_timer = None
        self._last_notice_at = self._clock()
        if self.on_overflow is not None:
            self.on_overflow(self.dropped)
