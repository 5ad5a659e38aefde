"""Is the journal still what was written? Walks the chain from its beginning, and says where not.

Reads the file as it stands at one moment, also while a node writes in it; and the archives beside
it, through which the chain goes on.
"""

from __future__ import annotations

import gzip
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from interlock import errors
from interlock.errors import InterlockError
from interlock.stores.journal_chain import CHAINED, CUT, FACE, START, Head, link, noted
from interlock.stores.journal_file import open_for_reading
from interlock.stores.journal_retention import ArchivedPage, archive_folder

Kind = Literal["changed", "missing", "inserted", "beginning", "unreadable", "head", "archive"]
Progress = Callable[[int, int], None]
"""Told how many entries were looked at, of how many."""

MOST_FINDINGS: Final = 20
"""More are only counted: one page that was put in changes every later one."""
_TELL_PAGES: Final = 256
_PAGES: Final = (
    "SELECT last_seq, count, newest_ns, CAST(body AS BLOB), hash FROM page ORDER BY last_seq"
)


class Finding(NamedTuple):
    """Something that is not as it was written, and which entries that is about."""

    kind: Kind
    first_seq: int
    last_seq: int
    sentence: str


class Verdict:
    """What a look at the whole journal came to."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.more_findings = 0
        self.notes: list[str] = []
        """What is no fault, and good to know."""
        self.pages = 0
        self.entries = 0
        self.first_seq = 0
        self.archived = 0
        """How many entries are in archives."""
        self.head = Head(0, START)

    @property
    def whole(self) -> bool:
        return not self.findings

    def find(self, kind: Kind, first: int, last: int, sentence: str) -> None:
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(Finding(kind, first, last, sentence))
        else:
            self.more_findings += 1


class _Page(NamedTuple):
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
        return _range(self.first_seq, self.last_seq)

    def follows(self, before: bytes) -> bool:
        return self.hash == link(before, self.last_seq, self.entries, self.newest_ns, self.body)


def verify(path: Path, head: str = "", progress: Progress | None = None) -> Verdict:
    """Look at the whole journal. `head`: what `interlock audit head` said once, or its hash alone.

    Raises InterlockError when there is no journal, or when the head is not one.
    """
    wanted = _read_head(head)
    verdict = Verdict()
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
                walk.step(_Page(*row))
                if progress is not None and number % _TELL_PAGES == 0:
                    progress(verdict.entries, total)
        except sqlite3.Error as error:
            seq = verdict.head.seq + 1
            verdict.find("unreadable", seq, seq, f"From entry {seq} on it cannot be read: {error}.")
    for page in _archived(path, verdict):
        walk.step_in_archive(page)
    walk.check_beginning()
    walk.check_head()
    if progress is not None:
        progress(verdict.entries, verdict.entries)
    return verdict


def head_of(path: Path) -> Head:
    """The end of the chain, as the file has it. Raises InterlockError."""
    with closing(open_for_reading(path)) as connection:
        row = None
        if _has_chain(connection):
            row = connection.execute(
                "SELECT last_seq, hash FROM page ORDER BY last_seq DESC LIMIT 1"
            ).fetchone()
    if row is None or row[1] is None:
        raise InterlockError(errors.CONFIG, f"The journal {path} has no chained entry yet.")
    return Head(*row)


class _Walk:
    """Goes from page to page, and remembers what the next ones are held against."""

    def __init__(self, verdict: Verdict, wanted: Head | None) -> None:
        self._verdict = verdict
        self._wanted = wanted
        self._met = False
        self._first: _Page | None = None
        self._archived: _Page | None = None
        """The newest page in an archive."""
        self._cuts: dict[int, bytes] = {}

    def step(self, page: _Page) -> None:
        verdict = self._verdict
        before = verdict.head
        if self._first is None:
            self._first = page
            verdict.first_seq = page.first_seq
        elif page.first_seq > before.seq + 1:
            first, last = before.seq + 1, page.first_seq - 1
            verdict.find("missing", first, last, f"Missing: {_range(first, last)}.")
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
        verdict.head = Head(page.last_seq, page.hash or before.hash)
        self._meet(verdict.head)

    def step_in_archive(self, page: _Page) -> None:
        self._verdict.archived += page.entries
        self._archived = page
        self._meet(Head(page.last_seq, page.hash or b""))
        self._read_notes(page)

    def check_beginning(self) -> None:
        """Does what there is begin where it may, with what was there before?"""
        first = self._first
        if first is None:
            return
        start = first.first_seq - 1
        verdict = self._verdict
        before = START if start == 0 else self._cuts.get(start)
        if before is None:
            verdict.find(
                "beginning", 1, start,
                f"Missing: {_range(1, start)}. No note says that they were removed to keep the "
                "journal within its limits.",
            )  # fmt: skip
            return
        if first.hash is not None and not first.follows(before):
            verdict.find(
                "changed", first.first_seq, first.last_seq,
                f"Changed: {first.name}, or the note of what was removed before.",
            )  # fmt: skip
        if start == 0:
            return
        newest = self._archived
        if newest is None or newest.last_seq < start:
            kept = 0 if newest is None else newest.last_seq
            verdict.notes.append(
                f"Removed to keep the journal within its limits: {_range(kept + 1, start)}."
            )
        elif newest.last_seq == start and newest.hash != before:
            verdict.find(
                "archive", newest.first_seq, newest.last_seq,
                f"The archive with {newest.name} is not the one that belongs to this journal.",
            )  # fmt: skip

    def check_head(self) -> None:
        """Is the head that somebody kept still in the chain?"""
        wanted, verdict = self._wanted, self._verdict
        if wanted is None or self._met:
            return
        seq, end = wanted.seq, verdict.head.seq
        if seq > end:
            sentence = f"Missing: {_range(end + 1, seq)}. The journal ends before that head."
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

    def _meet(self, head: Head) -> None:
        wanted = self._wanted
        if wanted is not None and head.hash == wanted.hash and wanted.seq in (0, head.seq):
            self._met = True

    def _read_notes(self, page: _Page) -> None:
        if b'"%b","c' % FACE.encode() not in page.body:
            return
        try:
            entries = msgspec.json.decode(page.body, type=list[list[str | int]])
        except msgspec.MsgspecError:
            # Then it is not what was written either, and that is found by its hash.
            return
        for entry in entries:
            cut = noted(entry, CUT)
            if cut is not None:
                self._cuts[cut.seq] = cut.hash
            older = noted(entry, CHAINED)
            if older is not None:
                self._verdict.notes.append(
                    f"Written before there was a chain: {_range(1, older.seq)}. What was changed "
                    "in them before that cannot be found."
                )


def _archived(path: Path, verdict: Verdict) -> Iterator[_Page]:
    """The pages of all archives, in their order. What is wrong with them is found on the way."""
    before: _Page | None = None
    for file in sorted(archive_folder(path).glob("*.jsonl.gz")):
        try:
            for line in _lines(file):
                page, previous = _page_of(line)
                if before is not None and page.first_seq > before.last_seq + 1:
                    missing = _range(before.last_seq + 1, page.first_seq - 1)
                    verdict.notes.append(f"In no archive: {missing}.")
                elif before is not None and previous != before.hash:
                    verdict.find(
                        "archive", page.first_seq, page.last_seq,
                        f"Changed: {page.name} in {file.name}, or what stood before.",
                    )  # fmt: skip
                if not page.follows(previous):
                    verdict.find(
                        "archive", page.first_seq, page.last_seq,
                        f"Changed: {page.name} in {file.name}.",
                    )  # fmt: skip
                yield page
                before = page
        except (OSError, EOFError, zlib.error, ValueError) as error:
            seq = 1 if before is None else before.last_seq + 1
            sentence = f"The archive {file.name} cannot be read from entry {seq} on: {error}."
            verdict.find("archive", seq, seq, sentence)


def _lines(file: Path) -> Iterator[bytes]:
    with gzip.open(file, "rb") as opened:
        yield from opened


def _page_of(line: bytes) -> tuple[_Page, bytes]:
    """A line of an archive, and the hash before it. Raises ValueError."""
    one = msgspec.json.decode(line, type=ArchivedPage)
    page = _Page(
        one.last_seq, one.count, one.newest_ns, bytes(one.entries), bytes.fromhex(one.hash)
    )
    return page, bytes.fromhex(one.before)


def _has_chain(connection: sqlite3.Connection) -> bool:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version >= 2


def _read_head(text: str) -> Head | None:
    if not text:
        return None
    seq, _, hash_ = text.strip().rpartition(":")
    try:
        head = Head(int(seq or "0"), bytes.fromhex(hash_))
    except ValueError:
        head = Head(-1, b"")
    if head.seq < 0 or len(head.hash) != len(START):
        raise InterlockError(
            errors.CONFIG,
            "That is no head of a journal. Give what `interlock audit head` printed: a number, a "
            "colon and 64 hexadecimal digits.",
        )
    return head


def _range(first: int, last: int) -> str:
    return f"entry {first}" if first == last else f"entries {first} to {last}"
