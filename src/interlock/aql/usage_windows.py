"""How much was used of something within a time: counters that outlive a restart.

A quota begins anew with its minute, hour, day or month (UTC). What an API allows holds for every
stretch of that length, so those counters slide: they are kept in small buckets, and a bucket counts
until the last call that could be in it is old enough. Rather a little too much is counted than a
call too many sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol

MICRO: Final = 1_000_000
"""Everything is counted in whole millionths: costs are no floats that add up to something else."""

SECONDS: Final = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0}
_BUCKETS: Final = 60
_MOST_KEPT: Final = 100_000


class Counted(NamedTuple):
    """What one bucket holds."""

    key: str
    bucket: int
    amount: int
    until: float
    """On the wall clock: nobody asks for it later."""


class CounterKeeper(Protocol):
    """A durable store of counters. `add` returns at once."""

    @property
    def reason(self) -> str:
        """Why it cannot be written now. Empty: it can."""
        ...

    def load(self, now: float) -> list[Counted]:
        """All that somebody may still ask for. Waits. Raises InterlockError."""
        ...

    def add(self, counted: Counted) -> None:
        """Add so much to a bucket, wherever it stands by now."""

    def close(self) -> None:
        """Write what is left, and stop. Waits."""


class Period(NamedTuple):
    """A minute, hour, day or month of the calendar."""

    start: int
    end: int


def period(per: str, now: float) -> Period:
    """The one that it is now. `per`: minute, hour, day or month."""
    if per == "month":
        today = datetime.fromtimestamp(now, UTC)
        first = datetime(today.year, today.month, 1, tzinfo=UTC)
        then = first.replace(year=first.year + (first.month == 12), month=first.month % 12 + 1)
        return Period(int(first.timestamp()), int(then.timestamp()))
    length = int(SECONDS[per])
    start = int(now // length) * length
    return Period(start, start + length)


class Totals:
    """Counters that begin anew with each period."""

    def __init__(self, keeper: CounterKeeper | None) -> None:
        self._keeper = keeper
        self._amounts: dict[tuple[str, int], int] = {}

    def restore(self, rows: Iterable[Counted]) -> None:
        for row in rows:
            at = (row.key, row.bucket)
            self._amounts[at] = self._amounts.get(at, 0) + row.amount

    def look(self, key: str, when: Period) -> int:
        return self._amounts.get((key, when.start), 0)

    def add(self, key: str, when: Period, amount: int) -> None:
        at = (key, when.start)
        if len(self._amounts) >= _MOST_KEPT and at not in self._amounts:
            # Callers may be without number: the counters of periods that are over go first.
            self._amounts = {
                one: held for one, held in self._amounts.items() if one[1] >= when.start - 86_400
            }
        self._amounts[at] = self._amounts.get(at, 0) + amount
        if self._keeper is not None:
            self._keeper.add(Counted(key, when.start, amount, when.end))


class Sliding:
    """How many calls there were within the last stretch of time."""

    __slots__ = ("_buckets", "_count", "_grain", "_keeper", "key", "length")

    def __init__(self, key: str, length: float, keeper: CounterKeeper | None) -> None:
        self.key = key
        self.length = length
        self._grain = length / _BUCKETS
        # What is over within a second need not outlive anything.
        self._keeper = keeper if length > 1.0 else None
        self._buckets: deque[list[int]] = deque()
        self._count = 0

    def restore(self, rows: Iterable[Counted]) -> None:
        held = {bucket[0]: bucket[1] for bucket in self._buckets}
        for row in rows:
            held[row.bucket] = held.get(row.bucket, 0) + row.amount
        self._buckets = deque([index, held[index]] for index in sorted(held) if held[index] > 0)
        self._count = sum(amount for _, amount in self._buckets)

    def look(self, now: float) -> int:
        buckets = self._buckets
        while buckets and self._gone_at(buckets[0][0]) <= now:
            self._count -= buckets.popleft()[1]
        return self._count

    def wait(self, now: float, limit: int) -> float:
        """How long until there are fewer than `limit`."""
        over = self.look(now) - limit + 1
        if over <= 0:
            return 0.0
        for index, amount in self._buckets:
            over -= amount
            if over <= 0:
                return self._gone_at(index) - now
        return self.length

    def add(self, now: float, amount: int = 1) -> int:
        """Count a call. What is returned is for `give_back`."""
        index = int(now // self._grain)
        buckets = self._buckets
        if buckets and buckets[-1][0] >= index:
            # The clock may have been set back.
            index = buckets[-1][0]
            buckets[-1][1] += amount
        else:
            buckets.append([index, amount])
        self._count += amount
        self._write(index, amount)
        return index

    def give_back(self, index: int) -> None:
        """One call of then was never made."""
        for bucket in self._buckets:
            if bucket[0] == index and bucket[1]:
                bucket[1] -= 1
                self._count -= 1
                self._write(index, -1)
                return

    def _gone_at(self, index: int) -> float:
        return (index + 1) * self._grain + self.length

    def _write(self, index: int, amount: int) -> None:
        if self._keeper is not None:
            self._keeper.add(Counted(self.key, index, amount, self._gone_at(index)))
