"""Tests of usage counters: calendar periods, sliding windows and shared files."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.aql.usage_counters import (
    CounterRow,
    CounterStore,
    Period,
    SlidingCounter,
    current_period,
)
from interlock.errors import InterlockError

NOON = datetime(2026, 2, 4, 12, 30, 6, tzinfo=UTC).timestamp()


async def add_from_two_stores(path: Path) -> list[CounterRow]:
    loop = asyncio.get_running_loop()
    store = CounterStore(path, deliver=loop.call_soon_threadsafe)
    other = CounterStore(path, deliver=loop.call_soon_threadsafe)
    for number in range(500):
        store.add(CounterRow("a", number % 3, 1, 50.0))
        other.add(CounterRow("a", 0, 1, 100.0))
        if number % 50 == 0:
            await asyncio.sleep(0)
    store.close()
    other.close()
    await asyncio.sleep(0)
    again = CounterStore(path, deliver=loop.call_soon_threadsafe)
    assert again.reason == ""
    try:
        return again.load(60.0)
    finally:
        again.close()


def test_two_nodes_share_counters(tmp_path: Path) -> None:
    rows = asyncio.run(add_from_two_stores(tmp_path / "counters.db"))
    # What nobody asks for any more is gone.
    assert rows == [CounterRow("a", 0, 667, 100.0)]


def test_keeps_foreign_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "counters.db"
    path.write_bytes(b"not a database at all, but long enough to look like one" * 10)
    before = path.read_bytes()
    store = CounterStore(path, deliver=lambda run: run())
    with pytest.raises(InterlockError):
        store.load(0.0)
    store.close()
    assert path.read_bytes() == before


@given(
    st.lists(st.tuples(st.floats(0, 30), st.booleans()), max_size=60),
    st.integers(1, 5),
    st.sampled_from([1.0, 60.0]),
)
def test_sliding_window_never_exceeds_limit(
    steps: list[tuple[float, bool]], limit: int, length: float
) -> None:
    window = SlidingCounter("k", length, None)
    now, made = NOON, []
    for ahead, back in steps:
        now += ahead * length / 20
        if window.count_at(now) < limit:
            mark = window.add(now)
            if back:
                window.refund(mark)
            else:
                made.append(now)
        else:
            wait = window.wait_seconds(now, limit)
            assert 0 < wait <= length * 1.1
        assert sum(1 for one in made if one > now - length) <= limit
    assert window.count_at(now + 2 * length) == 0


def test_keeps_counts_after_clock_goes_back() -> None:
    window = SlidingCounter("k", 60.0, None)
    window.add(NOON)
    window.add(NOON - 3600)
    assert window.count_at(NOON - 3600) == 2
    assert window.count_at(NOON + 62) == 0


@pytest.mark.parametrize(
    ("per", "start", "end"),
    [
        ("minute", "2026-02-04T12:30:00", "2026-02-04T12:31:00"),
        ("hour", "2026-02-04T12:00:00", "2026-02-04T13:00:00"),
        ("day", "2026-02-04T00:00:00", "2026-02-05T00:00:00"),
        ("month", "2026-02-01T00:00:00", "2026-03-01T00:00:00"),
    ],
)
def test_periods_follow_calendar(per: str, start: str, end: str) -> None:
    wanted = [int(datetime.fromisoformat(one + "+00:00").timestamp()) for one in (start, end)]
    assert current_period(per, NOON) == Period(*wanted)
    december = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
    assert current_period("month", december).end == datetime(2027, 1, 1, tzinfo=UTC).timestamp()
