"""Moments as text: in UTC for programs, in local time for people at a terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal


def format_utc(seconds: float) -> str:
    """A moment of the wall clock as RFC 3339 in UTC: `2026-01-31T12:00:00Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")[:-6] + "Z"


def format_utc_ms(seconds: float) -> str:
    """The same with milliseconds: `2026-01-31T12:00:00.250Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def format_local(seconds: float, precision: Literal["minutes", "seconds"] = "minutes") -> str:
    """A moment of the wall clock for a person: `2026-01-31 12:00`, in the local time zone."""
    return datetime.fromtimestamp(seconds).isoformat(sep=" ", timespec=precision)
