"""The merged namespace as callers see it: immutable, swapped whole when something changes.

Lists are bytes that are made once per (era, name style) and kept; a call finds its tool with one
dictionary look-up, whichever form of the name it used. What a name shows in a list is what it
reaches on a call: names in lists are given out first, each to one tool, and only what is left over
serves as another spelling.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from interlock.catalog import names
from interlock.catalog.offering import Offering, Tool
from interlock.errors import INVALID_CURSOR, InterlockError
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import META_SERVER_INFO, Era

LIST_TTL_MS: Final = 10_000
"""How long a stateless client may keep a list without asking. Changes are announced anyway."""


class Snapshot:
    """One state of the catalog."""

    __slots__ = (
        "_key", "_other_names", "_page_size", "_pages", "_server_info", "by_name", "number",
        "tools",
    )  # fmt: skip

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
        # Two upstreams with one segment are a mistake of the config. Nothing is shown twice.
        by_canonical: dict[str, Tool] = {}
        for offering in sorted(offerings, key=lambda one: (one.segment, one.upstream)):
            for tool in offering.tools:
                by_canonical.setdefault(tool.canonical, tool)
        self.tools: tuple[Tool, ...] = tuple(by_canonical.values())
        self._page_size = page_size
        self._server_info = server_info
        self._key = key
        self._pages: dict[tuple[Era, str, int], bytes] = {}
        self.by_name: dict[str, Tool] = {}
        self._other_names: dict[tuple[Tool, str], str] = {}
        self._give_names()

    def _give_names(self) -> None:
        by_name = self.by_name
        shown_as_themselves = []
        for tool in self.tools:
            if tool.transparent_name is None:
                by_name[tool.canonical] = tool
            else:
                shown_as_themselves.append(tool)
        for tool in shown_as_themselves:
            self._claim(tool, names.DOTTED)
        for tool in self.tools:
            self._claim(tool, names.SAFE)
        for tool in self.tools:
            by_name.setdefault(tool.canonical, tool)
            by_name.setdefault(tool.safe_name, tool)
        for tool in self.tools:
            prefix = tool.canonical.rpartition(".")[0]
            by_name.setdefault(f"{prefix}.{tool.upstream_name}", tool)

    def _claim(self, tool: Tool, style: str) -> None:
        """Give the tool its name in lists of this style: another one if that is taken."""
        first = name = tool.shown_as(style)
        attempt = 0
        while self.by_name.setdefault(name, tool) is not tool:
            attempt += 1
            name = names.hashed(first, f"{tool.canonical} {attempt}")
        if attempt:
            self._other_names[tool, style] = name

    def shown_as(self, tool: Tool, style: str) -> str:
        """The name of a tool in the lists of clients with this name style."""
        return self._other_names.get((tool, style)) or tool.shown_as(style)

    def resolve(self, name: str) -> Tool | None:
        """The tool that `name` means, in any of the forms that are accepted."""
        return self.by_name.get(name)

    def names(self) -> Iterable[str]:
        """Every name that a call may use."""
        return self.by_name.keys()

    def tools_page(self, era: Era, style: str, cursor: str | None = None) -> bytes:
        """The result of `tools/list`, ready to be sent."""
        start = 0 if cursor is None else self._position(cursor)
        page = self._pages.get((era, style, start))
        if page is None:
            page = self._render(era, style, start)
            # Only pages that a walk from the beginning comes by: cursors from before a change may
            # lead to any place, and a page for each would fill the memory.
            if start == 0 or (self._page_size and start % self._page_size == 0):
                self._pages[era, style, start] = page
        return page

    def _render(self, era: Era, style: str, start: int) -> bytes:
        end = start + self._page_size if self._page_size else len(self.tools)
        shown = self.tools[start:end]
        parts = [b'{"resultType":"complete","tools":[' if era is Era.STATELESS else b'{"tools":[']
        parts.append(
            b",".join(
                b'{"name":%b%b' % (encode_value(self.shown_as(tool, style)), tool.listed)
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
