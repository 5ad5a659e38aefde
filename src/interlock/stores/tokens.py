"""Where the tokens of upstreams are kept: a SQLite file of its own that only its user can read.

It knows nothing of what it keeps. Records go by the key of a server and its URL; each version of a
grant has a stamp, so that of two writers the slower one notices. A lease lets one process of
several be the only one to renew a grant. Every call opens the file, does one thing and closes it:
they are rare, and come from any thread and any process. Deleted records are overwritten.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from interlock import errors
from interlock.errors import InterlockError

SCHEMA_VERSION: Final = 1

# "ILTK". Tells our file from another program's.
_APPLICATION_ID: Final = 0x494C544B
_BUSY_SECONDS: Final = 5.0
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

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """The file, in one transaction. Raises InterlockError."""
        try:
            self._make_private()
            with closing(
                sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
            ) as file:
                file.execute("PRAGMA secure_delete = ON")
                file.execute("BEGIN IMMEDIATE")
                self._prepare(file)
                yield file
                file.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise InterlockError(
                errors.INTERNAL,
                f"The token store {self.path} cannot be used: {error}. "
                "Look at its disk and its permissions, or move it aside and sign in again.",
                data={"path": str(self.path)},
            ) from error

    def _make_private(self) -> None:
        """Only its owner may read it, whatever the mode was before.

        SQLite gives the files that it makes beside it the same mode.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(
            self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError("it is not a file")
            if stat.S_IMODE(status.st_mode) & 0o077:
                os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)

    def _prepare(self, file: sqlite3.Connection) -> None:
        version: int = file.execute("PRAGMA user_version").fetchone()[0]
        application: int = file.execute("PRAGMA application_id").fetchone()[0]
        if version == SCHEMA_VERSION and application == _APPLICATION_ID:
            return
        if version > SCHEMA_VERSION and application == _APPLICATION_ID:
            raise InterlockError(
                errors.CONFIG,
                f"The token store {self.path} was written by a newer Interlock. Upgrade this one.",
            )
        tables: int = file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application or version or tables:
            raise InterlockError(
                errors.CONFIG,
                f"{self.path} is another program's database, not a token store. Move it aside.",
            )
        for statement in _SCHEMA:
            file.execute(statement)
        file.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        file.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
