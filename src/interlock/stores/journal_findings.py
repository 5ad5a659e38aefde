"""What a look at a journal is made of: its pages, the notes of cuts, and what is found. Pure."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

from interlock.stores.journal_chain import (
    ARCHIVED,
    BEGUN,
    CHAINED,
    CUT,
    FACE,
    START,
    Head,
    link,
    noted,
)

Kind = Literal["changed", "missing", "inserted", "beginning", "unreadable", "head", "archive"]
MOST_FINDINGS: Final = 20
"""More are only counted: one page that was put in changes every later one."""


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


class Cut(NamedTuple):
    """What the note of a cut says: the hash there, and whether what went is in an archive."""

    hash: bytes
    archived: bool


def cuts_in(body: bytes) -> dict[int, Cut]:
    """The cuts that are noted in a page, by the last entry that went."""
    found: dict[int, Cut] = {}
    for entry in _notes_in(body):
        head = noted(entry, CUT)
        if head is not None:
            found[head.seq] = Cut(head.hash, str(entry[9]).endswith(ARCHIVED))
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
