"""One subserver_id in two places of a tree (MCP-AX §13.4), with foreign subservers on real sockets.

`mcpax/identify` is no method of the draft, so a foreign subserver does not answer it usefully. The
common ancestor has to notice by what the aggregators below it report.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from interlock.app.node import Node
from interlock.tree.component import Tree
from tests.support.timeouts import HANG_TIMEOUT
from tests.tree.node_tree import NodeTree, ax_url, has_tool, wait_until

TWIN = "7b0c3f0e-52f1-4f0a-9c5e-5d1c2a7e9f01"
IDENTITIES: dict[str, dict[str, Any]] = {
    "empty": {"result": {}},
    "null": {"result": {"subserver_id": TWIN, "parent_id": None, "role": "leaf"}},
    "unknown method": {"error": {"code": -32601, "message": "Method not found"}},
}


class ForeignLeaf:
    """A subserver of the draft without extensions of Interlock."""

    def __init__(self, socket: ClientConnection, identity: dict[str, Any]) -> None:
        self._socket = socket
        self._identity = identity
        self._ids = count(1)
        self._answers: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        self.ended: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for frame in self._socket:
            message = json.loads(frame)
            if "method" not in message:
                self._answers.pop(message["id"]).set_result(message)
            elif "id" in message:
                answer = {"jsonrpc": "2.0", "id": message["id"], **self._serve(message["method"])}
                with suppress(ConnectionClosed):
                    await self._socket.send(json.dumps(answer))
            elif message["method"] == "notifications/mcpax/session_ended":
                self.ended.set_result(message["params"])

    def _serve(self, method: str) -> dict[str, Any]:
        if method == "mcpax/identify":
            return self._identity
        if method == "initialize":
            return {
                "result": {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "foreign", "version": "1"},
                }
            }
        if method == "tools/list":
            schema = {"type": "object"}
            hints = {"readOnlyHint": True}
            return {
                "result": {"tools": [{"name": "t", "inputSchema": schema, "annotations": hints}]}
            }
        return {"error": {"code": -32601, "message": "Method not found"}}

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        id = f"leaf-{next(self._ids)}"
        answer = self._answers[id] = asyncio.get_running_loop().create_future()
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        await self._socket.send(json.dumps(message))
        async with asyncio.timeout(HANG_TIMEOUT):
            return await answer  # type: ignore[no-any-return]

    async def register(self, segment: str, id: str = TWIN) -> dict[str, Any]:
        return await self.ask(
            "mcpax/register",
            {
                "subserver_id": id,
                "segment": segment,
                "capabilities": {"tools": True, "resources": False, "notifications": True},
                "heartbeat_interval_ms": 0,
                "transport_class": "native",
                "version": "2026-05-01",
            },
        )

    async def close(self) -> None:
        await self._socket.close()
        with suppress(ConnectionClosed):
            await self._reader


@asynccontextmanager
async def connect_leaf(node: Node, identity: dict[str, Any]) -> AsyncIterator[ForeignLeaf]:
    async with connect(ax_url(node), max_size=None) as socket:
        leaf = ForeignLeaf(socket, identity)
        experimental = {"mcpax": {"versions": ["2026-05-01"]}}
        answer = await leaf.ask(
            "initialize",
            {
                "protocolVersion": "2025-11-25",
                "capabilities": {"experimental": experimental},
                "clientInfo": {"name": "foreign", "version": "1"},
            },
        )
        assert "result" in answer, answer
        try:
            yield leaf
        finally:
            await leaf.close()


def list_descendants(node: Node) -> set[str]:
    """Return the ids of all known descendants of a node."""
    return {
        id
        for info in node.component(Tree).registrar.subservers()
        if info.live
        for id in (info.subserver_id, *info.descendant_ids)
    }


any_identity = pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES.keys())


@any_identity
@pytest.mark.spec("AX-13.4-2")
async def test_rejects_at_ancestor_if_registered_below(
    tmp_path: Path, identity: dict[str, Any]
) -> None:
    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root")
        mid = await grove.start("mid", below=root, heartbeat=3600.0)
        async with connect_leaf(mid, identity) as first, connect_leaf(root, identity) as second:
            assert "result" in await first.register("one")
            await wait_until(root, lambda: has_tool(root, "mid.one.t"))
            assert TWIN in list_descendants(root)
            refused = await second.register("two")
            assert refused["error"]["code"] == -31003, refused
            assert not has_tool(root, "two.t")
            # Another one may come.
            other = TWIN.replace("7b0c", "8b0c")
            assert "result" in await second.register("two", other)


@any_identity
@pytest.mark.spec("AX-13.4-2")
async def test_ends_below_if_registered_at_ancestor(
    tmp_path: Path, identity: dict[str, Any]
) -> None:
    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root")
        mid = await grove.start("mid", below=root, heartbeat=3600.0)
        low = await grove.start("low", below=mid, heartbeat=0.05)
        await wait_until(root, lambda: len(list_descendants(root)) >= 1)
        async with connect_leaf(root, identity) as first, connect_leaf(low, identity) as second:
            assert "result" in await first.register("one")
            await wait_until(root, lambda: has_tool(root, "one.t"))
            # Its own aggregator cannot know; two levels above it is noticed.
            assert "result" in await second.register("two")
            async with asyncio.timeout(HANG_TIMEOUT):
                told = await second.ended
            assert told["code"] == -31003, told
            await wait_until(root, lambda: not has_tool(root, "mid.low.two.t"))
            assert has_tool(root, "one.t")
            assert not first.ended.done()


@pytest.mark.spec("AX-13.4-2")
async def test_ends_second_of_two_siblings(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root")
        left = await grove.start("left", below=root, heartbeat=3600.0)
        right = await grove.start("right", below=root, heartbeat=3600.0)
        identity = IDENTITIES["unknown method"]
        async with connect_leaf(left, identity) as first, connect_leaf(right, identity) as second:
            assert "result" in await first.register("one")
            await wait_until(root, lambda: has_tool(root, "left.one.t"))
            assert "result" in await second.register("two")
            async with asyncio.timeout(HANG_TIMEOUT):
                await second.ended
            await wait_until(root, lambda: not has_tool(root, "right.two.t"))
            assert has_tool(root, "left.one.t")
            # Once the first has left, the other place is free.
            await first.close()
            await wait_until(root, lambda: TWIN not in list_descendants(root))
            async with connect_leaf(right, identity) as third:
                assert "result" in await third.register("two")
                await wait_until(root, lambda: has_tool(root, "right.two.t"))


@pytest.mark.spec("AX-5.3-4")
async def test_announces_every_aggregator_below(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root")
        mid = await grove.start("mid", below=root, heartbeat=3600.0)
        low = await grove.start("low", below=mid, heartbeat=3600.0)

        def announced() -> set[str]:
            (info,) = root.component(Tree).registrar.subservers()
            return set(info.subtree_ids)

        async with asyncio.timeout(HANG_TIMEOUT):
            while not root.component(Tree).registrar.subservers() or len(announced()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert announced() == {mid.place.id, low.place.id}
