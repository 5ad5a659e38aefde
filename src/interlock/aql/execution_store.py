"""Executions on disk, with their results.

A node that starts takes over the executions of nodes that are gone: they no longer run there.
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
    """An operation that goes on after its request was answered. Moments are on the wall clock."""

    id: str
    owner: Principal
    operation: str
    tool: str
    """The canonical name of what is called."""
    category: str
    created: float
    arguments: bytes = b""
    """What the upstream gets. Kept for as long as it may be wanted again."""
    status: ExecutionState = ExecutionState.PENDING
    attempt: int = 1
    started: float | None = None
    finished: float | None = None
    progress: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    """Code, message and details, of one that failed."""
    size: int = 0
    """Of its result, in bytes."""


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
# What a server says of a failure may hold numbers that only JSON has room for.
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Execution).decode


class ExecutionStore:
    """A durable store of executions: the file at `path`. Without a path executions are gone with
    the node. `write` and `forget` return at once."""

    def __init__(
        self, path: Path | None, *, deliver: Callable[[Callable[[], None]], object]
    ) -> None:
        """`deliver` runs something on the event loop, such as `loop.call_soon_threadsafe`."""
        self.path = path
        self._file = WriterFile(path, _KIND, deliver=deliver)
        self._keeper = None if path is None else RowOwner(path)
        self._reader: sqlite3.Connection | None = None

    @property
    def _mine(self) -> str:
        return "" if self._keeper is None else self._keeper.name

    @property
    def reason(self) -> str:
        """Why it cannot be written now. Empty: it can."""
        return self._file.reason

    @property
    def commits(self) -> int:
        return self._file.commits

    def load(self) -> list[Execution]:
        """All that nobody else looks after, the oldest first. Waits. Raises InterlockError."""
        keeper = self._keeper
        if keeper is None or self.path is None or not self.path.exists():
            return []
        rows = self._file.at_once(lambda file: keeper.take_over(file, "execution"))
        found = []
        for id, raw in rows:
            try:
                found.append(_decode(raw))
            except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
                _log.warning("the execution %.40s in %s cannot be read: %s", id, self.path, wrong)
        return sorted(found, key=lambda one: one.created)

    def write(
        self, execution: Execution, result: bytes | None, then: Callable[[bool], None]
    ) -> None:
        """Write it, new or again. `then` is told on the event loop: True when it is on the disk,
        and stays there through a power cut."""

        def put(file: sqlite3.Connection) -> None:
            if self._keeper is not None:
                self._keeper.be_alive()
            file.execute(
                "INSERT INTO execution VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE"
                " SET record = excluded.record, result = excluded.result",
                (execution.id, self._mine, _encode(execution), result),
            )

        self._file.submit(put, lambda _, error: then(error is None))

    def result(self, id: str) -> bytes | None:
        """The result of an execution that has ended. Raises InterlockError.

        It is read on a connection of its own, and does not wait for the writer.
        """
        query = "SELECT result FROM execution WHERE id = ?"
        try:
            if self.path is None:
                with self._file.using:
                    row = self._file.opened().execute(query, (id,)).fetchone()
            else:
                if self._reader is None:
                    self._reader = sqlite3.connect(
                        self.path.resolve().as_uri() + "?mode=ro",
                        timeout=_BUSY_SECONDS,
                        isolation_level=None,
                        uri=True,
                        # Whoever closes the store may do so elsewhere.
                        check_same_thread=False,
                    )
                row = self._reader.execute(query, (id,)).fetchone()
        except (sqlite3.Error, OSError) as error:
            self._stop_reading()
            raise self._file.trouble(error) from error
        return None if row is None or row[0] is None else bytes(row[0])

    def forget(self, ids: Iterable[str]) -> None:
        """Nobody asks for these any more."""
        gone = [(id, self._mine) for id in ids]

        def remove(file: sqlite3.Connection) -> None:
            file.executemany("DELETE FROM execution WHERE id = ? AND keeper = ?", gone)

        if gone:
            # What stays because the disk is in trouble is forgotten another time.
            self._file.submit(remove, lambda *_: None)

    def close(self) -> None:
        """Write what is left, and stop. Waits."""
        self._file.close()
        self._stop_reading()
        if self._keeper is not None:
            self._keeper.close()

    def _stop_reading(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
