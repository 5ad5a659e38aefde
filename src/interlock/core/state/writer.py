"""One SQLite file with one thread that uses it, and commits through to the platter.

What comes in while the thread is busy is done in one transaction, so that much costs few waits for
the disk. Whoever asked is told on the event loop, after the commit. What one of them did wrong is
taken back alone; when the file itself fails, all of that transaction are told so, and it is opened
anew for the next.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from interlock.core.journal.file import advice
from interlock.core.state.database import DatabaseKind, make_private
from interlock.errors import UNRECORDABLE, InterlockError

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], Any]
Then = Callable[[Any, InterlockError | None], None]

_BUSY_SECONDS: Final = 2.0
_UNFIT: Final = (ValueError, TypeError, OverflowError, RecursionError)
"""What cannot be written down at all."""
_CLOSED: Final = "The node is shutting down."
_log = logging.getLogger("interlock.state")


class _Wanted(NamedTuple):
    job: Job
    then: Then


class WriterFile:
    """The file at `path`, made when it is first used. Without a path it is in memory."""

    def __init__(
        self,
        path: Path | None,
        kind: DatabaseKind,
        *,
        deliver: Callable[[Callable[[], None]], object],
    ) -> None:
        """`deliver` runs something on the event loop, such as `loop.call_soon_threadsafe`."""
        self.path = path
        self._kind = kind
        self._deliver = deliver
        self._connection: sqlite3.Connection | None = None
        self.using = threading.RLock()
        """Held by whoever uses the connection."""
        self._wanted = threading.Condition()
        self._queue: list[_Wanted] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        self.reason = ""
        """Why it cannot be used at the moment. Empty: it can."""
        self.commits = 0

    # -- on the event loop

    def submit(self, job: Job, then: Then) -> None:
        """Have it done in a transaction; `then` is told what it gave, or what went wrong."""
        with self._wanted:
            if not self._closed:
                self._queue.append(_Wanted(job, then))
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name=self._kind.kind, daemon=True
                    )
                    self._thread.start()
                self._wanted.notify()
                return
        self._deliver(lambda: then(None, InterlockError(UNRECORDABLE, _CLOSED)))

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """The same, for those who can wait. Raises InterlockError."""
        over: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def then(value: T, error: InterlockError | None) -> None:
            if over.done():
                return
            if error is not None:
                over.set_exception(error)
            else:
                over.set_result(value)

        self.submit(job, then)
        return await over

    def at_once(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Have it done here and now, and wait for it. Raises InterlockError."""
        [(value, error)] = self._commit([_Wanted(job, lambda *_: None)])
        if error is not None:
            raise error
        done: T = value
        return done

    def close(self) -> None:
        """Do what is left, and stop. Waits for the disk."""
        with self._wanted:
            self._closed = True
            self._wanted.notify()
        if self._thread is not None:
            self._thread.join()
        with self.using:
            self._let_go()

    # -- on the thread

    def _run(self) -> None:
        while True:
            with self._wanted:
                self._wanted.wait_for(lambda: self._queue or self._closed)
                batch, self._queue = self._queue, []
            if not batch:
                return
            became = self._commit(batch)

            def tell(
                batch: list[_Wanted] = batch,
                became: list[tuple[Any, InterlockError | None]] = became,
            ) -> None:
                for one, (value, error) in zip(batch, became, strict=True):
                    try:
                        one.then(value, error)
                    except Exception:
                        # What one of them raises is no other's misfortune.
                        _log.exception("what waited for %s failed", self._kind.kind)

            try:
                self._deliver(tell)
            except RuntimeError:
                # The loop has ended, and with it everybody who waited.
                _log.debug("nobody waits for %s any more", self._kind.kind)

    def _commit(self, batch: list[_Wanted]) -> list[tuple[Any, InterlockError | None]]:
        with self.using:
            try:
                file = self.opened()
                file.execute("BEGIN IMMEDIATE")
                became = [self._do(file, one.job) for one in batch]
                file.execute("COMMIT")
            except Exception as error:
                # A connection that failed is not trusted again; closing it rolls back as well.
                # Whatever it is: the thread outlives it, or nobody would ever be told anything.
                self._let_go()
                trouble = self.trouble(error)
                if self.reason != trouble.message:
                    self.reason = trouble.message
                    _log.warning("%s", self.reason)
                return [(None, trouble)] * len(batch)
        self.commits += 1
        if self.reason:
            self.reason = ""
            _log.info("%s %s is written again.", self._kind.called, self.path)
        return became

    def _do(self, file: sqlite3.Connection, job: Job) -> tuple[Any, InterlockError | None]:
        file.execute("SAVEPOINT one")
        try:
            value = job(file)
        except (InterlockError, sqlite3.IntegrityError, *_UNFIT) as error:
            # Its own fault: the others of this commit are done.
            file.execute("ROLLBACK TO one")
            file.execute("RELEASE one")
            return None, self.trouble(error)
        file.execute("RELEASE one")
        return value, None

    # -- the file, for whoever has `using`

    def opened(self) -> sqlite3.Connection:
        """Raises what SQLite, the disk or a foreign file make it raise."""
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
        # What is told to somebody must outlive a power cut.
        file.execute("PRAGMA synchronous = FULL")
        # What is no longer needed is not left lying in free pages.
        file.execute("PRAGMA secure_delete = ON")
        # Whose it is comes first: nothing is changed in a file that is not ours.
        file.execute("BEGIN IMMEDIATE")
        self._kind.prepare(file, self.path)
        file.execute("COMMIT")
        try:
            file.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as busy:
            # Another node opens it this very moment. It is the same file in either mode.
            _log.debug("%s is not in WAL mode yet: %s", self.path, busy)

    def _let_go(self) -> None:
        # What is in memory only would be gone with its connection.
        if self.path is None and not self._closed:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            return
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def trouble(self, error: Exception) -> InterlockError:
        """What went wrong, as its caller and the operator are to read it."""
        if isinstance(error, InterlockError):
            return error
        hint = "" if self.path is None else f" {advice(self.path, error)}"
        where = "" if self.path is None else f" {self.path}"
        return InterlockError(
            UNRECORDABLE, f"{self._kind.called}{where} cannot be used: {error}.{hint}"
        )
