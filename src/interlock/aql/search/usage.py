"""Usage of tools: how often, how recently and how successfully each was called, by everybody and by
one caller.

Kept in memory as a few numbers for each tool; a store beside it survives restarts. Old calls count
ever less, so that a habit of last year does not outweigh one of this week.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from math import exp, log, log1p
from typing import Final, NamedTuple

import msgspec

HALF_LIFE_S: Final = 7 * 86_400.0
"""After so long a call counts half."""
_MANY: Final = 50.0
"""So many recent calls are as often as it gets."""
_MOST_KEPT: Final = 50_000


class UsageScore(NamedTuple):
    """How a tool was used, each from 0 to 1."""

    frequency: float
    recency: float
    success: float
    """0.5 where nobody knows."""


NEVER: Final = UsageScore(0.0, 0.0, 0.5)


class UsageTally(msgspec.Struct):
    """The calls of one tool by one caller, faded to the moment of the last one."""

    calls: float = 0.0
    successes: float = 0.0
    last: float = 0.0
    """On the wall clock."""

    def add(self, good: bool, now: float, times: int = 1) -> None:
        faded = self.faded(now)
        self.calls = self.calls * faded + times
        self.successes = self.successes * faded + (times if good else 0)
        self.last = max(now, self.last)

    def faded(self, now: float) -> float:
        """How much of it is left. A clock that was set back fades nothing."""
        return exp(-log(2) * max(0.0, now - self.last) / HALF_LIFE_S)


Key = tuple[str, str]
"""A tool's canonical name, and a caller; the empty caller is everybody."""


class Usage:
    """The usage of tools. Every call is counted for its caller and for everybody."""

    def __init__(
        self,
        tallies: Iterable[tuple[Key, UsageTally]] = (),
        clock: Callable[[], float] = time.time,
        half_of_others: float = 0.5,
    ) -> None:
        self._clock = clock
        self._tallies: dict[Key, UsageTally] = dict(tallies)
        self._others = half_of_others
        self.changed: set[Key] = set()
        """What a store has not seen yet."""

    @property
    def is_empty(self) -> bool:
        return not self._tallies

    def called(self, tool: str, caller: str, good: bool, times: int = 1) -> None:
        """A call of a tool is over, or several at about the same time."""
        now = self._clock()
        for key in ((tool, ""), (tool, caller)) if caller else ((tool, ""),):
            tally = self._tallies.get(key)
            if tally is None:
                if len(self._tallies) >= _MOST_KEPT:
                    continue
                tally = self._tallies[key] = UsageTally()
            tally.add(good, now, times)
            self.changed.add(key)

    def of(self, tool: str, caller: str = "") -> UsageScore:
        """What was seen of a tool; a caller's own calls count for more than those of others."""
        if not self._tallies:
            return NEVER
        now = self._clock()
        own = self._tallies.get((tool, caller)) if caller else None
        everybody = self._tallies.get((tool, ""))
        if everybody is None:
            return NEVER
        seen = _seen(everybody, now)
        if own is None:
            if not caller:
                return seen
            return UsageScore(
                seen.frequency * self._others, seen.recency * self._others, seen.success
            )
        mine = _seen(own, now)
        rest = self._others
        return UsageScore(
            max(mine.frequency, seen.frequency * rest),
            max(mine.recency, seen.recency * rest),
            mine.success,
        )

    def taken(self) -> list[tuple[Key, UsageTally]]:
        """What changed since it was last asked, for a store."""
        changed, self.changed = self.changed, set()
        return [(key, self._tallies[key]) for key in changed]


def _seen(tally: UsageTally, now: float) -> UsageScore:
    left = tally.faded(now)
    calls = tally.calls * left
    return UsageScore(
        min(1.0, log1p(calls) / log1p(_MANY)),
        left,
        # Two calls that nobody made keep one failure from being a verdict.
        (tally.successes * left + 1.0) / (calls + 2.0),
    )


NO_USAGE: Final = Usage()
"""Nothing was used, and nobody counts."""
