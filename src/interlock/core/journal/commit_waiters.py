"""Who waits until an entry is on disk, and how they are told.

A call that changes something leaves only when its entry cannot be lost any more. Nobody waits by
holding a thread or a task: whoever records leaves a callable, which is told once, True or False.
All that one commit made true are delivered together. A disk may also hang and never answer: so a
second thread, which sleeps while nobody waits, breaks every promise that gets too old.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

Then = Callable[[bool], None]
"""Told whether the entry is on disk."""
Deliver = Callable[[list[Then], bool], object]
"""Takes those that are to be told, all the same, to where they are to be told."""

WAIT: Final = 10.0
"""Seconds that a call waits for the disk before it is refused, where nobody says otherwise."""
_WATCH_SECONDS: Final = 0.25
"""How often late ones are looked for."""

_log = logging.getLogger("interlock.journal")


class _Promise(NamedTuple):
    target: int
    """How many entries are written when this one is."""
    made: float
    then: Then


class Promises:
    """Those that wait. What is marked so is called with the journal's lock held."""

    __slots__ = (
        "_awake",
        "_clock",
        "_ended",
        "_lock",
        "_open",
        "_wait",
        "_watch",
        "deliver",
        "late",
        "late_target",
    )

    def __init__(
        self,
        lock: threading.Lock,
        clock: Callable[[], float] = time.monotonic,
        wait: float = WAIT,
    ) -> None:
        self._lock = lock
        self._clock = clock
        self._wait = wait
        self.late = 0
        """How many waited in vain because the disk was too slow."""
        self.late_target = 0
        """When so many entries are written, those of all late ones are."""
        self._open: deque[_Promise] = deque()
        self._awake = threading.Event()
        self._watch: threading.Thread | None = None
        self._ended = threading.Event()
        self.deliver: Deliver = tell_all
        """Called by the writer's thread or the watch's. By default everybody is told there."""

    def __bool__(self) -> bool:
        return bool(self._open)

    @property
    def wait(self) -> float:
        """How many seconds each waits at most."""
        return self._wait

    def add(self, target: int, then: Then) -> None:
        """Somebody waits until `target` entries are written. Locked."""
        self._open.append(_Promise(target, self._clock(), then))
        if not self._awake.is_set():
            self._awake.set()
            if self._watch is None:
                self._watch = threading.Thread(
                    target=self._look_after, name="interlock-journal-watch", daemon=True
                )
                self._watch.start()

    def kept(self, written: int) -> list[Then]:
        """Take out those whose entries are among the `written` ones. Locked."""
        return self._taken(written, -inf)

    def broken(self) -> list[Then]:
        """Take out all: nothing can be written. Locked."""
        return self._taken(0, inf)

    def tell(self, thens: list[Then], kept: bool) -> None:
        """Deliver to those that were taken out. Never raises. Not locked."""
        if not thens:
            return
        try:
            self.deliver(thens, kept)
        except Exception:
            # The loop that they lived on may be gone. The thread that writes must outlive it.
            _log.exception("%d that waited for the journal could not be told", len(thens))

    def close(self) -> None:
        """Nobody is added any more. Not locked."""
        self._ended.set()
        self._awake.set()
        if self._watch is not None:
            self._watch.join()

    def _taken(self, written: int, made: float) -> list[Then]:
        """Those up to so many entries, or up to this moment."""
        # Targets only grow, as time does: the first that is not due ends it.
        waiting = self._open
        taken = []
        while waiting and (waiting[0].target <= written or waiting[0].made <= made):
            taken.append(waiting.popleft().then)
        return taken

    def _look_after(self) -> None:
        while not self._ended.is_set():
            self._awake.wait()
            self._ended.wait(_WATCH_SECONDS)
            with self._lock:
                limit = self._clock() - self._wait
                for promise in self._open:
                    if promise.made > limit:
                        break
                    self.late_target = promise.target
                late = self._taken(0, limit)
                self.late += len(late)
                if not self._open and not self._ended.is_set():
                    self._awake.clear()
            if late:
                _log.warning(
                    "the disk of the journal is slow: %d calls waited more than %g s and were "
                    "refused; `journal.wait` says how long they wait",
                    len(late),
                    self._wait,
                )
            self.tell(late, False)


def tell_all(thens: list[Then], kept: bool) -> None:
    """Tell everybody here and now. What one of them raises is no other's misfortune."""
    for then in thens:
        try:
            then(kept)
        except Exception:
            _log.exception("what waited for the journal failed")


def deliver_on(loop: asyncio.AbstractEventLoop) -> Deliver:
    """Tells, on the loop, all those whose entries came to the disk with one commit."""

    def deliver(told: list[Then], on_disk: bool) -> None:
        loop.call_soon_threadsafe(tell_all, told, on_disk)

    return deliver
