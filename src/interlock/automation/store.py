"""Decisions of humans, and dismissals of suggestions, on disk: one small SQLite file.

Nobody waits for it: a decision counts whether it is stored or not, and one that cannot be written
is logged. Each approval is stored once, whoever reports it."""

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
    "The memory of decisions",
    "a memory of decisions",
)
_EVERY: Final = 100
"""After so many it is seen which are too old, or too many."""

_log = logging.getLogger("interlock.state")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HumanDecision).decode
_decode_dismissed = msgspec.msgpack.Decoder(Dismissal).decode
_MAKE_DISMISSED: Final = (
    # Files that are older have no such table: it is made when it is first needed.
    "CREATE TABLE IF NOT EXISTS dismissed (id TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID"
)


def decisions_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """The path of the store of a node."""
    return state_dir(config, environ, base_dir) / "decisions.db"


class DecisionStore:
    """The file at `path`. Without a path decisions are gone with the node."""

    def __init__(
        self,
        path: Path | None,
        *,
        deliver: Callable[[Callable[[], None]], object],
        settings: AutomationConfig,
        wall_clock: Callable[[], float],
    ) -> None:
        """`deliver` runs something on the event loop, such as `loop.call_soon_threadsafe`."""
        self._file = WriterFile(path, _KIND, deliver=deliver)
        self._settings = settings
        self._wall_clock = wall_clock
        self._until_pruned = 0

    @property
    def reason(self) -> str:
        """Why it cannot be written at the moment. Empty: it can."""
        return self._file.reason

    def configure(self, settings: AutomationConfig) -> None:
        self._settings = settings
        self._until_pruned = 0

    def write(self, make: Callable[[], HumanDecision]) -> None:
        prune = self._until_pruned <= 0
        self._until_pruned = _EVERY if prune else self._until_pruned - 1
        settings, now = self._settings, self._wall_clock()

        def insert(file: sqlite3.Connection) -> None:
            decided = make()
            row = (decided.approval, decided.time, _encode(decided))
            file.execute("INSERT OR IGNORE INTO decision VALUES (?, ?, ?)", row)
            if prune:
                _prune(file, now - settings.keep, settings.most)

        self._file.submit(insert, self._written)

    def _written(self, _: Any, error: InterlockError | None) -> None:
        if error is not None:
            _log.warning("A decision is not remembered: %s", error.message)

    def history(self) -> list[HumanDecision]:
        """All that count, the oldest first. Waits for the disk. Raises InterlockError."""
        if self._file.path is not None and not self._file.path.exists():
            return []
        since, most = self._wall_clock() - self._settings.keep, self._settings.most

        def read(file: sqlite3.Connection) -> list[Any]:
            return file.execute(
                "SELECT approval, record FROM decision WHERE time >= ?"
                " ORDER BY time DESC, approval DESC LIMIT ?",
                (since, most),
            ).fetchall()

        found = []
        for approval, record in reversed(self._file.at_once(read)):
            try:
                found.append(_decode(record))
            except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
                _log.warning("the decision about %.40s cannot be read: %s", approval, wrong)
        return found

    def dismiss(self, one: Dismissal) -> None:
        """Keep that somebody does not want a rule. Waits for the disk. Raises InterlockError."""

        def write(file: sqlite3.Connection) -> None:
            file.execute(_MAKE_DISMISSED)
            file.execute("INSERT OR REPLACE INTO dismissed VALUES (?, ?)", (one.id, _encode(one)))

        self._file.at_once(write)

    def restore(self, ids: Iterable[str]) -> None:
        """Forget that. Waits for the disk. Raises InterlockError."""
        rows = [(id,) for id in ids]

        def delete(file: sqlite3.Connection) -> None:
            file.execute(_MAKE_DISMISSED)
            file.executemany("DELETE FROM dismissed WHERE id = ?", rows)

        self._file.at_once(delete)

    def dismissed(self) -> list[Dismissal]:
        """What nobody wants, the oldest first. Waits for the disk. Raises InterlockError."""
        if self._file.path is not None and not self._file.path.exists():
            return []

        def read(file: sqlite3.Connection) -> list[Any]:
            file.execute(_MAKE_DISMISSED)
            return file.execute("SELECT id, record FROM dismissed").fetchall()

        found = []
        for id, record in self._file.at_once(read):
            try:
                found.append(_decode_dismissed(record))
            except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
                _log.warning("what was dismissed as %.40s cannot be read: %s", id, wrong)
        return sorted(found, key=lambda one: one.time)

    def close(self) -> None:
        """Write what is left, and stop. Waits for the disk."""
        self._file.close()


def _prune(file: sqlite3.Connection, before: float, most: int) -> None:
    file.execute("DELETE FROM decision WHERE time < ?", (before,))
    file.execute(
        "DELETE FROM decision WHERE approval IN (SELECT approval FROM decision"
        " ORDER BY time DESC, approval DESC LIMIT -1 OFFSET ?)",
        (most,),
    )
