"""How a proposer learns that its proposal comes to nothing, or that a human decides elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from interlock.errors import CONFIRMATION_REQUIRED, InterlockError
from interlock.topics.client import Proposal
from interlock.topics.client.proposals import MAX_FULFILMENTS
from interlock.topics.wire.payloads import END_REASON_MEMBER
from interlock.trust.approvals.response import REQUIRED, STATUS  # type: ignore[attr-defined]
from tests.topics.client.places import Alone

KIND = "mcp/proposal:tools/call:x"
PAYLOAD = b'{"method":"tools/call","params":{"name":"x"}}'
PARAMS = {"name": "x"}


@asynccontextmanager
async def open_proposal(to: tuple[str, ...] = ("a",)) -> AsyncIterator[tuple[Alone, Proposal]]:
    alone = Alone()
    yield alone, alone.place.propose(KIND, PAYLOAD, to)


def ends(alone: Alone, sender: str, proposal: Proposal, how: str = "approval_refused") -> None:
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
async def test_whom_it_was_proposed_to_ends_it(how: str, name: str) -> None:
    async with open_proposal() as (alone, proposal):
        ends(alone, "a", proposal, how)
        with pytest.raises(InterlockError, match="not today") as told:
            await proposal.outcome()
        assert told.value.failure.name == name
        assert told.value.data == {"participant": "a", "ended": how, "sent": False}
        tracked = alone.place.proposals.proposals[proposal.id]
        assert tracked.status == "rejected"
        assert "not today" in tracked.note


async def test_nobody_else_ends_it() -> None:
    async with open_proposal() as (alone, proposal):
        ends(alone, "b", proposal)
        assert not proposal.has_outcome
        assert alone.place.proposals.proposals[proposal.id].status == "pending"
        # Nor do words alone.
        alone.tell("a", "chat", {"text": "no"}, correlation_id=proposal.id)
        assert not proposal.has_outcome


@pytest.mark.parametrize("to", [(), ("a", "b")], ids=["all", "several"])
async def test_one_of_several_does_not_end_it(to: tuple[str, ...]) -> None:
    async with open_proposal(to) as (alone, proposal):
        ends(alone, "a", proposal)
        assert not proposal.has_outcome
        assert alone.place.proposals.proposals[proposal.id].status == "pending"


def test_what_another_proposed_is_not_listed_any_more() -> None:
    alone = Alone()
    id = alone.propose("b", "x", to=["a"])
    said = {"text": "no", END_REASON_MEMBER: "approval_refused"}
    alone.tell("a", "chat", said, to=["b"], correlation_id=id)
    assert alone.place.proposals.proposals[id].status == "rejected"


async def test_a_fulfilment_that_a_human_decides_elsewhere_is_none() -> None:
    """Somebody fulfils it in the room, and the node says that it waits in the inbox."""

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


async def test_any_other_error_is_the_outcome() -> None:
    async with open_proposal() as (alone, proposal):
        asked = alone.request(
            "b", "tools/call", PARAMS, number=1, to=["a"], correlation_id=proposal.id
        )
        answer = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": "broken"}}
        alone.tell("a", "mcp/response:tools/call:x", answer, to=["b"], correlation_id=asked)
        with pytest.raises(InterlockError, match="broken"):
            await proposal.outcome()


HELD = {"code": CONFIRMATION_REQUIRED.code, "message": "It waits in the inbox."}


def fulfilled(alone: Alone, proposal: Proposal, by: str, to: list[str]) -> str:
    return alone.request(by, "tools/call", PARAMS, number=1, to=to, correlation_id=proposal.id)


def answered(alone: Alone, sender: str, asked: str, **what: object) -> None:
    answer = {"jsonrpc": "2.0", "id": 1, **what}
    alone.tell(sender, "mcp/response:tools/call:x", answer, correlation_id=asked)


async def test_what_was_answered_once_is_not_held_later() -> None:
    async with open_proposal() as (alone, proposal):
        asked = fulfilled(alone, proposal, "b", ["a"])
        answered(alone, "a", asked, result={"content": []})
        answered(alone, "a", asked, error=HELD)
        assert alone.place.proposals.proposals[proposal.id].status == "fulfilled"


async def test_one_of_several_does_not_hold_it() -> None:
    async with open_proposal(("a", "b")) as (alone, proposal):
        asked = fulfilled(alone, proposal, "c", ["a", "b"])
        answered(alone, "b", asked, error=HELD)
        assert alone.place.proposals.proposals[proposal.id].status == "fulfilled"
        answered(alone, "a", asked, error=HELD)
        assert alone.place.proposals.proposals[proposal.id].status == "pending"


async def test_a_result_that_says_that_a_human_decides_is_no_outcome() -> None:
    """So a node answers a call that its rules stop."""

    async with open_proposal() as (alone, proposal):
        asked = fulfilled(alone, proposal, "b", ["a"])
        held = {
            "content": [{"type": "text", "text": "It was not called."}],
            "structuredContent": {"confirmation_id": "c-1"},
            "_meta": {STATUS: REQUIRED},
        }
        answered(alone, "a", asked, result=held)
        assert not proposal.has_outcome
        assert alone.place.proposals.proposals[proposal.id].status == "pending"


async def test_a_word_that_is_for_another_ends_nothing() -> None:
    """Somebody has the node say it, about an id that it took."""

    async with open_proposal() as (alone, proposal):
        said = {"text": "not taken", END_REASON_MEMBER: "approval_refused"}
        alone.tell("a", "chat", said, to=["b"], correlation_id=proposal.id)
        assert not proposal.has_outcome
        assert alone.place.proposals.proposals[proposal.id].status == "pending"


async def test_nobody_makes_the_fulfilment_of_another_be_forgotten() -> None:
    async with open_proposal() as (alone, proposal):
        asked = fulfilled(alone, proposal, "b", ["a"])
        own = alone.propose("c", "x", to=["c"])
        for _ in range(MAX_FULFILMENTS + 10):
            alone.request("c", "tools/call", PARAMS, to=["c"], correlation_id=own)
        answered(alone, "a", asked, result={"content": []})
        assert await proposal.outcome() == {"content": []}
