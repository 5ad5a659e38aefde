"""Are the archives beside a journal what was archived? They are held against the journal itself.

Each archive goes on where the one before it ended, and the last one ends where the file begins: the
note of that cut, in the file, has its hash. Where one is missing, those before it are held against
the notes of their own cuts, which are in what came later. Nothing that an archive says of itself is
believed before that. This room reads these files, and asks for what it must know of the journal.
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
    BEGUN,
    CHAINED,
    CUT,
    FACE,
    START,
    ChainHead,
    link,
    noted,
)
from interlock.core.journal.file import open_for_reading
from interlock.core.journal.retention import ArchivedPage, archive_folder

# -- What a look at a journal is made of: its pages, the notes of cuts, and what is found. Pure.

Kind = Literal["changed", "missing", "inserted", "beginning", "unreadable", "head", "archive"]
MOST_FINDINGS: Final = 20
"""More are only counted: one page that was put in changes every later one."""


class JournalFinding(NamedTuple):
    """Something that is not as it was written, and which entries that is about."""

    kind: Kind
    first_seq: int
    last_seq: int
    sentence: str


class VerificationReport:
    """What a look at the whole journal came to."""

    def __init__(self) -> None:
        self.findings: list[JournalFinding] = []
        self.more_findings = 0
        self.notes: list[str] = []
        """What is no fault, and good to know."""
        self.pages = 0
        self.entries = 0
        self.first_seq = 0
        self.archived = 0
        """How many entries are in archives."""
        self.head = ChainHead(0, START)

    @property
    def whole(self) -> bool:
        return not self.findings

    def find(self, kind: Kind, first: int, last: int, sentence: str) -> None:
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(JournalFinding(kind, first, last, sentence))
        else:
            self.more_findings += 1


class ChainedPage(NamedTuple):
    """A page, as it stands in the file or in an archive."""

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
        return self.hash == link(before, self.last_seq, self.entries, self.newest_ns, self.body)


class CutNote(NamedTuple):
    """What the note of a cut says: the hash there, and whether what went is in an archive."""

    hash: bytes
    archived: bool


def cuts_in(body: bytes) -> dict[int, CutNote]:
    """The cuts that are noted in a page, by the last entry that went."""
    found: dict[int, CutNote] = {}
    for entry in _notes_in(body):
        head = noted(entry, CUT)
        if head is not None:
            found[head.seq] = CutNote(head.hash, str(entry[9]).endswith(ARCHIVED))
    return found


def sayings_in(body: bytes) -> list[str]:
    """What else the journal says of itself in a page, for whoever looks at it."""
    said = []
    for entry in _notes_in(body):
        older = noted(entry, CHAINED)
        if older is not None:
            said.append(
                f"Written before there was a chain: {span(1, older.seq)}. What was changed in them "
                "before that cannot be found."
            )
        other = noted(entry, BEGUN)
        if other is not None:
            said.append(
                "Begun anew while a node ran: the journal before this one went up to entry "
                f"{other.seq}, and was no longer in its place. Its head was {other}."
            )
    return said


def _notes_in(body: bytes) -> list[list[str | int]]:
    if b'"%b","' % FACE.encode() not in body:
        return []
    try:
        return msgspec.json.decode(body, type=list[list[str | int]])
    except msgspec.MsgspecError:
        # Then it is not what was written either, and that is found by its hash.
        return []


def span(first: int, last: int) -> str:
    return f"entry {first}" if first == last else f"entries {first} to {last}"


class _Filed(NamedTuple):
    """A page in an archive, without what is in it."""

    first_seq: int
    last_seq: int
    before: bytes
    hash: bytes
    cuts: dict[int, CutNote]

    @property
    def name(self) -> str:
        return span(self.first_seq, self.last_seq)


class Archives:
    """All archives of one journal."""

    def __init__(
        self, path: Path, verdict: VerificationReport, meet: Callable[[ChainHead], None]
    ) -> None:
        """`meet` is told where every page ends."""
        self._path = path
        self._verdict = verdict
        self._meet = meet

    def check(
        self, start: int, cuts: dict[int, CutNote], live: Callable[[int], bytes | None]
    ) -> None:
        """Find what is wrong with them. `start`: the last entry that is not in the file any more;
        `cuts`: the notes in the file; `live`: the hash of the page in the file that ends at an
        entry."""
        known = dict(cuts)
        newer: _Filed | None = None
        for run in reversed(list(self._runs())):
            self._check_beyond(run, start, live)
            filed = [one for one in run if one.last_seq <= start]
            if not filed:
                continue
            self._verdict.archived += sum(one.last_seq - one.first_seq + 1 for one in filed)
            for one in filed:
                self._meet(ChainHead(one.last_seq, one.hash))
            last = filed[-1]
            self._check_gap(last, newer, start, known)
            if self._belongs(last, newer, known):
                for one in filed:
                    known.update(one.cuts)
            self._check_before(filed[0], known)
            newer = filed[0]
        if newer is None and start:
            where = ""
            if start in known and known[start].archived:
                where = " They were archived, and the archives are not beside it."
            self._verdict.notes.append(
                f"Removed to keep the journal within its limits: {span(1, start)}.{where}"
            )

    def _check_gap(
        self, last: _Filed, newer: _Filed | None, start: int, known: dict[int, CutNote]
    ) -> None:
        """Does it go on until where the next archive begins, or the file?"""
        end = start if newer is None else newer.first_seq - 1
        if last.last_seq >= end:
            return
        missing = span(last.last_seq + 1, end)
        cut = known.get(end)
        if newer is None and (cut is None or not cut.archived):
            # Archives were switched off by then.
            self._verdict.notes.append(f"Removed to keep the journal within its limits: {missing}.")
            return
        self._verdict.find(
            "archive", last.last_seq + 1, end,
            f"In no archive: {missing}. A file is missing, or none was written for them.",
        )  # fmt: skip

    def _belongs(self, last: _Filed, newer: _Filed | None, known: dict[int, CutNote]) -> bool:
        """Whether archives up to here are those that the journal knows of."""
        cut = known.get(last.last_seq)
        if cut is None:
            sentence = (
                f"Up to entry {last.last_seq} the archives cannot be held against the journal: the "
                "note of that cut is no longer kept."
            )
            if newer is None:
                self._verdict.notes.append(sentence)
            else:
                self._verdict.find("archive", last.first_seq, last.last_seq, sentence)
            return False
        if cut.hash != last.hash:
            self._verdict.find(
                "archive", last.first_seq, last.last_seq,
                f"The archive with {last.name} is not the one that belongs to this journal: it, "
                "or what stood before, was changed.",
            )  # fmt: skip
            return False
        return True

    def _check_before(self, first: _Filed, known: dict[int, CutNote]) -> None:
        """Does a row of archives begin with what was there before?"""
        start = first.first_seq - 1
        cut = CutNote(START, True) if start == 0 else known.get(start)
        if cut is not None and cut.hash != first.before:
            self._verdict.find(
                "archive", first.first_seq, first.last_seq,
                f"Changed: {first.name} in an archive, or what stood before.",
            )  # fmt: skip

    def _check_beyond(
        self, run: list[_Filed], start: int, live: Callable[[int], bytes | None]
    ) -> None:
        """What is in an archive and in the file too: a node stopped, or goes on, just then."""
        for one in run:
            if one.last_seq <= start or live(one.last_seq) == one.hash:
                continue
            if one.first_seq > self._verdict.head.seq and self._written_by_now(one):
                continue
            self._verdict.find(
                "archive", one.first_seq, one.last_seq,
                f"Put in: {one.name} in an archive. They were never archived, or belong to "
                "another journal.",
            )  # fmt: skip

    def _written_by_now(self, page: _Filed) -> bool:
        """Whether the journal, which a node may be writing, has come this far since."""
        with closing(open_for_reading(self._path)) as connection:
            newest = connection.execute("SELECT max(last_seq) FROM page").fetchone()[0]
        return newest is not None and newest >= page.last_seq

    def _runs(self) -> Iterator[list[_Filed]]:
        """The pages of all archives, in their order, those together that follow each other."""
        run: list[_Filed] = []
        for page in self._pages():
            if run and page.first_seq > run[-1].last_seq + 1:
                yield run
                run = []
            run.append(page)
        if run:
            yield run

    def _pages(self) -> Iterator[_Filed]:
        """The pages of all archives. What is wrong with one in itself is found on the way."""
        verdict = self._verdict
        before: _Filed | None = None
        for file in sorted(archive_folder(self._path).glob("*.jsonl.gz")):
            try:
                for line in _lines(file):
                    page, previous = _page_of(line)
                    follows = before is not None and page.first_seq <= before.last_seq + 1
                    if not page.follows(previous):
                        verdict.find(
                            "archive", page.first_seq, page.last_seq,
                            f"Changed: {page.name} in {file.name}.",
                        )  # fmt: skip
                    elif before is not None and follows and previous != before.hash:
                        verdict.find(
                            "archive", page.first_seq, page.last_seq,
                            f"Changed: {page.name} in {file.name}, or what stood before.",
                        )  # fmt: skip
                    verdict.notes += sayings_in(page.body)
                    before = _Filed(
                        page.first_seq,
                        page.last_seq,
                        previous,
                        page.hash or b"",
                        cuts_in(page.body),
                    )
                    yield before
            except FileNotFoundError:
                # A node that goes on has just written another in its place.
                continue
            except (OSError, EOFError, zlib.error, ValueError) as error:
                seq = 1 if before is None else before.last_seq + 1
                sentence = f"The archive {file.name} cannot be read from entry {seq} on: {error}."
                verdict.find("archive", seq, seq, sentence)


def _lines(file: Path) -> Iterator[bytes]:
    with gzip.open(file, "rb") as opened:
        yield from opened


def _page_of(line: bytes) -> tuple[ChainedPage, bytes]:
    """A line of an archive, and the hash before it. Raises ValueError."""
    one = msgspec.json.decode(line, type=ArchivedPage)
    page = ChainedPage(
        one.last_seq, one.count, one.newest_ns, bytes(one.entries), bytes.fromhex(one.hash)
    )
    return page, bytes.fromhex(one.before)
