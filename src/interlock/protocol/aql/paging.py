"""Which part of a collection is wanted, in one of three styles: cursors, offsets, or pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from interlock.protocol.aql import faults
from interlock.protocol.aql.faults import AqlError

HARD_LIMIT: Final = 1_000
"""No page is longer, whatever is configured."""

CURSOR: Final = ("first", "after", "last", "before")
OFFSET: Final = ("limit", "offset")
PAGES: Final = ("page", "page_size")
NAMES: Final = frozenset((*CURSOR, *OFFSET, *PAGES))

_STYLES: Final = {"cursors": CURSOR, "offsets": OFFSET, "pages": PAGES}
_HINT: Final = "Use first/after, last/before, limit/offset or page/page_size, one pair of them."
_WRONG: Final = (
    ("last", "first", "'first' and 'last' cannot be used together."),
    ("before", "first", "'first' and 'before' cannot be used together."),
    ("after", "last", "'last' and 'after' cannot be used together."),
)


class Wanted(msgspec.Struct, frozen=True):
    """One part of a collection."""

    style: Literal["cursors", "offsets", "pages"]
    size: int
    """How many items it may have."""
    clamped: int = 0
    """What was asked for, if that was more than there may be."""
    backward: bool = False
    """The last ones, not the first."""
    cursor: Any = None
    offset: int = 0
    page: int = 1


def wanted(spec: Mapping[str, Any], size: int, most: int) -> Wanted:
    """What the parameters ask for. `size`: when they do not say; `most`: when they say more.

    Raises AqlError for parameters that do not go together.
    """
    most = min(most, HARD_LIMIT)
    given = {name: spec[name] for name in NAMES if spec.get(name) is not None}
    styles = [style for style, names in _STYLES.items() if any(one in given for one in names)]
    if len(styles) > 1:
        first = next(one for one in _STYLES[styles[1]] if one in given)
        raise faults.not_together(first, f"Do not mix {' and '.join(styles)}.", _HINT)
    style = styles[0] if styles else "cursors"
    if style == "offsets":
        count, clamped = _size(given, "limit", size, most)
        return Wanted("offsets", count, clamped, offset=_whole(given, "offset", 0, 0))
    if style == "pages":
        count, clamped = _size(given, "page_size", size, most)
        return Wanted("pages", count, clamped, page=_whole(given, "page", 1, 1))
    for param, beside, message in _WRONG:
        if param in given and beside in given:
            raise faults.not_together(param, message, _HINT)
    if "after" in given and "first" not in given:
        raise _alone("after", "first")
    if "before" in given and "last" not in given:
        raise _alone("before", "last")
    backward = "last" in given
    count, clamped = _size(given, "last" if backward else "first", size, most)
    cursor = given.get("before" if backward else "after")
    return Wanted("cursors", count, clamped, backward, cursor)


def _alone(param: str, needs: str) -> AqlError:
    return faults.not_together(param, f"'{param}' needs '{needs}' beside it.", _HINT)


def _size(given: Mapping[str, Any], name: str, size: int, most: int) -> tuple[int, int]:
    asked = _whole(given, name, min(size, most), 1)
    return (most, asked) if asked > most else (asked, 0)


def _whole(given: Mapping[str, Any], name: str, default: int, least: int) -> int:
    value = given.get(name, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise faults.wrong_type(name, "integer", "another type")
    if value < least:
        raise AqlError(
            "VALIDATION_OUT_OF_RANGE",
            f"Parameter '{name}' must be {least} or more.",
            {"param_name": name, "minimum": least},
        )
    return value
