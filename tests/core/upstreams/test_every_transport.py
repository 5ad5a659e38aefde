"""Behaviour of upstream connections that is the same over every transport and generation."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from interlock.core.call import UpstreamLostError, UpstreamResponseError
from interlock.core.config import ServerConfig
from interlock.core.upstreams.supervisor import State
from interlock.core.upstreams.transports.stdio import StdioTransport
from interlock.errors import DEADLINE_EXCEEDED, UPSTREAM_LOST, InterlockError
from interlock.protocol.mcp import Era
from tests.core.upstreams.servers.http_server import HttpServer, Legacy, Streamable
from tests.core.upstreams.servers.toolbox import Toolbox
from tests.support.upstreams import (
    SupervisorHarness,
    run,
    run_supervisor,
    stdio_server,
    text,
    with_timeout,
)

KINDS = (
    "stdio-session", "stdio-stateless", "json-session", "json-stateless", "sse-session",
    "sse-stateless", "closing-stateless", "closing-session", "no-session", "legacy",
)  # fmt: skip


class ServerControl:
    """The server side of a connection, as a test controls it."""

    def __init__(self, one: SupervisorHarness) -> None:
        self.one = one

    async def wait_for_pending(self, count: int) -> None:
        """Wait until the server has received the pending calls."""
        # A process reads in order: what it answers now it got later.
        await self.one.text("echo", text="in order")

    async def wait_for_cancellation(self) -> None:
        assert json.loads(await self.one.text("cancelled"))

    async def kill(self) -> None:
        peer = self.one.supervisor.upstream_client
        assert peer is not None
        assert isinstance(peer.transport, StdioTransport)
        os.kill(peer.transport.pid or 0, signal.SIGKILL)


class HttpServerControl(ServerControl):
    """The server side of a connection to a server on this loop."""

    def __init__(
        self, one: SupervisorHarness, server: HttpServer, toolbox: Toolbox, era: Era
    ) -> None:
        super().__init__(one)
        self._server = server
        self._toolbox = toolbox
        self._stateless = era is Era.STATELESS

    async def wait_for_pending(self, count: int) -> None:
        await self._server.until(lambda: len(self._toolbox.pending_calls) == count)

    async def wait_for_cancellation(self) -> None:
        if self._stateless:
            await self._server.until(lambda: self._server.dropped)
        else:
            await self._server.until(lambda: self._toolbox.cancelled)

    async def kill(self) -> None:
        self._server.cut_connections()


@asynccontextmanager
async def connect_kind(kind: str) -> AsyncIterator[tuple[SupervisorHarness, ServerControl]]:
    wire, _, era = kind.partition("-")
    if wire == "stdio":
        async with run_supervisor(stdio_server("--eras", era)) as upstream:
            await upstream.ready()
            yield upstream, ServerControl(upstream)
        return
    server: Legacy | Streamable
    if wire == "legacy":
        server, path = Legacy(), "/sse"
    else:
        generations = "stateless" if era == "stateless" else "session"
        server = Streamable(
            generations, sse=wire != "json", chunked=wire != "closing", sessions=wire != "no"
        )
        path = "/mcp"
    async with server:
        async with run_supervisor(ServerConfig(url=server.url(path), connections=8)) as upstream:
            await upstream.ready()
            peer = upstream.supervisor.upstream_client
            assert peer is not None
            assert (peer.era is Era.STATELESS) == (era == "stateless")
            yield upstream, HttpServerControl(upstream, server, server.toolbox, peer.era)


Body = Callable[[SupervisorHarness, ServerControl], Awaitable[None]]


@pytest.fixture(params=[*(f"{kind}/uvloop" for kind in KINDS), *(f"{k}/asyncio" for k in KINDS)])
def run_over_transport(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    """Run a test body over one transport, on one kind of loop."""
    kind, _, loop = request.param.partition("/")

    def go(body: Body) -> None:
        async def main() -> None:
            async with connect_kind(kind) as (upstream, control):
                await body(upstream, control)

        run(main, loop=loop)

    return go


RunOverTransport = Callable[[Body], None]


def test_lists_and_calls_tools(run_over_transport: RunOverTransport) -> None:
    async def body(one: SupervisorHarness, control: ServerControl) -> None:
        assert one.listed[0][:3] == ["echo", "report", "hold"]
        for message in ("", "hello", "grüezi 🚦", 'quotes " and \\ and \n', "x" * 200_000):
            assert await one.text("echo", text=message) == message
        with pytest.raises(UpstreamResponseError, match="on purpose") as caught:
            await with_timeout(one.start("fail"))
        assert caught.value.code == -32042

    run_over_transport(body)


def test_concurrent_calls_get_matching_results(run_over_transport: RunOverTransport) -> None:
    async def body(one: SupervisorHarness, control: ServerControl) -> None:
        pending_call = [one.start("hold", {"text": f"held {n}"}) for n in range(5)]
        await control.wait_for_pending(5)
        calls = [one.start("echo", {"text": f"call {n}"}) for n in range(50)]
        for number, call in enumerate(calls):
            assert text(await with_timeout(call)) == f"call {number}"
        # Later than all of those that came after them.
        assert await one.text("release") == "5"
        for number, call in enumerate(pending_call):
            assert text(await with_timeout(call)) == f"held {number}"
            assert call.times_ended == 1

    run_over_transport(body)


def test_progress_precedes_result_in_order(run_over_transport: RunOverTransport) -> None:
    async def body(one: SupervisorHarness, control: ServerControl) -> None:
        received: list[Any] = []
        call = one.start(
            "report",
            {"steps": 4},
            hear=lambda _, method, params: received.append((method, json.loads(bytes(params)))),
            token="mine",
        )
        assert text(await with_timeout(call)) == "reported"
        assert [told["progress"] for _, told in received] == [1, 2, 3, 4]
        assert {method for method, _ in received} == {"notifications/progress"}
        assert {told["progressToken"] for _, told in received} == {"mine"}

    run_over_transport(body)


def test_failing_progress_handler_does_not_affect_calls(
    run_over_transport: RunOverTransport,
) -> None:
    async def body(one: SupervisorHarness, control: ServerControl) -> None:
        def broken(call: Any, method: str, params: Any) -> None:
            raise RuntimeError("a fault of the caller")

        call = one.start("report", {"steps": 3}, hear=broken, token="mine")
        assert text(await with_timeout(call)) == "reported"
        assert await one.text("echo", text="next") == "next"
        assert one.supervisor.restarts == 0

    run_over_transport(body)


def test_cancels_call(run_over_transport: RunOverTransport) -> None:
    async def body(one: SupervisorHarness, control: ServerControl) -> None:
        call = one.start("hold")
        await control.wait_for_pending(1)
        call.exchange.abandon("The caller is gone.")
        await control.wait_for_cancellation()
        assert call.times_ended == 0
        peer = one.supervisor.upstream_client
        assert peer is not None
        assert not peer.pending
        # Nothing of it meets the calls that follow.
        for number in range(10):
            assert await one.text("echo", text=str(number)) == str(number)
        assert one.supervisor.restarts == 0

    run_over_transport(body)


def test_expires_call(run_over_transport: RunOverTransport) -> None:
    async def body(one: SupervisorHarness, control: ServerControl) -> None:
        call = one.start("hold")
        await control.wait_for_pending(1)
        call.exchange.expire()
        with pytest.raises(InterlockError, match="did not respond to tools/call in time") as caught:
            await with_timeout(call)
        assert caught.value.failure is DEADLINE_EXCEEDED
        await control.wait_for_cancellation()
        call.exchange.expire()
        call.exchange.abandon("late")
        assert call.times_ended == 1
        assert await one.text("echo", text="next") == "next"
        assert one.supervisor.restarts == 0

    run_over_transport(body)


def test_reconnects_after_loss_during_calls(run_over_transport: RunOverTransport) -> None:
    async def body(one: SupervisorHarness, control: ServerControl) -> None:
        calls = [one.start("hold") for _ in range(3)]
        await control.wait_for_pending(3)
        await control.kill()
        for call in calls:
            with pytest.raises(UpstreamLostError) as caught:
                await with_timeout(call)
            assert caught.value.failure is UPSTREAM_LOST
            assert caught.value.was_sent
            assert call.times_ended == 1
        assert await with_timeout(one.supervisor.wait_until_ready(10))
        assert await one.text("echo", text="back") == "back"
        assert one.supervisor.state is State.READY

    run_over_transport(body)


def test_end_fails_pending_calls(run_over_transport: RunOverTransport) -> None:
    async def body(one: SupervisorHarness, control: ServerControl) -> None:
        call = one.start("hold")
        await control.wait_for_pending(1)
        await with_timeout(one.supervisor.end())
        with pytest.raises(UpstreamLostError, match="closed by the node") as caught:
            await with_timeout(call)
        assert caught.value.was_sent
        with pytest.raises(UpstreamLostError, match="is not available") as rejection:
            one.start("echo")
        assert not rejection.value.was_sent

    run_over_transport(body)


def test_cancels_request_of_node(run_over_transport: RunOverTransport) -> None:
    async def body(one: SupervisorHarness, control: ServerControl) -> None:
        peer = one.supervisor.upstream_client
        assert peer is not None

        async def send_node_request() -> None:
            await peer.request("tools/call", {"name": "hold", "arguments": {}})

        task = asyncio.create_task(send_node_request())
        await asyncio.sleep(0)
        await control.wait_for_pending(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await control.wait_for_cancellation()
        assert not peer.pending

    run_over_transport(body)
