"""Client requests over HTTP: responses do not wait behind calls."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any

import pytest

from interlock.core.call import ClientRequest
from interlock.core.config import ServerConfig
from interlock.core.upstreams import negotiation as negotiate
from interlock.core.upstreams import subscriptions, supervisor
from interlock.core.upstreams.transports import http, http_pool
from tests.core.upstreams.servers.http_server import Legacy, Request, ResponseWriter, Streamable
from tests.core.upstreams.servers.toolbox import Message, result
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.upstreams import (
    StartedCall,
    SupervisorHarness,
    official_server,
    run,
    run_supervisor,
    text,
    with_timeout,
)

pytestmark = pytest.mark.usefixtures("no_leaks")

LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
shared = functools.partial(ServerConfig, sessions="shared")
"""All calls over one connection: that is where they could be in each other's way."""
ROOTS = b'{"roots":[{"uri":"file:///here"}]}'


def content(id: Any, text: str) -> Message:
    return result(id, {"content": [{"type": "text", "text": text}]})


class RootsRequester:
    """An override: every `hold` requests the roots and returns them."""

    def __init__(self, server: Streamable | Legacy) -> None:
        self.server = server
        self.on_stream = False
        """Whether the question comes on the session's own stream, not on the call's."""
        self.held: dict[str, tuple[Any, ResponseWriter]] = {}
        self.answers: list[Request] = []
        server.override = self

    async def __call__(self, request: Request, response: ResponseWriter) -> bool:
        if request.tool == "hold":
            self._ask(request, response)
            return True
        if "result" in request.message or "error" in request.message:
            self.answers.append(request)
            id, waiting = self.held.pop(request.message["id"])
            roots = request.message["result"]["roots"]
            waiting.event(content(id, roots[0]["uri"]))
            if waiting is not getattr(self.server, "stream", None):
                waiting.end()
            response.empty("202 Accepted")
            self.server.notify_waiters()
            return True
        return False

    def _ask(self, request: Request, response: ResponseWriter) -> None:
        name = f"q{len(self.held)}"
        client_request = {"jsonrpc": "2.0", "id": name, "method": "roots/list"}
        if isinstance(self.server, Legacy):
            stream = self.server.stream
            assert stream is not None
            # It does not even accept the call before it knows.
            self.held[name] = (request.message["id"], stream)
            stream.event(client_request)
        else:
            self.held[name] = (request.message["id"], response)
            response.open()
            (self.server.streams[0] if self.on_stream else response).event(client_request)
        self.server.notify_waiters()


async def next_client_request(sent: StartedCall) -> ClientRequest:
    """Return the next client request of a call."""
    return await with_timeout(sent.questions.get())


async def answer_all(one: SupervisorHarness, calls: int) -> None:
    sent = [one.start("hold") for _ in range(calls)]
    for call in sent:
        client_request = await next_client_request(call)
        assert client_request.method == "roots/list"
        client_request.respond(ROOTS)
    for call in sent:
        assert text(await with_timeout(call)) == "file:///here"


@LOOPS
def test_responses_do_not_wait_behind_calls(loop: str) -> None:
    async def body() -> None:
        async with Streamable("session") as server:
            asking = RootsRequester(server)
            async with run_supervisor(shared(url=server.url(), connections=3)) as upstream:
                await upstream.ready()
                await answer_all(upstream, 3)
                assert len(asking.answers) == 3
                assert asking.answers[0].headers["mcp-session-id"] == "session-1"
                # Nothing is left of it that would hold up another.
                await answer_all(upstream, 3)
                assert await upstream.text("echo", text="x") == "x"

    run(body, loop=loop)


async def test_accepts_client_request_on_session_stream() -> None:
    async with Streamable("session", get="stream") as server:
        asking = RootsRequester(server)
        asking.on_stream = True
        async with run_supervisor(shared(url=server.url(), connections=1)) as upstream:
            await upstream.ready()
            await server.until(lambda: server.streams)
            await answer_all(upstream, 1)


async def test_cancellation_does_not_wait_behind_call() -> None:
    async with Streamable("session") as server:
        async with run_supervisor(shared(url=server.url(), connections=1)) as upstream:
            await upstream.ready()
            pending_call = upstream.start("hold")
            await server.until(lambda: server.toolbox.pending_calls)
            waiting = upstream.start("echo", {"text": "behind"})
            pending_call.exchange.abandon("enough")
            await server.until(lambda: server.toolbox.cancelled == [pending_call.exchange.id])  # type: ignore[attr-defined]
            assert text(await with_timeout(waiting)) == "behind"


