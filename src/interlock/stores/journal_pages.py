"""Entries as JSON: a chunk of them becomes a fragment, fragments become the pages of the file.

A fragment is the inside of a JSON array, so that pages are made by joining bytes: encoding is paid
where the entries were made, and what goes to the writer thread is a few immutable byte strings.

Nothing that was recorded stops a chunk: what cannot be stored as it is, is mended. This room is
pure: it touches no file, thread or clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from interlock.stores.journal_file import ENTRY_WIDTH, Entry

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
