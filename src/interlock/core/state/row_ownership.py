"""Ownership of rows if several nodes share a state folder.

A node marks its rows with a name of its own. A locked file beside the database shows that it is
alive. The system releases the lock when the node ends for any reason, and the next node that starts
adopts its rows.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
from pathlib import Path

from interlock.core.state.database import make_private


class RowOwner:
    """One node as the owner of rows in the database at `path`."""

    def __init__(self, path: Path) -> None:
        self.name = secrets.token_hex(8)
        self._path = path
        self._lock: int | None = None

    def acquire_lock(self) -> None:
        """Acquire the lock, before the first row is marked. Raises OSError."""
        if self._lock is None:
            path = self._lock_path(self.name)
            make_private(path)
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._lock = lock

    def adopt_rows(self, file: sqlite3.Connection, table: str) -> list[tuple[str, bytes]]:
        """Adopt the rows of owners that are gone, and return all rows of this node: `id` and
        `record`.

        In the caller's transaction, so that no two nodes adopt the same rows.
        """
        self.acquire_lock()
        for (keeper,) in file.execute(f"SELECT DISTINCT keeper FROM {table}").fetchall():
            if keeper != self.name and not self._is_alive(keeper):
                file.execute(f"UPDATE {table} SET keeper = ? WHERE keeper = ?", (self.name, keeper))
        query = f"SELECT id, record FROM {table} WHERE keeper = ?"
        return file.execute(query, (self.name,)).fetchall()

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            self._lock_path(self.name).unlink(missing_ok=True)

    def _is_alive(self, keeper: str) -> bool:
        path = self._lock_path(keeper)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(lock)

    def _lock_path(self, keeper: str) -> Path:
        return self._path.with_name(f"{self._path.name}-{keeper}.lock")
