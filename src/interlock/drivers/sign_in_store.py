"""Who is signed in with which driver: a small SQLite file that only its user can read.

There is no secret in it. A node and the command line share it: every call opens the file, does one
thing and closes it; they are rare, and come from any thread and any process.
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

# "ILDS". Tells our file from another program's.
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
    "The store of driver states",
    "a store of driver states",
)


class SignInRecord(NamedTuple):
    """One row, as a list shows it. Moments are on the wall clock."""

    driver: str
    workspace: str
    user: str
    authed: bool
    refreshed_at: float
    changed_at: float


class SqliteSignInStore:
    """The file at `path`. It is made when something is first kept."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock

    def state(self, driver: str, workspace: str, user: str) -> tuple[bool, float] | None:
        """Whether somebody is signed in, and since when that is fresh; None: nobody ever was."""
        if not self.path.exists():
            return None
        with self._opened() as file:
            row = file.execute(
                "SELECT authed, refreshed_at FROM signed_in"
                " WHERE driver = ? AND workspace = ? AND user = ?",
                (driver, workspace, user),
            ).fetchone()
        return None if row is None else (bool(row[0]), float(row[1]))

    def save(
        self, driver: str, workspace: str, user: str, *, authed: bool, refreshed_at: float
    ) -> None:
        """Somebody is signed in, or is not any more."""
        with self._opened() as file:
            file.execute(
                "INSERT OR REPLACE INTO signed_in VALUES (?, ?, ?, ?, ?, ?)",
                (driver, workspace, user, int(authed), refreshed_at, self._clock()),
            )

    def delete(self, driver: str) -> bool:
        """Forget everybody who is signed in with a driver; whether there was anybody."""
        if not self.path.exists():
            return False
        with self._opened() as file:
            gone = file.execute("DELETE FROM signed_in WHERE driver = ?", (driver,))
            return gone.rowcount > 0

    def list_records(self) -> list[SignInRecord]:
        """All rows, by driver, workspace and user."""
        if not self.path.exists():
            return []
        with self._opened() as file:
            rows = file.execute(
                "SELECT driver, workspace, user, authed, refreshed_at, changed_at FROM signed_in"
                " ORDER BY driver, workspace, user"
            ).fetchall()
        return [
            SignInRecord(driver, workspace, user, bool(authed), refreshed_at, changed_at)
            for driver, workspace, user, authed, refreshed_at, changed_at in rows
        ]

    def _opened(self) -> AbstractContextManager[sqlite3.Connection]:
        """The file, in one transaction. Raises InterlockError."""
        return _FILE.opened(self.path, advice="move it aside and sign in again")
