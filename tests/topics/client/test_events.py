"""Tests of listeners and event streams."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.errors import ProtocolError
from interlock.topics.client import Proposal
from interlock.topics.client.events import Event, Events
from interlock.topics.wire.payloads import Chat, Request
from tests.topics.client.offline_membership import OfflineMembership


def run(test: Any) -> None:
    asyncio.run(test())


def test_listeners_match_kind_or_type() -> None:
    alone = OfflineMembership()
    told: dict[str, list[Event]] = {name: [] for name in ("chat", "any", "requests", "presence")}
    alone.place.listeners.add(Chat, told["chat"].append)
    alone.place.listeners.add("*", told["any"].append)
    alone.place.listeners.add("mcp/request:*", told["requests"].append)
    alone.place.listeners.add("system/presence", told["presence"].append)
    alone.tell("a", "chat", {"text": "x"})
    alone.request("a", "ping", to=["b"])
    alone.present("join", "c")
    kinds = {name: [event.kind for event in events] for name, events in told.items()}
    assert kinds == {
        "chat": ["chat"],
        "any": ["chat", "mcp/request:ping"],
        "requests": ["mcp/request:ping"],
        "presence": ["system/presence"],
    }
    (event,) = told["requests"]
    assert isinstance(event.content, Request)
    assert (event.sender, event.to, event.id) == ("a", ("b",), "told-3")


def test_kind_patterns_match_system_messages() -> None:
    alone = OfflineMembership()
    told: list[Event] = []
    alone.place.listeners.add("system/*", told.append)
    alone.present("join", "c")
    assert [event.kind for event in told] == ["system/presence"]
    # One matcher of kinds, with one kind of star: these would be something else to another.
    for odd in ("system/pres*", "system/*ence", "system:*", "system/**"):
        with pytest.raises(ProtocolError, match="not a valid pattern"):
            alone.place.listeners.add(odd, told.append)
    for literal in ("system/presenc?", "system/[a-z]resence"):
        alone.place.listeners.add(literal, told.append)
    alone.present("leave", "c")
    assert len(told) == 2


@pytest.mark.spec("MX-8.2-10", "MX-3.2-3")
def test_proposal_is_reported_and_not_executed() -> None:
    called: list[str] = []

    async def main() -> None:
        alone = OfflineMembership()
        alone.tools.add_tool(lambda: called.append("!"), "x", None, None, {})
        told: list[Any] = []
        alone.place.listeners.add(Proposal, told.append)
        id = alone.propose("a", "x", to=["me"])
        await asyncio.sleep(0)
        (event,) = told
        assert event.content.id == id
        assert event.content.proposer == "a"
        assert len(alone.place.responder) == 0
        assert alone.said == []

    run(main)
    assert called == []


def test_failing_listener_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        alone = OfflineMembership()

        def plainly(event: Event) -> None:
            raise RuntimeError("plainly")

        async def later(event: Event) -> None:
            raise RuntimeError("later")

        alone.place.listeners.add(Chat, plainly)
        alone.place.listeners.add(Chat, later)
        told: list[Event] = []
        alone.place.listeners.add(Chat, told.append)
        alone.tell("a", "chat", {"text": "x"})
        assert len(told) == 1
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    run(main)
    assert "plainly" in caplog.text
    assert "later" in caplog.text


async def test_slow_stream_drops_oldest_events() -> None:
    lost: list[int] = []
    events = Events(lambda: lost.append(1), max_events=3)
    alone = OfflineMembership()
    alone.place.listeners.add(Chat, events.add)
    for number in range(5):
        alone.tell("a", "chat", {"text": str(number)})
    events.end()
    assert [event.content.text async for event in events] == ["2", "3", "4"]
    assert len(lost) == 2


async def test_stream_starts_at_once_and_ends() -> None:
    alone = OfflineMembership()
    events = alone.place.listeners.open_stream()
    alone.tell("a", "chat", {"text": "x"})
    assert (await anext(events)).content == Chat("x")
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    alone.place.listeners.end()
    with pytest.raises(StopAsyncIteration):
        await waiting
