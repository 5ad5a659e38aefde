"""Endless HTTP responses, and memory of ended connections."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from interlock.core.upstreams.oauth import fetch
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.transports import http_pool
from interlock.core.upstreams.transports.http_pool import HttpConnection, HttpPool, Origin
from interlock.errors import UPSTREAM_LOST, Failure
from tests.support.clock import run_ready_tasks
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.upstreams import run, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")

LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
PIECE = 16 * 1024


class RecordingTicket:
    """A request that stores its response."""

    def __init__(self) -> None:
        self.connection: HttpConnection | None = None
        self.done: asyncio.Future[tuple[Failure | int, Any]] = asyncio.Future()
        self.chunks = 0

    def on_response(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        self.done.set_result((status, body))

    def on_stream_start(self, headers: dict[bytes, bytes]) -> None:
        """It is a stream."""

    def on_stream_data(self, data: bytes) -> None:
        self.chunks += 1

    def on_stream_end(self) -> None:
        self.done.set_result((200, self.chunks))

    def on_failure(self, failure: Failure, message: str, *, was_sent: bool) -> None:
        self.done.set_result((failure, message))


@asynccontextmanager
async def open_pool(begins: bytes, goes_on: bytes, pieces: int | None = None) -> AsyncIterator[Any]:
    """Open a pool to a server that sends a start, and then pieces without end."""
    written = [0]

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(begins)
            while pieces is None or written[0] < pieces:
                writer.write(goes_on)
                await writer.drain()
                written[0] += 1
            await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = HttpPool("hostile", Origin(f"http://127.0.0.1:{port}/"), 1, time.monotonic)
    try:
        yield pool
    finally:
        await pool.close()
        server.close()
        await server.wait_closed()


@LOOPS
@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"a" * PIECE),
        (b"HTTP/1.1 200 OK\r\n", b"a" * PIECE),
        (b"HTTP/1.1 200 ", b"a" * PIECE),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 400),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: ", b"a" * PIECE),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1;x=", b"a" * PIECE),
    ],
    ids=["value", "name", "status", "1xx", "trailer", "extension"],
)
def test_endless_head_closes_connection(begins: bytes, goes_on: bytes, loop: str) -> None:
    async def body() -> None:
        async with open_pool(begins, goes_on) as pool:
            answered = RecordingTicket()
            pool.send(REQUEST, answered)
            failure, _ = await with_timeout(answered.done)
            assert failure is UPSTREAM_LOST

    run(body, loop=loop)


async def test_limits_response_of_authorization_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch, "TIMEOUT_SECONDS", 2 * HANG_TIMEOUT)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n"
    pieces = fetch.MAX_RESPONSE_BYTES // PIECE + 1

    # The server waits after that much, so only the limit can end the request.
    async with open_pool(head, b"a" * PIECE, pieces) as pool:
        url = f"http://127.0.0.1:{pool.origin.port}/keys"
        with pytest.raises(SignInProblem):
            await with_timeout(fetch.fetch("GET", url, {}))


async def test_reads_stream_of_many_small_chunks() -> None:
    """The lengths between chunks are no body, and many of them are no head that never ends."""
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )

    async with open_pool(head, b"1\r\n:\r\n" * 1000, pieces=40) as pool:
        answered = RecordingTicket()
        pool.send(REQUEST, answered)
        while answered.chunks < 40_000:
            await run_ready_tasks(1)
        assert not answered.done.done()
        assert answered.connection is not None
        answered.connection.abort()


def connections() -> list[HttpConnection]:
    """Return all connections that are not freed."""
    return [item for item in gc.get_objects() if type(item) is HttpConnection]


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Disable the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@LOOPS
@pytest.mark.parametrize("how", ["too long", "abandoned", "closed"])
@pytest.mark.usefixtures("without_collector")
def test_frees_ended_connection(how: str, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_pool, "MAX_MESSAGE", 4 * PIECE if how == "too long" else 1 << 30)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n"
    # The traceback of an earlier test that failed may hold connections.
    before = connections()

    async def body() -> None:
        async with open_pool(head, b"a" * PIECE, None if how == "too long" else 8) as pool:
            answered = RecordingTicket()
            pool.send(REQUEST, answered)
            if how == "too long":
                failure, _ = await with_timeout(answered.done)
                assert failure is UPSTREAM_LOST
            else:
                while answered.connection is None or answered.connection._size < 8 * PIECE:
                    await run_ready_tasks(1)
                if how == "abandoned":
                    answered.connection.abort()
                else:
                    await pool.close()
            answered.connection = None
            while pool.connected:
                await run_ready_tasks(1)
            for _ in range(3):
                await run_ready_tasks(1)
            remaining = [
                connection
                for connection in connections()
                if not any(connection is known for known in before)
            ]
            assert remaining == []

    run(body, loop=loop)
