"""Durations as manifests write them: ISO 8601 (`PT5M`, `P1D`) or short (`5m`, `1d`)."""

from __future__ import annotations

import re
from typing import Final

from interlock.config.problems import BadValue, quoted

_ISO: Final = re.compile(
    r"P(?:([0-9]+)W)?(?:([0-9]+)D)?(?:T(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+(?:\.[0-9]+)?)S)?)?"
)
_ISO_SECONDS: Final = (604_800.0, 86_400.0, 3600.0, 60.0, 1.0)
_SHORT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|m|h|d|w)")
_SHORT_SECONDS: Final = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
}
_MOST_SECONDS: Final = 10 * 366 * 86_400.0
_HINT: Final = "write it as PT5M, PT1H or P1D, or as 5m, 1h or 1d"


def seconds_of(text: str) -> float:
    """The seconds of a duration. Raises BadValue for none, for nothing, and for ages.

    Months and years have no length of their own, so they are not taken here.
    """
    iso = _ISO.fullmatch(text) if len(text) <= 40 else None
    short = _SHORT.fullmatch(text) if len(text) <= 40 else None
    if iso is not None and any(iso.groups()):
        pairs = zip(iso.groups(), _ISO_SECONDS, strict=True)
        seconds = sum(float(number) * unit for number, unit in pairs if number)
    elif short is not None:
        seconds = float(short[1]) * _SHORT_SECONDS[short[2]]
    else:
        raise BadValue(f"{quoted(text)} is not a duration", _HINT)
    if not 0 < seconds <= _MOST_SECONDS:
        raise BadValue("a duration must be more than zero and at most ten years", _HINT)
    return seconds
