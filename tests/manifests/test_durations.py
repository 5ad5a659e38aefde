"""Durations: ISO 8601 and short."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.config.problems import BadValue
from interlock.manifests.driver_reader import seconds_of
from interlock.manifests.schemas import EVERY_PATTERN


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
        ("250ms", 0.25),
        ("30s", 30),
        ("5m", 300),
        ("1.5h", 5400),
        ("2 d", 172_800),
        ("1w", 604_800),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
    assert re.search(EVERY_PATTERN, text)


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1Y", "P1M", "PT1", "5", "5 minutes", "-5s", "PT0S", "0s", "P9999W", "x"],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(BadValue) as caught:
        seconds_of(text)
    assert caught.value.hint


@given(st.integers(0, 20), st.integers(0, 30), st.integers(0, 59), st.integers(1, 59))
def test_the_parts_add_up(days: int, hours: int, minutes: int, seconds: int) -> None:
    text = f"P{days}DT{hours}H{minutes}M{seconds}S"
    assert seconds_of(text) == days * 86_400 + hours * 3600 + minutes * 60 + seconds


@given(st.text(max_size=12))
def test_any_text_is_one_or_none(text: str) -> None:
    try:
        assert seconds_of(text) > 0
    except BadValue:
        return
