"""A SQLite file that is used by one thread, with durable commits.

Jobs that arrive while the thread is busy share one transaction, so that many jobs cost few waits
for the disk. Results are delivered on the event loop after the commit. A failed job is rolled back
alone. If the file itself fails, all jobs of the transaction fail, and it is reopened for the next.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from interlock.core.journal.file import recovery_advice
from interlock.core.state.database import DatabaseKind, make_private
from interlock.errors import UNRECORDABLE, InterlockError

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], Any]
OnDone = Callable[[Any, InterlockError | None], None]

_BUSY_SECONDS: Final = 2.0
_INVALID_VALUE_ERRORS: Final = (ValueError, TypeError, OverflowError, RecursionError)
"""Errors for values that cannot be stored."""
_CLOSED: Final = "The node is shutting down."
_log = logging.getLogger("interlock.state")


class _QueuedJob(NamedTuple):
    job: Job
    on_done: OnDone


class WriterFile:
    """The file at `path`, created on first use. Without a path it is in memory."""

    def __init__(
        self,
        path: Path | None,
        kind: DatabaseKind,
        *,
        deliver: Callable[[Callable[[], None]], object],
    ) -> None:
        """
        Args:
            deliver: runs a function on the event loop, such as `loop.call_soon_threadsafe`.
        """
        self.path = path
        self._kind = kind
        self._deliver = deliver
        self._connection: sqlite3.Connection | None = None
        self.lock = threading.RLock()
        """Held while the connection is used."""
        self._queue_changed = threading.Condition()
        self._queue: list[_QueuedJob] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        self.reason = ""
        """Why it cannot be used now. Empty: it can."""
        self.commits = 0

    # -- on the event loop

    def submit(self, job: Job, on_done: OnDone) -> None:
        """Run a job in a transaction. `on_done` gets its result or an error."""
        with self._queue_changed:
            if not self._closed:
                self._queue.append(_QueuedJob(job, on_done))
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name=self._kind.kind, daemon=True
                    )
                    self._thread.start()
                self._queue_changed.notify()
                return
        self._deliver(lambda: on_done(None, InterlockError(UNRECORDABLE, _CLOSED)))

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a job and wait for its result. Raises InterlockError."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def on_done(value: T, error: InterlockError | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)

        self.submit(job, on_done)
        return await future

    def run_now(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a job in this thread and return its result. Raises InterlockError."""
        [(value, error)] = self._commit([_QueuedJob(job, lambda *_: None)])
        if error is not None:
            raise error
        result: T = value
        return result

    def close(self) -> None:
        """Run the remaining jobs and stop. Waits for the disk."""
        with self._queue_changed:
            self._closed = True
            self._queue_changed.notify()
        if self._thread is not None:
            self._thread.join()
        with self.lock:
            self._close_connection()

    # -- on the thread

    def _run(self) -> None:
        while True:
            with self._queue_changed:
                self._queue_changed.wait_for(lambda: self._queue or self._closed)
                batch, self._queue = self._queue, []
            if not batch:
                return
            results = self._commit(batch)

            def notify(
                batch: list[_QueuedJob] = batch,
                results: list[tuple[Any, InterlockError | None]] = results,
            ) -> None:
                for queued, (value, error) in zip(batch, results, strict=True):
                    try:
                        queued.on_done(value, error)
                    except Exception:
                        # An error of one callback does not affect the others.
                        _log.exception("database: a callback of %s failed", self._kind.kind)

            try:
                self._deliver(notify)
            except RuntimeError:
                # The loop is closed, so there are no more callers.
                _log.debug("database: no caller waits for %s", self._kind.kind)

    def _commit(self, batch: list[_QueuedJob]) -> list[tuple[Any, InterlockError | None]]:
        with self.lock:
            try:
                file = self.connect()
                file.execute("BEGIN IMMEDIATE")
                results = [self._run_job(file, queued.job) for queued in batch]
                file.execute("COMMIT")
            except Exception as error:
                # A failed connection is not reused; closing it also rolls back. The thread survives
                # any error, because otherwise no caller would get a result.
                self._close_connection()
                failure = self.convert_error(error)
                if self.reason != failure.message:
                    self.reason = failure.message
                    _log.warning("database: %s", self.reason)
                return [(None, failure)] * len(batch)
        self.commits += 1
        if self.reason:
            self.reason = ""
            _log.info("database: %s %s can be written again", self._kind.display_name, self.path)
        return results

    def _run_job(self, file: sqlite3.Connection, job: Job) -> tuple[Any, InterlockError | None]:
        file.execute("SAVEPOINT one")
        try:
            value = job(file)
        except (InterlockError, sqlite3.IntegrityError, *_INVALID_VALUE_ERRORS) as error:
            # Only this job fails. The others of the commit are done.
            file.execute("ROLLBACK TO one")
            file.execute("RELEASE one")
            return None, self.convert_error(error)
        file.execute("RELEASE one")
        return value, None

    # -- the file; the caller holds `lock`

    def connect(self) -> sqlite3.Connection:
        """Return the connection. Raises errors of SQLite, of the disk, or for a foreign file."""
        if self._connection is None:
            if self.path is not None:
                make_private(self.path)
            file = sqlite3.connect(
                ":memory:" if self.path is None else self.path,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                self._prepare(file)
            except BaseException:
                file.close()
                raise
            self._connection = file
        return self._connection

    def _prepare(self, file: sqlite3.Connection) -> None:
        # A result that was delivered must survive a power failure.
        file.execute("PRAGMA synchronous = FULL")
        # Deleted data must not remain in free pages.
        file.execute("PRAGMA secure_delete = ON")
        # The owner is checked first: nothing is changed in a file that is not ours.
        file.execute("BEGIN IMMEDIATE")
        self._kind.prepare(file, self.path)
        file.execute("COMMIT")
        try:
            file.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # Another node is opening it at the moment. The file works in either mode.
            _log.debug("database: %s is not in WAL mode yet: %s", self.path, error)

    def _close_connection(self) -> None:
        # A database in memory would be lost with its connection.
        if self.path is None and not self._closed:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            return
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def convert_error(self, error: Exception) -> InterlockError:
        """Return the error for the caller and the operator."""
        if isinstance(error, InterlockError):
            return error
        hint = "" if self.path is None else f" {recovery_advice(self.path, error)}"
        location = "" if self.path is None else f" {self.path}"
        return InterlockError(
            UNRECORDABLE, f"{self._kind.display_name}{location} cannot be used: {error}.{hint}"
        )
