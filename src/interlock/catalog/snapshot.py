"""The merged namespace as callers see it: immutable, swapped whole when something changes.

Lists are bytes that are made once per (era, name style) and kept; a call finds its tool with one
dictionary look-up, whichever form of the name it used.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from interlock.catalog.offering import Offering, Tool
from interlock.errors import INVALID_CURSOR, InterlockError
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import META_SERVER_INFO, Era

LIST_TTL_MS: Final = 10_000
"""How long a stateless client may keep a list without asking. Changes are announced anyway."""


class Snapshot:
    """One state of the catalog."""

    __slots__ = ("_by_name", "_key", "_page_size", "_pages", "_server_info", "number", "tools")

    def __init__(
        self,
        number: int,
        offerings: Iterable[Offering],
        *,
        page_size: int,
        server_info: bytes,
        key: bytes,
    ) -> None:
        self.number = number
        self.tools: tuple[Tool, ...] = tuple(
            tool
            for offering in sorted(offerings, key=lambda offering: offering.segment)
            for tool in offering.tools
        )
        self._page_size = page_size
        self._server_info = server_info
        self._key = key
        self._pages: dict[tuple[Era, str, int], bytes] = {}
        self._by_name: dict[str, Tool] = {}
        # Later entries never displace earlier ones: canonical names always lead where they say.
        for tool in self.tools:
            self._by_name[tool.canonical] = tool
        for tool in self.tools:
            if tool.transparent_name is not None:
                self._by_name.setdefault(tool.transparent_name, tool)
            self._by_name.setdefault(tool.safe_name, tool)
        for tool in self.tools:
            prefix = tool.canonical.rpartition(".")[0]
            self._by_name.setdefault(f"{prefix}.{tool.upstream_name}", tool)

    def resolve(self, name: str) -> Tool | None:
        """The tool that `name` means, in any of the forms that are accepted."""
        return self._by_name.get(name)

    def names(self) -> Iterable[str]:
        """Every name that a call may use."""
        return self._by_name.keys()

    def tools_page(self, era: Era, style: str, cursor: str | None = None) -> bytes:
        """The result of `tools/list`, ready to be sent."""
        start = 0 if cursor is None else self._position(cursor)
        page = self._pages.get((era, style, start))
        if page is None:
            page = self._pages[era, style, start] = self._render(era, style, start)
        return page

    def _render(self, era: Era, style: str, start: int) -> bytes:
        end = start + self._page_size if self._page_size else len(self.tools)
        shown = self.tools[start:end]
        parts = [b'{"resultType":"complete","tools":[' if era is Era.STATELESS else b'{"tools":[']
        parts.append(
            b",".join(
                b'{"name":%b%b' % (encode_value(tool.shown_as(style)), tool.listed)
                for tool in shown
            )
        )
        parts.append(b"]")
        if end < len(self.tools):
            parts.append(b',"nextCursor":%b' % encode_value(self._cursor(shown[-1])))
        if era is Era.STATELESS:
            parts.append(b',"ttlMs":%d,"cacheScope":"private"' % LIST_TTL_MS)
            parts.append(b',"_meta":{"%b":%b}' % (META_SERVER_INFO.encode(), self._server_info))
        parts.append(b"}")
        return b"".join(parts)

    # A cursor names the last tool of the page before it, so it survives a change of the catalog;
    # the seal keeps callers from making up positions.
    def _cursor(self, last: Tool) -> str:
        return f"{self._seal(last.canonical)}.{last.canonical}"

    def _seal(self, name: str) -> str:
        return blake2b(name.encode(), key=self._key, digest_size=9).hexdigest()

    def _position(self, cursor: str) -> int:
        seal, _, name = cursor.partition(".")
        if not name or seal != self._seal(name):
            raise InterlockError(
                INVALID_CURSOR,
                "This cursor was not made by this node: list again without a cursor.",
            )
        for index, tool in enumerate(self.tools):
            if tool.canonical == name:
                return index + 1
        raise InterlockError(
            INVALID_CURSOR,
            "The list has changed since this cursor was made: list again without a cursor.",
        )
