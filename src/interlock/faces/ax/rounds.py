"""Which parent is tried next, and when. Pure: the dice are given.

Parents are tried in their order, all of them before the first pause. A pause grows from round to
round, slowly where every parent refuses for a reason that time will hardly mend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from interlock.errors import (
    CYCLE_DETECTED,
    INVALID_PARAMS,
    SPLIT_BRAIN,
    UPSTREAM_LOST,
    InterlockError,
)
from interlock.faces.ax.below import only_news
from interlock.faces.ax.refusal import PERMANENT, RefusedError

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0
LONGEST_WHEN_REFUSED: Final = 30.0
AT_ONCE: Final = 0.25
"""Those who lost the same parent do not all come back in the same moment."""

SETTLED: Final = 10.0
"""A registration that held for less counts as one more try: else whoever is thrown out at once
would come back at once."""


class SilentError(InterlockError):
    """A parent does not answer any more, though nobody hung up."""

    def __init__(self, message: str) -> None:
        super().__init__(UPSTREAM_LOST, message)


def for_good(failed: InterlockError, *, registered: bool) -> bool:
    """Whether a parent refused for a reason that trying again will hardly change. `registered`: it
    had taken it in before."""
    if failed.failure in PERMANENT:
        return True
    if registered:
        # Another parent of the same tree has it. Before, that may lapse by itself.
        return failed.failure is SPLIT_BRAIN
    if not isinstance(failed, RefusedError) or only_news(failed):
        return False
    return failed.code == INVALID_PARAMS.ax_code


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
        self.hopeless = False
        """Whether all of them, one after the other, refused for good."""

    @property
    def url(self) -> str:
        """The one whose turn it is."""
        return self._urls[self._place]

    def after(self, failed: InterlockError, *, lasted: float | None, refused: bool) -> float:
        """It failed: how long to wait for the next one.

        `lasted`: how long it was registered, None for never. When that had gone well for a while, a
        new round begins, soon: with the first parent, or with the next one if this one just fell
        silent, as it may be for long. `refused`: for good.
        """
        self.hopeless = False
        if lasted is not None and lasted >= SETTLED and not refused:
            silent = isinstance(failed, SilentError)
            self._place = (self._place + 1) % len(self._urls) if silent else 0
            self._pause, self._refused = 0.0, 0
            return self._jitter() * min(AT_ONCE, self._heartbeat or AT_ONCE)
        self._refused += refused
        self._place = (self._place + 1) % len(self._urls)
        if self._place:
            return 0.0
        self.hopeless = self._refused == len(self._urls)
        self._refused = 0
        longest = LONGEST_PAUSE
        if self.hopeless:
            longest = LONGEST_WHEN_REFUSED
            if lasted is not None and failed.failure is not CYCLE_DETECTED:
                # Taken in and sent away: each try is work for everybody above and below. A loop is
                # mended at once, by sending those away who make it.
                self._pause = longest
        elif failed.failure is SPLIT_BRAIN:
            # What the parent before has of us lapses after a few heartbeats.
            longest = min(longest, max(1.0, self._heartbeat))
        self._pause = min(max(FIRST_PAUSE, self._pause * 2), longest)
        return self._pause * (1 + self._jitter()) / 2
