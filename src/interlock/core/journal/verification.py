"""Verification of the journal: follow the chain from its beginning and report what was changed.

It reads one snapshot of the file, even while a node writes to it, and the archives beside it, which
are checked against the chain in the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from interlock import errors
from interlock.core.journal.archives import (
    Archives,
    ChainedPage,
    CutNote,
    JournalFinding,
    VerificationReport,
    find_cuts,
    find_notices,
    span,
)
from interlock.core.journal.chain import GENESIS_HASH, ChainHead
from interlock.core.journal.file import open_for_reading
from interlock.errors import InterlockError

__all__ = ["JournalFinding", "Progress", "VerificationReport", "read_chain_head", "verify"]

Progress = Callable[[int, int], None]
"""Called with the number of checked entries and the total."""

_PROGRESS_PAGES: Final = 256
_SELECT_PAGES: Final = (
    "SELECT last_seq, count, newest_ns, CAST(body AS BLOB), hash FROM page ORDER BY last_seq"
)


def verify(path: Path, head: str = "", progress: Progress | None = None) -> VerificationReport:
    """Verify the whole journal.

    Args:
        head: an earlier output of `interlock audit head`, or its hash.

    Raises:
        InterlockError: there is no journal, or `head` is invalid.
    """
    expected_head = _read_head(head)
    report = VerificationReport()
    walker = _ChainWalker(report, expected_head)
    with closing(open_for_reading(path)) as connection:
        if not _has_chain(connection):
            raise InterlockError(
                errors.CONFIG,
                f"The journal {path} was written by an older Interlock and has no hash chain yet. "
                "Start a node with it to add the chain.",
            )
        try:
            # One snapshot, regardless of concurrent writes.
            connection.execute("BEGIN")
            total = connection.execute("SELECT coalesce(sum(count), 0) FROM page").fetchone()[0]
            for number, row in enumerate(connection.execute(_SELECT_PAGES)):
                walker.check_page(ChainedPage(*row))
                if progress is not None and number % _PROGRESS_PAGES == 0:
                    progress(report.entries, total)
            walker.check_beginning()
            archives = Archives(path, report, walker.on_head)
            archives.check(walker.start, walker.cuts, lambda seq: _hash_at(connection, seq))
        except sqlite3.Error as error:
            seq = report.head.seq + 1
            report.add_finding(
                "unreadable", seq, seq, f"From entry {seq} on it cannot be read: {error}."
            )
    walker.check_head()
    if progress is not None:
        progress(report.entries, report.entries)
    return report


def read_chain_head(path: Path) -> ChainHead:
    """Return the end of the chain in the file. Raises InterlockError."""
    with closing(open_for_reading(path)) as connection:
        row = None
        if _has_chain(connection):
            row = connection.execute(
                "SELECT last_seq, hash FROM page ORDER BY last_seq DESC LIMIT 1"
            ).fetchone()
    if row is None or row[1] is None:
        raise InterlockError(errors.CONFIG, f"The journal {path} has no entries in a chain yet.")
    return ChainHead(*row)


def _hash_at(connection: sqlite3.Connection, seq: int) -> bytes | None:
    row = connection.execute("SELECT hash FROM page WHERE last_seq = ?", (seq,)).fetchone()
    return None if row is None else row[0]


class _ChainWalker:
    """Checks page after page, and collects what later checks need."""

    def __init__(self, report: VerificationReport, expected_head: ChainHead | None) -> None:
        self._report = report
        self._expected_head = expected_head
        self._found_head = False
        self._first: ChainedPage | None = None
        self.cuts: dict[int, CutNote] = {}
        """The notes about cuts in the file."""

    @property
    def start(self) -> int:
        """The last removed entry. 0: none was removed."""
        return 0 if self._first is None else self._first.first_seq - 1

    def check_page(self, page: ChainedPage) -> None:
        report = self._report
        previous = report.head
        if self._first is None:
            self._first = page
            report.first_seq = page.first_seq
        elif page.first_seq > previous.seq + 1:
            first, last = previous.seq + 1, page.first_seq - 1
            report.add_finding("missing", first, last, f"Missing: {span(first, last)}.")
        elif page.first_seq <= previous.seq:
            report.add_finding(
                "inserted", page.first_seq, page.last_seq,
                f"Inserted: {page.name}. Other entries have the same numbers.",
            )  # fmt: skip
        elif page.hash is not None and not page.follows(previous.hash):
            report.add_finding(
                "changed", page.first_seq, page.last_seq,
                f"Changed: {page.name}, or earlier entries, or their order.",
            )  # fmt: skip
        if page.hash is None:
            report.add_finding(
                "inserted", page.first_seq, page.last_seq,
                f"Inserted: {page.name}, without a hash, by another program.",
            )  # fmt: skip
        self._read_notes(page)
        report.pages += 1
        report.entries += page.entries
        report.head = ChainHead(page.last_seq, page.hash or previous.hash)
        self.on_head(report.head)

    def check_beginning(self) -> None:
        """Check that the first page follows the start or a noted cut."""
        first = self._first
        if first is None:
            return
        start, report = self.start, self._report
        cut = CutNote(GENESIS_HASH, False) if start == 0 else self.cuts.get(start)
        if cut is None:
            report.add_finding(
                "beginning", 1, start,
                f"Missing: {span(1, start)}. There is no note that retention removed them.",
            )  # fmt: skip
        elif first.hash is not None and not first.follows(cut.hash):
            report.add_finding(
                "changed", first.first_seq, first.last_seq,
                f"Changed: {first.name}, or the note about the removed entries before.",
            )  # fmt: skip

    def check_head(self) -> None:
        """Check that the expected head is in the chain."""
        expected_head, report = self._expected_head, self._report
        if expected_head is None or self._found_head:
            return
        seq, end = expected_head.seq, report.head.seq
        if seq > end:
            message = f"Missing: {span(end + 1, seq)}. The journal ends before that head."
        elif 0 < seq < report.first_seq:
            message = (
                f"Entry {seq} of that head is no longer kept, not even in an archive, so it cannot "
                "be compared."
            )
        elif seq:
            message = f"The hash at entry {seq} differs: entries up to there were rewritten."
        else:
            message = (
                "No page has that hash: entries at the end are missing or were rewritten, or the "
                "journal no longer keeps entries from that time."
            )
        report.add_finding("head", min(seq, end) + 1 if seq > end else seq, max(seq, end), message)

    def on_head(self, head: ChainHead) -> None:
        """Check whether the end of a page, in the file or in an archive, is the expected head."""
        expected_head = self._expected_head
        if (
            expected_head is not None
            and head.hash == expected_head.hash
            and expected_head.seq in (0, head.seq)
        ):
            self._found_head = True

    def _read_notes(self, page: ChainedPage) -> None:
        self.cuts.update(find_cuts(page.body))
        self._report.notes += find_notices(page.body)


def _has_chain(connection: sqlite3.Connection) -> bool:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version >= 2


def _read_head(text: str) -> ChainHead | None:
    if not text:
        return None
    seq, _, hash_ = text.strip().rpartition(":")
    try:
        head = ChainHead(int(seq or "0"), bytes.fromhex(hash_))
    except ValueError:
        head = ChainHead(-1, b"")
    if head.seq < 0 or len(head.hash) != len(GENESIS_HASH):
        raise InterlockError(
            errors.CONFIG,
            "Invalid head of a journal. Use the output of `interlock audit head`: a number, a "
            "colon and 64 hexadecimal digits.",
        )
    return head
