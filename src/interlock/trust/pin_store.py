"""Which contracts of tools a human has accepted, and what was seen of them since.

One small SQLite file, shared by a node and the command line: either may write, and a node notices
what others wrote.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from interlock.core.state.database import DatabaseKind
from interlock.core.state.shared_database import SharedFile
from interlock.errors import InterlockError

SCHEMA_VERSION: Final = 1
WANTED_FOR: Final = 60.0
"""Who wants to see a tool's contract waits no longer than this."""

# "ILPN". Tells our file from another program's.
_APPLICATION_ID: Final = 0x494C504E
_BUSY_SECONDS: Final = 2.0
_log = logging.getLogger("interlock.state")
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
_FILE: Final = DatabaseKind(
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


class SeenContract(NamedTuple):
    """A contract that a node has seen and nobody has accepted."""

    tool: str
    digest: str
    definition: bytes
    at: float


class SeenRemoval(NamedTuple):
    """What was seen of a tool is as it was accepted: there is nothing to show."""

    tool: str


Change = Pin | SeenContract | SeenRemoval


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

    def all_seen(self) -> dict[str, SeenContract]:
        """What was last seen of tools otherwise than it was accepted."""
        with self._file.reading() as file:
            return {row[0]: SeenContract(*row) for row in file.execute("SELECT * FROM seen")}

    def seen(self, tool: str) -> SeenContract | None:
        with self._file.reading() as file:
            row = file.execute("SELECT * FROM seen WHERE tool = ?", (tool,)).fetchone()
        return None if row is None else SeenContract(*row)

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
                elif isinstance(change, SeenContract):
                    file.execute("INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?)", change)
                    file.execute("DELETE FROM wanted WHERE tool = ?", (change.tool,))
                else:
                    file.execute("DELETE FROM seen WHERE tool = ?", change)

    def accept(self, seen: SeenContract, by: str) -> Pin:
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


# -- Keeps a running node and its store of pins alike, off the event loop, in a thread of its own.
#
# What the node pins and sees is written in the order in which it happened, as soon as it can be:
# what cannot be written now, on a full disk, is tried again. What somebody else wrote (`interlock
# pins`) is noticed within a second.

LOOK_EVERY: Final = 1.0

Deliver = Callable[[Callable[[], None]], object]
"""Has something done where the node runs, such as `loop.call_soon_threadsafe`."""
Changed = Callable[[Mapping[str, str | None], Sequence[str]], None]
"""Takes the pins that others changed, by tool (None: it is pinned no more), and the tools whose
contracts somebody wants to see."""


class NodePinStore:
    """The store of a node's pins, as the node uses it."""

    def __init__(
        self,
        store: PinStore,
        deliver: Deliver,
        *,
        every: float = LOOK_EVERY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._deliver = deliver
        self._every = every
        self._clock = clock
        self._known = store.digests()
        self._queue: SimpleQueue[Change | threading.Event] = SimpleQueue()
        self._unwritten: dict[tuple[bool, str], Change] = {}
        self._on_their_way: dict[str, Pin] = {}
        """What is pinned but not written yet, for whoever asks meanwhile."""
        self._looked: list[threading.Event] = []
        self._closing = False
        self._thread: threading.Thread | None = None
        self.on_changed: Changed = lambda changes, wanted: None
        self.problem: str | None = None
        """Why pins cannot be written now."""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="interlock-pins", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is left, and stop."""
        self._closing = True
        self.look()
        if self._thread is not None:
            self._thread.join()
        else:
            self._turn()
        self._store.close()

    # -- what the node says

    def digests(self) -> dict[str, str]:
        """What is pinned when the node starts."""
        return dict(self._known)

    def seen_digests(self) -> dict[str, str]:
        """What was last seen of tools otherwise than it was accepted, when the node starts."""
        return {tool: seen.digest for tool, seen in self._store.all_seen().items()}

    def definition(self, tool: str) -> bytes | None:
        """The contract that was accepted. None: there is none, or it cannot be read now."""
        try:
            pin = self._on_their_way.get(tool) or self._store.pin(tool, patience=0)
        except InterlockError as error:
            # Whoever asks says it in other words; who writes says what is wrong with the file.
            _log.debug("%s", error.message)
            return None
        return None if pin is None else pin.definition

    def keep(self, tool: str, digest: str, definition: bytes, by: str) -> None:
        pin = self._on_their_way[tool] = Pin(tool, digest, definition, by, self._clock())
        self._queue.put(pin)

    def record_seen(self, tool: str, digest: str, definition: bytes) -> None:
        """A tool has another contract than the one that was accepted, or somebody wants to see
        it."""
        self._queue.put(SeenContract(tool, digest, definition, self._clock()))

    def remove_seen(self, tool: str) -> None:
        self._queue.put(SeenRemoval(tool))

    def look(self) -> threading.Event:
        """Write what there is, and look whether somebody else has written. Set when it is done."""
        looked = threading.Event()
        self._queue.put(looked)
        return looked

    # -- in its own thread

    def _work(self) -> None:
        while not self._closing:
            with suppress(Empty):
                self._take(self._queue.get(timeout=self._every))
            self._turn()
        self._turn()

    def _take(self, change: Change | threading.Event) -> None:
        if isinstance(change, threading.Event):
            self._looked.append(change)
        else:
            # The last word on a tool counts; pins and what was seen are two things.
            key = isinstance(change, Pin), change.tool
            self._unwritten.pop(key, None)
            self._unwritten[key] = change

    def _turn(self) -> None:
        while not self._queue.empty():
            self._take(self._queue.get())
        try:
            self._write()
            self._notice()
            self.problem = None
        except InterlockError as error:
            if self.problem is None:
                _log.error("%s What was pinned since then is lost if the node stops.", error)
            self.problem = error.message
        for looked in self._looked:
            looked.set()
        self._looked.clear()

    def _write(self) -> None:
        if not self._unwritten:
            return
        self._store.write(self._unwritten.values())
        for change in self._unwritten.values():
            if isinstance(change, Pin):
                self._known[change.tool] = change.digest
                if self._on_their_way.get(change.tool) is change:
                    del self._on_their_way[change.tool]
        self._unwritten.clear()

    def _notice(self) -> None:
        if not self._store.changed_elsewhere():
            return
        known, self._known = self._known, self._store.digests()
        changes = {
            tool: self._known.get(tool)
            for tool in known.keys() | self._known.keys()
            if known.get(tool) != self._known.get(tool)
        }
        wanted = self._store.wanted()
        if changes or wanted:
            try:
                self._deliver(lambda: self.on_changed(changes, wanted))
            except RuntimeError:
                # The loop is closed: the node has stopped.
                _log.debug("nobody is there to hear of changed pins")
