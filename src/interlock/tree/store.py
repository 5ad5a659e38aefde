"""What a node remembers of the tree: who it is, who owns which segment, who is registered where.

One SQLite file. A node has its own, for its identities and for the claims on its segments; the
leases may be in another file, which several nodes of a tree share. A lease says that a subserver is
registered with an aggregator for so long; one that nobody renews lapses by itself. Everything here
is small and quick, and done in the caller's own thread: reading waits for nobody, and writing for a
moment only, so that a shared file that somebody holds never stops a node.
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
UNPROVEN_KEPT: Final = 24 * 3600.0
"""So long after its last use a claim holds that was never proven."""

# "ILTR". Tells our file from another program's.
_APPLICATION_ID: Final = 0x494C5452
_BUSY_AT_FIRST: Final = 2000
_BUSY: Final = 50
"""Milliseconds for which a file may be held by another: when a node starts, and when it serves."""
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
_FILE: Final = DatabaseKind(
    _APPLICATION_ID,
    SCHEMA_VERSION,
    _SCHEMA,
    "The registration store",
    "a registration store",
    "Name another file.",
)


def tree_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """The file with the identities of the node, and who owns which segment."""
    return state_dir(config, environ, base_dir) / "tree.db"


def shared_leases_path(config: Config, base_dir: Path) -> Path | None:
    """The registration store that this node shares with others, if it does."""
    store = config.section(SubserversConfig).store
    return None if store is None else base_dir / Path(store).expanduser()


class Claim(NamedTuple):
    """Who owns a segment."""

    segment: str
    authority: str
    """A DNS name behind `dns:`."""
    verified: bool
    """Whether that was ever proven."""
    used: float
    """When somebody was last listed by it, on the wall clock."""


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
        self,
        path: Path | None,
        *,
        leases: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`path` None: in memory, for a node that has nowhere to keep it. `leases`: a file that
        several nodes share. Both are made when they are first used."""
        self._own = _File(path, clock)
        self._leases = self._own if leases is None else _File(leases, clock)
        self._clock = clock

    def close(self) -> None:
        self._own.close()
        self._leases.close()

    # -- who this is

    def identity(self, role: str) -> str:
        """The UUID of this node in a role. It is made once, and stays. Raises InterlockError."""
        # A node that starts serves nobody yet: it can wait.
        first = not self._own.is_open
        with self._own.reading(patient=first) as file:
            row = file.execute("SELECT id FROM identity WHERE role = ?", (role,)).fetchone()
        if row is None:
            with self._own.writing(patient=first) as file:
                file.execute("INSERT OR IGNORE INTO identity VALUES (?, ?)", (role, str(uuid4())))
                row = file.execute("SELECT id FROM identity WHERE role = ?", (role,)).fetchone()
        return str(row[0])

    # -- who owns what

    def claim_on(self, segment: str) -> Claim | None:
        """Whose it is. One that was never proven lapses when it is not used for a day."""
        with self._own.reading() as file:
            row = file.execute(
                "SELECT * FROM claim WHERE segment = ? AND (verified OR used > ?)",
                (segment, self._clock() - UNPROVEN_KEPT),
            ).fetchone()
        return None if row is None else _claim(row)

    def claims(self) -> list[Claim]:
        """All that hold, by segment."""
        with self._own.reading() as file:
            rows = file.execute(
                "SELECT * FROM claim WHERE verified OR used > ? ORDER BY segment",
                (self._clock() - UNPROVEN_KEPT,),
            ).fetchall()
        return [_claim(row) for row in rows]

    def keep_claim(self, segment: str, authority: str, verified: bool) -> bool:
        """Write down that it is used. False: there is a proven one, which an unproven one never
        displaces."""
        now = self._clock()
        with self._own.writing() as file:
            file.execute(
                "DELETE FROM claim WHERE NOT verified AND used <= ?", (now - UNPROVEN_KEPT,)
            )
            kept = file.execute(
                "INSERT INTO claim VALUES (?, ?, ?, ?) ON CONFLICT (segment) DO UPDATE"
                " SET authority = excluded.authority, verified = excluded.verified,"
                " used = excluded.used WHERE excluded.verified OR NOT claim.verified",
                (segment, authority, verified, now),
            )
            return kept.rowcount > 0

    def forget_claim(self, segment: str) -> bool:
        """Give a segment up to whoever comes next; whether somebody had it."""
        with self._own.writing() as file:
            gone = file.execute("DELETE FROM claim WHERE segment = ?", (segment,))
            return gone.rowcount > 0

    # -- who is registered where

    def leases(self, subserver_id: str) -> list[Lease]:
        """The leases of a subserver that have not lapsed."""
        with self._leases.reading() as file:
            rows = file.execute(
                "SELECT * FROM lease WHERE subserver_id = ? AND ends > ?",
                (subserver_id, self._clock()),
            ).fetchall()
        return [Lease(*row) for row in rows]

    def other_lease(self, subserver_id: str, aggregator_id: str, tree_id: str) -> Lease | None:
        """That of another aggregator in the same tree, if it has not lapsed."""
        with self._leases.reading() as file:
            return _other(file, subserver_id, aggregator_id, tree_id, self._clock())

    def take_lease(
        self, subserver_id: str, aggregator_id: str, tree_id: str, authority: str, until: float
    ) -> Lease | None:
        """Write it down, unless another aggregator of the same tree has one: that one is given
        back, and nothing is changed."""
        return self.take_leases(aggregator_id, tree_id, [(subserver_id, authority, until)]).get(
            subserver_id
        )

    def take_leases(
        self, aggregator_id: str, tree_id: str, wanted: Iterable[tuple[str, str, float]]
    ) -> dict[str, Lease]:
        """Write down all of them (the subserver, its authority, until when), but those that another
        aggregator of the same tree has, which are given back."""
        try:
            return self._take_leases(aggregator_id, tree_id, wanted)
        except InterlockError as error:
            if self._leases is not self._own or error.failure is errors.TOO_BUSY:
                raise
            # Nobody else reads them here: a full disk is no reason to turn anybody away.
            _log.warning("%s Registrations go on without it.", error.message)
            return {}

    def _take_leases(
        self, aggregator_id: str, tree_id: str, wanted: Iterable[tuple[str, str, float]]
    ) -> dict[str, Lease]:
        now = self._clock()
        others = {}
        with self._leases.writing() as file:
            # Nobody renews these any more.
            file.execute("DELETE FROM lease WHERE ends <= ?", (now,))
            for subserver_id, authority, until in wanted:
                other = _other(file, subserver_id, aggregator_id, tree_id, now)
                if other is not None:
                    others[subserver_id] = other
                    continue
                file.execute(
                    "INSERT OR REPLACE INTO lease VALUES (?, ?, ?, ?, ?)",
                    (subserver_id, aggregator_id, tree_id, authority, until),
                )
        return others

    def renew_leases(
        self,
        aggregator_id: str,
        until: Iterable[tuple[str, float]],
        released: Iterable[str] = (),
    ) -> None:
        """Let the leases of these subservers last until then, where nobody else took them, and give
        up the others."""
        with self._leases.writing() as file:
            file.executemany(
                "UPDATE lease SET ends = ? WHERE subserver_id = ? AND aggregator_id = ?",
                [(ends, subserver_id, aggregator_id) for subserver_id, ends in until],
            )
            file.executemany(
                "DELETE FROM lease WHERE subserver_id = ? AND aggregator_id = ?",
                [(subserver_id, aggregator_id) for subserver_id in released],
            )

    def release_lease(self, subserver_id: str, aggregator_id: str) -> None:
        self.renew_leases(aggregator_id, (), (subserver_id,))


