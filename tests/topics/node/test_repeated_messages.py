"""Tests that no call is executed twice: reused ids and repeated fulfilments."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from interlock.core.call import Call
from interlock.core.config.trust import RuleConfig
from interlock.errors import ALREADY_DECIDED, CONFIRMATION_REQUIRED
from interlock.topics.node_participant import MAX_STORED_IDS
from interlock.trust.approvals.record import Approval
from interlock.trust.policy import PolicyAction
from interlock.trust.policy.decision import make_decision
from tests.support.calls import tool_call
from tests.topics.node.node_topic import PROPOSES, NodeTopic, ScriptedParticipant
from tests.trust.decision_steps import learned_step

FILE = {"path": "a.txt", "text": "hello"}
SEEN = {"content": [{"type": "text", "text": "seen"}]}


async def propose_write(table: NodeTopic, guest: ScriptedParticipant) -> tuple[str, Approval]:
    proposal = guest.propose("s.write_file", FILE)
    await guest.chat(proposal)
    [approval] = table.gated.approvals.pending()
    return proposal, approval


@pytest.mark.parametrize("arguments", [FILE, {"path": "b.txt"}])
async def test_fulfilment_of_pending_proposal_names_approval(
    arguments: Any, tmp_path: Path
) -> None:
    table = NodeTopic(tmp_path)
    ada, bob = table.add_participant("ada", PROPOSES), table.add_participant("bob")
    proposal, approval = await propose_write(table, ada)
    fulfilment = bob.call("s.write_file", arguments, correlation_id=proposal)
    error = (await bob.read_payload(fulfilment))["error"]
    assert error["code"] == CONFIRMATION_REQUIRED.code
    assert approval.id in error["message"]
    assert error["data"]["confirmation_id"] == approval.id
    # Nothing was called, and there is one thing to decide as before.
    assert table.gated.approvals.pending() == [approval]
    assert table.gated.upstream.started == []
    await table.gated.confirm(approval)
    await ada.until(lambda: len(ada.list_messages("mcp/response:")) == 2)
    late = await bob.read_payload(bob.call("s.write_file", FILE, correlation_id=proposal, rpc=2))
    assert late["error"]["code"] == ALREADY_DECIDED.code
    assert len(table.gated.upstream.started) == 1
    table.close()


async def test_fulfilment_directly_after_proposal_needs_approval(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada, bob = table.add_participant("ada", PROPOSES), table.add_participant("bob")
    proposal = ada.propose("s.write_file", FILE)
    fulfilment = bob.call("s.write_file", FILE, correlation_id=proposal)
    assert (await bob.read_payload(fulfilment))["error"]["code"] == CONFIRMATION_REQUIRED.code
    await ada.chat(proposal)
    assert table.gated.upstream.started == []
    table.close()


async def test_proposal_pending_before_restart_runs_once(tmp_path: Path) -> None:
    before = NodeTopic(tmp_path)
    proposal, approval = await propose_write(before, before.add_participant("ada", PROPOSES))
    before.close()
    table = NodeTopic(tmp_path, keys=before.gated.keys)
    bob = table.add_participant("bob")
    answer = await bob.read_payload(bob.call("s.write_file", FILE, correlation_id=proposal))
    assert answer["error"]["data"]["confirmation_id"] == approval.id
    assert table.gated.upstream.started == []
    table.close()


async def test_broadcast_fulfilment_does_not_run_call_twice(
    tmp_path: Path,
) -> None:
    table = NodeTopic(tmp_path)
    ada, bob = table.add_participant("ada", PROPOSES), table.add_participant("bob")
    proposal, approval = await propose_write(table, ada)
    to_all = bob.call("s.write_file", FILE, to=(), correlation_id=proposal)
    await bob.read_payload(bob.request("ping"))
    assert table.gated.upstream.started == []
    await table.gated.confirm(approval)
    await ada.until(lambda: bool(ada.list_messages("mcp/response:tools/call")))
    again = bob.call("s.write_file", FILE, to=(), correlation_id=proposal)
    await bob.read_payload(bob.request("ping", rpc=2))
    assert len(table.gated.upstream.started) == 1
    # Somebody else may be meant, so nothing is said about it.
    assert bob.list_responses(to_all) == bob.list_responses(again) == []
    table.close()


async def test_proposal_executed_before_restart_does_not_run_again(tmp_path: Path) -> None:
    before = NodeTopic(tmp_path)
    ada = before.add_participant("ada", PROPOSES)
    proposal, approval = await propose_write(before, ada)
    await before.gated.confirm(approval)
    await ada.until(lambda: bool(ada.list_messages("mcp/response:tools/call")))
    before.close()
    table = NodeTopic(tmp_path, keys=before.gated.keys)
    bob = table.add_participant("bob")
    answer = await bob.read_payload(bob.call("s.write_file", FILE, correlation_id=proposal))
    assert answer["error"]["code"] == ALREADY_DECIDED.code
    assert table.gated.upstream.started == []
    table.close()


async def test_id_of_pending_proposal_stays_used_after_restart(tmp_path: Path) -> None:
    before = NodeTopic(tmp_path)
    proposal, approval = await propose_write(before, before.add_participant("ada", PROPOSES))
    before.close()
    table = NodeTopic(tmp_path, keys=before.gated.keys)
    eve = table.add_participant("eve", PROPOSES)
    eve.propose("s.write_file", {"path": "another"}, id=proposal)
    await eve.until(lambda: bool(eve.list_messages("chat")))
    assert "was used before" in eve.list_messages("chat")[0]["payload"]["text"]
    assert [one.id for one in table.gated.approvals.pending()] == [approval.id]
    table.close()


async def test_topic_does_not_take_result_of_other_call(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path, default="deny", rules=[RuleConfig("ask", then="confirm")])
    ada = table.add_participant("ada", PROPOSES)
    elsewhere = tool_call("s.write_file", FILE, credentials=ada.member.credentials)
    approval = await table.gated.hold(elsewhere)
    confirming = asyncio.ensure_future(
        table.gated.approvals.confirm(approval.id, table.gated.proof(approval))
    )
    (await table.gated.reached()).answer(**SEEN)
    await confirming
    proposal = ada.propose("s.write_file", FILE)
    await ada.chat(proposal)
    [pending] = table.gated.approvals.pending()
    assert pending.proposal is not None
    assert (pending.proposal.id, pending.id != approval.id) == (proposal, True)
    assert ada.list_messages("mcp/response:") == []
    # Whoever made the call names the approval, and gets what it came to.
    assert await table.gated.ask(elsewhere) == SEEN
    assert len(table.gated.upstream.started) == 1
    table.close()


async def test_rejection_reaches_original_caller(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path, default="deny", rules=[RuleConfig("ask", then="confirm")])
    ada = table.add_participant("ada", PROPOSES)
    proposal, approval = await propose_write(table, ada)

    def elsewhere() -> Call:
        return tool_call("s.write_file", FILE, credentials=ada.member.credentials)

    assert await table.gated.hold(elsewhere()) == approval
    await table.gated.approvals.reject(approval.id, local=True, reason="not now")
    assert "not now" in await ada.chat(proposal, 2)
    # It was told to make the same call again, and then is answered once.
    assert "not now" in (await table.gated.ask(elsewhere())).message
    assert (await table.gated.hold(elsewhere())).id != approval.id
    table.close()


async def test_call_allowed_by_rule_runs_once(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    allow = make_decision(PolicyAction.ALLOW, "learned", "")
    table.gated.authorizer.install(learned_step(lambda *_: allow))
    ada, bob = table.add_participant("ada", PROPOSES), table.add_participant("bob")
    proposal = ada.propose("s.write_file", FILE)
    (await table.gated.reached()).answer(**SEEN)
    await ada.until(lambda: bool(ada.list_messages("mcp/response:")))
    answer = await bob.read_payload(bob.call("s.write_file", FILE, correlation_id=proposal))
    assert answer["error"]["code"] == ALREADY_DECIDED.code
    assert len(table.gated.upstream.started) == 1
    table.close()


@pytest.mark.parametrize("refused", [True, False])
async def test_unexecuted_proposal_can_be_fulfilled(refused: bool, tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada, bob = table.add_participant("ada", PROPOSES), table.add_participant("bob")
    if refused:
        proposal, approval = await propose_write(table, ada)
        await table.gated.approvals.reject(approval.id, local=True, reason="no")
        await ada.chat(proposal, 2)
    else:
        proposal = ada.propose("s.write_file", FILE, ())
    fulfilment = bob.call("s.write_file", FILE, correlation_id=proposal)
    (await table.gated.reached()).answer(**SEEN)
    assert (await bob.read_payload(fulfilment))["result"] == SEEN
    table.close()


async def test_pending_request_id_stays_used(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada, bob, eve = (
        table.add_participant("ada"),
        table.add_participant("bob", PROPOSES),
        table.add_participant("eve"),
    )
    asked = ada.call("s.look", id="the-one", rpc="first")
    exchange = await table.gated.reached()
    proposal, _ = await propose_write(table, bob)
    for number in range(MAX_STORED_IDS):
        eve.say("chat", {"text": str(number)})
        if not number % 500:
            await table.run_until_idle()
    for guest in (ada, eve):
        guest.call("s.look", id=asked, rpc="second")
        guest.propose("s.write_file", {"path": "c.txt"}, id=proposal)
        await guest.read_payload(guest.request("ping"))
        assert guest.member.rejected == 2
    assert table.gated.upstream.started == [exchange]
    # Who leaves has what it asked for cancelled: it was not forgotten.
    table.gateway.leave(ada.member)
    await eve.read_payload(eve.request("ping", rpc=2))
    assert exchange.abandoned == ["ada left the topic."]
    table.close()


ODD = ("mcp/*:tools/call", "chat")
"""A pattern that grants the method, and no context."""


@pytest.mark.parametrize("what", ["request", "proposal"])
async def test_forbidden_context_cannot_be_omitted(what: str, tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    eve = table.add_participant("eve", ODD)
    if what == "request":
        said = await eve.read_payload(eve.call("s.look", kind="mcp/request:tools/call"))
        text = said["error"]["message"]
    else:
        text = await eve.chat(eve.propose("s.look", kind="mcp/proposal:tools/call"))
    assert "omits the context 's.look'" in text
    assert eve.member.rejected == 1
    assert table.gated.upstream.started == []
    assert table.gated.approvals.pending() == []
    # Who may name every context may leave it out, as the draft's first sample does.
    ada = table.add_participant("ada", ("mcp/request:tools/call",))
    asked = ada.call("s.look", kind="mcp/request:tools/call")
    (await table.gated.reached()).answer(**SEEN)
    assert (await ada.read_payload(asked))["result"] == SEEN
    table.close()
