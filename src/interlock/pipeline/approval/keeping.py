"""What approvals ask of whoever keeps them. Only shapes here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Protocol

from interlock.pipeline.approval.record import Approval


class Kept(Enum):
    """What became of a record that was to be written."""

    WRITTEN = "written"
    """It is on the disk, and stays there through a power cut."""
    TAKEN = "taken"
    """It was no longer in the state that it was thought to be in: nothing was written."""
    USED = "used"
    """The one-time token was used before: nothing was written."""
    FAILED = "failed"
    """It could not be written."""


class Keeper(Protocol):
    """A durable store of approvals. `write` and `forget` return at once."""

    def load(self) -> list[Approval]:
        """All that nobody else looks after, the oldest first. Waits. Raises InterlockError."""
        ...

    def write(
        self,
        approval: Approval,
        before: str | None,
        then: Callable[[Kept], None],
        *,
        token: tuple[str, str] | None = None,
    ) -> None:
        """Write a record whose last written state was `before` (None: it is new).

        `token`: an anchor and the id of its one-time token, used from now on and for good. `then`
        is told on the event loop.
        """

    def forget(self, ids: Iterable[str]) -> None:
        """Nobody asks for these any more."""

    def close(self) -> None:
        """Write what is left, and stop."""
