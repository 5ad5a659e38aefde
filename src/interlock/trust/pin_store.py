"""Storage of pins: the accepted contracts of tools, and changed contracts that a node has seen.

One SQLite file that a node and the command line share. Either may write, and a node notices what
others wrote.
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
REQUEST_LIFETIME_SECONDS: Final = 60.0
"""The time for which a request for the current contract of a tool is valid."""

# "ILPN": marks the file as ours.
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
    """An accepted contract."""

    tool: str
    """Its canonical name."""
    digest: str
    definition: bytes
    """Canonical JSON. `digest` is its SHA-256."""
    by: str
    at: float
    """In seconds on the wall clock."""


class SeenContract(NamedTuple):
    """A contract that a node has seen and no person has accepted."""

    tool: str
    digest: str
    definition: bytes
    at: float


class SeenRemoval(NamedTuple):
    """A change: a tool has its accepted contract again, so nothing needs to be shown."""

    tool: str


Change = Pin | SeenContract | SeenRemoval


class PinStore:
    """The store in the file at `path`. Any thread may call it."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        """Args:
        path: None for a store in memory.

        Raises InterlockError for a file that exists and cannot be read: its content must not be
        guessed.
        """
        self.path = path
        self._clock = clock
        self._file = SharedFile(
            path,
            _FILE,
            busy_timeout=_BUSY_SECONDS,
            removal_effect="every tool must be accepted again",
            # A broken file is found now, not when a tool has changed.
            check_integrity=True,
        )

    @classmethod
    def open(cls, path: Path) -> PinStore:
        """Return the store at `path`, or one in memory if no file exists and none can be
        created."""
        try:
            return cls(path)
        except InterlockError as error:
            if path.exists() and path.stat().st_size:
                raise
            _log.warning("pins: %s Pins are lost when the node stops.", error.message)
            return cls(None)

    def close(self) -> None:
        self._file.close()

    # -- Reading

    def digests(self) -> dict[str, str]:
        """Return the digest of every accepted contract, by the canonical name of the tool."""
        with self._file.reading() as file:
            return dict(file.execute("SELECT tool, digest FROM pin"))

    def pins(self) -> list[Pin]:
        with self._file.reading() as file:
            return [Pin(*row) for row in file.execute("SELECT * FROM pin ORDER BY tool")]

    def pin(self, tool: str, timeout: float | None = None) -> Pin | None:
        """Return the accepted contract of a tool.

        Raises InterlockError, also when another process locks the file for longer than `timeout`.
        """
        with self._file.reading(timeout) as file:
            row = file.execute("SELECT * FROM pin WHERE tool = ?", (tool,)).fetchone()
        return None if row is None else Pin(*row)

    def all_seen(self) -> dict[str, SeenContract]:
        """Return the last changed contracts that a node has seen, by tool."""
        with self._file.reading() as file:
            return {row[0]: SeenContract(*row) for row in file.execute("SELECT * FROM seen")}

    def find_seen_contract(self, tool: str) -> SeenContract | None:
        with self._file.reading() as file:
            row = file.execute("SELECT * FROM seen WHERE tool = ?", (tool,)).fetchone()
        return None if row is None else SeenContract(*row)

    def requested_tools(self) -> list[str]:
        """Return the tools whose current contracts are requested."""
        with self._file.reading() as file:
            rows = file.execute(
                "SELECT tool FROM wanted WHERE at > ? ORDER BY tool",
                (self._clock() - REQUEST_LIFETIME_SECONDS,),
            )
            return [row[0] for row in rows]

    def was_changed_externally(self) -> bool:
        """Return whether another process wrote since the last call of this method."""
        return self._file.was_changed_externally()

    # -- Writing

    def write(self, changes: Iterable[Change]) -> None:
        """Write all changes or none. Raises InterlockError."""
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

    def accept(self, contract: SeenContract, by: str) -> Pin:
        """Accept a contract: exactly this one, whatever was seen since."""
        pin = Pin(contract.tool, contract.digest, contract.definition, by, self._clock())
        self.write([pin])
        return pin

    def remove(self, tool: str) -> bool:
        """Remove the pin of a tool. Return whether it existed."""
        with self._file.writing() as file:
            file.execute("DELETE FROM seen WHERE tool = ?", (tool,))
            return file.execute("DELETE FROM pin WHERE tool = ?", (tool,)).rowcount > 0

    def request_contract(self, tool: str) -> None:
        """Ask the node that uses this file to store the current contract of a tool as `seen`."""
        now = self._clock()
        with self._file.writing() as file:
            file.execute("DELETE FROM wanted WHERE at <= ?", (now - REQUEST_LIFETIME_SECONDS,))
            file.execute("DELETE FROM seen WHERE tool = ?", (tool,))
            file.execute("INSERT OR REPLACE INTO wanted VALUES (?, ?)", (tool, now))


# -- Keeps a running node and its pin store in sync, in a thread of its own.
#
# Pins and seen contracts are written in order, as soon as possible: a failed write, as on a full
# disk, is repeated. Changes by another process (`interlock pins`) are noticed within a second.

POLL_SECONDS: Final = 1.0

Deliver = Callable[[Callable[[], None]], object]
"""Runs a function on the event loop, such as `loop.call_soon_threadsafe`."""
ChangeCallback = Callable[[Mapping[str, str | None], Sequence[str]], None]
"""Takes the pins that others changed, by tool (None: removed), and the tools whose contracts are
requested."""


class NodePinStore:
    """The pins of a running node, written by a thread."""

    def __init__(
        self,
        store: PinStore,
        deliver: Deliver,
        *,
        interval: float = POLL_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._deliver = deliver
        self._interval = interval
        self._clock = clock
        self._digests = store.digests()
        self._queue: SimpleQueue[Change | threading.Event] = SimpleQueue()
        self._unwritten: dict[tuple[bool, str], Change] = {}
        self._pending_pins: dict[str, Pin] = {}
        """Pins that are not written yet, for readers."""
        self._syncs: list[threading.Event] = []
        self._closing = False
        self._thread: threading.Thread | None = None
        self.on_changed: ChangeCallback = lambda changes, requested: None
        self.problem: str | None = None
        """Why pins cannot be written now. None: they can."""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="interlock-pins", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the remaining changes, and stop."""
        self._closing = True
        self.sync()
        if self._thread is not None:
            self._thread.join()
        else:
            self._process_queue()
        self._store.close()

    # -- On the event loop

    def digests(self) -> dict[str, str]:
        """Return the pins at the start of the node."""
        return dict(self._digests)

    def seen_digests(self) -> dict[str, str]:
        """Return the digests of changed contracts at the start of the node, by tool."""
        return {tool: contract.digest for tool, contract in self._store.all_seen().items()}

    def definition(self, tool: str) -> bytes | None:
        """Return the accepted contract. None: there is none, or it cannot be read now."""
        try:
            pin = self._pending_pins.get(tool) or self._store.pin(tool, timeout=0)
        except InterlockError as error:
            # The writer reports problems of the file.
            _log.debug("pins: %s", error.message)
            return None
        return None if pin is None else pin.definition

    def store_pin(self, tool: str, digest: str, definition: bytes, by: str) -> None:
        pin = self._pending_pins[tool] = Pin(tool, digest, definition, by, self._clock())
        self._queue.put(pin)

    def record_seen(self, tool: str, digest: str, definition: bytes) -> None:
        """Store a contract that differs from the accepted one, or that was requested."""
        self._queue.put(SeenContract(tool, digest, definition, self._clock()))

    def remove_seen(self, tool: str) -> None:
        self._queue.put(SeenRemoval(tool))

    def sync(self) -> threading.Event:
        """Write all changes and read those of other processes. The event is set when that is
        done."""
        done = threading.Event()
        self._queue.put(done)
        return done

    # -- On the thread

    def _run(self) -> None:
        while not self._closing:
            with suppress(Empty):
                self._add(self._queue.get(timeout=self._interval))
            self._process_queue()
        self._process_queue()

    def _add(self, change: Change | threading.Event) -> None:
        if isinstance(change, threading.Event):
            self._syncs.append(change)
        else:
            # The last change of a tool counts. Pins and seen contracts are separate.
            key = isinstance(change, Pin), change.tool
            self._unwritten.pop(key, None)
            self._unwritten[key] = change

    def _process_queue(self) -> None:
        while not self._queue.empty():
            self._add(self._queue.get())
        try:
            self._write()
            self._read_changes()
            self.problem = None
        except InterlockError as error:
            if self.problem is None:
                _log.error(
                    "pins: %s New pins are lost if the node stops before that is fixed.", error
                )
            self.problem = error.message
        for done in self._syncs:
            done.set()
        self._syncs.clear()

    def _write(self) -> None:
        if not self._unwritten:
            return
        self._store.write(self._unwritten.values())
        for change in self._unwritten.values():
            if isinstance(change, Pin):
                self._digests[change.tool] = change.digest
                if self._pending_pins.get(change.tool) is change:
                    del self._pending_pins[change.tool]
        self._unwritten.clear()

    def _read_changes(self) -> None:
        if not self._store.was_changed_externally():
            return
        before, self._digests = self._digests, self._store.digests()
        changes = {
            tool: self._digests.get(tool)
            for tool in before.keys() | self._digests.keys()
            if before.get(tool) != self._digests.get(tool)
        }
        requested = self._store.requested_tools()
        if changes or requested:
            try:
                self._deliver(lambda: self.on_changed(changes, requested))
            except RuntimeError:
                # The loop is closed: the node has stopped.
                _log.debug("pins: no event loop for changed pins")
