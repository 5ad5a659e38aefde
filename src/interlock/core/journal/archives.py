"""Verification of the archives beside a journal against the journal.

Each archive continues the previous one, and the last one ends where the file begins: the note of
that cut in the file has its hash. If an archive is missing, earlier ones are checked against the
notes of their own cuts, which are in later pages. An archive is not trusted before that check.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from interlock.core.journal.chain import (
    ARCHIVED,
    CHAINED,
    CUT,
    GENESIS_HASH,
    JOURNAL_FACE,
    RESTARTED,
    ChainHead,
    hash_page,
    read_note,
)
from interlock.core.journal.file import open_for_reading
from interlock.core.journal.retention import ArchivedPage, archive_folder

# -- Findings, pages and cut notes of a verification. Pure.

Kind = Literal["changed", "missing", "inserted", "beginning", "unreadable", "head", "archive"]
MAX_FINDINGS: Final = 20
"""Further findings are only counted: one inserted page changes every later one."""


class JournalFinding(NamedTuple):
    """Entries that are not as they were written, and how."""

    kind: Kind
    first_seq: int
    last_seq: int
    sentence: str


class VerificationReport:
    """The result of a verification."""

    def __init__(self) -> None:
        self.findings: list[JournalFinding] = []
        self.more_findings = 0
        self.notes: list[str] = []
        """Remarks that are no findings."""
        self.pages = 0
        self.entries = 0
        self.first_seq = 0
        self.archived = 0
        """The number of entries in archives."""
        self.head = ChainHead(0, GENESIS_HASH)

    @property
    def is_intact(self) -> bool:
        return not self.findings

    def add_finding(self, kind: Kind, first: int, last: int, message: str) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(JournalFinding(kind, first, last, message))
        else:
            self.more_findings += 1


class ChainedPage(NamedTuple):
    """A page in the file or in an archive."""

    last_seq: int
    entries: int
    newest_ns: int
    body: bytes
    hash: bytes | None

    @property
    def first_seq(self) -> int:
        return self.last_seq - self.entries + 1

    @property
    def name(self) -> str:
        return span(self.first_seq, self.last_seq)

    def follows(self, before: bytes) -> bool:
        return self.hash == hash_page(
            before, self.last_seq, self.entries, self.newest_ns, self.body
        )


class CutNote(NamedTuple):
    """The note of a cut: the hash there, and whether the removed entries are in an archive."""

    hash: bytes
    archived: bool


def find_cuts(body: bytes) -> dict[int, CutNote]:
    """Return the cuts that a page notes, by the last removed entry."""
    cuts: dict[int, CutNote] = {}
    for entry in _decode_notes(body):
        head = read_note(entry, CUT)
        if head is not None:
            cuts[head.seq] = CutNote(head.hash, str(entry[9]).endswith(ARCHIVED))
    return cuts


def find_notices(body: bytes) -> list[str]:
    """Return other remarks of the journal about itself in a page."""
    notices = []
    for entry in _decode_notes(body):
        note = read_note(entry, CHAINED)
        if note is not None:
            notices.append(
                f"Older than the hash chain: {span(1, note.seq)}. Changes to them from before "
                "cannot be detected."
            )
        previous = read_note(entry, RESTARTED)
        if previous is not None:
            notices.append(
                "A node started this journal while it ran, because the previous one was moved "
                f"away. That one had entries up to {previous.seq}, and its head was {previous}."
            )
    return notices


def _decode_notes(body: bytes) -> list[list[str | int]]:
    if b'"%b","' % JOURNAL_FACE.encode() not in body:
        return []
    try:
        return msgspec.json.decode(body, type=list[list[str | int]])
    except msgspec.MsgspecError:
        # An invalid page is found by its hash.
        return []


def span(first: int, last: int) -> str:
    return f"entry {first}" if first == last else f"entries {first} to {last}"


class _ArchivedPageInfo(NamedTuple):
    """A page in an archive, without its content."""

    first_seq: int
    last_seq: int
    before: bytes
    hash: bytes
    cuts: dict[int, CutNote]

    @property
    def name(self) -> str:
        return span(self.first_seq, self.last_seq)


class Archives:
    """All archives of a journal."""

    def __init__(
        self, path: Path, report: VerificationReport, on_head: Callable[[ChainHead], None]
    ) -> None:
        """
        Args:
            on_head: called with the end of every page.
        """
        self._path = path
        self._report = report
        self._on_head = on_head

    def check(
        self, start: int, cuts: dict[int, CutNote], get_live_hash: Callable[[int], bytes | None]
    ) -> None:
        """Find problems of the archives.

        Args:
            start: the last entry that is no longer in the file.
            cuts: the notes in the file.
            get_live_hash: returns the hash of the page in the file that ends at an entry.
        """
        cuts_by_seq = dict(cuts)
        newer: _ArchivedPageInfo | None = None
        for page_run in reversed(list(self._runs())):
            self._check_overlap(page_run, start, get_live_hash)
            archived_pages = [page for page in page_run if page.last_seq <= start]
            if not archived_pages:
                continue
            self._report.archived += sum(
                page.last_seq - page.first_seq + 1 for page in archived_pages
            )
            for page in archived_pages:
                self._on_head(ChainHead(page.last_seq, page.hash))
            last = archived_pages[-1]
            self._check_gap(last, newer, start, cuts_by_seq)
            if self._matches_journal(last, newer, cuts_by_seq):
                for page in archived_pages:
                    cuts_by_seq.update(page.cuts)
            self._check_start(archived_pages[0], cuts_by_seq)
            newer = archived_pages[0]
        if newer is None and start:
            suffix = ""
            if start in cuts_by_seq and cuts_by_seq[start].archived:
                suffix = " They were archived, but the archives are not beside the journal."
            self._report.notes.append(
                f"Removed to keep the journal within its limits: {span(1, start)}.{suffix}"
            )

    def _check_gap(
        self,
        last: _ArchivedPageInfo,
        newer: _ArchivedPageInfo | None,
        start: int,
        cuts_by_seq: dict[int, CutNote],
    ) -> None:
        """Check that an archive continues until the next archive or the file."""
        end = start if newer is None else newer.first_seq - 1
        if last.last_seq >= end:
            return
        missing = span(last.last_seq + 1, end)
        cut = cuts_by_seq.get(end)
        if newer is None and (cut is None or not cut.archived):
            # Archives were disabled by then.
            self._report.notes.append(f"Removed to keep the journal within its limits: {missing}.")
            return
        self._report.add_finding(
            "archive", last.last_seq + 1, end,
            f"In no archive: {missing}. A file is missing, or was never written.",
        )  # fmt: skip

    def _matches_journal(
        self,
        last: _ArchivedPageInfo,
        newer: _ArchivedPageInfo | None,
        cuts_by_seq: dict[int, CutNote],
    ) -> bool:
        """Return whether archives up to this page belong to the journal."""
        cut = cuts_by_seq.get(last.last_seq)
        if cut is None:
            message = (
                f"Archives up to entry {last.last_seq} cannot be checked: the note of that cut is "
                "no longer kept."
            )
            if newer is None:
                self._report.notes.append(message)
            else:
                self._report.add_finding("archive", last.first_seq, last.last_seq, message)
            return False
        if cut.hash != last.hash:
            self._report.add_finding(
                "archive", last.first_seq, last.last_seq,
                f"The archive with {last.name} does not belong to this journal, or an archive "
                "was changed.",
            )  # fmt: skip
            return False
        return True

    def _check_start(self, first: _ArchivedPageInfo, cuts_by_seq: dict[int, CutNote]) -> None:
        """Check that a run of archives starts with the correct hash."""
        start = first.first_seq - 1
        cut = CutNote(GENESIS_HASH, True) if start == 0 else cuts_by_seq.get(start)
        if cut is not None and cut.hash != first.before:
            self._report.add_finding(
                "archive", first.first_seq, first.last_seq,
                f"Changed: {first.name} in an archive, or earlier entries.",
            )  # fmt: skip

    def _check_overlap(
        self,
        page_run: list[_ArchivedPageInfo],
        start: int,
        get_live_hash: Callable[[int], bytes | None],
    ) -> None:
        """Check pages that are in an archive and still in the file."""
        for page in page_run:
            if page.last_seq <= start or get_live_hash(page.last_seq) == page.hash:
                continue
            if page.first_seq > self._report.head.seq and self._was_written_since(page):
                continue
            self._report.add_finding(
                "archive", page.first_seq, page.last_seq,
                f"Inserted: {page.name} in an archive. They were never archived, or belong to "
                "another journal.",
            )  # fmt: skip

    def _was_written_since(self, page: _ArchivedPageInfo) -> bool:
        """Return whether the journal, which a node may be writing, has reached this page since."""
        with closing(open_for_reading(self._path)) as connection:
            newest = connection.execute("SELECT max(last_seq) FROM page").fetchone()[0]
        return newest is not None and newest >= page.last_seq

    def _runs(self) -> Iterator[list[_ArchivedPageInfo]]:
        """Yield the pages of all archives in their order, grouped without gaps."""
        page_run: list[_ArchivedPageInfo] = []
        for page in self._pages():
            if page_run and page.first_seq > page_run[-1].last_seq + 1:
                yield page_run
                page_run = []
            page_run.append(page)
        if page_run:
            yield page_run

    def _pages(self) -> Iterator[_ArchivedPageInfo]:
        """Yield the pages of all archives, and report their own problems."""
        report = self._report
        before: _ArchivedPageInfo | None = None
        for file in sorted(archive_folder(self._path).glob("*.jsonl.gz")):
            try:
                for line in _read_lines(file):
                    page, previous = _decode_page(line)
                    follows = before is not None and page.first_seq <= before.last_seq + 1
                    if not page.follows(previous):
                        report.add_finding(
                            "archive", page.first_seq, page.last_seq,
                            f"Changed: {page.name} in {file.name}.",
                        )  # fmt: skip
                    elif before is not None and follows and previous != before.hash:
                        report.add_finding(
                            "archive", page.first_seq, page.last_seq,
                            f"Changed: {page.name} in {file.name}, or earlier entries.",
                        )  # fmt: skip
                    report.notes += find_notices(page.body)
                    before = _ArchivedPageInfo(
                        page.first_seq,
                        page.last_seq,
                        previous,
                        page.hash or b"",
                        find_cuts(page.body),
                    )
                    yield before
            except FileNotFoundError:
                # A running node has just replaced the file.
                continue
            except (OSError, EOFError, zlib.error, ValueError) as error:
                seq = 1 if before is None else before.last_seq + 1
                message = f"The archive {file.name} cannot be read from entry {seq} on: {error}."
                report.add_finding("archive", seq, seq, message)


def _read_lines(file: Path) -> Iterator[bytes]:
    with gzip.open(file, "rb") as archive_file:
        yield from archive_file


def _decode_page(line: bytes) -> tuple[ChainedPage, bytes]:
    """Return the page in a line of an archive, and the hash before it. Raises ValueError."""
    archived = msgspec.json.decode(line, type=ArchivedPage)
    page = ChainedPage(
        archived.last_seq,
        archived.count,
        archived.newest_ns,
        bytes(archived.entries),
        bytes.fromhex(archived.hash),
    )
    return page, bytes.fromhex(archived.before)
