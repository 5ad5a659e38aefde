"""Timestamps as text: in UTC for programs, in local time for people at a terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal


def format_utc(seconds: float) -> str:
    """Return a time as RFC 3339 in UTC: `2026-01-31T12:00:00Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")[:-6] + "Z"


def format_utc_ms(seconds: float) -> str:
    """Return a time as RFC 3339 in UTC with milliseconds: `2026-01-31T12:00:00.250Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def format_local(seconds: float, precision: Literal["minutes", "seconds"] = "minutes") -> str:
    """Return a time for a person, in the local time zone: `2026-01-31 12:00`."""
    return datetime.fromtimestamp(seconds).isoformat(sep=" ", timespec=precision)
