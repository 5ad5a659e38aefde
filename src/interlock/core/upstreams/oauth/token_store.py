"""Where the tokens of upstreams are kept: a SQLite file of its own that only its user can read.

It knows nothing of what it keeps. Records go by the key of a server and its URL; each version of a
grant has a stamp, so that of two writers the slower one notices. A lease lets one process of
several be the only one to renew a grant. Every call opens the file, does one thing and closes it:
they are rare, and come from any thread and any process. Deleted records are overwritten.
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

# "ILTK". Tells our file from another program's.
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
    """The file at `path`. It is made when something is first kept."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock

    def exists(self) -> bool:
        """Whether anything was ever kept."""
        return self.path.exists()

    # -- grants

    def grant(self, server: str, url: str) -> tuple[bytes, int] | None:
        """A grant, and the stamp by which this version of it is known."""
        if not self.exists():
            return None
        with self._opened() as file:
            row = file.execute(
                "SELECT body, stamp FROM grant_kept WHERE server = ? AND url = ?", (server, url)
            ).fetchone()
        return None if row is None else (bytes(row[0]), int(row[1]))

    def keep_grant(
        self, server: str, url: str, body: bytes, *, instead_of: int | None = None
    ) -> int | None:
        """Keep a grant; its stamp. With `instead_of` only in place of that version, else None."""
        stamp = secrets.randbelow(2**62) + 1
        with self._opened() as file:
            if instead_of is None:
                file.execute(
                    "INSERT OR REPLACE INTO grant_kept VALUES (?, ?, ?, ?)",
                    (server, url, stamp, body),
                )
                return stamp
            changed = file.execute(
                "UPDATE grant_kept SET stamp = ?, body = ?"
                " WHERE server = ? AND url = ? AND stamp = ?",
                (stamp, body, server, url, instead_of),
            )
            return stamp if changed.rowcount else None

    # -- clients

    def client(self, server: str, url: str, issuer: str) -> bytes | None:
        """The client that was registered with an issuer."""
        if not self.exists():
            return None
        with self._opened() as file:
            row = file.execute(
                "SELECT body FROM client_kept WHERE server = ? AND url = ? AND issuer = ?",
                (server, url, issuer),
            ).fetchone()
        return None if row is None else bytes(row[0])

    def keep_client(self, server: str, url: str, issuer: str, body: bytes) -> None:
        """Keep the client that was registered with an issuer."""
        with self._opened() as file:
            file.execute(
                "INSERT OR REPLACE INTO client_kept VALUES (?, ?, ?, ?)",
                (server, url, issuer, body),
            )

    def forget(self, server: str, url: str) -> bool:
        """Forget everything about a server; whether there was anything."""
        if not self.exists():
            return False
        with self._opened() as file:
            gone = 0
            for table in ("grant_kept", "client_kept"):
                gone += file.execute(
                    f"DELETE FROM {table} WHERE server = ? AND url = ?", (server, url)
                ).rowcount
        return gone > 0

    # -- leases

    def lease(self, server: str, url: str, holder: str, seconds: float) -> bool:
        """Be the only one, of all processes, who renews this grant for so long."""
        now = self._clock()
        with self._opened() as file:
            taken = file.execute(
                "INSERT INTO lease VALUES (?, ?, ?, ?) ON CONFLICT (server, url) DO UPDATE"
                " SET holder = excluded.holder, ends = excluded.ends"
                " WHERE lease.ends <= ? OR lease.holder = excluded.holder OR lease.ends > ?",
                # One that ends in the far future was taken before the clock was set back.
                (server, url, holder, now + seconds, now, now + 10 * seconds),
            )
            return taken.rowcount > 0

    def release(self, server: str, url: str, holder: str) -> None:
        """Give a lease back before its time."""
        with self._opened() as file:
            file.execute(
                "DELETE FROM lease WHERE server = ? AND url = ? AND holder = ?",
                (server, url, holder),
            )

    # -- the file

    def _opened(self) -> AbstractContextManager[sqlite3.Connection]:
        """The file, in one transaction. Raises InterlockError."""
        return _FILE.opened(self.path, advice="move it aside and sign in again", wiped=True)
