"""What one account of a budget holds: calls of the last minute, and what its session has used.

Everything is taken before a call leaves, and may be given back while it has not left. Nothing is
ever taken beyond the limit, in whatever order calls take and give back.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final, NamedTuple

from interlock.protocol.ax import UNLIMITED, Budget

MINUTE: Final = 60.0
GRAIN: Final = 0.1
"""Calls this close to each other are counted as one group: so many calls take no more memory than
a few. A group counts for as long as the last of it."""

CALLS: Final = "max_calls_per_minute"
MUTABLE: Final = "max_mutable_calls_per_session"
COST: Final = "max_cost_units_per_session"

NO_LIMIT: Final = Budget(UNLIMITED, UNLIMITED, UNLIMITED)

Group = list[float]
"""When it began and ended, and how many calls it has."""


class Window:
    """How many calls were made within the last minute."""

    __slots__ = ("_groups", "count", "right_until")

    def __init__(self) -> None:
        self.count = 0
        self.right_until = inf
        """Before this moment `count` is right as it stands: there is nothing to look for."""
        self._groups: deque[Group] = deque()

    def look(self, now: float) -> int:
        groups = self._groups
        while groups and (not (first := groups[0])[2] or first[1] + MINUTE <= now):
            gone = groups.popleft()
            self.count -= int(gone[2])
            # What is given back of it now counts no more.
            gone[2] = 0
        self.right_until = groups[0][1] + MINUTE if groups else inf
        return self.count

    def add(self, now: float) -> Group:
        """Count a call. What is returned is for `give_back`."""
        self.count += 1
        groups = self._groups
        if groups:
            group = groups[-1]
            if now - group[0] < GRAIN:
                group[1] = now
                group[2] += 1
                return group
        else:
            self.right_until = now + MINUTE
        group = [now, now, 1]
        groups.append(group)
        return group

    def give_back(self, group: Group) -> None:
        """One call of this group was never made."""
        if group[2]:
            group[2] -= 1
            self.count -= 1

    def wait(self, now: float, limit: int) -> float:
        """How long until there are fewer than so many."""
        over = self.count - limit + 1
        for _, ended, calls in self._groups:
            over -= int(calls)
            if over <= 0:
                return ended + MINUTE - now
        return 0.0


class Tally:
    """What one session has used."""

    __slots__ = ("cost_units", "mutable_calls")

    def __init__(self) -> None:
        self.mutable_calls = 0
        self.cost_units = 0


Taken = tuple[Window, Group, Tally, bool, int]
"""What a call has taken from one account: from which window and which group of it, from which
tally, whether the call changes something and what it costs. A plain tuple: nothing is made quicker,
and one is made for every call."""


def give_back(taken: Taken) -> None:
    """A call that has taken this was never made."""
    window, group, tally, mutable, units = taken
    window.give_back(group)
    tally.mutable_calls -= mutable
    tally.cost_units -= units


class Short(NamedTuple):
    """Why an account does not let a call through."""

    budget: str
    limit: int
    used: int
    wait: float | None
    """Seconds until there is room. None: there will be none in this session."""
    never: bool = False
    """The budget is too small for this call, however little was used of it."""


class Account:
    """One budget, and what was used of it."""

    __slots__ = ("budget", "idle", "kind", "last", "tally", "whose", "window")

    def __init__(
        self,
        kind: str,
        whose: str,
        budget: Budget,
        window: Window | None = None,
        idle: float | None = None,
    ) -> None:
        """`idle`: its session is over when nothing was taken for so long. None: somebody says."""
        self.kind = kind
        self.whose = whose
        self.budget = budget
        self.window = window or Window()
        self.tally = Tally()
        self.idle = idle
        self.last = float("-inf")

    def look(self, now: float) -> int:
        """Calls of the last minute. What a session that is over has used is forgotten."""
        if self.idle is not None and now - self.last >= self.idle:
            self.tally = Tally()
        return self.window.look(now)

    def lacks(self, now: float, mutable: bool, units: int) -> Short | None:
        """Why a call would be one too many. None: it would not."""
        if self.idle is not None and now - self.last >= self.idle:
            self.tally = Tally()
        budget, window, tally = self.budget, self.window, self.tally
        used = window.count if now < window.right_until else window.look(now)
        limit = budget.max_calls_per_minute
        if used >= limit:
            if not limit:
                return Short(CALLS, limit, used, None, True)
            return Short(CALLS, limit, used, window.wait(now, limit))
        if mutable:
            limit = budget.max_mutable_calls_per_session
            if tally.mutable_calls >= limit:
                return Short(MUTABLE, limit, tally.mutable_calls, *self._rest(now, not limit))
        if units:
            limit = budget.max_cost_units_per_session
            if tally.cost_units + units > limit:
                return Short(COST, limit, tally.cost_units, *self._rest(now, units > limit))
        return None

    def _rest(self, now: float, never: bool) -> tuple[float | None, bool]:
        """How long its session lasts, if nothing more is taken."""
        return None if never or self.idle is None else self.last + self.idle - now, never

    def take(self, now: float, mutable: bool, units: int) -> Taken:
        """Count a call that `lacks` had nothing against."""
        self.last = now
        window, tally = self.window, self.tally
        if mutable:
            tally.mutable_calls += 1
        if units:
            tally.cost_units += units
        return window, window.add(now), tally, mutable, units

    def is_forgotten(self, now: float) -> bool:
        """Whether a new one in its place would be the same."""
        idle = MINUTE if self.idle is None else max(self.idle, MINUTE)
        return now - self.last >= idle + GRAIN
