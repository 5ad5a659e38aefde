"""The durable data of the search: usage of tools, and vectors of their descriptions.

It is one small SQLite file. Losing it does no harm, so nothing waits for it: a failed write is
logged and repeated with the next one.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from interlock.aql.search.usage import Key, Usage, UsageTally
from interlock.core.state.database import DatabaseKind, make_private
from interlock.errors import CONFIG, InterlockError

SCHEMA_VERSION: Final = 1
# "ILSU". Distinguishes our file from files of other programs.
_APPLICATION_ID: Final = 0x494C5355
_BUSY_SECONDS: Final = 2.0
_MAX_TALLIES: Final = 20_000
_MAX_VECTORS: Final = 20_000
_SCHEMA: Final = (
    """CREATE TABLE used (
        tool      TEXT NOT NULL,
        caller    TEXT NOT NULL,
        calls     REAL NOT NULL,
        successes REAL NOT NULL,
        last      REAL NOT NULL,
        PRIMARY KEY (tool, caller)
    )""",
    "CREATE TABLE vector (digest TEXT PRIMARY KEY, made BLOB NOT NULL)",
)
_FILE: Final = DatabaseKind(
    _APPLICATION_ID, SCHEMA_VERSION, _SCHEMA, "The search store", "a search store"
)
_log = logging.getLogger("interlock.state")


class SearchStore:
    """The file at `path`. All methods may be called in any thread."""

    def __init__(self, path: Path | None) -> None:
        """Open the file. Raises InterlockError for a file of another program.

        Args:
            path: None: in memory.
        """
        self.path = path
        self._lock = threading.Lock()
        try:
            if path is not None:
                make_private(path)
            self._file = sqlite3.connect(
                ":memory:" if path is None else path,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                self._file.execute("PRAGMA synchronous = OFF")
                self._file.execute("BEGIN IMMEDIATE")
                _FILE.prepare(self._file, path)
                self._file.execute("COMMIT")
            except BaseException:
                self._file.close()
                raise
        except (sqlite3.Error, OSError) as exc:
            raise InterlockError(
                CONFIG, f"Cannot use the search store {path}: {exc}. Move the file away."
            ) from None

    @classmethod
    def open(cls, path: Path) -> SearchStore:
        """Open the store at `path`, or a store in memory if the file cannot be used."""
        try:
            return cls(path)
        except InterlockError as error:
            _log.warning("search store: %s Usage is kept in memory only.", error.message)
            return cls(None)

    def close(self) -> None:
        with self._lock:
            self._file.close()

    # -- usage

    def tallies(self) -> list[tuple[Key, UsageTally]]:
        """Return all stored tallies, for `Usage`."""
        try:
            with self._lock:
                rows = self._file.execute("SELECT * FROM used").fetchall()
        except sqlite3.Error as exc:
            _log.warning("search store: cannot read usage: %s", exc)
            return []
        return [
            ((tool, caller), UsageTally(calls, successes, last))
            for tool, caller, calls, successes, last in rows
        ]

    def save_usage(self, usage: Usage) -> None:
        """Write the changed tallies."""
        changes = usage.take_changes()
        rows = [(*key, tally.calls, tally.successes, tally.last) for key, tally in changes]
        if rows and not self._write(
            "INSERT OR REPLACE INTO used VALUES (?, ?, ?, ?, ?)", rows, "used", "last", _MAX_TALLIES
        ):
            usage.changed_keys.update(key for key, _ in changes)

    # -- vectors

    def vectors(self, digests: Iterable[str]) -> Mapping[str, bytes]:
        vectors: dict[str, bytes] = {}
        try:
            with self._lock:
                for digest in digests:
                    row = self._file.execute(
                        "SELECT made FROM vector WHERE digest = ?", (digest,)
                    ).fetchone()
                    if row is not None:
                        vectors[digest] = row[0]
        except sqlite3.Error as exc:
            _log.warning("search store: cannot read vectors: %s", exc)
        return vectors

    def save_vectors(self, vectors: Mapping[str, bytes]) -> None:
        self._write(
            "INSERT OR REPLACE INTO vector VALUES (?, ?)",
            list(vectors.items()),
            "vector",
            "rowid",
            _MAX_VECTORS,
        )

    def _write(
        self, statement: str, rows: Sequence[tuple[object, ...]],
        table: str, oldest_by: str, limit: int,
    ) -> bool:  # fmt: skip
        """Write rows in one transaction, and delete the oldest above `most`. Returns False on
        failure.
        """
        try:
            with self._lock:
                self._file.execute("BEGIN IMMEDIATE")
                try:
                    self._file.executemany(statement, rows)
                    self._file.execute(
                        f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} "
                        f"ORDER BY {oldest_by} DESC LIMIT -1 OFFSET {limit})"
                    )
                except BaseException:
                    self._file.execute("ROLLBACK")
                    raise
                self._file.execute("COMMIT")
        except sqlite3.Error as exc:
            _log.warning("search store: cannot write: %s", exc)
            return False
        return True
