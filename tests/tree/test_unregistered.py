"""Tests of the limits of connections on `/ax` before registration."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from pathlib import Path

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from interlock.protocol.websocket import TOO_BIG, FrameDecoder
from interlock.tree.component import MAX_UNREGISTERED, Tree
from interlock.tree.subserver import Subserver
from tests.support.clock import run_ready_tasks
from tests.tree.node_tree import NodeTree, ax_url, has_tool, wait_until


def list_decoders() -> list[FrameDecoder]:
    return [one for one in gc.get_objects() if type(one) is FrameDecoder]


async def test_long_message_before_registration_ends_the_connection(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        node = await grove.start("root")
        async with connect(ax_url(node), max_size=None) as socket:
            with suppress(ConnectionClosed):
                await socket.send("x" * (MAX_UNREGISTERED + 1))
            await socket.wait_closed()
            assert socket.close_code == TOO_BIG


def test_disconnect_releases_partial_message(tmp_path: Path) -> None:
    async def body() -> None:
        async with NodeTree(tmp_path) as grove:
            node = await grove.start("root")
            socket = await connect(ax_url(node))
            half = MAX_UNREGISTERED // 2
            head = b"\x81\xff" + (half * 2).to_bytes(8, "big") + b"\0\0\0\0"
            socket.transport.write(head + b"x" * half)
            while not any(one.pending > half for one in list_decoders()):
                await run_ready_tasks(1)
            socket.transport.abort()
            while node.component(Tree).registrar.channels:
                await run_ready_tasks(1)
            await run_ready_tasks(3)
            assert not any(one.pending > half for one in list_decoders())

    gc.collect()
    gc.disable()
    try:
        asyncio.run(body())
    finally:
        gc.enable()


async def test_registered_subserver_may_send_long_messages(tmp_path: Path) -> None:
    shop = Subserver("shop")

    @shop.tool(description="x" * (MAX_UNREGISTERED + 1))
    def look() -> str:
        return "nothing"

    async with NodeTree(tmp_path) as grove:
        node = await grove.start("root")
        async with shop.connect(ax_url(node)):
            await wait_until(node, lambda: has_tool(node, "shop.look"))
