"""Budgets: limits on calls per minute and per session, for sessions, callers and subservers (MCP-AX
§11.4).

A call has up to three accounts: of its session, of its caller, and of its subserver. It reserves
from all of them or from none before it is sent. A call that is never sent releases its
reservations. The calls of a minute belong to the caller or subserver, so a new connection does not
start a new minute: the minute of a subserver continues when it registers again, and all sessions of
a caller share one minute.

The session of a caller ends when the caller was idle for as long as an unused session is kept. The
same holds for clients without sessions.

Accounts without a limit cost nothing.
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

# -- An account: the calls of the last minute, and the usage of its session.
#
# A call reserves before it is sent, and may release until it is sent. A limit is never exceeded, in
# whatever order calls reserve and release.

D = TypeVar("D")

MINUTE_SECONDS: Final = 60.0

CALLS_PER_MINUTE: Final = "max_calls_per_minute"
MUTABLE_CALLS: Final = "max_mutable_calls_per_session"
COST_UNITS: Final = "max_cost_units_per_session"

NO_LIMIT: Final = SubserverBudget(UNLIMITED, UNLIMITED, UNLIMITED)


class SessionUsage:
    """The usage of one session."""

    __slots__ = ("cost_units", "mutable_calls")

    def __init__(self) -> None:
        self.mutable_calls = 0
        self.cost_units = 0


Reservation = tuple[SlidingWindow, Group, SessionUsage, bool, int]
"""The reservation of a call from one account: the window and its group, the session usage, whether
the call is mutable, and its cost units. A plain tuple, because nothing is created faster, and each
call needs one."""


def release_reservation(reservation: Reservation) -> None:
    """Release the reservation of a call that was never sent."""
    window, group, usage, mutable, units = reservation
    window.remove(group)
    usage.mutable_calls -= mutable
    usage.cost_units -= units


class BudgetShortfall(NamedTuple):
    """The reason why an account rejects a call."""

    budget: str
    limit: int
    used_units: int
    wait: float | None
    """Seconds until the call is possible. None: not in this session."""
    never: bool = False
    """True if the limit is lower than the call needs, whatever was used."""


class Account:
    """A budget and its usage.

    It counts three things at once, in a minute and in a session, and a call needs all of them. The
    calls of the minute are a `SlidingWindow`.
    """

    __slots__ = ("budget", "idle", "kind", "last_call", "owner", "usage", "window")

    def __init__(
        self,
        kind: str,
        owner: str,
        budget: SubserverBudget,
        window: SlidingWindow | None = None,
        idle: float | None = None,
    ) -> None:
        """Args:
        idle: the session ends after so many seconds without a call. None: it is ended explicitly.
        """
        self.kind = kind
        self.owner = owner
        self.budget = budget
        self.window = window or SlidingWindow(MINUTE_SECONDS)
        self.usage = SessionUsage()
        self.idle = idle
        self.last_call = float("-inf")

    def count_calls(self, now: float) -> int:
        """Return the calls of the last minute. Resets the usage of a session that has ended."""
        if self.idle is not None and now - self.last_call >= self.idle:
            self.usage = SessionUsage()
        return self.window.advance(now)

    def check(self, now: float, mutable: bool, units: int) -> BudgetShortfall | None:
        """Return why a call would exceed the budget. None: it would not."""
        if self.idle is not None and now - self.last_call >= self.idle:
            self.usage = SessionUsage()
        budget, window, usage = self.budget, self.window, self.usage
        used_units = window.count if now < window.exact_until else window.advance(now)
        limit = budget.max_calls_per_minute
        if used_units >= limit:
            if not limit:
                return BudgetShortfall(CALLS_PER_MINUTE, limit, used_units, None, True)
            return BudgetShortfall(
                CALLS_PER_MINUTE, limit, used_units, window.wait_seconds(now, limit)
            )
        if mutable:
            limit = budget.max_mutable_calls_per_session
            if usage.mutable_calls >= limit:
                return BudgetShortfall(
                    MUTABLE_CALLS, limit, usage.mutable_calls, *self._session_wait(now, not limit)
                )
        if units:
            limit = budget.max_cost_units_per_session
            if usage.cost_units + units > limit:
                return BudgetShortfall(
                    COST_UNITS, limit, usage.cost_units, *self._session_wait(now, units > limit)
                )
        return None

    def _session_wait(self, now: float, never: bool) -> tuple[float | None, bool]:
        """Return the seconds until the idle session ends, and `never`."""
        wait = None if never or self.idle is None else self.last_call + self.idle - now
        return wait, never

    def reserve(self, now: float, mutable: bool, units: int) -> Reservation:
        """Count a call that passed `check`."""
        self.last_call = now
        window, usage = self.window, self.usage
        if mutable:
            usage.mutable_calls += 1
        if units:
            usage.cost_units += units
        return window, window.add(now), usage, mutable, units

    def is_unused(self, now: float) -> bool:
        """Return whether the account is like a new one, and can be removed."""
        idle = MINUTE_SECONDS if self.idle is None else max(self.idle, MINUTE_SECONDS)
        return now - self.last_call >= idle


SESSION_IDLE_SECONDS: Final = 3600.0
_MIN_SWEEP_ACCOUNTS: Final = 1024
"""Unused accounts are only searched for when there are more accounts than this."""
_SESSIONS_KEY: Final = " sessions"
_CALLERS_KEY: Final = " callers"


class Budgets:
    """All accounts of a node."""

    def __init__(self, clock: Clock, wall_clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._subservers: dict[str, _SubserverAccount] = {}
        self._disconnected_windows: dict[str, tuple[float, SlidingWindow]] = {}
        """The minutes of disconnected subservers by id, the longest disconnected first."""
        self._config = BudgetsConfig()
        self._session_budget = NO_LIMIT
        self._idle = SESSION_IDLE_SECONDS
        self._sessions: dict[object, Account] = {}
        """By session. For clients without sessions, by the name of the caller."""
        self._callers: dict[str, Account | None] = {}
        """None: no budget of the config applies to this caller."""
        self._sweep_at = _MIN_SWEEP_ACCOUNTS
        self.limited: dict[str, object] = {}
        """The limited accounts. This dictionary is never replaced, so a step can test whether it is
        empty."""

    # -- Configuration

    def configure(self, config: BudgetsConfig, *, idle: float = SESSION_IDLE_SECONDS) -> None:
        """Set the budgets of sessions and callers. Their usage stays."""
        self._config = config
        self._idle = idle
        self._session_budget = budget = _read_limits(config.session)
        if budget == NO_LIMIT:
            self._sessions.clear()
            self.limited.pop(_SESSIONS_KEY, None)
        else:
            self.limited[_SESSIONS_KEY] = budget
        for key, account in self._sessions.items():
            account.budget = budget
            account.idle = idle if isinstance(key, str) else None
        previous, self._callers = self._callers, {}
        for name, previous_account in previous.items():
            if previous_account is not None and (limits := self._find_limits(name)) is not None:
                previous_account.budget, previous_account.idle = limits, idle
                self._callers[name] = previous_account
        if any(_read_limits(entry) != NO_LIMIT for entry in config.callers):
            self.limited[_CALLERS_KEY] = config.callers
        else:
            self.limited.pop(_CALLERS_KEY, None)

    # -- Registered subservers

    def grant(
        self, key: str, subserver_id: str, budget: SubserverBudget, session_id: str = ""
    ) -> None:
        """Start the account of a subserver session. For an existing session, change its limits."""
        self._remove_old_windows()
        account = self._subservers.get(key)
        if account is None or not account.is_session(subserver_id, session_id):
            self.end_session(key)
            _, window = self._disconnected_windows.pop(subserver_id, (0.0, None))
            account = _SubserverAccount(key, subserver_id, session_id, budget, window)
            self._subservers[key] = account
        account.budget = budget
        if budget == NO_LIMIT:
            self.limited.pop(key, None)
        else:
            self.limited[key] = account

    def end_session(self, key: str) -> None:
        """End the session of a subserver. Its minute is kept for a new registration."""
        account = self._subservers.pop(key, None)
        self.limited.pop(key, None)
        if account is not None and account.window.count:
            self._disconnected_windows.pop(account.subserver_id, None)
            self._disconnected_windows[account.subserver_id] = (self._clock(), account.window)

    def read_usage(self, key: str) -> tuple[int, int, int] | None:
        """Return calls of the last minute, mutable calls and cost units of a subserver's session.
        None: it has no limit."""
        account = self._subservers.get(key) if key in self.limited else None
        if account is None:
            return None
        calls = account.count_calls(self._clock())
        return calls, account.usage.mutable_calls, account.usage.cost_units

    def _remove_old_windows(self) -> None:
        expired = self._clock() - MINUTE_SECONDS
        while self._disconnected_windows:
            subserver_id, (left_at, _) = next(iter(self._disconnected_windows.items()))
            if left_at > expired:
                return
            del self._disconnected_windows[subserver_id]

    # -- Calls

    def reserve(self, call: Call, decision: D) -> D:
        """Decision step: reserve what a call of a tool needs, from all its accounts or from none.

        Returns the decision unchanged. Raises InterlockError when the call would exceed a budget. A
        rejected call reserves nothing.
        """
        if call.reservations is not None:
            return decision
        tool, clock = call.route, self._clock
        # A call of an unknown tool may change anything, and costs no units.
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
            # The common case: only the account of the caller. No list is needed.
            account = self._callers.get(caller.name)
            if account is not None:
                shortfall = account.check(now, mutable, units)
                if shortfall is not None:
                    raise self._exceeded(account, shortfall)
                call.reservations = (account.reserve(now, mutable, units),)
                return decision
        accounts = self._accounts(call)
        for account in accounts:
            shortfall = account.check(now, mutable, units)
            if shortfall is not None:
                raise self._exceeded(account, shortfall)
        if accounts:
            call.reservations = [account.reserve(now, mutable, units) for account in accounts]
        return decision

    def release(self, call: Call, dispatched: bool) -> None:
        """End a call, and release its reservations if it was never sent. A second call does
        nothing."""
        reservations = cast("Sequence[Reservation] | None", call.reservations)
        if reservations is None:
            return
        call.reservations = None
        if not dispatched:
            for reservation in reservations:
                release_reservation(reservation)

    def _accounts(self, call: Call) -> list[Account]:
        accounts: list[Account] = []
        if self._session_budget is not NO_LIMIT:
            accounts.append(self._session_account(call))
        if self._config.callers and call.caller is not None:
            account = self._caller_account(call.caller.name)
            if account is not None:
                accounts.append(account)
        if call.upstream in self.limited:
            accounts.append(self._subservers[call.upstream])
        return accounts

    def _session_account(self, call: Call) -> Account:
        session = call.session
        name = "" if call.caller is None else call.caller.name
        # A session that has ended would never report its end again.
        key: object = name if session is None or not session.is_alive else session
        account = self._sessions.get(key)
        if account is None:
            self._sweep()
            has_no_session = isinstance(key, str)
            idle = self._idle if has_no_session else None
            account = Account("session", name, self._session_budget, idle=idle)
            self._sessions[key] = account
            if session is not None and not has_no_session:
                session.on_close.append(lambda: self._on_session_end(session))
        return account

    def _on_session_end(self, session: object) -> None:
        self._sessions.pop(session, None)

    def _caller_account(self, name: str) -> Account | None:
        try:
            return self._callers[name]
        except KeyError:
            self._sweep()
            budget = self._find_limits(name)
            account = None if budget is None else Account("caller", name, budget, idle=self._idle)
            self._callers[name] = account
            return account

    def _find_limits(self, name: str) -> SubserverBudget | None:
        """Return the limits of the first entry in the config for this caller. None: no limit."""
        for entry in self._config.callers:
            if not entry.callers or any(fnmatchcase(name, glob) for glob in entry.callers):
                budget = _read_limits(entry)
                return None if budget is NO_LIMIT else budget
        return None

    def _sweep(self) -> None:
        """Remove unused accounts: the number of callers is not limited."""
        if len(self._callers) + len(self._sessions) < self._sweep_at:
            return
        now = self._clock()
        self._callers = {
            name: account
            for name, account in self._callers.items()
            if account is not None and not account.is_unused(now)
        }
        self._sessions = {
            key: account
            for key, account in self._sessions.items()
            if not (isinstance(key, str) and account.is_unused(now))
        }
        accounts = len(self._callers) + len(self._sessions)
        self._sweep_at = max(_MIN_SWEEP_ACCOUNTS, 2 * accounts)

    def _exceeded(self, account: Account, shortfall: BudgetShortfall) -> InterlockError:
        remaining = max(0, shortfall.limit - shortfall.used_units)
        data: dict[str, Any] = {
            "budget": shortfall.budget,
            "of": account.kind,
            "limit": shortfall.limit,
            "used": shortfall.used_units,
            "left": remaining,
            "upstream" if account.kind == "subserver" else "caller": account.owner,
        }
        if shortfall.never:
            when = "It allows no such call."
        elif shortfall.wait is None:
            when = "It is full again in the next session."
        else:
            data["retry_after_ms"] = wait = max(1, ceil(shortfall.wait * 1000))
            data["refills_at"] = format_utc_ms(self._wall_clock() + wait / 1000)
            when = f"Try again in {wait / 1000:.1f} s."
        owner = _OWNER_TEXTS[account.kind].format(account.owner)
        return InterlockError(
            BUDGET_EXCEEDED,
            f"The budget of {owner} is used up: {shortfall.used_units} of {shortfall.limit} "
            f"({shortfall.budget}). {when}",
            data,
        )


_OWNER_TEXTS: Final = {
    "subserver": "{}",
    "caller": "the caller {}",
    "session": "this session of {}",
}


class _SubserverAccount(Account):
    """The account of a subserver session."""

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

    def is_session(self, subserver_id: str, session_id: str) -> bool:
        return (self.subserver_id, self.session_id) == (subserver_id, session_id)


def _read_limits(config: BudgetConfig | None) -> SubserverBudget:
    if config is None:
        return NO_LIMIT
    budget = SubserverBudget(
        *(
            UNLIMITED if limit is None else limit
            for limit in (config.calls_per_minute, config.mutable_calls, config.cost_units)
        )
    )
    return NO_LIMIT if budget == NO_LIMIT else budget
