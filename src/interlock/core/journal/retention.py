"""How much the journal keeps: the newest entries, and none that is too old.

Whole pages go, a bite at a time, in one transaction with a note of it in the chain. With an archive
they are first written to a compressed file in a folder beside the journal: a line per page, with
its hash, so that the chain goes on through those files. This room writes these files, and removes
pages by a connection that it is given.
"""

from __future__ import annotations

import gzip
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Raw

from interlock.core.journal.chain import (
    ARCHIVED,
    CUT,
    START,
    ChainHead,
    append,
    cut_at,
    note,
    noted,
)

# Pruning waits until this part of the limit is new: it costs a statement, and so the loop time.
_PARTS: Final = 16
_MOST_PAGES: Final = 2048
_MOST_BYTES: Final = 8_000_000
"""Of one bite: meanwhile nothing is written."""
_OFTENEST: Final = 1.0
_RAREST: Final = 3600.0
"""Seconds between two looks at how old the oldest is."""
_JUMP: Final = 60.0
_SETTLED: Final = 3600.0
"""A wall clock that jumped by so many seconds is believed again after so many more."""
_LEVEL: Final = 3
"""Of compression: meanwhile nothing is written."""

_log = logging.getLogger("interlock.journal")


class ArchivedPage(msgspec.Struct):
    """A line of an archive."""

    last_seq: int
    count: int
    newest_ns: int
    before: str
    """The hash of the page before, and its own, in hexadecimal."""
    hash: str
    entries: Raw
    """As they stood in the journal, byte by byte."""


