"""One list as bytes: made once per era and name style, and page by page where that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final, Generic, TypeVar

from interlock.errors import INVALID_CURSOR, InterlockError
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import META_SERVER_INFO, METHODS, Era

LIST_TTL_MS: Final = 10_000
"""How long a stateless client may keep a list without asking. Changes are announced anyway."""

T = TypeVar("T")


class PageSettings:
    """How every list of a node is cut into pages."""

    __slots__ = ("_key", "_tail", "size")

    def __init__(self, *, size: int, server_info: bytes, key: bytes) -> None:
        self.size = size
        self._key = key
        self._tail = b'],"ttlMs":%d,"cacheScope":"private","_meta":{"%b":%b}}' % (
            LIST_TTL_MS, META_SERVER_INFO.encode(), server_info,
        )  # fmt: skip

    def around(self, member: str, lines: bytes, next_cursor: str | None, era: Era) -> bytes:
        """A result with these lines in it."""
        stateless = era is Era.STATELESS
        head = b'{"resultType":"complete","' if stateless else b'{"'
        tail = self._tail if stateless else b"]}"
        if next_cursor is not None:
            tail = b'],"nextCursor":%b%b' % (encode_value(next_cursor), tail[1:])
        return b'%b%b":[%b%b' % (head, member.encode(), lines, tail)

    def seal(self, verb: str, identity: str) -> str:
        """Keeps callers from making up positions, and from using one list's for another."""
        sealed = f"{verb} {identity}".encode("utf-8", "surrogatepass")
        return blake2b(sealed, key=self._key, digest_size=9).hexdigest()


class Pages(Generic[T]):
    """The pages of one list."""

    __slots__ = (
        "_entries",
        "_identity",
        "_line",
        "_made",
        "_member",
        "_paging",
        "_places",
        "_verb",
    )

    def __init__(
        self,
        verb: str,
        entries: Sequence[T],
        *,
        identity: Callable[[T], str],
        line: Callable[[T, Era, str], bytes],
        paging: PageSettings,
    ) -> None:
        """`identity` tells entries apart, also after a change; `line` is what clients see."""
        self._verb = verb
        self._member = METHODS[verb].lists
        self._entries = entries
        self._identity = identity
        self._line = line
        self._paging = paging
        self._made: dict[tuple[Era, str, int], bytes] = {}
        self._places: dict[str, int] | None = None

    def page(self, era: Era, style: str, cursor: str | None) -> bytes:
        """The result with the page that `cursor` leads to. Raises InterlockError."""
        start = 0 if cursor is None else self._position(cursor)
        page = self._made.get((era, style, start))
        if page is None:
            page = self._make(era, style, start)
            # Only pages that a walk from the beginning comes by: cursors from before a change may
            # lead to any place, and a page for each would fill the memory.
            if start == 0 or (self._paging.size and start % self._paging.size == 0):
                self._made[era, style, start] = page
        return page

    def _make(self, era: Era, style: str, start: int) -> bytes:
        size = self._paging.size
        end = start + size if size else len(self._entries)
        entries = self._entries[start:end]
        lines = b",".join(self._line(entry, era, style) for entry in entries)
        last = self._identity(entries[-1]) if end < len(self._entries) else None
        # A cursor names the last entry of the page before it, so it survives a change elsewhere.
        cursor = None if last is None else f"{self._paging.seal(self._verb, last)}.{last}"
        return self._paging.around(self._member, lines, cursor, era)

    def _position(self, cursor: str) -> int:
        seal, _, identity = cursor.partition(".")
        if not identity or seal != self._paging.seal(self._verb, identity):
            raise InterlockError(
                INVALID_CURSOR,
                "This cursor was not made by this node: list again without a cursor.",
            )
        if self._places is None:
            self._places = {self._identity(one): at for at, one in enumerate(self._entries)}
        place = self._places.get(identity)
        if place is None:
            raise InterlockError(
                INVALID_CURSOR,
                "The list has changed since this cursor was made: list again without a cursor.",
            )
        return place + 1
