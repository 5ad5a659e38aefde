"""The egress proxy of the node with hostile clients."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from interlock.drivers.sandbox import proxy as proxy_module
from interlock.drivers.sandbox.patterns import Egress, HostPort
from interlock.drivers.sandbox.plan import EgressRoutes
from interlock.drivers.sandbox.proxy import MAX_HEAD_BYTES, Proxy
from tests.drivers.sandbox.confinements import GREETING, LOOPS, greeting_server, resolve_to_loopback
from tests.support.upstreams import run, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")

STANDS_FOR_IT = "127.64.0.1"
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
RAW = pytest.mark.parametrize("raw", [True, False], ids=["raw", "proxied"])

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Bench:
    """A proxy on sockets of this machine. It allows `a.example` at one port."""

    def __init__(self, proxy: Proxy, proxy_port: int, port: int) -> None:
        self.proxy = proxy
        self.proxy_port = proxy_port
        self.port = port
        self._clients: list[asyncio.StreamWriter] = []

    async def client(self, *, raw: bool = False) -> Ends:
        """Somebody who connects to the proxy, or to the address that stands for the host."""
        where = (STANDS_FOR_IT, self.port) if raw else ("127.0.0.1", self.proxy_port)
        reader, writer = await asyncio.open_connection(*where)
        self._clients.append(writer)
        return reader, writer

    async def tunnel(self, *, raw: bool = False) -> Ends:
        """The same, and the host is at the other end."""
        reader, writer = await self.client(raw=raw)
        if not raw:
            writer.write(connect("a.example", self.port))
            assert await with_timeout(reader.readexactly(len(ESTABLISHED))) == ESTABLISHED
        return reader, writer

    async def answer(self, data: bytes, *, end: bool = False) -> bytes:
        """All that comes back for some bytes."""
        reader, writer = await self.client()
        writer.write(data)
        if end:
            writer.write_eof()
        return await with_timeout(reader.read())

    async def close(self) -> None:
        for writer in self._clients:
            writer.close()
        await with_timeout(self.proxy.close())


@asynccontextmanager
async def bench(port: int, *, resolve: Any = resolve_to_loopback) -> AsyncIterator[Bench]:
    listening = [
        socket.create_server(("127.0.0.1", 0)),
        socket.create_server((STANDS_FOR_IT, port)),
    ]
    proxy_port = listening[0].getsockname()[1]
    place = HostPort("a.example", port)
    proxy = Proxy(
        "the driver",
        Egress((place,)),
        EgressRoutes({}, {HostPort(STANDS_FOR_IT, port): place.host}, proxy_port),
        resolve=resolve,
        on_denied=lambda host, port: None,
    )
    await proxy.serve(listening)
    one = Bench(proxy, proxy_port, port)
    try:
        yield one
    finally:
        await one.close()


@asynccontextmanager
async def host(serve: Callable[..., Coroutine[Any, Any, None]]) -> AsyncIterator[int]:
    """A host outside; its port."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def connect(host: str, port: int) -> bytes:
    return f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode()


@LOOPS
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x05\x01\x00\r\n\r\n", b"400"),
        # Two that share the tests must name this case alike: the same rubbish every time.
        (bytes(range(0x80, 0xC0)) + b"\x00\xff\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", b"400"),
        (b"CONNECT a.example:443 HTTP/1.1\r\nx: y\0\r\n\r\n", b"400"),
        (b"GET http://user:pass@a.example/ HTTP/1.1\r\n\r\n", b"400"),
        (b"x" * (MAX_HEAD_BYTES * 4), b"400"),
        (connect("b.example", 443), b"403"),
        (connect("a.example.", 444), b"403"),
        (
            b"POST http://b.example/ HTTP/1.1\r\nContent-Length: 90000\r\n\r\n" + b"x" * 90000,
            b"403",
        ),
    ],
)
def test_rejects_bad_proxy_requests(data: bytes, status: bytes, loop: str, free_port: int) -> None:
    async def body() -> None:
        requests: list[str] = []

        async def resolve(host: str, port: int) -> list[str]:
            requests.append(host)
            return []

        async with bench(free_port, resolve=resolve) as one:
            answer = await one.answer(data, end=True)
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert b"pass" not in answer
            assert not requests

    run(body, loop=loop)


@LOOPS
def test_incomplete_request_is_closed(loop: str, free_port: int) -> None:
    async def body() -> None:
        async with bench(free_port) as one:
            assert (await one.answer(b"CONNECT a.ex", end=True)).startswith(b"HTTP/1.1 400")
            assert await one.answer(b"", end=True) == b""

    run(body, loop=loop)


async def test_slow_request_times_out(monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    monkeypatch.setattr(proxy_module, "HEAD_TIMEOUT_SECONDS", 0.05)

    async with bench(free_port) as one:
        assert (await one.answer(b"CONNECT a.example:443 HT")).startswith(b"HTTP/1.1 408")
        assert (await one.answer(b"")).startswith(b"HTTP/1.1 408")


@LOOPS
def test_accepts_request_in_single_bytes(loop: str) -> None:
    async def body() -> None:
        async with greeting_server() as other, bench(other.port) as one:
            reader, writer = await one.client()
            writer.transport.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
            )
            for byte in connect("A.Example", other.port):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            assert await with_timeout(reader.read()) == ESTABLISHED + GREETING.encode()

    run(body, loop=loop)


