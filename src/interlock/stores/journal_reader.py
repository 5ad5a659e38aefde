"""Reading a journal: from this process or another one, while a node writes in it.

Each question opens its own read-only connection and closes it again: that costs a fraction of a
millisecond, works from any thread, and follows the file when it was moved aside and begun anew.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Generator
from contextlib import closing
from fnmatch import translate
from pathlib import Path
from typing import NamedTuple

import msgspec

from interlock import errors
from interlock.errors import InterlockError
from interlock.stores.journal_file import Entry, cannot_open, open_for_reading

_decode = msgspec.json.Decoder(list[Entry]).decode


class Row(NamedTuple):
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


class JournalReader:
    """Asks the journal at `path`. Every method raises InterlockError when it cannot be read."""

    __slots__ = ("path",)

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def read(self, after_seq: int = 0, limit: int = 1000) -> list[Row]:
        """Entries after `after_seq`, oldest first, at most `limit`."""
        rows: list[Row] = []
        pages = self._pages("WHERE last_seq > ? ORDER BY last_seq", after_seq)
        with closing(pages):
            for first, page in pages:
                start = max(0, after_seq + 1 - first)
                rows.extend(
                    Row(first + place, *entry)
                    for place, entry in enumerate(page[start : start + limit - len(rows)], start)
                )
                if len(rows) >= limit:
                    break
        return rows

    def tail(self, count: int = 20) -> list[Row]:
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
    ) -> list[Row]:
        """The newest entries that match, newest first, at most `limit`.

        `name` is a glob over the canonical name, in which `*` crosses dots.
        """
        matches = re.compile(translate(name)).match
        rows: list[Row] = []
        pages = self._pages("WHERE newest_ns >= ? ORDER BY last_seq DESC", since_ns)
        with closing(pages):
            for first, page in pages:
                for place in range(len(page) - 1, -1, -1):
                    if len(rows) >= limit:
                        return rows
                    entry = page[place]
                    if (
                        entry[0] >= since_ns
                        and (caller is None or entry[1] == caller)
                        and (outcome is None or entry[7] == outcome)
                        and (name == "*" or matches(entry[4]))
                    ):
                        rows.append(Row(first + place, *entry))
        return rows

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
