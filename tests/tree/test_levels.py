"""Tests of trees with many levels."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcp import Client

from interlock.app.node import Node
from interlock.core.config import Config, ServerConfig
from interlock.tree.component import Tree
from interlock.tree.config import ParentConfig
from tests.support.timeouts import HANG_TIMEOUT
from tests.tree.ax_list import list_ax_tools

DEMO = ServerConfig(command=sys.executable, args=["-m", "interlock.demo"], segment="demo")


class NodeChain:
    """A chain of nodes, each registered with the previous node. The last node has a server."""

    def __init__(self, folder: Path, levels: int) -> None:
        self._folder = folder
        self._levels = levels
        self.nodes: list[Node] = []

    async def __aenter__(self) -> NodeChain:
        for level in range(self._levels):
            await self._start(level)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(node.stop() for node in self.nodes))

    async def _start(self, level: int) -> None:
        parent = None
        if self.nodes:
            above = (self.nodes[-1].url or "").replace("http:", "ws:").replace("/mcp", "/ax")
            parent = ParentConfig(url=above, segment=f"n{level}")
        config = Config(
            listen="127.0.0.1:0",
            state_dir=str(self._folder / str(level)),
            sections=[] if parent is None else [parent],
            servers={"demo": DEMO} if level == self._levels - 1 else {},
        )
        node = Node(config, base_dir=self._folder)
        self.nodes.append(node)
        await node.listen()
        node.start()
        node.on_settled()

    async def until_listed(self, level: int, name: str) -> None:
        node = self.nodes[level]
        changed = asyncio.Event()
        end = node.catalog.on_change(lambda *_: changed.set())
        async with asyncio.timeout(HANG_TIMEOUT):
            while name not in node.catalog.current.by_name:
                changed.clear()
                await changed.wait()
        end()


def list_names_by_level(tree: dict[str, Any]) -> list[str]:
    """Return the names from the root to the lowest node."""
    return [tree["name"], *(list_names_by_level(tree["children"][0]) if tree["children"] else [])]


@pytest.mark.parametrize("levels", [2, 8, 12])
@pytest.mark.spec("AX-5.3-2", "AX-1.1-2", "AX-1.1-3", "AX-5.3-1", "AX-1.2-1")
async def test_calls_and_views_pass_every_level(levels: int, tmp_path: Path) -> None:
    segments = [f"n{level}" for level in range(1, levels)]

    async with NodeChain(tmp_path, levels) as chain:
        name = ".".join([*segments, "demo", "roll_dice"])
        await chain.until_listed(0, name)
        async with Client(chain.nodes[0].url or "") as client:
            listed = await list_ax_tools(chain.nodes[0].url)
            assert listed[name]["_meta"]["x-mcpax-hops"] == levels
            # However deep it is, a client with a model gets a name that it can use.
            shown = [tool.name for tool in (await client.list_tools()).tools]
            (roll,) = [one for one in shown if "__roll_dice" in one]
            assert len(roll) <= 48
            rolled = await client.call_tool(roll, {"sides": 2, "count": 3})
            assert rolled.structured_content is not None
            rolled = await client.call_tool(name, {"sides": 2, "count": 3})
            assert rolled.structured_content is not None
            assert rolled.structured_content["total"] in (3, 4, 5, 6)
        # Each node took the call itself, and has a view of its own.
        for level, node in enumerate(chain.nodes):
            own = ".".join([*segments[level:], "demo", "roll_dice"])
            assert own in node.catalog.current.by_name
            assert node.status().calls == 2
        tree = msgspec.to_builtins(await chain.nodes[0].component(Tree).view())
        assert list_names_by_level(tree) == ["root", *segments, "demo"]
