"""`Call.is_dispatched`: true once a request was sent, for every outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from interlock.core.call import Call, UpstreamLostError
from interlock.errors import (
    CIRCUIT_OPEN,
    DENIED,
    UNRECORDABLE,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
    all_failures,
)
from tests.support.calls import tool_call
from tests.support.clock import run_ready_tasks
from tests.support.offerings import definition, offer
from tests.support.pipeline import MemoryJournal, PipelineHarness, ScriptedUpstream


def make_node(**settings: Any) -> PipelineHarness:
    return PipelineHarness(
        offer(
            "s",
            [definition("read", annotations={"readOnlyHint": True}), definition("change")],
        ),
        **settings,
    )


class FullDiskJournal(MemoryJournal):
    def record_durably(self, entry: Any, then: Callable[[bool], None]) -> None:
        then(False)


# -- before a request leaves


def test_rejected_call_is_not_dispatched() -> None:
    node = make_node()
    call = tool_call("s.unknown")
    node.refused(call)
    assert not call.is_dispatched


@pytest.mark.parametrize(
    "failure", [UPSTREAM_UNAVAILABLE, CIRCUIT_OPEN, DENIED], ids=lambda failure: failure.name
)
def test_call_rejected_by_upstream_is_not_dispatched(failure: Any) -> None:
    node = make_node()
    node.upstreams["s"].refuse_with = InterlockError(failure, "no")
    call = tool_call("s.change")
    assert node.refused(call).failure is failure
    assert not call.is_dispatched


def test_call_without_journal_entry_is_not_dispatched() -> None:
    node = make_node(recorder=FullDiskJournal(), durable=True)
    call = tool_call("s.change")
    assert node.refused(call).failure is UNRECORDABLE
    assert not call.is_dispatched


# -- afterwards


@pytest.mark.parametrize("failure", all_failures(), ids=lambda failure: failure.name)
def test_error_does_not_reset_dispatched(failure: Any) -> None:
    node = make_node()
    call = node.begin(tool_call("s.change"))
    node.upstreams["s"].last.fail(InterlockError(failure, "so it says"))
    assert node.done
    assert call.is_dispatched


@pytest.mark.parametrize("ends", ["answer", "error", "cancel", "deadline", "shutdown"])
async def test_sent_call_is_dispatched_for_every_outcome(ends: str) -> None:
    node = make_node()
    call = node.begin(tool_call("s.change"))
    exchange = node.upstreams["s"].last
    match ends:
        case "answer":
            exchange.answer(content=[])
        case "error":
            exchange.answer_error(-32603, "no")
        case "cancel":
            node.pipeline.cancel(call)
        case "deadline":
            node.clock.advance(120)
        case "shutdown":
            await node.pipeline.drain(0)
    assert node.done
    assert call.is_dispatched


# -- sent again


def lose_call(name: str, *sent: bool) -> Call:
    """Return a call whose upstream is lost once for each item of `sent`."""

    async def main() -> Call:
        node = make_node()
        upstream: ScriptedUpstream = node.upstreams["s"]
        call = node.begin(tool_call(name))
        for message in sent:
            upstream.last.lose(sent=message)
            await run_ready_tasks()
        assert isinstance(node.done[0][1], UpstreamLostError)
        return call

    return asyncio.run(main())


@pytest.mark.parametrize("name", ["s.read", "s.change"])
def test_call_unsent_in_two_attempts_is_not_dispatched(name: str) -> None:
    assert not lose_call(name, False, False).is_dispatched


def test_unsent_retry_keeps_dispatched() -> None:
    """A repeatable call left the first time; that the second request did not changes nothing."""
    assert lose_call("s.read", True, False).is_dispatched


def test_sent_retry_sets_dispatched() -> None:
    assert lose_call("s.change", False, True).is_dispatched


async def test_waiting_retry_keeps_state() -> None:
    node = make_node()
    back: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def wait_for_return(_: float) -> bool:
        return await back

    waits: Callable[[float], Awaitable[bool]] = wait_for_return
    node.upstreams["s"].comes_back = waits
    call = node.begin(tool_call("s.change"))
    node.upstreams["s"].last.lose(sent=False)
    await run_ready_tasks()
    node.pipeline.cancel(call)
    await run_ready_tasks()
    assert node.done
    assert not call.is_dispatched
