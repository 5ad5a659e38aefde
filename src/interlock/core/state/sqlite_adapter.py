"""A state adapter over one SQLite file, `state.db`.

One thread writes. Writes that arrive while it is busy share one transaction, so that many writes
cost one wait for the disk. Reads run on a few other threads. Several processes of one machine may
use the file: after a commit, each sends an empty datagram to the sockets of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from interlock.core.journal.file import recovery_advice
from interlock.core.paths import make_private as make_private_folder
from interlock.core.state.database import DatabaseKind, make_private
from interlock.core.state.store import (
    ABSENT,
    Append,
    Durability,
    StaleRevisionError,
    StoredValue,
    Write,
)
from interlock.errors import CONFIG, UNRECORDABLE, InterlockError

T = TypeVar("T")

READERS: Final = 2
SOON_SECONDS: Final = 1.0
KEPT_REVISIONS: Final = 10_000
"""A deletion is remembered for this number of later revisions."""
MAX_BATCH: Final = 1000
_BUSY_SECONDS: Final = 5.0
_SOCKET_NAME_BYTES: Final = 8
_MAX_SOCKET_PATH_BYTES: Final = 107
_WRITE_ERRORS: Final = (StaleRevisionError, ValueError, OverflowError)
"""Errors of one write, which do not concern the others of its transaction."""

_KIND: Final = DatabaseKind(
    application_id=0x494C5354,  # "ILST"
    version=1,
    schema=(
        """CREATE TABLE record (
            bucket     TEXT NOT NULL,
            key        TEXT NOT NULL,
            revision   INTEGER NOT NULL,
            version    INTEGER NOT NULL,
            expires_at REAL,
            value      BLOB,
            PRIMARY KEY (bucket, key)
        ) WITHOUT ROWID""",
        "CREATE UNIQUE INDEX record_revision ON record (bucket, revision)",
        "CREATE INDEX record_expiry ON record (expires_at) WHERE expires_at IS NOT NULL",
        """CREATE TABLE entry (
            stream  TEXT NOT NULL,
            number  INTEGER NOT NULL,
            version INTEGER NOT NULL,
            value   BLOB NOT NULL,
            PRIMARY KEY (stream, number)
        ) WITHOUT ROWID""",
        """CREATE TABLE counter (
            name  TEXT PRIMARY KEY,
            value INTEGER NOT NULL
        ) WITHOUT ROWID""",
        "INSERT INTO counter VALUES ('revision', 0)",
    ),
    display_name="The state store",
    kind="a state store",
    advice="Move it aside, or choose another `state_dir`.",
)

_log = logging.getLogger("interlock.state")


class _Job(NamedTuple):
    """A write that waits for the thread."""

    write: Write | Append
    future: asyncio.Future[int]


class SqliteAdapter:
    """The file at `path`."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """
        Args:
            clock: the wall clock, by which records expire.
        """
        self.path = path
        self.commits = 0
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscribers: list[Callable[[], None]] = []
        self._queue_changed = threading.Condition()
        self._queue: list[_Job] = []
        self._is_closing = False
        self._sweep_at: float | None = None
        self._thread: threading.Thread | None = None
        self._opening = asyncio.Lock()
        self._connection: sqlite3.Connection | None = None
        self.problem = ""
        self._unforced_since: float | None = None
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="state-reader")
        self._reader = threading.local()
        self._reader_connections: list[sqlite3.Connection] = []
        self._peers = PeerSockets(_socket_folder(path))

    # -- on the event loop

    async def start(self) -> None:
        """Open the file, or create it, unless it is open. Raises InterlockError.

        Every other method does it as well, so that a node that stores nothing has no file.
        """
        if self._thread is not None:
            return
        async with self._opening:
            if self._is_closing:
                raise InterlockError(UNRECORDABLE, "The state store is closed.")
            if self._thread is None:
                self._loop = asyncio.get_running_loop()
                await self._loop.run_in_executor(self._readers, self._open_first)
                try:
                    self._peers.open(self._loop, self._notify)
                except OSError as error:
                    raise self._report(error) from error
                self._thread = threading.Thread(target=self._run, name="state-writer", daemon=True)
                self._thread.start()

    async def close(self) -> None:
        """Finish the writes that wait, and close the file."""
        with self._queue_changed:
            self._is_closing = True
            self._queue_changed.notify()
        if self._thread is not None:
            thread = self._thread
            await asyncio.get_running_loop().run_in_executor(None, thread.join)
        self._close_connection()
        self._peers.close()
        self._readers.shutdown()
        for connection in self._reader_connections:
            connection.close()

    async def get(self, bucket: str, key: str) -> StoredValue | None:
        rows = await self._read(
            "SELECT key, revision, version, value FROM record WHERE bucket = ? AND key = ?"
            " AND value IS NOT NULL AND (expires_at IS NULL OR expires_at > ?)",
            (bucket, key, self._clock()),
        )
        return StoredValue(*rows[0]) if rows else None

    async def list_records(self, bucket: str, prefix: str) -> Sequence[StoredValue]:
        rows = await self._read(
            "SELECT key, revision, version, value FROM record WHERE bucket = ? AND key >= ?"
            " AND substr(key, 1, ?) = ? AND value IS NOT NULL"
            " AND (expires_at IS NULL OR expires_at > ?) ORDER BY key",
            (bucket, prefix, len(prefix), prefix, self._clock()),
        )
        return [StoredValue(*row) for row in rows]

    async def list_keys(self, bucket: str, prefix: str) -> Sequence[str]:
        rows = await self._read(
            "SELECT key FROM record WHERE bucket = ? AND key >= ? AND substr(key, 1, ?) = ?"
            " AND value IS NOT NULL AND (expires_at IS NULL OR expires_at > ?) ORDER BY key",
            (bucket, prefix, len(prefix), prefix, self._clock()),
        )
        return [key for (key,) in rows]

    async def changes(
        self, bucket: str, prefix: str, after: int
    ) -> tuple[Sequence[StoredValue], int] | None:
        def read(file: sqlite3.Connection) -> tuple[Sequence[StoredValue], int] | None:
            with _snapshot(file):
                newest = _counter(file)
                if after < newest - KEPT_REVISIONS:
                    return None
                rows = file.execute(
                    "SELECT key, revision, version, value FROM record WHERE bucket = ?"
                    " AND revision > ? AND substr(key, 1, ?) = ? ORDER BY revision",
                    (bucket, after, len(prefix), prefix),
                ).fetchall()
                return [StoredValue(*row) for row in rows], newest

        return await self._read_with(read)

    async def read(self, stream: str, after: int, limit: int) -> Sequence[StoredValue]:
        rows = await self._read(
            "SELECT '', number, version, value FROM entry WHERE stream = ? AND number > ?"
            " ORDER BY number LIMIT ?",
            (stream, after, limit),
        )
        return [StoredValue(*row) for row in rows]

    async def revision(self) -> int:
        return await self._read_with(_counter)

    async def write(self, write: Write) -> int:
        return await self._submit(write)

    async def append(self, append: Append) -> int:
        return await self._submit(append)

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        self._subscribers.append(wake)
        return lambda: self._subscribers.remove(wake)

    def check_expiry(self) -> None:
        """Look at the clock again, after it was moved."""
        with self._queue_changed:
            self._queue_changed.notify()

    async def _submit(self, write: Write | Append) -> int:
        await self.start()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        with self._queue_changed:
            if self._is_closing:
                raise InterlockError(UNRECORDABLE, "The state store is closed.")
            self._queue.append(_Job(write, future))
            self._queue_changed.notify()
        return await future

    def _notify(self) -> None:
        for wake in tuple(self._subscribers):
            wake()

    # -- readers

    async def _read(self, query: str, values: tuple[object, ...]) -> list[Any]:
        return await self._read_with(lambda file: file.execute(query, values).fetchall())

    async def _read_with(self, read: Callable[[sqlite3.Connection], T]) -> T:
        def run() -> T:
            try:
                return read(self._reader_connection())
            except (sqlite3.Error, OSError) as error:
                raise self._report(error) from error

        await self.start()
        if self._is_closing:
            raise InterlockError(UNRECORDABLE, "The state store is closed.")
        return await asyncio.get_running_loop().run_in_executor(self._readers, run)

    def _reader_connection(self) -> sqlite3.Connection:
        file: sqlite3.Connection | None = getattr(self._reader, "file", None)
        if file is None:
            file = self._reader.file = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            file.execute("PRAGMA query_only = ON")
            self._reader_connections.append(file)
        return file

    # -- the writer's thread

    def _run(self) -> None:
        while True:
            with self._queue_changed:
                while not (self._queue or self._is_closing):
                    timeout = self._idle_seconds()
                    if timeout is not None and timeout <= 0:
                        break
                    self._queue_changed.wait(timeout)
                jobs, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
                is_last = self._is_closing and not jobs
            if jobs:
                self._commit(jobs)
            elif is_last:
                self._force()
                self._close_connection()
                return
            elif self._sweep_at is not None and self._sweep_at <= self._clock():
                self._sweep()
            if self._unforced_since is not None and self._seconds_unforced() >= SOON_SECONDS:
                self._force()

    def _idle_seconds(self) -> float | None:
        """Return the seconds until the thread has something to do without a write."""
        times = []
        if self._unforced_since is not None:
            times.append(SOON_SECONDS - self._seconds_unforced())
        if self._sweep_at is not None:
            times.append(self._sweep_at - self._clock())
        return min(times, default=None)

    def _seconds_unforced(self) -> float:
        return time.monotonic() - (self._unforced_since or 0.0)

    def _commit(self, jobs: list[_Job]) -> None:
        is_forced = any(job.write.durability is Durability.FORCED for job in jobs)
        try:
            file = self._connect()
            file.execute(f"PRAGMA synchronous = {'FULL' if is_forced else 'NORMAL'}")
            file.execute("BEGIN IMMEDIATE")
            self._expire(file)
            results = [self._run_job(file, job.write) for job in jobs]
            file.execute("COMMIT")
        except Exception as error:
            # A connection that failed is not used again; closing it also rolls back.
            self._close_connection()
            failure = self._report(error)
            self._deliver([(job, failure) for job in jobs])
            return
        if self.problem:
            self.problem = ""
            _log.info("state store %s: writing works again", self.path)
        self.commits += 1
        if is_forced:
            self._unforced_since = None
        elif self._unforced_since is None and any(
            job.write.durability is Durability.SOON for job in jobs
        ):
            self._unforced_since = time.monotonic()
        self._deliver(list(zip(jobs, results, strict=True)))
        self._peers.notify()

    def _deliver(self, results: list[tuple[_Job, int | Exception]]) -> None:
        def deliver() -> None:
            for job, result in results:
                if job.future.done():
                    continue
                if isinstance(result, Exception):
                    job.future.set_exception(result)
                else:
                    job.future.set_result(result)
            self._notify()

        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            # The loop is closed, so nobody waits.
            self._loop.call_soon_threadsafe(deliver)

    def _run_job(self, file: sqlite3.Connection, write: Write | Append) -> int | Exception:
        try:
            if isinstance(write, Append):
                return _append(file, write)
            return self._write(file, write)
        except _WRITE_ERRORS as error:
            return error

    def _write(self, file: sqlite3.Connection, write: Write) -> int:
        # All checks come before the first change: a write that fails has changed nothing.
        row = file.execute(
            "SELECT revision FROM record WHERE bucket = ? AND key = ? AND value IS NOT NULL",
            (write.bucket, write.key),
        ).fetchone()
        current = row[0] if row else ABSENT
        if write.expected is not None and write.expected != current:
            raise StaleRevisionError(write.key)
        if write.value is None and current == ABSENT:
            return _counter(file)
        revision = _next_revision(file)
        expires_at = None if write.ttl is None else self._clock() + write.ttl
        if expires_at is not None:
            self._sweep_at = min(expires_at, self._sweep_at or expires_at)
        file.execute(
            "INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?, ?, ?)",
            (write.bucket, write.key, revision, write.version, expires_at, write.value),
        )
        if write.value is None:
            _forget_deletions(file, write.bucket, revision)
        return revision

    def _sweep(self) -> None:
        """Delete the records whose time is over, so that those who watch hear of it."""
        try:
            file = self._connect()
            file.execute("BEGIN IMMEDIATE")
            has_expired = self._expire(file)
            file.execute("COMMIT")
        except Exception as error:
            self._close_connection()
            self._sweep_at = None
            self._report(error)
            return
        if has_expired:
            self._deliver([])
            self._peers.notify()

    def _expire(self, file: sqlite3.Connection) -> bool:
        expired = file.execute(
            "SELECT bucket, key FROM record WHERE expires_at <= ?", (self._clock(),)
        ).fetchall()
        for bucket, key in expired:
            revision = _next_revision(file)
            file.execute(
                "UPDATE record SET value = NULL, expires_at = NULL, revision = ?"
                " WHERE bucket = ? AND key = ?",
                (revision, bucket, key),
            )
            _forget_deletions(file, bucket, revision)
        (self._sweep_at,) = file.execute("SELECT min(expires_at) FROM record").fetchone()
        return bool(expired)

    def _force(self) -> None:
        """Force what was committed to the disk."""
        self._unforced_since = None
        try:
            # The log is forced before its pages are copied into the file.
            self._connect().execute("PRAGMA wal_checkpoint(PASSIVE)")
        except Exception as error:
            self._close_connection()
            self._report(error)

    # -- the file

    def _open_first(self) -> None:
        try:
            self._connect()
        except Exception as error:
            self._close_connection()
            raise self._report(error) from error

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            make_private(self.path)
            file = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._connection = file
            # Deleted secrets must not remain in free pages.
            file.execute("PRAGMA secure_delete = ON")
            _KIND.make_ready(file, self.path)
            (problem,) = file.execute("PRAGMA quick_check(1)").fetchone()
            if problem != "ok":
                damaged = sqlite3.DatabaseError(problem.splitlines()[0].strip("* "))
                damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                raise damaged
            (mode,) = file.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise sqlite3.OperationalError(f"it cannot have a write-ahead log ({mode})")
            (self._sweep_at,) = file.execute("SELECT min(expires_at) FROM record").fetchone()
        return self._connection

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _report(self, error: Exception) -> InterlockError:
        """Remember and log an error once. Returns it for the caller."""
        failure = self._convert_error(error)
        if self.problem != failure.message:
            self.problem = failure.message
            _log.warning("state store: %s", failure.message)
        return failure

    def _convert_error(self, error: Exception) -> InterlockError:
        if isinstance(error, InterlockError):
            return error
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        is_damaged = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        return InterlockError(
            CONFIG if is_damaged else UNRECORDABLE,
            f"The state store {self.path} cannot be used: {error}. "
            f"{recovery_advice(self.path, error)}",
            data={"path": str(self.path)},
        )


class PeerSockets:
    """Datagram sockets in a folder, one for each process that uses the file.

    A datagram is empty: it says that something was committed. One that does not fit into the buffer
    of its receiver is dropped, because that receiver will look anyway.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / secrets.token_hex(_SOCKET_NAME_BYTES)
        self._socket: socket.socket | None = None
        self._sender: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self, loop: asyncio.AbstractEventLoop, on_change: Callable[[], None]) -> None:
        make_private_folder(self._folder)
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            receiver.bind(str(self._path))
        except OSError:
            receiver.close()
            raise
        self._socket, self._loop = receiver, loop
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

        def receive() -> None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    receiver.recv(1)
            on_change()

        loop.add_reader(receiver.fileno(), receive)

    def notify(self) -> None:
        """Tell the other processes that something was committed. Runs on the writer's thread."""
        if self._sender is None:
            return
        try:
            names = os.listdir(self._folder)
        except OSError as error:
            # The commit is done: a missing folder must not end the writer's thread.
            _log.warning("state store: cannot notify other processes: %s", error)
            return
        for name in names:
            if name == self._path.name:
                continue
            try:
                self._sender.sendto(b"", str(self._folder / name))
            except BlockingIOError:
                continue
            except (ConnectionRefusedError, FileNotFoundError):
                # Its process has ended without removing it.
                with contextlib.suppress(OSError):
                    (self._folder / name).unlink(missing_ok=True)
            except OSError as error:
                _log.warning("state store: cannot notify another process: %s", error)

    def close(self) -> None:
        if self._socket is not None and self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._path.unlink(missing_ok=True)
            self._socket = None
        if self._sender is not None:
            self._sender.close()
            self._sender = None


