"""What a node remembers of the tree: who it is, who owns which segment, who is registered where.

One SQLite file. A node has its own, for its identities and for the claims on its segments; the
leases may be in another file, which several nodes of a tree share. A lease says that a subserver is
registered with an aggregator for so long; one that nobody renews lapses by itself. Everything here
is small and quick, and done in the caller's own thread.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

from interlock import errors
from interlock.errors import InterlockError

SCHEMA_VERSION: Final = 1

# "ILTR". Tells our file from another program's.
_APPLICATION_ID: Final = 0x494C5452
_BUSY_SECONDS: Final = 2.0
_log = logging.getLogger("interlock.stores")
_SCHEMA: Final = (
    "CREATE TABLE identity (role TEXT PRIMARY KEY, id TEXT NOT NULL)",
    """CREATE TABLE claim (
        segment   TEXT PRIMARY KEY,
        authority TEXT NOT NULL,
        verified  INTEGER NOT NULL
    )""",
    """CREATE TABLE lease (
        subserver_id  TEXT NOT NULL,
        aggregator_id TEXT NOT NULL,
        tree_id       TEXT NOT NULL,
        authority     TEXT NOT NULL,
        ends          REAL NOT NULL,
        PRIMARY KEY (subserver_id, aggregator_id)
    )""",
)


class Claim(NamedTuple):
    """Who owns a segment."""

    segment: str
    authority: str
    """A DNS name behind `dns:`."""
    verified: bool
    """Whether that was ever proven."""


class Lease(NamedTuple):
    """Where a subserver is registered, and until when that holds without another word."""

    subserver_id: str
    aggregator_id: str
    tree_id: str
    authority: str
    until: float
    """Seconds on the wall clock."""


class TreeStore:
    """The file at `path`, and the one for leases when that is another."""

    def __init__(
        self, path: Path, *, leases: Path | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """`leases`: a file that several nodes share. Both are made when they are first used."""
        self._own = _File(path)
        self._leases = self._own if leases is None else _File(leases)
        self._clock = clock

    def close(self) -> None:
        self._own.close()
        self._leases.close()

    # -- who this is

    def identity(self, role: str) -> str:
        """The UUID of this node in a role. It is made once, and stays. Raises InterlockError."""
        with self._own.opened() as file:
            file.execute("INSERT OR IGNORE INTO identity VALUES (?, ?)", (role, str(uuid4())))
            row = file.execute("SELECT id FROM identity WHERE role = ?", (role,)).fetchone()
        return str(row[0])

    # -- who owns what

    def claim_on(self, segment: str) -> Claim | None:
        with self._own.opened() as file:
            row = file.execute("SELECT * FROM claim WHERE segment = ?", (segment,)).fetchone()
        return None if row is None else Claim(row[0], row[1], bool(row[2]))

    def claims(self) -> list[Claim]:
        with self._own.opened() as file:
            rows = file.execute("SELECT * FROM claim ORDER BY segment").fetchall()
        return [Claim(segment, authority, bool(proven)) for segment, authority, proven in rows]

    def keep_claim(self, segment: str, authority: str, verified: bool) -> bool:
        """Write it down. False: there is a proven one, which an unproven one never displaces."""
        with self._own.opened() as file:
            kept = file.execute(
                "INSERT INTO claim VALUES (?, ?, ?) ON CONFLICT (segment) DO UPDATE"
                " SET authority = excluded.authority, verified = excluded.verified"
                " WHERE excluded.verified OR NOT claim.verified",
                (segment, authority, verified),
            )
            return kept.rowcount > 0

    def forget_claim(self, segment: str) -> bool:
        """Give a segment up to whoever comes next; whether somebody had it."""
        with self._own.opened() as file:
            gone = file.execute("DELETE FROM claim WHERE segment = ?", (segment,))
            return gone.rowcount > 0

    # -- who is registered where

    def leases(self, subserver_id: str) -> list[Lease]:
        """The leases of a subserver that have not lapsed."""
        with self._leases.opened() as file:
            rows = file.execute(
                "SELECT * FROM lease WHERE subserver_id = ? AND ends > ?",
                (subserver_id, self._clock()),
            ).fetchall()
        return [Lease(*row) for row in rows]

    def other_lease(self, subserver_id: str, aggregator_id: str, tree_id: str) -> Lease | None:
        """That of another aggregator in the same tree, if it has not lapsed."""
        with self._leases.opened() as file:
            return _other(file, subserver_id, aggregator_id, tree_id, self._clock())

    def take_lease(
        self, subserver_id: str, aggregator_id: str, tree_id: str, authority: str, until: float
    ) -> Lease | None:
        """Write it down, unless another aggregator of the same tree has one: that one is given
        back, and nothing is changed."""
        with self._leases.opened() as file:
            other = _other(file, subserver_id, aggregator_id, tree_id, self._clock())
            if other is None:
                file.execute(
                    "INSERT OR REPLACE INTO lease VALUES (?, ?, ?, ?, ?)",
                    (subserver_id, aggregator_id, tree_id, authority, until),
                )
        return other

    def renew_leases(self, aggregator_id: str, until: Iterable[tuple[str, float]]) -> None:
        """Let the leases of these subservers last until then, where nobody else took them."""
        with self._leases.opened() as file:
            file.executemany(
                "UPDATE lease SET ends = ? WHERE subserver_id = ? AND aggregator_id = ?",
                [(ends, subserver_id, aggregator_id) for subserver_id, ends in until],
            )

    def release_lease(self, subserver_id: str, aggregator_id: str) -> None:
        with self._leases.opened() as file:
            file.execute(
                "DELETE FROM lease WHERE subserver_id = ? AND aggregator_id = ?",
                (subserver_id, aggregator_id),
            )


def _other(
    file: sqlite3.Connection, subserver_id: str, aggregator_id: str, tree_id: str, now: float
) -> Lease | None:
    # Nobody renews these any more.
    file.execute("DELETE FROM lease WHERE subserver_id = ? AND ends <= ?", (subserver_id, now))
    row = file.execute(
        "SELECT * FROM lease WHERE subserver_id = ? AND tree_id = ? AND aggregator_id <> ? LIMIT 1",
        (subserver_id, tree_id, aggregator_id),
    ).fetchone()
    return None if row is None else Lease(*row)


class _File:
    """A database that stays open from its first use on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """In one transaction. Raises InterlockError."""
        try:
            file = self._connection
            if file is None:
                file = self._connection = self._open()
            file.execute("BEGIN IMMEDIATE")
            try:
                yield file
            except BaseException:
                file.execute("ROLLBACK")
                raise
            file.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise InterlockError(
                errors.INTERNAL,
                f"The registration store {self._path} cannot be used: {error}. "
                "Look at its disk and its permissions.",
                {"path": str(self._path)},
            ) from error

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Only its owner may read it; SQLite gives the files beside it the same mode.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        file = sqlite3.connect(
            self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            # A lease that a power cut takes is taken again at the next registration.
            file.execute("PRAGMA synchronous = NORMAL")
            file.execute("BEGIN IMMEDIATE")
            self._prepare(file)
            file.execute("COMMIT")
            self._write_ahead(file)
        except BaseException:
            file.close()
            raise
        return file

    def _write_ahead(self, file: sqlite3.Connection) -> None:
        try:
            file.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as busy:
            # Somebody else uses it this very moment. It is the same file in either mode.
            _log.debug("%s is not in WAL mode yet: %s", self._path, busy)

    def _prepare(self, file: sqlite3.Connection) -> None:
        version: int = file.execute("PRAGMA user_version").fetchone()[0]
        application: int = file.execute("PRAGMA application_id").fetchone()[0]
        if version == SCHEMA_VERSION and application == _APPLICATION_ID:
            return
        if version > SCHEMA_VERSION and application == _APPLICATION_ID:
            raise InterlockError(
                errors.CONFIG,
                f"The registration store {self._path} was written by a newer Interlock. "
                "Upgrade this one.",
            )
        tables: int = file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application or version or tables:
            raise InterlockError(
                errors.CONFIG,
                f"{self._path} is another program's database, not a registration store. "
                "Name another file.",
            )
        for statement in _SCHEMA:
            file.execute(statement)
        file.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        file.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
