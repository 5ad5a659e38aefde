"""The journal: entries in SQLite, written by one thread, many entries per commit.

`record` is called on the event loop for every call, so it only appends to a list, and once in
`CHUNK_ENTRIES` encodes the list to one byte string. The writer thread joins these strings: it holds
the interpreter lock for a few short moments per commit, and never frees entries that are in the
cache of another core. This module uses its file, its thread and its clock. It never raises into the
recording code and reports its state in `health()`.

Why no entry is lost, duplicated or reordered between `record` and the writer:

- An entry is in one of two places: encoded in a fragment of `_fragments`, or not yet encoded in
  `_pending`. Only `_move_chunk` moves entries between them, from the front and under `_lock`, which
  also guards all counters.
- Recording code appends to `_pending` without the lock. It is the same list object for the whole
  life of the journal, so no append can go to a list that was removed. `append`, the slice
  `pending[:n]` and `del pending[:n]` are single operations under the interpreter lock. An append
  adds at the end, so an entry that arrives during a move stays in the list.
- Recording code never waits for the lock in order to move entries: if the lock is taken, it only
  appends, and the next call finds a slightly longer list.
- Only the writer removes fragments, and only after their commit.
- `record_durably` appends to the same list under `_lock`. Its callback is called when as many
  entries are written as there were then, so everything recorded before is on disk, too. During a
  commit the entries of the next one accumulate.
- The writer sleeps only after it set `_idle` and then found nothing. Recording code appends and
  then checks `_idle`. The later of the two sees the other's change, so no entry is left
  waiting. The event is set once per sleep, not once per entry.
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

from interlock.core.journal.file import Entry, recovery_advice
from interlock.core.journal.reader import JournalReader, JournalRow
from interlock.core.journal.retention import Retention
from interlock.core.journal.writer import (
    CHUNK_ENTRIES,
    PAGE_BYTES,
    Fragment,
    JournalWriter,
    encode_fragment,
    join_pages,
    sanitize_entry,
)
from interlock.errors import InterlockError
from interlock.primitives.backoff import Backoff
from interlock.primitives.text import format_count
from interlock.primitives.timestamps import format_utc_ms

__all__ = ["Entry", "Journal", "JournalHealth", "JournalReader", "JournalRow"]

# -- Pending durable writes, and the notification of their callers.
#
# A call that changes something is only sent when its entry cannot be lost any more. No thread or
# task waits for that: the caller leaves a callback, which is called once with True or False. All
# callbacks of one commit are delivered together. A disk may also hang: so a second thread, which
# sleeps while no write is pending, fails the writes that wait too long.

OnWritten = Callable[[bool], None]
"""Called with True if the entry is on disk, else with False."""
Deliver = Callable[[list[OnWritten], bool], object]
"""Delivers callbacks to the thread in which they must run."""

MAX_WAIT_SECONDS: Final = 10.0
"""The default time that a call waits for the disk before it is rejected."""
_WATCH_INTERVAL_SECONDS: Final = 0.25
"""The interval of checks for late writes."""

_log = logging.getLogger("interlock.journal")


class _PendingWrite(NamedTuple):
    target: int
    """The number of written entries that includes this one."""
    added_at: float
    on_written: OnWritten


class PendingWrites:
    """The durable writes that are pending. Methods marked "Locked" need the journal's lock."""

    __slots__ = (
        "_clock",
        "_has_pending",
        "_is_closed",
        "_lock",
        "_pending",
        "_wait",
        "_watch_thread",
        "deliver",
        "late_count",
        "late_until",
    )

    def __init__(
        self,
        lock: threading.Lock,
        clock: Callable[[], float] = time.monotonic,
        wait: float = MAX_WAIT_SECONDS,
    ) -> None:
        self._lock = lock
        self._clock = clock
        self._wait = wait
        self.late_count = 0
        """The number of writes that failed because the disk was too slow."""
        self.late_until = 0
        """The number of written entries that includes all late ones."""
        self._pending: deque[_PendingWrite] = deque()
        self._has_pending = threading.Event()
        self._watch_thread: threading.Thread | None = None
        self._is_closed = threading.Event()
        self.deliver: Deliver = notify_all
        """Called by the writer thread or the watch thread. By default callbacks run there."""

    def __bool__(self) -> bool:
        return bool(self._pending)

    @property
    def wait(self) -> float:
        """The maximum wait of each write in seconds."""
        return self._wait

    def add(self, target: int, on_written: OnWritten) -> None:
        """Add a write that is complete when `target` entries are written. Locked."""
        self._pending.append(_PendingWrite(target, self._clock(), on_written))
        if not self._has_pending.is_set():
            self._has_pending.set()
            if self._watch_thread is None:
                self._watch_thread = threading.Thread(
                    target=self._watch, name="interlock-journal-watch", daemon=True
                )
                self._watch_thread.start()

    def take_written(self, written: int) -> list[OnWritten]:
        """Remove and return the callbacks whose entries are written. Locked."""
        return self._take_until(written, -inf)

    def take_all(self) -> list[OnWritten]:
        """Remove and return all callbacks. Locked."""
        return self._take_until(0, inf)

    def notify(self, callbacks: list[OnWritten], is_written: bool) -> None:
        """Deliver callbacks that were removed. Never raises. Not locked."""
        if not callbacks:
            return
        try:
            self.deliver(callbacks, is_written)
        except Exception:
            # The loop of the callbacks may be closed. The writer thread must survive that.
            _log.exception("journal: cannot deliver %d callbacks", len(callbacks))

    def close(self) -> None:
        """Stop the watch thread. Nothing may be added afterwards. Not locked."""
        self._is_closed.set()
        self._has_pending.set()
        if self._watch_thread is not None:
            self._watch_thread.join()

    def _take_until(self, written: int, added_at: float) -> list[OnWritten]:
        """Remove and return the callbacks up to this number of entries or this time."""
        # Targets and times only grow, so the first one that is not due ends the loop.
        pending = self._pending
        callbacks = []
        while pending and (pending[0].target <= written or pending[0].added_at <= added_at):
            callbacks.append(pending.popleft().on_written)
        return callbacks

    def _watch(self) -> None:
        while not self._is_closed.is_set():
            self._has_pending.wait()
            self._is_closed.wait(_WATCH_INTERVAL_SECONDS)
            with self._lock:
                limit = self._clock() - self._wait
                for promise in self._pending:
                    if promise.added_at > limit:
                        break
                    self.late_until = promise.target
                late_callbacks = self._take_until(0, limit)
                self.late_count += len(late_callbacks)
                if not self._pending and not self._is_closed.is_set():
                    self._has_pending.clear()
            if late_callbacks:
                _log.warning(
                    "journal: the disk is slow. %d calls waited more than %g s and were rejected. "
                    "Use a faster disk, or increase `journal.wait`.",
                    len(late_callbacks),
                    self._wait,
                )
            self.notify(late_callbacks, False)


