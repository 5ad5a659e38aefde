"""Times, counts and durations as text."""

from __future__ import annotations

from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from interlock.primitives.durations import describe_duration
from interlock.primitives.text import format_count, plural
from interlock.primitives.timestamps import format_local, format_utc, format_utc_ms


def test_formats_utc_times() -> None:
    assert format_utc_ms(0) == "1970-01-01T00:00:00.000Z"
    assert format_utc_ms(1_767_225_600.25) == "2026-01-01T00:00:00.250Z"
    assert format_utc(1_767_225_600.25) == "2026-01-01T00:00:00Z"


@given(st.integers(0, 2**33))
def test_utc_times_survive_round_trip(seconds: int) -> None:
    assert datetime.fromisoformat(format_utc_ms(seconds)).timestamp() == seconds
    assert datetime.fromisoformat(format_utc(seconds)).timestamp() == seconds


@given(st.integers(0, 2**33))
def test_local_times_survive_round_trip(seconds: int) -> None:
    whole = datetime.fromisoformat(format_local(seconds, "seconds"))
    assert whole == datetime.fromtimestamp(seconds)
    assert format_local(seconds) == whole.strftime("%Y-%m-%d %H:%M")


def test_formats_counts() -> None:
    assert format_count(0, "tool") == "0 tools"
    assert format_count(1, "tool") == "1 tool"
    assert format_count(2, "entry", "entries") == "2 entries"
    assert plural("is", 2, "are") == "are"


def test_describes_durations() -> None:
    assert describe_duration(-1) == "0 s"
    assert describe_duration(59.9) == "59 s"
    assert describe_duration(252) == "4 min 12 s"
