"""Rate limits for notifications of a subserver: order, bursts, and the count of dropped ones."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.upstreams.notification_limits import MAX_WAITING_BYTES, NotificationLimiter
from tests.support.clock import ManualClock


class LimiterHarness:
    """A limiter, and the times of delivered notifications."""

    def __init__(
        self, per_second: int = 100, max_waiting: int = 1000, clock: ManualClock | None = None
    ):
        self.clock = clock or ManualClock()
        self.began = self.clock()
        self.delivered: list[tuple[float, int]] = []
        self.notices: list[tuple[float, int]] = []
        self.limiter = NotificationLimiter(
            per_second=per_second,
            max_waiting=max_waiting,
            clock=self.clock,
            call_later=self.clock.call_later,
            on_overflow=lambda dropped: self.notices.append((self.now, dropped)),
        )
        self._next = 0

    @property
    def now(self) -> float:
        return self.clock() - self.began

    def submit(self, times: int = 1, size: int = 0) -> None:
        for _ in range(times):
            self.limiter.submit(self._record(self._next), size)
            self._next += 1

    def _record(self, number: int) -> Callable[[], None]:
        return lambda: self.delivered.append((self.now, number))

    @property
    def numbers(self) -> list[int]:
        return [number for _, number in self.delivered]


@pytest.mark.spec("AX-12-4", "AX-12-3", "AX-12-2")
def test_limits_burst() -> None:
    """1500 at once: 100 go, the 400 oldest of the rest are dropped, the newest 1000 go later."""
    limiter = LimiterHarness()
    limiter.submit(1500)
    assert limiter.numbers == list(range(100))
    assert limiter.limiter.waiting == 1000
    assert limiter.limiter.dropped == 400
    limiter.clock.advance(0.99)
    assert len(limiter.delivered) == 100
    limiter.clock.advance(0.02)
    assert len(limiter.delivered) == 200
    limiter.clock.advance(10)
    assert limiter.numbers == [*range(100), *range(500, 1500)]
    assert limiter.delivered[-1][0] == pytest.approx(10.0, abs=0.05)
    assert limiter.limiter.dropped == 400
    assert not limiter.clock.timers


@pytest.mark.spec("AX-12-3")
def test_limits_rate_for_each_subserver() -> None:
    limiter, other = LimiterHarness(), LimiterHarness()
    for _ in range(300):
        limiter.submit()
        limiter.clock.advance(1 / 301)
    assert len(limiter.delivered) == 100
    # Another subserver has a pace of its own.
    other.submit(100)
    assert len(other.delivered) == 100
    assert limiter.limiter.dropped == 0
    limiter.clock.advance(3)
    assert limiter.numbers == list(range(300))


@pytest.mark.spec("AX-12-6", "AX-12-11")
def test_reports_overflow_once_per_second() -> None:
    limiter = LimiterHarness(per_second=10, max_waiting=5)
    limiter.submit(115)
    assert limiter.notices == []
    limiter.clock.advance(0.2)
    [(moment, dropped)] = limiter.notices
    assert moment == pytest.approx(0.1)
    assert dropped == 100
    # Five seconds of it: five notices or fewer, each with all that was dropped so far.
    storm = LimiterHarness(per_second=10, max_waiting=5)
    for _ in range(500):
        storm.submit(3)
        storm.clock.advance(0.01)
    assert 1 < len(storm.notices) <= 5
    moments = [moment for moment, _ in storm.notices]
    assert all(later - earlier >= 1 for earlier, later in pairwise(moments))
    storm.clock.advance(2)
    assert storm.notices[-1][1] == storm.limiter.dropped


@pytest.mark.spec("AX-12-2")
def test_new_notification_waits_behind_older_ones() -> None:
    """The rate allows it again, but the timer of the older ones has not fired yet."""
    limiter = LimiterHarness(per_second=1)
    limiter.submit(2)
    limiter.clock.now += 2
    limiter.submit()
    assert limiter.numbers == [0]
    limiter.clock.advance(3)
    assert limiter.numbers == [0, 1, 2]


def test_reports_one_overflow_once() -> None:
    limiter = LimiterHarness(per_second=1, max_waiting=1)
    limiter.submit(10)
    limiter.clock.advance(60)
    assert [dropped for _, dropped in limiter.notices] == [8]


def test_queues_nothing_with_zero_limit() -> None:
    limiter = LimiterHarness(per_second=2, max_waiting=0)
    limiter.submit(5)
    limiter.clock.advance(5)
    assert limiter.numbers == [0, 1]
    assert limiter.limiter.dropped == 3


def test_limits_waiting_bytes() -> None:
    limiter = LimiterHarness(per_second=1, max_waiting=1000)
    limiter.submit(1 + 4, size=MAX_WAITING_BYTES // 3)
    assert limiter.limiter.waiting == 3
    assert limiter.limiter.dropped == 1
    limiter.submit(size=MAX_WAITING_BYTES + 1)
    assert limiter.limiter.waiting == 0
    limiter.clock.advance(10)
    assert limiter.numbers == [0]


@pytest.mark.spec("AX-12-10")
def test_drops_progress_above_rate() -> None:
    limiter = LimiterHarness(per_second=3, max_waiting=5)
    assert [limiter.limiter.allow_progress() for _ in range(5)] == [True] * 3 + [False] * 2
    assert limiter.limiter.skipped_progress == 2
    assert limiter.limiter.dropped == 0
    # There is one second for both, and who waits goes first.
    limiter.submit(3)
    assert limiter.delivered == []
    limiter.clock.advance(0.99)
    assert not limiter.limiter.allow_progress()
    limiter.clock.advance(0.02)
    assert len(limiter.delivered) == 3
    assert not limiter.limiter.allow_progress()
    limiter.clock.advance(1)
    assert limiter.limiter.allow_progress()


@pytest.mark.spec("AX-12-3")
@given(st.lists(st.tuples(st.integers(0, 400), st.booleans()), max_size=200))
def test_never_exceeds_rate_in_any_second(steps: list[tuple[int, bool]]) -> None:
    limiter = LimiterHarness(per_second=3, max_waiting=5)
    went: list[float] = []
    for wait, is_progress in steps:
        limiter.clock.advance(wait / 1000)
        if not is_progress:
            limiter.submit()
        elif limiter.limiter.allow_progress():
            assert not limiter.limiter.waiting
            went.append(limiter.now)
    limiter.clock.advance(10)
    went = sorted(went + [at for at, _ in limiter.delivered])
    assert all(later - sooner >= 1 for sooner, later in zip(went, went[3:], strict=False))


def test_failing_delivery_does_not_delay_others(caplog: pytest.LogCaptureFixture) -> None:
    limiter = LimiterHarness(per_second=1, max_waiting=5)

    def broken() -> None:
        raise RuntimeError("cannot")

    limiter.submit()
    limiter.limiter.submit(broken)
    limiter.submit()
    limiter.clock.advance(5)
    assert limiter.numbers == [0, 1]
    assert "cannot deliver a notification" in caplog.text


def test_nested_notification_keeps_order() -> None:
    limiter = LimiterHarness(per_second=1, max_waiting=5)
    limiter.submit()
    limiter.limiter.submit(lambda: limiter.submit())
    limiter.submit()
    limiter.clock.advance(5)
    assert limiter.numbers == [0, 1, 2]


def test_discard_drops_waiting_notifications() -> None:
    limiter = LimiterHarness(per_second=1, max_waiting=5)
    limiter.submit(4)
    limiter.limiter.discard_waiting()
    limiter.clock.advance(5)
    assert limiter.numbers == [0]
    assert limiter.limiter.dropped == 3
    assert [dropped for _, dropped in limiter.notices] == [3]
    # It may come back.
    limiter.submit(2)
    limiter.clock.advance(5)
    assert limiter.numbers == [0, 4, 5]
    limiter.submit(9)
    limiter.limiter.close()
    assert not limiter.clock.timers


def test_applies_new_rate_immediately() -> None:
    limiter = LimiterHarness(per_second=1, max_waiting=10)
    limiter.submit(10)
    limiter.limiter.configure(per_second=5, max_waiting=4)
    assert limiter.limiter.dropped == 5
    limiter.clock.advance(1.5)
    assert limiter.numbers == [0, 6, 7, 8, 9]


MOVES = st.lists(
    st.tuples(st.floats(0, 3, allow_nan=False), st.integers(1, 40)), min_size=1, max_size=30
)


@pytest.mark.spec("AX-12-2", "AX-12-3", "AX-12-4")
@given(moves=MOVES, rate=st.integers(1, 20), max_waiting=st.integers(0, 30), stalls=st.booleans())
def test_keeps_order_and_counts_for_any_pattern(
    moves: list[tuple[float, int]], rate: int, max_waiting: int, stalls: bool
) -> None:
    """Order is kept, no second has more than its share, and what is not heard is counted."""
    limiter = LimiterHarness(rate, max_waiting)
    submitted = 0
    for pause, number in moves:
        (limiter.clock.stall if stalls else limiter.clock.advance)(pause)
        limiter.submit(number)
        submitted += number
        assert limiter.limiter.waiting <= max_waiting
        assert (
            len(limiter.delivered) + limiter.limiter.waiting + limiter.limiter.dropped == submitted
        )
    limiter.clock.advance(100)
    assert limiter.limiter.waiting == 0
    assert limiter.numbers == sorted(set(limiter.numbers))
    assert len(limiter.delivered) + limiter.limiter.dropped == submitted
    moments = [moment for moment, _ in limiter.delivered]
    for first, last in zip(moments, moments[rate:], strict=False):
        assert last - first >= 1 - 1e-9
    # The newest are never the ones that are dropped.
    if max_waiting:
        assert limiter.numbers[-1] == submitted - 1
    received: Any = [dropped for _, dropped in limiter.notices]
    assert received == sorted(set(received))
    assert (received[-1] if received else 0) == limiter.limiter.dropped
