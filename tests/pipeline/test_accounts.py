"""Budgets of sessions and callers: taken from all accounts or none, and given back if not used."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from interlock.call import (
    Call,
    Caller,
    ClientSession,
    Outcome,
    RelayedError,
    UpstreamAnsweredError,
    UpstreamGoneError,
)
from interlock.catalog.offering import Tool
from interlock.config import BudgetConfig, BudgetsConfig, CallerBudget
from interlock.errors import (
    BUDGET_EXCEEDED,
    CANCELLED,
    CIRCUIT_OPEN,
    UPSTREAM_LOST,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
)
from interlock.faces.mcp.sessions import Sessions
from interlock.pipeline.accounts import GRAIN, MINUTE, Window
from interlock.pipeline.budget import Budgets, was_sent
from interlock.protocol.ax import Budget
from interlock.protocol.mcp import Era, glance_at
from tests.catalog.offers import offer
from tests.pipeline.calls import SESSION, tool_call
from tests.pipeline.rig import HandClock, ScriptedExchange

IDLE = 600.0
_capability = {"mutable": True, "cost_class": "free"}


def _tool(name: str, **capability: Any) -> bytes:
    meta = {"x-mcpax-capability": {**_capability, **capability}}
    return json.dumps(
        {"name": name, "inputSchema": {"type": "object"}, "_meta": meta}
    ).encode()  # fmt: skip


TOOLS: dict[str, Tool] = {
    tool.upstream_name: tool
    for tool in offer(
        "s",
        [
            _tool("read", mutable=False),
            _tool("write"),
            _tool("metered", mutable=False, cost_class="metered"),
            _tool("expensive", mutable=False, cost_class="expensive"),
        ],
        trust_annotations=True,
    ).tools
}


class Desk:
    """Budgets, a clock, and calls that somebody makes."""

    def __init__(self, config: BudgetsConfig, idle: float = IDLE) -> None:
        self.clock = HandClock()
        self.budgets = Budgets(self.clock, lambda: 1_700_000_000.0 + self.clock() - 1000)
        self.sessions = Sessions(most=100, idle=idle, clock=self.clock)
        self.budgets.configure(config, idle=idle)

    def session(self, who: str = "ada") -> Any:
        return self.sessions.open(SESSION, who)

    def call(
        self,
        tool: str = "read",
        who: str = "ada",
        session: ClientSession | None = None,
        upstream: str = "s",
    ) -> Call:
        call = tool_call(f"{upstream}.{tool}", upstream=upstream, session=session)
        call.caller, call.route = Caller(who), TOOLS[tool]
        return call

    def passes(self, *args: Any, **named: Any) -> bool:
        call = self.call(*args, **named)
        return self.refusal(call) is None

    def refusal(self, call: Call) -> InterlockError | None:
        try:
            self.budgets.reserve(call)
        except InterlockError as error:
            refused = error
        else:
            return None
        assert refused.failure is BUDGET_EXCEEDED
        assert call.reserved is None
        return refused


def of_callers(*callers: CallerBudget) -> BudgetsConfig:
    return BudgetsConfig(callers=list(callers))


# -- whose


def test_nobody_pays_who_has_no_budget() -> None:
    desk = Desk(BudgetsConfig())
    assert not desk.budgets.limited
    desk.budgets.configure(BudgetsConfig(session=BudgetConfig(), callers=[CallerBudget()]))
    assert not desk.budgets.limited
    call = desk.call()
    desk.budgets.reserve(call)
    assert call.reserved is None


def test_every_session_has_its_own() -> None:
    desk = Desk(BudgetsConfig(session=BudgetConfig(calls_per_minute=2, mutable_calls=1)))
    assert desk.budgets.limited
    first, second = desk.session(), desk.session()
    assert desk.passes("write", session=first)
    assert not desk.passes("write", session=first)
    assert desk.passes("read", session=first)
    assert not desk.passes("read", session=first)
    assert desk.passes("write", session=second)


def test_what_a_session_was_refused_for() -> None:
    desk = Desk(BudgetsConfig(session=BudgetConfig(mutable_calls=1)))
    session = desk.session()
    assert desk.passes("write", session=session)
    error = desk.refusal(desk.call("write", session=session))
    assert error is not None
    assert error.data == {
        "budget": "max_mutable_calls_per_session",
        "of": "session",
        "limit": 1,
        "used": 1,
        "left": 0,
        "caller": "ada",
    }
    assert error.message == (
        "The budget of this session of ada is used up: 1 of 1 (max_mutable_calls_per_session). "
        "The next session begins a new one."
    )


def test_a_session_that_ends_is_forgotten() -> None:
    desk = Desk(BudgetsConfig(session=BudgetConfig(mutable_calls=1)))
    for _ in range(10):
        session = desk.session()
        assert desk.passes("write", session=session)
        desk.sessions.close(session)
    assert not desk.budgets._sessions
    # Who calls on one that has ended is treated as one who has none.
    assert desk.passes("write", session=session)
    assert not desk.passes("write", session=session)
    assert not desk.passes("write")


def test_a_client_without_sessions_has_one_while_it_calls() -> None:
    desk = Desk(BudgetsConfig(session=BudgetConfig(mutable_calls=2)))
    assert desk.passes("write")
    desk.clock.advance(IDLE - 1)
    assert desk.passes("write")
    desk.clock.advance(IDLE - 1)
    error = desk.refusal(desk.call("write"))
    assert error is not None
    assert error.data is not None
    assert error.data["retry_after_ms"] == 1000
    assert desk.passes("write", who="bert")
    # To be refused is not to be busy.
    desk.clock.advance(1)
    assert desk.passes("write")


def test_a_callers_minute_is_one_over_all_its_sessions() -> None:
    desk = Desk(of_callers(CallerBudget(calls_per_minute=3)))
    one, other = desk.session(), desk.session()
    assert desk.passes(session=one)
    assert desk.passes(session=other)
    desk.clock.advance(20)
    assert desk.passes()
    error = desk.refusal(desk.call(session=desk.session()))
    assert error is not None
    assert error.data == {
        "budget": "max_calls_per_minute",
        "of": "caller",
        "limit": 3,
        "used": 3,
        "left": 0,
        "caller": "ada",
        "retry_after_ms": 40_000,
        "refills_at": "2023-11-14T22:14:20.000Z",
    }
    assert error.retryable
    assert "the caller ada" in error.message
    assert desk.passes(who="bert")


def test_new_sessions_do_not_renew_what_a_caller_has_used() -> None:
    desk = Desk(of_callers(CallerBudget(mutable_calls=2)))
    assert desk.passes("write", session=desk.session())
    assert desk.passes("write", session=desk.session())
    assert not desk.passes("write", session=desk.session())
    desk.clock.advance(IDLE)
    assert desk.passes("write", session=desk.session())


def test_the_first_budget_that_fits() -> None:
    desk = Desk(
        of_callers(
            CallerBudget(callers=["ci-*", "cron"], calls_per_minute=1),
            CallerBudget(callers=["ada"]),
            CallerBudget(calls_per_minute=2),
        )
    )
    assert [desk.passes(who="ci-7") for _ in range(2)] == [True, False]
    assert [desk.passes(who="ci-8") for _ in range(2)] == [True, False]
    assert [desk.passes(who="cron") for _ in range(2)] == [True, False]
    assert all(desk.passes(who="ada") for _ in range(10))
    assert [desk.passes(who="bert") for _ in range(3)] == [True, True, False]


def test_a_budget_of_nothing_says_so() -> None:
    desk = Desk(of_callers(CallerBudget(mutable_calls=0, cost_units=5)))
    for tool in ("write", "expensive"):
        error = desk.refusal(desk.call(tool))
        assert error is not None
        assert error.data is not None
        assert "retry_after_ms" not in error.data
        assert "no room for such a call" in error.message
    assert desk.passes("metered")


# -- all or none, and back


def test_all_accounts_or_none() -> None:
    desk = Desk(
        BudgetsConfig(
            session=BudgetConfig(mutable_calls=2), callers=[CallerBudget(calls_per_minute=3)]
        )
    )
    desk.budgets.grant("s", "id", Budget(max_calls_per_minute=1))
    session = desk.session()
    assert desk.passes("write", session=session)
    for _ in range(5):
        # The subserver has no room: nobody else pays for that.
        error = desk.refusal(desk.call("write", session=session))
        assert error is not None
        assert error.data is not None
        assert error.data["of"] == "subserver"
    assert desk.passes("write", session=session, upstream="other")
    assert not desk.passes("write", session=session, upstream="other")
    assert desk.passes("read", session=session, upstream="other")
    assert not desk.passes("read", session=session, upstream="other")


def test_what_never_left_is_given_back() -> None:
    desk = Desk(of_callers(CallerBudget(calls_per_minute=1, mutable_calls=1, cost_units=10)))
    for tool in ("write", "expensive", "read"):
        for _ in range(3):
            call = desk.call(tool)
            assert desk.refusal(call) is None
            assert not desk.passes(tool)
            desk.budgets.settle(call, sent=False)
            # Once is enough.
            desk.budgets.settle(call, sent=False)
    call = desk.call("write")
    desk.budgets.reserve(call)
    desk.budgets.settle(call, sent=True)
    desk.budgets.settle(call, sent=False)
    assert not desk.passes("read")


def test_reserving_twice_takes_once() -> None:
    desk = Desk(of_callers(CallerBudget(calls_per_minute=2)))
    call = desk.call()
    desk.budgets.reserve(call)
    desk.budgets.reserve(call)
    assert desk.passes()
    assert not desk.passes()


def test_what_comes_back_after_its_minute_counts_nothing() -> None:
    desk = Desk(of_callers(CallerBudget(calls_per_minute=1)))
    slow = desk.call()
    desk.budgets.reserve(slow)
    desk.clock.advance(MINUTE)
    assert desk.passes()
    desk.budgets.settle(slow, sent=False)
    assert not desk.passes()


def test_what_comes_back_after_its_session_counts_nothing() -> None:
    desk = Desk(of_callers(CallerBudget(mutable_calls=1)))
    slow = desk.call("write")
    desk.budgets.reserve(slow)
    desk.clock.advance(IDLE)
    assert desk.passes("write")
    desk.budgets.settle(slow, sent=False)
    assert not desk.passes("write")


# -- changes


def test_other_limits_while_it_runs() -> None:
    desk = Desk(
        BudgetsConfig(session=BudgetConfig(mutable_calls=5), callers=[CallerBudget(cost_units=20)])
    )
    session = desk.session()
    assert desk.passes("write", session=session)
    assert desk.passes("expensive", session=session)
    desk.budgets.configure(
        BudgetsConfig(session=BudgetConfig(mutable_calls=1), callers=[CallerBudget(cost_units=15)]),
        idle=IDLE,
    )
    # What was used stays used.
    assert not desk.passes("write", session=session)
    assert not desk.passes("expensive", session=session)
    assert desk.passes("metered", session=session)
    under_way = desk.call("read", session=session)
    desk.budgets.reserve(under_way)
    desk.budgets.configure(BudgetsConfig())
    desk.budgets.settle(under_way, sent=False)
    assert not desk.budgets.limited
    assert all(desk.passes("write", session=session) for _ in range(10))


def test_after_a_smaller_limit_the_wait_is_long_enough() -> None:
    desk = Desk(of_callers(CallerBudget(calls_per_minute=10)))
    for _ in range(10):
        assert desk.passes()
        desk.clock.advance(2)
    desk.budgets.configure(of_callers(CallerBudget(calls_per_minute=3)), idle=IDLE)
    error = desk.refusal(desk.call())
    assert error is not None
    assert error.data is not None
    assert error.data["left"] == 0
    wait = error.data["retry_after_ms"] / 1000
    desk.clock.advance(wait - 0.001)
    assert not desk.passes()
    desk.clock.advance(0.002)
    assert desk.passes()


def test_callers_without_number_are_forgotten() -> None:
    desk = Desk(
        BudgetsConfig(
            session=BudgetConfig(calls_per_minute=1),
            callers=[CallerBudget(callers=["a*"], calls_per_minute=1)],
        )
    )
    for number in range(20_000):
        assert desk.passes(who=f"{'ab'[number % 2]}{number}")
        desk.clock.advance(1)
    assert len(desk.budgets._callers) + len(desk.budgets._sessions) <= 4 * IDLE
    # Nobody is forgotten who could be refused.
    assert not desk.passes(who=f"b{number}")


# -- was it sent?


@pytest.mark.parametrize(
    ("error", "started", "sent"),
    [
        (None, True, True),
        (InterlockError(CIRCUIT_OPEN, ""), False, False),
        (InterlockError(UPSTREAM_UNAVAILABLE, ""), False, False),
        (InterlockError(CANCELLED, ""), True, True),
        (UpstreamGoneError(UPSTREAM_LOST, "", sent=True), True, True),
        (UpstreamGoneError(UPSTREAM_UNAVAILABLE, "", sent=False), True, False),
        (UpstreamAnsweredError(-1, "", None), False, True),
        (RelayedError(BUDGET_EXCEEDED, ""), False, True),
    ],
)
def test_what_counts_as_sent(error: InterlockError | None, started: bool, sent: bool) -> None:
    call = tool_call(upstream="s")
    outcome = Outcome(b"{}", Era.SESSION, glance_at(b"{}")) if error is None else None
    if started:
        call.exchange = ScriptedExchange(call, None)  # type: ignore[arg-type]
    assert was_sent(call, outcome, error) is sent


def test_what_is_answered_without_being_sent() -> None:
    own, kept = Outcome(b"{}", Era.SESSION), Outcome(b"{}", Era.SESSION, glance_at(b"{}"))
    assert not was_sent(tool_call(upstream="s"), own, None)
    # The outcome of another call, kept for this one.
    assert not was_sent(tool_call(upstream="s"), kept, None)
    # The node's own tools answer at once.
    assert was_sent(tool_call(upstream=""), kept, None)


def test_what_was_sent_again_may_have_been_sent_before() -> None:
    call = tool_call()
    call.sent_again, call.exchange = True, object()
    assert was_sent(call, None, UpstreamGoneError(UPSTREAM_UNAVAILABLE, "", sent=False))


# -- whatever happens


class AnyOrder(RuleBasedStateMachine):
    """Calls that take, leave, or come back, in any order and at any time: never over a limit, and
    never refused where there is room."""

    under_way = Bundle("under_way")

    @initialize(
        session=st.builds(BudgetConfig, *[st.none() | st.integers(1, 4)] * 3),
        caller=st.builds(BudgetConfig, *[st.none() | st.integers(1, 12)] * 3),
        subserver=st.integers(1, 5),
    )
    def begin(self, session: BudgetConfig, caller: BudgetConfig, subserver: int) -> None:
        whole = CallerBudget(caller.calls_per_minute, caller.mutable_calls, caller.cost_units)
        # No stretch of calls ends by itself here.
        self.desk = Desk(BudgetsConfig(session=session, callers=[whole]), idle=1e9)
        self.desk.budgets.grant("s", "id", Budget(max_calls_per_minute=subserver))
        self.limits = {"session": session, "caller": whole}
        self.subserver = subserver
        self.sessions = [self.desk.session("ada"), self.desk.session("bert")]
        self.counted: list[tuple[float, Call]] = []
        """What was taken and not given back."""

    @rule(
        target=under_way,
        tool=st.sampled_from(sorted(TOOLS)),
        who=st.sampled_from(["ada", "bert"]),
        own_session=st.booleans(),
        upstream=st.sampled_from(["s", "other"]),
    )
    def call(self, tool: str, who: str, own_session: bool, upstream: str) -> Call:
        session = self.sessions[0 if who == "ada" else 1] if own_session else None
        call = self.desk.call(tool, who, session, upstream)
        before = self._used(call)
        error = self.desk.refusal(call)
        if error is None:
            self.counted.append((self.desk.clock(), call))
        else:
            assert error.data is not None
            of = error.data["of"]
            limit, used = error.data["limit"], error.data["used"]
            # It says what is so; a group counts for as long as the last of it.
            if error.data["budget"] != "max_calls_per_minute":
                assert used == before[of, error.data["budget"]]
            assert used + self._units(call, error.data["budget"]) > limit
            assert error.data["left"] == max(0, limit - used)
        return call

    @rule(call=under_way, sent=st.booleans())
    def settle(self, call: Call, sent: bool) -> None:
        reserved = call.reserved is not None
        self.desk.budgets.settle(call, sent)
        if reserved and not sent:
            self.counted = [one for one in self.counted if one[1] is not call]

    @rule(seconds=st.floats(0, 90))
    def wait(self, seconds: float) -> None:
        self.desk.clock.advance(seconds)

    @rule(who=st.sampled_from([0, 1]))
    def reconnect(self, who: int) -> None:
        session = self.sessions[who]
        self.desk.sessions.close(session)
        self.sessions[who] = self.desk.session(session.owner)

    @invariant()
    def never_over_a_limit(self) -> None:
        if not hasattr(self, "desk"):
            return
        for call in (one for _, one in self.counted):
            for (of, budget), used in self._used(call).items():
                limit = self._limit(of, budget)
                assert limit is None or used <= limit, (of, budget)

    def _limit(self, of: str, budget: str) -> int | None:
        if of == "subserver":
            return self.subserver if budget == "max_calls_per_minute" else None
        config = self.limits[of]
        return {
            "max_calls_per_minute": config.calls_per_minute,
            "max_mutable_calls_per_session": config.mutable_calls,
            "max_cost_units_per_session": config.cost_units,
        }[budget]

    @staticmethod
    def _units(call: Call, budget: str) -> int:
        assert isinstance(call.route, Tool)
        if budget == "max_cost_units_per_session":
            return call.route.cost_units
        return 1

    def _used(self, call: Call) -> dict[tuple[str, str], int]:
        """What the accounts of this call hold, by what is known to have been taken."""
        now = self.desk.clock()
        found: dict[tuple[str, str], int] = {}
        for of in ("session", "caller", "subserver"):
            same = [one for one in self.counted if self._same(of, one[1], call)]
            minute = [one for when, one in same if when + MINUTE > now]
            session = [one.route for _, one in same]
            found[of, "max_calls_per_minute"] = len(minute)
            found[of, "max_mutable_calls_per_session"] = sum(
                isinstance(one, Tool) and one.mutable for one in session
            )
            found[of, "max_cost_units_per_session"] = sum(
                one.cost_units for one in session if isinstance(one, Tool)
            )
        return found

    @staticmethod
    def _same(of: str, one: Call, other: Call) -> bool:
        if of == "subserver":
            return one.upstream == other.upstream == "s"
        assert one.caller is not None
        assert other.caller is not None
        if of == "caller":
            return one.caller.name == other.caller.name
        return one.session is other.session and (
            one.session is not None or one.caller.name == other.caller.name
        )


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase


@given(steps=st.lists(st.tuples(st.floats(0, 70), st.booleans()), max_size=60))
def test_a_window_counts_what_is_in_it(steps: list[tuple[float, bool]]) -> None:
    window, now = Window(), 0.0
    inside: list[tuple[float, list[float]]] = []
    for pause, back in steps:
        now += pause
        if back and inside:
            window.give_back(inside.pop()[1])
        else:
            inside.append((now, window.add(now)))
        sure = sum(when + MINUTE > now for when, _ in inside)
        perhaps = sum(when + MINUTE + GRAIN > now for when, _ in inside)
        assert sure <= window.look(now) <= perhaps
