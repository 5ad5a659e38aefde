"""Parsing and formatting of durations."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.primitives.durations import (
    DURATION_PATTERN,
    ISO_DURATION_PATTERN,
    POSITIVE_DURATION_PATTERN,
    SECONDS,
    format_duration,
    parse_duration,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("30s", 30),
        ("5m", 300),
        ("1.5h", 5400),
        ("2 d", 172_800),
        ("7d", 604_800),
        ("1w", 604_800),
        ("1y", 31_536_000),
    ],
)
def test_parses_short_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == parse_duration(text, allow_iso=True) == seconds
    for pattern in (DURATION_PATTERN, POSITIVE_DURATION_PATTERN, ISO_DURATION_PATTERN):
        assert re.search(pattern, text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT1H", 3600),
        ("PT5M", 300),
        ("PT24H", 86_400),
        ("P1D", 86_400),
        ("P1W", 604_800),
        ("P1DT2H3M4.5S", 93_784.5),
        ("PT0.5S", 0.5),
    ],
)
def test_parses_iso_durations(text: str, seconds: float) -> None:
    assert parse_duration(text, allow_iso=True) == seconds
    assert re.search(ISO_DURATION_PATTERN, text)
    assert not re.search(DURATION_PATTERN, text)
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "P",
        "PT",
        "P1Y",
        "P1M",
        "P1DT",
        "PT1",
        "5",
        "5 minutes",
        "-5s",
        "x",
        "1h30m",
        "٣s",
        "5s\n",
    ],
)
def test_rejects_invalid_duration(text: str) -> None:
    assert not re.fullmatch(ISO_DURATION_PATTERN[1:-1], text)
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text, allow_iso=True)


def test_checks_zero_and_bounds() -> None:
    assert parse_duration("0s", allow_zero=True) == parse_duration(0, allow_zero=True) == 0
    for value in ("0s", "0.0h", 0, -1):
        with pytest.raises(ValueError, match="more than zero"):
            parse_duration(value)
    with pytest.raises(ValueError, match="zero or more"):
        parse_duration(-1.5, allow_zero=True)
    with pytest.raises(ValueError, match="finite"):
        parse_duration(float("inf"))
    with pytest.raises(ValueError, match="at most 1d"):
        parse_duration("25h", maximum=86_400.0)


def test_error_shortens_long_text() -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration("9" * 100_000)
    assert len(str(caught.value)) < 100


@given(st.floats(min_value=0.0, exclude_min=True, allow_infinity=False))
def test_durations_survive_round_trip(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(1, 10**6), st.sampled_from(sorted(SECONDS)))
def test_parses_each_unit(number: int, unit: str) -> None:
    assert parse_duration(f"{number}{unit}") == pytest.approx(number * SECONDS[unit])


@given(st.integers(0, 20), st.integers(0, 30), st.integers(0, 59), st.integers(1, 59))
def test_adds_parts_of_iso_duration(days: int, hours: int, minutes: int, seconds: int) -> None:
    text = f"P{days}DT{hours}H{minutes}M{seconds}S"
    assert (
        parse_duration(text, allow_iso=True)
        == days * 86_400 + hours * 3600 + minutes * 60 + seconds
    )


@given(st.one_of(st.text(max_size=12), st.text("PTHMSDWmshdwy.0123456789 ", max_size=12)))
def test_patterns_agree_with_parser(text: str) -> None:
    for iso, pattern in ((False, DURATION_PATTERN), (True, ISO_DURATION_PATTERN)):
        try:
            parse_duration(text, allow_zero=True, allow_iso=iso)
        except ValueError:
            assert not re.search(pattern, text) or text.endswith("\n")
        else:
            assert re.search(pattern, text)


def test_format_prefers_largest_whole_unit() -> None:
    assert format_duration(86_400) == "1d"
    assert format_duration(604_800) == "7d"
    assert format_duration(5400) == "90m"
    assert format_duration(0.25) == "250ms"
    assert format_duration(0) == 0
