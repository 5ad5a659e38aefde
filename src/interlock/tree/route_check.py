"""Did it come the right way? What a parent says of a call's way through the tree is held against
who this node is and what is called. Nobody else is asked for a way, or believed one."""

from __future__ import annotations

import logging
from math import inf
from typing import Final

from interlock.core.call import Call
from interlock.errors import ROUTE_MISMATCH, InterlockError
from interlock.protocol.mcpax import OF_EVENTS, PREFIX, ROUTE, Hop

HOP_SECONDS: Final = 0.25
"""So much longer waits each further hop, so that the innermost is the first to tell."""

_MOST_CHARACTERS: Final = 300
_log = logging.getLogger("interlock.tree")


class Ways:
    """Looks at the way of each call, and longer at one that is not the last one again."""

    __slots__ = ("_hop", "_name", "_own")

    def __init__(self) -> None:
        self._hop: Hop | None = None
        self._name = self._own = ""

    def check(self, call: Call, hop: Hop, own_segment: str) -> None:
        """As `check_way`."""
        meta = call.meta
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


def check_way(call: Call, hop: Hop, own_segment: str) -> None:
    """The segment at the cursor is this node's, and those behind it are the name. Raises
    InterlockError. Nothing of the caller's own words about ways is left in the call."""
    route, cursor = hop.route, hop.cursor
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s, at %d of the route %s", call.name, cursor, list(route))
    rest = hop.rest or ".".join(route[cursor + 1 :])
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
            if not key.startswith(PREFIX) or key in OF_EVENTS
        }


def place(call: Call, own_segment: str) -> str:
    """Where in the tree a call is now, for whoever wants to know where it ended."""
    hop = call.hop
    return own_segment if hop is None else ".".join(hop.route[: hop.cursor + 1])


def limit_of(call: Call, own: float | None, others: float) -> float:
    """How long a call may take: by its upstream's own limit, else by what the tool says of itself,
    else as long as any. Infinity: as long as it takes."""
    if own:
        return own
    route = call.route
    if route is None:
        return others
    if route.limit is not None:
        return route.limit or inf
    if route.way:
        # Nobody declared anything: the nodes below wait as long as this one, and begin later.
        return others + HOP_SECONDS * route.upstream_name.count(".")
    return others
