"""Counters on disk: what callers have used of quotas, and upstreams of what their APIs allow.

What is counted while the disk is busy is written together, as sums to be added: nodes that share a
state folder do not overwrite each other's. A counter that cannot be written still counts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from interlock.aql.usage_windows import Counted
from interlock.core.state.database import OwnFile
from interlock.core.state.writer import WriterFile
from interlock.errors import InterlockError

# "ILAC".
_KIND: Final = OwnFile(
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
    """The file at `path`, made when something is first counted. Without a path: in memory."""

    def __init__(
        self, path: Path | None, *, deliver: Callable[[Callable[[], None]], object]
    ) -> None:
        """`deliver` runs something on the event loop, such as `loop.call_soon_threadsafe`."""
        self._file = WriterFile(path, _KIND, deliver=deliver)
        self._pending: dict[tuple[str, int], Counted] = {}
        self._under_way: dict[tuple[str, int], Counted] = {}

    @property
    def reason(self) -> str:
        return self._file.reason

    def load(self, now: float) -> list[Counted]:
        path = self._file.path
        if path is not None and not path.exists():
            return []

        def read(file: sqlite3.Connection) -> list[Counted]:
            file.execute("DELETE FROM counter WHERE until <= ?", (now,))
            rows = file.execute("SELECT key, bucket, amount, until FROM counter")
            return [Counted(*row) for row in rows]

        return self._file.at_once(read)

    def add(self, counted: Counted) -> None:
        _sum(self._pending, counted)
        if not self._under_way:
            self._write()

    def close(self) -> None:
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


def _sum(into: dict[tuple[str, int], Counted], counted: Counted) -> None:
    at = (counted.key, counted.bucket)
    before = into.get(at)
    if before is not None:
        counted = counted._replace(amount=before.amount + counted.amount)
    into[at] = counted


def _put(file: sqlite3.Connection, counted: dict[tuple[str, int], Counted]) -> None:
    file.executemany(_ADD, list(counted.values()))


def _nobody(_: Any, __: InterlockError | None) -> None:
    """The node is shutting down: nobody waits for it."""
