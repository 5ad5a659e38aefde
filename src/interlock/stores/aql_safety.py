"""What the safety loop remembers: who is blocked, what runs, what can lift a block, and how often a
code was wrong. A small SQLite file that only its owner can read, on disk before anybody is told. No
code is in it: only salted digests of those that are open."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.errors import UNRECORDABLE, InterlockError
from interlock.pipeline.aql.safety.keeping import (
    Attempts,
    Block,
    Challenge,
    Execution,
    Record,
    Saved,
)
from interlock.stores.own_file import OwnFile, make_private

SCHEMA_VERSION: Final = 1

# "ILSF". Tells our file from another program's.
_APPLICATION_ID: Final = 0x494C5346
_BUSY_SECONDS: Final = 2.0
_SCHEMA: Final = (
    """CREATE TABLE record (
        kind TEXT NOT NULL,
        key  TEXT NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (kind, key)
    ) WITHOUT ROWID""",
)
_FILE: Final = OwnFile(
    _APPLICATION_ID, SCHEMA_VERSION, _SCHEMA, "The safety store", "a safety store"
)
_KINDS: Final[dict[str, type[Any]]] = {
    "execution": Execution,
    "block": Block,
    "challenge": Challenge,
    "attempts": Attempts,
}
_log = logging.getLogger("interlock.stores")


class SafetyStore:
    """The file at `path`. It is made when something is first kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file: sqlite3.Connection | None = None

    def load(self) -> Saved:
        """All that is there. Raises InterlockError: who is blocked must not be guessed."""
        if not self.path.exists():
            return Saved()
        with self._said(), self._lock:
            rows = self._opened().execute("SELECT kind, key, body FROM record").fetchall()
        found: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
        for kind, key, body in rows:
            try:
                found[kind].append(msgspec.msgpack.decode(body, type=_KINDS[kind]))
            except (KeyError, msgspec.DecodeError, UnicodeDecodeError) as wrong:
                if kind == "block":
                    raise InterlockError(
                        UNRECORDABLE,
                        f"{self.path} says that somebody is blocked, and not whom: {wrong}. Move "
                        "it aside once you know.",
                    ) from None
                _log.warning("%s %.60s in %s cannot be read: %s", kind, key, self.path, wrong)
        return Saved(found["execution"], found["block"], found["challenge"], found["attempts"])

    def keep(self, record: Record) -> None:
        kind, key = _name(record)
        body = msgspec.msgpack.encode(record)
        self._write(
            lambda file: file.execute(
                "INSERT OR REPLACE INTO record VALUES (?, ?, ?)", (kind, key, body)
            )
        )

    def drop(self, record: Record) -> None:
        if not self.path.exists():
            return
        name = _name(record)
        self._write(
            lambda file: file.execute("DELETE FROM record WHERE kind = ? AND key = ?", name)
        )

    def close(self) -> None:
        with self._lock:
            self._let_go()

    def _write(self, change: Callable[[sqlite3.Connection], object]) -> None:
        with self._said(), self._lock:
            file = self._opened()
            file.execute("BEGIN IMMEDIATE")
            try:
                change(file)
                file.execute("COMMIT")
            except BaseException:
                # One that failed is not trusted again; closing it rolls back as well.
                self._let_go()
                raise

    def _opened(self) -> sqlite3.Connection:
        if self._file is None:
            make_private(self.path)
            file = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                file.execute("PRAGMA synchronous = FULL")
                file.execute("PRAGMA secure_delete = ON")
                if not _FILE.is_ready(file):
                    file.execute("BEGIN IMMEDIATE")
                    _FILE.prepare(file, self.path)
                    file.execute("COMMIT")
            except BaseException:
                file.close()
                raise
            self._file = file
        return self._file

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Trouble with the file in words of ours."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise InterlockError(
                UNRECORDABLE, f"The safety store {self.path} cannot be used: {error}."
            ) from error


def _name(record: Record) -> tuple[str, str]:
    if isinstance(record, Execution):
        return "execution", record.id
    if isinstance(record, Challenge):
        return "challenge", record.id
    who = msgspec.json.encode(record.who).decode()
    return ("block" if isinstance(record, Block) else "attempts"), who
