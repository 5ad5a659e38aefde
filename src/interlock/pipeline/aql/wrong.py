"""How often somebody may bring what does not count, before nobody looks at it any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from interlock.pipeline.approval.record import utc
from interlock.pipeline.aql.asking import Principal
from interlock.protocol.aql.faults import AqlError

MOST: Final = 20
"""So many wrong ones of one caller"""
WINDOW: Final = 60.0
"""in so many seconds; then even a right one has to wait."""
_MOST_CALLERS: Final = 10_000


class WrongTries:
    """Counts them, by who is behind the connection."""

    def __init__(self, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._since: dict[Principal, tuple[float, int]] = {}

    def must_be_few(self, whose: Principal) -> None:
        """Raises AqlError."""
        since, count = self._since.get(whose, (0.0, 0))
        left = since + WINDOW - self._clock()
        if count < MOST or left <= 0:
            return
        raise AqlError(
            "RATE_LIMIT_EXCEEDED",
            "Too many wrong tokens or proofs. Wait before you bring another.",
            {
                "limit": MOST,
                "remaining": 0,
                "window": "minute",
                "resets_at": utc(self._wall_clock() + left),
                "retry_after_seconds": int(left) + 1,
            },
        )

    def another(self, whose: Principal) -> None:
        now = self._clock()
        since, count = self._since.pop(whose, (now, 0))
        if now - since >= WINDOW:
            since, count = now, 0
        if len(self._since) >= _MOST_CALLERS:
            # The one who was wrong longest ago.
            del self._since[next(iter(self._since))]
        self._since[whose] = (since, count + 1)
