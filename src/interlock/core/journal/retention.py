"""Retention of the journal: the newest entries are kept, old ones are removed.

Whole pages are removed, a limited number at a time, in one transaction with a note in the chain.
With archiving they are first written to a compressed file in a folder beside the journal: one line
per page with its hash, so that the chain continues through these files.
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
    GENESIS_HASH,
    ChainHead,
    append_pages,
    create_note,
    find_cut,
    read_note,
)

# Removal waits until this fraction of the limit is new: it costs a statement and so loop time.
_PRUNE_FRACTION: Final = 16
_MAX_PAGES: Final = 2048
_MAX_BYTES: Final = 8_000_000
"""The limit of one removal. Nothing is written meanwhile."""
_MIN_INTERVAL_SECONDS: Final = 1.0
_MAX_INTERVAL_SECONDS: Final = 3600.0
"""Limits of the interval of checks for old entries."""
_CLOCK_JUMP_SECONDS: Final = 60.0
_CLOCK_DISTRUST_SECONDS: Final = 3600.0
"""After a jump of the wall clock by the first value, it is distrusted for the second."""
_COMPRESSION_LEVEL: Final = 3
"""The compression level. Nothing is written meanwhile."""

_log = logging.getLogger("interlock.journal")


class ArchivedPage(msgspec.Struct):
    """A line of an archive."""

    last_seq: int
    count: int
    newest_ns: int
    before: str
    """The hash of the page before, in hexadecimal, as is `hash`."""
    hash: str
    entries: Raw
    """The entries exactly as they were in the journal."""


class Retention:
    """Decides when entries are removed, and removes them."""

    __slots__ = (
        "_archive",
        "_clock",
        "_last_cut",
        "_max_age",
        "_max_rows",
        "_next_check_at",
        "_offset",
        "_path",
        "_trusted_at",
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
        """
        Args:
            max_rows: the minimum number of newest entries to keep. None: no limit.
            max_age: the maximum age of entries in seconds. None: no limit.
        """
        self._path = path
        self._max_rows = max_rows
        self._max_age = max_age
        self._archive = archive
        self._wall_ns = wall_ns
        self._clock = clock
        # Above any limit: entries of an earlier run are checked with the first commit.
        self._unpruned = max_rows or 0
        # The last cut of this process. The next one starts there.
        self._last_cut = ChainHead(0, GENESIS_HASH)
        self._next_check_at = clock()
        self._offset = wall_ns() / 1e9 - clock()
        self._trusted_at = clock()

    @property
    def check_interval(self) -> float | None:
        """Return how often to call `is_due` even without new entries. None: never."""
        if self._max_age is None:
            return None
        return min(
            max(self._max_age / _PRUNE_FRACTION, _MIN_INTERVAL_SECONDS), _MAX_INTERVAL_SECONDS
        )

    def count_added(self, entries: int) -> None:
        self._unpruned += entries

    def is_due(self) -> bool:
        """Return whether there may be entries to remove."""
        if self._max_rows is not None and self._unpruned > self._max_rows // _PRUNE_FRACTION:
            return True
        return self._max_age is not None and self._clock() >= self._next_check_at

    def apply(self, connection: sqlite3.Connection, head: ChainHead) -> ChainHead:
        """Remove one limited number of pages, if any. Returns the new end of the chain.

        If more pages are to be removed, it is due again.

        Raises:
            sqlite3.Error, OSError: nothing was changed.
        """
        try:
            return self._apply(connection, head)
        except BaseException:
            # The problem may persist, and must not be retried with every commit.
            self._schedule_check()
            raise

    def _apply(self, connection: sqlite3.Connection, head: ChainHead) -> ChainHead:
        pages = _read_oldest(connection, self._find_last_removable(connection, head))
        if not pages or _is_only_note(pages):
            self._schedule_check()
            return head
        first, last = pages[0], pages[-1]
        if self._archive:
            self._write_archive(pages, self._hash_before(connection, first))
        cut = ChainHead(last.last_seq, bytes.fromhex(last.hash))
        message = (
            f"entries {first.last_seq - first.count + 1} to {cut.seq} were removed to keep the "
            f"journal within its limits{ARCHIVED if self._archive else ''}"
        )
        connection.execute("BEGIN IMMEDIATE")
        try:
            new_head = append_pages(
                connection, head, [create_note(CUT, cut, self._wall_ns(), message)]
            )
            if new_head is not None:
                connection.execute("DELETE FROM page WHERE last_seq <= ?", (cut.seq,))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if new_head is None:
            # Another process writes here, too. Retry after the next write has found the new end.
            return head
        self._last_cut = cut
        return new_head

    def _schedule_check(self) -> None:
        self._unpruned = 0
        if self.check_interval is not None:
            self._next_check_at = self._clock() + self.check_interval

    def _find_last_removable(self, connection: sqlite3.Connection, head: ChainHead) -> int:
        """Return the last entry that may be removed, by number or by age."""
        last = 0 if self._max_rows is None else head.seq - self._max_rows
        if self._max_age is not None and self._is_clock_trusted():
            oldest = self._wall_ns() - int(self._max_age * 1e9)
            row = connection.execute(
                "SELECT last_seq - count FROM page WHERE newest_ns > ? ORDER BY last_seq LIMIT 1",
                (oldest,),
            ).fetchone()
            last = max(last, head.seq if row is None else row[0])
        return last

    def _is_clock_trusted(self) -> bool:
        """Return whether the wall clock is reliable. After a jump ahead, everything would be too
        old."""
        now = self._clock()
        offset = self._wall_ns() / 1e9 - now
        if abs(offset - self._offset) > _CLOCK_JUMP_SECONDS:
            self._trusted_at = now + _CLOCK_DISTRUST_SECONDS
            _log.warning("journal: the clock jumped. Entries are not removed by age for one hour.")
        self._offset = offset
        return now >= self._trusted_at

    def _hash_before(self, connection: sqlite3.Connection, first: ArchivedPage) -> bytes:
        """Return the hash before the oldest page, which the note of the last cut has."""
        start = first.last_seq - first.count
        if start == 0:
            return GENESIS_HASH
        if self._last_cut.seq == start:
            return self._last_cut.hash
        cut = find_cut(connection, start)
        return GENESIS_HASH if cut is None else cut.hash

    def _write_archive(self, pages: list[ArchivedPage], before: bytes) -> None:
        """Write pages to a file atomically. Raises OSError."""
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
        temporary_path = path.with_suffix(".unfinished")
        handle = os.open(
            temporary_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        with open(handle, "wb") as file:
            file.write(gzip.compress(lines, _COMPRESSION_LEVEL, mtime=0))
            file.flush()
            os.fsync(handle)
        # A node that stopped before its commit left a file with another end.
        for other in folder.glob(f"{start}*.jsonl.gz"):
            if other != path:
                other.unlink()
        temporary_path.replace(path)
        directory = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def archive_folder(journal: Path) -> Path:
    """Return the folder with the archives of a journal."""
    return journal.with_name(f"{journal.stem}.archive")


def _read_oldest(connection: sqlite3.Connection, last: int) -> list[ArchivedPage]:
    """Return the oldest pages up to the entry `last`, limited in number, but at least one."""
    if last <= 0:
        return []
    pages: list[ArchivedPage] = []
    size = 0
    with closing(
        connection.execute(
            "SELECT last_seq, count, newest_ns, hash, CAST(body AS BLOB) FROM page "
            "WHERE last_seq <= ? ORDER BY last_seq LIMIT ?",
            (last, _MAX_PAGES),
        )
    ) as rows:
        for last_seq, count, newest_ns, hash_, body in rows:
            size += len(body)
            if pages and size > _MAX_BYTES:
                break
            hexadecimal = (hash_ or b"").hex()
            pages.append(ArchivedPage(last_seq, count, newest_ns, "", hexadecimal, Raw(body)))
    return pages


def _is_only_note(pages: list[ArchivedPage]) -> bool:
    """Return whether only the note of the last cut would be removed. A chain must have an end."""
    if len(pages) > 1 or pages[0].count > 1:
        return False
    [entry] = msgspec.json.decode(pages[0].entries)
    return read_note(entry, CUT) is not None
