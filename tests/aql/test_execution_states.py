"""Tests of the states of an execution and their transitions."""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
)

from interlock.aql.execution_states import (
    LIFECYCLE,
    TERMINAL,
    TRANSITIONS,
    ExecutionEvent,
    ExecutionState,
    diagram,
    next_state_of,
)
from interlock.aql.language.errors import AqlError, is_safe_message
from interlock.core.call import Call, principal
from tests.aql.execution_bench import CLERK, Bench
from tests.support.pipeline import ScriptedRequest

ALLOWED = {
    ("pending", "running"), ("pending", "cancelled"), ("running", "completed"),
    ("running", "failed"), ("running", "cancelled"), ("failed", "running"),
}  # fmt: skip


@pytest.mark.spec("AQ-8.4.1-1", "AQ-8.4.4-2")
def test_states_are_pending_running_completed_failed_cancelled() -> None:
    assert [state.value for state in ExecutionState] == [
        "pending", "running", "completed", "failed", "cancelled",
    ]  # fmt: skip
    assert LIFECYCLE["states"] == [state.value for state in ExecutionState]


@pytest.mark.spec("AQ-8.4.2-1")
def test_allows_only_listed_transitions() -> None:
    assert {(before.value, then.value) for (before, _), then in TRANSITIONS.items()} == ALLOWED
    for state, event in product(ExecutionState, ExecutionEvent):
        if (state, event) in TRANSITIONS:
            assert next_state_of(state, event) is TRANSITIONS[state, event]
            continue
        with pytest.raises(AqlError) as refused:
            next_state_of(state, event)
        assert refused.value.code == "CONFLICT_INVALID_STATE"
        assert is_safe_message(refused.value.message)
    # The draft's drawing has this edge, its list has not.
    with pytest.raises(AqlError):
        next_state_of(ExecutionState.FAILED, ExecutionEvent.CANCEL)


@pytest.mark.spec("AQ-8.4.4-2")
@pytest.mark.parametrize("state", [state for state in ExecutionState if state not in TERMINAL])
def test_unfinished_executions_can_be_cancelled(state: ExecutionState) -> None:
    assert next_state_of(state, ExecutionEvent.CANCEL) is ExecutionState.CANCELLED


def test_diagram_shows_every_transition() -> None:
    drawn = diagram()
    assert all(f"{before} --> {then}" in drawn for before, then in ALLOWED)
    assert drawn.count("-->") == len(TRANSITIONS) + 1 + len(TERMINAL)


class ExecutionLifecycle(RuleBasedStateMachine):
    """Executions of one caller on a real pipeline, compared with their expected states."""

    started = Bundle("started")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.bench: Bench = self.run(self._open())
        self.expected: dict[str, str] = {}
        self.exchanges: dict[str, ScriptedRequest] = {}
        self.owner = principal(CLERK)

    async def _open(self) -> Bench:
        return Bench()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @rule(target=started)
    def start(self) -> str:
        shown = self.run(self.bench.start())
        id = str(shown["execution_id"])
        assert shown["status"] == "running"
        self.expected[id] = "running"
        self.exchanges[id] = self.bench.last
        return id

    @rule(id=started)
    def complete(self, id: str) -> None:
        self._settle(id, "completed", lambda exchange: exchange.answer(content=[]))

    @rule(id=started)
    def fail(self, id: str) -> None:
        self._settle(id, "failed", lambda exchange: exchange.answer_error(-32000, "no"))

    @rule(id=started)
    def lose(self, id: str) -> None:
        self._settle(id, "failed", lambda exchange: exchange.lose(sent=True))

    def _settle(self, id: str, then: str, how: Any) -> None:
        exchange = self.exchanges[id]
        # One that nobody waits for says nothing any more.
        if exchange.is_open:
            self.expected[id] = then
        how(exchange)
        self.bench.rig.breakers.record_success("s")

    @rule(id=started)
    def cancel(self, id: str) -> None:
        if self.expected[id] == "running":
            assert self.bench.executions.cancel(self.owner, id)["status"] == "cancelled"
            assert self.exchanges[id].abandoned
            self.expected[id] = "cancelled"
        else:
            with pytest.raises(AqlError) as refused:
                self.bench.executions.cancel(self.owner, id)
            assert refused.value.code == "CONFLICT_INVALID_STATE"

    @rule(id=started)
    def retry(self, id: str) -> None:
        asked = self.bench.asked()
        if self.expected[id] == "failed":
            shown, _ = self.run(self.bench.executions.retry(asked, id))
            assert shown["status"] == "running"
            self.expected[id] = "running"
            self.exchanges[id] = self.bench.last
        else:
            with pytest.raises(AqlError) as refused:
                self.run(self.bench.executions.retry(asked, id))
            assert refused.value.code == "CONFLICT_INVALID_STATE"

    @rule(id=consumes(started))
    def answer_of_an_earlier_attempt(self, id: str) -> None:
        """An answer that comes for a call which is over changes nothing."""
        live = self.bench.executions.find_by_id(id)
        assert live is not None
        self.bench.executions._on_done(live, Call("tools/call", "test", *self._who()), None, None)

    def _who(self) -> tuple[Any, Any]:
        asked = self.bench.asked().call
        assert asked is not None
        return asked.credentials, asked.client

    @invariant()
    def is_as_expected(self) -> None:
        shown = {
            record.id: record.status.value for record in self.bench.executions.all_of(self.owner)
        }
        assert shown == self.expected
        under_way = sum(1 for state in shown.values() if state == "running")
        assert self.bench.rig.under_way == under_way
        for record in self.bench.executions.all_of(self.owner):
            assert (record.finished is not None) == (record.status in TERMINAL)
            assert (record.error is not None) == (record.status is ExecutionState.FAILED)

    def teardown(self) -> None:
        self.run(self.bench.settle())
        self.bench.close()
        self.loop.close()


ExecutionLifecycle.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestExecutionLifecycle = ExecutionLifecycle.TestCase


def test_documentation_contains_diagram() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "aql-executions.md"
    assert f"```mermaid\n{diagram()}\n```" in page.read_text(encoding="utf-8")
