"""How long may it take? One clock watches every call, in coarse slots.

A timer per call would cost more than the check is worth: exchanges are put into slots of a few
hundredths of a second, and one timer walks over the slots while there is anything to watch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from interlock.call import Call
from interlock.errors import INVALID_PARAMS, InterlockError, ProtocolError
from interlock.ports import Clock, Exchange
from interlock.protocol.jsonrpc import decode_value
from interlock.protocol.mcp import META_TIMEOUT

SLOT: Final = 0.025
PROGRESS_EXTENDS: Final = 10
"""Progress starts the wait again, but a call never lasts longer than this many timeouts."""

_log = logging.getLogger("interlock.pipeline")


def set_deadline(call: Call, now: float, limit: float) -> None:
    """Give the call its deadline: the node's limit, or the caller's own when that is shorter."""
    timeout = limit
    extends = PROGRESS_EXTENDS
    if call.meta is not None and META_TIMEOUT in call.meta:
        try:
            asked = decode_value(call.meta[META_TIMEOUT])
        except ProtocolError:
            asked = None
        if not isinstance(asked, int | float) or isinstance(asked, bool) or not asked > 0:
            raise InterlockError(
                INVALID_PARAMS, f"`_meta` {META_TIMEOUT} must be a number of milliseconds above 0."
            )
        if asked <= limit * 1000:
            # What the caller itself asks for is meant as it stands.
            timeout, extends = asked / 1000, 1
    call.timeout = timeout
    call.deadline = now + timeout
    call.hard_deadline = now + timeout * extends


class DeadlineWatch:
    """Expires exchanges whose deadline has passed."""

    def __init__(
        self, clock: Clock, call_later: Callable[[float, Callable[[], None]], Any]
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._slots: dict[int, dict[Exchange, None]] = {}
        self._next = 0
        self._timer: Any = None

    def watch(self, exchange: Exchange, deadline: float) -> int:
        """Watch until `forget`; returns the slot to give back then."""
        slot = int(deadline / SLOT) + 1
        if slot < self._next:
            # It has passed already, and its slot has been walked over: the next one must do.
            slot = self._next
        members = self._slots.get(slot)
        if members is None:
            members = self._slots[slot] = {}
            if self._timer is None:
                self._next = min(slot, int(self._clock() / SLOT))
                self._timer = self._call_later(SLOT, self.tick)
        members[exchange] = None
        return slot

    def forget(self, exchange: Exchange, slot: int) -> None:
        members = self._slots.get(slot)
        if members is not None:
            members.pop(exchange, None)

    def tick(self) -> None:
        """Expire what is due. Runs by itself while anything is watched."""
        due = int(self._clock() / SLOT)
        slots = self._slots
        if due - self._next > 4 * len(slots) + 4:
            # The loop was held up, or the slots are far apart: look at what is there instead.
            passed = [slot for slot in slots if slot <= due]
        else:
            passed = [slot for slot in range(self._next, due + 1) if slot in slots]
        self._next = due + 1
        for slot in passed:
            for exchange in slots.pop(slot):
                try:
                    exchange.expire()
                except Exception:
                    # Whatever it is, the others must still be ended, now and later.
                    _log.exception("a call whose deadline has passed could not be ended")
        self._timer = self._call_later(SLOT, self.tick) if slots else None

    @property
    def watched(self) -> int:
        return sum(len(members) for members in self._slots.values())
