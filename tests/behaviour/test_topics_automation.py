"""Progressive automation in a topic: a human lets proposals through until a rule does it.

First with a real room, pipeline and gate in one process; then as people run it: a node, a
participant of another library, a tool that writes files, and everything else on the command line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.automation.config import AutomationConfig
from interlock.automation.decision import DecisionRecorder
from interlock.automation.learned_rules import LearnedRules
from interlock.automation.store import DecisionStore
from interlock.automation.suggestion import suggest
from tests.support.command_line import CommandLine
from tests.support.offerings import definition, offer
from tests.support.waiting import wait_until
from tests.topics.node.node_topic import PROPOSES, NodeTopic, ScriptedParticipant
from tests.topics.peers import Envelope, WebSocketParticipant, join_topic
from tests.trust.decision_steps import learned_step

pytestmark = pytest.mark.feature("topics", "automation")

DECISIONS = AutomationConfig(decisions=5)
TOPIC, NODE = "ops", "interlock"
BY_A_RULE = {"by": "policy", "proof": "learned"}


# -- in one process


class Supervised(NodeTopic):
    """A topic whose node remembers what its clerk decides."""

    def __init__(self, folder: Path) -> None:
        write = definition("write_file", annotations={"destructiveHint": False})
        super().__init__(folder, offer("s", [write]))
        self.memory = DecisionStore(
            folder / "decisions.db",
            deliver=asyncio.get_running_loop().call_soon_threadsafe,
            settings=DECISIONS,
            wall_clock=lambda: self.gated.wall,
        )
        self.gated.approvals.watch(
            DecisionRecorder(self.memory, lambda: self.gated.wall).on_approval
        )

    async def let_through(self) -> None:
        """The clerk signs what waits, and the tool does it."""
        [waiting] = self.gated.approvals.pending()
        await self.gated.confirm(waiting)
        self.gated.wall += 60

    def close(self) -> None:
        super().close()
        self.memory.close()


def propose(proposer: ScriptedParticipant, path: str) -> str:
    return proposer.propose("s.write_file", {"path": path, "content": "x"})


@pytest.mark.spec("MX-2.1-2", "MX-9.4-2")
async def test_learned_rule_fulfils_matching_proposals_only(tmp_path: Path) -> None:
    table = Supervised(tmp_path)
    proposer = table.add_participant("ada", PROPOSES)
    for number in range(6):
        proposal = propose(proposer, f"/tmp/notes/{number}.md")
        await proposer.chat(proposal)
        await table.let_through()
    executed = len(table.gated.upstream.started)
    # What is on its way to the disk is on it then.
    table.memory.close()
    history = table.memory.history()
    assert [(entry.source, entry.verdict) for entry in history] == [("proposal", "approve")] * 6
    [found] = suggest(history, DECISIONS)
    authorizer = table.gated.authorizer
    authorizer.install(learned_step(LearnedRules([found.rule], audit=table.gated.rig.audit)))

    proposal = propose(proposer, "/tmp/notes/new.md")
    (await table.gated.reached(executed + 1)).answer(content=[])
    fulfilment = await proposer.answer(proposal)
    assert fulfilment["kind"] == "mcp/request:tools/call:s.write_file"
    assert fulfilment["payload"]["params"]["_meta"]["interlock/approval"] == BY_A_RULE
    response = await proposer.answer(fulfilment["id"])
    assert response["payload"]["result"] == {"content": []}
    assert table.gated.approvals.pending() == []
    [row] = table.list_entries("learned")
    assert (row["name"], row["outcome"]) == (found.rule.name, "allow")
    assert "proposed in ops by ada" in row["detail"]

    for elsewhere in ("/etc/passwd", "/tmp/notes/../../etc/passwd", "/tmp/notes-too/a"):
        await proposer.chat(propose(proposer, elsewhere))
    assert len(table.gated.approvals.pending()) == 3
    # Somebody whom nobody has let through yet waits as well.
    other = table.add_participant("bob", PROPOSES)
    await other.chat(propose(other, "/tmp/notes/new.md"))

    authorizer.install(learned_step(None))
    await proposer.chat(propose(proposer, "/tmp/notes/newer.md"))
    assert len(table.gated.approvals.pending()) == 5
    assert len(table.gated.upstream.started) == executed + 1
    table.close()


# -- as people run it

WRITER = '''\
"""An MCP server that writes files, and can take that back."""

import json
import sys

TOOL = {
    "name": "write_file",
    "inputSchema": {"type": "object"},
    "_meta": {"x-mcpax-capability": {"mutable": True, "reversible": True}},
}


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "writer", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        with open(params["arguments"]["path"], "w") as file:
            file.write(params["arguments"]["content"])
        return {"content": [{"type": "text", "text": "written"}]}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        result = answer(message["method"], message.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
'''
TOKEN = "token-of-the-proposer-" + "x" * 24


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CommandLine]:
    one = CommandLine(tmp_path)
    try:
        yield one
    finally:
        one.close()


class Office:
    """A node with a topic, a tool that writes files, and a chief who has a key."""

    def __init__(self, world: CommandLine) -> None:
        self.world = world
        self.notes = world.cwd / "notes"
        self.notes.mkdir()
        server = world.cwd / "writer.py"
        server.write_text(WRITER, encoding="utf-8")
        seat = {"callers": ["proposer"], "profile": "proposal_only"}
        world.config(
            {"files": {"command": sys.executable, "args": [str(server)]}},
            tokens=[{"name": "proposer", "token": "${env:PROPOSER}"}],
            automation={"decisions": 5},
            topics={"rooms": {TOPIC: {"node": NODE, "participants": [seat]}}},
        )
        self.node = world.up(PROPOSER=TOKEN)
        self.node.wait_for_line("upstream files: ready")
        (world.cwd / "phrase").write_text("open sesame\n", encoding="utf-8")
        self.run("keys", "new", "chief", "--passphrase-file", "phrase")
        self.url = f"ws{self.node.url.rpartition('/')[0].removeprefix('http')}/ws?topic={TOPIC}"

    def run(self, *arguments: str) -> str:
        result = self.world.run(*arguments, PROPOSER=TOKEN)
        assert result.returncode == 0, result.stderr
        return result.stdout

    async def told(self, *arguments: str) -> Any:
        return json.loads(await asyncio.to_thread(self.run, *arguments, "--json"))

    async def waiting(self) -> list[dict[str, Any]]:
        approvals: list[dict[str, Any]] = (await self.told("approvals"))["approvals"]
        return approvals

    def suggested(self) -> list[dict[str, Any]]:
        """What is suggested, once the last decision is on the disk."""

        def found() -> list[dict[str, Any]] | None:
            message = json.loads(self.run("automation", "--json"))
            return message["suggestions"] or None

        return wait_until("a suggestion", found)

    async def approve(self, id: str) -> None:
        key = ("--yes", "--key", "chief", "--passphrase-file", "phrase")
        await asyncio.to_thread(self.run, "approve", *key, "--", id)

    async def change(self, *arguments: str) -> None:
        """Change the rules, and wait until the node goes by them."""
        await asyncio.to_thread(self.run, "automation", *arguments)
        await asyncio.to_thread(self.node.wait_for_line, "config: reloaded: .*policy")


async def propose_write(peer: WebSocketParticipant, path: Path) -> tuple[str, Envelope]:
    """What is proposed, and the first that is heard of it."""
    params = {"name": "files.write_file", "arguments": {"path": str(path), "content": "hello"}}
    id = await peer.say(
        "mcp/proposal:tools/call:files.write_file",
        {"method": "tools/call", "params": params},
        to=[NODE],
    )
    return id, await peer.until(lambda one: one.get("correlation_id") == id)


async def assert_fulfilled(peer: WebSocketParticipant, fulfilment: Envelope) -> None:
    assert fulfilment["kind"] == "mcp/request:tools/call:files.write_file"
    response = await peer.until(lambda one: one.get("correlation_id") == fulfilment["id"])
    assert response["payload"]["result"]["content"][0]["text"] == "written"


@pytest.mark.spec("MX-9.4-2")
def test_rule_is_learned_accepted_and_reverted(world: CommandLine) -> None:
    office = Office(world)

    async def run() -> None:
        async with join_topic(office.url, TOKEN) as peer:
            for number in range(5):
                _, word = await propose_write(peer, office.notes / f"{number}.md")
                assert word["kind"] == "chat"
                [waits] = await office.waiting()
                await office.approve(waits["id"])
                await assert_fulfilled(peer, await peer.until(lambda one: one["kind"] != "chat"))
                assert (office.notes / f"{number}.md").read_text() == "hello"
            [suggestion] = await asyncio.to_thread(office.suggested)
            assert suggestion["evidence"]["by"] == {"chief": 5}
            result = await asyncio.to_thread(office.run, "automation", "show", suggestion["id"])
            assert "agrees with 5 of 5 decisions" in result
            await office.change("accept", suggestion["id"], "--yes")

            _, fulfilment = await propose_write(peer, office.notes / "new.md")
            assert fulfilment["payload"]["params"]["_meta"]["interlock/approval"] == BY_A_RULE
            await assert_fulfilled(peer, fulfilment)
            assert (office.notes / "new.md").read_text() == "hello"
            assert await office.waiting() == []

            outside = world.cwd / "outside.md"
            for path in (outside, office.notes / ".." / "outside.md"):
                _, word = await propose_write(peer, path)
                assert word["kind"] == "chat"
            assert len(await office.waiting()) == 2

            await office.change("revert", suggestion["rule"]["name"])
            _, word = await propose_write(peer, office.notes / "newer.md")
            assert word["kind"] == "chat"
            [waits] = await office.waiting()
            assert waits["arguments"]["path"].endswith("newer.md")
            assert not outside.exists()
            assert not (office.notes / "newer.md").exists()

    asyncio.run(run())
    assert "proposed in ops by proposer" in office.run("audit", "export")
