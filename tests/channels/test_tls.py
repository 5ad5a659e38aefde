"""Tests of channels over TLS 1.3 with the listener of the node, and of proven names."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.channels.dial import dial
from interlock.channels.tls import client_context
from interlock.channels.websocket import WebSocketChannel
from interlock.core.config import Limits
from interlock.core.server.http.exchange import HttpExchange
from interlock.core.server.http.protocol import HttpProtocol
from interlock.core.server.http.router import DirectRoute, RouteTable, WebSocketRoute
from interlock.core.server.http.server import HttpServer, tls_context
from interlock.core.server.http.upgrade import WebSocketRequest
from interlock.errors import CONFIG, UPSTREAM_UNAVAILABLE, InterlockError
from tests.channels.certificates import Authority, Identity
from tests.channels.conftest import Run


def serve(exchange: HttpExchange) -> None:
    exchange.respond(200, b"{}")


class TlsListener:
    """The listener of the node with TLS."""

    def __init__(self, http: HttpServer) -> None:
        self.port = http.port
        self.url = f"wss://localhost:{http.port}/ax"
        self.channels: list[WebSocketChannel] = []
        self.bearers: list[str | None] = []

    def take(self, upgrade: WebSocketRequest) -> None:
        self.bearers.append(upgrade.credentials.bearer)
        channel = upgrade.accept()
        channel.on_message = channel.send
        self.channels.append(channel)


@asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncIterator[TlsListener]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nobody asks for this")

    http = HttpServer("127.0.0.1", 0, context)
    there = TlsListener(http)
    table = RouteTable([DirectRoute("/mcp", serve), WebSocketRoute("/ax", there.take)])
    lane = HttpProtocol.bound(table, Limits())
    await http.start(lane, app)
    try:
        yield there
    finally:
        for channel in there.channels:
            channel.close()
        await http.stop()


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server(ca: Authority) -> Identity:
    return ca.issue("server", "Localhost", "127.0.0.1", "parent.example.com")


async def assert_echo(channel: Any, payload: bytes) -> None:
    heard = asyncio.get_running_loop().create_future()
    channel.on_message = heard.set_result
    channel.send(payload)
    assert await heard == payload


@pytest.mark.spec("AX-10.4-1")
def test_both_sides_verify_names(run: Run, ca: Authority, server: Identity) -> None:
    child = ca.issue("child", "Edge01.factory.example.com", "127.0.0.1", "edge01.example.com")

    async def test() -> None:
        async with listening(tls_context(*server, ca.file)) as there:
            ours = await dial(there.url, bearer="t", ssl=client_context(ca.file, *child))
            (theirs,) = there.channels
            assert theirs.peer_names == ("edge01.factory.example.com", "edge01.example.com")
            assert ours.peer_names == ("localhost", "parent.example.com")
            assert (theirs.peer, there.bearers) == ("loopback", ["t"])
            tls = theirs._transport.get_extra_info("ssl_object")
            assert tls.version() == "TLSv1.3"
            await assert_echo(ours, b"x" * 2_000_000)
            theirs.close(4000, "bye")
            await ours.wait_closed()
            assert ours.close_reason == "bye"
            await theirs.wait_closed()

    run(test())


def test_client_certificate_is_optional(run: Run, ca: Authority, server: Identity) -> None:
    async def test() -> None:
        for context in (tls_context(*server, ca.file), tls_context(*server)):
            async with listening(context) as there:
                ours = await dial(there.url, ssl=client_context(ca.file))
                assert there.channels[0].peer_names == ()
                ours.close()
                await ours.wait_closed()

    run(test())


def test_unrequested_certificate_proves_nothing(run: Run, ca: Authority, server: Identity) -> None:
    child = ca.issue("unasked", "edge01.example.com")

    async def test() -> None:
        async with listening(tls_context(*server)) as there:
            ours = await dial(there.url, ssl=client_context(ca.file, *child))
            assert there.channels[0].peer_names == ()
            ours.close()
            await ours.wait_closed()

    run(test())


def test_rejects_untrusted_certificates(
    run: Run, ca: Authority, server: Identity, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    forged = stranger.issue("forged", "edge01.example.com")

    async def test() -> None:
        async with listening(tls_context(*server, ca.file)) as there:
            with pytest.raises(InterlockError, match="perhaps it does not trust") as raised:
                await dial(there.url, ssl=client_context(ca.file, *forged))
            assert raised.value.failure is UPSTREAM_UNAVAILABLE
            with pytest.raises(InterlockError, match="certificate is not trusted"):
                await dial(there.url, ssl=client_context(stranger.file))
            # The system's own CAs do not know it either.
            with pytest.raises(InterlockError, match="certificate is not trusted"):
                await dial(there.url)
            assert there.channels == []

    run(test())


def test_rejects_certificate_for_other_name(run: Run, ca: Authority) -> None:
    other = ca.issue("other", "elsewhere.example.com")

    async def test() -> None:
        async with listening(tls_context(*other)) as there:
            with pytest.raises(InterlockError, match="not valid for 'localhost'"):
                await dial(there.url, ssl=client_context(ca.file))

    run(test())


@pytest.mark.spec("AX-10.4-1")
def test_rejects_tls_below_1_3(run: Run, ca: Authority, server: Identity) -> None:
    old_client = ssl.create_default_context(cafile=ca.file)
    old_client.maximum_version = ssl.TLSVersion.TLSv1_2
    old_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old_server.load_cert_chain(*server)
    old_server.maximum_version = ssl.TLSVersion.TLSv1_2

    async def test() -> None:
        async with listening(tls_context(*server)) as there:
            with pytest.raises(InterlockError, match=r"Both sides must speak TLS 1\.3"):
                await dial(there.url, ssl=old_client)
        async with listening(old_server) as there:
            with pytest.raises(InterlockError, match=r"Both sides must speak TLS 1\.3"):
                await dial(there.url, ssl=client_context(ca.file))

    run(test())


def test_serves_http_over_tls(run: Run, ca: Authority, server: Identity) -> None:
    async def test() -> None:
        async with listening(tls_context(*server)) as there:
            reader, writer = await asyncio.open_connection(
                "localhost", there.port, ssl=ssl.create_default_context(cafile=ca.file)
            )
            writer.write(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
            for _ in range(2):
                assert b" 200 OK" in await reader.readuntil(b"\r\n\r\n{}")
            writer.close()
            # Who speaks no TLS is not answered in the clear.
            reader, writer = await asyncio.open_connection("localhost", there.port)
            writer.write(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP/1.1 200" not in await reader.read()
            writer.close()

    run(test())


@pytest.mark.parametrize("wrong", ["certificate", "key", "client_ca"])
def test_reports_unreadable_files(
    wrong: str, ca: Authority, server: Identity, tmp_path: Path
) -> None:
    files = {"certificate": server.certificate, "key": server.key, "client_ca": ca.file}
    missing, empty = tmp_path / "missing.pem", tmp_path / "empty.pem"
    empty.write_text("nothing\n")
    with pytest.raises(InterlockError, match=f"Cannot read {missing}.*No such file") as raised:
        tls_context(**{**files, wrong: str(missing)})
    assert raised.value.failure is CONFIG
    with pytest.raises(InterlockError, match=f"{empty}.*PEM file") as raised:
        tls_context(**{**files, wrong: str(empty)})
    assert raised.value.failure is CONFIG


def test_rejects_unusable_keys(ca: Authority, server: Identity) -> None:
    locked = ca.issue("locked", "localhost", password="hidden")
    with pytest.raises(InterlockError, match="has a password"):
        tls_context(*locked)
    with pytest.raises(InterlockError, match="belongs to another certificate"):
        tls_context(server.certificate, ca.issue("third", "localhost").key)


def test_reports_unreadable_client_files(ca: Authority, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(InterlockError, match="Cannot read"):
        client_context(missing)
    with pytest.raises(InterlockError, match="Cannot read"):
        client_context(ca.file, missing, missing)
    with pytest.raises(InterlockError, match="cannot be used for TLS"):
        client_context(certificate=ca.file)
