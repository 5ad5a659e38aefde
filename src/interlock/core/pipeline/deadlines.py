"""Deadlines of calls. One timer checks all running calls.

A timer per call would cost more: calls are few and short compared with the events of the loop, so
all of them are checked many times a second.
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
"""Additional time per hop in a tree, so that the innermost node reports a timeout first."""

TICK_SECONDS: Final = 0.05
FULL_RATE_CALLS: Final = 10_000
"""With more running calls than this, they are checked half as often. Not less often: in a tree
each hop waits `HOP_SECONDS` longer than the next, so that the node next to the failure reports."""
PROGRESS_EXTENSION_FACTOR: Final = 10
"""Progress restarts the timeout, but a call never takes longer than this many timeouts."""
_MAX_TIMEOUT_MS: Final = 10**15
"""An integer in JSON can be too large for arithmetic."""

_log = logging.getLogger("interlock.pipeline")


def set_deadline(call: Call, now: float, limit: float) -> None:
    """Set the deadline of a call: the limit of the node, or a shorter timeout of the caller."""
    if call.meta is not None and META_TIMEOUT in call.meta:
        timeout = _read_caller_timeout(call)
        if timeout <= limit:
            # Progress does not extend a timeout of the caller.
            call.timeout = timeout
            call.has_caller_timeout = True
            call.deadline = call.hard_deadline = now + timeout
            return
    call.timeout = limit
    call.deadline = now + limit
    call.hard_deadline = now + limit * PROGRESS_EXTENSION_FACTOR


def _read_caller_timeout(call: Call) -> float:
    assert call.meta is not None
    try:
        timeout_ms = decode_value(call.meta[META_TIMEOUT])
    except ProtocolError:
        timeout_ms = None
    if (
        not isinstance(timeout_ms, int | float)
        or isinstance(timeout_ms, bool)
        or not timeout_ms > 0
    ):
        raise InterlockError(
            INVALID_PARAMS, f"`_meta` {META_TIMEOUT} must be a number of milliseconds above 0."
        )
    return min(timeout_ms, _MAX_TIMEOUT_MS) / 1000


class DeadlineWatch:
    """Expires calls whose deadline has passed, while any call is running."""

    def __init__(
        self,
        running_calls: Callable[[], Iterable[Call]],
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        self._running_calls = running_calls
        self._clock = clock
        self._call_later = call_later
        self.ticking = False

    def start(self) -> None:
        """Check the running calls regularly, until there are none."""
        if not self.ticking:
            self.ticking = True
            self._call_later(TICK_SECONDS, self.tick)

    def tick(self) -> None:
        now = self._clock()
        calls = list(self._running_calls())
        for call in calls:
            if call.deadline and now >= call.deadline and call.upstream_request is not None:
                try:
                    call.upstream_request.expire()
                except Exception:
                    # The other calls must still be ended, now and later.
                    _log.exception("deadlines: cannot end a call")
        if calls:
            self._call_later(
                TICK_SECONDS if len(calls) < FULL_RATE_CALLS else TICK_SECONDS * 2, self.tick
            )
        else:
            self.ticking = False


def timeout_of(call: Call, upstream_timeout: float | None, default_timeout: float) -> float:
    """Return the timeout of a call: of its upstream, else as the tool declares, else the default.
    Infinity: no limit."""
    if upstream_timeout:
        return upstream_timeout
    route = call.route
    if route is None:
        return default_timeout
    if route.declared_timeout is not None:
        return route.declared_timeout or inf
    if route.route_members:
        # Nothing is declared: the child nodes have the same timeout, and start it later.
        return default_timeout + HOP_SECONDS * route.upstream_name.count(".")
    return default_timeout