@LOOPS
def test_forwards_data_sent_with_request(loop: str) -> None:
    async def body() -> None:
        async with greeting_server() as other, bench(other.port) as one:
            await one.answer(connect("a.example", other.port) + b"early", end=True)
            plain = f"PUT http://a.example:{other.port}/x HTTP/1.1\r\nContent-Length: 2\r\n\r\n{{}}"
            await one.answer(plain.encode(), end=True)
            assert other.said[0] == b"early"
            assert other.said[1].endswith(b"Connection: close\r\n\r\n{}")

    run(body, loop=loop)


@LOOPS
@RAW
def test_forwards_large_data_in_both_directions(raw: bool, loop: str) -> None:
    """More than fits into anybody's buffers, with an end that is said one side at a time."""

    async def body() -> None:
        data = os.urandom(1024) * (8 * 1024)
        events: list[bytes] = []

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            events.append(await reader.read())
            writer.write(data)
            await writer.drain()
            writer.close()

        async with host(take) as port, bench(port) as one:
            reader, writer = await one.tunnel(raw=raw)
            writer.write(data)
            await with_timeout(writer.drain())
            writer.write_eof()
            assert await with_timeout(reader.read()) == data
            assert events == [data]

    run(body, loop=loop)


@LOOPS
def test_slow_reader_stops_reading_from_sender(loop: str) -> None:
    """What nobody takes piles up with its sender, not in the node."""

    async def body() -> None:
        sent = 0
        stuck = asyncio.Event()

        async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            piece = bytes(1024 * 1024)
            try:
                while True:
                    writer.write(piece)
                    async with asyncio.timeout(0.5):
                        await writer.drain()
                    sent += 1
            except TimeoutError:
                stuck.set()
            writer.transport.abort()

        async with host(flood) as port, bench(port) as one:
            reader, _ = await one.tunnel()
            # Of the client's own buffer, the loop fills a little; the rest is the kernel's.
            await with_timeout(stuck.wait())
            assert sent < 64
            assert await with_timeout(reader.read(1)) == b"\0"

    run(body, loop=loop)


@LOOPS
@RAW
def test_host_disconnect_closes_client(raw: bool, loop: str) -> None:
    async def body() -> None:
        async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)
            reset(writer)

        async with host(leave) as port, bench(port) as one:
            reader, writer = await one.tunnel(raw=raw)
            writer.write(b"x")
            with pytest.raises(ConnectionResetError):
                await with_timeout(reader.read())

    run(body, loop=loop)


@LOOPS
@RAW
def test_client_disconnect_closes_host(raw: bool, loop: str) -> None:
    async def body() -> None:
        left: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        async def stay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.read()
                left.set_result(None)
            except OSError as exc:
                left.set_result(exc)
            writer.close()

        async with host(stay) as port, bench(port) as one:
            _, writer = await one.tunnel(raw=raw)
            reset(writer)
            await with_timeout(left)

    run(body, loop=loop)


@LOOPS
def test_silent_half_closed_connection_times_out(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "HALF_CLOSED_TIMEOUT_SECONDS", 0.05)

    async def body() -> None:
        over = asyncio.Event()

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # Says nothing, and does not leave either.
            await over.wait()
            writer.close()

        async with host(mute) as port, bench(port) as one:
            reader, writer = await one.tunnel()
            writer.write_eof()
            with pytest.raises(ConnectionResetError):
                await with_timeout(reader.read())
            over.set()

    run(body, loop=loop)


@LOOPS
def test_limits_connections(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_module, "MAX_CONNECTIONS", 2)

    async def body() -> None:
        async with greeting_server() as other, bench(other.port) as one:
            for _ in range(2):
                _, writer = await one.client()
                writer.write(b"CONNECT")
                await writer.drain()
            reader, _ = await one.client()
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await with_timeout(reader.readexactly(1))

    run(body, loop=loop)


@LOOPS
def test_tries_all_addresses(loop: str, free_port: int) -> None:
    async def body() -> None:
        async def two(host: str, port: int) -> Sequence[str]:
            return ["127.0.0.9", "::1", "127.0.0.1"]

        async def none(host: str, port: int) -> Sequence[str]:
            return []

        async with greeting_server() as other:
            async with bench(other.port, resolve=two) as one:
                answer = await one.answer(connect("a.example", other.port), end=True)
                assert answer == ESTABLISHED + GREETING.encode()
            async with bench(free_port, resolve=none) as one:
                answer = await one.answer(connect("a.example", free_port))
                assert answer.startswith(b"HTTP/1.1 502")

    run(body, loop=loop)


async def test_unresponsive_host_times_out(monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    monkeypatch.setattr(proxy_module, "CONNECT_TIMEOUT_SECONDS", 0.05)

    async def never(host: str, port: int) -> Sequence[str]:
        await asyncio.get_running_loop().create_future()
        return []

    async with bench(free_port, resolve=never) as one:
        assert (await one.answer(connect("a.example", free_port))).startswith(b"HTTP/1.1 502")
        reader, _ = await one.client(raw=True)
        with pytest.raises(ConnectionResetError):
            await with_timeout(reader.read())


def reset(writer: asyncio.StreamWriter) -> None:
    plain = writer.get_extra_info("socket")
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
