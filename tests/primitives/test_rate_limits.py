"""Token bucket, sliding window, keyed windows and sampler, compared with models."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from interlock.primitives.rate_limits import KeyedWindows, Sampler, SlidingWindow, TokenBucket
from tests.support.clock import ManualClock

gaps = st.lists(st.floats(0, 30, allow_subnormal=False), max_size=200)


def moments(steps: list[float]) -> list[float]:
    now, result = 0.0, []
    for step in steps:
        now += step
        result.append(now)
    return result


# -- token bucket


@given(gaps, st.integers(1, 50), st.integers(1, 50))
def test_bucket_never_exceeds_rate_and_burst(steps: list[float], rate: int, burst: int) -> None:
    bucket = TokenBucket(rate, burst, 0.0)
    taken = [now for now in moments(steps) if bucket.take_token(now)]
    for first, since in enumerate(taken):
        for more, until in enumerate(taken[first:], 1):
            assert more <= burst + rate * (until - since) + 1e-6


@given(gaps)
def test_bucket_accepts_average_rate(steps: list[float]) -> None:
    """Whoever waits 1/rate before each event is never refused."""
    bucket = TokenBucket(2, 1, 0.0)
    now = 0.0
    for step in steps:
        now += max(step, 0.5) + 1e-9
        assert bucket.take_token(now)


def test_bucket_starts_full_and_refills() -> None:
    bucket = TokenBucket(10, 3, 0.0)
    assert [bucket.take_token(0.0) for _ in range(4)] == [True, True, True, False]
    assert not bucket.take_token(0.09)
    assert bucket.take_token(0.1)
    assert [bucket.take_token(100.0) for _ in range(4)] == [True, True, True, False]


def test_bucket_ignores_clock_set_back() -> None:
    bucket = TokenBucket(1, 1, 100.0)
    assert bucket.take_token(100.0)
    assert not bucket.take_token(50.0)
    assert not bucket.take_token(50.9)
    assert bucket.take_token(51.0)


# -- sliding window


@given(gaps, st.integers(1, 20))
def test_window_never_exceeds_limit(steps: list[float], limit: int) -> None:
    window = SlidingWindow(60.0)
    taken = [now for now in moments(steps) if window.count_if_below(now, limit)]
    for index, now in enumerate(taken):
        assert sum(now - 60.0 < at <= now for at in taken[: index + 1]) <= limit


@given(gaps)
def test_window_counts_event_for_period_and_grain(
    steps: list[float],
) -> None:
    window = SlidingWindow(60.0, 0.5)
    times: list[float] = []
    for now in moments(steps):
        window.advance(now)
        window.add(now)
        times.append(now)
        least = sum(at + 60.0 > now for at in times)
        most = sum(at + 60.5 > now for at in times)
        assert least <= window.count <= most


@given(gaps, st.integers(1, 20))
def test_window_accepts_event_after_wait(steps: list[float], limit: int) -> None:
    window = SlidingWindow(60.0)
    for now in moments(steps):
        wait = window.wait_seconds(now, limit)
        assert (wait == 0) == (window.count < limit)
        if wait:
            assert wait <= 60.0 + 1e-6
            assert window.advance(now + wait - 1e-3) >= limit
            assert window.advance(now + wait + 1e-9) < limit
            window = SlidingWindow(60.0)
        window.add(now)


@given(st.lists(st.tuples(st.floats(0, 20), st.booleans()), max_size=100))
def test_window_removes_returned_events(steps: list[tuple[float, bool]]) -> None:
    window, twin, now = SlidingWindow(60.0, 0.0), SlidingWindow(60.0, 0.0), 0.0
    for step, stays in steps:
        now += step
        window.advance(now)
        group = window.add(now)
        if stays:
            twin.add(now)
        else:
            window.remove(group)
        assert window.advance(now) == twin.advance(now)


@given(steps=st.lists(st.tuples(st.floats(0, 70), st.booleans()), max_size=60))
def test_window_counts_its_events(steps: list[tuple[float, bool]]) -> None:
    window, now = SlidingWindow(60.0, 0.1), 0.0
    inside: list[tuple[float, list[float]]] = []
    for pause, back in steps:
        now += pause
        if back and inside:
            window.remove(inside.pop()[1])
        else:
            inside.append((now, window.add(now)))
        sure = sum(when + 60.0 > now for when, _ in inside)
        perhaps = sum(when + 60.1 > now for when, _ in inside)
        assert sure <= window.advance(now) <= perhaps


def test_window_ignores_late_return() -> None:
    window = SlidingWindow(60.0)
    group = window.add(0.0)
    assert window.advance(60.0) == 0
    window.remove(group)
    assert window.count == 0


def test_window_reports_time_of_exact_count() -> None:
    window = SlidingWindow(60.0)
    assert window.exact_until == float("inf")
    window.add(1.0)
    assert window.exact_until == 61.0
    window.add(5.0)
    assert window.exact_until == 61.0
    assert window.advance(61.0) == 1
    assert window.exact_until == 65.0


def test_window_memory_is_bounded() -> None:
    window = SlidingWindow(1.0)
    for number in range(100_000):
        now = number / 10_000
        window.advance(now)
        window.add(now)
    assert len(window._groups) <= 700
    assert 10_000 <= window.count <= 10_100


def test_window_ignores_clock_set_back() -> None:
    window = SlidingWindow(60.0)
    assert window.count_if_below(100.0, 1)
    assert not window.count_if_below(10.0, 1)
    assert window.wait_seconds(10.0, 1) == 150.0


def test_window_with_zero_limit_accepts_nothing() -> None:
    window = SlidingWindow(60.0)
    assert not window.count_if_below(0.0, 0)
    assert window.wait_seconds(0.0, 0) == float("inf")


# -- keyed windows


def test_keyed_windows_count_each_key() -> None:
    clock = ManualClock(0.0)
    windows: KeyedWindows[str] = KeyedWindows(2, 60.0, clock)
    for _ in range(2):
        assert windows.wait_seconds("a") == 0
        windows.add("a")
    clock.now = 10.0
    assert windows.wait_seconds("a") == 50.0
    assert windows.wait_seconds("b") == 0
    clock.now = 60.0
    assert windows.wait_seconds("a") == 0
    assert len(windows) == 0


def test_keyed_windows_limit_keys() -> None:
    windows: KeyedWindows[int] = KeyedWindows(1, 60.0, ManualClock(0.0), max_keys=100)
    for key in range(1000):
        windows.add(key)
    assert len(windows) == 100
    assert windows.wait_seconds(0) == 0
    assert windows.wait_seconds(999) == 60.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 30)), max_size=60))
def test_keyed_windows_never_exceed_limit(tries: list[tuple[str, float]]) -> None:
    clock = ManualClock(0.0)
    windows: KeyedWindows[str] = KeyedWindows(5, 60.0, clock)
    passed: dict[str, list[float]] = {}
    for key, pause in tries:
        clock.now += pause
        wait = windows.wait_seconds(key)
        assert 0.0 <= wait <= 60.0 + 1e-6
        if wait == 0.0:
            windows.add(key)
            passed.setdefault(key, []).append(clock.now)
    for times in passed.values():
        for first, sixth in zip(times, times[5:], strict=False):
            assert sixth - first >= 60.0 - 1e-6


# -- sampler


@given(gaps, st.integers(1, 5))
def test_sampler_counts_every_event_once(steps: list[float], limit: int) -> None:
    sampler = Sampler(limit, 10.0)
    results = [sampler.sample(now) for now in moments(steps)]
    passed = [result for result in results if result is not None]
    assert len(passed) + sum(passed) + _trailing(results) == len(results)


def _trailing(results: list[int | None]) -> int:
    """Return how many suppressed events at the end are not reported yet."""
    count = 0
    for result in reversed(results):
        if result is not None:
            break
        count += 1
    return count


def test_sampler_reports_suppressed_events() -> None:
    sampler = Sampler(2, 1.0)
    assert [sampler.sample(0.0) for _ in range(5)] == [0, 0, None, None, None]
    assert sampler.sample(1.0) == 3
    assert sampler.sample(1.0) == 0


def test_sampler_restarts_after_clock_set_back() -> None:
    sampler = Sampler(1, 1.0)
    assert sampler.sample(1000.0) == 0
    assert sampler.sample(1000.5) is None
    assert sampler.sample(10.0) == 1
    assert sampler.sample(10.5) is None
