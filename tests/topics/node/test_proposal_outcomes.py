"""Tests of the remembered outcomes of proposals."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.call import Call, ProposedCall
from interlock.core.catalog.effects import EffectLevel
from interlock.core.catalog.offering import CONTRACTS, Offering, read_contract_offering
from interlock.core.config.trust import RuleConfig
from interlock.errors import ALREADY_DECIDED
from interlock.topics import proposals as fates
from interlock.topics.proposals import EXECUTED, NOT_EXECUTED, PENDING, RECEIVED, ProposalOutcomes
from interlock.trust.approvals.record import Approval
from tests.support.calls import tool_call
from tests.support.clock import run_ready_tasks
from tests.support.offerings import definition
from tests.support.timeouts import HANG_TIMEOUT
from tests.topics.node.node_topic import OTHER, PROPOSES, TOPIC, NodeTopic, ScriptedParticipant

FILE = {"path": "a.txt", "text": "hello"}
SEEN = {"content": [{"type": "text", "text": "seen"}]}
CONTEXT, DRIVER = "dev.interlock/context", "dev.interlock/driver"


def proposed_call(id: str, by: str = "ada") -> ProposedCall:
    return ProposedCall(TOPIC, id, by)


async def propose_write(
    table: NodeTopic, guest: ScriptedParticipant, arguments: Any = FILE
) -> tuple[str, Approval]:
    proposal = guest.propose("s.write_file", arguments)
    text = await guest.chat(proposal)
    [approval] = [one for one in table.gated.approvals.pending() if one.id in text]
    return proposal, approval


# -- what is remembered


def test_many_proposals_do_not_evict_outcomes_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fates, "MAX_PROPOSALS", 10)
    known = ProposalOutcomes()
    known.store(proposed_call("mine"), EXECUTED)
    for number in range(50):
        known.store(proposed_call(f"e{number}", "eve"), NOT_EXECUTED if number % 2 else RECEIVED)
    assert known.get("mine") is not None
    assert len(known) == 10
    # Of eve's those that are over go first, and then the oldest.
    assert [id for id in range(50) if known.get(f"e{id}")] == [*range(34, 50, 2), 49]


@given(st.lists(st.tuples(
    st.sampled_from(["p1", "p2", "p3", "p4", "p5"]), st.sampled_from("ab"),
    st.sampled_from([RECEIVED, PENDING, EXECUTED, NOT_EXECUTED, "forget", "became"]),
    st.sampled_from(["", "x", "y"]),
), max_size=30))  # fmt: skip
def test_tables_stay_consistent(deeds: list[tuple[str, str, str, str]]) -> None:
    known = ProposalOutcomes()
    for id, by, what, approval in deeds:
        if what == "forget":
            known.remove(id)
        elif what == "became":
            known.set_state(approval, EXECUTED)
        else:
            known.store(proposed_call(id, by), what, approval)
        assert {one for own in known._ids_by_participant.values() for one in own} == set(
            known._outcomes
        )
        assert all(
            known._outcomes[one].participant == by
            for by, own in known._ids_by_participant.items()
            for one in own
        )
        with_approval = {id for id, fate in known._outcomes.items() if fate.approval}
        assert {one for some in known._by_approval.values() for one in some} == with_approval
        assert all(known._ids_by_participant.values())
        assert all(known._by_approval.values())


# -- in the room


async def test_executed_proposal_stays_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fates, "MAX_PROPOSALS", 20)

    table = NodeTopic(tmp_path)
    ada, bob = table.add_participant("ada", PROPOSES), table.add_participant("bob")
    eve = table.add_participant("eve", PROPOSES)
    proposal, approval = await propose_write(table, ada)
    await table.gated.confirm(approval)
    await propose_write(table, eve, {"path": "eve's"})
    for _ in range(30):
        await eve.chat(eve.propose("s.write_file", {"path": "eve's"}))
    answer = await bob.read_payload(bob.call("s.write_file", FILE, correlation_id=proposal))
    assert answer["error"]["code"] == ALREADY_DECIDED.code
    assert len(table.gated.upstream.started) == 1
    table.close()


@pytest.mark.parametrize("refused", [True, False])
async def test_keeps_outcome_after_approval_is_removed(refused: bool, tmp_path: Path) -> None:
    table = NodeTopic(tmp_path, approvals={"keep": 10.0})
    ada, bob = table.add_participant("ada", PROPOSES), table.add_participant("bob")
    proposal, approval = await propose_write(table, ada)
    approvals = table.gated.approvals
    if refused:
        await approvals.reject(approval.id, local=True, reason="no")
    else:
        await table.gated.confirm(approval)
    async with asyncio.timeout(HANG_TIMEOUT):
        while (entry := approvals._inbox.entries.get(approval.id)) is None or entry.writing:
            await run_ready_tasks(1)
    assert entry.record.collected
    table.gated.pass_time(11)
    await table.run_until_idle()
    assert approvals.find(approval.id) is None
    asked = bob.call("s.write_file", FILE, correlation_id=proposal)
    if refused:
        # Nobody made it here: whoever may can.
        (await table.gated.reached()).answer(**SEEN)
        assert (await bob.read_payload(asked))["result"] == SEEN
    else:
        assert (await bob.read_payload(asked))["error"]["code"] == ALREADY_DECIDED.code
    table.close()


async def test_other_room_shows_outcome(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path, default="deny", rules=[RuleConfig("ask", then="confirm")])
    ada = table.add_participant("ada", PROPOSES)
    there = table.add_participant("ada", PROPOSES, topic=OTHER)
    _, approval = await propose_write(table, ada)
    elsewhere = tool_call("s.write_file", FILE, credentials=ada.member.credentials)
    assert (await table.gated.hold(elsewhere)).id == approval.id
    await table.gated.confirm(approval)
    proposal = there.propose("s.write_file", FILE)
    assert "was not repeated" in await there.chat(proposal)
    await there.until(lambda: bool(there.list_messages("mcp/response:")))
    [fulfilment], [response] = (
        there.list_messages("mcp/request:"),
        there.list_messages("mcp/response:"),
    )
    assert fulfilment["correlation_id"] == proposal
    assert response["correlation_id"] == fulfilment["id"]
    assert len(table.gated.upstream.started) == 1
    table.close()


async def test_later_connection_gets_missed_outcome(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path, default="deny", rules=[RuleConfig("ask", then="confirm")])
    ada = table.add_participant("ada", PROPOSES)
    _, approval = await propose_write(table, ada)

    def elsewhere() -> Call:
        return tool_call("s.write_file", FILE, credentials=ada.member.credentials)

    assert (await table.gated.hold(elsewhere())).id == approval.id
    confirming = asyncio.ensure_future(
        table.gated.approvals.confirm(approval.id, table.gated.proof(approval))
    )
    exchange = await table.gated.reached()
    hangs_up = elsewhere()
    table.gated.start(hangs_up)
    table.gated.pipeline.cancel(hangs_up, "its client has gone")
    exchange.answer(**SEEN)
    await confirming
    assert await table.gated.ask(elsewhere()) == SEEN
    assert len(table.gated.upstream.started) == 1
    table.close()


# -- contracts


def contract_offering() -> Offering:
    name = "disk.wipe"
    return read_contract_offering(
        CONTRACTS, None, [definition(name)], {name: EffectLevel.IRREVERSIBLE},
        {name: ("disk-mcp@1.0.0 abc", "other@1 x")}, {name: "digest"}, None,
    )  # fmt: skip


async def test_shows_contract_context_and_sends_it(
    tmp_path: Path,
) -> None:
    table = NodeTopic(tmp_path, contract_offering())
    ada = table.add_participant("ada", PROPOSES)
    along = {CONTEXT: {"tenant": "blue"}, DRIVER: "other"}
    params = {
        "name": "disk.wipe",
        "arguments": {"disk": "a"},
        "_meta": {**along, "progressToken": 7},
    }
    proposal = ada.propose("disk.wipe", params=params)
    await ada.chat(proposal)
    [approval] = table.gated.approvals.pending()
    assert json.loads(approval.meta_shown) == along
    confirming = asyncio.ensure_future(
        table.gated.approvals.confirm(approval.id, table.gated.proof(approval))
    )
    upstream = table.gated.rig.upstreams[CONTRACTS]
    async with asyncio.timeout(HANG_TIMEOUT):
        while not upstream.started:
            await run_ready_tasks(1)
    sent = upstream.last.call.meta
    assert {name: json.loads(bytes(raw)) for name, raw in sent.items()} == along  # type: ignore[union-attr]
    upstream.last.answer(**SEEN)
    await confirming
    await ada.until(lambda: bool(ada.list_messages("mcp/response:")))
    [fulfilment] = ada.list_messages("mcp/request:")
    meta = fulfilment["payload"]["params"]["_meta"]
    assert meta.pop("interlock/approval")["by"] == "clerk"
    assert meta == along
    table.close()


# -- the identical proposal, while the first one waits


async def test_shown_call_gets_response_after_eviction(
    tmp_path: Path,
) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada", PROPOSES)
    _, approval = await propose_write(table, ada)
    again = ada.propose("s.write_file", FILE)
    await ada.chat(again)
    confirming = asyncio.ensure_future(
        table.gated.approvals.confirm(approval.id, table.gated.proof(approval))
    )
    exchange = await table.gated.reached()
    # As if others had proposed so much meanwhile.
    table.seat._proposals._outcomes.remove(again)
    exchange.answer(**SEEN)
    await confirming
    await ada.until(lambda: len(ada.list_messages("mcp/response:")) == 2)
    assert table.seat._proposals._identical_proposals == {}
    table.close()


@pytest.mark.parametrize("how", ["approved", "refused", "expired"])
async def test_repeated_proposal_gets_outcome(how: str, tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada = table.add_participant("ada", PROPOSES)
    first, approval = await propose_write(table, ada)
    again = ada.propose("s.write_file", FILE)
    assert "already pending" in await ada.chat(again)
    if how == "approved":
        await table.gated.confirm(approval)
        await ada.until(lambda: len(ada.list_messages("mcp/response:")) == 2)
        requests = {one["correlation_id"]: one["id"] for one in ada.list_messages("mcp/request:")}
        assert set(requests) == {first, again}
        answered = {one["correlation_id"] for one in ada.list_messages("mcp/response:")}
        assert answered == set(requests.values())
        assert len(table.gated.upstream.started) == 1
    else:
        if how == "refused":
            await table.gated.approvals.reject(approval.id, local=True, reason="no")
        else:
            table.gated.pass_time(approval.expires - approval.created + 1)
        for proposal in (first, again):
            assert "was not executed" in await ada.chat(proposal, 2)
        ended = [one["payload"].get("interlock/ended") for one in ada.list_messages("chat")]
        assert len([one for one in ended if one]) == 2
        assert table.gated.upstream.started == []
    assert table.seat._proposals._identical_proposals == {}
    table.close()
