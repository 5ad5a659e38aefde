"""Tests of reused message ids and of gateway messages to others."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec.structs import replace

from interlock.protocol.mcpx_terms import MAX_ENVELOPE_BYTES
from interlock.topics.client import Proposal, SendError
from interlock.topics.wire.threads import MAX_MESSAGES
from tests.topics.client.offline_membership import GATEWAY, OfflineMembership
from tests.topics.client.test_membership import answer, send_request

# -- ids that come again when much was said in between


def send_chats(alone: OfflineMembership, much: int = MAX_MESSAGES + 1) -> None:
    for _ in range(much):
        alone.tell("b", "chat", {"text": "…"})


@pytest.mark.spec("MX-3.2.1-10", "MX-4.3-1")
def test_proposal_id_cannot_be_replaced() -> None:
    alone = OfflineMembership()
    shown = alone.propose("a", "pay", {"to": "the baker"}, id="p-1", to=["b"])
    send_chats(alone)
    alone.propose("a", "pay", {"to": "me"}, id="p-1", to=["b"])
    assert alone.dropped == {"a": 1}
    tracked = alone.place.proposals.proposals[shown]
    assert json.loads(bytes(tracked.params))["arguments"] == {"to": "the baker"}


@pytest.mark.spec("MX-3.2.1-10")
async def test_pending_request_id_cannot_be_reused() -> None:
    alone = OfflineMembership()
    asked = send_request(alone, "a")
    send_chats(alone)
    alone.request("b", "ping", id=asked.message.head.id, to=["a"])
    assert alone.dropped == {"b": 1}
    answer(alone, "a", asked)
    assert asked.done.done()


def test_fulfils_only_reviewed_proposal() -> None:
    alone = OfflineMembership()
    fulfilling = alone.place.proposals
    id = alone.propose("a", "pay", {"to": "the baker"})
    shown: Proposal = alone.events[-1].content
    before = fulfilling.proposals[id]
    # Even if it were forgotten, and came anew as something else.
    fulfilling._proposals._proposals.clear()
    alone.propose("a", "pay", {"to": "me"}, id="p-2")
    other = fulfilling.proposals["p-2"]
    fulfilling._proposals._proposals[id] = replace(other, proposalId=id)
    for looked_at in (shown, before):
        with pytest.raises(SendError, match="has changed"):
            fulfilling.get_fulfillable(id, "me", force=False, reviewed=looked_at)
    assert fulfilling.get_fulfillable("p-2", "me", force=False, reviewed=other) is other


# -- what the gateway says to others


@pytest.mark.spec("MX-6.4a-2")
@pytest.mark.parametrize("to", [[], ["b"]], ids=["to all", "to another"])
async def test_error_about_foreign_message_ends_nothing(to: list[str]) -> None:
    alone = OfflineMembership()
    asked = send_request(alone, "a")
    proposal = alone.place.propose(
        "mcp/proposal:tools/call:x", b'{"method":"tools/call","params":{"name":"x"}}', ["a"]
    )
    for id in (asked.message.head.id, proposal.id):
        error = {"error": "capability_violation", "message": "b lacks capability", "lost": 7}
        alone.tell(GATEWAY, "system/error", error, to=to, correlation_id=id)
    assert not asked.done.done()
    assert not proposal.has_outcome
    assert alone.place.proposals.proposals[proposal.id].status == "pending"
    assert alone.place.lost_messages == 0
    # It is shown all the same.
    assert [event.kind for event in alone.events] == ["system/error"] * 2
    answer(alone, "a", asked)
    assert asked.responses


@pytest.mark.spec("MX-8.2-5", "MX-7.1-5")
def test_counts_invalid_timestamps_against_sender() -> None:
    alone = OfflineMembership()
    alone.tell("a", "chat", {"text": "x"}, ts="yesterday")
    assert alone.dropped == {"a": 1}
    assert alone.events == []


async def test_waits_for_outcome_of_evicted_proposal() -> None:
    alone = OfflineMembership(lifetime=60.0)
    payload = b'{"method":"tools/call","params":{"name":"x"}}'
    proposal = alone.place.propose("mcp/proposal:tools/call:x", payload, ["a"])
    alone.place.proposals._proposals._proposals.clear()
    waiting = asyncio.ensure_future(proposal.outcome())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])


def test_welcome_may_exceed_message_limit() -> None:
    alone = OfflineMembership()
    many = [f"participant-{number:06}" for number in range(20_000)]
    alone.welcome(others=many)
    assert len(alone.place.participants) == 20_000
    alone.tell("a", "chat", {"text": "x" * MAX_ENVELOPE_BYTES})
    assert alone.dropped == {"a": 1}