def notify_all(callbacks: list[OnWritten], is_written: bool) -> None:
    """Run callbacks here. An error of one does not affect the others."""
    for on_written in callbacks:
        try:
            on_written(is_written)
        except Exception:
            _log.exception("journal: a callback failed")


def deliver_on_loop(loop: asyncio.AbstractEventLoop) -> Deliver:
    """Return a function that runs the callbacks of one commit on the loop."""

    def deliver(callbacks: list[OnWritten], is_written: bool) -> None:
        loop.call_soon_threadsafe(notify_all, callbacks, is_written)

    return deliver


# -- The journal itself.

MAX_PENDING: Final = 100_000
# The limit of one commit: it is copied at once, and a failure repeats all of it.
_COMMIT_ENTRIES: Final = 16_000
_COMMIT_BYTES: Final = PAGE_BYTES
_GROUP_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 0.1
_MAX_RETRY_SECONDS: Final = 5.0


class JournalHealth(NamedTuple):
    """The health of the journal. `reason` is a sentence for a person, empty if all is well.

    `slow`: calls were rejected because the disk was slow, and their entries are not on disk yet.
    `late`: the number of calls rejected for that reason since the start.
    """

    state: Literal["ok", "failing", "slow"]
    reason: str
    pending: int
    lost: int
    written: int
    late: int


