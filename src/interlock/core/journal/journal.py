"""The journal: what happened, written to SQLite by one thread, many entries to a commit.

`record` is called from the event loop for every call, so it does no more than append to a list, and
once in `CHUNK_ENTRIES` turns the list into one byte string. The writer thread gets these and joins
them: it holds the interpreter lock for a few short moments per commit, and lets go of no entry that
another core has in its cache. This room touches its file, its thread and the clock it is given; it
never raises into whoever records, and says in `health()` how it fares.

Why nothing is lost, doubled or put out of order between `record` and the writer:

- An entry is in one of two places: encoded, in a fragment of `_fragments`, or not yet, in
  `_pending`. Only `_cut` moves entries from one to the other, only from the front, and only under
  `_lock`, which guards all of the counters too.
- Recorders append to `_pending` without the lock. It is one list object for the journal's whole
  life, so nobody can append to a list that was taken away; `append`, the slice `pending[:n]` and
  `del pending[:n]` are single operations under the interpreter lock. An append only adds at the
  end, hence an entry that arrives during a cut is behind it and stays.
- A recorder never waits for the lock in order to cut: when somebody has it, it appends all the
  same, and the next one finds a list that is a little longer.
- Fragments are let go of only after their commit, and only by the writer.
- Who wants an entry on disk before going on (`record_durably`) appends it to the same list, under
  `_lock`, and is told when as many entries are written as there were then: so all that was recorded
  before it is on disk too. While the disk is busy with one commit, the next one gathers.
- The writer sleeps only after it set `_idle` and then found nothing; a recorder appends and then
  looks at `_idle`. Whichever comes second sees what the other did, so no entry is left waiting for
  a wake-up. The event is set once per sleep, not once per entry.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Final, Literal, NamedTuple

from interlock.core.journal.file import Entry, advice
from interlock.core.journal.reader import JournalReader, JournalRow
from interlock.core.journal.retention import Retention
from interlock.core.journal.writer import (
    CHUNK_ENTRIES,
    PAGE_BYTES,
    Fragment,
    JournalWriter,
    fragment_of,
    mended,
    pages_of,
)
from interlock.errors import InterlockError
from interlock.primitives.backoff import Backoff
from interlock.primitives.text import format_count
from interlock.primitives.timestamps import format_utc_ms

__all__ = ["Entry", "Journal", "JournalHealth", "JournalReader", "JournalRow"]

# -- Who waits until an entry is on disk, and how they are told.
#
# A call that changes something leaves only when its entry cannot be lost any more. Nobody waits by
# holding a thread or a task: whoever records leaves a callable, which is told once, True or False.
# All that one commit made true are delivered together. A disk may also hang and never answer: so a
# second thread, which sleeps while nobody waits, breaks every promise that gets too old.

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


class PendingWrites:
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


# -- The journal itself.

MAX_PENDING: Final = 100_000
# One commit takes no more than this: it is copied in one go, and what fails is tried as a whole.
_COMMIT_ENTRIES: Final = 16_000
_COMMIT_BYTES: Final = PAGE_BYTES
_GROUP_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 0.1
_RETRY_SECONDS_MOST: Final = 5.0


class JournalHealth(NamedTuple):
    """The health of the journal. `reason` is a sentence for a person, empty when all is well.

    `slow`: calls were refused because the disk was late, and their entries are not on disk yet.
    `late`: how many calls were refused for that reason since the start.
    """

    state: Literal["ok", "failing", "slow"]
    reason: str
    pending: int
    lost: int
    written: int
    late: int


class Journal:
    """An open journal. `record` and `health` may be called from any thread, and never block."""

    __slots__ = (
        "_closing",
        "_commits",
        "_encoded",
        "_failed_at",
        "_fragments",
        "_group_seconds",
        "_hurry",
        "_idle",
        "_limit",
        "_lock",
        "_lost",
        "_lost_from_ns",
        "_lost_noted",
        "_lost_until_ns",
        "_pending",
        "_progress",
        "_promises",
        "_reason",
        "_retention",
        "_room",
        "_syncs",
        "_thread",
        "_wall_ns",
        "_woken",
        "_writer",
        "_written",
        "path",
    )

    def __init__(
        self,
        path: Path | str,
        *,
        max_rows: int | None = None,
        max_age: float | None = None,
        archive: bool = False,
        max_pending: int = MAX_PENDING,
        group_seconds: float = _GROUP_SECONDS,
        wall_ns: Callable[[], int] = time.time_ns,
        clock: Callable[[], float] = time.monotonic,
        wait: float = WAIT,
    ) -> None:
        """Open the file, making it when it is not there, and start the writer.

        Raises InterlockError when the file cannot be used: better at the start than never. Only a
        damaged one, or a full disk, is no reason not to serve: `health` says so, and
        `record_durably` says no.
        `max_rows` is how many of the newest entries are kept at least, `max_age` for how many
        seconds one is kept at most; None keeps all. `archive`: they go into files beside it.
        `wait`: so many seconds `record_durably` waits for the disk.
        """
        if max_rows is not None and max_rows < 1:
            raise ValueError("max_rows is at least 1")
        self.path = Path(path)
        self._limit = max_pending
        self._group_seconds = group_seconds
        self._wall_ns = wall_ns
        self._retention = Retention(
            self.path, max_rows=max_rows, max_age=max_age, archive=archive, wall_ns=wall_ns
        )
        self._writer = JournalWriter(self.path, self._retention)
        self._reason = self._open()
        self._pending: list[Entry] = []
        self._fragments: deque[Fragment] = deque()
        # How many entries the fragments hold.
        self._encoded = 0
        # The length of `_pending` from which on `record` has more to do than to append.
        self._room = min(CHUNK_ENTRIES, max_pending)
        self._idle = False
        self._woken = threading.Event()
        self._hurry = threading.Event()
        self._lock = threading.Lock()
        # Tells those who wait in `flush` that the counters moved.
        self._progress = threading.Condition(self._lock)
        self._promises = PendingWrites(self._lock, clock, wait)
        self._closing = False
        self._failed_at = 0.0
        self._written = 0
        self._commits = 0
        self._syncs = 0
        self._lost = 0
        self._lost_noted = 0
        self._lost_from_ns = 0
        self._lost_until_ns = 0
        self._thread = threading.Thread(target=self._run, name="interlock-journal", daemon=True)
        self._thread.start()

    def record(self, entry: Entry) -> None:
        """Take one entry. It is committed within about 100 ms. Costs little more than an append."""
        pending = self._pending
        if len(pending) >= self._room and not self._make_room(entry):
            return
        pending.append(entry)
        if self._idle:
            self._idle = False
            self._woken.set()

    def record_durably(self, entry: Entry, then: Then) -> None:
        """Take one entry, and tell `then` once: True when it is on disk, so that not even a power
        cut takes it; False when that cannot be had now.

        It is written as soon as the writer is free, together with all that came meanwhile. False
        comes when the disk took longer than `wait`; the entry is written all the same.
        """
        with self._lock:
            refused = self._encoded + len(self._pending) >= self._limit or (
                # Tried a moment ago. Hundreds of calls a second must not try it hundreds of times.
                self._reason != "" and time.monotonic() - self._failed_at < _RETRY_SECONDS
            )
            if not refused:
                self._pending.append(entry)
                target = self._written + self._encoded + len(self._pending)
                self._promises.add(target, then)
        if refused:
            self._promises.tell([then], False)
            return
        self._hurry.set()
        if self._idle:
            self._idle = False
            self._woken.set()

    @property
    def deliver(self) -> Deliver:
        """How those are told that wait for `record_durably`: called by a thread of the journal,
        with all that one commit made true. By default they are told on that thread."""
        return self._promises.deliver

    @deliver.setter
    def deliver(self, deliver: Deliver) -> None:
        self._promises.deliver = deliver

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until everything recorded so far is committed. False when that took too long.

        Not for the event loop: see `flush_async`.
        """
        with self._progress:
            target = self._written + self._encoded + len(self._pending)
            if self._written < target:
                self._hurry.set()
            return self._progress.wait_for(lambda: self._written >= target, timeout)

    async def flush_async(self, timeout: float = 10.0) -> bool:
        """`flush`, without holding up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(None, self.flush, timeout)

    def health(self) -> JournalHealth:
        """The health of the journal now."""
        with self._progress:
            promises = self._promises
            state: Literal["ok", "failing", "slow"] = "ok"
            reason = self._reason
            if reason:
                state = "failing"
            elif self._written < promises.late_target:
                state = "slow"
                writes = format_count(promises.late, "write")
                reason = f"{writes} waited longer than {promises.wait:g} s"
            return JournalHealth(
                state,
                reason,
                self._encoded + len(self._pending),
                self._lost,
                self._written,
                promises.late,
            )

    @property
    def late(self) -> int:
        """How many that waited for `record_durably` were told False because the disk was slow."""
        return self._promises.late

    @property
    def commits(self) -> int:
        """How many commits the entries took: far fewer than entries, when there is traffic."""
        return self._commits

    @property
    def syncs(self) -> int:
        """How many of the commits waited for the disk."""
        return self._syncs

    def close(self) -> JournalHealth:
        """Write what is pending, once, and stop. What could not be written is counted as lost.

        May be called twice. Entries recorded afterwards are counted as lost.
        """
        # A closed journal is one with room for nothing: no further check on the recording path.
        with self._lock:
            self._limit = self._room = 0
        self._closing = True
        self._woken.set()
        self._hurry.set()
        self._thread.join()
        with self._progress:
            # Counted before they go: somebody may still be appending.
            left = len(self._pending)
            del self._pending[:left]
            self._lost += self._encoded + left
            self._encoded = 0
            self._fragments.clear()
            forsaken = self._promises.broken()
        self._promises.tell(forsaken, False)
        self._promises.close()
        return self.health()

    def read(self, after_seq: int = 0, limit: int = 1000) -> list[JournalRow]:
        """Committed entries after `after_seq`, oldest first."""
        return JournalReader(self.path).read(after_seq, limit)

    def tail(self, count: int = 20) -> list[JournalRow]:
        """The newest committed entries, oldest of them first."""
        return JournalReader(self.path).tail(count)

    def search(
        self,
        name: str = "*",
        *,
        caller: str | None = None,
        outcome: str | None = None,
        since_ns: int = 0,
        limit: int = 1000,
    ) -> list[JournalRow]:
        """The newest committed entries that match, newest first. See `JournalReader.search`."""
        return JournalReader(self.path).search(
            name, caller=caller, outcome=outcome, since_ns=since_ns, limit=limit
        )

    def _open(self) -> str:
        """Open the file. What is wrong with it, when a node can serve all the same."""
        try:
            self._writer.open()
        except InterlockError as error:
            if not (error.data or {}).get("bearable"):
                raise
            _log.error("%s Entries are kept in memory until then.", error.message)
            return error.message
        return ""

    def _make_room(self, entry: Entry) -> bool:
        """Encode a full chunk. False when memory has no room, and `entry` was counted as lost."""
        # Read in this order, an entry that is just being moved is counted once or not at all.
        if self._encoded + len(self._pending) >= self._limit:
            self._lose(entry)
            return False
        if self._lock.acquire(blocking=False):
            try:
                if len(self._pending) >= CHUNK_ENTRIES:
                    self._cut()
            except MemoryError:
                # Nothing was moved. The writer will meet the same, and say so in `health`.
                return True
            finally:
                self._lock.release()
        return True

    def _cut(self) -> None:
        """Move the oldest chunk from `_pending` to `_fragments`. The caller has the lock."""
        fragment = fragment_of(self._pending[:CHUNK_ENTRIES])
        self._fragments.append(fragment)
        del self._pending[: fragment.entries]
        self._encoded += fragment.entries
        self._room = min(CHUNK_ENTRIES, self._limit - self._encoded)

    def _lose(self, entry: Entry) -> None:
        time_ns = mended(entry)[0]
        with self._lock:
            if self._lost == self._lost_noted:
                self._lost_from_ns = time_ns
            self._lost_until_ns = time_ns
            self._lost += 1

    # Everything below runs on the writer thread only.

    def _run(self) -> None:
        pause = self._group_seconds
        backoff = Backoff(_RETRY_SECONDS, _RETRY_SECONDS_MOST)
        while True:
            if self._has_nothing():
                self._idle = True
                # Looked at again: an entry that came before the flag would not have set the event.
                while self._has_nothing() and not self._woken.wait(self._retention.pause):
                    # Nobody calls, and still entries get too old.
                    self._writer.tidy()
                self._idle = False
                self._woken.clear()
            # The pause in which a group forms; somebody who waits for the commit ends it.
            hurried = self._hurry.wait(pause)
            self._hurry.clear()
            last = self._closing
            if self._write_all(hurried):
                pause = self._group_seconds
                backoff.reset()
            else:
                pause = backoff.next_delay()
            if last:
                break
        self._writer.close()

    def _has_nothing(self) -> bool:
        return not (self._pending or self._fragments or self._closing)

    def _write_all(self, hurried: bool) -> bool:
        """Commit all that was recorded by now. False when the database would not take it.

        What arrives meanwhile waits for the next group. Under load something always does, and to
        go on until nothing is left would mean a commit for every few entries, without a pause.
        """
        with self._lock:
            # Without the lock, a chunk that is just being moved would be overlooked.
            left = self._encoded + len(self._pending)
        while left > 0:
            try:
                batch, lost, durable = self._take()
                pages = pages_of(
                    batch if lost == self._lost_noted else [*batch, self._notice(lost)]
                )
                self._writer.write(pages, durable=durable, look=hurried)
            except Exception as error:
                # Whatever it is, the thread that writes must outlive it: it is shown in `health`.
                self._failed(error)
                return False
            left -= sum([fragment.entries for fragment in batch])
            recovered, kept = self._committed(batch, lost, durable)
            self._promises.tell(kept, True)
            if recovered:
                _log.info("The journal %s is written again.", self.path)
            self._writer.tidy()
        return True

    def _take(self) -> tuple[list[Fragment], int, bool]:
        """The fragments for one commit, which also stay where they are, what was lost so far, and
        whether somebody waits for the disk.

        An unfinished chunk is taken along, unless more than a commit is waiting anyhow.
        """
        with self._lock:
            # Not `while`: somebody may record faster than this encodes.
            for _ in range(-(-len(self._pending) // CHUNK_ENTRIES)):
                if self._encoded >= _COMMIT_ENTRIES:
                    break
                self._cut()
            batch: list[Fragment] = []
            count = size = 0
            for fragment in self._fragments:
                count += fragment.entries
                size += len(fragment.body)
                if batch and (count > _COMMIT_ENTRIES or size > _COMMIT_BYTES):
                    break
                batch.append(fragment)
            return batch, self._lost, bool(self._promises)

    def _committed(self, batch: list[Fragment], lost: int, durable: bool) -> tuple[str, list[Then]]:
        """Let go of what is in the file now. Returns what was wrong until then, and who waited."""
        with self._progress:
            for fragment in batch:
                self._fragments.popleft()
                self._encoded -= fragment.entries
                self._written += fragment.entries
            self._room = min(CHUNK_ENTRIES, self._limit - self._encoded)
            self._commits += 1
            self._syncs += durable
            self._lost_noted = lost
            recovered, self._reason = self._reason, ""
            self._progress.notify_all()
            # Somebody who came after `_take` does not wait for more than this commit has.
            kept = self._promises.kept(self._written) if durable else []
        return recovered, kept

    def _notice(self, lost: int) -> Fragment:
        """What there is to say about entries for which memory had no room."""
        first = format_utc_ms(self._lost_from_ns / 1e9)
        last = format_utc_ms(self._lost_until_ns / 1e9)
        detail = (
            f"{lost - self._lost_noted} entries between {first} and {last} were not recorded: "
            "the journal could not be written as fast as they came"
        )
        now = self._wall_ns()
        return fragment_of([(now, "", "journal", "lost", "", "", "", "internal_error", 0, detail)])

    def _failed(self, error: Exception) -> None:
        # A connection that failed is not trusted again; closing it also lets go of its locks.
        self._writer.close()
        if isinstance(error, InterlockError):
            reason = error.message
        else:
            reason = f"The journal {self.path} cannot be written: {error}."
            reason = f"{reason} {advice(self.path, error)}"
        with self._progress:
            known, self._reason = self._reason, reason
            self._failed_at = time.monotonic()
            broken = self._promises.broken()
        self._promises.tell(broken, False)
        if known != reason:
            _log.warning("%s Entries are kept in memory until then.", reason)
