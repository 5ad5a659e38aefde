"""Durable executions with their results.

A node that starts takes over the executions of nodes that have ended.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.aql.execution_states import ExecutionState
from interlock.core.call import Principal
from interlock.core.state.database import DatabaseKind
from interlock.core.state.row_ownership import RowOwner
from interlock.core.state.writer import WriterFile


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that continues after its request was answered. Times are wall clock times."""

    id: str
    owner: Principal
    operation: str
    tool: str
    """The canonical name of the called tool."""
    category: str
    created: float
    arguments: bytes = b""
    """The arguments for the upstream. Stored while a retry may need them."""
    status: ExecutionState = ExecutionState.PENDING
    attempt: int = 1
    started: float | None = None
    finished: float | None = None
    progress: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    """Code, message and details of a failure."""
    size: int = 0
    """The size of the result in bytes."""


SCHEMA_VERSION: Final = 1
_KIND: Final = DatabaseKind(
    0x494C4158,  # "ILAX"
    SCHEMA_VERSION,
    (
        """CREATE TABLE execution (
            id     TEXT PRIMARY KEY,
            keeper TEXT NOT NULL,
            record BLOB NOT NULL,
            result BLOB
        )""",
    ),
    "The store of executions",
    "a store of executions",
)
_BUSY_SECONDS: Final = 2.0

_log = logging.getLogger("interlock.state")
# Error data of servers may contain numbers that only JSON can represent.
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Execution).decode


class ExecutionStore:
    """A durable store of executions in a file.

    Without a path, executions end with the node. `write` and `forget` return at once.
    """

    def __init__(
        self, path: Path | None, *, deliver: Callable[[Callable[[], None]], object]
    ) -> None:
        """
        Args:
            deliver: runs a function on the event loop, such as `loop.call_soon_threadsafe`.
        """
        self.path = path
        self._file = WriterFile(path, _KIND, deliver=deliver)
        self._row_owner = None if path is None else RowOwner(path)
        self._reader: sqlite3.Connection | None = None

    @property
    def _owner_name(self) -> str:
        return "" if self._row_owner is None else self._row_owner.name

    @property
    def reason(self) -> str:
        """The reason why the file cannot be written now. Empty: it can."""
        return self._file.reason

    @property
    def commits(self) -> int:
        return self._file.commits

    def load(self) -> list[Execution]:
        """Load the executions that no other node owns, oldest first.

        Blocks. Raises InterlockError.
        """
        row_owner = self._row_owner
        if row_owner is None or self.path is None or not self.path.exists():
            return []
        rows = self._file.run_now(lambda file: row_owner.adopt_rows(file, "execution"))
        executions = []
        for id, raw in rows:
            try:
                executions.append(_decode(raw))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                _log.warning("execution %.40s in %s: cannot read it: %s", id, self.path, error)
        return sorted(executions, key=lambda execution: execution.created)

    def write(
        self, execution: Execution, result: bytes | None, on_written: Callable[[bool], None]
    ) -> None:
        """Insert or replace an execution.

        Args:
            on_written: called on the event loop, with True when the record is durable on disk.
        """

        def upsert(file: sqlite3.Connection) -> None:
            if self._row_owner is not None:
                self._row_owner.acquire_lock()
            file.execute(
                "INSERT INTO execution VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE"
                " SET record = excluded.record, result = excluded.result",
                (execution.id, self._owner_name, _encode(execution), result),
            )

        self._file.submit(upsert, lambda _, error: on_written(error is None))

    def result(self, id: str) -> bytes | None:
        """Return the result of an execution that has ended. Raises InterlockError.

        The result is read on a separate connection and does not wait for the writer.
        """
        query = "SELECT result FROM execution WHERE id = ?"
        try:
            if self.path is None:
                with self._file.lock:
                    row = self._file.connect().execute(query, (id,)).fetchone()
            else:
                if self._reader is None:
                    self._reader = sqlite3.connect(
                        self.path.resolve().as_uri() + "?mode=ro",
                        timeout=_BUSY_SECONDS,
                        isolation_level=None,
                        uri=True,
                        # The store may be closed on another thread.
                        check_same_thread=False,
                    )
                row = self._reader.execute(query, (id,)).fetchone()
        except (sqlite3.Error, OSError) as error:
            self._stop_reading()
            raise self._file.convert_error(error) from error
        return None if row is None or row[0] is None else bytes(row[0])

    def delete(self, ids: Iterable[str]) -> None:
        """Delete these executions from the disk, later and without a result."""
        rows = [(id, self._owner_name) for id in ids]

        def remove(file: sqlite3.Connection) -> None:
            file.executemany("DELETE FROM execution WHERE id = ? AND keeper = ?", rows)

        if rows:
            # Rows that remain because of a disk error are deleted another time.
            self._file.submit(remove, lambda *_: None)

    def close(self) -> None:
        """Write pending changes and close the file. Blocks."""
        self._file.close()
        self._stop_reading()
        if self._row_owner is not None:
            self._row_owner.close()

    def _stop_reading(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
