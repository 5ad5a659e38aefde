"""Is the journal still what was written? Walks the chain from its beginning, and says where not.

Reads the file as it stands at one moment, also while a node writes in it; and the archives beside
it, which are held against what the chain in the file says of them.
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
    cuts_in,
    sayings_in,
    span,
)
from interlock.core.journal.chain import START, ChainHead
from interlock.core.journal.file import open_for_reading
from interlock.errors import InterlockError

__all__ = ["JournalFinding", "Progress", "VerificationReport", "head_of", "verify"]

Progress = Callable[[int, int], None]
"""Told how many entries were looked at, of how many."""

_TELL_PAGES: Final = 256
_PAGES: Final = (
    "SELECT last_seq, count, newest_ns, CAST(body AS BLOB), hash FROM page ORDER BY last_seq"
)


def verify(path: Path, head: str = "", progress: Progress | None = None) -> VerificationReport:
    """Look at the whole journal. `head`: what `interlock audit head` said once, or its hash alone.

    Raises InterlockError when there is no journal, or when the head is not one.
    """
    wanted = _read_head(head)
    verdict = VerificationReport()
    walk = _Walk(verdict, wanted)
    with closing(open_for_reading(path)) as connection:
        if not _has_chain(connection):
            raise InterlockError(
                errors.CONFIG,
                f"The journal {path} was written by an older Interlock and has no chain yet. "
                "It gets one when a node next starts with it.",
            )
        try:
            # One look at all of it, whatever is written or removed meanwhile.
            connection.execute("BEGIN")
            total = connection.execute("SELECT coalesce(sum(count), 0) FROM page").fetchone()[0]
            for number, row in enumerate(connection.execute(_PAGES)):
                walk.step(ChainedPage(*row))
                if progress is not None and number % _TELL_PAGES == 0:
                    progress(verdict.entries, total)
            walk.check_beginning()
            archives = Archives(path, verdict, walk.meet)
            archives.check(walk.start, walk.cuts, lambda seq: _hash_at(connection, seq))
        except sqlite3.Error as error:
            seq = verdict.head.seq + 1
            verdict.find("unreadable", seq, seq, f"From entry {seq} on it cannot be read: {error}.")
    walk.check_head()
    if progress is not None:
        progress(verdict.entries, verdict.entries)
    return verdict


def head_of(path: Path) -> ChainHead:
    """The end of the chain, as the file has it. Raises InterlockError."""
    with closing(open_for_reading(path)) as connection:
        row = None
        if _has_chain(connection):
            row = connection.execute(
                "SELECT last_seq, hash FROM page ORDER BY last_seq DESC LIMIT 1"
            ).fetchone()
    if row is None or row[1] is None:
        raise InterlockError(errors.CONFIG, f"The journal {path} has no chained entry yet.")
    return ChainHead(*row)


def _hash_at(connection: sqlite3.Connection, seq: int) -> bytes | None:
    row = connection.execute("SELECT hash FROM page WHERE last_seq = ?", (seq,)).fetchone()
    return None if row is None else row[0]


class _Walk:
    """Goes from page to page, and remembers what the next ones are held against."""

    def __init__(self, verdict: VerificationReport, wanted: ChainHead | None) -> None:
        self._verdict = verdict
        self._wanted = wanted
        self._met = False
        self._first: ChainedPage | None = None
        self.cuts: dict[int, CutNote] = {}
        """What the notes in the file say of what was removed."""

    @property
    def start(self) -> int:
        """The last entry that was removed. 0: none was."""
        return 0 if self._first is None else self._first.first_seq - 1

    def step(self, page: ChainedPage) -> None:
        verdict = self._verdict
        before = verdict.head
        if self._first is None:
            self._first = page
            verdict.first_seq = page.first_seq
        elif page.first_seq > before.seq + 1:
            first, last = before.seq + 1, page.first_seq - 1
            verdict.find("missing", first, last, f"Missing: {span(first, last)}.")
        elif page.first_seq <= before.seq:
            verdict.find(
                "inserted", page.first_seq, page.last_seq,
                f"Put in: {page.name}. Others have the same numbers.",
            )  # fmt: skip
        elif page.hash is not None and not page.follows(before.hash):
            verdict.find(
                "changed", page.first_seq, page.last_seq,
                f"Changed: {page.name}, or what stood before, or their order.",
            )  # fmt: skip
        if page.hash is None:
            verdict.find(
                "inserted", page.first_seq, page.last_seq,
                f"Put in: {page.name}, without a hash, by something else than a node.",
            )  # fmt: skip
        self._read_notes(page)
        verdict.pages += 1
        verdict.entries += page.entries
        verdict.head = ChainHead(page.last_seq, page.hash or before.hash)
        self.meet(verdict.head)

    def check_beginning(self) -> None:
        """Does what there is begin where it may, with what was there before?"""
        first = self._first
        if first is None:
            return
        start, verdict = self.start, self._verdict
        cut = CutNote(START, False) if start == 0 else self.cuts.get(start)
        if cut is None:
            verdict.find(
                "beginning", 1, start,
                f"Missing: {span(1, start)}. No note says that they were removed to keep the "
                "journal within its limits.",
            )  # fmt: skip
        elif first.hash is not None and not first.follows(cut.hash):
            verdict.find(
                "changed", first.first_seq, first.last_seq,
                f"Changed: {first.name}, or the note of what was removed before.",
            )  # fmt: skip

    def check_head(self) -> None:
        """Is the head that somebody kept still in the chain?"""
        wanted, verdict = self._wanted, self._verdict
        if wanted is None or self._met:
            return
        seq, end = wanted.seq, verdict.head.seq
        if seq > end:
            sentence = f"Missing: {span(end + 1, seq)}. The journal ends before that head."
        elif 0 < seq < verdict.first_seq:
            sentence = (
                f"Entry {seq} of that head is no longer kept, in no archive either: "
                "it cannot be compared."
            )
        elif seq:
            sentence = f"At entry {seq} the hash is another one: what is up to there was rewritten."
        else:
            sentence = (
                "No page has that hash: entries at the end are missing, or were rewritten, or the "
                "journal no longer keeps that far back."
            )
        verdict.find("head", min(seq, end) + 1 if seq > end else seq, max(seq, end), sentence)

    def meet(self, head: ChainHead) -> None:
        """A page ends here, in the file or in an archive."""
        wanted = self._wanted
        if wanted is not None and head.hash == wanted.hash and wanted.seq in (0, head.seq):
            self._met = True

    def _read_notes(self, page: ChainedPage) -> None:
        self.cuts.update(cuts_in(page.body))
        self._verdict.notes += sayings_in(page.body)


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
    if head.seq < 0 or len(head.hash) != len(START):
        raise InterlockError(
            errors.CONFIG,
            "That is no head of a journal. Give what `interlock audit head` printed: a number, a "
            "colon and 64 hexadecimal digits.",
        )
    return head
