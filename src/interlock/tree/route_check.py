"""Route check of MCP-AX: the route in a call of the parent must match this node and the tool name.

Routes of other callers are ignored and removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from interlock.core.call import Call
from interlock.errors import ROUTE_MISMATCH, InterlockError
from interlock.protocol.mcpax import EVENT_META_KEYS, PREFIX, ROUTE, Hop

_MAX_NAME_LENGTH: Final = 300
_log = logging.getLogger("interlock.tree")


class RouteCheck:
    """Checks the route of each call. A route that equals the last one is not checked again."""

    def __init__(self, own_segment: Callable[[], str]) -> None:
        """Create the check.

        Args:
            own_segment: returns the segment of this node at its parent, or its root segment.
        """
        self._own_segment = own_segment
        self._last_hop: Hop | None = None
        self._last_name = self._last_segment = ""

    def check(self, call: Call, hop: Hop) -> None:
        """Check the route of a call. Raises InterlockError."""
        meta, own_segment = call.meta, self._own_segment()
        if (
            hop is not self._last_hop
            or call.name != self._last_name
            or own_segment != self._last_segment
            or (meta is not None and ROUTE in meta)
        ):
            check_route(call, hop, own_segment)
            if not _log.isEnabledFor(logging.DEBUG):
                # At debug level, the route of every call is logged.
                self._last_hop, self._last_name, self._last_segment = hop, call.name, own_segment

    def describe_position(self, call: Call) -> str:
        """Return the position of a call in the tree, for messages about where it ended."""
        hop = call.hop
        return self._own_segment() if hop is None else ".".join(hop.route[: hop.cursor + 1])


def check_route(call: Call, hop: Hop, own_segment: str) -> None:
    """Check that the segment at the cursor is this node, and that the rest is the tool name.

    Routing members that the caller itself sent are removed from the call. Raises InterlockError.
    """
    route, cursor = hop.route, hop.cursor
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("route: %s, at %d of %s", call.name, cursor, list(route))
    expected_name = hop.remaining_name or ".".join(route[cursor + 1 :])
    if route[cursor] != own_segment or call.name != expected_name:
        own_name = own_segment or "not registered"
        raise InterlockError(
            ROUTE_MISMATCH,
            f"The call of {call.name[:_MAX_NAME_LENGTH]!r} has the route "
            f"{'.'.join(route)[:_MAX_NAME_LENGTH]!r} with cursor {cursor}, but this node is "
            f"{own_name}.",
            {"route": list(route), "cursor": cursor},
        )
    if call.meta is not None and ROUTE in call.meta:
        call.meta = {
            key: raw
            for key, raw in call.meta.items()
            if not key.startswith(PREFIX) or key in EVENT_META_KEYS
        }
