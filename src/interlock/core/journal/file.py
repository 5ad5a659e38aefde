"""The journal file: its schema, how it is opened, and what to do if that fails.

Entries are stored in pages: one row contains one group commit (or a part of a large one) as a JSON
array. A row per entry would cost about 2.5 µs and one exchange of the interpreter lock per row, at
the expense of the event loop. A page costs about 0.4 µs per entry and one such exchange. The view
`entry` presents the pages as ordinary rows for any SQLite shell.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from pathlib import Path
from typing import Final, NamedTuple

from interlock import errors
from interlock.core.journal.chain import chain_old_pages
from interlock.errors import InterlockError

# (time_ns, caller, face, verb, name, upstream, effect, outcome, duration_us, detail). Plain tuples,
# because the cost of richer objects would be paid for every call.
Entry = tuple[int, str, str, str, str, str, str, str, int, str]

ENTRY_WIDTH: Final = 10
SCHEMA_VERSION: Final = 2

# "ILCK". Identifies the file as ours, so that a wrong path never gets our tables.
_APPLICATION_ID: Final = 0x494C434B
_BUSY_SECONDS: Final = 1.0
_WAL_TRIES: Final = 50
_TOLERABLE_ERRORS: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FULL)
_MAX_WAL_BYTES: Final = 16 * 1024 * 1024

# One step per version: step N migrates version N to N + 1. The second version has the hash chain.
_MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        """CREATE TABLE page (
            last_seq  INTEGER PRIMARY KEY,
            count     INTEGER NOT NULL,
            newest_ns INTEGER NOT NULL,
            body      TEXT NOT NULL
        )""",
        """CREATE VIEW entry AS SELECT
            page.last_seq - page.count + 1 + item.key AS seq,
            json_extract(item.value, '$[0]') AS time_ns,
            json_extract(item.value, '$[1]') AS caller,
            json_extract(item.value, '$[2]') AS face,
            json_extract(item.value, '$[3]') AS verb,
            json_extract(item.value, '$[4]') AS name,
            json_extract(item.value, '$[5]') AS upstream,
            json_extract(item.value, '$[6]') AS effect,
            json_extract(item.value, '$[7]') AS outcome,
            json_extract(item.value, '$[8]') AS duration_us,
            json_extract(item.value, '$[9]') AS detail
        FROM page, json_each(page.body) AS item""",
    ),
    ("ALTER TABLE page ADD COLUMN hash BLOB",),
)


class FileIdentity(NamedTuple):
    """The identity of a file: a journal that was moved or deleted has another one."""

    device: int
    inode: int


def read_identity(path: Path) -> FileIdentity | None:
    """Return the identity of the file at `path`. None: there is no file."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return FileIdentity(status.st_dev, status.st_ino)


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the journal at `path`, or create it. Raises InterlockError.

    The connection may be passed to another thread, but is used by one thread only.
    """
    _create_private(path)
    try:
        connection = sqlite3.connect(
            path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise cannot_open(path, error) from error
    try:
        _check_and_prepare(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise cannot_open(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open an existing journal read-only. Raises InterlockError."""
    if not path.exists():
        raise InterlockError(
            errors.CONFIG, f"There is no journal at {path}. A node creates it at its first start."
        )
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro",
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            uri=True,
        )
    except sqlite3.Error as error:
        raise cannot_open(path, error) from error
    try:
        version = _read_version(connection, path)
        if version == 0:
            raise InterlockError(errors.CONFIG, f"{path} is empty: no node has recorded in it yet.")
    except sqlite3.Error as error:
        connection.close()
        raise cannot_open(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def recovery_advice(path: Path, error: Exception) -> str:
    """Return what a person can do about `error`, as a sentence."""
    code = getattr(error, "sqlite_errorcode", None)
    # The low byte is the kind of error, the rest is its variety.
    match code if code is None else code & 0xFF:
        case sqlite3.SQLITE_FULL:
            return "Free some space on its disk."
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "Another process uses it: stop that process, or give this node its own journal."
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return removal_advice(path)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return "Make the file and its folder writable for this user."
    if isinstance(error, PermissionError):
        return "Make the file and its folder writable for this user."
    return "Check its disk, and the permissions of the file and its folder."


def removal_advice(path: Path) -> str:
    """Return what to do with a damaged journal, as a sentence."""
    return (
        f"Move it aside, with {path.name}-wal, {path.name}-shm and {path.stem}.archive beside it: "
        "a new one is then created."
    )


def is_tolerable(error: BaseException | None) -> bool:
    """Return whether a node can serve in spite of the error, as long as nothing must be recorded:
    the file is damaged, or the disk is full. Other errors are config mistakes."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _TOLERABLE_ERRORS


def cannot_open(path: Path, error: Exception) -> InterlockError:
    """Return the error for a journal that cannot be opened or read."""
    return InterlockError(
        errors.INTERNAL,
        f"The journal {path} cannot be opened: {error}. {recovery_advice(path, error)}",
        data={"path": str(path), "bearable": is_tolerable(error)},
    )


def _create_private(path: Path) -> None:
    """Create the file readable only by its owner, before SQLite opens it.

    SQLite gives its -wal and -shm files the mode of the main file. Existing folders and files keep
    their mode.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise cannot_open(path, error) from error


def _read_version(connection: sqlite3.Connection, path: Path) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != _APPLICATION_ID and (application or version or tables):
        raise InterlockError(
            errors.CONFIG,
            f"{path} is another program's database, not a journal. "
            "Name another file for the journal.",
            data={"path": str(path)},
        )
    if version > SCHEMA_VERSION:
        raise InterlockError(
            errors.CONFIG,
            f"The journal {path} was written by a newer Interlock (its schema is version {version},"
            f" this one reads up to {SCHEMA_VERSION}). Upgrade Interlock, or name another file.",
            data={"path": str(path), "schema": version},
        )
    return version


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Switch the file to WAL mode. Raises sqlite3.Error.

    SQLite does not wait if another process does the same or writes, so this function does.
    """
    for _ in range(_WAL_TRIES):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            time.sleep(_BUSY_SECONDS / _WAL_TRIES)
    connection.execute("PRAGMA journal_mode = WAL")


def _check_and_prepare(connection: sqlite3.Connection, path: Path) -> None:
    # One snapshot: another process may be creating the tables.
    connection.execute("BEGIN")
    try:
        version = _read_version(connection, path)
    finally:
        # A failing disk has ended the transaction already, and its error is the relevant one.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    _enable_wal(connection)
    # A commit survives the end of this process, and a power failure from the next checkpoint on.
    # The writer requests more for durable writes, and makes the checkpoints itself.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(f"PRAGMA journal_size_limit = {_MAX_WAL_BYTES}")
    if version == SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    # Checked again with the lock: another process may have created the tables in between.
    version = _read_version(connection, path)
    for migration in _MIGRATIONS[version:]:
        for statement in migration:
            connection.execute(statement)
    if version == 1:
        chain_old_pages(connection, time.time_ns())
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")
