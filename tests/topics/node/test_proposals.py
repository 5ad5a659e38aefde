"""Tests of proposals to the node: approvals and their outcome in the room."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from interlock.core.call import Call, ProposedCall
from interlock.core.catalog.offering import Offering
from interlock.core.config.trust import PolicyConfig, RuleConfig
from interlock.errors import DENIED, InterlockError
from interlock.protocol.mcp import Era, summarize_result
from interlock.protocol.mcpx_terms import MAX_ENVELOPE_BYTES
from interlock.topics.wire.payloads import END_REASON_MEMBER
from interlock.trust.approvals.downstream import ProofOutcome
from interlock.trust.approvals.record import Approval
from interlock.trust.policy import Decision, Policy, PolicyAction
from interlock.trust.policy.decision import make_decision
from tests.support.offerings import definition, offer
from tests.topics.node.node_topic import (
    NODE_ID,
    OTHER,
    PROPOSES,
    TOPIC,
    NodeTopic,
    ScriptedParticipant,
)
from tests.trust.decision_steps import learned_step

WIPED = {"content": [{"type": "text", "text": "wiped"}]}
FILE = {"path": "a.txt", "text": "hello"}


async def propose_write(
    table: NodeTopic, guest: ScriptedParticipant, arguments: Any = None
) -> tuple[str, Approval]:
    """Propose a write and return the proposal id and its approval."""
    proposal = guest.propose("s.write_file", FILE if arguments is None else arguments)
    text = await guest.chat(proposal)
    [approval] = [one for one in table.gated.approvals.pending() if one.id in text]
    return proposal, approval


@pytest.mark.spec("MX-7.1-3", "MX-3.2.1-3")
async def test_proposal_needs_approval_despite_rules(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path, default="allow")
    ada, bob = table.add_participant("ada", PROPOSES), table.add_participant("bob")
    proposal, approval = await propose_write(table, ada)
    assert table.gated.upstream.started == []
    assert approval.proposal == ProposedCall(TOPIC, proposal, "ada")
    assert approval.caller.name == "ada"
    assert approval.rule == "proposal"

    await table.gated.confirm(approval)
    await ada.until(lambda: bool(ada.list_messages("mcp/response:")))
    [fulfilment] = ada.list_messages("mcp/request:")
    assert fulfilment["from"] == NODE_ID
    assert fulfilment["to"] == [NODE_ID]
    assert fulfilment["correlation_id"] == proposal
    assert fulfilment["kind"] == "mcp/request:tools/call:s.write_file"
    assert fulfilment["payload"]["method"] == "tools/call"
    params = fulfilment["payload"]["params"]
    assert (params["name"], params["arguments"]) == ("s.write_file", FILE)
    assert params["_meta"] == {"interlock/approval": {"by": "clerk", "proof": "operator"}}

    [response] = ada.list_messages("mcp/response:")
    assert response["to"] == [NODE_ID, "ada"]
    assert response["correlation_id"] == fulfilment["id"]
    assert response["kind"] == "mcp/response:tools/call:s.write_file"
    assert response["payload"]["id"] == fulfilment["payload"]["id"]
    assert response["payload"]["result"] == WIPED
    # Everybody in the room saw both.
    assert bob.list_messages("mcp/request:", "mcp/response:") == [fulfilment, response]
    assert len(table.gated.upstream.started) == 1

    # And the journal has who proposed, who let it through, and what came of it.
    about = f"{TOPIC}/{proposal}"
    rows = [row for row in table.list_entries("proposal") if row["name"] == about]
    assert [row["outcome"] for row in rows] == ["proposed", "fulfilled", "done"]
    assert all("of ada: s.write_file" in row["detail"] for row in rows)
    assert all(f"approval:{approval.id}" in row["detail"] for row in rows)
    assert "by clerk (operator)" in rows[1]["detail"]
    assert rows[2]["detail"].endswith(" ok")
    table.close()


async def test_reports_rejection(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada", PROPOSES)
    proposal, approval = await propose_write(table, ada)
    await table.gated.approvals.reject(approval.id, local=True, reason="not on a Friday")
    assert "rejected it: not on a Friday" in await ada.chat(proposal, 2)
    # Programs are told as well, and not before it is over.
    assert [one["payload"].get(END_REASON_MEMBER) for one in ada.list_messages("chat")] == [
        None,
        "approval_refused",
    ]
    assert ada.list_messages("mcp/request:", "mcp/response:") == []
    assert table.list_entries("proposal")[-1]["outcome"] == "refused"
    table.close()


async def test_reports_rejection_once_and_accepts_new_proposal(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada", PROPOSES)
    for _ in range(3):
        proposal, approval = await propose_write(table, ada)
        await table.gated.approvals.reject(approval.id, local=True, reason="no")
        assert "rejected it: no" in await ada.chat(proposal, 2)
    assert table.gated.upstream.started == []
    table.close()


async def test_reports_expiry(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path, settings=None)
    ada = table.add_participant("ada", PROPOSES)
    proposal, approval = await propose_write(table, ada)
    table.gated.pass_time(approval.expires - approval.created + 1)
    assert "No operator decided in time" in await ada.chat(proposal, 2)
    assert ada.list_messages("chat")[-1]["payload"][END_REASON_MEMBER] == "confirmation_expired"
    table.close()


async def test_reports_denial_by_new_policy(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada", PROPOSES)
    proposal, _ = await propose_write(table, ada)
    rules = [RuleConfig("never", "deny", tools=["s.write_file"])]
    table.gated.authorizer.set_policy(Policy(PolicyConfig(default="allow", rules=rules)))
    table.gated.approvals.on_policy_changed()
    assert "policy changed" in await ada.chat(proposal, 2)
    assert ada.list_messages("mcp/request:") == []
    again = await ada.chat(ada.propose("s.write_file", FILE))
    assert again.startswith("Your proposal was rejected: ")
    assert ada.list_messages("chat")[-1]["payload"][END_REASON_MEMBER] == "denied_by_policy"
    assert table.gated.upstream.started == []
    table.close()


async def test_identical_proposals_share_approval(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada", PROPOSES)
    proposal, approval = await propose_write(table, ada)
    again = ada.propose("s.write_file", FILE)
    text = await ada.chat(again)
    assert f"is already pending, as approval {approval.id} (proposal {proposal})" in text
    assert len(table.gated.approvals.pending()) == 1
    await table.gated.confirm(approval)
    await ada.until(lambda: len(ada.list_messages("mcp/response:")) == 2)
    # It is made once, and both hear of it.
    assert len(table.gated.upstream.started) == 1
    told = {one["correlation_id"] for one in ada.list_messages("mcp/request:")}
    assert told == {proposal, again}
    table.close()


async def test_reports_failure_after_approval(
    tmp_path: Path,
) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada", PROPOSES)
    for failing in ("answered", "lost"):
        _, approval = await propose_write(table, ada, {"path": failing})
        confirming = asyncio.ensure_future(
            table.gated.approvals.confirm(approval.id, table.gated.proof(approval))
        )
        exchange = await table.gated.reached(len(table.gated.upstream.started) + 1)
        if failing == "answered":
            exchange.answer_error(-32050, "The disk is full.")
        else:
            exchange.lose(sent=True)
        with pytest.raises(InterlockError):
            await confirming
    await ada.until(lambda: len(ada.list_messages("mcp/response:")) == 2)
    requests, responses = ada.list_messages("mcp/request:"), ada.list_messages("mcp/response:")
    assert [one["correlation_id"] for one in responses] == [one["id"] for one in requests]
    errors = [one["payload"]["error"] for one in responses]
    assert errors[0]["message"] == "The disk is full."
    assert errors[1]["data"]["error"] == "upstream_lost"
    table.close()


async def test_too_long_result_stays_in_approval(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada", PROPOSES)
    _, approval = await propose_write(table, ada)
    confirming = asyncio.ensure_future(
        table.gated.approvals.confirm(approval.id, table.gated.proof(approval))
    )
    # It is kept, but no envelope around it is short enough.
    text = "x" * (MAX_ENVELOPE_BYTES - 60)
    (await table.gated.reached()).answer(content=[{"type": "text", "text": text}])
    await confirming
    await ada.until(lambda: bool(ada.list_messages("mcp/response:")))
    [response] = ada.list_messages("mcp/response:")
    assert response["payload"]["result"]["isError"]
    assert "approval record" in response["payload"]["result"]["content"][0]["text"]
    table.close()


async def test_ignores_proposals_to_others(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada", PROPOSES)
    for to in ((), ("bob",)):
        ada.propose("s.write_file", {"to": to}, to)
    # What comes later is written down later.
    _, approval = await propose_write(table, ada)
    assert table.gated.approvals.pending() == [approval]
    assert len(ada.list_messages("chat")) == 1
    table.close()


async def test_rejects_proposals_of_other_methods(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada", PROPOSES)
    proposal = ada.say(
        "mcp/proposal:mcpax/confirm", {"method": "mcpax/confirm", "params": {"proof": "x"}}
    )
    assert "Only tool calls can be proposed" in await ada.chat(proposal)
    params = {"name": "s.write_file", "arguments": {}, "requestState": "x"}
    proposal = ada.propose("s.write_file", params=params)
    assert "`requestState`" in await ada.chat(proposal)
    assert "Unknown tool" in await ada.chat(ada.propose("s.no_such"))
    assert table.gated.approvals.pending() == []
    table.close()


async def test_guest_cannot_propose(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    guest = table.add_participant("guest-abcd", PROPOSES, bearer=None)
    assert "bearer token is required" in await guest.chat(guest.propose("s.write_file", FILE))
    assert table.gated.approvals.pending() == []
    table.close()


def allow_text_files(call: Call, made: Decision) -> Decision:
    """Allow text files, as an accepted rule does."""
    path = json.loads(bytes(call.arguments)).get("path", "")
    if path == "forbidden":
        raise InterlockError(DENIED, "The rule says no.")
    return make_decision(PolicyAction.ALLOW, "learned", "") if path.endswith(".txt") else made


async def test_learned_rule_fulfils_at_once(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    table.gated.authorizer.install(learned_step(allow_text_files))
    ada = table.add_participant("ada", PROPOSES)
    proposal = ada.propose("s.write_file", FILE)
    (await table.gated.reached()).answer(**WIPED)
    await ada.until(lambda: bool(ada.list_messages("mcp/response:")))
    [fulfilment], [response] = ada.list_messages("mcp/request:"), ada.list_messages("mcp/response:")
    assert fulfilment["correlation_id"] == proposal
    assert fulfilment["payload"]["params"]["_meta"] == {
        "interlock/approval": {"by": "policy", "proof": "learned"}
    }
    assert response["correlation_id"] == fulfilment["id"]
    assert response["payload"]["result"] == WIPED
    # It failed on its way: that is an answer, too.
    ada.propose("s.write_file", {"path": "b.txt"})
    (await table.gated.reached(2)).answer_error(-32050, "The disk is full.")
    await ada.until(lambda: len(ada.list_messages("mcp/response:")) == 2)
    assert ada.list_messages("mcp/response:")[1]["payload"]["error"]["code"] == -32050
    # Nobody knows whether it was made.
    ada.propose("s.write_file", {"path": "late.txt"})
    await table.gated.reached(3)
    table.gated.pass_time(61)
    await ada.until(lambda: len(ada.list_messages("mcp/response:")) == 3)
    error = ada.list_messages("mcp/response:")[2]["payload"]["error"]
    assert error["data"]["error"] == "deadline_exceeded"
    ada.propose("s.write_file", {"path": "gone.txt"})
    (await table.gated.reached(4)).lose(sent=True)
    await ada.until(lambda: len(ada.list_messages("mcp/response:")) == 4)
    # It never left: there was no fulfilment.
    table.gated.breakers_forgive()
    unsent = ada.propose("s.write_file", {"path": "unsent.txt"})
    for attempt in (5, 6):
        (await table.gated.reached(attempt)).lose(sent=False)
    assert "went away" in await ada.chat(unsent)
    table.gated.breakers_forgive()
    table.gated.upstream.refuse_with = InterlockError(DENIED, "Not now.")
    assert "Not now." in await ada.chat(ada.propose("s.write_file", {"path": "c.txt"}))
    assert "says no" in await ada.chat(ada.propose("s.write_file", {"path": "forbidden"}))
    await propose_write(table, ada, {"path": "other"})
    assert len(ada.list_messages("mcp/request:")) == 4
    table.close()


async def test_sends_only_visible_members(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    table.gated.authorizer.install(learned_step(allow_text_files))
    ada = table.add_participant("ada", PROPOSES)
    params = {"name": "s.write_file", "arguments": FILE, "_meta": {"unseen": True}}
    ada.propose("s.write_file", params=params)
    assert (await table.gated.reached()).call.meta is None
    table.close()


async def test_identical_proposal_waits_for_pending_call(
    tmp_path: Path,
) -> None:
    table = NodeTopic(tmp_path)
    table.gated.upstream.timeout = 1_000.0
    ada = table.add_participant("ada", PROPOSES)
    _, approval = await propose_write(table, ada)
    confirming = asyncio.ensure_future(
        table.gated.approvals.confirm(approval.id, table.gated.proof(approval))
    )
    exchange = await table.gated.reached()
    again = ada.propose("s.write_file", FILE)
    await table.run_until_idle()
    assert ada.list_responses(again) == []
    table.gated.pass_time(121)
    assert "has no result yet" in await ada.chat(again)
    exchange.answer(**WIPED)
    await confirming
    await ada.until(lambda: bool(ada.list_messages("mcp/response:")))
    assert len(ada.list_messages("mcp/request:")) == 1
    assert len(table.gated.upstream.started) == 1
    table.close()


async def test_other_topic_sees_nothing(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada, bob = table.add_participant("ada", PROPOSES), table.add_participant("bob", topic=OTHER)
    _, approval = await propose_write(table, ada)
    await table.gated.confirm(approval)
    await ada.until(lambda: bool(ada.list_messages("mcp/response:")))
    await bob.read_payload(bob.request("ping"))
    assert bob.list_messages("chat", "mcp/request:") == []
    # A node that left its rooms does not listen to the inbox any more.
    for seat in table.seats:
        seat.close()
    assert table.gated.approvals._inbox._watchers == []
    table.close()


async def test_fulfils_pending_proposal_after_restart(tmp_path: Path) -> None:
    before = NodeTopic(tmp_path)
    proposal, _ = await propose_write(before, before.add_participant("ada", PROPOSES))
    before.close()
    table = NodeTopic(tmp_path, keys=before.gated.keys)
    ada = table.add_participant("ada", PROPOSES)
    [approval] = table.gated.approvals.pending()
    await table.gated.confirm(approval)
    await ada.until(lambda: bool(ada.list_messages("mcp/response:")))
    [fulfilment] = ada.list_messages("mcp/request:")
    assert fulfilment["correlation_id"] == proposal
    assert fulfilment["payload"]["params"]["arguments"] == FILE
    assert ada.list_messages("mcp/response:")[0]["payload"]["result"] == WIPED
    table.close()


async def test_closed_topic_leaves_result_in_approval(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada", PROPOSES)
    _, approval = await propose_write(table, ada)
    table.seat.close()
    confirming = asyncio.ensure_future(
        table.gated.approvals.confirm(approval.id, table.gated.proof(approval))
    )
    exchange = await table.gated.reached()
    # The node comes back while the call is under way: there is no request to answer.
    table._seat(table.room)
    exchange.answer(**WIPED)
    await confirming
    assert approval.proposal is not None
    said = await ada.chat(approval.proposal.id, 2)
    assert "approval record has the outcome (ok)" in said
    found = table.gated.approvals.find(approval.id)
    assert found is not None
    assert json.loads(found.result) == WIPED
    assert ada.list_messages("mcp/request:", "mcp/response:") == []
    table.close()


async def test_executed_call_can_be_proposed_again(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada", PROPOSES)
    for number in (1, 2):
        _, approval = await propose_write(table, ada)
        await table.gated.confirm(approval)
        await ada.until(lambda number=number: len(ada.list_messages("mcp/response:")) == number)
    assert len(table.gated.upstream.started) == 2
    assert len({one["correlation_id"] for one in ada.list_messages("mcp/request:")}) == 2
    table.close()


CHILD_APPROVAL = {
    "content": [{"type": "text", "text": "wait"}],
    "isError": True,
    "structuredContent": {
        "status": "confirmation_required",
        "confirmation_id": "B" * 20,
        "expires_at": "2027-02-01T00:00:00Z",
    },
    "_meta": {"x-mcpax-status": "confirmation_required"},
}


async def approve_and_stop_at_child(table: NodeTopic, ada: ScriptedParticipant) -> str:
    """Approve a proposal whose call then needs approval at a child node."""
    proposal, approval = await propose_write(table, ada)
    confirming = asyncio.ensure_future(
        table.gated.approvals.confirm(approval.id, table.gated.proof(approval))
    )
    (await table.gated.reached()).answer(**CHILD_APPROVAL)
    await confirming
    assert f"now waits for approval at a node below: approval {'B' * 20}" in await ada.chat(
        proposal, 2
    )
    assert ada.list_messages("mcp/response:") == []
    return proposal


def child_offering() -> Offering:
    return offer("s", [definition("write_file")], registered="aggregator")


async def test_approval_of_child_node_completes_fulfilment(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path, child_offering())
    ada = table.add_participant("ada", PROPOSES)
    await approve_and_stop_at_child(table, ada)
    raw = json.dumps(WIPED).encode()
    outcome = ProofOutcome(raw, Era.SESSION, summarize_result(Raw(raw)), upstream="s")
    await table.gated.approvals.gate.child_calls.on_child_outcome("B" * 20, outcome)
    await ada.until(lambda: bool(ada.list_messages("mcp/response:")))
    [fulfilment], [response] = ada.list_messages("mcp/request:"), ada.list_messages("mcp/response:")
    assert response["correlation_id"] == fulfilment["id"]
    assert response["payload"]["result"] == WIPED
    table.close()


async def test_second_approval_of_child_node_is_no_outcome(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path, child_offering())
    ada = table.add_participant("ada", PROPOSES)
    await approve_and_stop_at_child(table, ada)
    # Its caller asks again, and by then it was let through there.
    again = ada.propose("s.write_file", FILE)
    (await table.gated.reached(2)).answer(**WIPED)
    await ada.until(lambda: bool(ada.list_messages("mcp/response:")))
    assert "was already executed" in await ada.chat(again)
    assert [row["outcome"] for row in table.list_entries("proposal")].count("fulfilled") == 1
    [fulfilment], [response] = ada.list_messages("mcp/request:"), ada.list_messages("mcp/response:")
    assert response["correlation_id"] == fulfilment["id"]
    assert response["payload"]["result"] == WIPED
    table.close()
