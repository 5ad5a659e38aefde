"""The writing end of the journal's file: its connection, its place in the chain, its tidying up.

Used by one thread, which outlives whatever is raised here. This room touches the file by SQLite.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from interlock import errors
from interlock.core.journal.chain import (
    BEGUN,
    BrokenChainError,
    ChainHead,
    ChainPage,
    append,
    begins_anew,
    is_behind,
    note,
    read_head,
)
from interlock.core.journal.file import (
    ENTRY_WIDTH,
    Entry,
    FileIdentity,
    aside,
    identity,
    open_for_writing,
)
from interlock.core.journal.retention import Retention
from interlock.errors import InterlockError

# -- Entries as JSON: a chunk of them becomes a fragment, fragments become the pages of the file.
#
# A fragment is the inside of a JSON array, so that pages are made by joining bytes: encoding is
# paid where the entries were made, and what goes to the writer thread is a few immutable byte
# strings.
#
# Nothing that was recorded stops a chunk: what cannot be stored as it is, is mended. This room is
# pure: it touches no file, thread or clock.

# How many entries are encoded at a time: few enough to be still in the processor's cache, and to
# hold the event loop up for some 50 µs at most; enough that a call of the encoder is shared.
CHUNK_ENTRIES: Final = 256
# A page is the least that a reader decodes, so it stays small enough to be read in a millisecond.
PAGE_ENTRIES: Final = 2_000
# An entry is a line, not a payload. A chunk past this has its longest entries cut short.
PAGE_BYTES: Final = 4_000_000

# In a chunk that could not be stored as it is, what an entry may measure to be left alone.
_ENTRY_BYTES: Final = PAGE_BYTES // CHUNK_ENTRIES
_MENDED_CHARACTERS: Final = 2_000
_INT64_MOST: Final = 2**63 - 1

_encode = msgspec.json.Encoder().encode
_time_of = itemgetter(0)


class Fragment(NamedTuple):
    """Encoded entries: the inside of a JSON array, how many there are, and the newest's time."""

    body: bytes
    entries: int
    newest_ns: int


def fragment_of(chunk: Sequence[Any]) -> Fragment:
    """The entries of `chunk`, encoded. What is not as `Entry` promises is mended."""
    whole = _encoded(chunk, PAGE_BYTES)
    if whole is not None:
        return whole
    # One entry that cannot be stored must hide neither the others nor itself.
    sound = [entry if _encoded((entry,), _ENTRY_BYTES) else mended(entry) for entry in chunk]
    return Fragment(_encode(sound)[1:-1], len(sound), max(map(_time_of, sound)))


def pages_of(fragments: Iterable[Fragment]) -> list[Fragment]:
    """The fragments, in their order, joined into pages: whole JSON arrays."""
    pages: list[Fragment] = []
    parts: list[Fragment] = []
    count = size = 0
    for part in fragments:
        if parts and (count + part.entries > PAGE_ENTRIES or size + len(part.body) > PAGE_BYTES):
            pages.append(_page(parts, count))
            parts = []
            count = size = 0
        parts.append(part)
        count += part.entries
        size += len(part.body)
    if parts:
        pages.append(_page(parts, count))
    return pages


def mended(entry: object) -> Entry:
    """An entry that can be stored, with what it said kept as far as it can be.

    A name from outside may hold a lone surrogate, or be endless; that must not keep the call out
    of the record.
    """
    fields: list[Any]
    if isinstance(entry, tuple | list):
        fields = [*entry[:ENTRY_WIDTH], *[""] * (ENTRY_WIDTH - len(entry))]
    else:
        fields = [*[""] * (ENTRY_WIDTH - 1), entry]
    for place, value in enumerate(fields):
        if place in (0, 8):
            whole = value if isinstance(value, int) else 0
            fields[place] = max(-_INT64_MOST, min(_INT64_MOST, whole))
        else:
            text = _text(value)[:_MENDED_CHARACTERS]
            fields[place] = text.encode("utf-8", "backslashreplace").decode()
    return tuple(fields)


def _encoded(chunk: Sequence[Any], most: int) -> Fragment | None:
    """The chunk as it is, or None when something in it cannot be stored so."""
    try:
        if set(map(len, chunk)) != {ENTRY_WIDTH}:
            return None
        body = _encode(chunk)
        newest = max(map(_time_of, chunk))
        if len(body) > most or not -_INT64_MOST <= newest <= _INT64_MOST:
            return None
    except Exception:
        # An entry of the wrong kind may fail in any way. That it failed is all that matters here.
        return None
    return Fragment(body[1:-1], len(chunk), newest)


def _page(parts: list[Fragment], count: int) -> Fragment:
    body = b",".join([part.body for part in parts])
    return Fragment(b"[%b]" % body, count, max([part.newest_ns for part in parts]))


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"


# As many pages of SQLite's in the -wal file, and they go home into the main one.
_CHECKPOINT_PAGES: Final = 1000
_PAGE_SIZE: Final = 4096
# How long entries may go on into a file that was moved away, when nobody waits for them.
_IDENTITY_SECONDS: Final = 1.0
# How every file of SQLite's begins.
_MAGIC: Final = b"SQLite format 3\0"
# So often another process may be quicker to append before that is a failure.
_TRIES: Final = 100

_log = logging.getLogger("interlock.journal")


