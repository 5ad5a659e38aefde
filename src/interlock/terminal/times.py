"""Moments as people write them on a command line: some time ago, a day, a day and a time. Pure."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

import typer

_AGO: Final = re.compile(r"([0-9]{1,9}) ?(s|m|h|d|w)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def moment_ns(text: str, now_ns: int) -> int:
    """The moment in nanoseconds. Without a zone it is local time. Raises typer.BadParameter."""
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return now_ns - int(ago[1]) * _SECONDS[ago[2]] * 1_000_000_000
    try:
        moment = datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is no moment. Write how long ago, as 30m, 2h or 7d, or a date, as "
            "2026-01-31, 2026-01-31T12:00 or 2026-01-31T12:00:00Z."
        ) from None
    return int(moment * 1e9)
