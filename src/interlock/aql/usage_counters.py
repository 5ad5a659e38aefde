"""Counters for quotas of callers and API limits of upstreams, and their store.

A quota resets with its minute, hour, day or month (UTC). An API limit applies to every time span of
its length, so its counter is a sliding window.
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
"""Amounts are counted in integer millionths: sums of float costs would be inexact."""

SECONDS: Final = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0}
_SLICES: Final = 60
"""Maximum number of rows in the file for one window."""
_MAX_COUNTERS: Final = 100_000

Mark = tuple[Group, int]
"""The position of a counted call: its group in memory, and its slice in the file."""


class CounterRow(NamedTuple):
    """One row of the store: a bucket of a counter."""

    key: str
    bucket: int
    amount: int
    until: float
    """The wall clock time at which the row expires."""


class Period(NamedTuple):
    """A minute, hour, day or month of the calendar."""

    start: int
    end: int


def current_period(per: str, now: float) -> Period:
    """Return the current period.

    Args:
        per: minute, hour, day or month.
    """
    if per == "month":
        today = datetime.fromtimestamp(now, UTC)
        first = datetime(today.year, today.month, 1, tzinfo=UTC)
        next_first = first.replace(
            year=first.year + (first.month == 12), month=first.month % 12 + 1
        )
        return Period(int(first.timestamp()), int(next_first.timestamp()))
    length = int(SECONDS[per])
    start = int(now // length) * length
    return Period(start, start + length)


class PeriodCounters:
    """Counters that reset with each calendar period.

    They are no sliding windows: a monthly quota is per calendar month. Amounts may be costs.
    """

    def __init__(self, store: CounterStore | None) -> None:
        self._store = store
        self._amounts: dict[tuple[str, int], int] = {}

    def restore(self, rows: Iterable[CounterRow]) -> None:
        for row in rows:
            bucket_key = (row.key, row.bucket)
            self._amounts[bucket_key] = self._amounts.get(bucket_key, 0) + row.amount

    def count_at(self, key: str, counter_period: Period) -> int:
        return self._amounts.get((key, counter_period.start), 0)

    def add(self, key: str, counter_period: Period, amount: int) -> None:
        bucket_key = (key, counter_period.start)
        if len(self._amounts) >= _MAX_COUNTERS and bucket_key not in self._amounts:
            # The number of callers is unlimited: delete the counters of past periods first.
            self._amounts = {
                bucket_key: amount_of_key
                for bucket_key, amount_of_key in self._amounts.items()
                if bucket_key[1] >= counter_period.start - 86_400
            }
        self._amounts[bucket_key] = self._amounts.get(bucket_key, 0) + amount
        if self._store is not None:
            self._store.add(CounterRow(key, counter_period.start, amount, counter_period.end))


class SlidingCounter:
    """Counts the calls within a time span, and stores the counts in slices so that they survive a
    restart.

    Loaded counts are valid until the end of their slice expires: the counter counts a little too
    much rather than sending a call too many.
    """

    __slots__ = ("_slice", "_store", "_window", "key", "length")

    def __init__(self, key: str, length: float, store: CounterStore | None) -> None:
        self.key = key
        self.length = length
        self._slice = length / _SLICES
        # Windows of a second need not survive a restart.
        self._store = store if length > 1.0 else None
        self._window = SlidingWindow(length)

    def restore(self, rows: Iterable[CounterRow]) -> None:
        for row in sorted(rows, key=lambda row: row.bucket):
            if row.amount > 0:
                self._window.add((row.bucket + 1) * self._slice, row.amount)

    def count_at(self, now: float) -> int:
        """Return the number of calls in the window."""
        return self._window.advance(now)

    def wait_seconds(self, now: float, limit: int) -> float:
        """Return the time until the window has fewer than `limit` calls."""
        return self._window.wait_seconds(now, limit)

    def add(self, now: float) -> Mark:
        """Count a call. Returns the mark for `refund`."""
        index = int(now // self._slice)
        self._write(index, 1)
        return self._window.add(now), index

    def refund(self, mark: Mark) -> None:
        """Refund a call that was never made."""
        group, index = mark
        if group[2]:
            self._window.remove(group)
            self._write(index, -1)

    def _write(self, index: int, amount: int) -> None:
        if self._store is not None:
            until = (index + 1) * self._slice + self.length
            self._store.add(CounterRow(self.key, index, amount, until))


# The store. Amounts that are counted while the disk is busy are written together as increments, so
# nodes that share a state folder do not overwrite each other. Counting continues when the file
# cannot be written.

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
    """A durable store of counters in a file that is created with the first count.

    Without a path, counters are in memory. `add` returns at once.
    """

    def __init__(
        self, path: Path | None, *, deliver: Callable[[Callable[[], None]], object]
    ) -> None:
        """
        Args:
            deliver: runs a function on the event loop, such as `loop.call_soon_threadsafe`.
        """
        self._file = WriterFile(path, _KIND, deliver=deliver)
        self._pending: dict[tuple[str, int], CounterRow] = {}
        self._writing: dict[tuple[str, int], CounterRow] = {}

    @property
    def reason(self) -> str:
        """The reason why the file cannot be written now. Empty: it can."""
        return self._file.reason

    def load(self, now: float) -> list[CounterRow]:
        """Load the rows that have not expired. Blocks. Raises InterlockError."""
        path = self._file.path
        if path is not None and not path.exists():
            return []

        def read(file: sqlite3.Connection) -> list[CounterRow]:
            file.execute("DELETE FROM counter WHERE until <= ?", (now,))
            rows = file.execute("SELECT key, bucket, amount, until FROM counter")
            return [CounterRow(*row) for row in rows]

        return self._file.run_now(read)

    def add(self, row: CounterRow) -> None:
        """Add an amount to a bucket."""
        _add_row(self._pending, row)
        if not self._writing:
            self._write()

    def close(self) -> None:
        """Write pending counts and close the file. Blocks."""
        if self._pending:
            rows, self._pending = self._pending, {}
            self._file.submit(lambda file: _write_rows(file, rows), _ignore)
        self._file.close()

    def _write(self) -> None:
        rows, self._pending = self._pending, {}
        self._writing = rows
        self._file.submit(lambda file: _write_rows(file, rows), self._written)

    def _written(self, _: Any, error: InterlockError | None) -> None:
        rows, self._writing = self._writing, {}
        if error is not None:
            # The file reports the error to the operator. The next count writes these rows, too.
            for row in rows.values():
                _add_row(self._pending, row)
        elif self._pending:
            self._write()


def _add_row(rows: dict[tuple[str, int], CounterRow], row: CounterRow) -> None:
    bucket_key = (row.key, row.bucket)
    existing = rows.get(bucket_key)
    if existing is not None:
        row = row._replace(amount=existing.amount + row.amount)
    rows[bucket_key] = row


def _write_rows(file: sqlite3.Connection, row: dict[tuple[str, int], CounterRow]) -> None:
    file.executemany(_ADD, list(row.values()))


def _ignore(_: Any, __: InterlockError | None) -> None:
    """Ignore the result: the node is shutting down."""
