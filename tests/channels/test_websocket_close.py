"""Tests of the end of a WebSocket: earlier messages arrive, later messages do not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from interlock.channels.websocket import WebSocketChannel
from interlock.protocol.websocket import (
    Close,
    FrameDecoder,
    WebSocketEvent,
    close_frame,
    text_frame,
)
from tests.channels.conftest import Run
from tests.support.timeouts import HANG_TIMEOUT

MASK = b"abcd"
QUESTION = text_frame(b'{"q":1}', MASK)
ANSWER = b'{"answer":1}'
VIOLATION = b"\xff\xff\xff\xff"
Act = Callable[[WebSocketChannel, bytes], None]


@asynccontextmanager
async def channel_server(act: Act, ended: asyncio.Future[str]) -> AsyncIterator[int]:
    """A server with a channel on each connection. `act` receives its messages."""

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            channel = WebSocketChannel(transport, is_client=False, peer="loopback", label="x")
            channel.on_close = ended.set_result
            channel.on_message = lambda payload: act(channel, payload)

    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def exchange_frames(
    act: Act, says: bytes, then: Callable[[asyncio.StreamWriter], None] = lambda _: None
) -> Callable[[list[WebSocketEvent], list[str]], Coroutine[Any, Any, None]]:
    """Return a test that sends frames in one piece and reads until the end."""

    async def talk(events: list[WebSocketEvent], reasons: list[str]) -> None:
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with channel_server(act, ended) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(says)
            then(writer)
            events += FrameDecoder(masked=False, max_message=1000).feed(await reader.read())
            reasons.append(await ended)
            writer.close()
            await writer.wait_closed()

    return talk


def answer(channel: WebSocketChannel, payload: bytes) -> None:
    channel.send(ANSWER)


def test_responds_to_request_received_with_close(run: Run) -> None:
    events: list[WebSocketEvent] = []
    reasons: list[str] = []
    run(exchange_frames(answer, QUESTION + close_frame(1000, "", MASK))(events, reasons))
    assert events == [ANSWER, Close(1000, "")]
    assert reasons == ["it closed the channel"]


def test_responds_to_request_received_with_violation(run: Run) -> None:
    events: list[WebSocketEvent] = []
    reasons: list[str] = []
    run(exchange_frames(answer, QUESTION + VIOLATION)(events, reasons))
    assert events[0] == ANSWER
    assert isinstance(events[1], Close)
    assert events[1].code == 1002
    assert len(events) == 2
    assert reasons[0].startswith("it broke the WebSocket protocol")


def test_responds_to_request_received_with_end_of_stream(run: Run) -> None:
    events: list[WebSocketEvent] = []
    reasons: list[str] = []
    run(exchange_frames(answer, QUESTION, asyncio.StreamWriter.write_eof)(events, reasons))
    assert events == [ANSWER]


def test_unread_ended_peer_does_not_block_close(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.channels.websocket.CLOSING", 0.2)
    channels: list[WebSocketChannel] = []

    def answer_at_length(channel: WebSocketChannel, payload: bytes) -> None:
        channels.append(channel)
        channel.send(b"x" * 6_000_000)

    async def test() -> None:
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with channel_server(answer_at_length, ended) as port:
            with socket.create_connection(("127.0.0.1", port)) as peer:
                peer.sendall(QUESTION)
                peer.shutdown(socket.SHUT_WR)
                async with asyncio.timeout(HANG_TIMEOUT):
                    await ended
                    await channels[-1].wait_closed()

    run(test())


def test_sends_responses_before_close(run: Run) -> None:
    def answer_and_close(channel: WebSocketChannel, payload: bytes) -> None:
        channel.send(ANSWER)
        channel.send(ANSWER)
        channel.close(4000, "enough")
        channel.send(b"nobody reads this")

    events: list[WebSocketEvent] = []
    reasons: list[str] = []
    says = QUESTION + close_frame(4000, "", MASK)
    run(exchange_frames(answer_and_close, says)(events, reasons))
    assert events == [ANSWER, ANSWER, Close(4000, "enough")]


@pytest.mark.parametrize("tail", [close_frame(1000, "", MASK), VIOLATION], ids=["close", "broken"])
def test_writes_nothing_after_abort(run: Run, tail: bytes) -> None:
    def answer_and_leave(channel: WebSocketChannel, payload: bytes) -> None:
        channel.send(ANSWER)
        channel.pause_writing()

    async def test() -> None:
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with channel_server(answer_and_leave, ended) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(QUESTION + tail)
            try:
                assert await reader.read() == b""
            except ConnectionError:
                # It left with bytes unread.
                assert reader.at_eof() or reader.exception() is not None
            assert await ended == "it does not read the messages that are sent to it"
            writer.close()

    run(test())
