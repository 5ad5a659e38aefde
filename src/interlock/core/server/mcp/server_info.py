"""How the node introduces itself: the answers to `initialize` and `server/discover`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from interlock.core.catalog.server_info import capabilities_for_session
from interlock.protocol import mcp
from interlock.protocol.aql_terms import OperationView
from interlock.protocol.jsonrpc import encode_value

DISCOVER_TTL_MS: Final = 60_000


class Introduction(msgspec.Struct, frozen=True):
    """Who the node is and what it offers, as of now."""

    server_info: dict[str, Any]
    capabilities: dict[str, Any]
    instructions: str | None = None


class ServerInfo:
    """Makes the introductions. `introduce` is asked each time: an upstream may have changed it."""

    def __init__(self, introduce: Callable[[], Introduction]) -> None:
        self._introduce = introduce
        self.server_info = b"{}"
        """Ready bytes: every stateless result carries them."""
        self.about_operations: Callable[[OperationView], str | None] = lambda _: None
        """The instructions of an AQL view, with the names of its endpoints. None: the view shows
        tools, as `auto` does while they are few."""
        self.refresh()

    def refresh(self) -> None:
        """Who the node is may have changed."""
        self.server_info = encode_value(self._introduce().server_info)

    @property
    def capabilities(self) -> dict[str, Any]:
        """What the node says that it can do."""
        return self._introduce().capabilities

    def initialize_result(self, revision: str, view: OperationView | None = None) -> bytes:
        about = self._introduce()
        result: dict[str, Any] = {
            "protocolVersion": revision,
            "capabilities": capabilities_for_session(about.capabilities),
            "serverInfo": about.server_info,
        }
        if instructions := self._instructions(about, view):
            result["instructions"] = instructions
        return encode_value(result)

    def discover_result(self, view: OperationView | None = None) -> bytes:
        about = self._introduce()
        result: dict[str, Any] = {
            "resultType": mcp.COMPLETE,
            "supportedVersions": list(mcp.REVISIONS),
            "capabilities": about.capabilities,
            "_meta": {mcp.META_SERVER_INFO: about.server_info},
            "ttlMs": DISCOVER_TTL_MS,
            "cacheScope": "private",
        }
        if instructions := self._instructions(about, view):
            result["instructions"] = instructions
        return encode_value(result)

    def _instructions(self, about: Introduction, view: OperationView | None) -> str | None:
        """In a view of AQL what all servers say together would cost more than its endpoints."""
        own = None if view is None or view.mode == "plain" else self.about_operations(view)
        return about.instructions if own is None else own
