"""Tests of the end of a proposal by its recipient or by an approval elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from interlock.errors import CONFIRMATION_REQUIRED, InterlockError
from interlock.topics.client import Proposal
from interlock.topics.client.proposals import MAX_FULFILMENTS
from interlock.topics.wire.payloads import END_REASON_MEMBER
from interlock.trust.approvals.response import REQUIRED, STATUS  # type: ignore[attr-defined]
from tests.topics.client.offline_membership import OfflineMembership

KIND = "mcp/proposal:tools/call:x"
PAYLOAD = b'{"method":"tools/call","params":{"name":"x"}}'
PARAMS = {"name": "x"}


@asynccontextmanager
async def open_proposal(
    to: tuple[str, ...] = ("a",),
) -> AsyncIterator[tuple[OfflineMembership, Proposal]]:
    alone = OfflineMembership()
    yield alone, alone.place.propose(KIND, PAYLOAD, to)


def end_proposal(
    alone: OfflineMembership, sender: str, proposal: Proposal, how: str = "approval_refused"
) -> None:
    said = {"text": "The clerk refused it: not today", END_REASON_MEMBER: how}
    alone.tell(sender, "chat", said, to=["me"], correlation_id=proposal.id)


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("approval_refused", "approval_refused"),
        ("confirmation_expired", "confirmation_expired"),
        ("some_other_word", "approval_refused"),
    ],
)
async def test_recipient_ends_proposal(how: str, name: str) -> None:
    async with open_proposal() as (alone, proposal):
        end_proposal(alone, "a", proposal, how)
        with pytest.raises(InterlockError, match="not today") as told:
            await proposal.outcome()
        assert told.value.failure.name == name
        assert told.value.data == {"participant": "a", "ended": how, "sent": False}
        tracked = alone.place.proposals.proposals[proposal.id]
        assert tracked.status == "rejected"
        assert "not today" in tracked.note


async def test_other_participants_cannot_end_proposal() -> None:
    async with open_proposal() as (alone, proposal):
        end_proposal(alone, "b", proposal)
        assert not proposal.has_outcome
        assert alone.place.proposals.proposals[proposal.id].status == "pending"
        # Nor do words alone.
        alone.tell("a", "chat", {"text": "no"}, correlation_id=proposal.id)
        assert not proposal.has_outcome


@pytest.mark.parametrize("to", [(), ("a", "b")], ids=["all", "several"])
async def test_one_of_several_recipients_cannot_end_proposal(to: tuple[str, ...]) -> None:
    async with open_proposal(to) as (alone, proposal):
        end_proposal(alone, "a", proposal)
        assert not proposal.has_outcome
        assert alone.place.proposals.proposals[proposal.id].status == "pending"


def test_rejection_updates_proposals_of_others() -> None:
    alone = OfflineMembership()
    id = alone.propose("b", "x", to=["a"])
    said = {"text": "no", END_REASON_MEMBER: "approval_refused"}
    alone.tell("a", "chat", said, to=["b"], correlation_id=id)
    assert alone.place.proposals.proposals[id].status == "rejected"


async def test_pending_approval_is_no_outcome() -> None:
    async with open_proposal() as (alone, proposal):
        asked = alone.request(
            "b", "tools/call", PARAMS, number=1, to=["a"], correlation_id=proposal.id
        )
        assert alone.place.proposals.proposals[proposal.id].status == "fulfilled"
        held = {"code": CONFIRMATION_REQUIRED.code, "message": "It waits in the inbox."}
        answer = {"jsonrpc": "2.0", "id": 1, "error": held}
        alone.tell("a", "mcp/response:tools/call:x", answer, to=["b"], correlation_id=asked)
        assert not proposal.has_outcome
        assert alone.place.proposals.proposals[proposal.id].status == "pending"
        # Then a human approves it there, and the node makes it.
        made = alone.request(
            "a", "tools/call", PARAMS, number=2, to=["a"], correlation_id=proposal.id
        )
        result = {"jsonrpc": "2.0", "id": 2, "result": {"content": []}}
        alone.tell("a", "mcp/response:tools/call:x", result, to=["a", "me"], correlation_id=made)
        assert await proposal.outcome() == {"content": []}


async def test_other_error_is_outcome() -> None:
    async with open_proposal() as (alone, proposal):
        asked = alone.request(
            "b", "tools/call", PARAMS, number=1, to=["a"], correlation_id=proposal.id
        )
        answer = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": "broken"}}
        alone.tell("a", "mcp/response:tools/call:x", answer, to=["b"], correlation_id=asked)
        with pytest.raises(InterlockError, match="broken"):
            await proposal.outcome()


PENDING_ERROR = {"code": CONFIRMATION_REQUIRED.code, "message": "It waits in the inbox."}


def fulfil_proposal(alone: OfflineMembership, proposal: Proposal, by: str, to: list[str]) -> str:
    return alone.request(by, "tools/call", PARAMS, number=1, to=to, correlation_id=proposal.id)


def respond(alone: OfflineMembership, sender: str, asked: str, **what: object) -> None:
    answer = {"jsonrpc": "2.0", "id": 1, **what}
    alone.tell(sender, "mcp/response:tools/call:x", answer, correlation_id=asked)


async def test_late_pending_error_keeps_outcome() -> None:
    async with open_proposal() as (alone, proposal):
        asked = fulfil_proposal(alone, proposal, "b", ["a"])
        respond(alone, "a", asked, result={"content": []})
        respond(alone, "a", asked, error=PENDING_ERROR)
        assert alone.place.proposals.proposals[proposal.id].status == "fulfilled"


async def test_one_of_several_recipients_cannot_reset_fulfilment() -> None:
    async with open_proposal(("a", "b")) as (alone, proposal):
        asked = fulfil_proposal(alone, proposal, "c", ["a", "b"])
        respond(alone, "b", asked, error=PENDING_ERROR)
        assert alone.place.proposals.proposals[proposal.id].status == "fulfilled"
        respond(alone, "a", asked, error=PENDING_ERROR)
        assert alone.place.proposals.proposals[proposal.id].status == "pending"


async def test_pending_result_is_no_outcome() -> None:
    async with open_proposal() as (alone, proposal):
        asked = fulfil_proposal(alone, proposal, "b", ["a"])
        held = {
            "content": [{"type": "text", "text": "It was not called."}],
            "structuredContent": {"confirmation_id": "c-1"},
            "_meta": {STATUS: REQUIRED},
        }
        respond(alone, "a", asked, result=held)
        assert not proposal.has_outcome
        assert alone.place.proposals.proposals[proposal.id].status == "pending"


async def test_end_notice_to_other_participant_is_ignored() -> None:
    async with open_proposal() as (alone, proposal):
        said = {"text": "not taken", END_REASON_MEMBER: "approval_refused"}
        alone.tell("a", "chat", said, to=["b"], correlation_id=proposal.id)
        assert not proposal.has_outcome
        assert alone.place.proposals.proposals[proposal.id].status == "pending"


async def test_other_participants_cannot_evict_fulfilment() -> None:
    async with open_proposal() as (alone, proposal):
        asked = fulfil_proposal(alone, proposal, "b", ["a"])
        own = alone.propose("c", "x", to=["c"])
        for _ in range(MAX_FULFILMENTS + 10):
            alone.request("c", "tools/call", PARAMS, to=["c"], correlation_id=own)
        respond(alone, "a", asked, result={"content": []})
        assert await proposal.outcome() == {"content": []}
