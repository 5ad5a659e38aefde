"""Backoff: doubled delays with a maximum, jitter and delays of a peer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from interlock.primitives.backoff import Backoff, exponential_delay

seconds = st.floats(0.001, 1000)


def test_delays_double_up_to_maximum() -> None:
    backoff = Backoff(1.0, 10.0)
    assert [backoff.next_delay() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    backoff.reset()
    assert backoff.next_delay() == 1


def test_peer_delay_overrides_shorter_delay() -> None:
    backoff = Backoff(1.0, 60.0)
    assert backoff.next_delay(5.0) == 5
    assert backoff.next_delay(5.0) == 10
    assert backoff.next_delay(30.0) == 30
    assert backoff.next_delay(1e9) == 60
    backoff.reset()
    assert backoff.next_delay(0.25) == 0.25
    assert backoff.next_delay() == 1


def test_limits_single_delay() -> None:
    backoff = Backoff(1.0, 30.0)
    assert backoff.next_delay(limit=0.5) == 0.5
    for _ in range(9):
        assert backoff.next_delay(limit=5.0) <= 5.0
    assert backoff.next_delay() == 10.0


def test_jitter_shortens_delay_up_to_half() -> None:
    assert Backoff(8.0, 10.0, jitter=lambda: 0.0).next_delay() == 4
    assert Backoff(8.0, 10.0, jitter=lambda: 0.5).next_delay() == 6
    assert Backoff(8.0, 10.0, jitter=lambda: 1.0).next_delay() == 8


def test_jitter_does_not_accumulate() -> None:
    backoff = Backoff(1.0, 100.0, jitter=lambda: 0.0)
    assert [backoff.next_delay() for _ in range(4)] == [0.5, 1, 2, 4]


@given(seconds, seconds, st.lists(st.one_of(st.none(), seconds), max_size=80), st.floats(0, 1))
def test_delays_stay_in_bounds_and_never_shrink(
    first: float, more: float, wishes: list[float | None], jitter: float
) -> None:
    most = first + more
    backoff = Backoff(first, most, jitter=lambda: jitter)
    before = 0.0
    for requested in wishes:
        delay = backoff.next_delay(requested)
        assert before <= backoff.delay <= most
        assert backoff.delay / 2 <= delay <= backoff.delay
        assert backoff.delay >= min(requested or 0.0, most)
        before = backoff.delay


@given(st.integers(0, 10_000), seconds, seconds)
def test_exponential_delay_equals_backoff(attempt: int, first: float, most: float) -> None:
    backoff = Backoff(first, most)
    for _ in range(min(attempt, 70)):
        backoff.next_delay()
    assert backoff.next_delay() == exponential_delay(attempt, first, most)
