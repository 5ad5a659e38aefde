"""Hears of every step of every approval, and has the decisions of humans kept.

Only those: what a policy engine or a service let through says nothing about what a human would, and
neither does what nobody decided in time.
"""

from __future__ import annotations

from collections.abc import Callable

from interlock.pipeline.approval.record import Approval
from interlock.pipeline.automation.decision import decided
from interlock.pipeline.automation.keeping import DecisionKeeper


class Watching:
    """Given to `approvals.watch`."""

    def __init__(self, keeper: DecisionKeeper, wall_clock: Callable[[], float]) -> None:
        self._keeper = keeper
        self._wall_clock = wall_clock
        self.kept = 0

    def heard(self, approval: Approval) -> None:
        """One step of one approval."""
        found = decided(approval, self._wall_clock())
        if found is not None:
            self._keeper.write(found)
            self.kept += 1
