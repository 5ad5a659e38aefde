"""The store of upstream tokens: a SQLite file that only its user can read.

It does not interpret its records. They are stored by the key of a server and its URL. Each version
of a grant has a random number, so that the slower of two writers notices the other. A lease allows
one of several processes to renew a grant. Each method opens the file, does one operation and closes
it: calls are rare, from any thread and any process. Deleted records are overwritten.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from interlock.core.state.database import DatabaseKind

SCHEMA_VERSION: Final = 1

# "ILTK". Identifies the file as ours.
_APPLICATION_ID: Final = 0x494C544B
_SCHEMA: Final = (
    """CREATE TABLE grant_kept (
        server TEXT NOT NULL,
        url    TEXT NOT NULL,
        stamp  INTEGER NOT NULL,
        body   BLOB NOT NULL,
        PRIMARY KEY (server, url)
    )""",
    """CREATE TABLE client_kept (
        server TEXT NOT NULL,
        url    TEXT NOT NULL,
        issuer TEXT NOT NULL,
        body   BLOB NOT NULL,
        PRIMARY KEY (server, url, issuer)
    )""",
    """CREATE TABLE lease (
        server TEXT NOT NULL,
        url    TEXT NOT NULL,
        holder TEXT NOT NULL,
        ends   REAL NOT NULL,
        PRIMARY KEY (server, url)
    )""",
)
_FILE: Final = DatabaseKind(
    _APPLICATION_ID, SCHEMA_VERSION, _SCHEMA, "The token store", "a token store"
)


class TokenStore:
    """The file at `path`. It is created when something is first stored."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock

    def exists(self) -> bool:
        """Return whether anything was ever stored."""
        return self.path.exists()

    # -- grants

    def grant(self, server: str, url: str) -> tuple[bytes, int] | None:
        """Return a grant and its version."""
        if not self.exists():
            return None
        with self._open() as connection:
            row = connection.execute(
                "SELECT body, stamp FROM grant_kept WHERE server = ? AND url = ?", (server, url)
            ).fetchone()
        return None if row is None else (bytes(row[0]), int(row[1]))

    def save_grant(
        self, server: str, url: str, body: bytes, *, replaces: int | None = None
    ) -> int | None:
        """Save a grant and return its version. With `replaces`, only if that is the current
        version; else return None."""
        version = secrets.randbelow(2**62) + 1
        with self._open() as connection:
            if replaces is None:
                connection.execute(
                    "INSERT OR REPLACE INTO grant_kept VALUES (?, ?, ?, ?)",
                    (server, url, version, body),
                )
                return version
            changed = connection.execute(
                "UPDATE grant_kept SET stamp = ?, body = ?"
                " WHERE server = ? AND url = ? AND stamp = ?",
                (version, body, server, url, replaces),
            )
            return version if changed.rowcount else None

    # -- clients

    def client(self, server: str, url: str, issuer: str) -> bytes | None:
        """Return the client that was registered with an issuer."""
        if not self.exists():
            return None
        with self._open() as connection:
            row = connection.execute(
                "SELECT body FROM client_kept WHERE server = ? AND url = ? AND issuer = ?",
                (server, url, issuer),
            ).fetchone()
        return None if row is None else bytes(row[0])

    def save_client(self, server: str, url: str, issuer: str, body: bytes) -> None:
        """Save the client that was registered with an issuer."""
        with self._open() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO client_kept VALUES (?, ?, ?, ?)",
                (server, url, issuer, body),
            )

    def delete(self, server: str, url: str) -> bool:
        """Delete everything about a server. Returns whether there was anything."""
        if not self.exists():
            return False
        with self._open() as connection:
            deleted_rows = 0
            for table in ("grant_kept", "client_kept"):
                deleted_rows += connection.execute(
                    f"DELETE FROM {table} WHERE server = ? AND url = ?", (server, url)
                ).rowcount
        return deleted_rows > 0

    # -- leases

    def lease(self, server: str, url: str, holder: str, seconds: float) -> bool:
        """Lock the renewal of a grant for all processes. Returns whether that succeeded."""
        now = self._clock()
        with self._open() as connection:
            result = connection.execute(
                "INSERT INTO lease VALUES (?, ?, ?, ?) ON CONFLICT (server, url) DO UPDATE"
                " SET holder = excluded.holder, ends = excluded.ends"
                " WHERE lease.ends <= ? OR lease.holder = excluded.holder OR lease.ends > ?",
                # A lease that ends far in the future is from before the clock was set back.
                (server, url, holder, now + seconds, now, now + 10 * seconds),
            )
            return result.rowcount > 0

    def release(self, server: str, url: str, holder: str) -> None:
        """Release a lease before it expires."""
        with self._open() as connection:
            connection.execute(
                "DELETE FROM lease WHERE server = ? AND url = ? AND holder = ?",
                (server, url, holder),
            )

    # -- the file

    def _open(self) -> AbstractContextManager[sqlite3.Connection]:
        """Open the file for one transaction. Raises InterlockError."""
        return _FILE.open_transaction(
            self.path, advice="move it aside and sign in again", secure_delete=True
        )