@pytest.mark.parametrize("habit_of", ["silence", "stream"])
async def test_reclaims_connection_of_unanswered_post(
    habit_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets it back after a while, so that the next answers have one."""
    monkeypatch.setattr(http, "_POST_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(http, "_EXTRA_CONNECTIONS", 1)

    async with Streamable("session") as server:
        kept_open: list[Any] = []

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.tool == "hold":
                response.open()
                for number in range(3):
                    ping = {"jsonrpc": "2.0", "id": f"p{number}", "method": "ping"}
                    response.event(ping)
                return True
            if "result" not in request.message:
                return False
            if habit_of == "stream":
                response.open()
            kept_open.append(request.message["id"])
            server.notify_waiters()
            return True

        server.override = override
        async with run_supervisor(shared(url=server.url(), connections=1)) as upstream:
            await upstream.ready()
            call = upstream.start("hold")
            await server.until(lambda: len(kept_open) == 3)
            assert kept_open == ["p0", "p1", "p2"]
            call.exchange.abandon("enough")


async def test_undeliverable_response_affects_no_other_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed, judge = asyncio.Event(), http.HttpTransport.on_connect_failed

    def noticed(link: http.HttpTransport, reason: str) -> None:
        judge(link, reason)
        failed.set()

    monkeypatch.setattr(http.HttpTransport, "on_connect_failed", noticed)
    async with Streamable("session") as server:
        asking = RootsRequester(server)
        async with run_supervisor(shared(url=server.url(), connections=2)) as upstream:
            await upstream.ready()
            first, second = upstream.start("hold"), upstream.start("hold")
            client_request, other = (
                await next_client_request(first),
                await next_client_request(second),
            )
            # It takes no new connections for a while.
            assert server._server is not None
            server._server.close()
            monkeypatch.setattr(http_pool, "IDLE_TIMEOUT_SECONDS", -1.0)
            client_request.respond(ROOTS)
            await with_timeout(failed.wait())
            assert not asking.answers
            assert first.exchange.is_open
            assert second.exchange.is_open
            await server.start(server.port)
            other.respond(ROOTS)
            assert text(await with_timeout(second)) == "file:///here"
            assert upstream.supervisor.restarts == 0
            first.exchange.abandon("enough")


@LOOPS
def test_accepts_client_request_on_legacy_stream(loop: str) -> None:
    async def body() -> None:
        async with Legacy() as server:
            asking = RootsRequester(server)
            url = server.url("/sse")
            async with run_supervisor(shared(url=url, transport="sse", connections=2)) as upstream:
                await upstream.ready()
                sent = [upstream.start("hold") for _ in range(2)]
                await server.until(lambda: len(asking.held) == 2)
                # On the one stream nothing says whose question it is; one caller has them all.
                for _ in range(2):
                    (await next_client_request(sent[-1])).respond(ROOTS)
                for call in sent:
                    assert text(await with_timeout(call)) == "file:///here"
                assert len(asking.answers) == 2

    run(body, loop=loop)


@pytest.mark.parametrize("kind", ["sse", "legacy"])
async def test_accepts_client_request_of_official_server(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_stateless(peer: Any) -> None:
        return None

    monkeypatch.setattr(negotiate, "_discover", not_stateless)
    # The server drops what it asks before its stream is open, and a busy machine takes long.
    monkeypatch.setattr(subscriptions, "HEADERS_TIMEOUT_SECONDS", HANG_TIMEOUT)
    monkeypatch.setattr(supervisor, "SUBSCRIPTION_TIMEOUT_SECONDS", HANG_TIMEOUT)

    with official_server(kind) as port:
        url = f"http://127.0.0.1:{port}/{'sse' if kind == 'legacy' else 'mcp'}"
        async with run_supervisor(shared(url=url, connections=1)) as upstream:
            await upstream.ready()
            call = upstream.start("ask_for_roots")
            client_request = await next_client_request(call)
            assert json.loads(client_request.params or b"{}").get("_meta", {}) == {}
            client_request.respond(ROOTS)
            assert text(await with_timeout(call)) == "file:///here"
