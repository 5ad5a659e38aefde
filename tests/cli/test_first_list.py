"""How long a first list waits: for most of the tools, not for the last of them."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from interlock.cli.first_list import until_worth_listing
from interlock.config import Config, JournalConfig, ServerConfig
from interlock.node import Node

DEMO = ServerConfig(command=sys.executable, args=["-m", "interlock.demo"])
HANGS = ServerConfig(command=sys.executable, args=["-c", "import time; time.sleep(600)"])
GONE = ServerConfig(command="no-such-program-anywhere")


@pytest.mark.parametrize(
    ("servers", "longest", "states"),
    [
        ({}, 5.0, {}),
        ({"demo": DEMO}, 20.0, {"demo": "ready"}),
        ({"gone": GONE}, 5.0, {"gone": "failed"}),
        ({"gone": GONE, "demo": DEMO}, 20.0, {"gone": "failed", "demo": "ready"}),
        ({"hangs": HANGS, "demo": DEMO}, 20.0, {"hangs": "connecting", "demo": "ready"}),
    ],
)
def test_it_waits_as_long_as_it_is_worth(
    tmp_path: Path, servers: dict[str, ServerConfig], longest: float, states: dict[str, str]
) -> None:
    async def wait() -> dict[str, str]:
        config = Config(servers=servers, journal=JournalConfig(enabled=False))
        node = Node(config, base_dir=tmp_path)
        node.start()
        try:
            # A minute while none is ready: the test would notice if that were waited for.
            await until_worth_listing(node, none_ready=60.0, others=0.05)
            return {one.key: one.state for one in node.status().upstreams}
        finally:
            await node.stop()

    begun = time.monotonic()
    assert asyncio.run(wait()) == states
    assert time.monotonic() - begun < longest


def test_while_none_is_ready_there_is_an_end(tmp_path: Path) -> None:
    async def wait() -> None:
        config = Config(servers={"hangs": HANGS}, journal=JournalConfig(enabled=False))
        node = Node(config, base_dir=tmp_path)
        node.start()
        try:
            await until_worth_listing(node, none_ready=0.05, others=60.0)
        finally:
            await node.stop()

    begun = time.monotonic()
    asyncio.run(wait())
    assert time.monotonic() - begun < 20
