"""HTTP sessions that expire, with servers of these tests and of the official SDK."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core.call import UpstreamLostError, UpstreamResponseError
from interlock.core.config import ServerConfig
from interlock.core.upstreams import negotiation as negotiate
from interlock.core.upstreams.supervisor import State
from interlock.errors import UPSTREAM_LOST
from interlock.protocol.mcp import Era
from tests.core.upstreams.servers.http_server import Request, ResponseWriter, Streamable
from tests.core.upstreams.servers.toolbox import error
from tests.support.upstreams import official_server, run, run_supervisor, text, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")

LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


# -- sessions that are lost


@LOOPS
@pytest.mark.parametrize(
    "forgets",
    ["404 empty", "404 text", "404 null", "400 text", "400 null", '400 "server-error"'],
)
def test_reopens_expired_session(forgets: str, loop: str) -> None:
    """Every call was refused, none executed: each may be sent again."""

    async def body() -> None:
        async with Streamable("session", forgets=forgets) as server:
            async with run_supervisor(ServerConfig(url=server.url(), connections=4)) as upstream:
                await upstream.ready()
                server.forget_sessions()
                executed = server.toolbox.calls
                calls = [upstream.start("echo", {"text": str(n)}) for n in range(10)]
                for call in calls:
                    with pytest.raises(UpstreamLostError, match="session") as caught:
                        await with_timeout(call)
                    assert not caught.value.was_sent
                assert server.toolbox.calls == executed
                assert await with_timeout(upstream.supervisor.wait_until_ready(10))
                assert await upstream.text("echo", text="again") == "again"
                assert upstream.states == [State.READY, State.DEGRADED, State.READY]
                assert not server.deleted
                assert server.requests[-1].headers["mcp-session-id"] == "session-2"

    run(body, loop=loop)


async def test_pending_call_survives_session_expiry() -> None:
    async with Streamable("session") as server:
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
            pending_call = upstream.start("hold", {"text": "answered all the same"})
            await server.until(lambda: server.toolbox.pending_calls)
            server.forget_sessions()
            with pytest.raises(UpstreamLostError, match="no longer knows the session"):
                await with_timeout(upstream.start("echo"))
            ((message, send),) = server.toolbox.pending_calls.values()
            send(server.toolbox._text(message, "answered all the same"))
            assert text(await with_timeout(pending_call)) == "answered all the same"
            await upstream.ready()


async def test_pending_call_fails_after_session_expiry_timeout() -> None:
    async with Streamable("session") as server:
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
            pending_call = upstream.start("hold")
            await server.until(lambda: server.toolbox.pending_calls)
            server.forget_sessions()
            with pytest.raises(UpstreamLostError):
                await with_timeout(upstream.start("echo"))
            with pytest.raises(UpstreamLostError) as caught:
                await with_timeout(pending_call)
            assert caught.value.failure is UPSTREAM_LOST
            assert caught.value.was_sent
            await upstream.ready()


async def test_unknown_method_with_404_keeps_session() -> None:
    async with Streamable("session") as server:

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.tool == "fail":
                id = request.message["id"]
                response.json(error(id, -32601, "Method not found"), "404 Not Found")
            return request.tool == "fail"

        server.override = override
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
            with pytest.raises(UpstreamResponseError, match="Method not found"):
                await with_timeout(upstream.start("fail"))
            assert upstream.supervisor.state is State.READY


async def test_error_response_about_session_keeps_session() -> None:
    async with Streamable("session") as server:

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.tool == "fail":
                id = request.message["id"]
                text = "The session argument is missing."
                response.json(error(id, -32602, text), "400 Bad Request")
            return request.tool == "fail"

        server.override = override
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
            with pytest.raises(UpstreamResponseError, match="session argument is missing"):
                await with_timeout(upstream.start("fail"))
            assert upstream.supervisor.state is State.READY


@LOOPS
def test_reconnects_to_restarted_server(loop: str) -> None:
    async def body() -> None:
        server = Streamable("session", get="stream", announces=True)
        await server.start()
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
            await server.until(lambda: server.streams)
            for turn in range(3):
                await server.stop()
                server.forget_sessions()
                server.streams.clear()
                await server.start(server.port)
                with pytest.raises(UpstreamLostError) as caught:
                    await with_timeout(upstream.start("echo", {"text": "x"}))
                assert not caught.value.was_sent
                await upstream.ready()
                assert await upstream.text("echo", text=str(turn)) == str(turn)
        await server.stop()

    run(body, loop=loop)


# -- the official SDK


@pytest.mark.parametrize("kind", ["json", "sse"])
async def test_works_with_official_server_in_both_generations(kind: str) -> None:
    with official_server(kind) as port:
        url = f"http://127.0.0.1:{port}/mcp"
        async with run_supervisor(ServerConfig(url=url)) as upstream:
            await upstream.ready()
            assert upstream.era is Era.STATELESS
            assert await upstream.text("echo", text="grüezi") == "grüezi"
            calls = [upstream.start("echo", {"text": str(n)}) for n in range(30)]
            for number, call in enumerate(calls):
                assert text(await with_timeout(call)) == str(number)
            stuck = upstream.start("wait_for_ever")
            await upstream.text("echo", text="x")
            stuck.exchange.abandon("enough")
            assert await upstream.text("echo", text="y") == "y"


async def test_reopens_session_of_official_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def not_stateless(peer: Any) -> None:
        return None

    monkeypatch.setattr(negotiate, "_discover", not_stateless)

    with official_server("json") as port:
        url = f"http://127.0.0.1:{port}/mcp"
        async with run_supervisor(ServerConfig(url=url)) as upstream:
            await upstream.ready()
            assert upstream.era is Era.SESSION
            assert await upstream.text("echo", text="x") == "x"
            peer = upstream.supervisor.upstream_client
            assert peer is not None
            link: Any = peer.transport
            link.set_protocol_headers(peer.revision, session=b"forgotten")
            with pytest.raises(UpstreamLostError, match="no longer knows") as caught:
                await with_timeout(upstream.start("echo", {"text": "x"}))
            assert not caught.value.was_sent
            assert await with_timeout(upstream.supervisor.wait_until_ready(10))
            assert await upstream.text("echo", text="y") == "y"
