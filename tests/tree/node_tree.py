"""Nodes of a tree, started in this process on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interlock.app.node import Node
from interlock.core.config.feature_sections import make_config
from interlock.tree.config import ParentConfig
from tests.support.timeouts import HANG_TIMEOUT


def mcp_url(node: Node) -> str:
    """The URL of a node for MCP clients."""
    assert node.url is not None
    return node.url


def ax_url(node: Node) -> str:
    """Return the registration URL of a node."""
    return (node.url or "").replace("http:", "ws:").replace("/mcp", "/ax")


class NodeTree:
    """The nodes of a test. The end of the block stops children first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nodes: list[Node] = []

    async def __aenter__(self) -> NodeTree:
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in reversed(self._nodes):
            await node.stop()

    async def start(self, name: str, *, below: Node | str | None = None, **config: Any) -> Node:
        """A node; registered with the one that it is `below`, as its name."""
        heartbeat = config.pop("heartbeat", 5.0)
        backup = config.pop("backup", [])
        listen = config.pop("listen", "127.0.0.1:0")
        if below is not None:
            url = below if isinstance(below, str) else ax_url(below)
            config["parent"] = ParentConfig(
                url=url, segment=name, heartbeat=heartbeat, backup=backup
            )
        node = Node(
            make_config({"listen": listen, "state_dir": str(self._folder / name), **config}),
            base_dir=self._folder,
        )
        self._nodes.append(node)
        await node.listen()
        node.start()
        node.on_settled()
        return node

    async def stop(self, node: Node) -> None:
        self._nodes.remove(node)
        await node.stop()


async def wait_until(node: Node, found: Callable[[], Any]) -> None:
    """Wait until a condition of the catalog of a node is true."""
    changed = asyncio.Event()
    end = node.catalog.on_change(lambda *_: changed.set())
    try:
        async with asyncio.timeout(HANG_TIMEOUT):
            while not found():
                changed.clear()
                await changed.wait()
    finally:
        end()


def has_tool(node: Node, name: str) -> bool:
    return name in node.catalog.current.by_name
