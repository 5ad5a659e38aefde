"""Budgets of sessions and callers: reserved in all accounts or none, and refunded if not used."""

from __future__ import annotations

from interlock.core.config import BudgetConfig, BudgetsConfig, CallerBudget
from interlock.protocol.mcpax import SubserverBudget
from interlock.trust.budgets import MINUTE_SECONDS
from tests.core.pipeline.budget_harness import IDLE, BudgetHarness, caller_budgets


def test_unlimited_caller_reserves_nothing() -> None:
    harness = BudgetHarness(BudgetsConfig())
    assert not harness.budgets.limited
    harness.budgets.configure(BudgetsConfig(session=BudgetConfig(), callers=[CallerBudget()]))
    assert not harness.budgets.limited
    call = harness.call()
    harness.budgets.reserve(call, None)
    assert call.reservations is None


def test_each_session_has_own_budget() -> None:
    harness = BudgetHarness(
        BudgetsConfig(session=BudgetConfig(calls_per_minute=2, mutable_calls=1))
    )
    assert harness.budgets.limited
    first, second = harness.session(), harness.session()
    assert harness.passes("write", session=first)
    assert not harness.passes("write", session=first)
    assert harness.passes("read", session=first)
    assert not harness.passes("read", session=first)
    assert harness.passes("write", session=second)


def test_exceeded_session_budget_reports_its_limit() -> None:
    harness = BudgetHarness(BudgetsConfig(session=BudgetConfig(mutable_calls=1)))
    session = harness.session()
    assert harness.passes("write", session=session)
    error = harness.refusal(harness.call("write", session=session))
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
        "It is full again in the next session."
    )


def test_closed_session_is_removed() -> None:
    harness = BudgetHarness(BudgetsConfig(session=BudgetConfig(mutable_calls=1)))
    for _ in range(10):
        session = harness.session()
        assert harness.passes("write", session=session)
        harness.sessions.close(session)
    assert not harness.budgets._sessions
    # Who calls on one that has ended is treated as one who has none.
    assert harness.passes("write", session=session)
    assert not harness.passes("write", session=session)
    assert not harness.passes("write")


def test_sessionless_client_has_session_during_calls() -> None:
    harness = BudgetHarness(BudgetsConfig(session=BudgetConfig(mutable_calls=2)))
    assert harness.passes("write")
    harness.clock.advance(IDLE - 1)
    assert harness.passes("write")
    harness.clock.advance(IDLE - 1)
    error = harness.refusal(harness.call("write"))
    assert error is not None
    assert error.data is not None
    assert error.data["retry_after_ms"] == 1000
    assert harness.passes("write", who="bert")
    # To be refused is not to be busy.
    harness.clock.advance(1)
    assert harness.passes("write")


def test_caller_minute_spans_all_sessions() -> None:
    harness = BudgetHarness(caller_budgets(CallerBudget(calls_per_minute=3)))
    one, other = harness.session(), harness.session()
    assert harness.passes(session=one)
    assert harness.passes(session=other)
    harness.clock.advance(20)
    assert harness.passes()
    error = harness.refusal(harness.call(session=harness.session()))
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
    assert harness.passes(who="bert")


def test_new_session_does_not_renew_caller_budget() -> None:
    harness = BudgetHarness(caller_budgets(CallerBudget(mutable_calls=2)))
    assert harness.passes("write", session=harness.session())
    assert harness.passes("write", session=harness.session())
    assert not harness.passes("write", session=harness.session())
    harness.clock.advance(IDLE)
    assert harness.passes("write", session=harness.session())


def test_first_matching_budget_applies() -> None:
    harness = BudgetHarness(
        caller_budgets(
            CallerBudget(callers=["ci-*", "cron"], calls_per_minute=1),
            CallerBudget(callers=["ada"]),
            CallerBudget(calls_per_minute=2),
        )
    )
    assert [harness.passes(who="ci-7") for _ in range(2)] == [True, False]
    assert [harness.passes(who="ci-8") for _ in range(2)] == [True, False]
    assert [harness.passes(who="cron") for _ in range(2)] == [True, False]
    assert all(harness.passes(who="ada") for _ in range(10))
    assert [harness.passes(who="bert") for _ in range(3)] == [True, True, False]


def test_zero_budget_allows_no_call() -> None:
    harness = BudgetHarness(caller_budgets(CallerBudget(mutable_calls=0, cost_units=5)))
    for tool in ("write", "expensive"):
        error = harness.refusal(harness.call(tool))
        assert error is not None
        assert error.data is not None
        assert "retry_after_ms" not in error.data
        assert "It allows no such call" in error.message
    assert harness.passes("metered")


# -- all or none, and back


