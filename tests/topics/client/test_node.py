"""Tests of the library with a real node and a real program, each in its own process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.core.server.http.server import tls_context
from interlock.errors import InterlockError
from interlock.topics.client import Chat, Participant
from interlock.topics.config import TopicConfig
from tests.channels.certificates import Authority
from tests.support.command_line import CommandLine
from tests.support.waiting import HANG_TIMEOUT
from tests.topics.client.two_gateways import stay_connected, wait_until
from tests.topics.topic_server import TopicServer

ROOT = Path(__file__).parents[3]
WORKER = Path(__file__).parent / "worker.py"
LEDGER = ROOT / "tests" / "behaviour" / "servers" / "ledger.py"
PARTICIPANT_NAMES = ("boss", "agent", "worker")
TOKENS = {f"T_{name}": f"token-of-{name}-" + "x" * 24 for name in PARTICIPANT_NAMES}


class NodeWithTopic:
    """A node with a topic and an irreversible tool."""

    def __init__(self, world: CommandLine) -> None:
        self.world = world
        self.file = world.cwd / "ledger"
        world.config(
            {"ledger": {"command": sys.executable, "args": [str(LEDGER), str(self.file)]}},
            tokens=[{"name": name, "token": f"${{env:T_{name}}}"} for name in PARTICIPANT_NAMES],
            topics={
                "rooms": {
                    "ops": {
                        "node": "interlock",
                        "participants": [
                            {"callers": ["boss"], "profile": "full_access"},
                            {"callers": ["agent"], "profile": "proposal_only"},
                            {"callers": ["worker"], "profile": "response_only"},
                        ],
                    }
                }
            },
        )
        self.start()

    def start(self) -> None:
        self.node = self.world.up(**TOKENS)
        self.node.wait_for_line("upstream ledger: ready")
        self.url = f"ws{self.node.url.removeprefix('http').rpartition('/')[0]}/ws"

    def participant(self, name: str, **more: Any) -> Participant:
        return Participant(self.url, topic="ops", token=TOKENS[f"T_{name}"], **more)

    @contextmanager
    def program(self) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, str(WORKER), self.url],
            env={**os.environ, "TOKEN": TOKENS["T_worker"], "PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[NodeWithTopic]:
    world = CommandLine(tmp_path)
    try:
        yield NodeWithTopic(world)
    finally:
        world.close()


async def test_lost_program_fails_calls(plant: NodeWithTopic) -> None:
    boss = plant.participant("boss")
    async with asyncio.timeout(HANG_TIMEOUT), boss.connected():
        events = boss.events()
        with plant.program() as process:
            while "worker" not in boss.participants:
                await anext(events)
            result = await boss.call("worker", "whoami")
            assert result["content"][0]["text"] == str(process.pid)
            # The node is in the room as well, and its tools are asked for in the same way.
            look = await boss.call("interlock", "ledger.look")
            assert not look.get("isError")
            every = await boss.request_all("tools/list", timeout=HANG_TIMEOUT)
            assert sorted(every) == ["interlock", "worker"]
            calling = asyncio.create_task(boss.call("worker", "forever"))
            await wait_until(events, lambda event: event.content == Chat("I have begun."))
            process.send_signal(signal.SIGKILL)
            with pytest.raises(InterlockError, match="worker left the topic") as caught:
                await calling
            assert caught.value.data == {"sent": True}
            assert "worker" not in boss.participants


async def test_reconnects_to_restarted_node(plant: NodeWithTopic) -> None:
    asleep, wake = asyncio.Event(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        asleep.set()
        await wake.wait()

    boss = plant.participant("boss", sleep=sleep)
    async with boss.connected():
        events = boss.events()
        assert await asyncio.to_thread(plant.node.end) == 0
        async with asyncio.timeout(HANG_TIMEOUT):
            await asleep.wait()
        await asyncio.to_thread(plant.start)
        wake.set()
        async with asyncio.timeout(HANG_TIMEOUT):
            await wait_until(events, lambda event: event.kind == "system/welcome")
            assert boss.status.welcomes == 2
            assert await boss.request("interlock", "ping") == {}


@pytest.mark.spec("MX-3.2-1")
def test_proposal_to_node_needs_approval(plant: NodeWithTopic) -> None:
    world = plant.world
    (world.cwd / "phrase").write_text("open sesame\n", encoding="utf-8")
    made = world.run("keys", "new", "chief", "--passphrase-file", "phrase")
    assert made.returncode == 0, made.stderr

    def approve() -> None:
        (waiting,) = json.loads(world.run("approvals", "--json").stdout)["approvals"]
        options = ("--yes", "--key", "chief", "--passphrase-file", "phrase")
        done = world.run("approve", *options, "--", waiting["id"])
        assert done.returncode == 0, done.stderr

    async def main() -> None:
        agent = plant.participant("agent")
        async with asyncio.timeout(HANG_TIMEOUT), agent.connected():
            with pytest.raises(InterlockError, match="may not send mcp/request"):
                await agent.request(
                    "interlock", "tools/call", {"name": "ledger.press", "arguments": {}}
                )
            events = agent.events()
            calling = asyncio.create_task(
                agent.call("interlock", "ledger.press", {"button": "red"})
            )
            said = await wait_until(events, lambda event: isinstance(event.content, Chat))
            assert agent.proposals[said.correlation_id or ""].status == "pending"
            await asyncio.to_thread(approve)
            result = await calling
            assert result["content"][0]["text"] == "press: done"
            (tracked,) = agent.proposals.values()
            assert (tracked.status, tracked.fulfilled_by) == ("fulfilled", "interlock")
            assert tracked.note == ""
            # The proposal, what was said about it, what fulfilled it, and the answer.
            assert len(agent.find_thread(tracked.proposalId)) == 4
            assert agent.status.dropped_messages == 0

    asyncio.run(main())
    assert plant.file.read_text().count("\n") == 1


async def test_tls_checks_server_name(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    context = tls_context(*ca.issue("server", "127.0.0.1"))
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other")

    rooms = TopicServer(rooms={"room": TopicConfig(access="private")}, tls=context)
    await rooms.start()
    url = rooms.url().partition("?")[0]
    asleep = asyncio.Event()

    async def sleep(seconds: float) -> None:
        asleep.set()
        await asyncio.Event().wait()

    try:
        async with asyncio.timeout(HANG_TIMEOUT):
            trusting = Participant(url, topic="room", token="t-agent", ca=ca.file)
            async with trusting.connected():
                assert trusting.id == "agent"
            # One whom nobody vouches for never hears the token.
            wary = Participant(url, topic="room", token="t-human", ca=stranger.file, sleep=sleep)
            async with stay_connected(wary) as inside:
                await asleep.wait()
                assert not inside.is_set()
            assert not any("human" in str(row) for row in rooms.journal)
    finally:
        await rooms.stop()
