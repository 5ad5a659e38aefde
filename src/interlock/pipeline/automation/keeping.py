"""What watching decisions asks of whoever keeps them. Only shapes here."""

from __future__ import annotations

from typing import Protocol

from interlock.pipeline.automation.decision import Decided


class DecisionKeeper(Protocol):
    """A durable memory of decisions."""

    def write(self, decided: Decided) -> None:
        """Keep it. Returns at once, and never raises: a decision counts whether it is remembered
        or not."""

    def history(self) -> list[Decided]:
        """All that are kept, the oldest first. Waits. Raises InterlockError."""
        ...

    def close(self) -> None:
        """Write what is left, and stop."""
