"""Upgrades of HTTP connections to WebSocket channels."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from interlock.channels.dial import dial
from interlock.channels.websocket import WebSocketChannel
from interlock.core.call import Credentials
from interlock.core.config import Limits
from interlock.core.server.http.exchange import HttpExchange
from interlock.core.server.http.protocol import HttpProtocol
from interlock.core.server.http.router import DirectRoute, RouteTable, WebSocketRoute
from interlock.core.server.http.server import HttpServer
from interlock.core.server.http.upgrade import WebSocketRequest
from interlock.errors import InterlockError
from interlock.protocol.websocket import text_frame
from tests.support.timeouts import HANG_TIMEOUT

MASK = b"abcd"
OFFER = (
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Version", "13"),
)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer every other path with 404."""
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"not here"})


def serve(exchange: HttpExchange) -> None:
    exchange.respond(200, b'{"served":true}')


class UpgradeHandler:
    """A handler of upgrade requests that the test controls."""

    def __init__(self, decide: Callable[[WebSocketRequest], object] | None = None) -> None:
        self.requests: list[WebSocketRequest] = []
        self.channels: list[WebSocketChannel] = []
        self._decide = decide or self.echo

    def take(self, upgrade: WebSocketRequest) -> None:
        self.requests.append(upgrade)
        self._decide(upgrade)

    def echo(self, upgrade: WebSocketRequest) -> None:
        channel = upgrade.accept()
        self.channels.append(channel)
        channel.on_message = channel.send


class Server:
    def __init__(self, http: HttpServer, handler: UpgradeHandler) -> None:
        self.http = http
        self.handler = handler

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.http.port}/ax"

    @property
    def connection_count(self) -> int:
        """Return the number of connections that uvicorn counts."""
        assert self.http._server is not None
        return len(self.http._server.server_state.connections)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Client]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.http.port)
        yield Client(reader, writer)
        writer.close()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.write = writer.write

    async def head(self) -> tuple[int, dict[str, str]]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        fields = (line.partition(": ")[::2] for line in lines)
        return int(first.split()[1]), {name.lower(): value for name, value in fields}

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, fields = await self.head()
        if "content-length" in fields:
            return status, fields, await self.reader.readexactly(int(fields["content-length"]))
        chunk = await self.reader.readuntil(b"\r\n0\r\n\r\n")
        return status, fields, chunk


def request(path: str = "/ax", method: str = "GET", *headers: tuple[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *(f"{n}: {v}" for n, v in headers)]
    return "\r\n".join([*lines, "", ""]).encode()


def change_header(name: str, value: str | None) -> list[tuple[str, str]]:
    others = [pair for pair in OFFER if pair[0] != name]
    return others if value is None else [*others, (name, value)]


def run(
    test: Callable[[Server], Coroutine[Any, Any, None]],
    handler: UpgradeHandler | None = None,
    **limits: Any,
) -> None:
    faults: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context))
        taker = handler or UpgradeHandler()
        http = HttpServer("127.0.0.1", 0)
        table = RouteTable([DirectRoute("/mcp", serve), WebSocketRoute("/ax", taker.take)])
        protocol = HttpProtocol.bound(table, Limits(**limits))
        await http.start(protocol, app)
        try:
            async with asyncio.timeout(HANG_TIMEOUT):
                await test(Server(http, taker))
        finally:
            for channel in taker.channels:
                channel.close()
            await http.stop()

    for factory in (uvloop.new_event_loop, asyncio.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())
    assert not faults, faults


def test_other_websocket_client_opens_channel() -> None:
    async def test(server: Server) -> None:
        async with connect(server.url, additional_headers={"Authorization": "Bearer t"}) as client:
            await client.send("hello")
            assert await client.recv() == "hello"
            await client.send("x" * 200_000)
            assert await client.recv() == "x" * 200_000
            await (await client.ping())
            channel = server.handler.channels[-1]
            assert (channel.peer, channel.peer_names) == ("loopback", ())
            assert server.handler.requests[-1].credentials == Credentials("loopback", "t")
            # HTTP knows nothing of it any more.
            assert server.connection_count == 0
        await channel.wait_closed()
        assert not channel.is_open

    run(test)


def test_own_client_opens_channel() -> None:
    async def test(server: Server) -> None:
        ours = await dial(server.url + "?who=me", bearer="t")
        received = asyncio.Queue[bytes]()
        told = asyncio.Queue[str]()
        ours.on_close, ours.on_message = told.put_nowait, received.put_nowait
        for size in (2, 200, 70_000, 2_000_000):
            ours.send(b"x" * size)
            assert await received.get() == b"x" * size
        assert server.handler.requests[-1].query == b"who=me"
        server.handler.channels[-1].close(4000, "namespace_conflict")
        assert await told.get() == "it closed the channel: namespace_conflict"
        assert ours.close_reason == "namespace_conflict"
        await ours.wait_closed()
        await server.handler.channels[-1].wait_closed()

    run(test)


def test_upgrades_after_earlier_requests() -> None:
    async def test(server: Server) -> None:
        async with server.connected() as client:
            for path, status in (("/mcp", 200), ("/other", 404), ("/mcp", 200)):
                client.write(request(path))
                assert (await client.answer())[0] == status
            client.write(request("/ax", "GET", *OFFER))
            assert (await client.head())[0] == 101
            assert server.connection_count == 0

    run(test)


