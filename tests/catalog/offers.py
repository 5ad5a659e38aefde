"""Upstreams' offers for tests: definitions as they come, and what a client then sees of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from interlock.catalog.offering import Offering, read_offering
from interlock.catalog.snapshot import Snapshot
from interlock.config import ServerConfig
from interlock.protocol.mcp import Era

INFO = {"name": "interlock", "version": "1"}
KEY = b"k" * 32


def definition(name: Any, **members: Any) -> bytes:
    """A tool as an upstream lists it."""
    return json.dumps({"name": name, "inputSchema": {"type": "object"}, **members}).encode()


def server(**settings: Any) -> ServerConfig:
    return ServerConfig(command="some-server", **settings)


def offer(
    key: str,
    tools: Iterable[str | bytes],
    *,
    root: str | None = None,
    http: bool = False,
    **settings: Any,
) -> Offering:
    """What the upstream `key` offers: each tool by its name only, or as raw bytes."""
    raw = [definition(tool) if isinstance(tool, str) else tool for tool in tools]
    settings.setdefault("segment", key)
    return read_offering(key, server(**settings), raw, root_segment=root, http=http)


def merged(*offerings: Offering, page_size: int = 0) -> Snapshot:
    return Snapshot(
        1, offerings, page_size=page_size, server_info=json.dumps(INFO).encode(), key=KEY
    )


def pages(
    snapshot: Snapshot, style: str = "dotted", era: Era = Era.SESSION
) -> list[dict[str, Any]]:
    """Every page, as a client walks them."""
    found = [json.loads(snapshot.tools_page(era, style))]
    while "nextCursor" in found[-1]:
        assert len(found) <= len(snapshot.tools), "the walk does not end"
        found.append(json.loads(snapshot.tools_page(era, style, found[-1]["nextCursor"])))
    return found


def shown(
    snapshot: Snapshot, style: str = "dotted", era: Era = Era.SESSION
) -> list[dict[str, Any]]:
    """Every tool that a client sees, in order."""
    return [tool for page in pages(snapshot, style, era) for tool in page["tools"]]


def names_shown(snapshot: Snapshot, style: str = "dotted") -> list[str]:
    return [tool["name"] for tool in shown(snapshot, style)]


def reached(snapshot: Snapshot, name: str) -> tuple[str, str] | None:
    """Whom a call with this name reaches: the upstream, and the tool as that upstream calls it."""
    tool = snapshot.resolve(name)
    return None if tool is None else (tool.upstream, tool.upstream_name)
