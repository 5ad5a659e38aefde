"""The wait for a first list: for most of the tools, not for the last server."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from interlock.app import Node
from interlock.core.config import Config, JournalConfig, ServerConfig
from interlock.terminal.node_client import wait_for_tools

DEMO = ServerConfig(command=sys.executable, args=["-m", "interlock.demo"])
HANGS = ServerConfig(command=sys.executable, args=["-c", "import time; time.sleep(600)"])
GONE = ServerConfig(command="no-such-program-anywhere")


@pytest.mark.parametrize(
    ("servers", "states"),
    [
        ({}, {}),
        ({"demo": DEMO}, {"demo": "ready"}),
        ({"gone": GONE}, {"gone": "failed"}),
        ({"gone": GONE, "demo": DEMO}, {"gone": "failed", "demo": "ready"}),
        ({"hangs": HANGS, "demo": DEMO}, {"hangs": "connecting", "demo": "ready"}),
    ],
)
def test_first_list_waits_for_most_tools(
    tmp_path: Path, servers: dict[str, ServerConfig], states: dict[str, str]
) -> None:
    async def wait() -> dict[str, str]:
        config = Config(servers=servers, journal=JournalConfig(enabled=False))
        node = Node(config, base_dir=tmp_path)
        node.start()
        try:
            # A day while none is ready: the test would notice if that were waited for.
            await wait_for_tools(node, none_ready_timeout=86_400.0, others_timeout=0.05)
            return {upstream.key: upstream.state for upstream in node.status().upstreams}
        finally:
            await node.stop()

    assert asyncio.run(wait()) == states


async def test_first_list_wait_ends_without_ready_server(tmp_path: Path) -> None:
    config = Config(servers={"hangs": HANGS}, journal=JournalConfig(enabled=False))
    node = Node(config, base_dir=tmp_path)
    node.start()
    try:
        await wait_for_tools(node, none_ready_timeout=0.05, others_timeout=86_400.0)
    finally:
        await node.stop()
