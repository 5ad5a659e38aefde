"""The store of driver sign-ins: a small SQLite file that only its user can read.

It contains no secrets. A node and the command line share it. Every call opens the file, runs one
statement and closes it. Calls are rare and come from any thread and process.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

from interlock.core.state.database import DatabaseKind

SCHEMA_VERSION: Final = 1

# "ILDS". Distinguishes the file from files of other programs.
_APPLICATION_ID: Final = 0x494C4453
_SCHEMA: Final = (
    """CREATE TABLE signed_in (
        driver       TEXT NOT NULL,
        workspace    TEXT NOT NULL,
        user         TEXT NOT NULL,
        authed       INTEGER NOT NULL,
        refreshed_at REAL NOT NULL,
        changed_at   REAL NOT NULL,
        PRIMARY KEY (driver, workspace, user)
    )""",
)
_FILE: Final = DatabaseKind(
    _APPLICATION_ID,
    SCHEMA_VERSION,
    _SCHEMA,
    "The store of driver sign-ins",
    "a store of driver sign-ins",
)


class SignInRecord(NamedTuple):
    """A row of the store. Times are wall clock."""

    driver: str
    workspace: str
    user: str
    authed: bool
    refreshed_at: float
    changed_at: float


class SqliteSignInStore:
    """The store at `path`. The file is created by the first write."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock

    def state(self, driver: str, workspace: str, user: str) -> tuple[bool, float] | None:
        """Return whether the user is signed in, and the time of the last refresh. None: the user
        never signed in."""
        if not self.path.exists():
            return None
        with self._open() as file:
            row = file.execute(
                "SELECT authed, refreshed_at FROM signed_in"
                " WHERE driver = ? AND workspace = ? AND user = ?",
                (driver, workspace, user),
            ).fetchone()
        return None if row is None else (bool(row[0]), float(row[1]))

    def save(
        self, driver: str, workspace: str, user: str, *, authed: bool, refreshed_at: float
    ) -> None:
        """Store whether the user is signed in."""
        with self._open() as file:
            file.execute(
                "INSERT OR REPLACE INTO signed_in VALUES (?, ?, ?, ?, ?, ?)",
                (driver, workspace, user, int(authed), refreshed_at, self._clock()),
            )

    def delete(self, driver: str) -> bool:
        """Delete all sign-ins of a driver. Return True if there was one."""
        if not self.path.exists():
            return False
        with self._open() as file:
            deleted = file.execute("DELETE FROM signed_in WHERE driver = ?", (driver,))
            return deleted.rowcount > 0

    def list_records(self) -> list[SignInRecord]:
        """Return all rows, ordered by driver, workspace and user."""
        if not self.path.exists():
            return []
        with self._open() as file:
            rows = file.execute(
                "SELECT driver, workspace, user, authed, refreshed_at, changed_at FROM signed_in"
                " ORDER BY driver, workspace, user"
            ).fetchall()
        return [
            SignInRecord(driver, workspace, user, bool(authed), refreshed_at, changed_at)
            for driver, workspace, user, authed, refreshed_at, changed_at in rows
        ]

    def _open(self) -> AbstractContextManager[sqlite3.Connection]:
        """Open the file in one transaction. Raises InterlockError."""
        return _FILE.open_transaction(self.path, advice="move it aside and sign in again")
