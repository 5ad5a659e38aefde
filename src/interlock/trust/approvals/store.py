"""Approvals on disk: one SQLite file, one thread that writes, every commit through to the platter.

A record is written before anybody is told of it. The thread commits all that came in while it was
busy in one go, so that many approvals cost few waits for the disk. A step is only written from the
state in which the record was last seen: whoever comes second, in this process or in another, is
told that it is taken.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from interlock import errors
from interlock.core import crash_points as faults
from interlock.core.config import Config
from interlock.core.journal.file import advice
from interlock.core.paths import state_dir
from interlock.core.state.database import DatabaseKind, make_private
from interlock.core.state.row_ownership import RowOwner
from interlock.errors import InterlockError
from interlock.trust.approvals.record import Approval

# -- What approvals ask of a store.


class WriteResult(Enum):
    """What became of a record that was to be written."""

    WRITTEN = "written"
    """It is on the disk, and stays there through a power cut."""
    TAKEN = "taken"
    """It was no longer in the state that it was thought to be in: nothing was written."""
    USED = "used"
    """The one-time token was used before: nothing was written."""
    FAILED = "failed"
    """It could not be written."""


class RecordStore(Protocol):
    """A durable store of approvals. `write` and `forget` return at once."""

    def load(self) -> list[Approval]:
        """All that nobody else looks after, the oldest first. Waits. Raises InterlockError."""
        ...

    def write(
        self,
        approval: Approval,
        before: str | None,
        then: Callable[[WriteResult], None],
        *,
        token: tuple[str, str] | None = None,
    ) -> None:
        """Write a record whose last written state was `before` (None: it is new).

        `token`: an anchor and the id of its one-time token, used from now on and for good. `then`
        is told on the event loop.
        """

    def forget(self, ids: Iterable[str]) -> None:
        """Nobody asks for these any more."""

    def close(self) -> None:
        """Write what is left, and stop."""


# -- The store of a node.


def open_store(
    config: Config,
    environ: Mapping[str, str],
    base_dir: Path,
    *,
    deliver: Callable[[Callable[[], None]], object],
) -> RecordStore:
    """The store that the config asks for. `deliver` runs something on the event loop."""
    return ApprovalStore(state_dir(config, environ, base_dir) / "approvals.db", deliver=deliver)


SCHEMA_VERSION: Final = 1
_KIND: Final = DatabaseKind(
    0x494C4150,  # "ILAP"
    SCHEMA_VERSION,
    (
        """CREATE TABLE approval (
            id     TEXT PRIMARY KEY,
            state  TEXT NOT NULL,
            keeper TEXT NOT NULL,
            record BLOB NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE used_token (
            anchor TEXT NOT NULL,
            token  TEXT NOT NULL,
            PRIMARY KEY (anchor, token)
        ) WITHOUT ROWID""",
    ),
    "The store of approvals",
    "a store of approvals",
)
_BUSY_MS: Final = 2_000

_log = logging.getLogger("interlock.state")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Approval).decode


class _Step(NamedTuple):
    """One thing to be written."""

    approval: Approval
    before: str | None
    then: Callable[[WriteResult], None]
    token: tuple[str, str] | None


class ApprovalStore:
    """The file at `path`. It is made when it is first used."""

    def __init__(self, path: Path, *, deliver: Callable[[Callable[[], None]], object]) -> None:
        """`deliver` runs something on the event loop, such as `loop.call_soon_threadsafe`."""
        self.path = path
        self._deliver = deliver
        self._keeper = RowOwner(path)
        self._connection: sqlite3.Connection | None = None
        self._using = threading.Lock()
        """Held by whoever uses the connection."""
        self._wanted = threading.Condition()
        self._steps: list[_Step] = []
        self._forgotten: list[str] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        self.reason = ""
        """Why it cannot be written at the moment. Empty: it can."""
        self.commits = 0

    # -- on the event loop

    def load(self) -> list[Approval]:
        """All that nobody else looks after, which is this store's from now on, the oldest first."""
        if not self.path.exists():
            return []
        try:
            with self._using:
                file = self._opened()
                file.execute("BEGIN IMMEDIATE")
                try:
                    rows = self._keeper.take_over(file, "approval")
                    file.execute("COMMIT")
                except BaseException:
                    file.execute("ROLLBACK")
                    raise
        except (sqlite3.Error, OSError) as error:
            self._let_go()
            raise self._trouble(error) from error
        found = []
        for id, raw in rows:
            try:
                found.append(_decode(raw))
            except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
                _log.warning("the approval %.40s in %s cannot be read: %s", id, self.path, wrong)
        return sorted(found, key=lambda one: one.created)

    def write(
        self,
        approval: Approval,
        before: str | None,
        then: Callable[[WriteResult], None],
        *,
        token: tuple[str, str] | None = None,
    ) -> None:
        with self._wanted:
            if not self._closed:
                self._steps.append(_Step(approval, before, then, token))
                if self._thread is None:
                    self._start()
                self._wanted.notify()
                return
        self._deliver(lambda: then(WriteResult.FAILED))

    def forget(self, ids: Iterable[str]) -> None:
        with self._wanted:
            if not self._closed:
                self._forgotten += ids
                if self._thread is None:
                    self._start()
                self._wanted.notify()

    def close(self) -> None:
        """Write what is left, and stop. Waits for the disk."""
        with self._wanted:
            self._closed = True
            self._wanted.notify()
        if self._thread is not None:
            self._thread.join()
        with self._using:
            self._let_go()
        self._keeper.close()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="approvals", daemon=True)
        self._thread.start()

    # -- on the thread that writes

    def _run(self) -> None:
        while True:
            with self._wanted:
                self._wanted.wait_for(lambda: self._steps or self._forgotten or self._closed)
                steps, self._steps = self._steps, []
                forgotten, self._forgotten = self._forgotten, []
                if not steps and not forgotten:
                    return
            became = self._commit(steps, forgotten)
            if steps:
                self._tell(steps, became)

    def _tell(self, steps: list[_Step], became: list[WriteResult]) -> None:
        def tell() -> None:
            for step, what in zip(steps, became, strict=True):
                try:
                    step.then(what)
                except Exception:
                    # What one of them raises is no other's misfortune.
                    _log.exception("what waited for approval %s failed", step.approval.id)

        try:
            self._deliver(tell)
        except RuntimeError:
            # The loop has ended, and with it everybody who waited.
            _log.debug("nobody waits for %d approvals any more", len(steps))
        except Exception:
            _log.exception("%d that waited for approvals could not be told", len(steps))

    def _commit(self, steps: list[_Step], forgotten: list[str]) -> list[WriteResult]:
        with self._using:
            try:
                file = self._opened()
                file.execute("BEGIN IMMEDIATE")
                became = [self._put(file, step) for step in steps]
                file.executemany(
                    "DELETE FROM approval WHERE id = ? AND keeper = ?",
                    [(id, self._keeper.name) for id in forgotten],
                )
                if faults.ARMED:
                    faults.reach("store.committing")
                file.execute("COMMIT")
            except Exception as error:
                # A connection that failed is not trusted again; closing it rolls back as well.
                # Whatever it is: the thread outlives it, or nobody would ever be told anything.
                self._let_go()
                self._failed(error)
                return [WriteResult.FAILED] * len(steps)
        self.commits += 1
        if self.reason:
            self.reason = ""
            _log.info("The approvals %s are written again.", self.path)
        return became

    def _put(self, file: sqlite3.Connection, step: _Step) -> WriteResult:
        one = step.approval
        try:
            record = _encode(one)
        except (ValueError, TypeError, OverflowError, RecursionError):
            # Its own fault: the others of this commit are written.
            _log.exception("approval %s cannot be written down", one.id)
            return WriteResult.FAILED
        if step.before is None:
            file.execute(
                "INSERT INTO approval VALUES (?, ?, ?, ?)",
                (one.id, one.state, self._keeper.name, record),
            )
            return WriteResult.WRITTEN
        here = file.execute(
            "SELECT 1 FROM approval WHERE id = ? AND state = ? AND keeper = ?",
            (one.id, step.before, self._keeper.name),
        ).fetchone()
        if here is None:
            return WriteResult.TAKEN
        if step.token is not None:
            anchor, token = step.token
            used = file.execute("INSERT OR IGNORE INTO used_token VALUES (?, ?)", (anchor, token))
            if used.rowcount == 0:
                return WriteResult.USED
        file.execute(
            "UPDATE approval SET state = ?, record = ? WHERE id = ?",
            (one.state, record, one.id),
        )
        return WriteResult.WRITTEN

    # -- the file, for whoever has `_using`

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._keeper.be_alive()
            make_private(self.path)
            file = sqlite3.connect(
                self.path, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(file)
            except BaseException:
                file.close()
                raise
            self._connection = file
        return self._connection

    def _prepare(self, file: sqlite3.Connection) -> None:
        try:
            file.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as busy:
            # Another node opens it this very moment. It is the same file in either mode.
            _log.debug("%s is not in WAL mode yet: %s", self.path, busy)
        # What is told to somebody must outlive a power cut.
        file.execute("PRAGMA synchronous = FULL")
        # Arguments that are no longer needed are not left lying in free pages.
        file.execute("PRAGMA secure_delete = ON")
        file.execute("BEGIN IMMEDIATE")
        _KIND.prepare(file, self.path)
        file.execute("COMMIT")

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _failed(self, error: Exception) -> None:
        known, self.reason = self.reason, self._trouble(error).message
        if known != self.reason:
            _log.warning("%s Calls that need an approval are refused until then.", self.reason)

    def _trouble(self, error: Exception) -> InterlockError:
        if isinstance(error, InterlockError):
            return error
        return InterlockError(
            errors.UNRECORDABLE,
            f"The approvals {self.path} cannot be written: {error}. {advice(self.path, error)}",
            {"path": str(self.path)},
        )
