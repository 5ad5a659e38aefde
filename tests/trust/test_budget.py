"""Budgets: only the calls that exceed a limit are rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.call import Call, Credentials
from interlock.core.catalog.offering import Offering
from interlock.core.config import BudgetConfig, BudgetsConfig, CallerBudget
from interlock.core.server.mcp.sessions import Sessions
from interlock.errors import (
    BUDGET_EXCEEDED,
    CIRCUIT_OPEN,
    INVALID_ARGUMENTS,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
)
from interlock.protocol.mcpax import UNLIMITED, SubserverBudget
from interlock.trust.budgets import MINUTE_SECONDS, Budgets
from tests.support.calls import SESSION, tool_call
from tests.support.clock import ManualClock
from tests.support.offerings import offer
from tests.support.pipeline import PipelineHarness
from tests.trust.approvals.gated import Gated

GRAIN = 0.1
"""So much longer a call may count."""
LEAF = "7d1f0f0e-0000-4000-8000-000000000001"


def tool(name: str, **capability: Any) -> bytes:
    return json.dumps(
        {
            "name": name,
            "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}},
            "_meta": {"x-mcpax-capability": {"mutable": True, "cost_class": "free", **capability}},
        }
    ).encode()


def leaf() -> Offering:
    tools = [
        tool("read", mutable=False),
        tool("write"),
        tool("metered", mutable=False, cost_class="metered"),
        tool("expensive", mutable=False, cost_class="expensive"),
    ]
    return offer("leaf", tools, registered="leaf", trust_annotations=True)


def rig(budget: SubserverBudget, **session: Any) -> PipelineHarness:
    node = PipelineHarness(leaf(), offer("other", ["t"]))
    node.authorizer.budgets._wall_clock = lambda: 1_700_000_000
    node.authorizer.budgets.grant("leaf", LEAF, budget, **session)
    return node


def is_sent(node: PipelineHarness, name: str = "leaf.read") -> bool:
    """Whether a call reaches its server."""
    upstream = node.upstreams[name.partition(".")[0]]
    before, over = len(upstream.started), len(node.done)
    node.begin(tool_call(name))
    if len(upstream.started) > before:
        upstream.last.answer(content=[])
        return True
    [(_, error)] = node.done[over:]
    assert error.failure is BUDGET_EXCEEDED
    return False


def budget_error(node: PipelineHarness, name: str) -> dict[str, Any]:
    error = node.refused(tool_call(name))
    assert error.failure is BUDGET_EXCEEDED
    assert error.data is not None
    return error.data


@pytest.mark.spec("AX-11.4-2", "AX-11.4-4")
def test_limits_calls_per_minute() -> None:
    node = rig(SubserverBudget(max_calls_per_minute=3))
    assert [is_sent(node) for _ in range(3)] == [True] * 3
    node.clock.advance(10)
    error = node.refused(tool_call("leaf.read"))
    assert error.failure is BUDGET_EXCEEDED
    assert (error.failure.ax_code, error.failure.ax_name) == (-32003, "budget_exceeded")
    assert error.data == {
        "budget": "max_calls_per_minute",
        "of": "subserver",
        "limit": 3,
        "used": 3,
        "left": 0,
        "upstream": "leaf",
        "retry_after_ms": 50_000,
        "refills_at": "2023-11-14T22:14:10.000Z",
    }
    assert "in 50.0 s" in error.message
    # Nobody else's budget.
    assert is_sent(node, "other.t")
    assert node.journal.outcomes[-2:] == ["budget_exceeded", "ok"]
    # As soon as it was said.
    node.clock.advance(49.9)
    assert not is_sent(node)
    node.clock.advance(0.1)
    assert is_sent(node)


def test_rejected_call_is_not_counted() -> None:
    node = rig(SubserverBudget(max_calls_per_minute=1))
    assert is_sent(node)
    for _ in range(59):
        node.clock.advance(1)
        assert not is_sent(node)
    node.clock.advance(1)
    assert is_sent(node)


def test_invalid_call_is_not_counted() -> None:
    node = rig(SubserverBudget(max_calls_per_minute=1))
    error = node.refused(tool_call("leaf.read", {"n": "one"}))
    assert error.failure is INVALID_ARGUMENTS
    assert is_sent(node)


def test_unsent_call_is_refunded() -> None:
    """Through the whole pipeline: nobody to send it to, and an open breaker."""
    node = rig(SubserverBudget(max_calls_per_minute=5))
    used = node.authorizer.budgets.read_usage
    node.upstreams["leaf"].refuse_with = InterlockError(UPSTREAM_UNAVAILABLE, "It is away.")
    for _ in range(10):
        assert node.refused(tool_call("leaf.read")).failure is UPSTREAM_UNAVAILABLE
    assert used("leaf") == (0, 0, 0)
    node.upstreams["leaf"].refuse_with = None
    # What was sent counts, however it ends.
    for sent in (1, 2, 3):
        node.begin(tool_call("leaf.write"))
        node.upstreams["leaf"].last.expire()
        assert used("leaf") == (sent, sent, 0)
    for _ in range(10):
        assert node.refused(tool_call("leaf.write")).failure is CIRCUIT_OPEN
    assert used("leaf") == (3, 3, 0)
    node.clock.advance(10)
    call = node.begin(tool_call("leaf.read"))
    node.pipeline.cancel(call)
    assert used("leaf") == (4, 3, 0)
    assert call.reservations is None


@pytest.mark.spec("AX-11.4-3")
def test_limits_mutable_calls_per_session() -> None:
    node = rig(SubserverBudget(max_mutable_calls_per_session=1))
    assert is_sent(node, "leaf.write")
    assert budget_error(node, "leaf.write") == {
        "budget": "max_mutable_calls_per_session",
        "of": "subserver",
        "limit": 1,
        "used": 1,
        "left": 0,
        "upstream": "leaf",
    }
    assert is_sent(node, "leaf.read")
    node.clock.advance(1000)
    assert not is_sent(node, "leaf.write")


@pytest.mark.spec("AX-11.4-4")
def test_limits_cost_units_per_session() -> None:
    node = rig(SubserverBudget(max_cost_units_per_session=12))
    assert is_sent(node, "leaf.expensive")
    assert is_sent(node, "leaf.metered")
    # Ten more would be too many; one more is not.
    assert budget_error(node, "leaf.expensive")["used"] == 11
    assert is_sent(node, "leaf.metered")
    assert not is_sent(node, "leaf.metered")
    assert is_sent(node, "leaf.read")


@pytest.mark.spec("AX-11.4-4")
def test_minute_survives_reconnect_and_session_budget_resets() -> None:
    budget = SubserverBudget(max_calls_per_minute=2, max_mutable_calls_per_session=1)
    node = rig(budget, session_id="first")
    assert is_sent(node, "leaf.write")
    assert not is_sent(node, "leaf.write")
    node.authorizer.budgets.end_session("leaf")
    node.clock.advance(10)
    node.authorizer.budgets.grant("leaf", LEAF, budget, session_id="second")
    assert is_sent(node, "leaf.write")
    assert budget_error(node, "leaf.read")["retry_after_ms"] == 50_000
    # Also without a farewell in between, and under another name.
    node.authorizer.budgets.grant("leaf", LEAF, budget, session_id="third")
    assert not is_sent(node)
    # Another one in its place begins anew.
    node.authorizer.budgets.grant("leaf", LEAF.replace("1", "2"), budget)
    assert is_sent(node)


def test_limits_change_during_session() -> None:
    node = rig(SubserverBudget(max_mutable_calls_per_session=5), session_id="one")
    assert is_sent(node, "leaf.write")
    node.authorizer.budgets.grant(
        "leaf", LEAF, SubserverBudget(max_mutable_calls_per_session=2), "one"
    )
    assert is_sent(node, "leaf.write")
    assert not is_sent(node, "leaf.write")
    node.authorizer.budgets.grant("leaf", LEAF, SubserverBudget(), "one")
    assert is_sent(node, "leaf.write")
    assert node.authorizer.budgets.read_usage("leaf") is None


def test_unlimited_budget_is_not_tracked() -> None:
    node = rig(SubserverBudget())
    assert not node.authorizer.budgets.limited
    assert SubserverBudget() == SubserverBudget(UNLIMITED, UNLIMITED, UNLIMITED)
    assert all(is_sent(node, "leaf.write") for _ in range(10))


def test_disconnected_subservers_are_removed() -> None:
    clock = ManualClock()
    budgets = Budgets(clock)
    node = PipelineHarness(leaf())
    for number in range(1000):
        budgets.grant("leaf", f"id-{number}", SubserverBudget(max_calls_per_minute=5))
        call = tool_call("leaf.read", upstream="leaf")
        call.route = node.catalog.find("leaf.read")
        budgets.reserve(call, None)
        budgets.end_session("leaf")
        clock.advance(1)
    assert len(budgets._disconnected_windows) <= MINUTE_SECONDS + 1


@pytest.mark.spec("AX-11.4-2")
@given(
    pauses=st.lists(st.floats(0, 20, allow_nan=False), min_size=1, max_size=200),
    limit=st.integers(1, 10),
)
def test_every_minute_window_is_limited(pauses: list[float], limit: int) -> None:
    """In no window of 60 seconds, wherever it begins; and nobody waits longer than said."""
    clock = ManualClock()
    budgets = Budgets(clock)
    budgets.grant("s", LEAF, SubserverBudget(max_calls_per_minute=limit))
    made: list[float] = []
    for pause in pauses:
        clock.advance(pause)
        refused = _reserve(budgets, tool_call(upstream="s"))
        if refused is None:
            made.append(clock())
            continue
        assert refused.data is not None
        # Calls in one grain count as one; beyond that it is exact.
        assert len([item for item in made if item + MINUTE_SECONDS + GRAIN > clock()]) >= limit
        wait = refused.data["retry_after_ms"] / 1000
        assert 0 < wait <= MINUTE_SECONDS + GRAIN
        recent = [moment for moment in made if moment + MINUTE_SECONDS > clock()]
        if recent:
            assert wait >= recent[0] + MINUTE_SECONDS - clock() - 1e-6
    for first, last in zip(made, made[limit:], strict=False):
        assert last - first >= MINUTE_SECONDS - 1e-9


def _reserve(budgets: Budgets, call: Call) -> InterlockError | None:
    try:
        budgets.reserve(call, None)
    except InterlockError as error:
        return error
    return None


def test_session_caller_and_subserver_budgets_apply_together() -> None:
    """Sessions, callers and subservers, each with a budget of its own."""
    node = PipelineHarness(leaf(), tokens={"a-token": "ada", "b-token": "bert"})
    node.authorizer.budgets.configure(
        BudgetsConfig(
            session=BudgetConfig(mutable_calls=1), callers=[CallerBudget(calls_per_minute=4)]
        )
    )
    node.authorizer.budgets.grant("leaf", LEAF, SubserverBudget(max_cost_units_per_session=10))
    sessions = Sessions(max_sessions=10, idle=60, clock=node.clock)

    def refused_for(who: str, name: str, session: Any = None) -> str:
        credentials = Credentials("192.0.2.1", f"{who[0]}-token")
        before = len(node.upstreams["leaf"].started)
        call = node.begin(tool_call(name, credentials=credentials, session=session))
        if len(node.upstreams["leaf"].started) > before:
            node.upstreams["leaf"].last.answer(content=[])
            assert call.reservations is None
            return ""
        error = node.done[-1][1]
        assert error.failure is BUDGET_EXCEEDED
        return str(error.data["of"])

    first, second = sessions.open(SESSION, "ada"), sessions.open(SESSION, "ada")
    assert refused_for("ada", "leaf.write", first) == ""
    assert refused_for("ada", "leaf.write", first) == "session"
    assert refused_for("ada", "leaf.write", second) == ""
    assert refused_for("bert", "leaf.expensive") == ""
    assert refused_for("ada", "leaf.metered", second) == "subserver"
    assert refused_for("ada", "leaf.read", second) == ""
    assert refused_for("ada", "leaf.read") == ""
    assert refused_for("ada", "leaf.read", second) == "caller"
    assert refused_for("bert", "leaf.write") == ""
    node.clock.advance(60.1)
    assert refused_for("ada", "leaf.read", first) == ""
    assert node.journal.outcomes.count("budget_exceeded") == 3


async def test_pending_call_costs_nothing_until_approved(tmp_path: Path) -> None:
    """However often it is made; once it is approved, it does."""

    node = Gated(tmp_path)
    budgets = node.authorizer.budgets
    budgets.configure(BudgetsConfig(callers=[CallerBudget(mutable_calls=1)]))
    try:
        approval = await node.hold()
        for _ in range(5):
            assert (await node.hold()).id == approval.id
        await node.confirm(approval)
        error = await node.ask(tool_call("s.wipe", {"disk": "another"}))
        assert error.failure is BUDGET_EXCEEDED
    finally:
        node.close()
