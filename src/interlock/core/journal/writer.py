"""The writing end of the journal file: its connection, its position in the chain, maintenance.

Used by one thread, which survives all errors that are raised here.
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
    RESTARTED,
    BrokenChainError,
    ChainHead,
    ChainPage,
    append_pages,
    contains_head,
    create_note,
    is_restarted,
    read_head,
)
from interlock.core.journal.file import (
    ENTRY_WIDTH,
    Entry,
    FileIdentity,
    open_for_writing,
    read_identity,
    removal_advice,
)
from interlock.core.journal.retention import Retention
from interlock.errors import InterlockError

# -- Entries as JSON: a chunk of entries becomes a fragment, fragments become pages of the file.
#
# A fragment is the inside of a JSON array, so that pages are made by joining bytes: entries are
# encoded where they are recorded, and the writer thread gets a few immutable byte strings.
#
# An entry that cannot be stored is sanitized, so that it does not stop its chunk. Pure.

# Entries that are encoded at once: few enough to be in the processor's cache and to block the event
# loop for at most 50 µs, and enough to share the cost of a call of the encoder.
CHUNK_ENTRIES: Final = 256
# A reader decodes at least one page, so pages are small enough to be read in a millisecond.
PAGE_ENTRIES: Final = 2_000
# An entry is a line, not a payload. In a larger chunk the longest entries are shortened.
PAGE_BYTES: Final = 4_000_000

# In a chunk that could not be stored, the size up to which an entry stays unchanged.
_ENTRY_BYTES: Final = PAGE_BYTES // CHUNK_ENTRIES
_MAX_SANITIZED_LENGTH: Final = 2_000
_INT64_MAX: Final = 2**63 - 1

_encode = msgspec.json.Encoder().encode
_time_of = itemgetter(0)


class Fragment(NamedTuple):
    """Encoded entries: the inside of a JSON array, their number, and the time of the newest."""

    body: bytes
    entries: int
    newest_ns: int


def encode_fragment(chunk: Sequence[Any]) -> Fragment:
    """Encode the entries of `chunk`. Entries that do not match `Entry` are sanitized."""
    fragment = _try_encode(chunk, PAGE_BYTES)
    if fragment is not None:
        return fragment
    # One invalid entry must not prevent the others from being stored.
    entries = [
        entry if _try_encode((entry,), _ENTRY_BYTES) else sanitize_entry(entry) for entry in chunk
    ]
    return Fragment(_encode(entries)[1:-1], len(entries), max(map(_time_of, entries)))


def join_pages(fragments: Iterable[Fragment]) -> list[Fragment]:
    """Join fragments in their order to pages, which are complete JSON arrays."""
    pages: list[Fragment] = []
    fragments_of_page: list[Fragment] = []
    count = size = 0
    for fragment in fragments:
        if fragments_of_page and (
            count + fragment.entries > PAGE_ENTRIES or size + len(fragment.body) > PAGE_BYTES
        ):
            pages.append(_join_page(fragments_of_page, count))
            fragments_of_page = []
            count = size = 0
        fragments_of_page.append(fragment)
        count += fragment.entries
        size += len(fragment.body)
    if fragments_of_page:
        pages.append(_join_page(fragments_of_page, count))
    return pages


def sanitize_entry(entry: object) -> Entry:
    """Return an entry that can be stored, with as much of its content as possible.

    A name from a caller may contain a lone surrogate or be very long. The call must be recorded
    nevertheless.
    """
    fields: list[Any]
    if isinstance(entry, tuple | list):
        fields = [*entry[:ENTRY_WIDTH], *[""] * (ENTRY_WIDTH - len(entry))]
    else:
        fields = [*[""] * (ENTRY_WIDTH - 1), entry]
    for index, value in enumerate(fields):
        if index in (0, 8):
            number = value if isinstance(value, int) else 0
            fields[index] = max(-_INT64_MAX, min(_INT64_MAX, number))
        else:
            text = _to_text(value)[:_MAX_SANITIZED_LENGTH]
            fields[index] = text.encode("utf-8", "backslashreplace").decode()
    return tuple(fields)


def _try_encode(chunk: Sequence[Any], max_bytes: int) -> Fragment | None:
    """Encode the chunk unchanged. None: it contains an invalid entry."""
    try:
        if set(map(len, chunk)) != {ENTRY_WIDTH}:
            return None
        body = _encode(chunk)
        newest = max(map(_time_of, chunk))
        if len(body) > max_bytes or not -_INT64_MAX <= newest <= _INT64_MAX:
            return None
    except Exception:
        # An invalid entry may raise any error. Only the failure matters here.
        return None
    return Fragment(body[1:-1], len(chunk), newest)


def _join_page(fragments_of_page: list[Fragment], count: int) -> Fragment:
    body = b",".join([fragment.body for fragment in fragments_of_page])
    return Fragment(
        b"[%b]" % body, count, max([fragment.newest_ns for fragment in fragments_of_page])
    )


def _to_text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"


# The number of pages in the -wal file that triggers a checkpoint.
_CHECKPOINT_PAGES: Final = 1000
_PAGE_SIZE: Final = 4096
# How long entries may go to a file that was moved away, while no durable write is pending.
_IDENTITY_SECONDS: Final = 1.0
# The first bytes of each SQLite file.
_MAGIC: Final = b"SQLite format 3\0"
# How often another process may append first before the write fails.
_MAX_APPEND_ATTEMPTS: Final = 100

_log = logging.getLogger("interlock.journal")


class JournalWriter:
    """Appends pages to the file at `path`, which is opened on first use."""

    __slots__ = (
        "_connection",
        "_file",
        "_head",
        "_identified_at",
        "_identity",
        "_path",
        "_retention",
        "_synced",
        "_wal_pages",
    )

    def __init__(self, path: Path, retention: Retention) -> None:
        self._path = path
        self._retention = retention
        self._connection: sqlite3.Connection | None = None
        self._file: int | None = None
        self._identity: FileIdentity | None = None
        self._identified_at = 0.0
        self._head = ChainHead(0, b"")
        # True if the connection waits for the disk at every commit.
        self._synced = False
        # The approximate number of pages that are only in the -wal file.
        self._wal_pages = 0

    def open(self) -> sqlite3.Connection:
        """Open the file, or create it. Raises InterlockError."""
        previous_identity = self._identity
        current_identity = read_identity(self._path) if self._head.seq else None
        connection = open_for_writing(self._path)
        try:
            head = read_head(connection)
            if self._is_new_journal(
                connection, head, current_identity is None or current_identity != previous_identity
            ):
                head = self._record_previous_journal(connection, head)
            else:
                self._check_continuation(connection, head)
            self._head = head
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except BrokenChainError as error:
            connection.close()
            raise InterlockError(
                errors.INTERNAL,
                f"The journal {self._path} was changed by another program: {error}. "
                f"Run `interlock audit verify` for details. {removal_advice(self._path)}",
                data={"path": str(self._path), "bearable": True},
            ) from error
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._identity = read_identity(self._path)
        self._identified_at = time.monotonic()
        self._synced = False
        return connection

    def write(self, pages: Sequence[ChainPage], *, durable: bool, check_identity: bool) -> None:
        """Append pages in one transaction. Raises on any error; then nothing was written.

        Args:
            durable: wait for the disk.
            check_identity: check whether the file is still in its place. This is done once a second
                in any case.
        """
        connection = self._get_connection(check_identity)
        if durable != self._synced:
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._synced = durable
        head = append_pages(connection, self._head, pages)
        for _ in range(_MAX_APPEND_ATTEMPTS):
            if head is not None:
                break
            # Another process appended first, or the end of the file was removed.
            head = read_head(connection)
            self._check_continuation(connection, head)
            self._head = head
            head = append_pages(connection, self._head, pages)
        else:
            raise sqlite3.OperationalError("another process keeps writing to it")
        self._head = head
        self._retention.count_added(sum([page.entries for page in pages]))
        self._wal_pages += sum([3 + len(page.body) // _PAGE_SIZE for page in pages])

    def tidy(self) -> None:
        """Checkpoint the -wal file, and remove old entries, when due.

        SQLite would checkpoint within a commit, and durable writes would wait for that as well.
        Failures are retried later: keeping too much loses nothing.
        """
        connection = self._connection
        if connection is None:
            return
        try:
            if self._wal_pages >= _CHECKPOINT_PAGES:
                self._wal_pages = 0
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            if self._retention.is_due():
                self._head = self._retention.apply(connection, self._head)
        except Exception as error:
            # The thread survives. A problem of the file is reported at the next commit.
            _log.warning("journal %s: maintenance failed: %s", self._path, error)

    def close(self) -> None:
        """Close the file. A failed connection is not reused."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        # In this order: closing a file releases all locks of this process on it.
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _get_connection(self, check_identity: bool) -> sqlite3.Connection:
        """Return the connection. It is reopened after a failure or when the file was moved away.

        Otherwise entries would go to a file that cannot be found. SQLite does not check what it has
        in memory: an overwritten or truncated file would only be noticed at the next start.
        """
        connection = self._connection
        now = time.monotonic()
        if connection is not None and (
            check_identity or now - self._identified_at >= _IDENTITY_SECONDS
        ):
            self._identified_at = now
            if read_identity(self._path) != self._identity:
                # A new file must not meet the old -wal file, so that is checkpointed first. SQLite
                # does not do that for a file that was moved.
                try:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                finally:
                    self.close()
                connection = None
            elif self._file is None or os.pread(self._file, len(_MAGIC), 0) != _MAGIC:
                raise InterlockError(
                    errors.INTERNAL,
                    f"The journal {self._path} was overwritten by another program. "
                    f"{removal_advice(self._path)}",
                    data={"path": str(self._path), "bearable": True},
                )
        return connection or self.open()

    def _check_continuation(self, connection: sqlite3.Connection, head: ChainHead) -> None:
        """Raise InterlockError unless the chain in the file continues from the last head of this
        writer. A chain that lost its end must not be continued silently."""
        previous_head = self._head
        if previous_head.seq == 0 or contains_head(connection, previous_head, head):
            return
        raise InterlockError(
            errors.INTERNAL,
            f"The journal {self._path} has lost entries: this node wrote entries up to "
            f"{previous_head.seq}, but the file ends at entry {head.seq}. Restore the file. "
            f"{removal_advice(self._path)}",
            data={"path": str(self._path), "bearable": True},
        )

    def _is_new_journal(
        self, connection: sqlite3.Connection, head: ChainHead, is_other_file: bool
    ) -> bool:
        """Return whether the journal was moved away and this one was started in its place.

        Args:
            is_other_file: the file is not the previous one.
        """
        if self._head.seq == 0 or contains_head(connection, self._head, head):
            return False
        # Another process may have started it first.
        return is_other_file if head.seq == 0 else is_restarted(connection)

    def _record_previous_journal(
        self, connection: sqlite3.Connection, head: ChainHead
    ) -> ChainHead:
        """Record the end of the previous journal as the first entry of a new one."""
        previous_head = self._head
        _log.warning(
            "journal %s: the file was moved. Starting a new file. The previous head was %s.",
            self._path,
            previous_head,
        )
        message = "so far went the journal that was here before, and is no longer in its place"
        for _ in range(_MAX_APPEND_ATTEMPTS):
            new_head = append_pages(
                connection, head, [create_note(RESTARTED, previous_head, time.time_ns(), message)]
            )
            if new_head is not None:
                return new_head
            head = read_head(connection)
        raise sqlite3.OperationalError("another process keeps writing to it")