class JournalWriter:
    """Appends pages to the file at `path`, which is opened when it is first needed."""

    __slots__ = (
        "_connection",
        "_file",
        "_head",
        "_identified",
        "_identity",
        "_path",
        "_retention",
        "_synced",
        "_unchecked",
    )

    def __init__(self, path: Path, retention: Retention) -> None:
        self._path = path
        self._retention = retention
        self._connection: sqlite3.Connection | None = None
        self._file: int | None = None
        self._identity: FileIdentity | None = None
        self._identified = 0.0
        self._head = ChainHead(0, b"")
        # Whether the connection waits for the disk at every commit.
        self._synced = False
        # About as many pages are in the -wal file alone.
        self._unchecked = 0

    def open(self) -> sqlite3.Connection:
        """Open the file, making it when it is not there. Raises InterlockError."""
        before = self._identity
        there = identity(self._path) if self._head.seq else None
        connection = open_for_writing(self._path)
        try:
            found = read_head(connection)
            if self._is_begun_anew(connection, found, there is None or there != before):
                found = self._say_what_was_before(connection, found)
            else:
                self._must_go_on(connection, found)
            self._head = found
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except BrokenChainError as broken:
            connection.close()
            raise InterlockError(
                errors.INTERNAL,
                f"The journal {self._path} was changed by something else than a node: {broken}. "
                f"`interlock audit verify` says more. {aside(self._path)}",
                data={"path": str(self._path), "bearable": True},
            ) from broken
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._identity = identity(self._path)
        self._identified = time.monotonic()
        self._synced = False
        return connection

    def write(self, pages: Sequence[ChainPage], *, durable: bool, look: bool) -> None:
        """Append pages in one transaction, and wait for the disk when they must be durable.

        `look`: whether to look if the file is still where it was, which is done once a second
        anyhow. Raises whatever is wrong; then nothing was written.
        """
        connection = self._usable(look)
        if durable != self._synced:
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._synced = durable
        head = append(connection, self._head, pages)
        for _ in range(_TRIES):
            if head is not None:
                break
            # Another process writes here too, and was quicker; or somebody took the end away.
            found = read_head(connection)
            self._must_go_on(connection, found)
            self._head = found
            head = append(connection, self._head, pages)
        else:
            raise sqlite3.OperationalError("another process keeps writing to it")
        self._head = head
        self._retention.added(sum([page.entries for page in pages]))
        self._unchecked += sum([3 + len(page.body) // _PAGE_SIZE for page in pages])

    def tidy(self) -> None:
        """Bring home what is in the -wal file, and let go of what is too old, once in a while.

        SQLite does the first within a commit by itself, and who waits for the disk would wait for
        that as well. What fails here is tried again: nothing is lost by keeping too much.
        """
        connection = self._connection
        if connection is None:
            return
        try:
            if self._unchecked >= _CHECKPOINT_PAGES:
                self._unchecked = 0
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            if self._retention.due():
                self._head = self._retention.apply(connection, self._head)
        except Exception as error:
            # The thread outlives it. What ails the file, if anything does, comes up at the next
            # commit.
            _log.warning("The journal %s could not be tidied up: %s.", self._path, error)

    def close(self) -> None:
        """Let go of the file. A connection that failed is not trusted again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        # In this order: closing a file lets go of all locks that this process has on it.
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _usable(self, look: bool) -> sqlite3.Connection:
        """The connection, opened anew after a failure or when the file was moved away.

        Without the second, entries would go on into a file that nobody can find any more. SQLite
        itself does not look at what it has in memory: that the file was overwritten or cut off
        would come up when the node starts the next time, and until then all would seem well.
        """
        connection = self._connection
        now = time.monotonic()
        if connection is not None and (look or now - self._identified >= _IDENTITY_SECONDS):
            self._identified = now
            if identity(self._path) != self._identity:
                # A new file must not meet the old one's -wal, so what that holds goes home first.
                # By itself SQLite does not do that for a file that has moved.
                try:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                finally:
                    self.close()
                connection = None
            elif self._file is None or os.pread(self._file, len(_MAGIC), 0) != _MAGIC:
                raise InterlockError(
                    errors.INTERNAL,
                    f"The journal {self._path} was overwritten by something else than a node. "
                    f"{aside(self._path)}",
                    data={"path": str(self._path), "bearable": True},
                )
        return connection or self.open()

    def _must_go_on(self, connection: sqlite3.Connection, found: ChainHead) -> None:
        """Raises InterlockError unless the chain in the file goes on from where this writer left
        it. A chain that lost its end must not be continued as if nothing had happened."""
        known = self._head
        if known.seq == 0 or is_behind(connection, known, found):
            return
        raise InterlockError(
            errors.INTERNAL,
            f"The journal {self._path} is not what this node wrote: it had entries up to "
            f"{known.seq}, and now that end is gone (it ends at entry {found.seq}). Put back the "
            f"file that it was. {aside(self._path)}",
            data={"path": str(self._path), "bearable": True},
        )

    def _is_begun_anew(self, connection: sqlite3.Connection, found: ChainHead, other: bool) -> bool:
        """Whether the journal was moved away, and this is the one that is begun in its place.
        `other`: it is not the file that there was."""
        if self._head.seq == 0 or is_behind(connection, self._head, found):
            return False
        # Another process may have been quicker to begin it.
        return other if found.seq == 0 else begins_anew(connection)

    def _say_what_was_before(self, connection: sqlite3.Connection, found: ChainHead) -> ChainHead:
        """The first that is in a new journal is where the one before it ended."""
        known = self._head
        _log.warning(
            "The journal %s is no longer in its place, and begun anew. It ended with %s.",
            self._path,
            known,
        )
        sentence = "so far went the journal that was here before, and is no longer in its place"
        for _ in range(_TRIES):
            head = append(connection, found, [note(BEGUN, known, time.time_ns(), sentence)])
            if head is not None:
                return head
            found = read_head(connection)
        raise sqlite3.OperationalError("another process keeps writing to it")
