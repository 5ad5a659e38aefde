"""How much is too much? What may be called in a minute and in a session, by whom and of whom.

A call has up to three accounts: that of its session, that of its caller, and that of the subserver
it goes to. It takes from all of them or from none, before it leaves; what never left is given back.
A minute belongs to whom it is counted for, so leaving and coming back does not begin a new one: a
subserver's goes on when it registers again, and a caller's is one over all its sessions.

A caller's own session is one stretch of calls: it is over when the caller has been quiet for as
long as an unused session is kept. The same goes for clients that have no sessions.

Those without a limit are not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from math import ceil
from typing import Any, Final, NamedTuple, TypeVar, cast

from interlock.core.call import Call
from interlock.core.catalog.offering import Tool
from interlock.core.config import BudgetConfig, BudgetsConfig
from interlock.core.ports import Clock
from interlock.errors import BUDGET_EXCEEDED, InterlockError
from interlock.primitives.rate_limits import Group, SlidingWindow
from interlock.primitives.timestamps import format_utc_ms
from interlock.protocol.mcpax import UNLIMITED, SubserverBudget

# -- What one account of a budget holds: calls of the last minute, and what its session has used.
#
# Everything is taken before a call leaves, and may be given back while it has not left. Nothing
# is ever taken beyond the limit, in whatever order calls take and give back.

D = TypeVar("D")

MINUTE: Final = 60.0

CALLS: Final = "max_calls_per_minute"
MUTABLE: Final = "max_mutable_calls_per_session"
COST: Final = "max_cost_units_per_session"

NO_LIMIT: Final = SubserverBudget(UNLIMITED, UNLIMITED, UNLIMITED)


class SessionUsage:
    """What one session has used."""

    __slots__ = ("cost_units", "mutable_calls")

    def __init__(self) -> None:
        self.mutable_calls = 0
        self.cost_units = 0


Taken = tuple[SlidingWindow, Group, SessionUsage, bool, int]
"""What a call has taken from one account: from which window and which group of it, from which
tally, whether the call changes something and what it costs. A plain tuple: nothing is made quicker,
and one is made for every call."""


def give_back(taken: Taken) -> None:
    """A call that has taken this was never made."""
    window, group, tally, mutable, units = taken
    window.remove(group)
    tally.mutable_calls -= mutable
    tally.cost_units -= units


class BudgetShortfall(NamedTuple):
    """Why an account does not let a call through."""

    budget: str
    limit: int
    used: int
    wait: float | None
    """Seconds until there is room. None: there will be none in this session."""
    never: bool = False
    """The budget is too small for this call, however little was used of it."""


class Account:
    """One budget, and what was used of it.

    More than a rate limit: it counts three things at once, in a minute and in a session, and a call
    takes all of them or none. The calls of the minute are a `SlidingWindow`.
    """

    __slots__ = ("budget", "idle", "kind", "last", "tally", "whose", "window")

    def __init__(
        self,
        kind: str,
        whose: str,
        budget: SubserverBudget,
        window: SlidingWindow | None = None,
        idle: float | None = None,
    ) -> None:
        """`idle`: its session is over when nothing was taken for so long. None: somebody says."""
        self.kind = kind
        self.whose = whose
        self.budget = budget
        self.window = window or SlidingWindow(MINUTE)
        self.tally = SessionUsage()
        self.idle = idle
        self.last = float("-inf")

    def look(self, now: float) -> int:
        """Calls of the last minute. What a session that is over has used is forgotten."""
        if self.idle is not None and now - self.last >= self.idle:
            self.tally = SessionUsage()
        return self.window.advance(now)

    def lacks(self, now: float, mutable: bool, units: int) -> BudgetShortfall | None:
        """Why a call would be one too many. None: it would not."""
        if self.idle is not None and now - self.last >= self.idle:
            self.tally = SessionUsage()
        budget, window, tally = self.budget, self.window, self.tally
        used = window.count if now < window.exact_until else window.advance(now)
        limit = budget.max_calls_per_minute
        if used >= limit:
            if not limit:
                return BudgetShortfall(CALLS, limit, used, None, True)
            return BudgetShortfall(CALLS, limit, used, window.wait_seconds(now, limit))
        if mutable:
            limit = budget.max_mutable_calls_per_session
            if tally.mutable_calls >= limit:
                return BudgetShortfall(
                    MUTABLE, limit, tally.mutable_calls, *self._rest(now, not limit)
                )
        if units:
            limit = budget.max_cost_units_per_session
            if tally.cost_units + units > limit:
                return BudgetShortfall(
                    COST, limit, tally.cost_units, *self._rest(now, units > limit)
                )
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
        return now - self.last >= idle


SESSION_IDLE: Final = 3600.0
_FEW: Final = 1024
"""So many accounts of callers are kept before those are looked for that can go."""
_OF_SESSIONS: Final = " sessions"
_OF_CALLERS: Final = " callers"


class Budgets:
    """The accounts of everybody who has one."""

    def __init__(self, clock: Clock, wall_clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._subservers: dict[str, _Registered] = {}
        self._left: dict[str, tuple[float, SlidingWindow]] = {}
        """The minutes of subservers that are gone, the longest gone first."""
        self._config = BudgetsConfig()
        self._session_budget = NO_LIMIT
        self._idle = SESSION_IDLE
        self._sessions: dict[object, Account] = {}
        """By session; those of clients without one by the caller's name."""
        self._callers: dict[str, Account | None] = {}
        """None: no budget of the config fits this caller."""
        self._sweep_at = _FEW
        self.limited: dict[str, object] = {}
        """What can be exceeded. Empty: nobody need ask. Always the same object."""

    # -- what is configured

    def configure(self, config: BudgetsConfig, *, idle: float = SESSION_IDLE) -> None:
        """The budgets of sessions and callers from now on. What was used stays used."""
        self._config = config
        self._idle = idle
        self._session_budget = budget = _limits(config.session)
        if budget == NO_LIMIT:
            self._sessions.clear()
            self.limited.pop(_OF_SESSIONS, None)
        else:
            self.limited[_OF_SESSIONS] = budget
        for key, account in self._sessions.items():
            account.budget = budget
            account.idle = idle if isinstance(key, str) else None
        known, self._callers = self._callers, {}
        for name, one in known.items():
            if one is not None and (fits := self._fitting(name)) is not None:
                one.budget, one.idle = fits, idle
                self._callers[name] = one
        if any(_limits(one) != NO_LIMIT for one in config.callers):
            self.limited[_OF_CALLERS] = config.callers
        else:
            self.limited.pop(_OF_CALLERS, None)

    # -- registered subservers

    def grant(
        self, key: str, subserver_id: str, budget: SubserverBudget, session_id: str = ""
    ) -> None:
        """A session begins. For one that goes on, the limits are others from now on."""
        self._forget_the_gone()
        account = self._subservers.get(key)
        if account is None or account.is_not(subserver_id, session_id):
            self.release(key)
            _, window = self._left.pop(subserver_id, (0.0, None))
            account = _Registered(key, subserver_id, session_id, budget, window)
            self._subservers[key] = account
        account.budget = budget
        if budget == NO_LIMIT:
            self.limited.pop(key, None)
        else:
            self.limited[key] = account

    def release(self, key: str) -> None:
        """The session is over."""
        account = self._subservers.pop(key, None)
        self.limited.pop(key, None)
        if account is not None and account.window.count:
            self._left.pop(account.subserver_id, None)
            self._left[account.subserver_id] = (self._clock(), account.window)

    def used(self, key: str) -> tuple[int, int, int] | None:
        """Calls of the last minute, mutable calls and cost units of a subserver's session, for
        those who look. None: it has no limit."""
        account = self._subservers.get(key) if key in self.limited else None
        if account is None:
            return None
        calls = account.look(self._clock())
        return calls, account.tally.mutable_calls, account.tally.cost_units

    def _forget_the_gone(self) -> None:
        over = self._clock() - MINUTE
        while self._left:
            subserver_id, (left, _) = next(iter(self._left.items()))
            if left > over:
                return
            del self._left[subserver_id]

    # -- calls

    def reserve(self, call: Call, decision: D) -> D:
        """Take what a call of a tool needs, from all its accounts or from none. A decision step:
        returns the decision as it is.

        Raises InterlockError when it would be one too many: that one counts for nothing.
        """
        if call.reservations is not None:
            return decision
        tool, clock = call.route, self._clock
        # What nobody knows changes something, and costs nothing.
        mutable, units = True, 0
        if isinstance(tool, Tool):
            mutable, units = tool.mutable, tool.cost_units
        now = clock()
        caller = call.caller
        if (
            caller is not None
            and self._session_budget is NO_LIMIT
            and call.upstream not in self.limited
        ):
            # Only the caller's own can be there, and mostly is: then no list is made.
            account = self._callers.get(caller.name)
            if account is not None:
                short = account.lacks(now, mutable, units)
                if short is not None:
                    raise self._exceeded(account, short)
                call.reservations = (account.take(now, mutable, units),)
                return decision
        accounts = self._accounts(call)
        for account in accounts:
            short = account.lacks(now, mutable, units)
            if short is not None:
                raise self._exceeded(account, short)
        if accounts:
            call.reservations = [account.take(now, mutable, units) for account in accounts]
        return decision

    def settle(self, call: Call, dispatched: bool) -> None:
        """The call is over: what never left is given back. Once; later words change nothing."""
        reserved = cast("Sequence[Taken] | None", call.reservations)
        if reserved is None:
            return
        call.reservations = None
        if not dispatched:
            for taken in reserved:
                give_back(taken)

    def _accounts(self, call: Call) -> list[Account]:
        accounts: list[Account] = []
        if self._session_budget is not NO_LIMIT:
            accounts.append(self._of_session(call))
        if self._config.callers and call.caller is not None:
            of_caller = self._of_caller(call.caller.name)
            if of_caller is not None:
                accounts.append(of_caller)
        if call.upstream in self.limited:
            accounts.append(self._subservers[call.upstream])
        return accounts

    def _of_session(self, call: Call) -> Account:
        session = call.session
        name = "" if call.caller is None else call.caller.name
        # Of a session that has ended nobody would say so again.
        key: object = name if session is None or not session.is_alive else session
        account = self._sessions.get(key)
        if account is None:
            self._sweep()
            own = isinstance(key, str)
            idle = self._idle if own else None
            account = Account("session", name, self._session_budget, idle=idle)
            self._sessions[key] = account
            if session is not None and not own:
                session.on_close.append(lambda: self._ended(session))
        return account

    def _ended(self, session: object) -> None:
        self._sessions.pop(session, None)

    def _of_caller(self, name: str) -> Account | None:
        try:
            return self._callers[name]
        except KeyError:
            self._sweep()
            budget = self._fitting(name)
            account = None if budget is None else Account("caller", name, budget, idle=self._idle)
            self._callers[name] = account
            return account

    def _fitting(self, name: str) -> SubserverBudget | None:
        """The first of the config's budgets that is for this caller, if it limits anything."""
        for one in self._config.callers:
            if not one.callers or any(fnmatchcase(name, glob) for glob in one.callers):
                budget = _limits(one)
                return None if budget is NO_LIMIT else budget
        return None

    def _sweep(self) -> None:
        """Callers may be without number: those go of whom nothing is left to be known."""
        if len(self._callers) + len(self._sessions) < self._sweep_at:
            return
        now = self._clock()
        self._callers = {
            name: one
            for name, one in self._callers.items()
            if one is not None and not one.is_forgotten(now)
        }
        self._sessions = {
            key: one
            for key, one in self._sessions.items()
            if not (isinstance(key, str) and one.is_forgotten(now))
        }
        self._sweep_at = max(_FEW, 2 * (len(self._callers) + len(self._sessions)))

    def _exceeded(self, account: Account, short: BudgetShortfall) -> InterlockError:
        left = max(0, short.limit - short.used)
        data: dict[str, Any] = {
            "budget": short.budget,
            "of": account.kind,
            "limit": short.limit,
            "used": short.used,
            "left": left,
            "upstream" if account.kind == "subserver" else "caller": account.whose,
        }
        if short.never:
            when = "It has no room for such a call."
        elif short.wait is None:
            when = "The next session begins a new one."
        else:
            data["retry_after_ms"] = wait = max(1, ceil(short.wait * 1000))
            data["refills_at"] = format_utc_ms(self._wall_clock() + wait / 1000)
            when = f"Try again in {wait / 1000:.1f} s."
        whose = _WHOSE[account.kind].format(account.whose)
        return InterlockError(
            BUDGET_EXCEEDED,
            f"The budget of {whose} is used up: {short.used} of {short.limit} ({short.budget}). "
            f"{when}",
            data,
        )


_WHOSE: Final = {
    "subserver": "{}",
    "caller": "the caller {}",
    "session": "this session of {}",
}


class _Registered(Account):
    """The account of a subserver's session."""

    __slots__ = ("session_id", "subserver_id")

    def __init__(
        self,
        key: str,
        subserver_id: str,
        session_id: str,
        budget: SubserverBudget,
        window: SlidingWindow | None,
    ) -> None:
        super().__init__("subserver", key, budget, window)
        self.subserver_id = subserver_id
        self.session_id = session_id

    def is_not(self, subserver_id: str, session_id: str) -> bool:
        return (self.subserver_id, self.session_id) != (subserver_id, session_id)


def _limits(config: BudgetConfig | None) -> SubserverBudget:
    if config is None:
        return NO_LIMIT
    budget = SubserverBudget(
        *(
            UNLIMITED if one is None else one
            for one in (config.calls_per_minute, config.mutable_calls, config.cost_units)
        )
    )
    return NO_LIMIT if budget == NO_LIMIT else budget
