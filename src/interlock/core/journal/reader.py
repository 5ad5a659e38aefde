"""Reading of a journal, from this process or another one, while a node writes to it.

Each query opens a read-only connection and closes it: that costs a fraction of a millisecond, works
in any thread, and finds the new file when the old one was moved away.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing
from fnmatch import translate
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from interlock import errors
from interlock.core.journal.file import Entry, cannot_open, open_for_reading
from interlock.errors import InterlockError

DISPATCHING: Final = "dispatching"
"""The outcome in the entry of a call that is about to be sent."""

_decode = msgspec.json.Decoder(list[Entry]).decode


DIGESTS: Final = ("args_sha256", "args_raw_sha256")
"""Prefixes in a detail before a colon and a digest."""


class JournalRow(NamedTuple):
    """An entry as it was read: its number in the journal, then what was recorded."""

    seq: int
    time_ns: int
    caller: str
    face: str
    verb: str
    name: str
    upstream: str
    effect: str
    outcome: str
    duration_us: int
    detail: str

    @property
    def digests(self) -> dict[str, str]:
        """The digest of the call's arguments: `args_sha256` or `args_raw_sha256`."""
        for word in self.detail.split(" ", 3)[:3]:
            name, _, digest = word.partition(":")
            if name in DIGESTS:
                return {name: digest}
        return {}


class JournalQuery(NamedTuple):
    """A query for entries. None and empty values are no conditions."""

    name: str = "*"
    """A glob of the canonical name, in which `*` also matches dots."""
    caller: str | None = None
    outcome: str | None = None
    upstream: str | None = None
    effect: str | None = None
    since_ns: int = 0
    until_ns: int | None = None
    """The end of the time range, exclusive."""
    detail_word: str = ""
    """A word of the detail: `approval:…`, `call:…`."""

    @property
    def matches(self) -> Callable[[Entry], bool]:
        checks: list[Callable[[Entry], bool]] = []
        for index, value in enumerate((self.caller, self.upstream, self.effect, self.outcome)):
            if value is not None:
                checks.append(_has_value(_FIELD_INDEXES[index], value))
        if self.name != "*":
            matches_name = re.compile(translate(self.name)).match
            checks.append(lambda entry: matches_name(entry[4]) is not None)
        if self.detail_word:
            checks.append(lambda entry: self.detail_word in entry[9].split(" "))
        since, until = self.since_ns, self.until_ns
        checks.append(lambda entry: entry[0] >= since and (until is None or entry[0] < until))
        return lambda entry: all(check(entry) for check in checks)


_ALL_ENTRIES: Final = JournalQuery()
_FIELD_INDEXES: Final = (1, 5, 6, 7)
"""The indexes of caller, upstream, effect and outcome in an entry."""


def _has_value(index: int, value: str) -> Callable[[Entry], bool]:
    return lambda entry: entry[index] == value


class JournalReader:
    """Reads the journal at `path`. Every method raises InterlockError if that is not possible."""

    __slots__ = ("path",)

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def read(self, after_seq: int = 0, limit: int = 1000) -> list[JournalRow]:
        """Return at most `limit` entries after `after_seq`, oldest first."""
        rows: list[JournalRow] = []
        pages = self._pages("WHERE last_seq > ? ORDER BY last_seq", after_seq)
        with closing(pages):
            for first, page in pages:
                start = max(0, after_seq + 1 - first)
                rows.extend(
                    JournalRow(first + index, *entry)
                    for index, entry in enumerate(page[start : start + limit - len(rows)], start)
                )
                if len(rows) >= limit:
                    break
        return rows

    def tail(self, count: int = 20) -> list[JournalRow]:
        """Return the newest `count` entries, oldest first."""
        return self.search(limit=count)[::-1]

    def search(
        self,
        name: str = "*",
        *,
        caller: str | None = None,
        outcome: str | None = None,
        since_ns: int = 0,
        limit: int = 1000,
    ) -> list[JournalRow]:
        """Return the newest matching entries, newest first. See `JournalQuery`."""
        return self.newest(
            JournalQuery(name=name, caller=caller, outcome=outcome, since_ns=since_ns), limit
        )

    def newest(self, query: JournalQuery, limit: int = 1000) -> list[JournalRow]:
        """Return at most `limit` of the newest matching entries, newest first."""
        with closing(self._iterate(query, newest_first=True)) as rows:
            return list(islice(rows, limit))

    def iterate(self, query: JournalQuery = _ALL_ENTRIES) -> Generator[JournalRow, None, None]:
        """Yield all matching entries, oldest first, of the current journal."""
        return self._iterate(query, newest_first=False)

    def unfinished(self, query: JournalQuery = _ALL_ENTRIES, limit: int = 1000) -> list[JournalRow]:
        """Return calls that were about to be sent and have no known end, newest first.

        They are in progress, or a node stopped and their outcome is unknown.
        """
        ended_ids: set[str] = set()
        rows: list[JournalRow] = []
        matches = query.matches
        with closing(self._iterate(_ALL_ENTRIES, newest_first=True)) as matching:
            for row in matching:
                call_id, _, _ = row.detail.partition(" ")
                if not call_id.startswith("call:"):
                    continue
                if row.outcome == DISPATCHING and call_id not in ended_ids and matches(row[1:]):
                    rows.append(row)
                    if len(rows) >= limit:
                        break
                ended_ids.add(call_id)
        return rows

    def _iterate(
        self, query: JournalQuery, newest_first: bool
    ) -> Generator[JournalRow, None, None]:
        matches = query.matches
        order = "DESC" if newest_first else "ASC"
        pages = self._pages(f"WHERE newest_ns >= ? ORDER BY last_seq {order}", query.since_ns)
        with closing(pages):
            for first, page in pages:
                indexes = range(len(page))
                for index in reversed(indexes) if newest_first else indexes:
                    if matches(page[index]):
                        yield JournalRow(first + index, *page[index])

    def _pages(self, condition: str, value: int) -> Generator[tuple[int, list[Entry]], None, None]:
        """Yield pages with the number of their first entry. Closing the generator stops reading."""
        with closing(open_for_reading(self.path)) as connection:
            try:
                for last_seq, count, body in connection.execute(
                    f"SELECT last_seq, count, body FROM page {condition}", (value,)
                ):
                    yield last_seq - count + 1, _decode(body)
            except sqlite3.Error as error:
                raise cannot_open(self.path, error) from error
            except msgspec.MsgspecError as error:
                raise InterlockError(
                    errors.INTERNAL,
                    f"The journal {self.path} contains an invalid page ({error}). It was changed "
                    "by another program: move it aside and keep it.",
                    data={"path": str(self.path)},
                ) from error
