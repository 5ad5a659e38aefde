"""Resumption of session streams that end before the result."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from interlock.core.call import UpstreamLostError
from interlock.core.config import ServerConfig
from interlock.core.upstreams import negotiation as negotiate
from interlock.core.upstreams.supervisor import State
from interlock.core.upstreams.transports import http
from interlock.errors import UPSTREAM_LOST
from interlock.protocol.mcp import Era
from tests.core.upstreams.servers.http_server import Request, ResponseWriter, Streamable
from tests.core.upstreams.servers.toolbox import notification, result
from tests.support.upstreams import (
    SupervisorHarness,
    official_server,
    run,
    run_supervisor,
    text,
    with_timeout,
)

pytestmark = pytest.mark.usefixtures("no_leaks")

LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


class LeavingServer(Streamable):
    """A server that ends the stream of every `hold`; `resumed` answers the next GET."""

    def __init__(
        self, generations: str = "session", *, primer: str = "id: e1\nretry: 60\ndata: \n\n"
    ):
        super().__init__(generations, get="405 Method Not Allowed")
        self.override = self._override
        self.primer = primer
        self.properly = True
        self.left_at = 0.0
        self.resumptions: list[tuple[float, str]] = []
        self.resumed: Callable[[ResponseWriter, str], Awaitable[None]] = self.write_result
        self.id: Any = None

    async def _override(self, request: Request, response: ResponseWriter) -> bool:
        now = asyncio.get_running_loop().time()
        if request.method == "GET" and "last-event-id" in request.headers:
            last = request.headers["last-event-id"]
            self.resumptions.append((now, last))
            await self.resumed(response, last)
            self.notify_waiters()
            return True
        if request.tool != "hold":
            return False
        self.id = request.message["id"]
        self.left_at = now
        response.open()
        response.write_chunk(self.primer.encode())
        if self.properly:
            response.end()
        else:
            response.finish(keep=False)
        return True

    def final_result(self) -> Any:
        return result(self.id, {"content": [{"type": "text", "text": "in the end"}]})

    async def write_result(self, response: ResponseWriter, last: str) -> None:
        response.open()
        response.event(self.final_result())

    @property
    def posts(self) -> int:
        return len([request for request in self.requests if request.tool == "hold"])


def with_server(
    body: Callable[[SupervisorHarness, LeavingServer], Awaitable[None]],
    server: LeavingServer | None = None,
    *,
    loop: str = "uvloop",
) -> None:
    async def main() -> None:
        async with server or LeavingServer() as leaving:
            async with run_supervisor(
                ServerConfig(url=leaving.url(), connections=2, sessions="shared")
            ) as upstream:
                await upstream.ready()
                await body(upstream, leaving)

    run(main, loop=loop)


@LOOPS
@pytest.mark.parametrize("properly", [True, False])
def test_resumes_stream_that_ends_before_result(properly: bool, loop: str) -> None:
    async def body(one: SupervisorHarness, server: LeavingServer) -> None:
        server.properly = properly
        assert await one.text("hold") == "in the end"
        ((at, last),) = server.resumptions
        assert last == "e1"
        assert at - server.left_at >= 0.059
        assert server.posts == 1
        get = next(request for request in server.requests if "last-event-id" in request.headers)
        assert get.headers["mcp-session-id"] == "session-1"
        assert get.headers["mcp-protocol-version"] == "2025-11-25"
        assert "text/event-stream" in get.headers["accept"]
        # The stream that brought the answer stays open over there; it must not here.
        await server.until(lambda: any(r.method == "GET" for r in server.dropped))

    with_server(body, loop=loop)


def test_waits_one_second_without_retry_field() -> None:
    async def body(one: SupervisorHarness, server: LeavingServer) -> None:
        assert await one.text("hold") == "in the end"
        ((at, _),) = server.resumptions
        assert at - server.left_at >= http.RESUME_DELAY_SECONDS * 0.99

    with_server(body, LeavingServer(primer="id: e1\n\n"))


def test_delivers_notifications_across_resumptions() -> None:
    async def body(one: SupervisorHarness, server: LeavingServer) -> None:
        received: list[Any] = []

        async def resumed(response: ResponseWriter, last: str) -> None:
            response.open()
            told = {"progressToken": server.id, "progress": len(server.resumptions)}
            number = len(server.resumptions) + 1
            message = json.dumps(notification("notifications/progress", told))
            response.write_chunk(f"id: e{number}\ndata: {message}\n\n".encode())
            if number < 10:
                # More often than a stream may be taken up in vain; this is not in vain.
                response.end()
            else:
                response.event(server.final_result())

        server.resumed = resumed
        call = one.start(
            "hold",
            hear=lambda _, method, params: received.append(json.loads(bytes(params))),
            token="mine",
        )
        assert text(await with_timeout(call)) == "in the end"
        assert [told["progress"] for told in received] == list(range(1, 10))
        assert {told["progressToken"] for told in received} == {"mine"}
        assert [last for _, last in server.resumptions] == [f"e{n}" for n in range(1, 10)]
        assert server.posts == 1

    with_server(body)


@pytest.mark.parametrize("status", ["405 Method Not Allowed", "404 Not Found", "400 Bad Request"])
def test_failed_resumption_loses_call(status: str) -> None:
    async def body(one: SupervisorHarness, server: LeavingServer) -> None:
        async def resumed(response: ResponseWriter, last: str) -> None:
            response.empty(status)

        server.resumed = resumed
        with pytest.raises(UpstreamLostError, match=f"HTTP {status[:3]}") as caught:
            await with_timeout(one.start("hold"))
        assert caught.value.failure is UPSTREAM_LOST
        # It may well have been executed.
        assert caught.value.was_sent
        assert len(server.resumptions) == 1
        assert server.posts == 1
        assert one.supervisor.state is State.READY
        assert await one.text("echo", text="x") == "x"

    with_server(body)


async def _busy(response: ResponseWriter, last: str) -> None:
    response.empty("503 Busy")


async def _empty_stream(response: ResponseWriter, last: str) -> None:
    response.open()
    response.end()


async def _abort(response: ResponseWriter, last: str) -> None:
    response.abort()


@pytest.mark.parametrize("resumed", [_busy, _empty_stream, _abort])
def test_limits_resumptions_without_progress(
    resumed: Callable[[ResponseWriter, str], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_MAX_RESUME_DELAY_SECONDS", 0.01)

    async def body(one: SupervisorHarness, server: LeavingServer) -> None:
        server.resumed = resumed
        with pytest.raises(UpstreamLostError) as caught:
            await with_timeout(one.start("hold"))
        assert caught.value.failure is UPSTREAM_LOST
        assert caught.value.was_sent
        assert len(server.resumptions) == http._MAX_RESUMPTIONS
        assert one.supervisor.restarts == 0

    with_server(body)


def test_increases_delay_between_resumptions() -> None:
    async def body(one: SupervisorHarness, server: LeavingServer) -> None:
        async def resumed(response: ResponseWriter, last: str) -> None:
            if len(server.resumptions) < 4:
                await _busy(response, last)
            else:
                await server.write_result(response, last)

        server.resumed = resumed
        assert await one.text("hold") == "in the end"
        times = [server.left_at, *(at for at, _ in server.resumptions)]
        waits = [after - before for before, after in itertools.pairwise(times)]
        for wait, least in zip(waits, (0.06, 0.12, 0.24, 0.48), strict=True):
            assert wait >= least * 0.99

    with_server(body)


def test_resumes_after_short_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_MAX_RESUME_DELAY_SECONDS", 0.02)

    async def body(one: SupervisorHarness, server: LeavingServer) -> None:
        async def resumed(response: ResponseWriter, last: str) -> None:
            if len(server.resumptions) > 1:
                await server.write_result(response, last)
                return
            # Gone, with everybody's connections, and back at once.
            assert server._server is not None
            server._server.close()
            server.cut_connections()
            await server.start(server.port)

        server.resumed = resumed
        assert await one.text("hold") == "in the end"
        assert len(server.resumptions) == 2

    with_server(body)


@pytest.mark.parametrize("primer", ["data: \n\n", "id:\ndata: \n\n", f"id: {'x' * 5000}\n\n"])
def test_stream_without_ids_loses_call(primer: str) -> None:
    async def body(one: SupervisorHarness, server: LeavingServer) -> None:
        with pytest.raises(UpstreamLostError, match="ended the stream") as caught:
            await with_timeout(one.start("hold"))
        assert caught.value.was_sent
        assert not server.resumptions

    with_server(body, LeavingServer(primer=primer))


def test_stateless_streams_are_not_resumed() -> None:
    async def body(one: SupervisorHarness, server: LeavingServer) -> None:
        assert one.era is Era.STATELESS
        with pytest.raises(UpstreamLostError) as caught:
            await with_timeout(one.start("hold"))
        assert caught.value.was_sent
        assert not server.resumptions

    with_server(body, LeavingServer("stateless"))


def test_cancelled_call_is_not_resumed() -> None:
    async def body(one: SupervisorHarness, server: LeavingServer) -> None:
        sent = one.start("hold")
        carried = sent.exchange.carrier  # type: ignore[attr-defined]
        await server.until(lambda: server.posts)
        while sent.exchange.carrier is carried:  # type: ignore[attr-defined]
            # The end of the stream is on its way; a call behind it tells when it has come.
            await one.text("echo", text="x")
        timer = sent.exchange.carrier.timer  # type: ignore[attr-defined]
        sent.exchange.abandon("enough")
        assert timer.cancelled()
        await server.until(lambda: server.toolbox.cancelled == [server.id])
        assert not server.resumptions

    with_server(body, LeavingServer(primer="id: e1\nretry: 20000\ndata: \n\n"))


async def test_ended_upstream_loses_call_between_streams() -> None:
    sent: list[Any] = []

    async def body(one: SupervisorHarness, server: LeavingServer) -> None:
        sent.append(one.start("hold"))
        carried = sent[0].exchange.carrier
        while sent[0].exchange.carrier is carried:
            await one.text("echo", text="x")

    async with LeavingServer(primer="id: e1\nretry: 20000\ndata: \n\n") as server:
        async with run_supervisor(ServerConfig(url=server.url(), sessions="shared")) as one:
            await one.ready()
            await body(one, server)
        with pytest.raises(UpstreamLostError) as caught:
            await with_timeout(sent[0])
        assert caught.value.was_sent


@pytest.mark.parametrize("times", [1, 3])
async def test_resumes_streams_of_official_server(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_stateless(peer: Any) -> None:
        return None

    monkeypatch.setattr(negotiate, "_discover", not_stateless)

    with official_server("resumable") as port:
        url = f"http://127.0.0.1:{port}/mcp"
        async with run_supervisor(ServerConfig(url=url)) as upstream:
            await upstream.ready()

            async def leaving(gate: str) -> None:
                steps: asyncio.Queue[int] = asyncio.Queue()
                call = upstream.start(
                    "leave_and_answer",
                    {"times": times, "gate": gate},
                    hear=lambda _, method, params: steps.put_nowait(
                        json.loads(bytes(params))["progress"]
                    ),
                    token=gate,
                )
                for step in range(1, times + 1):
                    assert await with_timeout(steps.get()) == step
                    assert await upstream.text("leave", gate=gate) == gate
                assert text(await with_timeout(call)) == "answered in the end"

            await asyncio.gather(*(leaving(str(number)) for number in range(10)))
            assert upstream.supervisor.restarts == 0