def _claim(row: tuple[str, str, int, float]) -> Claim:
    segment, authority, verified, used = row
    return Claim(segment, authority, bool(verified), used)


def _other(
    file: sqlite3.Connection, subserver_id: str, aggregator_id: str, tree_id: str, now: float
) -> Lease | None:
    row = file.execute(
        "SELECT * FROM lease WHERE subserver_id = ? AND tree_id = ? AND aggregator_id <> ?"
        " AND ends > ? LIMIT 1",
        (subserver_id, tree_id, aggregator_id, now),
    ).fetchone()
    return None if row is None else Lease(*row)


class _File:
    """A database that stays open from its first use on."""

    def __init__(self, path: Path | None, clock: Callable[[], float]) -> None:
        self._in_memory = path is None
        self._path = path or Path(":memory:")
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._held = False
        """Somebody else held it when it was last wanted: until that is over nobody waits again."""

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def reading(self, *, patient: bool = False) -> Iterator[sqlite3.Connection]:
        """For one statement that changes nothing: no lock is wanted. Raises InterlockError."""
        with self._said():
            yield self._opened(patient)

    @contextmanager
    def writing(self, *, patient: bool = False) -> Iterator[sqlite3.Connection]:
        """In one transaction. Raises InterlockError; TOO_BUSY when another holds the file."""
        with self._said():
            with transaction(self._opened(patient)) as file:
                yield file
            self._held = False

    @contextmanager
    def _said(self) -> Iterator[None]:
        """What goes wrong with the file, as an InterlockError."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                self._held = True
                raise InterlockError(
                    errors.TOO_BUSY,
                    f"The registration store {self._path.name} is held by another program. "
                    "Try again in a moment.",
                ) from error
            raise InterlockError(
                errors.INTERNAL,
                f"The registration store {self._path} cannot be used: {error}. "
                "Look at its disk and its permissions.",
                {"path": str(self._path)},
            ) from error

    def _opened(self, patient: bool) -> sqlite3.Connection:
        wait = _BUSY_AT_FIRST if patient else 0 if self._held else _BUSY
        file = self._connection
        if file is None:
            file = self._connection = self._open(wait)
        file.execute(f"PRAGMA busy_timeout = {wait}")
        return file

    def _open(self, wait: int) -> sqlite3.Connection:
        if not self._in_memory:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Only its owner may read it; SQLite gives the files beside it the same mode.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        file = sqlite3.connect(
            self._path, timeout=wait / 1000, isolation_level=None, check_same_thread=False
        )
        try:
            # A lease that a power cut takes is taken again at the next registration.
            file.execute("PRAGMA synchronous = NORMAL")
            if not _FILE.is_ready(file):
                with transaction(file):
                    self._prepare(file)
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
        if _FILE.is_ready(file):
            # Another was quicker.
            return
        version, application = _FILE.read_marks(file)
        if version == 1 and application == _APPLICATION_ID:
            # In the first version a claim did not say when it was used.
            file.execute("ALTER TABLE claim ADD COLUMN used REAL NOT NULL DEFAULT 0")
            file.execute("UPDATE claim SET used = ?", (self._clock(),))
            file.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            return
        _FILE.prepare(file, self._path)
