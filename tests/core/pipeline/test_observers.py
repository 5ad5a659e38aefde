"""Observers of calls: their order, and the events that they receive."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.core.call import Call, Outcome
from interlock.core.pipeline.observers import CallObserver
from interlock.core.ports import Decision
from interlock.errors import InterlockError
from tests.support.calls import tool_call
from tests.support.clock import run_ready_tasks
from tests.support.offerings import definition, offer
from tests.support.pipeline import MemoryJournal, PipelineHarness


class RecordingObserver(CallObserver):
    """An observer that stores every event."""

    def __init__(self, journal: MemoryJournal | None = None) -> None:
        self.events: list[Any] = []

    def on_start(self, call: Call) -> None:
        self.events.append("started")

    def on_decision(self, call: Call, decision: Decision | None) -> None:
        self.events.append(("decided", None if decision is None else decision.needs_approval))

    def on_dispatch(self, call: Call) -> None:
        self.events.append("dispatched")

    def on_end(
        self,
        call: Call,
        outcome_name: str,
        duration_us: int,
        detail: str = "",
        outcome: Outcome | None = None,
        error: InterlockError | None = None,
    ) -> None:
        self.events.append(("settled", outcome_name, duration_us, call.is_dispatched))


class EndObserver(CallObserver):
    """An observer of the end of each call."""

    def __init__(self) -> None:
        self.outcome_names: list[str] = []

    def on_end(self, call: Call, outcome_name: str, *more: Any) -> None:
        self.outcome_names.append(outcome_name)


class FailingObserver(CallObserver):
    def on_start(self, call: Call) -> None:
        raise ValueError

    on_decision = on_dispatch = on_end = lambda *_: 1 / 0  # type: ignore[assignment]


def make_node(*observers: CallObserver) -> PipelineHarness:
    tools = [definition("read", annotations={"readOnlyHint": True}), definition("change")]
    return PipelineHarness(offer("s", tools), observers=observers)


@pytest.mark.parametrize("name", ["s.read", "s.change"])
def test_observer_receives_events_from_start_to_end(name: str) -> None:
    received = RecordingObserver()
    node = make_node(received)
    node.begin(tool_call(name))
    node.clock.advance(0.25)
    node.upstreams["s"].last.answer(content=[])
    assert received.events == [
        "started",
        ("decided", False),
        "dispatched",
        ("settled", "ok", 250_000, True),
    ]


def test_added_observer_is_called_after_others() -> None:
    first, added = RecordingObserver(), RecordingObserver()
    node = make_node(first)
    added.events = first.events
    node.pipeline.observe(added)
    node.begin(tool_call("s.read"))
    assert first.events[:2] == ["started", "started"]


def test_rejected_call_ends_immediately() -> None:
    received = RecordingObserver()
    make_node(received).refused(tool_call("s.nothing"))
    assert received.events == ["started", ("settled", "unknown_tool", 0, False)]


def test_resent_call_is_dispatched_again() -> None:
    async def main() -> list[Any]:
        received = RecordingObserver()
        node = make_node(received)
        node.begin(tool_call("s.read"))
        node.upstreams["s"].last.lose(sent=True)
        await run_ready_tasks()
        node.upstreams["s"].last.answer(content=[])
        return received.events

    events = asyncio.run(main())
    assert events.count("dispatched") == 2
    assert [event[0] for event in events if event[0] == "settled"] == ["settled"]


def test_failing_observer_affects_neither_call_nor_others() -> None:
    received = RecordingObserver()
    node = make_node(FailingObserver(), received)
    node.begin(tool_call("s.read"))
    node.upstreams["s"].last.answer(content=[])
    assert node.journal.outcomes == ["ok"]
    assert len(received.events) == 4
    [(_, result)] = node.done
    assert result == {"content": []}


def test_unobserved_event_has_no_listener() -> None:
    metric = EndObserver()
    node = make_node(metric)
    listeners = node.pipeline._observers
    assert listeners.on_start == listeners.on_decision == listeners.on_dispatch == ()
    # The journal comes first.
    assert listeners.on_end == (node.audit.on_end, metric.on_end)
    node.begin(tool_call("s.read"))
    node.upstreams["s"].last.answer(content=[])
    assert metric.outcome_names == ["ok"]
