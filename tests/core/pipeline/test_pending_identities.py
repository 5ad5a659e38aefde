"""Requests of callers that are not identified yet: their limit, and their end."""

from __future__ import annotations

import asyncio
from typing import Any

from interlock.core.call import Call, Caller, Credentials
from interlock.core.pipeline.admission import MAX_PENDING_IDENTITIES
from interlock.core.pipeline.authentication import PendingIdentity
from interlock.errors import CANCELLED, SHUTTING_DOWN, TOO_BUSY, UNAUTHENTICATED
from tests.support.calls import tool_call
from tests.support.clock import run_ready_tasks
from tests.support.offerings import definition, offer
from tests.support.pipeline import PipelineHarness
from tests.support.timeouts import HANG_TIMEOUT


class Door(PipelineHarness):
    """A node that has to ask somebody about tokens, and is answered when a test says so."""

    def __init__(self, **settings: Any) -> None:
        look = definition("look", annotations={"readOnlyHint": True})
        super().__init__(offer("s", [look]), **settings)
        self.answered = asyncio.Event()
        self.known: set[str] = {"good"}
        self.pipeline.admission.authenticate = self._who  # type: ignore[assignment]

    def _who(self, credentials: Credentials) -> Caller:
        if credentials.bearer in self.known:
            return Caller(credentials.bearer or "")
        raise PendingIdentity(self._ask)

    async def _ask(self) -> None:
        await self.answered.wait()

    def come(self, bearer: str) -> Call:
        return self.begin(tool_call("s.look", {}, credentials=Credentials("192.0.2.1", bearer)))

    def failures(self) -> list[str]:
        return [error.failure.name for _, error in self.done]


async def test_pending_identities_do_not_use_call_limit() -> None:
    node = Door(concurrent_calls=5)
    for _ in range(MAX_PENDING_IDENTITIES):
        node.come("strange")
    assert (node.under_way, node.done) == (0, [])
    for _ in range(5):
        node.come("good")
    assert (node.under_way, node.done) == (5, [])
    node.answered.set()
    await run_ready_tasks()
    assert node.failures() == [UNAUTHENTICATED.name] * MAX_PENDING_IDENTITIES


async def test_limits_pending_identities() -> None:
    node = Door()
    calls = [node.come("strange") for _ in range(MAX_PENDING_IDENTITIES)]
    node.come("strange")
    assert node.failures() == [TOO_BUSY.name]
    # To hang up makes no room: what was asked is still being asked.
    node.pipeline.cancel(calls[0])
    assert node.failures() == [TOO_BUSY.name, CANCELLED.name]
    node.come("strange")
    assert node.failures()[2:] == [TOO_BUSY.name]
    node.answered.set()
    await run_ready_tasks()
    assert len(node.done) == MAX_PENDING_IDENTITIES + 2
    node.answered.clear()
    node.come("strange")
    assert len(node.done) == MAX_PENDING_IDENTITIES + 2
    node.answered.set()
    await run_ready_tasks()


async def test_serves_caller_after_identification() -> None:
    node = Door()
    call = node.come("new")
    assert (node.under_way, node.upstreams["s"].started) == (0, [])
    node.known.add("new")
    node.answered.set()
    await run_ready_tasks()
    node.upstreams["s"].last.answer(content=[])
    assert node.done == [(call, {"content": []})]


async def test_drain_does_not_wait_for_pending_identities() -> None:
    node = Door()
    node.come("strange")
    async with asyncio.timeout(HANG_TIMEOUT):
        await node.pipeline.drain(60)
    assert node.failures() == [SHUTTING_DOWN.name]
    node.answered.set()
    await run_ready_tasks()
    assert len(node.done) == 1
