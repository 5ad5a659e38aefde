"""Tests of the end of the startup of a node."""

from __future__ import annotations

import asyncio
from pathlib import Path

from interlock.app import Node
from interlock.core.config import Config, JournalConfig, ServerConfig
from interlock.topics.config import ParticipantUpstream, TopicConfig, TopicsConfig
from tests.support.timeouts import HANG_TIMEOUT


async def test_startup_does_not_wait_for_failed_servers(tmp_path: Path) -> None:
    room = TopicConfig(access="private", node="hub", upstreams={"worker": ParticipantUpstream()})
    gone = ServerConfig(command="no-such-program-anywhere")
    config = Config(
        servers={"gone": gone},
        sections=[TopicsConfig(rooms={"ops": room})],
        journal=JournalConfig(enabled=False),
    )
    node = Node(config, base_dir=tmp_path)
    node.start()
    try:
        async with asyncio.timeout(HANG_TIMEOUT):
            await node.until_settled(60)
        states = {one.key: one.state for one in node.status().upstreams}
        assert states["gone"] == "failed"
        assert states["topic:ops/worker"] == "connecting"
    finally:
        await node.stop()