@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_passes_bytes_after_request_to_channel(pieces: int) -> None:
    async def test(server: Server) -> None:
        async with server.connected() as client:
            data = request("/ax", "GET", *OFFER) + text_frame(b"at once", MASK) * 2
            step = -(-len(data) // pieces)
            for start in range(0, len(data), step):
                client.write(data[start : start + step])
                await asyncio.sleep(0)
            status, fields = await client.head()
            assert status == 101
            assert fields["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
            echoed = text_frame(b"at once") * 2
            assert await client.reader.readexactly(len(echoed)) == echoed

    run(test)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (change_header("Sec-WebSocket-Version", "8"), 426),
        (change_header("Sec-WebSocket-Version", None), 426),
        (change_header("Sec-WebSocket-Key", None), 400),
        (change_header("Sec-WebSocket-Key", "short"), 400),
        (change_header("Content-Length", "3"), 400),
    ],
)
def test_rejects_invalid_upgrade_request(headers: list[tuple[str, str]], status: int) -> None:
    async def test(server: Server) -> None:
        async with server.connected() as client:
            client.write(request("/ax", "GET", *headers) + b"abc")
            answered, fields, body = await client.answer()
            assert answered == status
            assert json.loads(body)["error"]["message"]
            assert fields["connection"] == "close"
            assert fields.get("sec-websocket-version") == ("13" if status == 426 else None)
            assert await client.reader.read() == b""
        assert server.handler.requests == []

    run(test)


def test_ignores_other_upgrade_offers() -> None:
    async def test(server: Server) -> None:
        async with server.connected() as client:
            for path, headers, status in (
                ("/mcp", OFFER, 200),
                ("/elsewhere", OFFER, 404),
                ("/ax", change_header("Upgrade", "h2c"), 404),
                ("/ax", (), 404),
            ):
                client.write(request(path, "GET", *headers))
                assert (await client.answer())[0] == status
        assert server.handler.requests == []

    run(test)


def test_rejects_upgrade_behind_pending_request() -> None:
    async def test(server: Server) -> None:
        async with server.connected() as client:
            client.write(request("/other") + request("/ax", "GET", *OFFER) + b"\x81")
            assert (await client.answer())[0] == 404
            assert await client.reader.read() == b""
        assert server.handler.requests == []

    run(test)


def test_rejects_upgrade_with_status() -> None:
    def refuse(upgrade: WebSocketRequest) -> None:
        with pytest.raises(KeyError):
            upgrade.fields[b"authorization"]
        upgrade.reject(401, 'Show a "token".', b"www-authenticate: Bearer\r\n")

    async def test(server: Server) -> None:
        with pytest.raises(InvalidStatus) as caught:
            await connect(server.url)
        response = caught.value.response
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        with pytest.raises(
            InterlockError, match='rejected the connection: 401 Unauthorized: Show a "token"'
        ):
            await dial(server.url)

    run(test, UpgradeHandler(refuse))


def test_undecided_upgrade_fails() -> None:
    def fail(upgrade: WebSocketRequest) -> None:
        raise LookupError("a mistake")

    async def test(server: Server) -> None:
        with pytest.raises(InterlockError, match="rejected the connection: 500"):
            await dial(server.url)

    run(test, UpgradeHandler(lambda upgrade: None))
    run(test, UpgradeHandler(fail))


def test_upgrade_is_decided_once() -> None:
    handler = UpgradeHandler()

    def twice(upgrade: WebSocketRequest) -> None:
        handler.echo(upgrade)
        with pytest.raises(RuntimeError):
            upgrade.accept()
        with pytest.raises(RuntimeError):
            upgrade.reject(403, "no")

    handler._decide = twice

    async def test(server: Server) -> None:
        channel = await dial(server.url)
        channel.close()
        await channel.wait_closed()

    run(test, handler)


def test_header_limits_apply_to_upgrade() -> None:
    async def test(server: Server) -> None:
        async with server.connected() as client:
            client.write(request("/ax", "GET", *OFFER, ("X", "x" * 2000)))
            assert (await client.answer())[0] == 431
        assert server.handler.requests == []

    run(test, header_bytes=1000)


def test_channels_survive_http_shutdown() -> None:
    async def test(server: Server) -> None:
        ours = await dial(server.url)
        received = asyncio.Queue[bytes]()
        ours.on_message = received.put_nowait
        server.http.stop_listening()
        ours.send(b"still there")
        assert await received.get() == b"still there"
        async with asyncio.timeout(HANG_TIMEOUT):
            await server.http.stop()
        ours.send(b"even now")
        assert await received.get() == b"even now"
        ours.close()
        await ours.wait_closed()

    run(test)


def test_idle_channel_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("interlock.core.server.http.protocol.KEEP_ALIVE", 0.05)

    async def test(server: Server) -> None:
        ours = await dial(server.url)
        received = asyncio.Queue[bytes]()
        ours.on_message = received.put_nowait
        async with server.connected() as idle:
            # Whoever came later and says nothing is hung up on first.
            assert await idle.reader.read() == b""
        ours.send(b"still there")
        assert await received.get() == b"still there"
        ours.close()
        await ours.wait_closed()

    run(test)
