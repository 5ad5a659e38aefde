"""Whether decisions agree well enough to become a rule. Pure.

Agreement is rationed, exceptions are not: who has the same call let through a hundred times in a
minute has shown it five times, and one refusal among them still counts as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

A_MINUTE: Final = 60.0
MOST_A_MINUTE: Final = 5
"""So many decisions alike count within any minute."""
SINCE: Final = 5
"""So often it was decided that way since the last exception."""


def rationed(times: Iterable[float]) -> int:
    """How many of them count, when no more than five of any minute do."""
    within: deque[float] = deque()
    counted = 0
    for moment in sorted(times):
        while within and within[0] <= moment - A_MINUTE:
            within.popleft()
        if len(within) < MOST_A_MINUTE:
            within.append(moment)
            counted += 1
    return counted


def agrees(agreed: Sequence[float], others: Sequence[float], share: float) -> bool:
    """Whether exceptions, by when they were, are so few and so long ago that what was decided
    alike is one. `share`: of all that count, so many agree."""
    if not others:
        return True
    last = max(others)
    counted = rationed(agreed)
    return counted >= share * (counted + len(others)) and sum(one > last for one in agreed) >= SINCE
