"""The hash chain of the journal's pages: each page has a hash of itself and of the previous hash.

So no page can be changed, removed, inserted or moved without changing every later hash. The newest
hash, kept elsewhere (`interlock audit head`), proves whether all earlier entries are unchanged.

Retention leaves a note in the chain: an ordinary entry with the number of the last removed entry
and the hash there. If the beginning is removed by other means, there is no such note.

This module computes hashes, and reads and writes the table of pages by a given connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

import msgspec

GENESIS_HASH: Final = bytes(32)
"""The hash before the first page."""
JOURNAL_FACE: Final = "journal"
"""`face` of entries that the journal writes about itself. No caller has it."""
CUT: Final = "cut"
"""`verb` of a note: retention removed the entries up to the number in `name`."""
ARCHIVED: Final = "; they are in an archive"
"""The end of such a note's sentence if the entries are in an archive."""
CHAINED: Final = "chained"
"""`verb` of a note: the entries up to the number in `name` are older than the chain."""
RESTARTED: Final = "begun"
"""`verb` of a note: the previous journal had entries up to the number in `name`."""

_NUMBERS: Final = Struct(">qqq")
_HEAD: Final = (
    "SELECT last_seq, count, newest_ns, CAST(body AS BLOB), hash FROM page "
    "ORDER BY last_seq DESC LIMIT 2"
)
_BATCH_PAGES: Final = 500


class ChainHead(NamedTuple):
    """The end of the chain: the number of the newest entry, and its hash."""

    seq: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash.hex()}"


class ChainPage(Protocol):
    """A complete JSON array of entries, their number, and the time of the newest."""

    @property
    def body(self) -> bytes: ...
    @property
    def entries(self) -> int: ...
    @property
    def newest_ns(self) -> int: ...


class BrokenChainError(Exception):
    """The newest page was changed."""


def hash_page(before: bytes, last_seq: int, count: int, newest_ns: int, body: bytes) -> bytes:
    """Return the hash of a page after one with the hash `before`."""
    digest = sha256(before + _NUMBERS.pack(last_seq, count, newest_ns))
    digest.update(body)
    return digest.digest()


def read_head(connection: sqlite3.Connection) -> ChainHead:
    """Return the end of the chain in the file. Raises BrokenChainError."""
    pages = connection.execute(_HEAD).fetchall()
    if not pages:
        return ChainHead(0, GENESIS_HASH)
    last_seq, count, newest_ns, body, hash_ = pages[0]
    before = pages[1][4] if len(pages) > 1 else GENESIS_HASH if last_seq == count else None
    is_valid = isinstance(hash_, bytes) and len(hash_) == len(GENESIS_HASH)
    # After a cut there may be a single page. Only its note has the hash before it.
    if is_valid and before is not None:
        is_valid = hash_page(before, last_seq, count, newest_ns, body) == hash_
    if not is_valid:
        raise BrokenChainError(
            f"its newest page, with entries {last_seq - count + 1} to {last_seq}, was changed"
        )
    return ChainHead(last_seq, hash_)


def contains_head(
    connection: sqlite3.Connection, previous_head: ChainHead, head: ChainHead
) -> bool:
    """Return whether the chain that ends at `head` contains `previous_head`."""
    if head.seq < previous_head.seq:
        return False
    row = connection.execute(
        "SELECT hash FROM page WHERE last_seq = ?", (previous_head.seq,)
    ).fetchone()
    if row is not None:
        return bool(row[0] == previous_head.hash)
    # Another process may have removed that page by retention, with a note.
    start = connection.execute(
        "SELECT last_seq - count FROM page ORDER BY last_seq LIMIT 1"
    ).fetchone()
    return (
        start is not None
        and start[0] > previous_head.seq
        and find_cut(connection, start[0]) is not None
    )


def is_restarted(connection: sqlite3.Connection) -> bool:
    """Return whether the first entry is a note about the previous journal."""
    row = connection.execute("SELECT body FROM page WHERE last_seq = count LIMIT 1").fetchone()
    return row is not None and read_note(msgspec.json.decode(row[0])[0], RESTARTED) is not None


def find_cut(connection: sqlite3.Connection, seq: int) -> ChainHead | None:
    """Return the note of a cut up to this entry, if there is one."""
    with closing(
        connection.execute(
            "SELECT body FROM page WHERE instr(body, ?) ORDER BY last_seq DESC",
            (f'"{JOURNAL_FACE}","{CUT}","{seq}"',),
        )
    ) as rows:
        for (body,) in rows:
            for entry in msgspec.json.decode(body):
                head = read_note(entry, CUT)
                if head is not None and head.seq == seq:
                    return head
    return None


def append_pages(
    connection: sqlite3.Connection, head: ChainHead, pages: Sequence[ChainPage]
) -> ChainHead | None:
    """Append pages after `head`, all or none. None: the chain has another end now.

    One statement is one transaction. Each further statement would take the interpreter lock from
    the event loop several times, which costs the loop more than the write. The cast converts the
    bytes to text without that lock.
    """
    values: list[int | bytes] = []
    seq, hash_ = head
    for page in pages:
        seq += page.entries
        hash_ = hash_page(hash_, seq, page.entries, page.newest_ns, page.body)
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
    """A page with one entry of the journal about itself."""

    body: bytes
    newest_ns: int
    entries: int = 1


def create_note(verb: str, at: ChainHead, time_ns: int, message: str) -> NotePage:
    """Create a note about all entries up to `at`."""
    detail = f"hash:{at.hash.hex()} {message}"
    entry = (time_ns, "", JOURNAL_FACE, verb, str(at.seq), "", "", "ok", 0, detail)
    return NotePage(msgspec.json.encode([entry]), time_ns)


def read_note(entry: Sequence[Any], verb: str) -> ChainHead | None:
    """Return the head in a note of this kind. None: the entry is no such note."""
    if entry[2] != JOURNAL_FACE or entry[3] != verb:
        return None
    try:
        hash_ = bytes.fromhex(entry[9].removeprefix("hash:").partition(" ")[0])
        return ChainHead(int(entry[4]), hash_)
    except ValueError:
        return None


def chain_old_pages(connection: sqlite3.Connection, time_ns: int) -> None:
    """Add hashes to pages from before the chain existed, and note how far they go."""
    head = ChainHead(0, GENESIS_HASH)
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
            head = ChainHead(row[0], hash_page(head.hash, *row))
            hashes.append((head.hash, head.seq))
        connection.executemany("UPDATE page SET hash = ? WHERE last_seq = ?", hashes)
    if head.seq:
        message = "these entries were written before the chain began"
        append_pages(connection, head, [create_note(CHAINED, head, time_ns, message)])
