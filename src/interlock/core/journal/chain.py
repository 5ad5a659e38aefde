"""The chain through the journal's pages: each has a hash over itself and the hash before it.

So nothing can be changed, taken out, put in or moved without every later hash being another one.
Whoever keeps the newest hash elsewhere (`interlock audit head`) can tell from it alone whether all
that came before is still what it was.

What retention removes leaves a note in the chain itself: an ordinary entry, which says up to where
entries went and what the hash was there. Who removes the beginning by hand has no such note.

This room hashes, and reads and writes the table of pages by a connection that it is given.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

import msgspec

START: Final = bytes(32)
"""The hash before the first page."""
FACE: Final = "journal"
"""The face in entries that the journal writes about itself. No caller has it."""
CUT: Final = "cut"
"""The verb of a note: entries up to the number in `name` were removed by retention."""
ARCHIVED: Final = "; they are in an archive"
"""How the sentence of such a note ends, when they went into one."""
CHAINED: Final = "chained"
"""The verb of a note: entries up to the number in `name` were there before the chain was."""
BEGUN: Final = "begun"
"""The verb of a note: the journal that was here before had entries up to the number in `name`."""

_NUMBERS: Final = Struct(">qqq")
_HEAD: Final = (
    "SELECT last_seq, count, newest_ns, CAST(body AS BLOB), hash FROM page "
    "ORDER BY last_seq DESC LIMIT 2"
)
_BATCH_PAGES: Final = 500


class ChainHead(NamedTuple):
    """The end of the chain: the number of the newest entry, and the hash there."""

    seq: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash.hex()}"


class ChainPage(Protocol):
    """A whole JSON array of entries, how many they are, and the newest's time."""

    @property
    def body(self) -> bytes: ...
    @property
    def entries(self) -> int: ...
    @property
    def newest_ns(self) -> int: ...


class BrokenChainError(Exception):
    """The newest page is not what was written."""


def link(before: bytes, last_seq: int, count: int, newest_ns: int, body: bytes) -> bytes:
    """The hash of a page that stands behind one with the hash `before`."""
    digest = sha256(before + _NUMBERS.pack(last_seq, count, newest_ns))
    digest.update(body)
    return digest.digest()


def read_head(connection: sqlite3.Connection) -> ChainHead:
    """The end of the chain, as the file has it. Raises BrokenChainError."""
    pages = connection.execute(_HEAD).fetchall()
    if not pages:
        return ChainHead(0, START)
    last_seq, count, newest_ns, body, hash_ = pages[0]
    before = pages[1][4] if len(pages) > 1 else START if last_seq == count else None
    whole = isinstance(hash_, bytes) and len(hash_) == len(START)
    # Behind a cut there may be one page alone. What stood before it is known to its note only.
    if whole and before is not None:
        whole = link(before, last_seq, count, newest_ns, body) == hash_
    if not whole:
        raise BrokenChainError(
            f"its newest page, with entries {last_seq - count + 1} to {last_seq}, is not what was "
            "written"
        )
    return ChainHead(last_seq, hash_)


def is_behind(connection: sqlite3.Connection, known: ChainHead, found: ChainHead) -> bool:
    """Whether a chain that ended at `known` is still there, now that it ends at `found`."""
    if found.seq < known.seq:
        return False
    row = connection.execute("SELECT hash FROM page WHERE last_seq = ?", (known.seq,)).fetchone()
    if row is not None:
        return bool(row[0] == known.hash)
    # Somebody else who writes here may have removed it for its age, and has noted that.
    start = connection.execute(
        "SELECT last_seq - count FROM page ORDER BY last_seq LIMIT 1"
    ).fetchone()
    return start is not None and start[0] > known.seq and cut_at(connection, start[0]) is not None


def begins_anew(connection: sqlite3.Connection) -> bool:
    """Whether the first entry says which journal was here before."""
    row = connection.execute("SELECT body FROM page WHERE last_seq = count LIMIT 1").fetchone()
    return row is not None and noted(msgspec.json.decode(row[0])[0], BEGUN) is not None


def cut_at(connection: sqlite3.Connection, seq: int) -> ChainHead | None:
    """What the note of a cut up to this entry says, where there is one."""
    with closing(
        connection.execute(
            "SELECT body FROM page WHERE instr(body, ?) ORDER BY last_seq DESC",
            (f'"{FACE}","{CUT}","{seq}"',),
        )
    ) as rows:
        for (body,) in rows:
            for entry in msgspec.json.decode(body):
                head = noted(entry, CUT)
                if head is not None and head.seq == seq:
                    return head
    return None


def append(
    connection: sqlite3.Connection, head: ChainHead, pages: Sequence[ChainPage]
) -> ChainHead | None:
    """Put pages behind `head`, all or none. None: the chain ends elsewhere by now.

    One statement is one transaction. Every statement more would take the interpreter lock from the
    event loop a few times more, and each time costs the loop more than the write. The cast makes
    text of the bytes where that lock is not held.
    """
    values: list[int | bytes] = []
    seq, hash_ = head
    for page in pages:
        seq += page.entries
        hash_ = link(hash_, seq, page.entries, page.newest_ns, page.body)
        values += (seq, page.entries, page.newest_ns, page.body, hash_)
    written = connection.execute(
        "INSERT INTO page (last_seq, count, newest_ns, body, hash) "
        "SELECT column1, column2, column3, CAST(column4 AS TEXT), column5 "
        f"FROM (VALUES {','.join(['(?,?,?,?,?)'] * len(pages))}) WHERE coalesce("
        "(SELECT hash FROM page ORDER BY last_seq DESC LIMIT 1), zeroblob(32)) = ?",
        (*values, head.hash),
    ).rowcount
    return ChainHead(seq, hash_) if written else None


class NotePage(NamedTuple):
    """A page with one entry, in which the journal says something of itself."""

    body: bytes
    newest_ns: int
    entries: int = 1


def note(verb: str, at: ChainHead, time_ns: int, sentence: str) -> NotePage:
    """An entry about all that is up to `at`."""
    detail = f"hash:{at.hash.hex()} {sentence}"
    entry = (time_ns, "", FACE, verb, str(at.seq), "", "", "ok", 0, detail)
    return NotePage(msgspec.json.encode([entry]), time_ns)


def noted(entry: Sequence[Any], verb: str) -> ChainHead | None:
    """What an entry notes, when it is a note of this kind."""
    if entry[2] != FACE or entry[3] != verb:
        return None
    try:
        hash_ = bytes.fromhex(entry[9].removeprefix("hash:").partition(" ")[0])
        return ChainHead(int(entry[4]), hash_)
    except ValueError:
        return None


def chain_old_pages(connection: sqlite3.Connection, time_ns: int) -> None:
    """Give a hash to pages that were written before there was a chain, and note how far it goes."""
    head = ChainHead(0, START)
    while True:
        rows = connection.execute(
            "SELECT last_seq, count, newest_ns, CAST(body AS BLOB) FROM page "
            "WHERE last_seq > ? ORDER BY last_seq LIMIT ?",
            (head.seq, _BATCH_PAGES),
        ).fetchall()
        if not rows:
            break
        hashes: list[tuple[bytes, int]] = []
        for row in rows:
            head = ChainHead(row[0], link(head.hash, *row))
            hashes.append((head.hash, head.seq))
        connection.executemany("UPDATE page SET hash = ? WHERE last_seq = ?", hashes)
    if head.seq:
        sentence = "these entries were written before the chain began"
        append(connection, head, [note(CHAINED, head, time_ns, sentence)])
