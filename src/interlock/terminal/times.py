"""Durations and moments as people write them on a command line."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import typer

from interlock.primitives.durations import DURATION_HINT, SECONDS, parse_duration

MOST_SECONDS: Final = 100 * SECONDS["y"]


def read_duration(text: str, option: str, *, zero: bool = False) -> float:
    """The seconds of `30s`, `5m`, `7d` or `30`. Raises typer.BadParameter.

    Args:
        option: by what name the message calls it, such as `--timeout`.
    """
    try:
        number = float(text) if text.replace(".", "", 1).isdecimal() else text
        return parse_duration(number, zero=zero, most=MOST_SECONDS)
    except ValueError as wrong:
        raise typer.BadParameter(f"{option}: {wrong}; {DURATION_HINT}.") from None


def moment_ns(text: str, now_ns: int) -> int:
    """The moment in nanoseconds. Without a zone it is local time. Raises typer.BadParameter."""
    text = text.strip()
    try:
        return now_ns - int(parse_duration(text, most=MOST_SECONDS) * 1e9)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is no moment. Write how long ago, as 30m, 2h or 7d, or a date, as "
            "2026-01-31, 2026-01-31T12:00 or 2026-01-31T12:00:00Z."
        ) from None
    return int(moment * 1e9)