class Journal:
    """An open journal. `record` and `health` may be called from any thread and never block."""

    __slots__ = (
        "_closing",
        "_commit_now",
        "_commits",
        "_cut_length",
        "_encoded_entries",
        "_failed_at",
        "_fragments",
        "_group_seconds",
        "_idle",
        "_lock",
        "_lost",
        "_lost_from_ns",
        "_lost_until_ns",
        "_max_pending",
        "_pending",
        "_pending_writes",
        "_progress",
        "_reason",
        "_reported_loss_count",
        "_retention",
        "_syncs",
        "_thread",
        "_wake_up",
        "_wall_ns",
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
        wait: float = MAX_WAIT_SECONDS,
    ) -> None:
        """Open the file, or create it, and start the writer.

        Args:
            max_rows: the minimum number of newest entries to keep. None: keep all.
            max_age: the maximum age of entries in seconds. None: no limit.
            archive: write removed entries to files beside the journal.
            wait: the seconds that `record_durably` waits for the disk.

        Raises:
            InterlockError: the file cannot be used. With a damaged file or a full disk the node can
                serve, so these are reported by `health`, and `record_durably` fails.
        """
        if max_rows is not None and max_rows < 1:
            raise ValueError("max_rows is at least 1")
        self.path = Path(path)
        self._max_pending = max_pending
        self._group_seconds = group_seconds
        self._wall_ns = wall_ns
        self._retention = Retention(
            self.path, max_rows=max_rows, max_age=max_age, archive=archive, wall_ns=wall_ns
        )
        self._writer = JournalWriter(self.path, self._retention)
        self._reason = self._open()
        self._pending: list[Entry] = []
        self._fragments: deque[Fragment] = deque()
        # The number of entries in the fragments.
        self._encoded_entries = 0
        # The length of `_pending` from which on `record` has more to do than to append.
        self._cut_length = min(CHUNK_ENTRIES, max_pending)
        self._idle = False
        self._wake_up = threading.Event()
        self._commit_now = threading.Event()
        self._lock = threading.Lock()
        # Wakes up `flush` when counters change.
        self._progress = threading.Condition(self._lock)
        self._pending_writes = PendingWrites(self._lock, clock, wait)
        self._closing = False
        self._failed_at = 0.0
        self._written = 0
        self._commits = 0
        self._syncs = 0
        self._lost = 0
        self._reported_loss_count = 0
        self._lost_from_ns = 0
        self._lost_until_ns = 0
        self._thread = threading.Thread(target=self._run, name="interlock-journal", daemon=True)
        self._thread.start()

    def record(self, entry: Entry) -> None:
        """Record an entry, which is committed within about 100 ms. About as cheap as an append."""
        pending = self._pending
        if len(pending) >= self._cut_length and not self._encode_chunk(entry):
            return
        pending.append(entry)
        if self._idle:
            self._idle = False
            self._wake_up.set()

    def record_durably(self, entry: Entry, on_written: OnWritten) -> None:
        """Record an entry and call `on_written` once: True when it is on disk, safe from a power
        failure; False if that is not possible now.

        It is written as soon as the writer is free, together with other entries. If the disk takes
        longer than `wait`, the callback gets False, but the entry is still written.
        """
        with self._lock:
            is_rejected = self._encoded_entries + len(self._pending) >= self._max_pending or (
                # Writing failed a moment ago. Hundreds of calls a second must not retry each time.
                self._reason != "" and time.monotonic() - self._failed_at < _RETRY_SECONDS
            )
            if not is_rejected:
                self._pending.append(entry)
                target = self._written + self._encoded_entries + len(self._pending)
                self._pending_writes.add(target, on_written)
        if is_rejected:
            self._pending_writes.notify([on_written], False)
            return
        self._commit_now.set()
        if self._idle:
            self._idle = False
            self._wake_up.set()

    @property
    def deliver(self) -> Deliver:
        """Delivers the callbacks of `record_durably`. Called by a thread of the journal with all
        callbacks of one commit. By default they run on that thread."""
        return self._pending_writes.deliver

    @deliver.setter
    def deliver(self, deliver: Deliver) -> None:
        self._pending_writes.deliver = deliver

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until everything recorded so far is committed. False: that took too long.

        Not for the event loop: see `flush_async`.
        """
        with self._progress:
            target = self._written + self._encoded_entries + len(self._pending)
            if self._written < target:
                self._commit_now.set()
            return self._progress.wait_for(lambda: self._written >= target, timeout)

    async def flush_async(self, timeout: float = 10.0) -> bool:
        """Wait like `flush`, without blocking the event loop."""
        return await asyncio.get_running_loop().run_in_executor(None, self.flush, timeout)

    def health(self) -> JournalHealth:
        """Return the current health of the journal."""
        with self._progress:
            pending_writes = self._pending_writes
            state: Literal["ok", "failing", "slow"] = "ok"
            reason = self._reason
            if reason:
                state = "failing"
            elif self._written < pending_writes.late_until:
                state = "slow"
                writes = format_count(pending_writes.late_count, "write")
                reason = f"{writes} waited longer than {pending_writes.wait:g} s"
            return JournalHealth(
                state,
                reason,
                self._encoded_entries + len(self._pending),
                self._lost,
                self._written,
                pending_writes.late_count,
            )

    @property
    def late_count(self) -> int:
        """The number of durable writes that failed because the disk was slow."""
        return self._pending_writes.late_count

    @property
    def commits(self) -> int:
        """The number of commits: far fewer than entries under load."""
        return self._commits

    @property
    def syncs(self) -> int:
        """The number of commits that waited for the disk."""
        return self._syncs

    def close(self) -> JournalHealth:
        """Write what is pending, once, and stop. Entries that could not be written are lost.

        May be called twice. Entries recorded afterwards are counted as lost.
        """
        # A closed journal has a limit of 0: no other check is needed in `record`.
        with self._lock:
            self._max_pending = self._cut_length = 0
        self._closing = True
        self._wake_up.set()
        self._commit_now.set()
        self._thread.join()
        with self._progress:
            # Counted before the deletion: another thread may still append.
            remaining = len(self._pending)
            del self._pending[:remaining]
            self._lost += self._encoded_entries + remaining
            self._encoded_entries = 0
            self._fragments.clear()
            callbacks = self._pending_writes.take_all()
        self._pending_writes.notify(callbacks, False)
        self._pending_writes.close()
        return self.health()

    def read(self, after_seq: int = 0, limit: int = 1000) -> list[JournalRow]:
        """Return committed entries after `after_seq`, oldest first."""
        return JournalReader(self.path).read(after_seq, limit)

    def tail(self, count: int = 20) -> list[JournalRow]:
        """Return the newest committed entries, oldest first."""
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
        """Return the newest matching committed entries, newest first: see `JournalReader`."""
        return JournalReader(self.path).search(
            name, caller=caller, outcome=outcome, since_ns=since_ns, limit=limit
        )

    def _open(self) -> str:
        """Open the file. Returns its problem if the node can serve in spite of it."""
        try:
            self._writer.open()
        except InterlockError as error:
            if not (error.data or {}).get("bearable"):
                raise
            _log.error("journal: %s Entries are kept in memory until then.", error.message)
            return error.message
        return ""

    def _encode_chunk(self, entry: Entry) -> bool:
        """Encode a full chunk. False: memory is full, and `entry` was counted as lost."""
        # In this order, an entry that is being moved is counted once or not at all.
        if self._encoded_entries + len(self._pending) >= self._max_pending:
            self._count_lost(entry)
            return False
        if self._lock.acquire(blocking=False):
            try:
                if len(self._pending) >= CHUNK_ENTRIES:
                    self._move_chunk()
            except MemoryError:
                # Nothing was moved. The writer will fail the same way and report it in `health`.
                return True
            finally:
                self._lock.release()
        return True

    def _move_chunk(self) -> None:
        """Move the oldest chunk from `_pending` to `_fragments`. The caller has the lock."""
        fragment = encode_fragment(self._pending[:CHUNK_ENTRIES])
        self._fragments.append(fragment)
        del self._pending[: fragment.entries]
        self._encoded_entries += fragment.entries
        self._cut_length = min(CHUNK_ENTRIES, self._max_pending - self._encoded_entries)

    def _count_lost(self, entry: Entry) -> None:
        time_ns = sanitize_entry(entry)[0]
        with self._lock:
            if self._lost == self._reported_loss_count:
                self._lost_from_ns = time_ns
            self._lost_until_ns = time_ns
            self._lost += 1

    # Everything below runs on the writer thread only.

    def _run(self) -> None:
        delay = self._group_seconds
        backoff = Backoff(_RETRY_SECONDS, _MAX_RETRY_SECONDS)
        while True:
            if self._is_empty():
                self._idle = True
                # Checked again: an entry from before the flag would not have set the event.
                while self._is_empty() and not self._wake_up.wait(self._retention.check_interval):
                    # Entries get too old even if no calls arrive.
                    self._writer.tidy()
                self._idle = False
                self._wake_up.clear()
            # A delay in which a group forms. A durable write ends it.
            is_urgent = self._commit_now.wait(delay)
            self._commit_now.clear()
            is_last = self._closing
            if self._write_batches(is_urgent):
                delay = self._group_seconds
                backoff.reset()
            else:
                delay = backoff.next_delay()
            if is_last:
                break
        self._writer.close()

    def _is_empty(self) -> bool:
        return not (self._pending or self._fragments or self._closing)

    def _write_batches(self, is_urgent: bool) -> bool:
        """Commit everything recorded so far. False: the database failed.

        Entries that arrive meanwhile wait for the next group. Under load there are always some, and
        a loop until none are left would commit every few entries without a delay.
        """
        with self._lock:
            # Without the lock, a chunk that is being moved would be missed.
            remaining = self._encoded_entries + len(self._pending)
        while remaining > 0:
            try:
                batch, lost, durable = self._take_batch()
                pages = join_pages(
                    batch
                    if lost == self._reported_loss_count
                    else [*batch, self._make_loss_entry(lost)]
                )
                self._writer.write(pages, durable=durable, check_identity=is_urgent)
            except Exception as error:
                # The writer thread must survive any error. `health` reports it.
                self._on_failure(error)
                return False
            remaining -= sum([fragment.entries for fragment in batch])
            recovered, written_callbacks = self._on_committed(batch, lost, durable)
            self._pending_writes.notify(written_callbacks, True)
            if recovered:
                _log.info("journal %s: writing works again", self.path)
            self._writer.tidy()
        return True

    def _take_batch(self) -> tuple[list[Fragment], int, bool]:
        """Return the fragments for one commit (they also stay in place), the number of lost
        entries, and whether durable writes are pending.

        An unfinished chunk is included, unless there is more than one commit anyway.
        """
        with self._lock:
            # Not `while`: entries may be recorded faster than they are encoded here.
            for _ in range(-(-len(self._pending) // CHUNK_ENTRIES)):
                if self._encoded_entries >= _COMMIT_ENTRIES:
                    break
                self._move_chunk()
            batch: list[Fragment] = []
            count = size = 0
            for fragment in self._fragments:
                count += fragment.entries
                size += len(fragment.body)
                if batch and (count > _COMMIT_ENTRIES or size > _COMMIT_BYTES):
                    break
                batch.append(fragment)
            return batch, self._lost, bool(self._pending_writes)

    def _on_committed(
        self, batch: list[Fragment], lost: int, durable: bool
    ) -> tuple[str, list[OnWritten]]:
        """Remove written fragments. Returns the previous problem, and the completed callbacks."""
        with self._progress:
            for fragment in batch:
                self._fragments.popleft()
                self._encoded_entries -= fragment.entries
                self._written += fragment.entries
            self._cut_length = min(CHUNK_ENTRIES, self._max_pending - self._encoded_entries)
            self._commits += 1
            self._syncs += durable
            self._reported_loss_count = lost
            recovered, self._reason = self._reason, ""
            self._progress.notify_all()
            # Writes that were added after `_take_batch` wait for the next commit.
            written_callbacks = self._pending_writes.take_written(self._written) if durable else []
        return recovered, written_callbacks

    def _make_loss_entry(self, lost: int) -> Fragment:
        """Return an entry about entries that were lost because memory was full."""
        first = format_utc_ms(self._lost_from_ns / 1e9)
        last = format_utc_ms(self._lost_until_ns / 1e9)
        detail = (
            f"{lost - self._reported_loss_count} entries between {first} and {last} were not "
            "recorded: "
            "they came faster than the journal could be written"
        )
        now = self._wall_ns()
        return encode_fragment(
            [(now, "", "journal", "lost", "", "", "", "internal_error", 0, detail)]
        )

    def _on_failure(self, error: Exception) -> None:
        # A failed connection is not reused. Closing it also releases its locks.
        self._writer.close()
        if isinstance(error, InterlockError):
            reason = error.message
        else:
            reason = f"The journal {self.path} cannot be written: {error}."
            reason = f"{reason} {recovery_advice(self.path, error)}"
        with self._progress:
            previous_reason, self._reason = self._reason, reason
            self._failed_at = time.monotonic()
            callbacks = self._pending_writes.take_all()
        self._pending_writes.notify(callbacks, False)
        if previous_reason != reason:
            _log.warning("journal: %s Entries are kept in memory until then.", reason)
