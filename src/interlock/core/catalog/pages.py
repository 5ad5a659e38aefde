"""The encoding of a list: once per protocol generation and name style, in pages if configured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final, Generic, TypeVar

from interlock.errors import INVALID_CURSOR, InterlockError
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import META_SERVER_INFO, METHODS, Era

LIST_TTL_MS: Final = 10_000
"""The time for which a stateless client may cache a list (`ttlMs`). Changes are announced in any
case."""

T = TypeVar("T")


class PageSettings:
    """The page size and encoding of all lists of a node."""

    __slots__ = ("_key", "_tail", "size")

    def __init__(self, *, size: int, server_info: bytes, key: bytes) -> None:
        self.size = size
        self._key = key
        self._tail = b'],"ttlMs":%d,"cacheScope":"private","_meta":{"%b":%b}}' % (
            LIST_TTL_MS, META_SERVER_INFO.encode(), server_info,
        )  # fmt: skip

    def encode_result(self, member: str, lines: bytes, next_cursor: str | None, era: Era) -> bytes:
        """Return a result with these entries."""
        stateless = era is Era.STATELESS
        head = b'{"resultType":"complete","' if stateless else b'{"'
        tail = self._tail if stateless else b"]}"
        if next_cursor is not None:
            tail = b'],"nextCursor":%b%b' % (encode_value(next_cursor), tail[1:])
        return b'%b%b":[%b%b' % (head, member.encode(), lines, tail)

    def sign_position(self, method: str, identity: str) -> str:
        """Return a keyed hash, so that callers can neither invent cursors nor reuse those of other
        lists."""
        text = f"{method} {identity}".encode("utf-8", "surrogatepass")
        return blake2b(text, key=self._key, digest_size=9).hexdigest()


class Pages(Generic[T]):
    """The pages of one list."""

    __slots__ = (
        "_encode_line",
        "_entries",
        "_identity",
        "_member",
        "_method",
        "_pages",
        "_paging",
        "_positions",
    )

    def __init__(
        self,
        method: str,
        entries: Sequence[T],
        *,
        identity: Callable[[T], str],
        encode_line: Callable[[T, Era, str], bytes],
        paging: PageSettings,
    ) -> None:
        """
        Args:
            identity: returns a key of an entry that stays the same after changes.
            encode_line: returns what clients see of an entry.
        """
        self._method = method
        self._member = METHODS[method].lists
        self._entries = entries
        self._identity = identity
        self._encode_line = encode_line
        self._paging = paging
        self._pages: dict[tuple[Era, str, int], bytes] = {}
        self._positions: dict[str, int] | None = None

    def page(self, era: Era, style: str, cursor: str | None) -> bytes:
        """Return the page at `cursor`. Raises InterlockError."""
        start = 0 if cursor is None else self._position(cursor)
        page = self._pages.get((era, style, start))
        if page is None:
            page = self._encode_page(era, style, start)
            # Only regular pages are cached. Cursors from before a change may point anywhere, and a
            # page for each could fill the memory.
            if start == 0 or (self._paging.size and start % self._paging.size == 0):
                self._pages[era, style, start] = page
        return page

    def _encode_page(self, era: Era, style: str, start: int) -> bytes:
        size = self._paging.size
        end = start + size if size else len(self._entries)
        entries = self._entries[start:end]
        lines = b",".join(self._encode_line(entry, era, style) for entry in entries)
        last = self._identity(entries[-1]) if end < len(self._entries) else None
        # A cursor names the last entry of the previous page, so other changes do not affect it.
        cursor = (
            None if last is None else f"{self._paging.sign_position(self._method, last)}.{last}"
        )
        return self._paging.encode_result(self._member, lines, cursor, era)

    def _position(self, cursor: str) -> int:
        signature, _, identity = cursor.partition(".")
        if not identity or signature != self._paging.sign_position(self._method, identity):
            raise InterlockError(
                INVALID_CURSOR,
                "This cursor is not from this node. List again without a cursor.",
            )
        if self._positions is None:
            self._positions = {
                self._identity(entry): index for index, entry in enumerate(self._entries)
            }
        position = self._positions.get(identity)
        if position is None:
            raise InterlockError(
                INVALID_CURSOR,
                "The list has changed since this cursor was issued. List again without a cursor.",
            )
        return position + 1
