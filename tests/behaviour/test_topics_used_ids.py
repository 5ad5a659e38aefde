"""Reused ids, sent over real sockets to participants of the library.

The gateway remembers no ids: who receives a message has to. The node is another such receiver; what
it does with them is in `test_topics_node_hostile`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from interlock.topics.client import Events, Participant
from interlock.topics.wire.threads import MAX_MESSAGES
from tests.behaviour.topic_rooms import LIBRARIES, TOKENS, Joins, Place, Play, player, running_place
from tests.topics.client.two_gateways import wait_until
from tests.topics.peers import Envelope, WebSocketParticipant

pytestmark = [pytest.mark.feature("topics"), pytest.mark.timeout(1800)]

REQUEST = "mcp/request:tools/call:write"
RESPONSE = "mcp/response:tools/call:write"
PROPOSAL = "mcp/proposal:tools/call:write"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from running_place(tmp_path_factory.mktemp("topics"))


@pytest.fixture(params=LIBRARIES)
def play(request: pytest.FixtureRequest, place: Place) -> Play:
    return player(place, request.param)


def recording_participant(place: Place, topic: str, name: str, done: list[str]) -> Participant:
    """One who writes down what it is asked to."""
    one = Participant(place.url("").partition("?")[0], topic=topic, token=TOKENS[name])

    @one.tool()
    async def write(text: str) -> str:
        done.append(text)
        return text

    return one


def params(text: str) -> Envelope:
    return {"name": "write", "arguments": {"text": text}}


def call(text: str, number: int = 1) -> Envelope:
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params(text)}


def proposal_of(text: str) -> Envelope:
    return {"method": "tools/call", "params": params(text)}


async def wait_for_all(events: Events, *peers: WebSocketParticipant) -> None:
    """Until everything that they said so far was heard."""
    ends = {await peer.chat("end") for peer in peers}
    while ends:
        ends.discard((await anext(events)).id)


def test_repeated_request_id_is_ignored(place: Place, play: Play) -> None:
    """Not for the same once more, not for something else, and not for another."""

    async def test(join: Joins) -> None:
        topic, done, to = place.topic(), list[str](), ["worker"]
        worker = recording_participant(place, topic, "worker", done)
        async with worker.connected():
            events = worker.events()
            boss, other = await join(topic, "supervisor"), await join(topic, "administrator")
            request = await boss.say(REQUEST, call("first"), to=to)
            answer = await other.until(RESPONSE)
            assert (answer["to"], answer["correlation_id"]) == (["supervisor"], request)
            await boss.say(REQUEST, call("first"), to=to, id=request)
            await boss.say(REQUEST, call("second", 2), to=to, id=request)
            await other.say(REQUEST, call("third", 3), to=to, id=request)
            await wait_for_all(events, boss, other)
            assert worker.reputation == {"supervisor": 2, "administrator": 1}
            # With an id of its own it is done. Nothing else was answered in between.
            again = await other.say(REQUEST, call("again", 4), to=to)
            assert (await other.until(RESPONSE))["correlation_id"] == again
        assert done == ["first", "again"]

    play(test)


def test_id_of_running_request_is_not_reusable(place: Place, play: Play) -> None:
    """Who answers whom does not change while the tool works."""

    async def test(join: Joins) -> None:
        topic, done, go = place.topic(), list[str](), asyncio.Event()
        worker = recording_participant(place, topic, "worker", done)

        @worker.tool()
        async def wait() -> str:
            await go.wait()
            return "waited"

        kind = "mcp/request:tools/call:wait"
        payload: dict[str, Any] = {**call(""), "params": {"name": "wait"}}
        async with worker.connected():
            events = worker.events()
            boss, other = await join(topic, "supervisor"), await join(topic, "administrator")
            request = await boss.say(kind, payload, to=["worker"])
            await wait_until(events, lambda event: event.id == request)
            await other.say(REQUEST, call("mine", 7), to=["worker"], id=request)
            await wait_for_all(events, other)
            go.set()
            answer = await other.until(lambda one: one.get("correlation_id") == request)
            assert answer["to"] == ["supervisor"]
            assert answer["payload"]["id"] == 1
            assert answer["payload"]["result"]["content"][0]["text"] == "waited"
            assert worker.reputation == {"administrator": 1}
        assert done == []

    play(test)


def test_id_of_proposal_is_not_reusable(place: Place, play: Play) -> None:
    """Who approves by an id approves what it has seen, whatever was said under that id later."""

    async def test(join: Joins) -> None:
        topic, done = place.topic(), list[str]()
        boss = recording_participant(place, topic, "supervisor", done)
        async with boss.connected():
            events = boss.events()
            agent, other = await join(topic, "agent"), await join(topic, "administrator")
            worker = await join(topic, "worker")
            proposal = await agent.say(PROPOSAL, proposal_of("harmless"), to=["worker"])
            message = await wait_until(events, lambda event: event.id == proposal)
            tracked = boss.proposals[proposal]
            await agent.say(PROPOSAL, proposal_of("harmful"), to=["worker"], id=proposal)
            await agent.say(PROPOSAL, proposal_of("harmless"), to=["administrator"], id=proposal)
            await other.say(PROPOSAL, proposal_of("harmful"), to=["worker"], id=proposal)
            await other.say(REQUEST, call("harmful"), to=["supervisor"], id=proposal)
            await wait_for_all(events, agent, other, worker)
            assert boss.reputation == {"agent": 2, "administrator": 2}
            assert boss.proposals == {proposal: tracked}
            fulfilling = asyncio.create_task(boss.fulfil(message))
            request = await worker.until(
                lambda one: one["kind"] == REQUEST and one["from"] == "supervisor"
            )
            assert (request["correlation_id"], request["to"]) == (proposal, ["worker"])
            assert request["payload"]["params"] == params("harmless")
            result = {"jsonrpc": "2.0", "id": request["payload"]["id"], "result": {"content": []}}
            await worker.say(RESPONSE, result, correlation_id=request["id"])
            assert await fulfilling == {"content": []}
        assert done == []

    play(test)


def test_id_of_pending_proposal_is_never_forgotten(place: Place, play: Play) -> None:
    """Who talks until nobody remembers an id does not get it back while the proposal waits."""

    async def test(join: Joins) -> None:
        topic, done = place.topic(), list[str]()
        boss = recording_participant(place, topic, "supervisor", done)
        async with boss.connected():
            events = boss.events()
            agent, worker = await join(topic, "agent"), await join(topic, "worker")
            proposal = await agent.say(PROPOSAL, proposal_of("harmless"), to=["worker"])
            await wait_for_all(events, agent, worker)
            tracked = boss.proposals[proposal]
            for _ in range(MAX_MESSAGES // 200 + 1):
                for _ in range(200):
                    await agent.chat()
                await wait_for_all(events, agent)
            await agent.say(PROPOSAL, proposal_of("harmful"), to=["worker"], id=proposal)
            await wait_for_all(events, agent)
            assert boss.reputation == {"agent": 1}
            assert boss.proposals[proposal] == tracked
            fulfilling = asyncio.create_task(boss.fulfil(proposal))
            request = await worker.until(REQUEST)
            assert request["payload"]["params"] == params("harmless")
            fulfilling.cancel()
            await asyncio.wait([fulfilling])

    play(test)


def test_proposer_waits_for_own_proposal_only(place: Place, play: Play) -> None:
    """Somebody proposes something else under its id, and has that fulfilled: that is no outcome."""

    async def test(join: Joins) -> None:
        topic, done = place.topic(), list[str]()
        agent = recording_participant(place, topic, "agent", done)
        async with agent.connected():
            events = agent.events()
            boss, worker = await join(topic, "administrator"), await join(topic, "worker")
            while not {"administrator", "worker"} <= agent.participants.keys():
                await anext(events)
            proposal = await agent.propose("worker", "tools/call", params("mine"))
            await boss.until(proposal.id)
            await boss.say(PROPOSAL, proposal_of("theirs"), to=["worker"], id=proposal.id)
            await wait_for_all(events, boss)
            assert agent.reputation == {"administrator": 1}
            for text in ("theirs", "mine"):
                asked = await boss.say(
                    REQUEST, call(text, 5), to=["worker"], correlation_id=proposal.id
                )
                request = await worker.until(asked)
                said = request["payload"]["params"]["arguments"]["text"]
                content = [{"type": "text", "text": said}]
                result = {"jsonrpc": "2.0", "id": 5, "result": {"content": content}}
                to = ["administrator", "agent"]
                await worker.say(RESPONSE, result, to=to, correlation_id=asked)
            await wait_for_all(events, worker)
            outcome = await proposal.outcome()
            assert outcome["content"][0]["text"] == "mine"

    play(test)
