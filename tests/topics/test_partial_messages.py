"""Tests of messages that never end."""

from __future__ import annotations

import asyncio
import base64
import gc
import os

import pytest

from interlock.protocol.websocket import TOO_BIG, Close, FrameDecoder
from interlock.topics.config import TopicConfig
from tests.support.clock import run_ready_tasks
from tests.topics.peers import HANG_TIMEOUT
from tests.topics.topic_server import PUBLIC, TopicServer, run

LONG = 60_000


def count_buffered_bytes() -> int:
    """Return the bytes in all decoders of this process."""
    return sum(one.pending for one in gc.get_objects() if type(one) is FrameDecoder)


async def open_guest_socket(
    rooms: TopicServer,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a raw WebSocket to the room as a guest."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rooms.http.port)
    key = base64.b64encode(os.urandom(16)).decode()
    head = [
        "GET /ws?topic=room HTTP/1.1", f"Host: 127.0.0.1:{rooms.http.port}", "Upgrade: websocket",
        "Connection: Upgrade", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}",
    ]  # fmt: skip
    writer.write("\r\n".join([*head, "", ""]).encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    return reader, writer


async def close_code(reader: asyncio.StreamReader) -> int:
    decoder = FrameDecoder(masked=False, max_message=1 << 24)
    while data := await reader.read(1 << 16):
        for event in decoder.feed(data):
            if isinstance(event, Close):
                return event.code
    raise AssertionError("the connection ended without a close frame")


@pytest.mark.parametrize("whole", [True, False], ids=["frame", "fragments"])
def test_guest_cannot_start_long_message(whole: bool) -> None:
    async def test(rooms: TopicServer) -> None:
        reader, writer = await open_guest_socket(rooms)
        too_long = TopicConfig().guest_message + 1
        if whole:
            # Its head alone: nothing of it is waited for.
            writer.write(b"\x81\xff" + too_long.to_bytes(8, "big") + b"\0\0\0\0")
        else:
            half = (too_long // 2).to_bytes(2, "big") + b"\0\0\0\0"
            writer.write(b"\x01\xfe" + half + b"a" * (too_long // 2))
            writer.write(b"\x80\xff" + too_long.to_bytes(8, "big") + b"\0\0\0\0")
        async with asyncio.timeout(HANG_TIMEOUT):
            assert await close_code(reader) == TOO_BIG
        writer.close()

    run(test, rooms=PUBLIC)


def test_authenticated_member_may_send_long_message() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("agent", "human") as (agent, human):
            said = await agent.chat("y" * 500_000)
            heard = await human.until(lambda one: one["id"] == said)
            assert heard["payload"]["text"] == "y" * 500_000

    run(test, rooms=PUBLIC)


def test_disconnect_releases_partial_message() -> None:
    async def test(rooms: TopicServer) -> None:
        before = count_buffered_bytes()
        for _ in range(3):
            _, writer = await open_guest_socket(rooms)
            # A frame of a little more, of which this much comes.
            head = b"\x81\xfe" + (LONG + 10).to_bytes(2, "big") + b"\0\0\0\0"
            writer.write(head + b"a" * LONG)
            while count_buffered_bytes() - before < LONG:
                await run_ready_tasks(1)
            writer.transport.abort()
            while rooms.gateway.list_connections():
                await run_ready_tasks(1)
            await run_ready_tasks(3)
            assert count_buffered_bytes() == before

    gc.collect()
    gc.disable()
    try:
        run(test, rooms=PUBLIC)
    finally:
        gc.enable()
