"""A bar is a limit that a figure must meet. Judged here, shown by the report."""

from __future__ import annotations

import operator
from typing import Literal

import msgspec


class Bar(msgspec.Struct):
    """One limit: what it is about, the figure, the limit, and whether it holds."""

    what: str
    figure: float | None
    sense: Literal[">=", "<="]
    limit: float
    unit: str = ""
    aim: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """None when there is no figure to judge."""
        if self.figure is None:
            return None
        compare = operator.ge if self.sense == ">=" else operator.le
        return bool(compare(self.figure, self.limit))

    def shown(self) -> dict[str, object]:
        return {**msgspec.structs.asdict(self), "met": self.met}


def ratio(top: float | None, bottom: float | None) -> float | None:
    """A quotient, or nothing where a side is missing."""
    if top is None or bottom is None or bottom <= 0:
        return None
    return top / bottom
