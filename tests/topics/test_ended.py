"""How a proposer learns that its proposal comes to nothing, or that a human decides elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from interlock.errors import CONFIRMATION_REQUIRED, InterlockError
from interlock.protocol.mcpx.payloads import ENDED
from interlock.topics import Proposal
from tests.topics.places import Alone

KIND = "mcp/proposal:tools/call:x"
PAYLOAD = b'{"method":"tools/call","params":{"name":"x"}}'
PARAMS = {"name": "x"}


def proposing(
    test: Callable[[Alone, Proposal], Awaitable[None]], to: tuple[str, ...] = ("a",)
) -> None:
    async def main() -> None:
        alone = Alone()
        await test(alone, alone.place.propose(KIND, PAYLOAD, to))

    asyncio.run(main())


def ends(alone: Alone, sender: str, proposal: Proposal, how: str = "approval_refused") -> None:
    said = {"text": "The clerk refused it: not today", ENDED: how}
    alone.tell(sender, "chat", said, to=["me"], correlation_id=proposal.id)


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("approval_refused", "approval_refused"),
        ("confirmation_expired", "confirmation_expired"),
        ("some_other_word", "approval_refused"),
    ],
)
def test_whom_it_was_proposed_to_ends_it(how: str, name: str) -> None:
    async def test(alone: Alone, proposal: Proposal) -> None:
        ends(alone, "a", proposal, how)
        with pytest.raises(InterlockError, match="not today") as told:
            await proposal.outcome()
        assert told.value.failure.name == name
        assert told.value.data == {"participant": "a", "ended": how, "sent": False}
        tracked = alone.place.fulfilling.tracked[proposal.id]
        assert tracked.status == "rejected"
        assert "not today" in tracked.note

    proposing(test)


def test_nobody_else_ends_it() -> None:
    async def test(alone: Alone, proposal: Proposal) -> None:
        ends(alone, "b", proposal)
        assert not proposal.settled
        assert alone.place.fulfilling.tracked[proposal.id].status == "pending"
        # Nor do words alone.
        alone.tell("a", "chat", {"text": "no"}, correlation_id=proposal.id)
        assert not proposal.settled

    proposing(test)


@pytest.mark.parametrize("to", [(), ("a", "b")], ids=["all", "several"])
def test_one_of_several_does_not_end_it(to: tuple[str, ...]) -> None:
    async def test(alone: Alone, proposal: Proposal) -> None:
        ends(alone, "a", proposal)
        assert not proposal.settled
        assert alone.place.fulfilling.tracked[proposal.id].status == "pending"

    proposing(test, to)


def test_what_another_proposed_is_not_listed_any_more() -> None:
    alone = Alone()
    id = alone.propose("b", "x", to=["a"])
    said = {"text": "no", ENDED: "approval_refused"}
    alone.tell("a", "chat", said, to=["b"], correlation_id=id)
    assert alone.place.fulfilling.tracked[id].status == "rejected"


def test_a_fulfilment_that_a_human_decides_elsewhere_is_none() -> None:
    """Somebody fulfils it in the room, and the node says that it waits in the inbox."""

    async def test(alone: Alone, proposal: Proposal) -> None:
        asked = alone.request(
            "b", "tools/call", PARAMS, number=1, to=["a"], correlation_id=proposal.id
        )
        assert alone.place.fulfilling.tracked[proposal.id].status == "fulfilled"
        held = {"code": CONFIRMATION_REQUIRED.code, "message": "It waits in the inbox."}
        answer = {"jsonrpc": "2.0", "id": 1, "error": held}
        alone.tell("a", "mcp/response:tools/call:x", answer, to=["b"], correlation_id=asked)
        assert not proposal.settled
        assert alone.place.fulfilling.tracked[proposal.id].status == "pending"
        # Then a human approves it there, and the node makes it.
        made = alone.request(
            "a", "tools/call", PARAMS, number=2, to=["a"], correlation_id=proposal.id
        )
        result = {"jsonrpc": "2.0", "id": 2, "result": {"content": []}}
        alone.tell("a", "mcp/response:tools/call:x", result, to=["a", "me"], correlation_id=made)
        assert await proposal.outcome() == {"content": []}

    proposing(test)


def test_any_other_error_is_the_outcome() -> None:
    async def test(alone: Alone, proposal: Proposal) -> None:
        asked = alone.request(
            "b", "tools/call", PARAMS, number=1, to=["a"], correlation_id=proposal.id
        )
        answer = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": "broken"}}
        alone.tell("a", "mcp/response:tools/call:x", answer, to=["b"], correlation_id=asked)
        with pytest.raises(InterlockError, match="broken"):
            await proposal.outcome()

    proposing(test)
