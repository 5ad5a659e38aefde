"""The journal: what happened, written to SQLite by one thread, many entries to a commit.

`record` is called from the event loop for every call, so it does no more than append to a list.
Everything else happens on the writer thread. This room touches its file, its thread and the clock
it is given; it never raises into whoever records, and says in `health()` how it fares.

Why no lock is needed between `record` and the writer:

- Both use one list object for the journal's whole life; it is never replaced, so nobody can append
  to a list that the writer has already taken away. `append`, the slice `pending[:n]` and
  `del pending[:n]` are single operations under the interpreter lock. An append only adds at the
  end, the writer only copies and cuts at the front, hence an entry that arrives in between is
  behind the cut and stays.
- Entries are cut off only after their commit. Whatever fails, the list still holds them.
- The writer sleeps only after it set `_idle` and then found the list empty; a recorder appends and
  then looks at `_idle`. Whichever comes second sees what the other did, so no entry is left waiting
  for a wake-up. The event is set once per sleep, not once per entry.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from interlock.errors import InterlockError
from interlock.stores.journal_file import (
    ENTRY_WIDTH,
    Entry,
    FileIdentity,
    advice,
    identity,
    open_for_writing,
)
from interlock.stores.journal_reader import JournalReader, Row

__all__ = ["Entry", "Journal", "JournalHealth", "JournalReader", "Row"]

MAX_PENDING: Final = 100_000
# A page is the least that a reader decodes, so it stays small enough to be read in a millisecond.
_PAGE_ENTRIES: Final = 2_000
# An entry is a line, not a payload. Pages past this are stored with every text cut short.
_PAGE_BYTES: Final = 4_000_000
_MENDED_CHARACTERS: Final = 2_000
_GROUP_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 0.1
_RETRY_SECONDS_MOST: Final = 5.0
# Pruning waits until this part of `max_rows` is new: it costs a statement, and so the loop time.
_PRUNE_PARTS: Final = 16
_PRUNED_PAGES: Final = 64
_INT64_MOST: Final = 2**63 - 1

_log = logging.getLogger("interlock.journal")
_encode = msgspec.json.Encoder().encode
_time_of = itemgetter(0)


class JournalHealth(NamedTuple):
    """How the journal fares. `reason` is a sentence for a person, empty when all is well."""

    state: Literal["ok", "failing"]
    reason: str
    pending: int
    lost: int
    written: int


class Journal:
    """An open journal. `record` and `health` may be called from any thread, and never block."""

    __slots__ = (
        "_closing",
        "_commits",
        "_connection",
        "_group_seconds",
        "_hurry",
        "_identity",
        "_idle",
        "_limit",
        "_lost",
        "_lost_from_ns",
        "_lost_noted",
        "_lost_until_ns",
        "_max_rows",
        "_pending",
        "_progress",
        "_reason",
        "_thread",
        "_unpruned",
        "_wall_ns",
        "_woken",
        "_written",
        "path",
    )

    def __init__(
        self,
        path: Path | str,
        *,
        max_rows: int | None = None,
        max_pending: int = MAX_PENDING,
        group_seconds: float = _GROUP_SECONDS,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Open the file, making it when it is not there, and start the writer.

        Raises InterlockError when the file cannot be used: better at the start than never.
        `max_rows` is how many of the newest entries are kept at least; None keeps all.
        """
        if max_rows is not None and max_rows < 1:
            raise ValueError("max_rows is at least 1")
        self.path = Path(path)
        self._max_rows = max_rows
        # Beyond any limit: what an earlier run left is looked at with the first commit.
        self._unpruned = _INT64_MOST
        self._limit = max_pending
        self._group_seconds = group_seconds
        self._wall_ns = wall_ns
        self._connection: sqlite3.Connection | None = open_for_writing(self.path)
        self._identity: FileIdentity | None = identity(self.path)
        self._pending: list[Entry] = []
        self._idle = False
        self._woken = threading.Event()
        self._hurry = threading.Event()
        # Guards the counters below, and tells those who wait in `flush` that they moved.
        self._progress = threading.Condition()
        self._closing = False
        self._reason = ""
        self._written = 0
        self._commits = 0
        self._lost = 0
        self._lost_noted = 0
        self._lost_from_ns = 0
        self._lost_until_ns = 0
        self._thread = threading.Thread(target=self._run, name="interlock-journal", daemon=True)
        self._thread.start()

    def record(self, entry: Entry) -> None:
        """Take one entry. It is committed within about 100 ms. Costs a list append."""
        pending = self._pending
        if len(pending) >= self._limit:
            self._lose(entry)
            return
        pending.append(entry)
        if self._idle:
            self._idle = False
            self._woken.set()

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until everything recorded so far is committed. False when that took too long.

        Not for the event loop: see `flush_async`.
        """
        with self._progress:
            target = self._written + len(self._pending)
            if self._written < target:
                self._hurry.set()
            return self._progress.wait_for(lambda: self._written >= target, timeout)

    async def flush_async(self, timeout: float = 10.0) -> bool:
        """`flush`, without holding up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(None, self.flush, timeout)

    def health(self) -> JournalHealth:
        """How the journal fares now."""
        with self._progress:
            return JournalHealth(
                "failing" if self._reason else "ok",
                self._reason,
                len(self._pending),
                self._lost,
                self._written,
            )

    @property
    def commits(self) -> int:
        """How many commits the entries took: far fewer than entries, when there is traffic."""
        return self._commits

    def close(self) -> JournalHealth:
        """Write what is pending, once, and stop. What could not be written is counted as lost.

        May be called twice. Entries recorded afterwards are counted as lost.
        """
        # A closed journal is one with room for nothing: no further check on the recording path.
        self._limit = 0
        self._closing = True
        self._woken.set()
        self._hurry.set()
        self._thread.join()
        with self._progress:
            if self._pending:
                self._lost += len(self._pending)
                del self._pending[:]
        return self.health()

    def read(self, after_seq: int = 0, limit: int = 1000) -> list[Row]:
        """Committed entries after `after_seq`, oldest first."""
        return JournalReader(self.path).read(after_seq, limit)

    def tail(self, count: int = 20) -> list[Row]:
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
    ) -> list[Row]:
        """The newest committed entries that match, newest first. See `JournalReader.search`."""
        return JournalReader(self.path).search(
            name, caller=caller, outcome=outcome, since_ns=since_ns, limit=limit
        )

    def _lose(self, entry: Entry) -> None:
        with self._progress:
            if self._lost == self._lost_noted:
                self._lost_from_ns = entry[0]
            self._lost_until_ns = entry[0]
            self._lost += 1

    # Everything below runs on the writer thread only.

    def _run(self) -> None:
        pause = self._group_seconds
        while True:
            if not self._pending and not self._closing:
                self._idle = True
                # Looked at again: an entry that came before the flag would not have set the event.
                if not self._pending and not self._closing:
                    self._woken.wait()
                self._idle = False
                self._woken.clear()
            # The pause in which a group forms; somebody who waits for the commit ends it.
            self._hurry.wait(pause)
            self._hurry.clear()
            last = self._closing
            if self._write_pending():
                pause = self._group_seconds
            else:
                pause = min(max(2 * pause, _RETRY_SECONDS), _RETRY_SECONDS_MOST)
            if last:
                break
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _write_pending(self) -> bool:
        """Commit all that is pending. False when the database would not take it."""
        while self._pending:
            batch = self._pending[:_PAGE_ENTRIES]
            lost = self._lost
            try:
                connection = self._usable_connection()
                self._commit_page(connection, batch, lost - self._lost_noted)
            except Exception as error:
                # Whatever it is, the thread that writes must outlive it: it is shown in `health`.
                self._failed(error)
                return False
            with self._progress:
                del self._pending[: len(batch)]
                self._written += len(batch)
                self._commits += 1
                self._lost_noted = lost
                recovered, self._reason = self._reason, ""
                self._progress.notify_all()
            if recovered:
                _log.info("The journal %s is written again.", self.path)
            if self._max_rows is not None:
                self._unpruned += len(batch)
                if self._unpruned > self._max_rows // _PRUNE_PARTS:
                    self._prune(connection, self._max_rows)
        return True

    def _usable_connection(self) -> sqlite3.Connection:
        """The connection, opened anew after a failure or when the file was moved away.

        Without the second, entries would go on into a file that nobody can find any more.
        """
        connection = self._connection
        if connection is not None and identity(self.path) != self._identity:
            # A new file must not meet the old one's -wal, so what that holds goes home first. By
            # itself SQLite does not do that for a file that has moved.
            self._connection = None
            with closing(connection):
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection = None
        if connection is None:
            self._connection = connection = open_for_writing(self.path)
            self._identity = identity(self.path)
        return connection

    def _commit_page(self, connection: sqlite3.Connection, batch: list[Entry], lost: int) -> None:
        page = [*batch, self._loss_notice(lost)] if lost else batch
        body = _body(page)
        if body is None:
            # One entry that cannot be stored must hide neither the others nor itself.
            page = [_mended(entry) for entry in page]
            body = _encode(page)
        # One statement is one transaction. Every statement more would take the interpreter lock
        # from the event loop a few times more, and each time costs the loop more than the write.
        connection.execute(
            "INSERT INTO page SELECT coalesce(max(last_seq), 0) + ?1, ?1, ?2, ?3 FROM page",
            (len(page), max(map(_time_of, page)), body.decode()),
        )

    def _loss_notice(self, lost: int) -> Entry:
        first, last = _utc(self._lost_from_ns), _utc(self._lost_until_ns)
        detail = (
            f"{lost} entries between {first} and {last} were not recorded: "
            "the journal could not be written as fast as they came"
        )
        return (self._wall_ns(), "", "journal", "lost", "", "", "", "internal_error", 0, detail)

    def _prune(self, connection: sqlite3.Connection, max_rows: int) -> None:
        """Delete pages that hold only entries beyond `max_rows`, a few at a time.

        When there was more to delete than that, the next commit goes on.
        """
        try:
            pruned = connection.execute(
                "DELETE FROM page WHERE last_seq IN (SELECT last_seq FROM page WHERE last_seq <= "
                "(SELECT max(last_seq) FROM page) - ?1 ORDER BY last_seq LIMIT ?2)",
                (max_rows, _PRUNED_PAGES),
            ).rowcount
            if pruned < _PRUNED_PAGES:
                self._unpruned = 0
        except sqlite3.Error as error:
            # Nothing is lost by keeping too much for a while; what ails the file, if anything
            # does, comes up at the next commit.
            _log.warning("Old entries of the journal %s were not deleted: %s.", self.path, error)

    def _failed(self, error: Exception) -> None:
        # A connection that failed is not trusted again; closing it also lets go of its locks.
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if isinstance(error, InterlockError):
            reason = error.message
        else:
            reason = f"The journal {self.path} cannot be written: {error}."
            reason = f"{reason} {advice(self.path, error)}"
        with self._progress:
            known, self._reason = self._reason, reason
        if known != reason:
            _log.warning("%s Entries are kept in memory until then.", reason)


def _body(page: list[Entry]) -> bytes | None:
    """The page as JSON, or None when an entry in it is not what `Entry` promises."""
    if set(map(len, page)) != {ENTRY_WIDTH}:
        return None
    try:
        body = _encode(page)
        if not -_INT64_MOST <= max(map(_time_of, page)) <= _INT64_MOST:
            return None
    except (TypeError, ValueError, OverflowError):
        return None
    return body if len(body) <= _PAGE_BYTES else None


def _mended(entry: tuple[Any, ...]) -> Entry:
    """An entry that can be stored, with what it said kept as far as it can be.

    A name from outside may hold a lone surrogate, or be endless; that must not keep the call out
    of the record.
    """
    fields = [*entry[:ENTRY_WIDTH], *[""] * (ENTRY_WIDTH - len(entry))]
    for place, value in enumerate(fields):
        if place in (0, 8):
            whole = value if isinstance(value, int) else 0
            fields[place] = max(-_INT64_MOST, min(_INT64_MOST, whole))
        else:
            text = str(value)[:_MENDED_CHARACTERS]
            fields[place] = text.encode("utf-8", "backslashreplace").decode()
    return tuple(fields)


def _utc(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="milliseconds")
