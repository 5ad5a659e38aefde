"""Rejected methods, draining, and limits that protect other callers."""

from __future__ import annotations

import asyncio

import pytest

from interlock.core.call import Call, Credentials
from interlock.core.journal.audit import MAX_UNKNOWN_CALLER_ENTRIES
from interlock.errors import METHOD_NOT_FOUND, SHUTTING_DOWN
from interlock.protocol.mcp import META_TIMEOUT
from tests.support.calls import LOCAL, SESSION, tool_call
from tests.support.offerings import offer
from tests.support.pipeline import PipelineHarness


def make_node(**settings: object) -> PipelineHarness:
    return PipelineHarness(offer("s", ["one", "two"]), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "method",
    [
        "logging/setLevel",
        "resources/subscribe",
        "subscriptions/listen",
        "x\r\nContent-Length: 2\r\n\r\n{}POST /mcp HTTP/1.1",
    ],
)
def test_rejects_unknown_methods(method: str) -> None:
    node = make_node()
    node.pipeline.transparent_upstream = "s"
    error = node.refused(Call(method, "test", LOCAL, SESSION))
    assert error.failure is METHOD_NOT_FOUND
    assert node.upstreams["s"].started == []


def test_short_caller_timeout_does_not_open_breaker() -> None:
    node = make_node(failures=3)
    for _ in range(10):
        node.begin(tool_call("s.one", meta={META_TIMEOUT: 1}))
        node.clock.advance(1.0)
    node.begin(tool_call("s.one"))
    node.upstreams["s"].started[-1].answer(content=[])
    assert node.done[-1][1] == {"content": []}


async def test_drain_finishes_calls_and_rejects_new_calls() -> None:
    node = make_node()
    finishes = node.begin(tool_call("s.one"))
    stays = node.begin(tool_call("s.two"))
    ends, hangs = node.upstreams["s"].started
    draining = asyncio.ensure_future(node.pipeline.drain(0.01))
    await asyncio.sleep(0)
    assert node.refused(tool_call("s.one")).failure is SHUTTING_DOWN
    ends.answer(content=[])
    await draining
    outcomes = {id(call): result for call, result in node.done}
    assert outcomes[id(finishes)] == {"content": []}
    assert outcomes[id(stays)].failure is SHUTTING_DOWN
    assert not hangs.is_open
    assert node.under_way == 0


def test_limits_journal_entries_of_unauthenticated_callers() -> None:
    node = make_node(tokens={"right": "operator"})
    unauthenticated = Credentials("203.0.113.9", "wrong")
    for _ in range(MAX_UNKNOWN_CALLER_ENTRIES * 10):
        node.refused(Call("tools/call", "test", unauthenticated, SESSION, name="s.one"))
    assert len(node.journal.entries) == MAX_UNKNOWN_CALLER_ENTRIES
