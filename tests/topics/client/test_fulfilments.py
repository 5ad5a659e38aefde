"""Tests of the outcome of a proposal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.errors import InterlockError
from interlock.topics.client import Proposal, SendError
from interlock.topics.wire.threads import MAX_MESSAGES
from tests.topics.client.offline_membership import GATEWAY, OfflineMembership

PARAMS = {"name": "write", "arguments": {"path": "a"}}
PAYLOAD = b'{"method":"tools/call","params":{"name":"write","arguments":{"path":"a"}}}'


def run(test: Any) -> None:
    asyncio.run(test())


def propose(alone: OfflineMembership, *to: str) -> Proposal:
    return alone.place.propose("mcp/proposal:tools/call:write", PAYLOAD, to)


def fulfil(alone: OfflineMembership, proposal: str, sender: str = "a", **more: Any) -> str:
    params = more.pop("params", PARAMS)
    return alone.request(
        sender, "tools/call", params, number=44, correlation_id=proposal, **{"to": ["b"], **more}
    )


def answer(alone: OfflineMembership, request: str, sender: str = "b", tool: str = "write") -> None:
    payload = {"jsonrpc": "2.0", "id": 44, "result": {"by": sender}}
    kind = f"mcp/response:tools/call:{tool}"
    alone.tell(sender, kind, payload, correlation_id=request, to=["a", "me"])


@pytest.mark.spec("MX-3.2-2", "MX-3.2.1-2")
async def test_sends_proposal_unchanged() -> None:
    alone = OfflineMembership()
    propose(alone, "b")
    (said,) = alone.said
    assert said["payload"] == {"method": "tools/call", "params": PARAMS}
    assert "correlation_id" not in said
    with pytest.raises(SendError):
        alone.place.send("mcp/proposal:tools/call:write", PAYLOAD, ["b"], "e")


async def test_response_to_fulfilment_is_outcome() -> None:
    alone = OfflineMembership()
    proposal = propose(alone, "b")
    waiting = asyncio.ensure_future(proposal.outcome())
    await asyncio.sleep(0)
    request = fulfil(alone, proposal.id)
    answer(alone, request)
    assert await waiting == {"by": "b"}
    # Also for who asks later, and once only.
    answer(alone, fulfil(alone, proposal.id), sender="b")
    assert await proposal.outcome() == {"by": "b"}


@pytest.mark.spec("MX-7-1", "MX-3.2.1-5")
async def test_ignores_responses_that_are_no_outcome() -> None:
    alone = OfflineMembership(others=["a", "b", "thief"])
    proposal = propose(alone, "b")
    # An answer to the proposal itself, to a request that nobody saw, by somebody who was not
    # asked, to another call, and to one that went elsewhere than it was proposed.
    answer(alone, proposal.id)
    answer(alone, "unseen")
    answer(alone, fulfil(alone, proposal.id), sender="thief")
    other = fulfil(alone, proposal.id, "thief", params={"name": "read"})
    answer(alone, other, tool="read")
    elsewhere = fulfil(alone, proposal.id, "thief", to=["thief"])
    answer(alone, elsewhere, sender="thief")
    assert not proposal.has_outcome
    assert alone.dropped == {"b": 1, "thief": 1}


@pytest.mark.spec("MX-7-1")
@pytest.mark.parametrize("amount", [5, 5_000])
async def test_foreign_fulfilment_is_no_outcome(amount: int) -> None:
    alone = OfflineMembership(others=["a", "b", "mallory"])
    proposal = propose(alone, "b")
    params = PARAMS if amount == 5 else {**PARAMS, "arguments": {"path": "elsewhere"}}
    forged = fulfil(alone, proposal.id, "mallory", to=["b", "mallory"], params=params)
    answer(alone, forged, sender="mallory")
    assert not proposal.has_outcome
    # The one who was meant answers the same as anybody would get.
    answer(alone, fulfil(alone, proposal.id), sender="b")
    assert await proposal.outcome() == {"by": "b"}


@pytest.mark.spec("MX-3.2.1-10")
async def test_changed_arguments_are_reported() -> None:
    alone = OfflineMembership()
    proposal = propose(alone, "b")
    waiting = asyncio.ensure_future(proposal.outcome())
    asking = asyncio.ensure_future(proposal.outcome(is_changed=True))
    await asyncio.sleep(0)
    other = {**PARAMS, "arguments": {"path": "elsewhere"}}
    # However often: what is noted of each has its limit, and this has not.
    for _ in range(150):
        answer(alone, fulfil(alone, proposal.id, params=other))
    with pytest.raises(InterlockError, match="other arguments") as caught:
        await waiting
    assert caught.value.data == {"changed": True, "sent": True}
    assert await asking == {"by": "b"}
    # What was proposed may still be done, and is the outcome then.
    request = fulfil(alone, proposal.id)
    payload = {"jsonrpc": "2.0", "id": 44, "result": {"as": "proposed"}}
    alone.tell("b", "mcp/response:tools/call:write", payload, correlation_id=request)
    assert await proposal.outcome() == {"as": "proposed"}
    assert await proposal.outcome(is_changed=True) == {"as": "proposed"}


async def test_recipient_may_delegate_fulfilment() -> None:
    alone = OfflineMembership(others=["a", "b", "boss"])
    proposal = propose(alone, "boss")
    answer(alone, fulfil(alone, proposal.id, "a", to=["b"]))
    assert not proposal.has_outcome
    answer(alone, fulfil(alone, proposal.id, "boss", to=["b"]))
    assert await proposal.outcome() == {"by": "b"}


async def test_remembers_fulfilment_after_many_messages() -> None:
    alone = OfflineMembership()
    proposal = propose(alone, "b")
    request = fulfil(alone, proposal.id)
    for number in range(MAX_MESSAGES):
        alone.tell("a", "chat", {"text": str(number)})
    answer(alone, request, tool="read")
    answer(alone, request, sender="a")
    assert alone.events[-1].verified is None
    assert not proposal.has_outcome
    answer(alone, request)
    assert await proposal.outcome() == {"by": "b"}


async def test_chat_does_not_end_proposal() -> None:
    alone = OfflineMembership()
    proposal = propose(alone, "b")
    alone.tell("a", "chat", {"text": "I did it."}, correlation_id=proposal.id)
    assert not proposal.has_outcome
    assert alone.place.proposals.proposals[proposal.id].note == "a: I did it."


async def test_gateway_error_ends_proposal() -> None:
    alone = OfflineMembership()
    proposal = propose(alone, "b")
    error = {"error": "capability_violation", "message": "You lack it."}
    alone.tell(GATEWAY, "system/error", error, to=["me"], correlation_id=proposal.id)
    with pytest.raises(InterlockError, match="You lack it"):
        await proposal.outcome()
    assert alone.place.proposals.proposals[proposal.id].status == "rejected"


async def test_error_response_is_outcome() -> None:
    alone = OfflineMembership()
    proposal = propose(alone, "b")
    request = fulfil(alone, proposal.id)
    payload = {"jsonrpc": "2.0", "id": 44, "error": {"code": 1, "message": "no"}}
    alone.tell("b", "mcp/response:tools/call:write", payload, correlation_id=request)
    with pytest.raises(InterlockError, match="b: no"):
        await proposal.outcome()


@pytest.mark.spec("MX-10.2-2", "MX-10.2-3")
def test_proposal_expires_after_five_minutes() -> None:
    alone = OfflineMembership()
    id = alone.propose("a", "write")
    alone.time += 299
    assert alone.place.proposals.proposals[id].status == "pending"
    assert alone.place.proposals.get_fulfillable(id, "me", force=False)
    alone.time += 1
    assert alone.place.proposals.proposals[id].status == "expired"
    with pytest.raises(SendError, match="expired") as caught:
        alone.place.proposals.get_fulfillable(id, "me", force=False)
    assert caught.value.failure.name == "confirmation_expired"
    assert alone.place.proposals.get_fulfillable(id, "me", force=True)
    assert alone.said == []


async def test_waiting_ends_when_proposal_expires() -> None:
    alone = OfflineMembership()
    proposal = propose(alone, "b")
    fulfil(alone, proposal.id)
    alone.time += 1_000
    with pytest.raises(InterlockError, match="fulfilled but got no response"):
        await proposal.outcome()


async def test_repr_names_call_and_proposer() -> None:
    proposal = propose(OfflineMembership(), "b")
    assert repr(proposal) == "Proposal('me-1', 'tools/call write' by 'me')"