def test_reserves_all_accounts_or_none() -> None:
    harness = BudgetHarness(
        BudgetsConfig(
            session=BudgetConfig(mutable_calls=2), callers=[CallerBudget(calls_per_minute=3)]
        )
    )
    harness.budgets.grant("s", "id", SubserverBudget(max_calls_per_minute=1))
    session = harness.session()
    assert harness.passes("write", session=session)
    for _ in range(5):
        # The subserver has no room: nobody else pays for that.
        error = harness.refusal(harness.call("write", session=session))
        assert error is not None
        assert error.data is not None
        assert error.data["of"] == "subserver"
    assert harness.passes("write", session=session, upstream="other")
    assert not harness.passes("write", session=session, upstream="other")
    assert harness.passes("read", session=session, upstream="other")
    assert not harness.passes("read", session=session, upstream="other")


def test_undispatched_call_is_refunded() -> None:
    harness = BudgetHarness(
        caller_budgets(CallerBudget(calls_per_minute=1, mutable_calls=1, cost_units=10))
    )
    for tool in ("write", "expensive", "read"):
        for _ in range(3):
            call = harness.call(tool)
            assert harness.refusal(call) is None
            assert not harness.passes(tool)
            harness.budgets.release(call, dispatched=False)
            # Once is enough.
            harness.budgets.release(call, dispatched=False)
    call = harness.call("write")
    harness.budgets.reserve(call, None)
    harness.budgets.release(call, dispatched=True)
    harness.budgets.release(call, dispatched=False)
    assert not harness.passes("read")


def test_repeated_reserve_charges_once() -> None:
    harness = BudgetHarness(caller_budgets(CallerBudget(calls_per_minute=2)))
    call = harness.call()
    harness.budgets.reserve(call, None)
    harness.budgets.reserve(call, None)
    assert harness.passes()
    assert not harness.passes()


def test_refund_after_its_minute_has_no_effect() -> None:
    harness = BudgetHarness(caller_budgets(CallerBudget(calls_per_minute=1)))
    slow = harness.call()
    harness.budgets.reserve(slow, None)
    harness.clock.advance(MINUTE_SECONDS)
    assert harness.passes()
    harness.budgets.release(slow, dispatched=False)
    assert not harness.passes()


def test_refund_after_its_session_has_no_effect() -> None:
    harness = BudgetHarness(caller_budgets(CallerBudget(mutable_calls=1)))
    slow = harness.call("write")
    harness.budgets.reserve(slow, None)
    harness.clock.advance(IDLE)
    assert harness.passes("write")
    harness.budgets.release(slow, dispatched=False)
    assert not harness.passes("write")


# -- changes


def test_limits_change_while_running() -> None:
    harness = BudgetHarness(
        BudgetsConfig(session=BudgetConfig(mutable_calls=5), callers=[CallerBudget(cost_units=20)])
    )
    session = harness.session()
    assert harness.passes("write", session=session)
    assert harness.passes("expensive", session=session)
    harness.budgets.configure(
        BudgetsConfig(session=BudgetConfig(mutable_calls=1), callers=[CallerBudget(cost_units=15)]),
        idle=IDLE,
    )
    # What was used stays used.
    assert not harness.passes("write", session=session)
    assert not harness.passes("expensive", session=session)
    assert harness.passes("metered", session=session)
    under_way = harness.call("read", session=session)
    harness.budgets.reserve(under_way, None)
    harness.budgets.configure(BudgetsConfig())
    harness.budgets.release(under_way, dispatched=False)
    assert not harness.budgets.limited
    assert all(harness.passes("write", session=session) for _ in range(10))


def test_lowered_limit_reports_sufficient_wait() -> None:
    harness = BudgetHarness(caller_budgets(CallerBudget(calls_per_minute=10)))
    for _ in range(10):
        assert harness.passes()
        harness.clock.advance(2)
    harness.budgets.configure(caller_budgets(CallerBudget(calls_per_minute=3)), idle=IDLE)
    error = harness.refusal(harness.call())
    assert error is not None
    assert error.data is not None
    assert error.data["left"] == 0
    wait = error.data["retry_after_ms"] / 1000
    harness.clock.advance(wait - 0.001)
    assert not harness.passes()
    harness.clock.advance(0.002)
    assert harness.passes()


def test_idle_callers_are_removed() -> None:
    harness = BudgetHarness(
        BudgetsConfig(
            session=BudgetConfig(calls_per_minute=1),
            callers=[CallerBudget(callers=["a*"], calls_per_minute=1)],
        )
    )
    for number in range(20_000):
        assert harness.passes(who=f"{'ab'[number % 2]}{number}")
        harness.clock.advance(1)
    assert len(harness.budgets._callers) + len(harness.budgets._sessions) <= 4 * IDLE
    # Nobody is forgotten who could be refused.
    assert not harness.passes(who=f"b{number}")
