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


class Paced:
    """A pace, and when what went."""

    def __init__(
        self, per_second: int = 100, max_waiting: int = 1000, clock: ManualClock | None = None
    ):
        self.clock = clock or ManualClock()
        self.began = self.clock()
        self.heard: list[tuple[float, int]] = []
        self.notices: list[tuple[float, int]] = []
        self.pace = NotificationLimiter(
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

    def say(self, times: int = 1, size: int = 0) -> None:
        for _ in range(times):
            self.pace.submit(self._noting(self._next), size)
            self._next += 1

    def _noting(self, number: int) -> Callable[[], None]:
        return lambda: self.heard.append((self.now, number))

    @property
    def numbers(self) -> list[int]:
        return [number for _, number in self.heard]


@pytest.mark.spec("AX-12-4", "AX-12-3", "AX-12-2")
def test_limits_burst() -> None:
    """1500 at once: 100 go, the 400 oldest of the rest are dropped, the newest 1000 go later."""
    one = Paced()
    one.say(1500)
    assert one.numbers == list(range(100))
    assert one.pace.waiting == 1000
    assert one.pace.dropped == 400
    one.clock.advance(0.99)
    assert len(one.heard) == 100
    one.clock.advance(0.02)
    assert len(one.heard) == 200
    one.clock.advance(10)
    assert one.numbers == [*range(100), *range(500, 1500)]
    assert one.heard[-1][0] == pytest.approx(10.0, abs=0.05)
    assert one.pace.dropped == 400
    assert not one.clock.timers


@pytest.mark.spec("AX-12-3")
def test_limits_rate_for_each_subserver() -> None:
    one, other = Paced(), Paced()
    for _ in range(300):
        one.say()
        one.clock.advance(1 / 301)
    assert len(one.heard) == 100
    # Another subserver has a pace of its own.
    other.say(100)
    assert len(other.heard) == 100
    assert one.pace.dropped == 0
    one.clock.advance(3)
    assert one.numbers == list(range(300))


@pytest.mark.spec("AX-12-6", "AX-12-11")
def test_reports_overflow_once_per_second() -> None:
    one = Paced(per_second=10, max_waiting=5)
    one.say(115)
    assert one.notices == []
    one.clock.advance(0.2)
    [(moment, dropped)] = one.notices
    assert moment == pytest.approx(0.1)
    assert dropped == 100
    # Five seconds of it: five notices or fewer, each with all that was dropped so far.
    storm = Paced(per_second=10, max_waiting=5)
    for _ in range(500):
        storm.say(3)
        storm.clock.advance(0.01)
    assert 1 < len(storm.notices) <= 5
    moments = [moment for moment, _ in storm.notices]
    assert all(later - earlier >= 1 for earlier, later in pairwise(moments))
    storm.clock.advance(2)
    assert storm.notices[-1][1] == storm.pace.dropped


@pytest.mark.spec("AX-12-2")
def test_new_notification_waits_behind_older_ones() -> None:
    """The rate allows it again, but the timer of the older ones has not fired yet."""
    one = Paced(per_second=1)
    one.say(2)
    one.clock.now += 2
    one.say()
    assert one.numbers == [0]
    one.clock.advance(3)
    assert one.numbers == [0, 1, 2]


def test_reports_one_overflow_once() -> None:
    one = Paced(per_second=1, max_waiting=1)
    one.say(10)
    one.clock.advance(60)
    assert [dropped for _, dropped in one.notices] == [8]


def test_queues_nothing_with_zero_limit() -> None:
    one = Paced(per_second=2, max_waiting=0)
    one.say(5)
    one.clock.advance(5)
    assert one.numbers == [0, 1]
    assert one.pace.dropped == 3


def test_limits_waiting_bytes() -> None:
    one = Paced(per_second=1, max_waiting=1000)
    one.say(1 + 4, size=MAX_WAITING_BYTES // 3)
    assert one.pace.waiting == 3
    assert one.pace.dropped == 1
    one.say(size=MAX_WAITING_BYTES + 1)
    assert one.pace.waiting == 0
    one.clock.advance(10)
    assert one.numbers == [0]


@pytest.mark.spec("AX-12-10")
def test_drops_progress_above_rate() -> None:
    one = Paced(per_second=3, max_waiting=5)
    assert [one.pace.allow_progress() for _ in range(5)] == [True] * 3 + [False] * 2
    assert one.pace.skipped_progress == 2
    assert one.pace.dropped == 0
    # There is one second for both, and who waits goes first.
    one.say(3)
    assert one.heard == []
    one.clock.advance(0.99)
    assert not one.pace.allow_progress()
    one.clock.advance(0.02)
    assert len(one.heard) == 3
    assert not one.pace.allow_progress()
    one.clock.advance(1)
    assert one.pace.allow_progress()


@pytest.mark.spec("AX-12-3")
@given(st.lists(st.tuples(st.integers(0, 400), st.booleans()), max_size=200))
def test_never_exceeds_rate_in_any_second(steps: list[tuple[int, bool]]) -> None:
    one = Paced(per_second=3, max_waiting=5)
    went: list[float] = []
    for wait, is_progress in steps:
        one.clock.advance(wait / 1000)
        if not is_progress:
            one.say()
        elif one.pace.allow_progress():
            assert not one.pace.waiting
            went.append(one.now)
    one.clock.advance(10)
    went = sorted(went + [at for at, _ in one.heard])
    assert all(later - sooner >= 1 for sooner, later in zip(went, went[3:], strict=False))


def test_failing_delivery_does_not_delay_others(caplog: pytest.LogCaptureFixture) -> None:
    one = Paced(per_second=1, max_waiting=5)

    def broken() -> None:
        raise RuntimeError("cannot")

    one.say()
    one.pace.submit(broken)
    one.say()
    one.clock.advance(5)
    assert one.numbers == [0, 1]
    assert "could not be delivered" in caplog.text


def test_nested_notification_keeps_order() -> None:
    one = Paced(per_second=1, max_waiting=5)
    one.say()
    one.pace.submit(lambda: one.say())
    one.say()
    one.clock.advance(5)
    assert one.numbers == [0, 1, 2]


def test_discard_drops_waiting_notifications() -> None:
    one = Paced(per_second=1, max_waiting=5)
    one.say(4)
    one.pace.discard_waiting()
    one.clock.advance(5)
    assert one.numbers == [0]
    assert one.pace.dropped == 3
    assert [dropped for _, dropped in one.notices] == [3]
    # It may come back.
    one.say(2)
    one.clock.advance(5)
    assert one.numbers == [0, 4, 5]
    one.say(9)
    one.pace.close()
    assert not one.clock.timers


def test_applies_new_rate_immediately() -> None:
    one = Paced(per_second=1, max_waiting=10)
    one.say(10)
    one.pace.configure(per_second=5, max_waiting=4)
    assert one.pace.dropped == 5
    one.clock.advance(1.5)
    assert one.numbers == [0, 6, 7, 8, 9]


MOVES = st.lists(
    st.tuples(st.floats(0, 3, allow_nan=False), st.integers(1, 40)), min_size=1, max_size=30
)


@pytest.mark.spec("AX-12-2", "AX-12-3", "AX-12-4")
@given(moves=MOVES, rate=st.integers(1, 20), max_waiting=st.integers(0, 30), stalls=st.booleans())
def test_keeps_order_and_counts_for_any_pattern(
    moves: list[tuple[float, int]], rate: int, max_waiting: int, stalls: bool
) -> None:
    """Order is kept, no second has more than its share, and what is not heard is counted."""
    one = Paced(rate, max_waiting)
    said = 0
    for pause, number in moves:
        (one.clock.stall if stalls else one.clock.advance)(pause)
        one.say(number)
        said += number
        assert one.pace.waiting <= max_waiting
        assert len(one.heard) + one.pace.waiting + one.pace.dropped == said
    one.clock.advance(100)
    assert one.pace.waiting == 0
    assert one.numbers == sorted(set(one.numbers))
    assert len(one.heard) + one.pace.dropped == said
    moments = [moment for moment, _ in one.heard]
    for first, last in zip(moments, moments[rate:], strict=False):
        assert last - first >= 1 - 1e-9
    # The newest are never the ones that are dropped.
    if max_waiting:
        assert one.numbers[-1] == said - 1
    told: Any = [dropped for _, dropped in one.notices]
    assert told == sorted(set(told))
    assert (told[-1] if told else 0) == one.pace.dropped
