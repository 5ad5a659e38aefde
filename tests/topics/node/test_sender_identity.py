"""Tests of messages whose participant id changes its caller within a turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.topics.node.node_topic import NodeTopic


async def test_call_uses_identity_at_time_of_message(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    boss = table.add_participant("boss", name="eve")
    await table.run_until_idle()
    # All in one turn: eve asks and leaves, and ada comes in under the same id.
    boss.call("s.look")
    table.gateway.leave(boss.member)
    table.add_participant("boss", name="ada")
    await table.run_until_idle()
    assert {row["caller"] for row in table.list_entries("tools/call")} == {"eve"}
    table.close()


async def test_proposal_uses_identity_at_time_of_message(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    boss = table.add_participant("boss", name="eve")
    await table.run_until_idle()
    proposal = boss.propose("s.write_file")
    table.gateway.leave(boss.member)
    other = table.add_participant("boss", name="ada")
    await other.chat(proposal)
    [approval] = table.gated.approvals.pending()
    assert approval.caller.name == "eve"
    table.close()


@pytest.mark.parametrize("name", ["ada", "eve"])
async def test_ignores_messages_of_removed_participant(name: str, tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    boss = table.add_participant("boss", name="eve")
    await table.run_until_idle()
    boss.call("s.look")
    del table.room.members["boss"]
    table.add_participant("boss", name=name)
    await table.run_until_idle()
    assert table.gated.upstream.started == []
    table.close()
