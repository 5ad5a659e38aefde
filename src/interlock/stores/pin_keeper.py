"""Keeps a running node and its store of pins alike, off the event loop, in a thread of its own.

What the node pins and sees is written in the order in which it happened, as soon as it can be: what
cannot be written now, on a full disk, is tried again. What somebody else wrote (`interlock pins`)
is noticed within a second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from interlock.errors import InterlockError
from interlock.stores.pins import Change, Gone, Pin, PinStore, Seen

LOOK_EVERY: Final = 1.0

Deliver = Callable[[Callable[[], None]], object]
"""Has something done where the node runs, such as `loop.call_soon_threadsafe`."""
Changed = Callable[[Mapping[str, str | None], Sequence[str]], None]
"""Takes the pins that others changed, by tool (None: it is pinned no more), and the tools whose
contracts somebody wants to see."""

_log = logging.getLogger("interlock.stores")


class PinKeeper:
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

    def saw(self, tool: str, digest: str, definition: bytes) -> None:
        """A tool has another contract than the one that was accepted, or somebody wants to see
        it."""
        self._queue.put(Seen(tool, digest, definition, self._clock()))

    def saw_as_pinned(self, tool: str) -> None:
        self._queue.put(Gone(tool))

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
