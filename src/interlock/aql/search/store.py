"""What the search keeps over a restart: usage of tools, and vectors of their descriptions.

One small SQLite file. Losing it does no harm, so nothing waits for it: a write that fails is
logged, and tried again with the next one.
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
# "ILSU". Tells our file from another program's.
_APPLICATION_ID: Final = 0x494C5355
_BUSY_SECONDS: Final = 2.0
_MOST_USED: Final = 20_000
_MOST_VECTORS: Final = 20_000
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
    _APPLICATION_ID, SCHEMA_VERSION, _SCHEMA, "The search's memory", "a memory of searches"
)
_log = logging.getLogger("interlock.state")


class SearchStore:
    """The file at `path`. Everything here may be called in any thread."""

    def __init__(self, path: Path | None) -> None:
        """`path` None: in memory. Raises InterlockError for a file that is not ours."""
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
                CONFIG, f"The search's memory {path} cannot be used: {exc}. Move it aside."
            ) from None

    @classmethod
    def at(cls, path: Path) -> SearchStore:
        """The memory at `path`; one that ends with the node when that file cannot be used."""
        try:
            return cls(path)
        except InterlockError as error:
            _log.warning("%s What is used is remembered until the node stops.", error.message)
            return cls(None)

    def close(self) -> None:
        with self._lock:
            self._file.close()

    # -- what was used

    def tallies(self) -> list[tuple[Key, UsageTally]]:
        """Everything that was used, for `Usage`."""
        try:
            with self._lock:
                rows = self._file.execute("SELECT * FROM used").fetchall()
        except sqlite3.Error as exc:
            _log.warning("What was used before cannot be read: %s", exc)
            return []
        return [
            ((tool, caller), UsageTally(calls, good, last))
            for tool, caller, calls, good, last in rows
        ]

    def keep_usage(self, usage: Usage) -> None:
        """Write what changed."""
        changed = usage.taken()
        rows = [(*key, tally.calls, tally.successes, tally.last) for key, tally in changed]
        if rows and not self._write(
            "INSERT OR REPLACE INTO used VALUES (?, ?, ?, ?, ?)", rows, "used", "last", _MOST_USED
        ):
            usage.changed.update(key for key, _ in changed)

    # -- vectors

    def vectors(self, digests: Iterable[str]) -> Mapping[str, bytes]:
        found: dict[str, bytes] = {}
        try:
            with self._lock:
                for digest in digests:
                    row = self._file.execute(
                        "SELECT made FROM vector WHERE digest = ?", (digest,)
                    ).fetchone()
                    if row is not None:
                        found[digest] = row[0]
        except sqlite3.Error as exc:
            _log.warning("Kept vectors cannot be read: %s", exc)
        return found

    def keep_vectors(self, vectors: Mapping[str, bytes]) -> None:
        self._write(
            "INSERT OR REPLACE INTO vector VALUES (?, ?)",
            list(vectors.items()),
            "vector",
            "rowid",
            _MOST_VECTORS,
        )

    def _write(
        self, statement: str, rows: Sequence[tuple[object, ...]],
        table: str, oldest_by: str, most: int,
    ) -> bool:  # fmt: skip
        """Everything or nothing of it, and no more than so many rows; whether it was written."""
        try:
            with self._lock:
                self._file.execute("BEGIN IMMEDIATE")
                try:
                    self._file.executemany(statement, rows)
                    self._file.execute(
                        f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} "
                        f"ORDER BY {oldest_by} DESC LIMIT -1 OFFSET {most})"
                    )
                except BaseException:
                    self._file.execute("ROLLBACK")
                    raise
                self._file.execute("COMMIT")
        except sqlite3.Error as exc:
            _log.warning("The search's memory cannot be written: %s", exc)
            return False
        return True
