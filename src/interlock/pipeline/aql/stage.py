"""Where AQL stands in the pipeline: between knowing who calls, and finding what is called."""

from __future__ import annotations

from typing import Final, Protocol

from interlock.call import Call, Outcome
from interlock.errors import InterlockError

Over = tuple[Outcome | None, InterlockError | None]
"""How a call ended."""


class AqlStage(Protocol):
    """What the pipeline asks of AQL. Only for a call that was made in a view of it."""

    def take(self, call: Call) -> bool:
        """Make an operation a call of its tool. True: the call is answered, or will be.

        Raises InterlockError.
        """
        ...

    def told(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> Over:
        """How a call ended, in the words of AQL. Never raises."""
        ...


class _NoAql:
    """A node without views."""

    def take(self, call: Call) -> bool:
        return False

    def told(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> Over:
        return outcome, error


NO_AQL: Final[AqlStage] = _NoAql()
