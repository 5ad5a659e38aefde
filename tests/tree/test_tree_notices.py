"""Tests of notifications of a tree: lost children, dropped messages and pages."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from interlock.app.node import Node
from interlock.tree.config import SubserversConfig
from interlock.tree.status import TreeStatus
from tests.support.timeouts import HANG_TIMEOUT
from tests.tree.node_tree import NodeTree, ax_url, has_tool, wait_until
from tests.tree.test_tree import AX_CLIENT, plant_subserver, start_leaf


class AxClient:
    """An MCP-AX client on the local socket, with its received messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._last_id = 0
        self.heard: list[dict[str, Any]] = []

    def said(self, method: str) -> list[dict[str, Any]]:
        return [one.get("params", {}) for one in self.heard if one.get("method") == method]

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        self._last_id += 1
        self.tell(method, params, id=self._last_id)
        async with asyncio.timeout(HANG_TIMEOUT):
            while self.heard[-1:] == [] or self.heard[-1].get("id") != self._last_id:
                await self.hear()
        return self.heard[-1]["result"]

    def tell(self, method: str, params: dict[str, Any], **more: Any) -> None:
        message = {"jsonrpc": "2.0", **more, "method": method, "params": params}
        self._writer.write(msgspec.json.encode(message) + b"\n")

    async def hear(self) -> None:
        self.heard.append(msgspec.json.decode(await self._reader.readline()))

    async def until_said(self, method: str) -> None:
        async with asyncio.timeout(HANG_TIMEOUT):
            while not self.said(method):
                await self.hear()


@asynccontextmanager
async def ax_client(node: Node) -> AsyncIterator[AxClient]:
    path = await node.listen_locally()
    reader, writer = await asyncio.open_unix_connection(str(path), limit=1 << 24)
    client = AxClient(reader, writer)
    info = {"name": "test", "version": "1"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": AX_CLIENT, "clientInfo": info}
    await client.ask("initialize", hello)
    client.tell("notifications/initialized", {})
    await client.ask("ping", {})
    try:
        yield client
    finally:
        writer.close()


@pytest.mark.spec("AX-13.1-1")
async def test_lost_subserver_is_announced_once_to_client(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root")
        edge = await grove.start("edge", below=root)
        leaf = start_leaf(tmp_path, ax_url(edge), str(uuid4()))
        try:
            await wait_until(root, lambda: has_tool(root, "edge.leaf.who"))
            async with ax_client(root) as client:
                leaf.send_signal(signal.SIGKILL)
                await client.until_said("notifications/mcpax/subserver_lost")
                # Whatever else was to come is there before the answer to this.
                await client.ask("tools/list", {})
                (lost,) = client.said("notifications/mcpax/subserver_lost")
        finally:
            leaf.kill()
            leaf.wait()
    assert lost["segment"] == "leaf"
    assert lost["_meta"]["x-mcpax-source"] == "edge"


@pytest.mark.spec("AX-6.3-4")
async def test_deregistered_grandchild_is_announced_to_client(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root")
        edge = await grove.start("edge", below=root, heartbeat=3600.0)
        async with AsyncExitStack() as leaf:
            await leaf.enter_async_context(
                plant_subserver().connect(ax_url(edge), heartbeat=3600.0)
            )
            await wait_until(root, lambda: has_tool(root, "edge.plant.vent"))
            async with ax_client(root) as client:
                listed = await client.ask("tools/list", {})
                assert "edge.plant.vent" in [one["name"] for one in listed["tools"]]
                client.heard.clear()
                await leaf.aclose()
                await client.until_said("notifications/tools/list_changed")
                await wait_until(root, lambda: not has_tool(root, "edge.plant.vent"))
                listed = await client.ask("tools/list", {})
    assert not [one for one in listed["tools"] if "plant" in one["name"]]


@pytest.mark.spec("AX-12-3")
def test_default_rate_is_100_per_second() -> None:
    assert SubserversConfig().notifications_per_second == 100


@pytest.mark.spec("AX-12-2", "AX-12-3", "AX-12-4", "AX-12-5", "AX-12-6")
async def test_flood_is_limited_counted_and_reported(tmp_path: Path) -> None:
    most = 600

    async with NodeTree(tmp_path) as grove:
        settings = SubserversConfig(notifications_per_second=100, notifications_kept=50)
        root = await grove.start("root")
        edge = await grove.start("edge", below=root, subservers=settings)
        leaf = plant_subserver()
        async with leaf.connect(ax_url(edge)):
            await wait_until(root, lambda: has_tool(root, "edge.plant.vent"))
            async with ax_client(root) as client:
                for number in range(most):
                    params = {"level": "warning", "data": number}
                    await leaf.notify("notifications/message", params)
                # Told at the parent, and by it to its client: in whose name.
                await client.until_said("notifications/mcpax/notification_overflow")
                overflow = client.said("notifications/mcpax/notification_overflow")[0]
                assert overflow["segment"] == "plant"
                assert overflow["_meta"]["x-mcpax-source"] == "edge"
                async with asyncio.timeout(HANG_TIMEOUT):
                    while most - 1 not in [
                        one["data"] for one in client.said("notifications/message")
                    ]:
                        await client.hear()
                heard = [one["data"] for one in client.said("notifications/message")]
                counted = await client.ask(
                    "tools/call", {"name": "edge.notifications_dropped", "arguments": {}}
                )
                shown = edge.report().part(TreeStatus).notifications_dropped
    assert heard == sorted(set(heard))
    dropped = counted["structuredContent"]
    assert dropped == {"total": most - len(heard), "by_subserver": {"plant": most - len(heard)}}
    assert dropped["total"] > 0
    assert shown == dropped["total"]


@pytest.mark.spec("AX-5.1-4")
async def test_reads_all_pages_of_list(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root")
        edge = await grove.start("edge", below=root, page_size=1)
        async with plant_subserver().connect(ax_url(edge)):
            tools = ("hang", "temperature", "vent")
            await wait_until(
                root, lambda: all(has_tool(root, f"edge.plant.{one}") for one in tools)
            )
            async with ax_client(root) as client:
                listed = await client.ask("tools/list", {})
        names = [one["name"] for one in listed["tools"] if "edge.plant" in one["name"]]
        assert names == [f"edge.plant.{one}" for one in tools]
        assert "nextCursor" not in listed
