"""The description of the node in the results of `initialize` and `server/discover`."""

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
    """The name, the capabilities and the instructions of the node at this time."""

    server_info: dict[str, Any]
    capabilities: dict[str, Any]
    instructions: str | None = None


class ServerInfo:
    """Writes the results that describe the node."""

    def __init__(self, introduce: Callable[[], Introduction]) -> None:
        """Create the server info.

        Args:
            introduce: returns the current introduction. It is called for every result, because
                upstreams change it.
        """
        self._introduce = introduce
        self.server_info = b"{}"
        """The encoded server info, which every stateless result contains."""
        self.about_operations: Callable[[OperationView], str | None] = lambda _: None
        """Returns the instructions of an AQL view, with the names of its endpoints. None: the view
        shows tools, as `auto` does for a small number of tools."""
        self.refresh()

    def refresh(self) -> None:
        """Encode the server info again after a change."""
        self.server_info = encode_value(self._introduce().server_info)

    @property
    def capabilities(self) -> dict[str, Any]:
        """The capabilities that the node declares."""
        return self._introduce().capabilities

    def initialize_result(self, revision: str, view: OperationView | None = None) -> bytes:
        introduction = self._introduce()
        result: dict[str, Any] = {
            "protocolVersion": revision,
            "capabilities": capabilities_for_session(introduction.capabilities),
            "serverInfo": introduction.server_info,
        }
        if instructions := self._instructions(introduction, view):
            result["instructions"] = instructions
        return encode_value(result)

    def discover_result(self, view: OperationView | None = None) -> bytes:
        introduction = self._introduce()
        result: dict[str, Any] = {
            "resultType": mcp.COMPLETE,
            "supportedVersions": list(mcp.REVISIONS),
            "capabilities": introduction.capabilities,
            "_meta": {mcp.META_SERVER_INFO: introduction.server_info},
            "ttlMs": DISCOVER_TTL_MS,
            "cacheScope": "private",
        }
        if instructions := self._instructions(introduction, view):
            result["instructions"] = instructions
        return encode_value(result)

    def _instructions(self, introduction: Introduction, view: OperationView | None) -> str | None:
        """Return the instructions for a view. An AQL view has its own: the instructions of all
        upstreams together would use more tokens than the endpoints of the view."""
        view_instructions = (
            None if view is None or view.mode == "plain" else self.about_operations(view)
        )
        return introduction.instructions if view_instructions is None else view_instructions
