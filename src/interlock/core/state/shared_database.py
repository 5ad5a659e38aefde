"""A small SQLite file that a node and the command line share: both may write, and a node notices
the changes of others. It stays open and is used by one thread at a time. It has no write-ahead log,
so that it can be read where nothing can be written, such as on a full disk.
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
    """The file at `path`. All methods may be called in any thread."""

    def __init__(
        self,
        path: Path | None,
        kind: DatabaseKind,
        *,
        busy_timeout: float,
        removal_effect: str,
        check_integrity: bool = False,
    ) -> None:
        """
        Args:
            path: None: in memory.
            busy_timeout: seconds to wait while another program uses the file.
            removal_effect: what happens if a damaged file is removed, for the error message.
            check_integrity: read all pages now.

        Raises:
            InterlockError: the file cannot be used.
        """
        self.path = path
        self._kind = kind
        self._busy_timeout = busy_timeout
        self._removal_effect = removal_effect
        self._lock = threading.Lock()
        with self._convert_errors():
            self.connection = self._open(check_integrity)
            self._version = self._data_version()

    def close(self) -> None:
        with self._lock:
            self.connection.close()

    def was_changed_externally(self) -> bool:
        """Return whether another process wrote since the last call. Raises InterlockError."""
        with self._lock, self._convert_errors():
            version = self._data_version()
        changed, self._version = version != self._version, version
        return changed

    @contextmanager
    def reading(self, busy_timeout: float | None = None) -> Iterator[sqlite3.Connection]:
        """Provide the connection for statements that change nothing.

        Raises:
            InterlockError: TOO_BUSY if another program uses the file for longer than the timeout.
        """
        if not self._lock.acquire(
            timeout=2 * self._busy_timeout if busy_timeout is None else busy_timeout
        ):
            raise InterlockError(
                TOO_BUSY, f"{self._kind.display_name} is being written. Try again."
            )
        try:
            with self._convert_errors():
                if busy_timeout is None:
                    yield self.connection
                    return
                self._set_busy_timeout(busy_timeout)
                try:
                    yield self.connection
                finally:
                    self._set_busy_timeout(self._busy_timeout)
        finally:
            self._lock.release()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Run a write transaction. Raises InterlockError."""
        with self._lock, self._convert_errors(), transaction(self.connection) as file:
            yield file

    def _set_busy_timeout(self, seconds: float) -> None:
        self.connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Convert errors of the file to InterlockError."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            display_name = self._kind.display_name
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise InterlockError(
                    TOO_BUSY, f"{display_name} is used by another program. Try again."
                ) from error
            is_broken = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
            advice = (
                f"Restore it from a copy, or remove it: then {self._removal_effect}."
                if is_broken
                else "Check its disk and its permissions."
            )
            raise InterlockError(
                CONFIG if is_broken else INTERNAL,
                f"{display_name} {self.path} cannot be used: {error}. {advice}",
                {"path": str(self.path)},
            ) from error

    def _data_version(self) -> int:
        return int(self.connection.execute("PRAGMA data_version").fetchone()[0])

    def _open(self, check_integrity: bool) -> sqlite3.Connection:
        if self.path is not None and not self.path.exists():
            # An existing file is not changed: on a full disk it can still be read.
            make_private(self.path)
        file = sqlite3.connect(
            self.path or ":memory:",
            timeout=self._busy_timeout,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._kind.make_ready(file, self.path)
            problem = (
                file.execute("PRAGMA quick_check(1)").fetchone()[0] if check_integrity else "ok"
            )
            if problem != "ok":
                broken = sqlite3.DatabaseError(problem)
                broken.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                raise broken
        except BaseException:
            file.close()
            raise
        return file
