"""Durations as text. One grammar for the config, the command line and manifests:

    number unit      250ms, 30s, 5m, 1.5h, 7d, 2w, 1y; a space before the unit is allowed
    unit             ms, s, m (minutes), h, d, w, y (365 days)

Where a specification requires it (`allow_iso=True`) also ISO 8601: PT5M, P1D, P1DT12H. Years and
months of ISO 8601 are rejected, because they have no fixed length.
"""

from __future__ import annotations

import json
import math
import re
from typing import Final

SECONDS: Final = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
    "y": 31_536_000.0,
}

_SHORT: Final = r"[0-9]+(\.[0-9]+)? ?(ms|s|m|h|d|w|y)"
_ISO: Final = (
    r"P(?=[0-9T])([0-9]+W)?([0-9]+D)?(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]+)?S)?)?"
)
DURATION_PATTERN: Final = f"^{_SHORT}$"
"""For JSON Schema, so that an editor and the parser accept the same durations."""
POSITIVE_DURATION_PATTERN: Final = f"^(?=[0-9. ]*[1-9]){_SHORT}$"
ISO_DURATION_PATTERN: Final = f"^({_ISO}|{_SHORT})$"

DURATION_HINT: Final = "write it as 250ms, 30s, 5m, 1h or 7d, or as a plain number of seconds"
ISO_DURATION_HINT: Final = "write it as PT5M, PT1H or P1D, or as 5m, 1h or 1d"

_MAX_TEXT_LENGTH: Final = 40
_SHORT_PARTS: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|m|h|d|w|y)", re.ASCII)
_ISO_PARTS: Final = re.compile(
    r"P(?:([0-9]+)W)?(?:([0-9]+)D)?"
    r"(?:T(?=[0-9])(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+(?:\.[0-9]+)?)S)?)?",
    re.ASCII,
)
_ISO_SECONDS: Final = (604_800.0, 86_400.0, 3600.0, 60.0, 1.0)
_OUTPUT_UNITS: Final = ("d", "h", "m", "s", "ms")


def parse_duration(
    value: str | float,
    *,
    allow_zero: bool = False,
    allow_iso: bool = False,
    maximum: float = math.inf,
) -> float:
    """Return the seconds of a written duration, or of a number of seconds.

    Args:
        allow_zero: accept 0.
        allow_iso: accept ISO 8601, too.
        maximum: the maximum in seconds.

    Raises:
        ValueError: with a message for the author of the text.
    """
    seconds = _parse(value, allow_iso) if isinstance(value, str) else float(value)
    if seconds is None:
        text = str(value)
        short_text = text if len(text) <= _MAX_TEXT_LENGTH else f"{text[:_MAX_TEXT_LENGTH]}…"
        raise ValueError(f"{json.dumps(short_text, ensure_ascii=False)} is not a duration")
    if not math.isfinite(seconds):
        raise ValueError("a duration must be finite")
    if seconds < 0 or (seconds == 0 and not allow_zero):
        raise ValueError(
            f"a duration must be {'zero or more' if allow_zero else 'more than zero'} here"
        )
    if seconds > maximum:
        raise ValueError(f"a duration must be at most {format_duration(maximum)} here")
    return seconds


def _parse(text: str, iso: bool) -> float | None:
    if len(text) > _MAX_TEXT_LENGTH:
        return None
    short = _SHORT_PARTS.fullmatch(text)
    if short is not None:
        number, unit = float(short[1]), short[2]
        # A division keeps 250ms exactly a quarter of a second.
        return number / 1000 if unit == "ms" else number * SECONDS[unit]
    parts = _ISO_PARTS.fullmatch(text) if iso else None
    if parts is None or not any(parts.groups()):
        return None
    pairs = zip(parts.groups(), _ISO_SECONDS, strict=True)
    return sum(float(number) * unit for number, unit in pairs if number)


def format_duration(seconds: float) -> str | float:
    """Return the shortest text that parses to exactly these seconds: 300 → 5m. If no unit matches,
    return the number of seconds."""
    seconds = float(seconds)
    for unit in _OUTPUT_UNITS:
        number = seconds * 1000 if unit == "ms" else seconds / SECONDS[unit]
        if seconds > 0 and number.is_integer():
            text = f"{int(number)}{unit}"
            if len(text) <= _MAX_TEXT_LENGTH and _parse(text, False) == seconds:
                return text
    return int(seconds) if seconds.is_integer() else seconds


def describe_duration(seconds: float) -> str:
    """Return a duration for a person, in whole seconds: `4 min 12 s`."""
    whole = max(0, int(seconds))
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
