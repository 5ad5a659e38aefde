"""Usage of tools: how often, how recently and how successfully each was called, in total and by
caller.

It is kept in memory as a few numbers per tool. A store keeps it over restarts. Older calls count
less, so that a habit of last year does not outweigh one of this week.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from math import exp, log, log1p
from typing import Final, NamedTuple

import msgspec

HALF_LIFE_S: Final = 7 * 86_400.0
"""After this time a call counts half."""
_MAX_FREQUENCY_CALLS: Final = 50.0
"""The number of recent calls with the maximum frequency."""
_MAX_TALLIES: Final = 50_000


class UsageScore(NamedTuple):
    """The usage of a tool, each value from 0 to 1."""

    frequency: float
    recency: float
    success: float
    """0.5 if unknown."""


NEVER: Final = UsageScore(0.0, 0.0, 0.5)


class UsageTally(msgspec.Struct):
    """The calls of one tool by one caller, decayed to the time of the last call."""

    calls: float = 0.0
    successes: float = 0.0
    last: float = 0.0
    """The wall clock time of the last call."""

    def add(self, succeeded: bool, now: float, count: int = 1) -> None:
        share = self.remaining_share(now)
        self.calls = self.calls * share + count
        self.successes = self.successes * share + (count if succeeded else 0)
        self.last = max(now, self.last)

    def remaining_share(self, now: float) -> float:
        """Return the share of the earlier counts that remains after the decay until `now`. A clock
        that was set back causes no decay."""
        return exp(-log(2) * max(0.0, now - self.last) / HALF_LIFE_S)


Key = tuple[str, str]
"""A tool's canonical name and a caller. The empty caller stands for all callers."""


class Usage:
    """The usage of tools. Every call counts for its caller and for all callers."""

    def __init__(
        self,
        tallies: Iterable[tuple[Key, UsageTally]] = (),
        clock: Callable[[], float] = time.time,
        others_weight: float = 0.5,
    ) -> None:
        self._clock = clock
        self._tallies: dict[Key, UsageTally] = dict(tallies)
        self._others_weight = others_weight
        self.changed_keys: set[Key] = set()
        """Keys that are not stored yet."""

    @property
    def is_empty(self) -> bool:
        return not self._tallies

    def record(self, tool: str, caller: str, succeeded: bool, count: int = 1) -> None:
        """Record one or more calls of a tool that ended at about the same time."""
        now = self._clock()
        for key in ((tool, ""), (tool, caller)) if caller else ((tool, ""),):
            tally = self._tallies.get(key)
            if tally is None:
                if len(self._tallies) >= _MAX_TALLIES:
                    continue
                tally = self._tallies[key] = UsageTally()
            tally.add(succeeded, now, count)
            self.changed_keys.add(key)

    def score_of(self, tool: str, caller: str = "") -> UsageScore:
        """Return the usage of a tool. The caller's own calls count more than those of others."""
        if not self._tallies:
            return NEVER
        now = self._clock()
        caller_tally = self._tallies.get((tool, caller)) if caller else None
        total_tally = self._tallies.get((tool, ""))
        if total_tally is None:
            return NEVER
        total_score = _score(total_tally, now)
        if caller_tally is None:
            if not caller:
                return total_score
            return UsageScore(
                total_score.frequency * self._others_weight,
                total_score.recency * self._others_weight,
                total_score.success,
            )
        caller_score = _score(caller_tally, now)
        others_weight = self._others_weight
        return UsageScore(
            max(caller_score.frequency, total_score.frequency * others_weight),
            max(caller_score.recency, total_score.recency * others_weight),
            caller_score.success,
        )

    def take_changes(self) -> list[tuple[Key, UsageTally]]:
        """Return the changes since the last call of this method, for a store."""
        changed_keys, self.changed_keys = self.changed_keys, set()
        return [(key, self._tallies[key]) for key in changed_keys]


def _score(tally: UsageTally, now: float) -> UsageScore:
    share = tally.remaining_share(now)
    calls = tally.calls * share
    return UsageScore(
        min(1.0, log1p(calls) / log1p(_MAX_FREQUENCY_CALLS)),
        share,
        # Two assumed calls prevent a single failure from dominating.
        (tally.successes * share + 1.0) / (calls + 2.0),
    )


NO_USAGE: Final = Usage()
"""An empty usage that is never updated."""