def _socket_folder(path: Path) -> Path:
    """Return a folder next to the file, or one of this user if its sockets had too long paths."""
    folder = path.with_name(f"{path.name}.peers")
    if len(os.fsencode(folder)) + 1 + 2 * _SOCKET_NAME_BYTES <= _MAX_SOCKET_PATH_BYTES:
        return folder
    digest = blake2b(os.fsencode(path.absolute()), digest_size=8).hexdigest()
    runtime = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(runtime) / f"interlock-{os.getuid()}-{digest}"


def _append(file: sqlite3.Connection, append: Append) -> int:
    counter = f"stream:{append.stream}"
    row = file.execute(
        "INSERT INTO counter VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1"
        " RETURNING value",
        (counter,),
    ).fetchone()
    number: int = row[0]
    file.execute(
        "INSERT INTO entry VALUES (?, ?, ?, ?)",
        (append.stream, number, append.version, append.value),
    )
    file.execute(
        "DELETE FROM entry WHERE stream = ? AND number <= ?",
        (append.stream, number - append.max_entries),
    )
    return number


def _counter(file: sqlite3.Connection) -> int:
    row = file.execute("SELECT value FROM counter WHERE name = 'revision'").fetchone()
    return int(row[0])


def _next_revision(file: sqlite3.Connection) -> int:
    row = file.execute(
        "UPDATE counter SET value = value + 1 WHERE name = 'revision' RETURNING value"
    ).fetchone()
    return int(row[0])


def _forget_deletions(file: sqlite3.Connection, bucket: str, revision: int) -> None:
    file.execute(
        "DELETE FROM record WHERE bucket = ? AND revision <= ? AND value IS NULL",
        (bucket, revision - KEPT_REVISIONS),
    )


@contextlib.contextmanager
def _snapshot(file: sqlite3.Connection) -> Iterator[None]:
    """Let several queries see one state of the file."""
    file.execute("BEGIN")
    try:
        yield
    finally:
        file.execute("COMMIT")
