"""Budgets of sessions and callers: taken from all accounts or none, and given back if not used."""

from __future__ import annotations

from interlock.core.config import BudgetConfig, BudgetsConfig, CallerBudget
from interlock.protocol.mcpax import SubserverBudget
from interlock.trust.budgets import MINUTE_SECONDS
from tests.core.pipeline.budget_harness import IDLE, BudgetHarness, caller_budgets


<<<<<<< HEAD
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
=======
def test_unlimited_caller_reserves_nothing() -> None:
    harness = Desk(BudgetsConfig())
    assert not harness.budgets.limited
    harness.budgets.configure(BudgetsConfig(session=BudgetConfig(), callers=[CallerBudget()]))
    assert not harness.budgets.limited
    call = harness.call()
    harness.budgets.reserve(call, None)
    assert call.reservations is None


def test_each_session_has_own_budget() -> None:
    harness = Desk(BudgetsConfig(session=BudgetConfig(calls_per_minute=2, mutable_calls=1)))
    assert harness.budgets.limited
    first, second = harness.session(), harness.session()
    assert harness.passes("write", session=first)
    assert not harness.passes("write", session=first)
    assert harness.passes("read", session=first)
    assert not harness.passes("read", session=first)
    assert harness.passes("write", session=second)


def test_exceeded_session_budget_reports_its_limit() -> None:
    harness = Desk(BudgetsConfig(session=BudgetConfig(mutable_calls=1)))
    session = harness.session()
    assert harness.passes("write", session=session)
    error = harness.refusal(harness.call("write", session=session))
>>>>>>> c4a06798 (Name tests of trust, their helpers and variables after what they do)
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


<<<<<<< HEAD
def test_a_session_that_ends_is_forgotten() -> None:
    desk = BudgetHarness(BudgetsConfig(session=BudgetConfig(mutable_calls=1)))
=======
def test_closed_session_is_removed() -> None:
    harness = Desk(BudgetsConfig(session=BudgetConfig(mutable_calls=1)))
>>>>>>> c4a06798 (Name tests of trust, their helpers and variables after what they do)
    for _ in range(10):
        session = harness.session()
        assert harness.passes("write", session=session)
        harness.sessions.close(session)
    assert not harness.budgets._sessions
    # Who calls on one that has ended is treated as one who has none.
    assert harness.passes("write", session=session)
    assert not harness.passes("write", session=session)
    assert not harness.passes("write")


<<<<<<< HEAD
def test_a_client_without_sessions_has_one_while_it_calls() -> None:
    desk = BudgetHarness(BudgetsConfig(session=BudgetConfig(mutable_calls=2)))
    assert desk.passes("write")
    desk.clock.advance(IDLE - 1)
    assert desk.passes("write")
    desk.clock.advance(IDLE - 1)
    error = desk.refusal(desk.call("write"))
=======
def test_sessionless_client_has_session_during_calls() -> None:
    harness = Desk(BudgetsConfig(session=BudgetConfig(mutable_calls=2)))
    assert harness.passes("write")
    harness.clock.advance(IDLE - 1)
    assert harness.passes("write")
    harness.clock.advance(IDLE - 1)
    error = harness.refusal(harness.call("write"))
>>>>>>> c4a06798 (Name tests of trust, their helpers and variables after what they do)
    assert error is not None
    assert error.data is not None
    assert error.data["retry_after_ms"] == 1000
    assert harness.passes("write", who="bert")
    # To be refused is not to be busy.
    harness.clock.advance(1)
    assert harness.passes("write")


<<<<<<< HEAD
def test_a_callers_minute_is_one_over_all_its_sessions() -> None:
    desk = BudgetHarness(caller_budgets(CallerBudget(calls_per_minute=3)))
    one, other = desk.session(), desk.session()
    assert desk.passes(session=one)
    assert desk.passes(session=other)
    desk.clock.advance(20)
    assert desk.passes()
    error = desk.refusal(desk.call(session=desk.session()))
=======
def test_caller_minute_spans_all_sessions() -> None:
    harness = Desk(of_callers(CallerBudget(calls_per_minute=3)))
    one, other = harness.session(), harness.session()
    assert harness.passes(session=one)
    assert harness.passes(session=other)
    harness.clock.advance(20)
    assert harness.passes()
    error = harness.refusal(harness.call(session=harness.session()))
>>>>>>> c4a06798 (Name tests of trust, their helpers and variables after what they do)
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


<<<<<<< HEAD
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
=======
def test_new_session_does_not_renew_caller_budget() -> None:
    harness = Desk(of_callers(CallerBudget(mutable_calls=2)))
    assert harness.passes("write", session=harness.session())
    assert harness.passes("write", session=harness.session())
    assert not harness.passes("write", session=harness.session())
    harness.clock.advance(IDLE)
    assert harness.passes("write", session=harness.session())


