"""Reading a journal: from this process or another one, while a node writes in it.

Each question opens its own read-only connection and closes it again: that costs a fraction of a
millisecond, works from any thread, and follows the file when it was moved aside and begun anew.
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
"""The outcome in the entry of a call that is about to leave."""

_decode = msgspec.json.Decoder(list[Entry]).decode


DIGESTS: Final = ("args_sha256", "args_raw_sha256")
"""Words at the beginning of a detail that are followed by a colon and a digest."""


class JournalRow(NamedTuple):
    """One entry as it was read: its number in the journal, then what was recorded."""

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
        """What the entry says of the call's arguments: `args_sha256` or `args_raw_sha256`."""
        for word in self.detail.split(" ", 3)[:3]:
            name, _, digest = word.partition(":")
            if name in DIGESTS:
                return {name: digest}
        return {}


class JournalQuery(NamedTuple):
    """Which entries are asked for. What is None or empty is no condition."""

    name: str = "*"
    """A glob over the canonical name, in which `*` crosses dots."""
    caller: str | None = None
    outcome: str | None = None
    upstream: str | None = None
    effect: str | None = None
    since_ns: int = 0
    until_ns: int | None = None
    """The first moment that is no longer asked for."""
    word: str = ""
    """Stands in the detail, between blanks: `approval:…`, `call:…`."""

    @property
    def matches(self) -> Callable[[Entry], bool]:
        checks: list[Callable[[Entry], bool]] = []
        for place, wanted in enumerate((self.caller, self.upstream, self.effect, self.outcome)):
            if wanted is not None:
                checks.append(_is(_PLACES[place], wanted))
        if self.name != "*":
            fits = re.compile(translate(self.name)).match
            checks.append(lambda entry: fits(entry[4]) is not None)
        if self.word:
            checks.append(lambda entry: self.word in entry[9].split(" "))
        since, until = self.since_ns, self.until_ns
        checks.append(lambda entry: entry[0] >= since and (until is None or entry[0] < until))
        return lambda entry: all(check(entry) for check in checks)


_ANY: Final = JournalQuery()
_PLACES: Final = (1, 5, 6, 7)
"""Where a caller, an upstream, an effect and an outcome stand in an entry."""


def _is(place: int, wanted: str) -> Callable[[Entry], bool]:
    return lambda entry: entry[place] == wanted


class JournalReader:
    """Asks the journal at `path`. Every method raises InterlockError when it cannot be read."""

    __slots__ = ("path",)

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def read(self, after_seq: int = 0, limit: int = 1000) -> list[JournalRow]:
        """Entries after `after_seq`, oldest first, at most `limit`."""
        rows: list[JournalRow] = []
        pages = self._pages("WHERE last_seq > ? ORDER BY last_seq", after_seq)
        with closing(pages):
            for first, page in pages:
                start = max(0, after_seq + 1 - first)
                rows.extend(
                    JournalRow(first + place, *entry)
                    for place, entry in enumerate(page[start : start + limit - len(rows)], start)
                )
                if len(rows) >= limit:
                    break
        return rows

    def tail(self, count: int = 20) -> list[JournalRow]:
        """The newest `count` entries, oldest of them first."""
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
        """The newest entries that match, newest first, at most `limit`. See `Question`."""
        return self.newest(
            JournalQuery(name=name, caller=caller, outcome=outcome, since_ns=since_ns), limit
        )

    def newest(self, question: JournalQuery, limit: int = 1000) -> list[JournalRow]:
        """The newest entries that are asked for, newest first, at most `limit`."""
        with closing(self._found(question, newest_first=True)) as found:
            return list(islice(found, limit))

    def each(self, question: JournalQuery = _ANY) -> Generator[JournalRow, None, None]:
        """Every entry that is asked for, oldest first, as the journal is now."""
        return self._found(question, newest_first=False)

    def unfinished(self, question: JournalQuery = _ANY, limit: int = 1000) -> list[JournalRow]:
        """Calls that were about to leave and of which no end is known, newest first.

        They are under way now, or a node stopped meanwhile and nobody knows what became of them.
        """
        ended: set[str] = set()
        rows: list[JournalRow] = []
        matches = question.matches
        with closing(self._found(_ANY, newest_first=True)) as found:
            for row in found:
                mark, _, _ = row.detail.partition(" ")
                if not mark.startswith("call:"):
                    continue
                if row.outcome == DISPATCHING and mark not in ended and matches(row[1:]):
                    rows.append(row)
                    if len(rows) >= limit:
                        break
                ended.add(mark)
        return rows

    def _found(
        self, question: JournalQuery, newest_first: bool
    ) -> Generator[JournalRow, None, None]:
        matches = question.matches
        order = "DESC" if newest_first else "ASC"
        pages = self._pages(f"WHERE newest_ns >= ? ORDER BY last_seq {order}", question.since_ns)
        with closing(pages):
            for first, page in pages:
                places = range(len(page))
                for place in reversed(places) if newest_first else places:
                    if matches(page[place]):
                        yield JournalRow(first + place, *page[place])

    def _pages(self, condition: str, value: int) -> Generator[tuple[int, list[Entry]], None, None]:
        """Pages with the number of their first entry. Stops reading when it is closed."""
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
                    f"The journal {self.path} holds a page that is not entries ({error}). It was "
                    "changed by something else than a node: move it aside and keep it.",
                    data={"path": str(self.path)},
                ) from error
