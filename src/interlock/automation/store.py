"""The store of operator decisions and of dismissals: a small SQLite file.

Writes are asynchronous: a decision counts even if it is not stored, and a failed write is logged.
Each approval is stored once, even if it is reported repeatedly.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.automation.config import AutomationConfig
from interlock.automation.decision import HumanDecision
from interlock.automation.dismissal import Dismissal
from interlock.core.config import Config
from interlock.core.paths import state_dir
from interlock.core.state.database import DatabaseKind
from interlock.core.state.writer import WriterFile
from interlock.errors import InterlockError

SCHEMA_VERSION: Final = 1
_KIND: Final = DatabaseKind(
    0x494C4443,  # "ILDC"
    SCHEMA_VERSION,
    (
        """CREATE TABLE decision (
            approval TEXT PRIMARY KEY,
            time     REAL NOT NULL,
            record   BLOB NOT NULL
        ) WITHOUT ROWID""",
        "CREATE INDEX decision_time ON decision (time, approval)",
    ),
    "The store of decisions",
    "a store of decisions",
)
_PRUNE_INTERVAL: Final = 100
"""The number of writes between two prunings."""

_log = logging.getLogger("interlock.state")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HumanDecision).decode
_decode_dismissal = msgspec.msgpack.Decoder(Dismissal).decode
_CREATE_DISMISSED_TABLE: Final = (
    # Older files do not have this table: it is created when it is first needed.
    "CREATE TABLE IF NOT EXISTS dismissed (id TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID"
)


def decisions_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Return the path of the store of a node."""
    return state_dir(config, environ, base_dir) / "decisions.db"


class DecisionStore:
    """The store at `path`. Without a path it is in memory."""

    def __init__(
        self,
        path: Path | None,
        *,
        deliver: Callable[[Callable[[], None]], object],
        settings: AutomationConfig,
        wall_clock: Callable[[], float],
    ) -> None:
        """Open the store.

        Args:
            deliver: runs a function on the event loop, such as `loop.call_soon_threadsafe`.
        """
        self._file = WriterFile(path, _KIND, deliver=deliver)
        self._settings = settings
        self._wall_clock = wall_clock
        self._writes_until_prune = 0

    @property
    def reason(self) -> str:
        """The reason why the store cannot be written now. Empty: it can."""
        return self._file.reason

    def configure(self, settings: AutomationConfig) -> None:
        self._settings = settings
        self._writes_until_prune = 0

    def write(self, make: Callable[[], HumanDecision]) -> None:
        prune = self._writes_until_prune <= 0
        self._writes_until_prune = _PRUNE_INTERVAL if prune else self._writes_until_prune - 1
        settings, now = self._settings, self._wall_clock()

        def insert(file: sqlite3.Connection) -> None:
            decision = make()
            row = (decision.approval, decision.time, _encode(decision))
            file.execute("INSERT OR IGNORE INTO decision VALUES (?, ?, ?)", row)
            if prune:
                _prune(file, now - settings.keep, settings.max_stored)

        self._file.submit(insert, self._on_written)

    def _on_written(self, _: Any, error: InterlockError | None) -> None:
        if error is not None:
            _log.warning("decision: not stored: %s", error.message)

    def history(self) -> list[HumanDecision]:
        """Return all decisions that count, oldest first. Waits for the disk. Raises
        InterlockError."""
        if self._file.path is not None and not self._file.path.exists():
            return []
        since, limit = self._wall_clock() - self._settings.keep, self._settings.max_stored

        def read(file: sqlite3.Connection) -> list[Any]:
            return file.execute(
                "SELECT approval, record FROM decision WHERE time >= ?"
                " ORDER BY time DESC, approval DESC LIMIT ?",
                (since, limit),
            ).fetchall()

        decisions = []
        for approval, record in reversed(self._file.run_now(read)):
            try:
                decisions.append(_decode(record))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                _log.warning("decision about %.40s: unreadable: %s", approval, error)
        return decisions

    def dismiss(self, dismissal: Dismissal) -> None:
        """Store a dismissal. Waits for the disk. Raises InterlockError."""

        def write(file: sqlite3.Connection) -> None:
            file.execute(_CREATE_DISMISSED_TABLE)
            file.execute(
                "INSERT OR REPLACE INTO dismissed VALUES (?, ?)", (dismissal.id, _encode(dismissal))
            )

        self._file.run_now(write)

    def restore(self, ids: Iterable[str]) -> None:
        """Delete dismissals. Waits for the disk. Raises InterlockError."""
        rows = [(id,) for id in ids]

        def delete(file: sqlite3.Connection) -> None:
            file.execute(_CREATE_DISMISSED_TABLE)
            file.executemany("DELETE FROM dismissed WHERE id = ?", rows)

        self._file.run_now(delete)

    def read_dismissals(self) -> list[Dismissal]:
        """Return all dismissals, oldest first. Waits for the disk. Raises InterlockError."""
        if self._file.path is not None and not self._file.path.exists():
            return []

        def read(file: sqlite3.Connection) -> list[Any]:
            file.execute(_CREATE_DISMISSED_TABLE)
            return file.execute("SELECT id, record FROM dismissed").fetchall()

        dismissals = []
        for id, record in self._file.run_now(read):
            try:
                dismissals.append(_decode_dismissal(record))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                _log.warning("dismissal %.40s: unreadable: %s", id, error)
        return sorted(dismissals, key=lambda dismissal: dismissal.time)

    def close(self) -> None:
        """Write everything that is queued, and close the file. Waits for the disk."""
        self._file.close()


def _prune(file: sqlite3.Connection, oldest: float, limit: int) -> None:
    file.execute("DELETE FROM decision WHERE time < ?", (oldest,))
    file.execute(
        "DELETE FROM decision WHERE approval IN (SELECT approval FROM decision"
        " ORDER BY time DESC, approval DESC LIMIT -1 OFFSET ?)",
        (limit,),
    )
