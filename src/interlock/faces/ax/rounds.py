"""Which parent is tried next, and when. Pure: the dice are given.

Parents are tried in their order, all of them before the first pause. A pause grows from round to
round, slowly where every parent refuses for a reason that time will hardly mend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from interlock.errors import SPLIT_BRAIN, UPSTREAM_LOST, InterlockError
from interlock.faces.ax.refusal import PERMANENT

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0
LONGEST_WHEN_REFUSED: Final = 30.0
AT_ONCE: Final = 0.25
"""Those who lost the same parent do not all come back in the same moment."""


class SilentError(InterlockError):
    """A parent does not answer any more, though nobody hung up."""

    def __init__(self, message: str) -> None:
        super().__init__(UPSTREAM_LOST, message)


class Rounds:
    """The order in which parents are tried."""

    def __init__(
        self, urls: Sequence[str], *, heartbeat: float, jitter: Callable[[], float]
    ) -> None:
        """`jitter` gives numbers from 0 to 1."""
        self._urls = urls
        self._heartbeat = heartbeat
        self._jitter = jitter
        self._place = 0
        self._pause = 0.0
        self._refused = 0

    @property
    def url(self) -> str:
        """The one whose turn it is."""
        return self._urls[self._place]

    def after(self, failed: InterlockError, *, settled: bool) -> float:
        """It failed: how long to wait for the next one.

        `settled`: it had gone well for a while. Then a new round begins, soon: with the first
        parent, or with the next one if this one just fell silent, as it may be for long.
        """
        if settled:
            silent = isinstance(failed, SilentError)
            self._place = (self._place + 1) % len(self._urls) if silent else 0
            self._pause, self._refused = 0.0, 0
            return self._jitter() * min(AT_ONCE, self._heartbeat or AT_ONCE)
        self._refused += failed.failure in PERMANENT
        self._place = (self._place + 1) % len(self._urls)
        if self._place:
            return 0.0
        longest = LONGEST_PAUSE
        if self._refused == len(self._urls):
            longest = LONGEST_WHEN_REFUSED
        elif failed.failure is SPLIT_BRAIN:
            # What the parent before has of us lapses after a few heartbeats.
            longest = min(longest, max(1.0, self._heartbeat))
        self._refused = 0
        self._pause = min(max(FIRST_PAUSE, self._pause * 2), longest)
        return self._pause * (1 + self._jitter()) / 2
