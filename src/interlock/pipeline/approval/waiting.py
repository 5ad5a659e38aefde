"""A call that waits for an identical one which is under way, or for a human who is being asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from interlock.call import Call, Outcome
from interlock.errors import InterlockError
from interlock.pipeline.approval.inbox import Entry, Told
from interlock.ports import Back

MOST_WAITING: Final = 16
"""So many calls may wait for what becomes of one approval."""
MOST_OF_CALLER: Final = 64
"""So many calls of one caller may wait for all of its approvals."""


def only_waits(call: Call) -> bool:
    """Whether a call that is under way waits for what was, or will be, sent for another."""
    return isinstance(call.exchange, Waiting)


class Waiting:
    """Stands for the request of such a call: it is answered when the other one is."""

    def __init__(
        self,
        entry: Entry,
        call: Call,
        collect: Callable[[Call, Entry, Outcome | None, InterlockError | None], None],
        in_vain: Callable[[Call, Entry], None],
    ) -> None:
        """`collect`: hands it what the other came to. `in_vain`: answers it when it has waited for
        too long."""
        self._entry = entry
        self._call = call
        self._collect = collect
        self._in_vain = in_vain
        self._told: Told = self._tell
        self.open = True
        entry.waiters.append(self._told)

    def _tell(self, outcome: Outcome | None, error: InterlockError | None) -> None:
        self.open = False
        self._collect(self._call, self._entry, outcome, error)

    def _leave(self) -> None:
        self.open = False
        if self._told in self._entry.waiters:
            self._entry.waiters.remove(self._told)

    def abandon(self, reason: str) -> None:
        self._leave()

    def expire(self) -> None:
        if self.open:
            self._leave()
            self._call.exchange = None
            self._in_vain(self._call, self._entry)

    def hand_over(self, call: Call, back: Back) -> None:
        """Nobody takes over who waits only."""
