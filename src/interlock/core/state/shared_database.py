"""A small SQLite file that a node and the command line share: either may write, and a node notices
what others wrote. It stays open, is used by one thread at a time, and says in words what is wrong
with it. It has no write-ahead log, so that it can be read where nothing can be written, as on a
full disk.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interlock.core.state.database import DatabaseKind, make_private, transaction
from interlock.errors import CONFIG, INTERNAL, TOO_BUSY, InterlockError


class SharedFile:
    """The file at `path`. Everything here may be called in any thread."""

    def __init__(
        self,
        path: Path | None,
        kind: DatabaseKind,
        *,
        patience: float,
        removed: str,
        checked: bool = False,
    ) -> None:
        """`path` None: in memory. `patience`: how many seconds another program may hold it.
        `removed`: what follows from removing it, for whoever reads that it is broken. `checked`:
        a page that cannot be read is found now. Raises InterlockError."""
        self.path = path
        self._kind = kind
        self._patience = patience
        self._removed = removed
        self._lock = threading.Lock()
        with self._said():
            self.connection = self._open(checked)
            self._version = self._data_version()

    def close(self) -> None:
        with self._lock:
            self.connection.close()

    def changed_elsewhere(self) -> bool:
        """Whether somebody else wrote since this was last asked. Raises InterlockError."""
        with self._lock, self._said():
            version = self._data_version()
        changed, self._version = version != self._version, version
        return changed

    @contextmanager
    def reading(self, patience: float | None = None) -> Iterator[sqlite3.Connection]:
        """For statements that change nothing. Raises InterlockError; TOO_BUSY when somebody has
        the file for longer than that."""
        if not self._lock.acquire(timeout=2 * self._patience if patience is None else patience):
            raise InterlockError(TOO_BUSY, f"{self._kind.called} is being written. Try again.")
        try:
            with self._said():
                if patience is None:
                    yield self.connection
                    return
                self._wait_for(patience)
                try:
                    yield self.connection
                finally:
                    self._wait_for(self._patience)
        finally:
            self._lock.release()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Everything or nothing of it. Raises InterlockError."""
        with self._lock, self._said(), transaction(self.connection) as file:
            yield file

    def _wait_for(self, seconds: float) -> None:
        self.connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")

    @contextmanager
    def _said(self) -> Iterator[None]:
        """What goes wrong with the file, as an InterlockError."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            called = self._kind.called
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise InterlockError(
                    TOO_BUSY, f"{called} is held by another program. Try again."
                ) from error
            broken = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
            advice = (
                f"Restore it from a copy, or remove it: then {self._removed}."
                if broken
                else "Look at its disk and its permissions."
            )
            raise InterlockError(
                CONFIG if broken else INTERNAL,
                f"{called} {self.path} cannot be used: {error}. {advice}",
                {"path": str(self.path)},
            ) from error

    def _data_version(self) -> int:
        return int(self.connection.execute("PRAGMA data_version").fetchone()[0])

    def _open(self, checked: bool) -> sqlite3.Connection:
        if self.path is not None and not self.path.exists():
            # One that is there is left as it is: on a full disk it can still be read.
            make_private(self.path)
        file = sqlite3.connect(
            self.path or ":memory:",
            timeout=self._patience,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._kind.make_ready(file, self.path)
            problem = file.execute("PRAGMA quick_check(1)").fetchone()[0] if checked else "ok"
            if problem != "ok":
                broken = sqlite3.DatabaseError(problem)
                broken.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                raise broken
        except BaseException:
            file.close()
            raise
        return file
