"""Which contracts of tools a human has accepted, and what was seen of them since.

One small SQLite file, shared by a node and the command line: either may write, and a node notices
what others wrote.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from interlock.errors import InterlockError
from interlock.stores.own_file import OwnFile
from interlock.stores.shared_file import SharedFile

SCHEMA_VERSION: Final = 1
WANTED_FOR: Final = 60.0
"""Who wants to see a tool's contract waits no longer than this."""

# "ILPN". Tells our file from another program's.
_APPLICATION_ID: Final = 0x494C504E
_BUSY_SECONDS: Final = 2.0
_log = logging.getLogger("interlock.stores")
_SCHEMA: Final = (
    """CREATE TABLE pin (
        tool       TEXT PRIMARY KEY,
        digest     TEXT NOT NULL,
        definition BLOB NOT NULL,
        by         TEXT NOT NULL,
        at         REAL NOT NULL
    )""",
    """CREATE TABLE seen (
        tool       TEXT PRIMARY KEY,
        digest     TEXT NOT NULL,
        definition BLOB NOT NULL,
        at         REAL NOT NULL
    )""",
    "CREATE TABLE wanted (tool TEXT PRIMARY KEY, at REAL NOT NULL)",
)
_FILE: Final = OwnFile(
    _APPLICATION_ID, SCHEMA_VERSION, _SCHEMA, "The store of pins", "a store of pins"
)


class Pin(NamedTuple):
    """A contract that was accepted."""

    tool: str
    """Its canonical name."""
    digest: str
    definition: bytes
    """Canonical JSON, of which `digest` is the SHA-256."""
    by: str
    at: float
    """On the wall clock."""


class Seen(NamedTuple):
    """A contract that a node has seen and nobody has accepted."""

    tool: str
    digest: str
    definition: bytes
    at: float


class Gone(NamedTuple):
    """What was seen of a tool is as it was accepted: there is nothing to show."""

    tool: str


Change = Pin | Seen | Gone


class PinStore:
    """The file at `path`. Everything here may be called in any thread."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        """`path` None: in memory, for a node that has nowhere to keep it. Raises InterlockError
        when there is a file that cannot be read: what it says must not be guessed."""
        self.path = path
        self._clock = clock
        self._file = SharedFile(
            path,
            _FILE,
            patience=_BUSY_SECONDS,
            removed="every tool must be accepted again",
            # What is broken is found now, not when a tool has changed.
            checked=True,
        )

    @classmethod
    def at(cls, path: Path) -> PinStore:
        """The store at `path`; one in memory when there is none yet and none can be made."""
        try:
            return cls(path)
        except InterlockError as error:
            if path.exists() and path.stat().st_size:
                raise
            _log.warning("%s Tools are pinned until the node stops.", error.message)
            return cls(None)

    def close(self) -> None:
        self._file.close()

    # -- reading

    def digests(self) -> dict[str, str]:
        """The digest of every contract that was accepted, by the tool's canonical name."""
        with self._file.reading() as file:
            return dict(file.execute("SELECT tool, digest FROM pin"))

    def pins(self) -> list[Pin]:
        with self._file.reading() as file:
            return [Pin(*row) for row in file.execute("SELECT * FROM pin ORDER BY tool")]

    def pin(self, tool: str, patience: float | None = None) -> Pin | None:
        """What was accepted of a tool. Raises InterlockError, also when somebody holds the file
        for longer than one has patience."""
        with self._file.reading(patience) as file:
            row = file.execute("SELECT * FROM pin WHERE tool = ?", (tool,)).fetchone()
        return None if row is None else Pin(*row)

    def all_seen(self) -> dict[str, Seen]:
        """What was last seen of tools otherwise than it was accepted."""
        with self._file.reading() as file:
            return {row[0]: Seen(*row) for row in file.execute("SELECT * FROM seen")}

    def seen(self, tool: str) -> Seen | None:
        with self._file.reading() as file:
            row = file.execute("SELECT * FROM seen WHERE tool = ?", (tool,)).fetchone()
        return None if row is None else Seen(*row)

    def wanted(self) -> list[str]:
        """Tools whose contracts somebody waits to see."""
        with self._file.reading() as file:
            rows = file.execute(
                "SELECT tool FROM wanted WHERE at > ? ORDER BY tool", (self._clock() - WANTED_FOR,)
            )
            return [row[0] for row in rows]

    def changed_elsewhere(self) -> bool:
        """Whether somebody else wrote since this was last asked."""
        return self._file.changed_elsewhere()

    # -- writing

    def write(self, changes: Iterable[Change]) -> None:
        """Everything or nothing of it. Raises InterlockError."""
        with self._file.writing() as file:
            for change in changes:
                if isinstance(change, Pin):
                    file.execute("INSERT OR REPLACE INTO pin VALUES (?, ?, ?, ?, ?)", change)
                    file.execute(
                        "DELETE FROM seen WHERE tool = ? AND digest = ?",
                        (change.tool, change.digest),
                    )
                elif isinstance(change, Seen):
                    file.execute("INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?)", change)
                    file.execute("DELETE FROM wanted WHERE tool = ?", (change.tool,))
                else:
                    file.execute("DELETE FROM seen WHERE tool = ?", change)

    def accept(self, seen: Seen, by: str) -> Pin:
        """A human accepts what was seen: exactly that, whatever has been seen since."""
        pin = Pin(seen.tool, seen.digest, seen.definition, by, self._clock())
        self.write([pin])
        return pin

    def forget(self, tool: str) -> bool:
        """A tool is as if it had never been accepted; whether it had been."""
        with self._file.writing() as file:
            file.execute("DELETE FROM seen WHERE tool = ?", (tool,))
            return file.execute("DELETE FROM pin WHERE tool = ?", (tool,)).rowcount > 0

    def want(self, tool: str) -> None:
        """Ask the node that runs by this file for a tool's contract as it is now: it will be
        `seen` then."""
        now = self._clock()
        with self._file.writing() as file:
            file.execute("DELETE FROM wanted WHERE at <= ?", (now - WANTED_FOR,))
            file.execute("DELETE FROM seen WHERE tool = ?", (tool,))
            file.execute("INSERT OR REPLACE INTO wanted VALUES (?, ?)", (tool, now))
