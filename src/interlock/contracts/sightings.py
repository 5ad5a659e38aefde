"""What a node has seen of the contracts of its upstreams' tools: as they are now, as somebody
accepted them, and what is between the two.

One small SQLite file, shared by a node and the command line: either may write, and a node notices
what others wrote.
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
"""Who accepted a contract that nobody had to look at."""
FIRST_VERSION: Final = "1.0.0"
_BUSY_SECONDS: Final = 5.0
_GLANCE: Final = 0.02
"""So long may somebody wait who has to answer others meanwhile."""
_ONE: Final = "SELECT * FROM sighting WHERE tool = ?"
# "ILSG". Tells our file from another program's.
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
    """A change, as it is kept."""

    reason: str
    path: str
    breaking: bool
    message: str


class SightingState(Struct, frozen=True):
    """What a node has to know of a tool at all times."""

    upstream: str
    digest: str
    accepted_digest: str
    gone: bool
    published: str


class ObservedTool(Struct, frozen=True):
    """A tool as its upstream lists it now."""

    tool: str
    upstream: str
    digest: str
    definition: bytes


class Sighting(Struct, frozen=True):
    """A tool as it was last seen, and as it was accepted."""

    tool: str
    """Its canonical name."""
    upstream: str
    version: str
    digest: str
    definition: bytes
    """Canonical JSON, of which `digest` is the SHA-256."""
    at: float
    """On the wall clock: when it was first seen so."""
    accepted_version: str
    accepted_digest: str
    accepted_definition: bytes
    accepted_at: float
    accepted_by: str
    changes: list[ChangeRecord] = []
    """What breaks between what was accepted and what is there now, and what else is other."""
    gone: bool = False
    """Its upstream does not list it any more."""
    published: str = ""
    """The digest that the registry has of it. Empty: none."""

    @property
    def is_open(self) -> bool:
        """Whether something broke that nobody has accepted."""
        return self.gone or self.digest != self.accepted_digest

    @property
    def state(self) -> SightingState:
        return SightingState(
            self.upstream, self.digest, self.accepted_digest, self.gone, self.published
        )


def first_seen(seen: ObservedTool, now: float) -> Sighting:
    """A tool that nobody knows yet is taken as it is."""
    return Sighting(
        seen.tool, seen.upstream, FIRST_VERSION, seen.digest, seen.definition, now,
        FIRST_VERSION, seen.digest, seen.definition, now, FIRST_SEEN,
    )  # fmt: skip


class SightingStore:
    """The file at `path`. Everything here may be called in any thread."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        """`path` None: in memory. Raises InterlockError."""
        self._clock = clock
        self._file = SharedFile(
            path, _FILE, busy_timeout=_BUSY_SECONDS, removal_effect="every tool is as if first seen"
        )

    def close(self) -> None:
        self._file.close()

    # -- reading

    def states(self) -> dict[str, SightingState]:
        """Every tool that was seen, by its canonical name."""
        with self._file.reading() as file:
            rows = file.execute(
                "SELECT tool, upstream, digest, accepted_digest, gone, published FROM sighting"
            )
            return {
                row[0]: SightingState(row[1], row[2], row[3], bool(row[4]), row[5]) for row in rows
            }

    def get(self, tool: str, patience: float | None = None) -> Sighting | None:
        with self._file.reading(patience) as file:
            row = file.execute(_ONE, (tool,)).fetchone()
        return None if row is None else _sighting(row)

    def peek(self, tool: str) -> Sighting | None:
        """The same for whoever cannot wait. None: also when somebody writes just now."""
        try:
            return self.get(tool, _GLANCE)
        except InterlockError as error:
            if error.failure is TOO_BUSY:
                return None
            raise

    def open_ones(self) -> list[Sighting]:
        """Tools that broke, and nobody has accepted that."""
        with self._file.reading() as file:
            rows = file.execute(
                "SELECT * FROM sighting WHERE gone OR digest != accepted_digest ORDER BY tool"
            ).fetchall()
        return [_sighting(row) for row in rows]

    def unpublished(self) -> list[Sighting]:
        """Tools whose contract, as it is now, is in no registry yet."""
        with self._file.reading() as file:
            rows = file.execute(
                "SELECT * FROM sighting WHERE published != digest AND NOT gone ORDER BY tool"
            ).fetchall()
        return [_sighting(row) for row in rows]

    def was_changed_externally(self) -> bool:
        """Whether somebody else wrote since this was last asked."""
        return self._file.was_changed_externally()

    # -- writing

    def write(self, sightings: Iterable[Sighting]) -> None:
        """All of them or none. Raises InterlockError."""
        with self._file.writing() as file:
            file.executemany(
                f"INSERT OR REPLACE INTO sighting VALUES ({', '.join('?' * 14)})",
                [
                    (
                        one.tool, one.upstream, one.version, one.digest, one.definition, one.at,
                        one.accepted_version, one.accepted_digest, one.accepted_definition,
                        one.accepted_at, one.accepted_by, msgspec.json.encode(one.changes),
                        one.gone, one.published,
                    )
                    for one in sightings
                ],
            )  # fmt: skip

    def accept(self, seen: Sighting, by: str) -> bool:
        """Somebody accepts what was seen: exactly that. False: it is something else by now. A tool
        that is gone is forgotten."""
        with self._file.writing() as file:
            if seen.gone:
                done = file.execute(
                    "DELETE FROM sighting WHERE tool = ? AND gone", (seen.tool,)
                ).rowcount
            else:
                done = file.execute(
                    "UPDATE sighting SET accepted_version = version, accepted_digest = digest, "
                    "accepted_definition = definition, accepted_at = ?, accepted_by = ?, "
                    "changes = '[]' WHERE tool = ? AND digest = ? AND NOT gone",
                    (self._clock(), by, seen.tool, seen.digest),
                ).rowcount
        return done > 0

    def publishes_in(self, registry: str, *, is_new: bool) -> None:
        """Where contracts are published from now on. What another one had, or one that is not there
        any more, counts for nothing."""
        with self._file.writing() as file:
            last = file.execute("SELECT registry FROM place").fetchone()
            if is_new or last is None or last[0] != registry:
                file.execute("UPDATE sighting SET published = ''")
                file.execute("DELETE FROM place")
                file.execute("INSERT INTO place VALUES (?)", (registry,))


def _sighting(row: tuple[Any, ...]) -> Sighting:
    *known, changes, gone, published = row
    noted = msgspec.json.decode(changes, type=list[ChangeRecord])
    return Sighting(*[*known, noted, bool(gone), published])
