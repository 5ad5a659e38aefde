"""Tests of the timestamps of node messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock.topics.wire.envelope import is_timestamp
from tests.topics.node.node_topic import FULL, NODE_ID, STAMP, NodeTopic

SEEN = {"content": [{"type": "text", "text": "seen"}]}


@pytest.mark.spec("MX-3-16")
async def test_node_messages_have_timestamp(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada", FULL)
    await ada.read_payload(ada.request("ping"))
    looking = ada.call("s.look")
    (await table.gated.reached()).answer(**SEEN)
    await ada.read_payload(looking)
    # An error, and what is said about a lie and about an id that was used.
    await ada.read_payload(ada.request("tasks/list"))
    await ada.read_payload(ada.call("s.look", kind="mcp/request:tools/list"))
    ada.request("ping", id=looking)
    # A proposal: a word about it, the fulfilment, and the response.
    proposal = ada.propose("s.write_file", {"path": "a.txt"})
    await ada.chat(proposal)
    [approval] = table.gated.approvals.pending()
    await table.gated.confirm(approval)
    await ada.until(lambda: bool(ada.list_messages("mcp/response:tools/call:s.write_file")))
    said = [one for one in ada.heard if one["from"] == NODE_ID]
    assert {one["kind"] for one in said} == {
        "mcp/response:ping", "mcp/response:tools/call:s.look", "mcp/response:tasks/list",
        "mcp/response:tools/list", "chat", "mcp/request:tools/call:s.write_file",
        "mcp/response:tools/call:s.write_file",
    }  # fmt: skip
    assert len(ada.list_messages("chat")) == 2
    assert {one.get("ts") for one in said} == {STAMP}
    assert is_timestamp(STAMP)
    table.close()
