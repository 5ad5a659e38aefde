"""How much is too much? What a registered subserver may be called, in a minute and in a session.

The minute belongs to the subserver, whoever carries its calls: who leaves and comes back finds it
as it was. Those without a limit are not looked at.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import Final

from interlock.call import Call
from interlock.catalog.offering import Tool
from interlock.errors import BUDGET_EXCEEDED, InterlockError
from interlock.ports import Clock
from interlock.protocol.ax import UNLIMITED, Budget

MINUTE: Final = 60.0
GRAIN: Final = 0.1
"""Calls this close to each other are counted as one group: so many calls take no more memory than
a few. A group counts for as long as the last of it."""


class Window:
    """How many calls were made within the last minute."""

    __slots__ = ("_groups", "count")

    def __init__(self) -> None:
        self.count = 0
        self._groups: deque[list[float]] = deque()
        """When each group began and ended, and how many it has."""

    def look(self, now: float) -> int:
        groups = self._groups
        while groups and groups[0][1] + MINUTE <= now:
            self.count -= int(groups.popleft()[2])
        return self.count

    def add(self, now: float) -> None:
        self.count += 1
        groups = self._groups
        if groups and now - groups[-1][0] < GRAIN:
            groups[-1][1] = now
            groups[-1][2] += 1
        else:
            groups.append([now, now, 1])

    def wait(self, now: float) -> float:
        """How long until one of them is older than a minute."""
        return self._groups[0][1] + MINUTE - now if self._groups else 0.0


class _Account:
    """The budget of one session, and what was used of it."""

    __slots__ = ("budget", "cost_units", "mutable_calls", "session_id", "subserver_id", "window")

    def __init__(self, subserver_id: str, session_id: str, budget: Budget, window: Window) -> None:
        self.subserver_id = subserver_id
        self.session_id = session_id
        self.budget = budget
        self.window = window
        self.mutable_calls = 0
        self.cost_units = 0


class Budgets:
    """The budgets of all registered subservers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[str, _Account] = {}
        self.limited: dict[str, _Account] = {}
        """Those that can be exceeded, by the key of the upstream. Empty: nobody need ask."""
        self._left: dict[str, tuple[float, Window]] = {}
        """The minutes of those who are gone, the longest gone first."""

    def grant(self, key: str, subserver_id: str, budget: Budget, session_id: str = "") -> None:
        """A session begins. For one that goes on, the limits are others from now on."""
        self._forget_the_gone()
        account = self._sessions.get(key)
        if account is None or (account.subserver_id, account.session_id) != (
            subserver_id,
            session_id,
        ):
            self.release(key)
            _, window = self._left.pop(subserver_id, (0.0, None))
            account = _Account(subserver_id, session_id, budget, window or Window())
            self._sessions[key] = account
        account.budget = budget
        if budget == _NO_LIMIT:
            self.limited.pop(key, None)
        else:
            self.limited[key] = account

    def release(self, key: str) -> None:
        """The session is over."""
        account = self._sessions.pop(key, None)
        self.limited.pop(key, None)
        if account is not None and account.window.count:
            self._left.pop(account.subserver_id, None)
            self._left[account.subserver_id] = (self._clock(), account.window)

    def take(self, call: Call) -> None:
        """Count a call of a tool. Raises InterlockError when it would be one too many: that one
        counts for nothing."""
        account = self.limited.get(call.upstream)
        if account is None:
            return
        budget, window, now = account.budget, account.window, self._clock()
        used = window.look(now)
        if used >= budget.max_calls_per_minute:
            wait = max(1, ceil(window.wait(now) * 1000))
            raise _exceeded(call, "max_calls_per_minute", budget.max_calls_per_minute, used, wait)
        tool = call.route
        # What nobody knows changes something, and costs nothing.
        mutable, units = (tool.mutable, tool.cost_units) if isinstance(tool, Tool) else (True, 0)
        if mutable and account.mutable_calls >= budget.max_mutable_calls_per_session:
            limit, used = budget.max_mutable_calls_per_session, account.mutable_calls
            raise _exceeded(call, "max_mutable_calls_per_session", limit, used)
        if units and account.cost_units + units > budget.max_cost_units_per_session:
            limit, used = budget.max_cost_units_per_session, account.cost_units
            raise _exceeded(call, "max_cost_units_per_session", limit, used)
        window.add(now)
        account.mutable_calls += mutable
        account.cost_units += units

    def used(self, key: str) -> tuple[int, int, int] | None:
        """Calls of the last minute, mutable calls and cost units of the session, for those who
        look. None: it has no limit."""
        account = self.limited.get(key)
        if account is None:
            return None
        return account.window.look(self._clock()), account.mutable_calls, account.cost_units

    def _forget_the_gone(self) -> None:
        over = self._clock() - MINUTE
        while self._left:
            subserver_id, (left, _) = next(iter(self._left.items()))
            if left > over:
                return
            del self._left[subserver_id]


_NO_LIMIT: Final = Budget(UNLIMITED, UNLIMITED, UNLIMITED)


def _exceeded(
    call: Call, which: str, limit: int, used: int, retry_after_ms: int | None = None
) -> InterlockError:
    data = {"budget": which, "limit": limit, "used": used, "upstream": call.upstream}
    if retry_after_ms is None:
        when = "The next session begins a new one."
    else:
        data["retry_after_ms"] = retry_after_ms
        when = f"Try again in {retry_after_ms / 1000:.1f} s."
    return InterlockError(
        BUDGET_EXCEEDED,
        f"The budget of {call.upstream} is used up: {used} of {limit} ({which}). {when}",
        data,
    )