class Retention:
    """Knows when something is to go, and removes it."""

    __slots__ = (
        "_archive",
        "_clock",
        "_cut",
        "_look_at",
        "_max_age",
        "_max_rows",
        "_offset",
        "_path",
        "_settled_at",
        "_unpruned",
        "_wall_ns",
    )

    def __init__(
        self,
        path: Path,
        *,
        max_rows: int | None = None,
        max_age: float | None = None,
        archive: bool = False,
        wall_ns: Callable[[], int] = time.time_ns,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_rows`: how many of the newest entries stay at least; `max_age`: for how many seconds
        one stays at most. None: there is no limit."""
        self._path = path
        self._max_rows = max_rows
        self._max_age = max_age
        self._archive = archive
        self._wall_ns = wall_ns
        self._clock = clock
        # Beyond any limit: what an earlier run left is looked at with the first commit.
        self._unpruned = max_rows or 0
        # The last one here: it is the next one's beginning.
        self._cut = ChainHead(0, START)
        self._look_at = clock()
        self._offset = wall_ns() / 1e9 - clock()
        self._settled_at = clock()

    @property
    def pause(self) -> float | None:
        """So often somebody must ask `due`, also when nothing is recorded. None: never."""
        if self._max_age is None:
            return None
        return min(max(self._max_age / _PARTS, _OFTENEST), _RAREST)

    def added(self, entries: int) -> None:
        self._unpruned += entries

    def due(self) -> bool:
        """Whether there may be something to remove."""
        if self._max_rows is not None and self._unpruned > self._max_rows // _PARTS:
            return True
        return self._max_age is not None and self._clock() >= self._look_at

    def apply(self, connection: sqlite3.Connection, head: ChainHead) -> ChainHead:
        """Remove one bite, if there is something to remove. Returns where the chain ends then.

        Raises sqlite3.Error or OSError; then all is as it was. What there is still to remove makes
        it due again.
        """
        try:
            return self._apply(connection, head)
        except BaseException:
            # What is wrong may last: that is not to be tried with every commit.
            self._looked()
            raise

    def _apply(self, connection: sqlite3.Connection, head: ChainHead) -> ChainHead:
        pages = _oldest(connection, self._last_to_go(connection, head))
        if not pages or _is_a_note_alone(pages):
            self._looked()
            return head
        first, last = pages[0], pages[-1]
        if self._archive:
            self._write_archive(pages, self._before(connection, first))
        cut = ChainHead(last.last_seq, bytes.fromhex(last.hash))
        sentence = (
            f"entries {first.last_seq - first.count + 1} to {cut.seq} were removed to keep the "
            f"journal within its limits{ARCHIVED if self._archive else ''}"
        )
        connection.execute("BEGIN IMMEDIATE")
        try:
            after = append(connection, head, [note(CUT, cut, self._wall_ns(), sentence)])
            if after is not None:
                connection.execute("DELETE FROM page WHERE last_seq <= ?", (cut.seq,))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if after is None:
            # Another process writes here too. It is as good the next time, when whoever writes next
            # has seen where the chain ends.
            return head
        self._cut = cut
        return after

    def _looked(self) -> None:
        self._unpruned = 0
        if self.pause is not None:
            self._look_at = self._clock() + self.pause

    def _last_to_go(self, connection: sqlite3.Connection, head: ChainHead) -> int:
        """Up to this entry they may go, by number or by age."""
        last = 0 if self._max_rows is None else head.seq - self._max_rows
        if self._max_age is not None and self._is_settled():
            oldest = self._wall_ns() - int(self._max_age * 1e9)
            young = connection.execute(
                "SELECT last_seq - count FROM page WHERE newest_ns > ? ORDER BY last_seq LIMIT 1",
                (oldest,),
            ).fetchone()
            last = max(last, head.seq if young is None else young[0])
        return last

    def _is_settled(self) -> bool:
        """Whether the wall clock can be believed. One that just jumped ahead would have us remove
        everything."""
        now = self._clock()
        offset = self._wall_ns() / 1e9 - now
        if abs(offset - self._offset) > _JUMP:
            self._settled_at = now + _SETTLED
            _log.warning("The clock jumped: for an hour no entry is removed because of its age.")
        self._offset = offset
        return now >= self._settled_at

    def _before(self, connection: sqlite3.Connection, first: ArchivedPage) -> bytes:
        """The hash before the oldest page: the note of the cut that made it the oldest has it."""
        start = first.last_seq - first.count
        if start == 0:
            return START
        if self._cut.seq == start:
            return self._cut.hash
        noted_there = cut_at(connection, start)
        return START if noted_there is None else noted_there.hash

    def _write_archive(self, pages: list[ArchivedPage], before: bytes) -> None:
        """Write pages to a file of their own, whole or not at all. Raises OSError."""
        folder = archive_folder(self._path)
        folder.mkdir(mode=0o700, exist_ok=True)
        encode = msgspec.json.Encoder().encode
        lines = bytearray()
        previous = before.hex()
        for page in pages:
            page.before = previous
            lines += encode(page) + b"\n"
            previous = page.hash
        first = pages[0].last_seq - pages[0].count + 1
        start = f"{first:012d}-"
        path = folder / f"{start}{pages[-1].last_seq:012d}.jsonl.gz"
        unfinished = path.with_suffix(".unfinished")
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:
            file.write(gzip.compress(lines, _LEVEL, mtime=0))
            file.flush()
            os.fsync(handle)
        # A node that stopped between here and its commit left one that ends earlier or later.
        for other in folder.glob(f"{start}*.jsonl.gz"):
            if other != path:
                other.unlink()
        unfinished.replace(path)
        directory = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def archive_folder(journal: Path) -> Path:
    """Where the archives of a journal are."""
    return journal.with_name(f"{journal.stem}.archive")


def _oldest(connection: sqlite3.Connection, last: int) -> list[ArchivedPage]:
    """The pages of the next bite, up to the entry `last`; the first of them in any case."""
    if last <= 0:
        return []
    pages: list[ArchivedPage] = []
    size = 0
    with closing(
        connection.execute(
            "SELECT last_seq, count, newest_ns, hash, CAST(body AS BLOB) FROM page "
            "WHERE last_seq <= ? ORDER BY last_seq LIMIT ?",
            (last, _MOST_PAGES),
        )
    ) as rows:
        for last_seq, count, newest_ns, hash_, body in rows:
            size += len(body)
            if pages and size > _MOST_BYTES:
                break
            hexadecimal = (hash_ or b"").hex()
            pages.append(ArchivedPage(last_seq, count, newest_ns, "", hexadecimal, Raw(body)))
    return pages


def _is_a_note_alone(pages: list[ArchivedPage]) -> bool:
    """Whether all that would go is the note of the last cut. A chain has an end, however old."""
    if len(pages) > 1 or pages[0].count > 1:
        return False
    [entry] = msgspec.json.decode(pages[0].entries)
    return noted(entry, CUT) is not None
