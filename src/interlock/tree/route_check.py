"""Did it come the right way? What a parent says of a call's way through the tree is held against
who this node is and what is called. Nobody else is asked for a way, or believed one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from interlock.core.call import Call
from interlock.errors import ROUTE_MISMATCH, InterlockError
from interlock.protocol.mcpax import EVENT_META_KEYS, PREFIX, ROUTE, Hop

_MOST_CHARACTERS: Final = 300
_log = logging.getLogger("interlock.tree")


class RouteCheck:
    """Checks the route of each call, and in full only where it is not the last one again."""

    def __init__(self, own_segment: Callable[[], str]) -> None:
        """`own_segment`: by what name the parent knows this node, or the root calls itself."""
        self._own_segment = own_segment
        self._hop: Hop | None = None
        self._name = self._own = ""

    def check(self, call: Call, hop: Hop) -> None:
        """As `check_way`."""
        meta, own_segment = call.meta, self._own_segment()
        if (
            hop is not self._hop
            or call.name != self._name
            or own_segment != self._own
            or (meta is not None and ROUTE in meta)
        ):
            check_way(call, hop, own_segment)
            if not _log.isEnabledFor(logging.DEBUG):
                # Who wants to read of ways wants to read of each.
                self._hop, self._name, self._own = hop, call.name, own_segment

    def describe_position(self, call: Call) -> str:
        """Where in the tree a call is now, for whoever wants to know where it ended."""
        hop = call.hop
        return self._own_segment() if hop is None else ".".join(hop.route[: hop.cursor + 1])


def check_way(call: Call, hop: Hop, own_segment: str) -> None:
    """The segment at the cursor is this node's, and those behind it are the name. Raises
    InterlockError. Nothing of the caller's own words about ways is left in the call."""
    route, cursor = hop.route, hop.cursor
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s, at %d of the route %s", call.name, cursor, list(route))
    rest = hop.remaining_name or ".".join(route[cursor + 1 :])
    if route[cursor] != own_segment or call.name != rest:
        here = own_segment or "not registered with anybody"
        raise InterlockError(
            ROUTE_MISMATCH,
            f"A call of {call.name[:_MOST_CHARACTERS]!r} came by "
            f"{'.'.join(route)[:_MOST_CHARACTERS]!r}, at {cursor}: this node is {here}.",
            {"route": list(route), "cursor": cursor},
        )
    if call.meta is not None and ROUTE in call.meta:
        call.meta = {
            key: raw
            for key, raw in call.meta.items()
            if not key.startswith(PREFIX) or key in EVENT_META_KEYS
        }
