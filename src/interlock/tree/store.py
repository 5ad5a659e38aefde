"""The registration store of a node (SQLite): its identities, claims on segments, and leases.

Each node has a file for its identities and claims. The leases can be in another file that several
nodes of a tree share. A lease says that a subserver is registered with an aggregator until a time.
It expires unless it is renewed. All operations are short and run in the thread of the caller. Reads
do not wait for locks, and writes wait only briefly, so a locked shared file never stops a node.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

from interlock import errors
from interlock.core.config import Config
from interlock.core.paths import state_dir
from interlock.core.state.database import DatabaseKind, transaction
from interlock.errors import InterlockError
from interlock.tree.config import SubserversConfig

SCHEMA_VERSION: Final = 2
UNPROVEN_CLAIM_SECONDS: Final = 24 * 3600.0
"""An unproven claim expires after this time without use."""

# "ILTR". Distinguishes the file from files of other programs.
_APPLICATION_ID: Final = 0x494C5452
_START_BUSY_TIMEOUT_MS: Final = 2000
_BUSY_TIMEOUT_MS: Final = 50
"""The time to wait for a locked file: when a node starts, and while it serves."""
_log = logging.getLogger("interlock.state")
_SCHEMA: Final = (
    "CREATE TABLE identity (role TEXT PRIMARY KEY, id TEXT NOT NULL)",
    """CREATE TABLE claim (
        segment   TEXT PRIMARY KEY,
        authority TEXT NOT NULL,
        verified  INTEGER NOT NULL,
        used      REAL NOT NULL
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
_DATABASE_KIND: Final = DatabaseKind(
    _APPLICATION_ID,
    SCHEMA_VERSION,
    _SCHEMA,
    "The registration store",
    "a registration store",
    "Name another file.",
)


def tree_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Return the path of the file with the identities and claims of a node."""
    return state_dir(config, environ, base_dir) / "tree.db"


def shared_leases_path(config: Config, base_dir: Path) -> Path | None:
    """Return the path of the shared registration store, or None."""
    store = config.section(SubserversConfig).store
    return None if store is None else base_dir / Path(store).expanduser()


class Claim(NamedTuple):
    """The owner of a segment."""

    segment: str
    authority: str
    """`dns:` and a DNS name."""
    verified: bool
    """True if the authority was proven."""
    used: float
    """The last time at which a subserver with this authority was listed, on the wall clock."""


class Lease(NamedTuple):
    """The registration of a subserver with an aggregator, until a time."""

    subserver_id: str
    aggregator_id: str
    tree_id: str
    authority: str
    until: float
    """The expiry, in seconds on the wall clock."""


class TreeStore:
    """The registration store: one file, or two with a separate file for leases."""

    def __init__(
        self,
        path: Path | None,
        *,
        leases: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the store. The files are created on their first use.

        Args:
            path: the file of the node. None: in memory.
            leases: the file for leases that several nodes share. None: the file of the node.
        """
        self._node_file = _DatabaseFile(path, clock)
        self._lease_file = self._node_file if leases is None else _DatabaseFile(leases, clock)
        self._clock = clock

    def close(self) -> None:
        self._node_file.close()
        self._lease_file.close()

    # -- identities

    def identity(self, role: str) -> str:
        """Return the permanent UUID of this node in a role. Raises InterlockError."""
        # A node that starts has no clients yet, so it can wait for a lock.
        is_first_use = not self._node_file.is_open
        with self._node_file.read(wait_for_lock=is_first_use) as connection:
            row = connection.execute("SELECT id FROM identity WHERE role = ?", (role,)).fetchone()
        if row is None:
            with self._node_file.write(wait_for_lock=is_first_use) as connection:
                connection.execute(
                    "INSERT OR IGNORE INTO identity VALUES (?, ?)", (role, str(uuid4()))
                )
                row = connection.execute(
                    "SELECT id FROM identity WHERE role = ?", (role,)
                ).fetchone()
        return str(row[0])

    # -- claims

    def find_claim(self, segment: str) -> Claim | None:
        """Return the claim on a segment, or None. An unproven claim expires after a day."""
        with self._node_file.read() as connection:
            row = connection.execute(
                "SELECT * FROM claim WHERE segment = ? AND (verified OR used > ?)",
                (segment, self._clock() - UNPROVEN_CLAIM_SECONDS),
            ).fetchone()
        return None if row is None else _read_claim(row)

    def list_claims(self) -> list[Claim]:
        """Return all valid claims, by segment."""
        with self._node_file.read() as connection:
            rows = connection.execute(
                "SELECT * FROM claim WHERE verified OR used > ? ORDER BY segment",
                (self._clock() - UNPROVEN_CLAIM_SECONDS,),
            ).fetchall()
        return [_read_claim(row) for row in rows]

    def save_claim(self, segment: str, authority: str, verified: bool) -> bool:
        """Store a claim and its use. Return False if it would replace a proven one."""
        now = self._clock()
        with self._node_file.write() as connection:
            connection.execute(
                "DELETE FROM claim WHERE NOT verified AND used <= ?",
                (now - UNPROVEN_CLAIM_SECONDS,),
            )
            cursor = connection.execute(
                "INSERT INTO claim VALUES (?, ?, ?, ?) ON CONFLICT (segment) DO UPDATE"
                " SET authority = excluded.authority, verified = excluded.verified,"
                " used = excluded.used WHERE excluded.verified OR NOT claim.verified",
                (segment, authority, verified, now),
            )
            return cursor.rowcount > 0

    def remove_claim(self, segment: str) -> bool:
        """Remove the claim on a segment. Return whether there was one."""
        with self._node_file.write() as connection:
            cursor = connection.execute("DELETE FROM claim WHERE segment = ?", (segment,))
            return cursor.rowcount > 0

    # -- leases

    def find_leases(self, subserver_id: str) -> list[Lease]:
        """Return the valid leases of a subserver."""
        with self._lease_file.read() as connection:
            rows = connection.execute(
                "SELECT * FROM lease WHERE subserver_id = ? AND ends > ?",
                (subserver_id, self._clock()),
            ).fetchall()
        return [Lease(*row) for row in rows]

    def find_other_lease(self, subserver_id: str, aggregator_id: str, tree_id: str) -> Lease | None:
        """Return a valid lease of another aggregator in the same tree, or None."""
        with self._lease_file.read() as connection:
            return _find_other_lease(
                connection, subserver_id, aggregator_id, tree_id, self._clock()
            )

    def take_lease(
        self, subserver_id: str, aggregator_id: str, tree_id: str, authority: str, until: float
    ) -> Lease | None:
        """Take a lease. If another aggregator of the tree has it, return that lease instead."""
        return self.take_leases(aggregator_id, tree_id, [(subserver_id, authority, until)]).get(
            subserver_id
        )

    def take_leases(
        self, aggregator_id: str, tree_id: str, leases: Iterable[tuple[str, str, float]]
    ) -> dict[str, Lease]:
        """Take many leases. Return those that other aggregators of the tree have.

        Args:
            leases: subserver_id, authority and expiry of each lease.
        """
        try:
            return self._take_leases(aggregator_id, tree_id, leases)
        except InterlockError as error:
            if self._lease_file is not self._node_file or error.failure is errors.TOO_BUSY:
                raise
            # No other node reads this file, so a full disk must not reject registrations.
            _log.warning(
                "registration store: %s Registrations continue without leases.", error.message
            )
            return {}

    def _take_leases(
        self, aggregator_id: str, tree_id: str, leases: Iterable[tuple[str, str, float]]
    ) -> dict[str, Lease]:
        now = self._clock()
        other_leases = {}
        with self._lease_file.write() as connection:
            # Remove expired leases.
            connection.execute("DELETE FROM lease WHERE ends <= ?", (now,))
            for subserver_id, authority, until in leases:
                other_lease = _find_other_lease(
                    connection, subserver_id, aggregator_id, tree_id, now
                )
                if other_lease is not None:
                    other_leases[subserver_id] = other_lease
                    continue
                connection.execute(
                    "INSERT OR REPLACE INTO lease VALUES (?, ?, ?, ?, ?)",
                    (subserver_id, aggregator_id, tree_id, authority, until),
                )
        return other_leases

    def renew_leases(
        self,
        aggregator_id: str,
        until: Iterable[tuple[str, float]],
        released: Iterable[str] = (),
    ) -> None:
        """Renew leases of this aggregator, and release others.

        Args:
            until: subserver_id and expiry of each lease to renew.
            released: subserver_ids of the leases to release.
        """
        with self._lease_file.write() as connection:
            connection.executemany(
                "UPDATE lease SET ends = ? WHERE subserver_id = ? AND aggregator_id = ?",
                [(ends, subserver_id, aggregator_id) for subserver_id, ends in until],
            )
            connection.executemany(
                "DELETE FROM lease WHERE subserver_id = ? AND aggregator_id = ?",
                [(subserver_id, aggregator_id) for subserver_id in released],
            )

    def release_lease(self, subserver_id: str, aggregator_id: str) -> None:
        self.renew_leases(aggregator_id, (), (subserver_id,))


def _read_claim(row: tuple[str, str, int, float]) -> Claim:
    segment, authority, verified, used = row
    return Claim(segment, authority, bool(verified), used)


def _find_other_lease(
    connection: sqlite3.Connection, subserver_id: str, aggregator_id: str, tree_id: str, now: float
) -> Lease | None:
    row = connection.execute(
        "SELECT * FROM lease WHERE subserver_id = ? AND tree_id = ? AND aggregator_id <> ?"
        " AND ends > ? LIMIT 1",
        (subserver_id, tree_id, aggregator_id, now),
    ).fetchone()
    return None if row is None else Lease(*row)


class _DatabaseFile:
    """A database file that stays open after its first use."""

    def __init__(self, path: Path | None, clock: Callable[[], float]) -> None:
        self._in_memory = path is None
        self._path = path or Path(":memory:")
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._was_locked = False
        """True if the file was locked at the last attempt. Then the next attempts do not wait."""

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def read(self, *, wait_for_lock: bool = False) -> Iterator[sqlite3.Connection]:
        """Open the connection for one statement that only reads. Raises InterlockError."""
        with self._convert_errors():
            yield self._get_connection(wait_for_lock)

    @contextmanager
    def write(self, *, wait_for_lock: bool = False) -> Iterator[sqlite3.Connection]:
        """Run a transaction. Raises InterlockError, with TOO_BUSY if the file is locked."""
        with self._convert_errors():
            with transaction(self._get_connection(wait_for_lock)) as connection:
                yield connection
            self._was_locked = False

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Convert errors of the file to InterlockError."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                self._was_locked = True
                raise InterlockError(
                    errors.TOO_BUSY,
                    f"The registration store {self._path.name} is locked by another program. "
                    "Try again later.",
                ) from error
            raise InterlockError(
                errors.INTERNAL,
                f"Cannot use the registration store {self._path}: {error}. "
                "Check the disk and the permissions of the file.",
                {"path": str(self._path)},
            ) from error

    def _get_connection(self, wait_for_lock: bool) -> sqlite3.Connection:
        timeout_ms = (
            _START_BUSY_TIMEOUT_MS if wait_for_lock else 0 if self._was_locked else _BUSY_TIMEOUT_MS
        )
        connection = self._connection
        if connection is None:
            connection = self._connection = self._open(timeout_ms)
        connection.execute(f"PRAGMA busy_timeout = {timeout_ms}")
        return connection

    def _open(self, timeout_ms: int) -> sqlite3.Connection:
        if not self._in_memory:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Only the owner can read the file. SQLite gives its -wal and -shm files the same mode.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(
            self._path, timeout=timeout_ms / 1000, isolation_level=None, check_same_thread=False
        )
        try:
            # A lease that a power failure deletes is written again at the next registration.
            connection.execute("PRAGMA synchronous = NORMAL")
            if not _DATABASE_KIND.is_ready(connection):
                with transaction(connection):
                    self._prepare(connection)
            self._enable_wal(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _enable_wal(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as busy:
            # Another process is using the file. Both journal modes are compatible.
            _log.debug("registration store: %s is not in WAL mode yet: %s", self._path, busy)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if _DATABASE_KIND.is_ready(connection):
            # Another process has prepared the file.
            return
        version, application = _DATABASE_KIND.read_marks(connection)
        if version == 1 and application == _APPLICATION_ID:
            # In the first version a claim had no time of use.
            connection.execute("ALTER TABLE claim ADD COLUMN used REAL NOT NULL DEFAULT 0")
            connection.execute("UPDATE claim SET used = ?", (self._clock(),))
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            return
        _DATABASE_KIND.prepare(connection, self._path)
