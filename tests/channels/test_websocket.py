"""Tests of WebSocket channels against another implementation on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from interlock.channels import channel as channel_module
from interlock.channels import websocket
from interlock.channels.dial import dial
from interlock.errors import CONFIG, UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol import websocket_handshake as opening
from interlock.protocol.websocket import Close, FrameDecoder
from tests.channels.conftest import Run
from tests.channels.recording_owner import RecordingOwner

Handler = Callable[[ServerConnection], Awaitable[None]]


@asynccontextmanager
async def websockets_server(handler: Handler, **settings: Any) -> AsyncIterator[str]:
    async with serve(handler, "127.0.0.1", 0, **settings) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"ws://127.0.0.1:{port}/ax"


async def echo(socket: ServerConnection) -> None:
    try:
        async for message in socket:
            await socket.send(message)
    except ConnectionClosed:
        return


@asynccontextmanager
async def raw_server(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A server with a scripted handler."""
    done = asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.close()
            done.set()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"ws://127.0.0.1:{port}/ax"
        await done.wait()
    finally:
        server.close()


async def accept_handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept the WebSocket handshake."""
    head = await reader.readuntil(b"\r\n\r\n")
    (key,) = (
        line.partition(b":")[2].strip()
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"sec-websocket-key")
    )
    writer.write(opening.write_response(key))


def test_sends_messages_both_ways(run: Run) -> None:
    async def test() -> None:
        async with websockets_server(echo, max_size=None) as url:
            channel = await dial(url)
            ear = RecordingOwner(channel)
            sent = [b"{}", b"x" * 200, "Grüße".encode(), b"y" * 70_000, b"z" * 3_000_000, b"{}"]
            for payload in sent:
                channel.send(payload)
            assert await ear.wait_for_messages(len(sent)) == sent
            assert (channel.peer, channel.label) == ("loopback", url)
            assert (channel.peer_names, channel.close_reason) == ((), "")
            assert channel.is_open
            channel.close()
            assert not channel.is_open
            channel.close()
            channel.send(b"nobody reads this")
            await channel.wait_closed()
            await channel.wait_closed()
            assert ear.closed == ["it was closed by this side"]

    run(test())


def test_dial_sends_headers_and_close_reason(run: Run) -> None:
    seen: list[Request] = []
    said: list[tuple[int | None, str | None]] = []

    async def look(socket: ServerConnection) -> None:
        assert socket.request is not None
        seen.append(socket.request)
        await socket.wait_closed()
        said.append((socket.close_code, socket.close_reason))

    async def test() -> None:
        async with websockets_server(look) as url:
            channel = await dial(url + "?a=b", bearer="secret")
            assert channel.label == url
            channel.close(4000, "namespace_conflict")
            await channel.wait_closed()
        (asked,) = seen
        assert asked.path == "/ax?a=b"
        assert asked.headers["Authorization"] == "Bearer secret"
        assert "Sec-WebSocket-Extensions" not in asked.headers
        assert said == [(4000, "namespace_conflict")]

    run(test())


def test_peer_closes_with_reason(run: Run) -> None:
    async def hang_up(socket: ServerConnection) -> None:
        await socket.send("last words")
        await socket.close(4000, "namespace_conflict")

    async def test() -> None:
        async with websockets_server(hang_up) as url:
            channel = await dial(url)
            await channel.wait_closed()
            # Nobody has listened so far. Nothing of it is lost.
            assert not channel.is_open
            assert channel.close_reason == "namespace_conflict"
            ear = RecordingOwner(channel)
            assert ear.messages == [b"last words"]
            assert ear.closed == ["it closed the channel: namespace_conflict"]

    run(test())


def test_peer_closes_with_code_only(run: Run) -> None:
    async def test() -> None:
        async with websockets_server(lambda socket: socket.close(1001)) as url:
            ear = RecordingOwner(await dial(url))
            assert await ear.wait_until_closed() == "it closed the channel with code 1001"

    run(test())


def test_responds_to_pings_and_joins_fragments(run: Run) -> None:
    async def test() -> None:
        answered = asyncio.Event()

        async def fragments(socket: ServerConnection) -> None:
            await socket.send(["one ", "message"])
            await (await socket.ping(b"there?"))
            answered.set()
            await socket.wait_closed()

        async with websockets_server(fragments) as url:
            channel = await dial(url)
            ear = RecordingOwner(channel)
            assert await ear.wait_for_messages() == [b"one message"]
            await answered.wait()
            channel.close()
            await channel.wait_closed()

    run(test())


@pytest.mark.parametrize(
    ("payload", "code", "says"),
    [
        (b"\x82\x01a", 1003, "no binary"),
        (b"\x83\x01a", 1002, "Unknown opcode 3"),
        (b"\x81\x01\xff", 1007, "not UTF-8"),
        (b"\x81\x7e\x10\x00" + b"x" * 4096, 1009, "longer than 1000 bytes"),
    ],
)
def test_protocol_violation_is_reported_to_peer(
    run: Run, payload: bytes, code: int, says: str
) -> None:
    read: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept_handshake(reader, writer)
        writer.write(b"\x81\x02ok" + payload + b"\x81\x05never")
        read.append(await reader.read())

    async def test() -> None:
        async with raw_server(talk) as url:
            channel = await dial(url, max_message=1000)
            ear = RecordingOwner(channel)
            assert says in await ear.wait_until_closed()
            assert ear.messages == [b"ok"]
            await channel.wait_closed()
        (closed,) = FrameDecoder(masked=True, max_message=10).feed(read[0])
        assert isinstance(closed, Close)
        assert closed.code == code
        assert says in closed.reason

    run(test())


def test_reports_lost_connection(run: Run) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept_handshake(reader, writer)
        writer.write(b"\x81\x02ok\x81")

    async def test() -> None:
        async with raw_server(talk) as url:
            channel = await dial(url)
            ear = RecordingOwner(channel)
            assert (await ear.wait_until_closed()).startswith("the connection was lost")
            assert ear.messages == [b"ok"]
            assert channel.close_reason == ""
            await channel.wait_closed()

    run(test())


def test_keeps_messages_sent_with_handshake(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "CLOSING", 0.05)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        key = head.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
        writer.write(opening.write_response(key) + b"\x81\x03one\x81\x03two\x81\x05thr")
        writer.write(b"ee\x88\x02\x03\xe8")
        await reader.read()

    async def test() -> None:
        async with raw_server(talk) as url:
            channel = await dial(url)
            ear = RecordingOwner(channel)
            await ear.wait_for_messages(3)
            assert await ear.wait_until_closed() == "it closed the channel"
            assert ear.messages == [b"one", b"two", b"three"]
            await channel.wait_closed()

    run(test())


def test_closes_without_close_response(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "CLOSING", 0.05)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept_handshake(reader, writer)
        while await reader.read(100):
            writer.write(b"\x81\x02hi")

    async def test() -> None:
        async with raw_server(talk) as url:
            channel = await dial(url)
            ear = RecordingOwner(channel)
            channel.close()
            await channel.wait_closed()
            assert ear.messages == []
            assert ear.closed == ["it was closed by this side"]

    run(test())


def test_closes_unread_channel(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "MAX_UNREAD_BYTES", 1024 * 1024)

    async def test() -> None:
        over = asyncio.Event()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await accept_handshake(reader, writer)
            await over.wait()

        async with raw_server(talk) as url:
            channel = await dial(url)
            ear = RecordingOwner(channel)
            sent = 0
            while channel.is_open:
                channel.send(b"x" * 1_000_000)
                sent += 1
                assert sent < 100
                await asyncio.sleep(0)
            assert (
                await ear.wait_until_closed() == "it does not read the messages that are sent to it"
            )
            await channel.wait_closed()
            over.set()

    run(test())


def test_limits_messages_before_owner(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "MAX_UNREAD_BYTES", 1000)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept_handshake(reader, writer)
        writer.write((b"\x81\x7d" + b"x" * 125) * 20)
        await reader.read()

    async def test() -> None:
        async with raw_server(talk) as url:
            channel = await dial(url)
            await channel.wait_closed()
            ear = RecordingOwner(channel)
            assert ear.messages == []
            assert ear.closed == [
                "it sent more data than can be buffered before the channel is used"
            ]

    run(test())


# -- dialling in vain


def reject_handshake(status: HTTPStatus, body: str) -> Callable[..., Response]:
    def answer(connection: ServerConnection, request: Request) -> Response:
        return connection.respond(status, body)

    return answer


def test_reports_rejected_handshake(run: Run) -> None:
    body = '{"jsonrpc":"2.0","id":null,"error":{"code":-31030,"message":"Show a token."}}'

    async def test() -> None:
        gate = reject_handshake(HTTPStatus.UNAUTHORIZED, body)
        async with websockets_server(echo, process_request=gate) as url:
            with pytest.raises(InterlockError) as raised:
                await dial(url)
            assert (
                raised.value.message
                == f"{url} rejected the connection: 401 Unauthorized: Show a token."
            )
            assert raised.value.failure is UPSTREAM_UNAVAILABLE
            assert raised.value.data == {"status": 401}
        async with websockets_server(
            echo, process_request=reject_handshake(HTTPStatus.NOT_FOUND, "?")
        ) as url:
            with pytest.raises(InterlockError, match="rejected the connection: 404 Not Found"):
                await dial(url)

    run(test())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "it closed the connection"),
        (b"HTTP/1.1 503 Busy\r\n\r\nno length", "rejected the connection: 503 Busy."),
        (b"SSH-2.0\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\n\r\n", "does not confirm"),
        (
            b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
            b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
            "another WebSocket key",
        ),
    ],
)
def test_rejects_invalid_handshake_response(run: Run, answer: bytes, says: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async def test() -> None:
        async with raw_server(talk) as url:
            with pytest.raises(InterlockError, match=says) as raised:
                await dial(url)
            assert raised.value.failure is UPSTREAM_UNAVAILABLE

    run(test())


def test_reports_refused_connection(run: Run, free_port: int) -> None:
    async def test() -> None:
        with pytest.raises(InterlockError, match="Connection refused"):
            await dial(f"ws://127.0.0.1:{free_port}/ax")

    run(test())


def test_reports_dial_timeout(run: Run) -> None:
    async def test() -> None:
        ended = asyncio.Event()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.read()
            except ConnectionError:
                # It was given up on.
                pass
            ended.set()

        async with raw_server(talk) as url:
            with pytest.raises(InterlockError, match=r"within 0\.05 s"):
                await dial(url, timeout=0.05)
            await ended.wait()

    run(test())


def test_cancelled_dial_leaves_no_connection(run: Run) -> None:
    async def test() -> None:
        asked, ended = asyncio.Event(), asyncio.Event()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            try:
                await reader.read()
            except ConnectionError:
                # It was given up on.
                pass
            ended.set()

        async with raw_server(talk) as url:
            dialling = asyncio.ensure_future(dial(url))
            await asked.wait()
            dialling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await dialling
            await ended.wait()

    run(test())


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/", "ws://user:secret@127.0.0.1/", "ws:///ax", "ws://[::1/", "x"]
)
def test_rejects_invalid_urls(run: Run, url: str) -> None:
    async def test() -> None:
        with pytest.raises(InterlockError) as raised:
            await dial(url)
        assert raised.value.failure is CONFIG
        assert "secret" not in raised.value.message

    run(test())


def test_rejects_line_end_in_token(run: Run) -> None:
    async def test() -> None:
        async with websockets_server(echo) as url:
            with pytest.raises(InterlockError, match="line break"):
                await dial(url, bearer="a\r\nX-Admin: yes")

    run(test())
