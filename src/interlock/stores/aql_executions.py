"""Executions on disk, with what they gave.

Several nodes may share a state folder. Each looks after its own executions, which it marks; a
locked file beside the database says that it lives. Those of one that is gone are taken over by the
next that starts: what ran there runs no more.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from interlock.pipeline.aql.keeping import Execution
from interlock.stores.aql_file import WriterFile
from interlock.stores.own_file import OwnFile, make_private

SCHEMA_VERSION: Final = 1
_KIND: Final = OwnFile(
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

_log = logging.getLogger("interlock.stores")
# What a server says of a failure may hold numbers that only JSON has room for.
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Execution).decode


class ExecutionStore:
    """The file at `path`. Without a path executions are gone with the node."""

    def __init__(
        self, path: Path | None, *, deliver: Callable[[Callable[[], None]], object]
    ) -> None:
        """`deliver` runs something on the event loop, such as `loop.call_soon_threadsafe`."""
        self.path = path
        self._file = WriterFile(path, _KIND, deliver=deliver)
        self._keeper = secrets.token_hex(8)
        self._lock: int | None = None
        self._reader: sqlite3.Connection | None = None

    @property
    def reason(self) -> str:
        return self._file.reason

    @property
    def commits(self) -> int:
        return self._file.commits

    def load(self) -> list[Execution]:
        if self.path is None or not self.path.exists():
            return []
        rows = self._file.at_once(self._take_over)
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
        def put(file: sqlite3.Connection) -> None:
            self._be_alive()
            file.execute(
                "INSERT INTO execution VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE"
                " SET record = excluded.record, result = excluded.result",
                (execution.id, self._keeper, _encode(execution), result),
            )

        self._file.submit(put, lambda _, error: then(error is None))

    def result(self, id: str) -> bytes | None:
        """On a connection of its own: it does not wait for whoever writes."""
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
        gone = [(id, self._keeper) for id in ids]

        def remove(file: sqlite3.Connection) -> None:
            file.executemany("DELETE FROM execution WHERE id = ? AND keeper = ?", gone)

        if gone:
            # What stays because the disk is in trouble is forgotten another time.
            self._file.submit(remove, lambda *_: None)

    def close(self) -> None:
        self._file.close()
        self._stop_reading()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            self._lock_path(self._keeper).unlink(missing_ok=True)

    # -- who looks after what, in the transaction of the file

    def _take_over(self, file: sqlite3.Connection) -> list[tuple[str, bytes]]:
        self._be_alive()
        keepers = [row[0] for row in file.execute("SELECT DISTINCT keeper FROM execution")]
        for keeper in keepers:
            if keeper != self._keeper and not self._lives(keeper):
                file.execute(
                    "UPDATE execution SET keeper = ? WHERE keeper = ?", (self._keeper, keeper)
                )
        return file.execute(
            "SELECT id, record FROM execution WHERE keeper = ?", (self._keeper,)
        ).fetchall()

    def _be_alive(self) -> None:
        if self._lock is None and self.path is not None:
            path = self._lock_path(self._keeper)
            make_private(path)
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._lock = lock

    def _lives(self, keeper: str) -> bool:
        path = self._lock_path(keeper)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(lock)

    def _lock_path(self, keeper: str) -> Path:
        assert self.path is not None
        return self.path.with_name(f"{self.path.name}-{keeper}.lock")

    def _stop_reading(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
