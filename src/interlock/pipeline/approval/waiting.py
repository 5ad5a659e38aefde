"""A call that waits for an identical one which is under way, or for a human who is being asked."""

from __future__ import annotations

from collections.abc import Callable

from interlock.call import Call, Outcome
from interlock.errors import InterlockError
from interlock.pipeline.approval.inbox import Entry, Told
from interlock.ports import Back


class Waiting:
    """Stands for the request of such a call: it is answered when the other one is."""

    def __init__(
        self,
        entry: Entry,
        call: Call,
        over: Callable[[Call, Outcome | None, InterlockError | None], None],
        in_vain: Callable[[Call, Entry], None],
    ) -> None:
        """`in_vain`: answers the call when it has waited for too long."""
        self._entry = entry
        self._call = call
        self._over = over
        self._in_vain = in_vain
        self._told: Told = self._tell
        self.open = True
        entry.waiters.append(self._told)

    def _tell(self, outcome: Outcome | None, error: InterlockError | None) -> None:
        self.open = False
        self._over(self._call, outcome, error)

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
