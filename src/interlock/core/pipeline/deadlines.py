"""How long may it take? One clock walks over every call under way.

A timer per call would cost more than the check is worth. Calls are few and short compared with
the events that move them, so they are simply looked at, many times a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from math import inf
from typing import Any, Final

from interlock.core.call import Call
from interlock.core.ports import Clock
from interlock.errors import INVALID_PARAMS, InterlockError, ProtocolError
from interlock.protocol.jsonrpc import decode_value
from interlock.protocol.mcp import META_TIMEOUT

HOP_SECONDS: Final = 0.25
"""So much longer waits each further hop, so that the innermost is the first to tell."""

TICK_SECONDS: Final = 0.05
MAX_CHECKED_CALLS: Final = 10_000
"""With more calls than this under way they are looked at less often. Not by much: in a tree each
hop waits a quarter of a second longer than the next, so that the one next to the trouble tells."""
PROGRESS_EXTENSION_FACTOR: Final = 10
"""Progress starts the wait again, but a call never lasts longer than this many timeouts."""
_FAR_AWAY: Final = 10**15
"""In milliseconds. A whole number in JSON can be too large for any arithmetic."""

_log = logging.getLogger("interlock.pipeline")


def set_deadline(call: Call, now: float, limit: float) -> None:
    """Give the call its deadline: the node's limit, or the caller's own when that is shorter."""
    if call.meta is not None and META_TIMEOUT in call.meta:
        asked = _asked_for(call)
        if asked <= limit:
            # What the caller itself asks for is meant as it stands: progress does not extend it.
            call.timeout = asked
            call.has_caller_timeout = True
            call.deadline = call.hard_deadline = now + asked
            return
    call.timeout = limit
    call.deadline = now + limit
    call.hard_deadline = now + limit * PROGRESS_EXTENSION_FACTOR


def _asked_for(call: Call) -> float:
    assert call.meta is not None
    try:
        asked = decode_value(call.meta[META_TIMEOUT])
    except ProtocolError:
        asked = None
    if not isinstance(asked, int | float) or isinstance(asked, bool) or not asked > 0:
        raise InterlockError(
            INVALID_PARAMS, f"`_meta` {META_TIMEOUT} must be a number of milliseconds above 0."
        )
    return min(asked, _FAR_AWAY) / 1000


class DeadlineWatch:
    """Expires calls whose deadline has passed, for as long as any are under way."""

    def __init__(
        self,
        under_way: Callable[[], Iterable[Call]],
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        self._under_way = under_way
        self._clock = clock
        self._call_later = call_later
        self.ticking = False

    def start(self) -> None:
        """Calls are under way: look at them until there are none."""
        if not self.ticking:
            self.ticking = True
            self._call_later(TICK_SECONDS, self.tick)

    def tick(self) -> None:
        now = self._clock()
        calls = list(self._under_way())
        for call in calls:
            if call.deadline and now >= call.deadline and call.upstream_request is not None:
                try:
                    call.upstream_request.expire()
                except Exception:
                    # Whatever it is, the others must still be ended, now and later.
                    _log.exception("a call whose deadline has passed could not be ended")
        if calls:
            self._call_later(
                TICK_SECONDS if len(calls) < MAX_CHECKED_CALLS else TICK_SECONDS * 2, self.tick
            )
        else:
            self.ticking = False


def timeout_of(call: Call, own: float | None, others: float) -> float:
    """How long a call may take: by its upstream's own limit, else by what the tool says of itself,
    else as long as any. Infinity: as long as it takes."""
    if own:
        return own
    route = call.route
    if route is None:
        return others
    if route.declared_timeout is not None:
        return route.declared_timeout or inf
    if route.route_members:
        # Nobody declared anything: the nodes below wait as long as this one, and begin later.
        return others + HOP_SECONDS * route.upstream_name.count(".")
    return others
