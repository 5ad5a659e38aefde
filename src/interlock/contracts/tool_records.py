"""The store of tool records: for each tool of an upstream its current contract, its accepted
contract, and the changes between them.

A small SQLite file that a node and the command line share. Both may write, and a node notices what
other processes wrote.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from interlock.core.state.database import DatabaseKind
from interlock.core.state.shared_database import SharedFile
from interlock.errors import TOO_BUSY, InterlockError

FIRST_SEEN: Final = "first seen"
COMPATIBLE: Final = "compatible"
"""The values of `accepted_by` for contracts that were accepted without an operator."""
FIRST_VERSION: Final = "1.0.0"
_BUSY_SECONDS: Final = 5.0
_PEEK_TIMEOUT_SECONDS: Final = 0.02
"""The longest wait of a caller that must not block the event loop."""
_SELECT_TOOL: Final = "SELECT * FROM sighting WHERE tool = ?"
# "ILSG". Distinguishes this file from files of other programs.
_FILE: Final = DatabaseKind(
    0x494C5347,
    1,
    (
        """CREATE TABLE sighting (
            tool                TEXT PRIMARY KEY,
            upstream            TEXT NOT NULL,
            version             TEXT NOT NULL,
            digest              TEXT NOT NULL,
            definition          BLOB NOT NULL,
            at                  REAL NOT NULL,
            accepted_version    TEXT NOT NULL,
            accepted_digest     TEXT NOT NULL,
            accepted_definition BLOB NOT NULL,
            accepted_at         REAL NOT NULL,
            accepted_by         TEXT NOT NULL,
            changes             BLOB NOT NULL,
            gone                INTEGER NOT NULL,
            published           TEXT NOT NULL
        )""",
        "CREATE INDEX sighting_upstream ON sighting (upstream)",
        "CREATE TABLE place (registry TEXT NOT NULL)",
    ),
    "The store of seen contracts",
    "a store of seen contracts",
)


class ChangeRecord(Struct, frozen=True):
    """A change, as it is stored."""

    reason: str
    path: str
    breaking: bool
    message: str


class ToolState(Struct, frozen=True):
    """The part of a tool record that a node keeps in memory."""

    upstream: str
    digest: str
    accepted_digest: str
    removed: bool
    published: str


class ObservedTool(Struct, frozen=True):
    """A tool as its upstream lists it now."""

    tool: str
    upstream: str
    digest: str
    definition: bytes


class ToolRecord(Struct, frozen=True):
    """A tool as it was last listed, and as it was accepted."""

    tool: str
    """The canonical name of the tool."""
    upstream: str
    version: str
    digest: str
    definition: bytes
    """Canonical JSON; `digest` is its SHA-256."""
    at: float
    """The time when this definition was first seen, in seconds since 1970."""
    accepted_version: str
    accepted_digest: str
    accepted_definition: bytes
    accepted_at: float
    accepted_by: str
    changes: list[ChangeRecord] = []
    """The changes between the accepted and the current definition, if they break callers."""
    removed: bool = False
    """True if the upstream no longer lists the tool."""
    published: str = ""
    """The digest of the version in the registry. Empty: the tool is not published."""

    @property
    def is_broken(self) -> bool:
        """True if there is an unaccepted breaking change."""
        return self.removed or self.digest != self.accepted_digest

    @property
    def state(self) -> ToolState:
        return ToolState(
            self.upstream, self.digest, self.accepted_digest, self.removed, self.published
        )


def create_record(observed: ObservedTool, now: float) -> ToolRecord:
    """Return the record of a new tool. Its first definition counts as accepted."""
    return ToolRecord(
        observed.tool, observed.upstream, FIRST_VERSION, observed.digest, observed.definition, now,
        FIRST_VERSION, observed.digest, observed.definition, now, FIRST_SEEN,
    )  # fmt: skip


class ToolRecordStore:
    """The store at `path`. All methods are thread-safe."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        """Open the store; in memory if `path` is None. Raises InterlockError."""
        self._clock = clock
        self._file = SharedFile(
            path, _FILE, busy_timeout=_BUSY_SECONDS, removal_effect="every tool is as if first seen"
        )

    def close(self) -> None:
        self._file.close()

    # -- queries

    def states(self) -> dict[str, ToolState]:
        """Return the state of every tool, by canonical name."""
        with self._file.reading() as file:
            rows = file.execute(
                "SELECT tool, upstream, digest, accepted_digest, gone, published FROM sighting"
            )
            return {row[0]: ToolState(row[1], row[2], row[3], bool(row[4]), row[5]) for row in rows}

    def get(self, tool: str, timeout: float | None = None) -> ToolRecord | None:
        with self._file.reading(timeout) as file:
            row = file.execute(_SELECT_TOOL, (tool,)).fetchone()
        return None if row is None else _decode_row(row)

    def peek(self, tool: str) -> ToolRecord | None:
        """Return a record without waiting. None: the tool is unknown, or another process is
        writing now."""
        try:
            return self.get(tool, _PEEK_TIMEOUT_SECONDS)
        except InterlockError as error:
            if error.failure is TOO_BUSY:
                return None
            raise

    def find_broken(self) -> list[ToolRecord]:
        """Return the tools with an unaccepted breaking change."""
        with self._file.reading() as file:
            rows = file.execute(
                "SELECT * FROM sighting WHERE gone OR digest != accepted_digest ORDER BY tool"
            ).fetchall()
        return [_decode_row(row) for row in rows]

    def find_unpublished(self) -> list[ToolRecord]:
        """Return the tools whose current contract is not in the registry yet."""
        with self._file.reading() as file:
            rows = file.execute(
                "SELECT * FROM sighting WHERE published != digest AND NOT gone ORDER BY tool"
            ).fetchall()
        return [_decode_row(row) for row in rows]

    def was_changed_externally(self) -> bool:
        """Return whether another process has written since the previous call."""
        return self._file.was_changed_externally()

    # -- updates

    def write(self, records: Iterable[ToolRecord]) -> None:
        """Write all records or none. Raises InterlockError."""
        with self._file.writing() as file:
            file.executemany(
                f"INSERT OR REPLACE INTO sighting VALUES ({', '.join('?' * 14)})",
                [
                    (
                        record.tool, record.upstream, record.version, record.digest,
                        record.definition, record.at,
                        record.accepted_version, record.accepted_digest, record.accepted_definition,
                        record.accepted_at, record.accepted_by, msgspec.json.encode(record.changes),
                        record.removed, record.published,
                    )
                    for record in records
                ],
            )  # fmt: skip

    def accept(self, record: ToolRecord, by: str) -> bool:
        """Accept a contract exactly as it is in the record. A removed tool is deleted.

        Returns:
            False: the contract has changed since the record was read.
        """
        with self._file.writing() as file:
            if record.removed:
                updated_rows = file.execute(
                    "DELETE FROM sighting WHERE tool = ? AND gone", (record.tool,)
                ).rowcount
            else:
                updated_rows = file.execute(
                    "UPDATE sighting SET accepted_version = version, accepted_digest = digest, "
                    "accepted_definition = definition, accepted_at = ?, accepted_by = ?, "
                    "changes = '[]' WHERE tool = ? AND digest = ? AND NOT gone",
                    (self._clock(), by, record.tool, record.digest),
                ).rowcount
        return updated_rows > 0

    def set_registry(self, registry: str, *, is_new: bool) -> None:
        """Set the registry in which contracts are published. For another or a new registry, all
        tools count as unpublished.
        """
        with self._file.writing() as file:
            previous = file.execute("SELECT registry FROM place").fetchone()
            if is_new or previous is None or previous[0] != registry:
                file.execute("UPDATE sighting SET published = ''")
                file.execute("DELETE FROM place")
                file.execute("INSERT INTO place VALUES (?)", (registry,))


def _decode_row(row: tuple[Any, ...]) -> ToolRecord:
    *columns, changes, is_removed, published = row
    decoded_changes = msgspec.json.decode(changes, type=list[ChangeRecord])
    return ToolRecord(*[*columns, decoded_changes, bool(is_removed), published])
