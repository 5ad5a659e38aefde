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


class IdentityHarness(PipelineHarness):
    """A node whose authentication waits for the test."""

    def __init__(self, **settings: Any) -> None:
        look = definition("look", annotations={"readOnlyHint": True})
        super().__init__(offer("s", [look]), **settings)
        self.resolved = asyncio.Event()
        self.known_tokens: set[str] = {"good"}
        self.pipeline.admission.authenticate = self._authenticate  # type: ignore[assignment]

    def _authenticate(self, credentials: Credentials) -> Caller:
        if credentials.bearer in self.known_tokens:
            return Caller(credentials.bearer or "")
        raise PendingIdentity(self._resolve)

    async def _resolve(self) -> None:
        await self.resolved.wait()

    def begin_request(self, bearer: str) -> Call:
        return self.begin(tool_call("s.look", {}, credentials=Credentials("192.0.2.1", bearer)))

    def failures(self) -> list[str]:
        return [error.failure.name for _, error in self.done]


async def test_pending_identities_do_not_use_call_limit() -> None:
    node = IdentityHarness(concurrent_calls=5)
    for _ in range(MAX_PENDING_IDENTITIES):
        node.begin_request("strange")
    assert (node.under_way, node.done) == (0, [])
    for _ in range(5):
        node.begin_request("good")
    assert (node.under_way, node.done) == (5, [])
    node.resolved.set()
    await run_ready_tasks()
    assert node.failures() == [UNAUTHENTICATED.name] * MAX_PENDING_IDENTITIES


async def test_limits_pending_identities() -> None:
    node = IdentityHarness()
    calls = [node.begin_request("strange") for _ in range(MAX_PENDING_IDENTITIES)]
    node.begin_request("strange")
    assert node.failures() == [TOO_BUSY.name]
    # To hang up makes no room: what was asked is still being asked.
    node.pipeline.cancel(calls[0])
    assert node.failures() == [TOO_BUSY.name, CANCELLED.name]
    node.begin_request("strange")
    assert node.failures()[2:] == [TOO_BUSY.name]
    node.resolved.set()
    await run_ready_tasks()
    assert len(node.done) == MAX_PENDING_IDENTITIES + 2
    node.resolved.clear()
    node.begin_request("strange")
    assert len(node.done) == MAX_PENDING_IDENTITIES + 2
    node.resolved.set()
    await run_ready_tasks()


async def test_serves_caller_after_identification() -> None:
    node = IdentityHarness()
    call = node.begin_request("new")
    assert (node.under_way, node.upstreams["s"].started) == (0, [])
    node.known_tokens.add("new")
    node.resolved.set()
    await run_ready_tasks()
    node.upstreams["s"].last.answer(content=[])
    assert node.done == [(call, {"content": []})]


async def test_drain_does_not_wait_for_pending_identities() -> None:
    node = IdentityHarness()
    node.begin_request("strange")
    async with asyncio.timeout(HANG_TIMEOUT):
        await node.pipeline.drain(60)
    assert node.failures() == [SHUTTING_DOWN.name]
    node.resolved.set()
    await run_ready_tasks()
    assert len(node.done) == 1
