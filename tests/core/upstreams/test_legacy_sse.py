"""Servers of 2024-11-05: one event stream for messages to the node, POST for messages to the
server.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.core.call import UpstreamLostError
from interlock.core.config import ServerConfig
from interlock.core.upstreams.transports import legacy_sse
from interlock.protocol.mcp import Era
from tests.core.upstreams.servers.http_server import Legacy, Request, ResponseWriter, Streamable
from tests.core.upstreams.servers.toolbox import result
from tests.support.upstreams import official_server, run, run_supervisor, text, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")

LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


@LOOPS
def test_works_with_official_legacy_server(loop: str) -> None:
    async def body() -> None:
        with official_server("legacy") as port:
            for transport in ("auto", "sse"):
                url = f"http://127.0.0.1:{port}/sse"
                async with run_supervisor(ServerConfig(url=url, transport=transport)) as upstream:
                    await upstream.ready()
                    assert upstream.era is Era.SESSION
                    received: list[Any] = []
                    call = upstream.start(
                        "report",
                        {"steps": 3},
                        hear=lambda _call, _method, params, received=received: received.append(
                            json.loads(bytes(params))
                        ),
                        token=1,
                    )
                    assert text(await with_timeout(call)) == "reported"
                    assert [told["progress"] for told in received] == [1, 2, 3]
                    calls = [upstream.start("echo", {"text": str(n)}) for n in range(20)]
                    for number, sent in enumerate(calls):
                        assert text(await with_timeout(sent)) == str(number)

    run(body, loop=loop)


# -- servers of 2024-11-05 that are not


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("http://127.0.0.2:1/messages", "an endpoint on another server, which is not allowed"),
        ("//evil.test/messages", "an endpoint on another server, which is not allowed"),
        ("https://127.0.0.1:{port}/messages", "an endpoint on another server"),
        ("http://127.0.0.1:99999/", "an invalid endpoint URL"),
        ("http://[/", "an invalid endpoint URL"),
    ],
)
async def test_rejects_endpoint_on_other_server(endpoint: str, message: str) -> None:
    server = Legacy()
    await server.start()
    server.endpoint = endpoint.format(port=server.port)
    headers = {"Authorization": "Bearer secret"}
    async with run_supervisor(ServerConfig(url=server.url("/sse"), headers=headers)) as upstream:
        upstream.sleeps.hold()
        await upstream.until(lambda: upstream.sleeps.sleeping)
        assert upstream.supervisor.problem is not None
        assert message in upstream.supervisor.problem
        await server.until(lambda: server.open_connections == 0)
    await server.stop()


@pytest.mark.parametrize("endpoint", ["/messages?session=1", "{base}/messages?session=1"])
async def test_accepts_relative_and_absolute_endpoint(endpoint: str) -> None:
    server = Legacy()
    await server.start()
    named = endpoint.format(base=server.url(""))

    async def override(request: Request, response: ResponseWriter) -> bool:
        if request.method != "GET":
            return False
        response.open()
        # An early word before anybody listens must not upset anything.
        response.event(named, "endpoint")
        response.event({"jsonrpc": "2.0", "id": "early", "method": "ping"})
        server.stream = response
        return True

    server.override = override
    async with run_supervisor(ServerConfig(url=server.url("/sse"), transport="sse")) as upstream:
        await upstream.ready()
        assert await upstream.text("echo", text="x") == "x"
    await server.stop()


async def test_times_out_without_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_sse, "_ENDPOINT_TIMEOUT_SECONDS", 0.05)

    async with Legacy() as server:

        async def override(request: Request, response: ResponseWriter) -> bool:
            response.open()
            return True

        server.override = override
        async with run_supervisor(
            ServerConfig(url=server.url("/sse"), transport="sse")
        ) as upstream:
            upstream.sleeps.hold()
            await upstream.until(lambda: upstream.sleeps.sleeping)
            assert upstream.supervisor.problem is not None
            assert "sent no `endpoint` event" in upstream.supervisor.problem
            await server.until(lambda: server.open_connections == 0)


async def test_reports_error_of_first_transport() -> None:
    """What the POST was told says more than what the GET was told."""

    async with Streamable("session", get="405 Method Not Allowed") as server:

        async def override(request: Request, response: ResponseWriter) -> bool:
            response.empty("405 No" if request.method == "GET" else "404 Not Found")
            return True

        server.override = override
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            upstream.sleeps.hold()
            await upstream.until(lambda: upstream.sleeps.sleeping)
            assert upstream.supervisor.problem == "up responded with HTTP 404."
    assert [request.method for request in server.requests] == ["POST", "POST", "GET"]


@pytest.mark.parametrize(
    ("status", "sent"),
    [("404 Not Found", False), ("307 Moved", True), ("500 Internal Server Error", True)],
)
async def test_rejected_post_fails_call(status: str, sent: bool) -> None:
    async with Legacy() as server:
        async with run_supervisor(
            ServerConfig(url=server.url("/sse"), transport="sse")
        ) as upstream:
            await upstream.ready()

            async def override(request: Request, response: ResponseWriter) -> bool:
                if request.tool == "echo":
                    response.empty(status)
                return request.tool == "echo"

            server.override = override
            with pytest.raises(UpstreamLostError, match=f"HTTP {status[:3]}") as caught:
                await with_timeout(upstream.start("echo"))
            assert caught.value.was_sent is sent
            assert await upstream.text("cancelled") == "[]"


async def test_large_event_does_not_affect_other_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_sse, "MAX_MESSAGE", 10_000)

    async with Legacy() as server:
        async with run_supervisor(
            ServerConfig(url=server.url("/sse"), transport="sse")
        ) as upstream:
            await upstream.ready()

            async def override(request: Request, response: ResponseWriter) -> bool:
                if request.tool != "echo":
                    return False
                response.empty("202 Accepted")
                assert server.stream is not None
                valid = result(request.message["id"], {"content": []})
                pieces = [f"data: {'x' * 20_000}\n\n", f"data: {json.dumps(valid)}\n\n"]
                server.stream.write_chunk("".join(pieces).encode())
                return True

            server.override = override
            assert await upstream.result("echo") == {"content": []}
            assert upstream.supervisor.restarts == 0
