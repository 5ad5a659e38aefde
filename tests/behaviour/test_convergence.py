"""Four levels of real nodes, one of them killed: how soon the list at the root is correct."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from tests.support.command_line import DEMO, CommandLine, NodeProcess
from tests.support.waiting import HANG_TIMEOUT, wait_until
from tests.tree.ax_list import list_ax_tools

INTERVAL = 0.5
LEVELS = ("root", "region", "site", "cell")
TOOL = "region.site.cell.demo.roll_dice"
OTHER = "region.demo.roll_dice"


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[list[CommandLine]]:
    made = []
    for level in LEVELS:
        folder = tmp_path / level
        folder.mkdir()
        made.append(CommandLine(folder))
    try:
        yield made
    finally:
        for world in reversed(made):
            world.close()


def start(worlds: list[CommandLine], level: int) -> NodeProcess:
    more: dict[str, Any] = {}
    if level:
        more["parent"] = {
            "url": f"ws://127.0.0.1:{worlds[level - 1].port}/ax",
            "segment": LEVELS[level],
            "heartbeat": f"{INTERVAL * 1000:.0f}ms",
        }
    # One has a server of its own halfway down: it must not suffer.
    servers = {"demo": DEMO} if LEVELS[level] in ("region", "cell") else {}
    worlds[level].config(servers, **more)
    return worlds[level].up()


def availability(node: NodeProcess) -> dict[str, str]:
    """Every tool that the node lists, and what it says of its availability."""

    async def ask() -> dict[str, str]:
        tools = await list_ax_tools(node.url)
        return {
            name: item["_meta"]["x-mcpax-capability"]["availability"]
            for name, item in tools.items()
        }

    return asyncio.run(ask())


def time_until(what: str, node: NodeProcess, right: Callable[[dict[str, str]], bool]) -> float:
    """When the node's list was found to be right."""
    return wait_until(what, lambda: time.time() if right(availability(node)) else None)


def can_call(node: NodeProcess, name: str) -> bool:
    async def ask() -> bool:
        async with Client(node.url) as client:
            return not (await client.call_tool(name, {})).is_error

    return asyncio.run(ask())


@pytest.mark.spec("AX-13.3-1", "AX-13.3-3", "AX-13.3-4")
def test_lost_branch_is_reported_at_root_within_three_heartbeats(
    worlds: list[CommandLine],
) -> None:
    nodes = [start(worlds, level) for level in range(len(LEVELS))]
    root, _, site, cell = nodes
    everything = time_until("everything", root, lambda listed: TOOL in listed and OTHER in listed)
    assert everything
    assert can_call(root, TOOL)
    cell.process.kill()
    cell.process.wait(HANG_TIMEOUT)
    right = time_until("the loss at the root", root, lambda listed: listed[TOOL] == "degraded")
    lost = next(
        upstream for upstream in site.status()["upstreams"] if upstream["segment"] == "cell"
    )
    assert lost["state"] == "degraded"
    assert right - lost["since"] < 3 * INTERVAL
    # Whatever is not behind it is as it was.
    assert availability(root)[OTHER] != "degraded"
    assert can_call(root, OTHER)
    data = json.loads(worlds[0].run_here("tree", "--json").stdout)
    (region,) = data["children"]
    actual = {child["name"]: child["state"] for child in region["children"]}
    assert actual == {"demo": "ready", "site": "ready"}
    # It comes back: nobody but its own node is started again.
    start(worlds, 3)
    # Its new list is empty until its own server is there.
    time_until("its return", root, lambda listed: listed.get(TOOL, "degraded") != "degraded")
    assert can_call(root, TOOL)


LEAF = """
import sys
from interlock.tree.subserver import Subserver

leaf = Subserver("leaf", subserver_id="6f9b1a52-3b62-4a56-9a55-6a8d1ffb9d11")
leaf.tool(name="where", mutable=False)(lambda: "here")
leaf.run(sys.argv[1], heartbeat=0.5)
"""


@pytest.mark.spec("AX-13.1-2", "AX-13.2-1")
def test_returning_child_is_no_longer_degraded(worlds: list[CommandLine]) -> None:
    root = start(worlds, 0)
    script = worlds[0].folder / "leaf.py"
    script.write_text(LEAF, encoding="utf-8")
    command = [sys.executable, str(script), f"ws://127.0.0.1:{worlds[0].port}/ax"]
    for _ in range(2):
        leaf = subprocess.Popen(command, env=worlds[0].environ)
        try:
            time_until(
                "it", root, lambda listed: listed.get("leaf.where", "degraded") != "degraded"
            )
        finally:
            leaf.kill()
            leaf.wait()
        time_until("its loss", root, lambda listed: listed["leaf.where"] == "degraded")
