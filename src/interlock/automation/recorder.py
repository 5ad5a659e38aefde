"""Hears of every step of every approval, and has the decisions of humans kept.

Only those: what a policy engine or a service let through says nothing about what a human would, and
neither does what nobody decided in time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from interlock.automation.decision import Decided, decided, is_decision
from interlock.trust.approvals.record import Approval

# -- What watching decisions asks of whoever keeps them. Only shapes here.


class DecisionKeeper(Protocol):
    """A durable memory of decisions."""

    def write(self, make: Callable[[], Decided]) -> None:
        """Keep the decision that `make` returns. It is called on whatever thread: to mask secrets
        takes a while. Returns at once, and never raises: a decision counts whether it is remembered
        or not."""

    def history(self) -> list[Decided]:
        """All that are kept, the oldest first. Waits. Raises InterlockError."""
        ...

    def close(self) -> None:
        """Write what is left, and stop."""


class Watching:
    """Given to `approvals.watch`."""

    def __init__(self, keeper: DecisionKeeper, wall_clock: Callable[[], float]) -> None:
        self._keeper = keeper
        self._wall_clock = wall_clock
        self.kept = 0

    def heard(self, approval: Approval) -> None:
        """One step of one approval."""
        if is_decision(approval):
            self._keeper.write(partial(decided, approval, self._wall_clock()))
            self.kept += 1
