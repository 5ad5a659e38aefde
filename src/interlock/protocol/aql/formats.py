"""What text has to look like that stands for something else: a time, or bytes."""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Any, Final

from interlock.protocol.aql import faults
from interlock.protocol.aql.faults import AqlError

_DATE: Final = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})"
    r"(?:[Tt](\d{2}):(\d{2}):(\d{2})(?:\.\d{1,9})?(?:[Zz]|[+-](\d{2}):(\d{2})))?",
    re.ASCII,
)
_EXPECTED: Final = {
    "date": "an ISO 8601 date such as 2026-02-04",
    "date-time": "an ISO 8601 time such as 2026-02-04T10:30:00Z, or a date such as 2026-02-04",
    "base64": "padded base64 (RFC 4648)",
}


def format_of(schema: Any) -> str:
    """The format of a parameter, if it is one that is looked at here. Empty: it is not."""
    if not isinstance(schema, dict):
        return ""
    if schema.get("format") in ("date", "date-time"):
        return str(schema["format"])
    if schema.get("contentEncoding") == "base64" or schema.get("format") in ("byte", "base64"):
        return "base64"
    return ""


def check(param: str, format: str, value: Any) -> None:
    """Raises AqlError for a text that is not what its format says. Others are not looked at."""
    if not isinstance(value, str):
        return
    if format == "base64":
        if not is_base64(value):
            raise _mismatch(param, format)
    elif format in _EXPECTED and not is_time(value, date_only=format == "date"):
        raise _mismatch(param, format)


def is_time(text: str, *, date_only: bool = False) -> bool:
    """Whether it is a date, or a date and a time with its offset, that there is."""
    found = _DATE.fullmatch(text)
    if found is None or (date_only and found[4] is not None):
        return False
    year, month, day = (int(found[one]) for one in (1, 2, 3))
    if not (year >= 1 and 1 <= month <= 12 and 1 <= day <= _days(year, month)):
        return False
    if found[4] is None:
        return True
    # A minute may have a leap second.
    if int(found[4]) > 23 or int(found[5]) > 59 or int(found[6]) > 60:
        return False
    return found[7] is None or (int(found[7]) <= 23 and int(found[8]) <= 59)


def _days(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def is_base64(text: str) -> bool:
    try:
        b64decode(text, validate=True)
    except ValueError:
        return False
    return len(text) % 4 == 0


def _mismatch(param: str, format: str) -> AqlError:
    return AqlError(
        "VALIDATION_PATTERN_MISMATCH",
        f"Parameter '{faults.shown(param)}' must be {_EXPECTED[format]}.",
        {"param_name": faults.short(param), "expected_format": format},
    )
