"""Tests of the limits of one participant, which protect the others and the node."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from interlock.core.call import Call
from interlock.protocol.mcpx_terms import MAX_ENVELOPE_BYTES, SLOW_READER_CODE
from interlock.topics import proposals as fates
from interlock.topics.node_participant import (
    MAX_MESSAGES_PER_TURN,
    MAX_WAITING_BYTES,
    MAX_WAITING_MESSAGES,
)
from interlock.topics.requests import MAX_PENDING_REQUESTS
from interlock.trust.policy import Decision, PolicyAction
from interlock.trust.policy.decision import make_decision
from tests.support.clock import run_ready_tasks
from tests.topics.node.node_topic import NODE_ID, PROPOSES, NodeTopic
from tests.trust.decision_steps import learned_step

SEEN = {"content": [{"type": "text", "text": "seen"}]}


def allow_all(call: Call, made: Decision) -> Decision:
    """Allow text files, as an accepted rule does."""
    return make_decision(PolicyAction.ALLOW, "learned", "")


async def test_limits_pending_proposals_per_participant(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    table.gated.authorizer.install(learned_step(allow_all))
    table.gated.pipeline.admission.concurrent_calls = 1_000
    ada, bob = table.add_participant("ada", PROPOSES), table.add_participant("bob", PROPOSES)
    for number in range(MAX_PENDING_REQUESTS):
        ada.propose("s.write_file", {"path": str(number)})
    last = await table.gated.reached(MAX_PENDING_REQUESTS)
    assert "which is the limit" in await ada.chat(ada.propose("s.write_file", {"path": "more"}))
    assert len(table.gated.upstream.started) == MAX_PENDING_REQUESTS
    # That is nobody else's matter, and over with the first that is answered.
    bob.propose("s.write_file", {"path": "bob's"})
    await table.gated.reached(MAX_PENDING_REQUESTS + 1)
    last.answer(**SEEN)
    await ada.until(lambda: bool(ada.list_messages("mcp/response:")))
    ada.propose("s.write_file", {"path": "more"})
    await table.gated.reached(MAX_PENDING_REQUESTS + 2)
    table.close()


async def test_many_proposals_do_not_evict_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fates, "MAX_PROPOSALS", 3)

    table = NodeTopic(tmp_path)
    ada, eve = table.add_participant("ada", PROPOSES), table.add_participant("eve", PROPOSES)
    waits = ada.propose("s.write_file", {"path": "a"})
    await ada.chat(waits)
    table.gated.authorizer.install(learned_step(allow_all))
    for number in range(1, 6):
        eve.propose("s.write_file", {"path": str(number)})
        (await table.gated.reached(number)).answer(**SEEN)
        await eve.until(
            lambda: len(eve.list_messages("mcp/response:")) == len(table.gated.upstream.started)
        )
    assert table.seat._proposals.node_proposals.is_open(waits)
    table.close()


async def test_reports_executed_call_without_space_for_fulfilment(
    tmp_path: Path,
) -> None:
    table = NodeTopic(tmp_path)
    table.gated.authorizer.install(learned_step(allow_all))
    ada = table.add_participant("ada", PROPOSES)
    params: dict[str, Any] = {"name": "s.write_file", "arguments": {"text": ""}}
    payload = {"method": "tools/call", "params": params}
    envelope = {
        "protocol": "mcpx/v0.1",
        "id": "p",
        "from": "ada",
        "to": [NODE_ID],
        "kind": "mcp/proposal:tools/call:s.write_file",
        "payload": payload,
    }
    params["arguments"]["text"] = "x" * (MAX_ENVELOPE_BYTES - 20 - len(json.dumps(envelope)))
    proposal = ada.propose("s.write_file", params=params, id="p")
    (await table.gated.reached()).answer(**SEEN)
    assert "was executed" in await ada.chat(proposal)
    assert ada.list_messages("mcp/request:", "mcp/response:") == []
    table.close()


async def test_reused_id_does_not_block_participant(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    heard: list[tuple[str, str]] = []
    table.seat.add_listener(
        lambda head, _: heard.append((head.sender, head.id)), participants={"bob"}
    )
    worker, eve = table.add_participant("bob"), table.add_participant("eve")
    eve.say("chat", {"text": "first"}, id="answer-1")
    eve.say("mcp/response:tools/list", {"jsonrpc": "2.0", "id": 1, "result": {}}, id="answer-2")
    for id in ("answer-1", "answer-2", "answer-2"):
        answer = {"jsonrpc": "2.0", "id": 1, "result": {}}
        worker.say("mcp/response:tools/list", answer, id=id, correlation_id="id-1")
    await table.run_until_idle()
    assert [id for sender, id in heard if sender == "bob"] == ["answer-1", "answer-2"]
    table.close()


async def test_handles_flood_of_proposals_in_turns(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada", PROPOSES)
    many = 10 * MAX_MESSAGES_PER_TURN
    for number in range(many):
        ada.propose("s.write_file", {"path": str(number)})
    table.room.flush()
    left = [many]
    while left[-1]:
        await run_ready_tasks(1)
        left.append(table.seat._inbox.message_count)
    assert max(before - after for before, after in pairwise(left)) == MAX_MESSAGES_PER_TURN
    await ada.until(lambda: len(ada.list_messages("chat")) == many)
    table.close()


@pytest.mark.parametrize("large", [False, True])
async def test_disconnects_participant_above_inbox_limit(large: bool, tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada, eve = table.add_participant("ada"), table.add_participant("eve", PROPOSES)
    text = "x" * (MAX_ENVELOPE_BYTES - 1_000) if large else "x"
    many = (
        MAX_WAITING_BYTES // len(text)
        if large
        else MAX_WAITING_MESSAGES + 2 * MAX_MESSAGES_PER_TURN
    )
    for number in range(many + 10):
        if eve.closed is None:
            eve.propose("s.write_file", {"path": str(number), "text": text})
    asked = ada.request("ping")
    await ada.read_payload(asked)
    assert eve.closed is not None
    assert eve.closed[0] == SLOW_READER_CODE
    assert "than interlock can handle" in eve.closed[1]
    # What it had said before is not taken either, but for a few; and it may come back.
    assert len(table.gated.approvals.pending()) <= 50
    assert table.seat._inbox.byte_count == table.seat._inbox.message_count == 0
    again = table.add_participant("eve", PROPOSES)
    assert "waits for approval" in await again.chat(again.propose("s.write_file", {"path": "a"}))
    table.close()
