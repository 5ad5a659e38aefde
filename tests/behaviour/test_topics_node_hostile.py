"""Contradicting kinds and reused ids, sent to the node in a topic over real sockets.

The gateway passes on what a kind may be, whatever is in it: it is the node that has to look.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.topic_office import NODE, PRESS, Office, propose_press, receive_fulfilment, rpc
from tests.support.command_line import CommandLine
from tests.topics.peers import Envelope, WebSocketParticipant

pytestmark = pytest.mark.feature("topics")

NOTE = {"name": "ledger.note", "arguments": {"text": "mine"}}
LOOK = {"name": "ledger.look", "arguments": {}}
CALL_NOTE = "mcp/request:tools/call:ledger.note"


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    world = CommandLine(tmp_path_factory.mktemp("office"))
    try:
        yield Office(world)
    finally:
        world.close()


@pytest.fixture
def new_office(tmp_path: Path) -> Iterator[Office]:
    """One whose inbox is empty."""
    world = CommandLine(tmp_path)
    try:
        yield Office(world)
    finally:
        world.close()


async def answer(peer: WebSocketParticipant, about: str) -> Envelope:
    """What the node says about a message."""
    message = await peer.until(lambda one: one.get("correlation_id") == about)
    assert message["from"] == NODE
    return message


@pytest.mark.spec("MX-4.3-2", "MX-4.3-5", "MX-7-1")
@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("mcp/request:tools/call:ledger.look", rpc("tools/call", NOTE)),
        ("mcp/request:tools/call:ledger", rpc("tools/call", NOTE)),
        ("mcp/request:tools/list", rpc("tools/call", NOTE)),
        ("mcp/request:resources/read:ledger.note", rpc("tools/call", NOTE)),
        ("mcp/request:tools/call:ledger.note", rpc("tools/list", NOTE)),
    ],
)
def test_contradicting_request_kind_calls_nothing(
    office: Office, kind: str, payload: dict[str, Any]
) -> None:
    before = office.pressed()

    async def run() -> None:
        async with office.everybody() as peers:
            orchestrator, human = peers["orchestrator"], peers["human"]
            lie = await orchestrator.say(kind, payload, to=[NODE])
            # The room has heard it: no gateway looks into a payload.
            assert (await human.until(lie))["payload"] == payload
            details = await answer(orchestrator, lie)
            assert details["kind"] == kind.replace("request", "response", 1)
            assert details["to"] == ["orchestrator"]
            assert details["payload"]["id"] == payload["id"]
            assert details["payload"]["error"]["code"] == -32600
            assert "kind" in details["payload"]["error"]["message"]
            # Whatever would have come of it has come by now: it is one after the other.
            look = await orchestrator.say(
                "mcp/request:tools/call:ledger.look", rpc("tools/call", LOOK, 2), to=[NODE]
            )
            response = await answer(orchestrator, look)
            assert response["payload"]["result"]["content"][0]["text"] == "look: done"

    asyncio.run(run())
    assert office.pressed() == before


def test_correct_request_kind_calls_tool(office: Office) -> None:
    """So that the lies fail for what they say, and for nothing else."""
    before = office.pressed()

    async def run() -> None:
        async with office.everybody() as peers:
            orchestrator = peers["orchestrator"]
            request = await orchestrator.say(CALL_NOTE, rpc("tools/call", NOTE), to=[NODE])
            response = await answer(orchestrator, request)
            assert response["payload"]["result"]["content"][0]["text"] == "note: done"

    asyncio.run(run())
    assert office.pressed() == [*before, ["note", {"text": "mine"}]]


@pytest.mark.spec("MX-4.3-2", "MX-4.3-5", "MX-7-1")
@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("mcp/proposal:tools/call:ledger.look", {"method": "tools/call", "params": PRESS}),
        ("mcp/proposal:tools/list", {"method": "tools/call", "params": PRESS}),
        ("mcp/proposal:tools/call:ledger.press", {"method": "tools/list", "params": PRESS}),
    ],
)
def test_contradicting_proposal_kind_is_ignored(
    office: Office, kind: str, payload: dict[str, Any]
) -> None:
    before = office.pressed()

    async def run() -> None:
        async with office.everybody() as peers:
            proposer, human = peers["proposer"], peers["human"]
            lie = await proposer.say(kind, payload, to=[NODE])
            assert (await human.until(lie))["payload"] == payload
            response = await answer(proposer, lie)
            assert (response["kind"], response["to"]) == ("chat", ["proposer"])
            assert response["payload"]["text"].startswith("Rejected:")
            assert "kind" in response["payload"]["text"]
            assert await asyncio.to_thread(office.waiting) == []

    asyncio.run(run())
    assert office.pressed() == before


def test_repeated_id_is_ignored(office: Office) -> None:
    """Not once more, not for something else, not by another, and not as a proposal."""
    before = office.pressed()

    async def run() -> None:
        async with office.everybody() as peers:
            orchestrator, proposer = peers["orchestrator"], peers["proposer"]
            request = await orchestrator.say(CALL_NOTE, rpc("tools/call", NOTE), to=[NODE])
            assert "result" in (await answer(orchestrator, request))["payload"]
            again = {"name": "ledger.note", "arguments": {"text": "again"}}
            for number, params in enumerate((NOTE, again), 2):
                await orchestrator.say(
                    CALL_NOTE, rpc("tools/call", params, number), to=[NODE], id=request
                )
                await expect_reuse_notice(orchestrator, request)
            await proposer.say(
                "mcp/proposal:tools/call:ledger.press",
                {"method": "tools/call", "params": PRESS},
                to=[NODE],
                id=request,
            )
            await expect_reuse_notice(proposer, request)
            assert await asyncio.to_thread(office.waiting) == []
            # Nobody was answered a second time: the tool does one after the other, this last.
            look = await orchestrator.say(
                "mcp/request:tools/call:ledger.look", rpc("tools/call", LOOK, 9), to=[NODE]
            )
            last = await answer(orchestrator, look)
            messages = await peers["human"].receive_until(last["id"])
            answers = [message for message in messages if message.get("correlation_id") == request]
            assert [response["payload"]["id"] for response in answers] == [1]

    asyncio.run(run())
    assert office.pressed() == [*before, ["note", {"text": "mine"}]]


def without_clock(approval: dict[str, Any]) -> dict[str, Any]:
    """An approval as it is listed, but for what changes while one looks at it."""
    return {key: approval[key] for key in approval.keys() - {"now", "seconds_left"}}


async def expect_reuse_notice(peer: WebSocketParticipant, id: str) -> None:
    """In words, and about no message: the answer to that id was given to whoever had it first."""
    message = await peer.until(lambda one: one["from"] == NODE and one.get("to") == [peer.id])
    assert message["kind"] == "chat"
    assert "correlation_id" not in message
    assert f"its id '{id}' was used before" in message["payload"]["text"]
    assert "needs a new id" in message["payload"]["text"]


def test_repeated_id_does_not_change_proposal(new_office: Office) -> None:
    """A human decides about what was proposed first, whatever has its id later."""
    office = new_office

    async def run() -> None:
        async with office.everybody() as peers:
            proposer, orchestrator = peers["proposer"], peers["orchestrator"]
            proposal, shown = await propose_press(office, peers)
            blue = {"name": "ledger.press", "arguments": {"button": "blue"}}
            await proposer.say(
                "mcp/proposal:tools/call:ledger.press",
                {"method": "tools/call", "params": blue},
                to=[NODE],
                id=proposal,
            )
            await expect_reuse_notice(proposer, proposal)
            await orchestrator.say(
                "mcp/request:tools/call:ledger.press",
                rpc("tools/call", blue),
                to=[NODE],
                id=proposal,
            )
            await expect_reuse_notice(orchestrator, proposal)
            [still] = await asyncio.to_thread(office.waiting)
            assert without_clock(still) == without_clock(shown)
            path = f"/approvals/{shown['id']}"
            code, _ = await asyncio.to_thread(office.ask, path, {"proof": office.proof(shown)})
            assert code == 200
            everybody_else = {name: peers[name] for name in ("human", "worker")}
            fulfilment, response = await receive_fulfilment(everybody_else, proposal)
            assert fulfilment["payload"]["params"]["arguments"] == {"button": "red"}
            assert response["to"] == [NODE, "proposer"]

    asyncio.run(run())
    assert office.pressed() == [["press", {"button": "red"}]]
    rows = office.journal()
    assert "blue" not in json.dumps([row for row in rows if row["verb"] == "proposal"])
    # Whoever used it again stands in the journal.
    actual = [row["caller"] for row in rows if row["verb"] == "topics/say"]
    assert actual == ["proposer", "orchestrator"]
