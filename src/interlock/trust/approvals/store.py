"""Storage of approvals: one SQLite file, one writer thread, each commit synced to disk.

A record is on disk before its caller is notified. The thread commits all steps that arrived during
the previous commit together, so that many approvals need few disk syncs. A step is only written if
the record is still in the state in which it was last seen: a second writer, in this process or
another, gets `TAKEN`.
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
from interlock.core.journal.file import recovery_advice
from interlock.core.paths import state_dir
from interlock.core.state.database import DatabaseKind, make_private
from interlock.core.state.row_ownership import RowOwner
from interlock.errors import InterlockError
from interlock.trust.approvals.record import Approval

# -- The store protocol


class WriteResult(Enum):
    """The result of writing a record."""

    WRITTEN = "written"
    """The record is on disk, and survives a power cut."""
    TAKEN = "taken"
    """The record was no longer in the expected state. Nothing was written."""
    USED = "used"
    """The one-time token was used before. Nothing was written."""
    FAILED = "failed"
    """The record could not be written."""


class RecordStore(Protocol):
    """A durable store of approvals. `write` and `remove` return at once."""

    def load(self) -> list[Approval]:
        """Return all records that no other process owns, the oldest first.

        It blocks. Raises InterlockError.
        """
        ...

    def write(
        self,
        approval: Approval,
        before: str | None,
        on_written: Callable[[WriteResult], None],
        *,
        token: tuple[str, str] | None = None,
    ) -> None:
        """Write a record.

        Args:
            before: the last written state of the record. None: the record is new.
            on_written: called on the event loop with the result.
            token: an anchor and the id of its one-time token, which this step uses up.
        """

    def remove(self, ids: Iterable[str]) -> None:
        """Delete records."""

    def close(self) -> None:
        """Write the remaining steps, and stop."""


# -- The store of a node


def open_store(
    config: Config,
    environ: Mapping[str, str],
    base_dir: Path,
    *,
    deliver: Callable[[Callable[[], None]], object],
) -> RecordStore:
    """Return the store of the config.

    Args:
        deliver: runs a function on the event loop.
    """
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
    """A step to be written."""

    approval: Approval
    before: str | None
    on_written: Callable[[WriteResult], None]
    token: tuple[str, str] | None


class ApprovalStore:
    """The store in the file at `path`, which is created when it is first used."""

    def __init__(self, path: Path, *, deliver: Callable[[Callable[[], None]], object]) -> None:
        """Args:
        deliver: runs a function on the event loop, such as `loop.call_soon_threadsafe`.
        """
        self.path = path
        self._deliver = deliver
        self._row_owner = RowOwner(path)
        self._connection: sqlite3.Connection | None = None
        self._connection_lock = threading.Lock()
        """Held while the connection is used."""
        self._queue_changed = threading.Condition()
        self._steps: list[_Step] = []
        self._removed_ids: list[str] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        self.problem = ""
        """Why the store cannot be written now. Empty: it can."""
        self.commits = 0

    # -- On the event loop

    def load(self) -> list[Approval]:
        """Return all records that no other process owns, the oldest first. They belong to this
        store from now on."""
        if not self.path.exists():
            return []
        try:
            with self._connection_lock:
                file = self._connect()
                file.execute("BEGIN IMMEDIATE")
                try:
                    rows = self._row_owner.adopt_rows(file, "approval")
                    file.execute("COMMIT")
                except BaseException:
                    file.execute("ROLLBACK")
                    raise
        except (sqlite3.Error, OSError) as error:
            self._disconnect()
            raise self._store_error(error) from error
        records = []
        for id, raw in rows:
            try:
                records.append(_decode(raw))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                _log.warning("approval %.40s in %s: cannot read it: %s", id, self.path, error)
        return sorted(records, key=lambda record: record.created)

    def write(
        self,
        approval: Approval,
        before: str | None,
        on_written: Callable[[WriteResult], None],
        *,
        token: tuple[str, str] | None = None,
    ) -> None:
        with self._queue_changed:
            if not self._closed:
                self._steps.append(_Step(approval, before, on_written, token))
                if self._thread is None:
                    self._start()
                self._queue_changed.notify()
                return
        self._deliver(lambda: on_written(WriteResult.FAILED))

    def remove(self, ids: Iterable[str]) -> None:
        with self._queue_changed:
            if not self._closed:
                self._removed_ids += ids
                if self._thread is None:
                    self._start()
                self._queue_changed.notify()

    def close(self) -> None:
        """Write the remaining steps, and stop. It blocks until the disk is done."""
        with self._queue_changed:
            self._closed = True
            self._queue_changed.notify()
        if self._thread is not None:
            self._thread.join()
        with self._connection_lock:
            self._disconnect()
        self._row_owner.close()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="approvals", daemon=True)
        self._thread.start()

    # -- On the writer thread

    def _run(self) -> None:
        while True:
            with self._queue_changed:
                self._queue_changed.wait_for(
                    lambda: self._steps or self._removed_ids or self._closed
                )
                steps, self._steps = self._steps, []
                removed_ids, self._removed_ids = self._removed_ids, []
                if not steps and not removed_ids:
                    return
            results = self._commit(steps, removed_ids)
            if steps:
                self._report(steps, results)

    def _report(self, steps: list[_Step], results: list[WriteResult]) -> None:
        def report() -> None:
            for step, result in zip(steps, results, strict=True):
                try:
                    step.on_written(result)
                except Exception:
                    # A failing callback does not affect the others.
                    _log.exception("approval %s: a callback failed", step.approval.id)

        try:
            self._deliver(report)
        except RuntimeError:
            # The event loop has ended, and with it all waiting calls.
            _log.debug("approvals: no event loop for the results of %d writes", len(steps))
        except Exception:
            _log.exception("approvals: cannot report the results of %d writes", len(steps))

    def _commit(self, steps: list[_Step], removed_ids: list[str]) -> list[WriteResult]:
        with self._connection_lock:
            try:
                file = self._connect()
                file.execute("BEGIN IMMEDIATE")
                results = [self._put(file, step) for step in steps]
                file.executemany(
                    "DELETE FROM approval WHERE id = ? AND keeper = ?",
                    [(id, self._row_owner.name) for id in removed_ids],
                )
                if faults.ARMED:
                    faults.reach("store.committing")
                file.execute("COMMIT")
            except Exception as error:
                # A failed connection is not used again; closing it also rolls back. The thread must
                # survive every exception, or no call would be notified any more.
                self._disconnect()
                self._on_failure(error)
                return [WriteResult.FAILED] * len(steps)
        self.commits += 1
        if self.problem:
            self.problem = ""
            _log.info("approvals %s: can be written again", self.path)
        return results

    def _put(self, file: sqlite3.Connection, step: _Step) -> WriteResult:
        approval = step.approval
        try:
            record = _encode(approval)
        except (ValueError, TypeError, OverflowError, RecursionError):
            # The other records of this commit are written.
            _log.exception("approval %s: cannot encode it", approval.id)
            return WriteResult.FAILED
        if step.before is None:
            file.execute(
                "INSERT INTO approval VALUES (?, ?, ?, ?)",
                (approval.id, approval.state, self._row_owner.name, record),
            )
            return WriteResult.WRITTEN
        row = file.execute(
            "SELECT 1 FROM approval WHERE id = ? AND state = ? AND keeper = ?",
            (approval.id, step.before, self._row_owner.name),
        ).fetchone()
        if row is None:
            return WriteResult.TAKEN
        if step.token is not None:
            anchor, token = step.token
            used = file.execute("INSERT OR IGNORE INTO used_token VALUES (?, ?)", (anchor, token))
            if used.rowcount == 0:
                return WriteResult.USED
        file.execute(
            "UPDATE approval SET state = ?, record = ? WHERE id = ?",
            (approval.state, record, approval.id),
        )
        return WriteResult.WRITTEN

    # -- The file. The caller holds `_connection_lock`.

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._row_owner.acquire_lock()
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
            # Another node opens the file now. It is the same file in either mode.
            _log.debug("approvals: %s is not in WAL mode yet: %s", self.path, busy)
        # What a caller was told must survive a power cut.
        file.execute("PRAGMA synchronous = FULL")
        # Arguments that are no longer needed must not remain in free pages.
        file.execute("PRAGMA secure_delete = ON")
        file.execute("BEGIN IMMEDIATE")
        _KIND.prepare(file, self.path)
        file.execute("COMMIT")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _on_failure(self, error: Exception) -> None:
        before, self.problem = self.problem, self._store_error(error).message
        if before != self.problem:
            _log.warning(
                "approvals: %s Calls that need approval are rejected until then.", self.problem
            )

    def _store_error(self, error: Exception) -> InterlockError:
        if isinstance(error, InterlockError):
            return error
        return InterlockError(
            errors.UNRECORDABLE,
            f"The approvals {self.path} cannot be written: {error}. "
            f"{recovery_advice(self.path, error)}",
            {"path": str(self.path)},
        )
