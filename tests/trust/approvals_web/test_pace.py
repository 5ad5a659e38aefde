"""Whoever guesses is made to wait, and nobody else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from interlock.trust.approvals.web import Pace


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_after_so_many_failures_one_waits_for_the_first_to_be_past() -> None:
    clock = Clock()
    pace = Pace(3, 60.0, clock)
    for _ in range(3):
        assert pace.wait("a") == 0.0
        pace.failed("a")
        clock.now += 10
    assert pace.wait("a") == 30.0
    assert pace.wait("b") == 0.0
    clock.now += 30
    assert pace.wait("a") == 0.0
    pace.failed("a")
    assert pace.wait("a") == 10.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 30)), max_size=60))
def test_never_more_than_so_many_in_any_window(tries: list[tuple[str, float]]) -> None:
    clock = Clock()
    pace = Pace(5, 60.0, clock)
    failed: dict[str, list[float]] = {}
    for key, pause in tries:
        clock.now += pause
        wait = pace.wait(key)
        assert 0.0 <= wait <= 60.0
        if wait == 0.0:
            pace.failed(key)
            failed.setdefault(key, []).append(clock.now)
    for times in failed.values():
        for first, sixth in zip(times, times[5:], strict=False):
            assert sixth - first >= 60.0
