"""Budgets of sessions and callers: taken from all accounts or none, and given back if not used."""

from __future__ import annotations

from interlock.core.config import BudgetConfig, BudgetsConfig, CallerBudget
from interlock.protocol.mcpax import SubserverBudget
from interlock.trust.budgets import MINUTE_SECONDS
from tests.core.pipeline.budget_harness import IDLE, BudgetHarness, caller_budgets


def test_nobody_pays_who_has_no_budget() -> None:
    desk = BudgetHarness(BudgetsConfig())
    assert not desk.budgets.limited
    desk.budgets.configure(BudgetsConfig(session=BudgetConfig(), callers=[CallerBudget()]))
    assert not desk.budgets.limited
    call = desk.call()
    desk.budgets.reserve(call, None)
    assert call.reservations is None


def test_every_session_has_its_own() -> None:
    desk = BudgetHarness(BudgetsConfig(session=BudgetConfig(calls_per_minute=2, mutable_calls=1)))
    assert desk.budgets.limited
    first, second = desk.session(), desk.session()
    assert desk.passes("write", session=first)
    assert not desk.passes("write", session=first)
    assert desk.passes("read", session=first)
    assert not desk.passes("read", session=first)
    assert desk.passes("write", session=second)


def test_what_a_session_was_refused_for() -> None:
    desk = BudgetHarness(BudgetsConfig(session=BudgetConfig(mutable_calls=1)))
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
        "It is full again in the next session."
    )


def test_a_session_that_ends_is_forgotten() -> None:
    desk = BudgetHarness(BudgetsConfig(session=BudgetConfig(mutable_calls=1)))
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
    desk = BudgetHarness(BudgetsConfig(session=BudgetConfig(mutable_calls=2)))
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
    desk = BudgetHarness(caller_budgets(CallerBudget(calls_per_minute=3)))
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
    desk = BudgetHarness(caller_budgets(CallerBudget(mutable_calls=2)))
    assert desk.passes("write", session=desk.session())
    assert desk.passes("write", session=desk.session())
    assert not desk.passes("write", session=desk.session())
    desk.clock.advance(IDLE)
    assert desk.passes("write", session=desk.session())


def test_the_first_budget_that_fits() -> None:
    desk = BudgetHarness(
        caller_budgets(
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
    desk = BudgetHarness(caller_budgets(CallerBudget(mutable_calls=0, cost_units=5)))
    for tool in ("write", "expensive"):
        error = desk.refusal(desk.call(tool))
        assert error is not None
        assert error.data is not None
        assert "retry_after_ms" not in error.data
        assert "It allows no such call" in error.message
    assert desk.passes("metered")


# -- all or none, and back


def test_all_accounts_or_none() -> None:
    desk = BudgetHarness(
        BudgetsConfig(
            session=BudgetConfig(mutable_calls=2), callers=[CallerBudget(calls_per_minute=3)]
        )
    )
    desk.budgets.grant("s", "id", SubserverBudget(max_calls_per_minute=1))
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
    desk = BudgetHarness(
        caller_budgets(CallerBudget(calls_per_minute=1, mutable_calls=1, cost_units=10))
    )
    for tool in ("write", "expensive", "read"):
        for _ in range(3):
            call = desk.call(tool)
            assert desk.refusal(call) is None
            assert not desk.passes(tool)
            desk.budgets.release(call, dispatched=False)
            # Once is enough.
            desk.budgets.release(call, dispatched=False)
    call = desk.call("write")
    desk.budgets.reserve(call, None)
    desk.budgets.release(call, dispatched=True)
    desk.budgets.release(call, dispatched=False)
    assert not desk.passes("read")


def test_reserving_twice_takes_once() -> None:
    desk = BudgetHarness(caller_budgets(CallerBudget(calls_per_minute=2)))
    call = desk.call()
    desk.budgets.reserve(call, None)
    desk.budgets.reserve(call, None)
    assert desk.passes()
    assert not desk.passes()


def test_what_comes_back_after_its_minute_counts_nothing() -> None:
    desk = BudgetHarness(caller_budgets(CallerBudget(calls_per_minute=1)))
    slow = desk.call()
    desk.budgets.reserve(slow, None)
    desk.clock.advance(MINUTE_SECONDS)
    assert desk.passes()
    desk.budgets.release(slow, dispatched=False)
    assert not desk.passes()


def test_what_comes_back_after_its_session_counts_nothing() -> None:
    desk = BudgetHarness(caller_budgets(CallerBudget(mutable_calls=1)))
    slow = desk.call("write")
    desk.budgets.reserve(slow, None)
    desk.clock.advance(IDLE)
    assert desk.passes("write")
    desk.budgets.release(slow, dispatched=False)
    assert not desk.passes("write")


# -- changes


def test_other_limits_while_it_runs() -> None:
    desk = BudgetHarness(
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
    desk.budgets.reserve(under_way, None)
    desk.budgets.configure(BudgetsConfig())
    desk.budgets.release(under_way, dispatched=False)
    assert not desk.budgets.limited
    assert all(desk.passes("write", session=session) for _ in range(10))


def test_after_a_smaller_limit_the_wait_is_long_enough() -> None:
    desk = BudgetHarness(caller_budgets(CallerBudget(calls_per_minute=10)))
    for _ in range(10):
        assert desk.passes()
        desk.clock.advance(2)
    desk.budgets.configure(caller_budgets(CallerBudget(calls_per_minute=3)), idle=IDLE)
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
    desk = BudgetHarness(
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
