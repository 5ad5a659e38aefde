"""Counters of what callers used of quotas, and upstreams of their API limits, and their store.

A quota starts again with its minute, hour, day or month (UTC). An API limit holds for every stretch
of its length, so its counter is a sliding window.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from interlock.core.state.database import DatabaseKind
from interlock.core.state.writer import WriterFile
from interlock.errors import InterlockError
from interlock.primitives.rate_limits import Group, SlidingWindow

MICRO: Final = 1_000_000
"""Everything is counted in whole millionths: costs are no floats that add up to something else."""

SECONDS: Final = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0}
_SLICES: Final = 60
"""A file has so many rows of one window at most."""
_MOST_KEPT: Final = 100_000

Mark = tuple[Group, int]
"""Where a call was counted: in memory, and in which slice of the file."""


class CounterRow(NamedTuple):
    """One row of the store: a bucket of a counter."""

    key: str
    bucket: int
    amount: int
    until: float
    """On the wall clock: nobody asks for it later."""


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


class PeriodCounters:
    """Counters that start again with each period of the calendar. No sliding windows: a quota of a
    month is that of a month, and amounts are costs, not calls."""

    def __init__(self, store: CounterStore | None) -> None:
        self._store = store
        self._amounts: dict[tuple[str, int], int] = {}

    def restore(self, rows: Iterable[CounterRow]) -> None:
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
        if self._store is not None:
            self._store.add(CounterRow(key, when.start, amount, when.end))


class SlidingCounter:
    """Counts the calls within the last stretch of time, and writes the counts down in slices, so
    that they outlive the process. What is read back counts until the end of its slice is old
    enough: rather a little too much is counted than a call too many sent."""

    __slots__ = ("_slice", "_store", "_window", "key", "length")

    def __init__(self, key: str, length: float, store: CounterStore | None) -> None:
        self.key = key
        self.length = length
        self._slice = length / _SLICES
        # What is over within a second need not outlive anything.
        self._store = store if length > 1.0 else None
        self._window = SlidingWindow(length)

    def restore(self, rows: Iterable[CounterRow]) -> None:
        for row in sorted(rows, key=lambda row: row.bucket):
            if row.amount > 0:
                self._window.add((row.bucket + 1) * self._slice, row.amount)

    def look(self, now: float) -> int:
        """How many calls count now."""
        return self._window.advance(now)

    def wait(self, now: float, limit: int) -> float:
        """How long until there are fewer than `limit`."""
        return self._window.wait_seconds(now, limit)

    def add(self, now: float) -> Mark:
        """Count a call. What is returned is for `give_back`."""
        index = int(now // self._slice)
        self._write(index, 1)
        return self._window.add(now), index

    def give_back(self, mark: Mark) -> None:
        """The call of this mark was never made."""
        group, index = mark
        if group[2]:
            self._window.remove(group)
            self._write(index, -1)

    def _write(self, index: int, amount: int) -> None:
        if self._store is not None:
            until = (index + 1) * self._slice + self.length
            self._store.add(CounterRow(self.key, index, amount, until))


# -- The store. Amounts that are counted while the disk is busy are written together, as sums to be
# added: nodes that share a state folder do not overwrite each other. A counter that cannot be
# written still counts.

# "ILAC".
_KIND: Final = DatabaseKind(
    0x494C4143,
    1,
    (
        """CREATE TABLE counter (
            key    TEXT NOT NULL,
            bucket INTEGER NOT NULL,
            amount INTEGER NOT NULL,
            until  REAL NOT NULL,
            PRIMARY KEY (key, bucket)
        ) WITHOUT ROWID""",
    ),
    "The store of counters",
    "a store of counters",
)
_ADD: Final = """INSERT INTO counter VALUES (?, ?, ?, ?)
    ON CONFLICT (key, bucket) DO UPDATE SET
    amount = amount + excluded.amount, until = max(until, excluded.until)"""


class CounterStore:
    """A durable store of counters: the file at `path`, made with the first count. Without a path:
    in memory. `add` returns at once."""

    def __init__(
        self, path: Path | None, *, deliver: Callable[[Callable[[], None]], object]
    ) -> None:
        """`deliver` runs something on the event loop, such as `loop.call_soon_threadsafe`."""
        self._file = WriterFile(path, _KIND, deliver=deliver)
        self._pending: dict[tuple[str, int], CounterRow] = {}
        self._under_way: dict[tuple[str, int], CounterRow] = {}

    @property
    def reason(self) -> str:
        """Why it cannot be written now. Empty: it can."""
        return self._file.reason

    def load(self, now: float) -> list[CounterRow]:
        """All that somebody may still ask for. Waits. Raises InterlockError."""
        path = self._file.path
        if path is not None and not path.exists():
            return []

        def read(file: sqlite3.Connection) -> list[CounterRow]:
            file.execute("DELETE FROM counter WHERE until <= ?", (now,))
            rows = file.execute("SELECT key, bucket, amount, until FROM counter")
            return [CounterRow(*row) for row in rows]

        return self._file.at_once(read)

    def add(self, counted: CounterRow) -> None:
        """Add so much to a bucket, wherever it stands by now."""
        _sum(self._pending, counted)
        if not self._under_way:
            self._write()

    def close(self) -> None:
        """Write what is left, and stop. Waits."""
        if self._pending:
            last, self._pending = self._pending, {}
            self._file.submit(lambda file: _put(file, last), _nobody)
        self._file.close()

    def _write(self) -> None:
        going, self._pending = self._pending, {}
        self._under_way = going
        self._file.submit(lambda file: _put(file, going), self._written)

    def _written(self, _: Any, error: InterlockError | None) -> None:
        going, self._under_way = self._under_way, {}
        if error is not None:
            # Told to the operator by the file itself. The next that is counted brings it along.
            for one in going.values():
                _sum(self._pending, one)
        elif self._pending:
            self._write()


def _sum(into: dict[tuple[str, int], CounterRow], counted: CounterRow) -> None:
    at = (counted.key, counted.bucket)
    before = into.get(at)
    if before is not None:
        counted = counted._replace(amount=before.amount + counted.amount)
    into[at] = counted


def _put(file: sqlite3.Connection, counted: dict[tuple[str, int], CounterRow]) -> None:
    file.executemany(_ADD, list(counted.values()))


def _nobody(_: Any, __: InterlockError | None) -> None:
    """The node is shutting down: nobody waits for it."""