def test_first_matching_budget_applies() -> None:
    harness = Desk(
        of_callers(
>>>>>>> c4a06798 (Name tests of trust, their helpers and variables after what they do)
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


<<<<<<< HEAD
def test_a_budget_of_nothing_says_so() -> None:
    desk = BudgetHarness(caller_budgets(CallerBudget(mutable_calls=0, cost_units=5)))
=======
def test_zero_budget_allows_no_call() -> None:
    harness = Desk(of_callers(CallerBudget(mutable_calls=0, cost_units=5)))
>>>>>>> c4a06798 (Name tests of trust, their helpers and variables after what they do)
    for tool in ("write", "expensive"):
        error = harness.refusal(harness.call(tool))
        assert error is not None
        assert error.data is not None
        assert "retry_after_ms" not in error.data
        assert "It allows no such call" in error.message
    assert harness.passes("metered")


# -- all or none, and back


<<<<<<< HEAD
def test_all_accounts_or_none() -> None:
    desk = BudgetHarness(
=======
def test_reserves_all_accounts_or_none() -> None:
    harness = Desk(
>>>>>>> c4a06798 (Name tests of trust, their helpers and variables after what they do)
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


<<<<<<< HEAD
def test_what_never_left_is_given_back() -> None:
    desk = BudgetHarness(
        caller_budgets(CallerBudget(calls_per_minute=1, mutable_calls=1, cost_units=10))
    )
=======
def test_undispatched_call_is_refunded() -> None:
    harness = Desk(of_callers(CallerBudget(calls_per_minute=1, mutable_calls=1, cost_units=10)))
>>>>>>> c4a06798 (Name tests of trust, their helpers and variables after what they do)
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


<<<<<<< HEAD
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
=======
def test_repeated_reserve_charges_once() -> None:
    harness = Desk(of_callers(CallerBudget(calls_per_minute=2)))
    call = harness.call()
    harness.budgets.reserve(call, None)
    harness.budgets.reserve(call, None)
    assert harness.passes()
    assert not harness.passes()


def test_refund_after_its_minute_has_no_effect() -> None:
    harness = Desk(of_callers(CallerBudget(calls_per_minute=1)))
    slow = harness.call()
    harness.budgets.reserve(slow, None)
    harness.clock.advance(MINUTE_SECONDS)
    assert harness.passes()
    harness.budgets.release(slow, dispatched=False)
    assert not harness.passes()


def test_refund_after_its_session_has_no_effect() -> None:
    harness = Desk(of_callers(CallerBudget(mutable_calls=1)))
    slow = harness.call("write")
    harness.budgets.reserve(slow, None)
    harness.clock.advance(IDLE)
    assert harness.passes("write")
    harness.budgets.release(slow, dispatched=False)
    assert not harness.passes("write")
>>>>>>> c4a06798 (Name tests of trust, their helpers and variables after what they do)


# -- changes


<<<<<<< HEAD
def test_other_limits_while_it_runs() -> None:
    desk = BudgetHarness(
=======
def test_limits_change_while_running() -> None:
    harness = Desk(
>>>>>>> c4a06798 (Name tests of trust, their helpers and variables after what they do)
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


<<<<<<< HEAD
def test_after_a_smaller_limit_the_wait_is_long_enough() -> None:
    desk = BudgetHarness(caller_budgets(CallerBudget(calls_per_minute=10)))
    for _ in range(10):
        assert desk.passes()
        desk.clock.advance(2)
    desk.budgets.configure(caller_budgets(CallerBudget(calls_per_minute=3)), idle=IDLE)
    error = desk.refusal(desk.call())
=======
def test_lowered_limit_reports_sufficient_wait() -> None:
    harness = Desk(of_callers(CallerBudget(calls_per_minute=10)))
    for _ in range(10):
        assert harness.passes()
        harness.clock.advance(2)
    harness.budgets.configure(of_callers(CallerBudget(calls_per_minute=3)), idle=IDLE)
    error = harness.refusal(harness.call())
>>>>>>> c4a06798 (Name tests of trust, their helpers and variables after what they do)
    assert error is not None
    assert error.data is not None
    assert error.data["left"] == 0
    wait = error.data["retry_after_ms"] / 1000
    harness.clock.advance(wait - 0.001)
    assert not harness.passes()
    harness.clock.advance(0.002)
    assert harness.passes()


<<<<<<< HEAD
def test_callers_without_number_are_forgotten() -> None:
    desk = BudgetHarness(
=======
def test_idle_callers_are_removed() -> None:
    harness = Desk(
>>>>>>> c4a06798 (Name tests of trust, their helpers and variables after what they do)
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
