"""The participant's checklist (section 8.2 of MCPx v0.1): the library among foreign peers.

They meet at a real node. What that would not pass on is said by a gateway made by hand, which
passes on everything.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from interlock.errors import InterlockError
from interlock.topics.client import Chat, Event, Participant, Proposal, SendError
from tests.behaviour.topic_rooms import LIBRARIES, TOKENS, Joins, Place, Play, player, running_place
from tests.topics.client.small_gateway import HANG_TIMEOUT, SmallGateway, small_gateway
from tests.topics.client.two_gateways import wait_until
from tests.topics.peers import Envelope, WebSocketParticipant

pytestmark = [pytest.mark.feature("topics"), pytest.mark.timeout(1800)]

CALL_WRITE = "mcp/request:tools/call:write"
PARAMS = {"name": "write", "arguments": {"text": "hello"}}
PROPOSES = ("mcp/proposal:*", "mcp/response:*", "chat")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from running_place(tmp_path_factory.mktemp("topics"))


@pytest.fixture(params=LIBRARIES)
def play(request: pytest.FixtureRequest, place: Place) -> Play:
    return player(place, request.param)


class Clerk:
    """A participant that writes down what it is told to, and what it hears."""

    def __init__(self, participant: Participant) -> None:
        self.participant = participant
        self.written: list[str] = []
        self.heard: list[Event] = []
        participant.tool()(self.write)
        participant.tool()(self.fail)
        participant.on("*", self.heard.append)

    async def write(self, text: str) -> str:
        """Write it down."""
        self.written.append(text)
        return f"wrote {text}"

    async def fail(self) -> None:
        raise ZeroDivisionError("by accident")

    async def until(self, id: str) -> list[Event]:
        """What it heard before the message of this id, which somebody has said or will say."""
        events = self.participant.events()
        while id not in (known := [event.id for event in self.heard]):
            await anext(events)
        return self.heard[: known.index(id)]


def clerk(place: Place, topic: str, name: str = "worker") -> Clerk:
    url = place.url("").partition("?")[0]
    return Clerk(Participant(url, topic=topic, token=TOKENS[name], name="clerk"))


async def wait_for_participants(participant: Participant, *others: str) -> None:
    """Until it knows that they are there."""
    events = participant.events()
    while not set(others) <= participant.participants.keys():
        await anext(events)


def rpc(method: str = "tools/call", params: Any = None, id: Any = 1) -> Envelope:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


def result(request: Envelope, text: str = "done") -> Envelope:
    content = [{"type": "text", "text": text}]
    return {"jsonrpc": "2.0", "id": request["payload"]["id"], "result": {"content": content}}


async def ask(
    peer: WebSocketParticipant, kind: str, payload: Envelope, to: str = "worker"
) -> Envelope:
    """What is answered."""
    request = await peer.say(kind, payload, to=[to])
    return await peer.until(lambda one: one.get("correlation_id") == request)


# -- message validation


def invalid_envelopes() -> list[str]:
    """What is no envelope; what is in it is a call that would be done."""
    head = {"protocol": "mcpx/v0.1", "id": "b", "from": "boss", "to": ["worker"]}
    whole: Envelope = {**head, "kind": CALL_WRITE, "payload": rpc(params=PARAMS)}

    def without(member: str) -> str:
        return json.dumps({name: value for name, value in whole.items() if name != member})

    text = json.dumps(whole)
    return [
        *map(without, ("kind", "protocol", "id", "from", "payload")),
        json.dumps({**whole, "protocol": "mcpx/v0.2"}), json.dumps({**whole, "kind": 1}),
        json.dumps({**whole, "to": "worker"}), json.dumps({**whole, "ts": "yesterday"}),
        json.dumps({**whole, "payload": [whole["payload"]]}), json.dumps(whole["payload"]),
        f"[{text}]", text + text, text[:-1], text[:-1] + f',"kind":"{CALL_WRITE}"}}',
    ]  # fmt: skip


@pytest.mark.spec("MX-8.2-1")
@pytest.mark.parametrize("text", invalid_envelopes())
def test_malformed_envelope_is_ignored(text: str) -> None:
    async def test(made: SmallGateway) -> None:
        worker = Clerk(Participant(made.url, topic="room", token="t-worker"))
        async with worker.participant.connected():
            await made.tell("worker", text)
            await made.tell("worker", made.envelope("boss", "chat", {"text": "end"}, id="end"))
            assert [event.kind for event in await worker.until("end")] == []
            assert worker.participant.status.dropped_messages == 1
            # What is whole, of the same sender, is done.
            call = made.envelope("boss", CALL_WRITE, rpc(params=PARAMS), to=["worker"])
            await made.tell("worker", call)
            answer = await made.heard("mcp/response:tools/call:write")
            assert answer["correlation_id"] == call["id"]
        assert worker.written == ["hello"]
        assert len(made.said) == 1

    asyncio.run(run_with_gateway(test))


async def run_with_gateway(test: Any, **capabilities: tuple[str, ...]) -> None:
    async with asyncio.timeout(HANG_TIMEOUT), small_gateway(capabilities) as made:
        await test(made)


@pytest.mark.spec("MX-8.2-2", "MX-8.2-4", "MX-8.2-5")
def test_contradicting_method_is_ignored(place: Place, play: Play) -> None:
    lies = [
        ("mcp/request:tools/list", rpc(params=PARAMS)),
        ("mcp/request:prompts/get:write", rpc(params=PARAMS)),
        (CALL_WRITE, rpc("resources/read", {"uri": "write", **PARAMS})),
        ("mcp/proposal:tools/list", {"method": "tools/call", "params": PARAMS}),
    ]

    async def test(join: Joins) -> None:
        await assert_ignored(lies, place, join)

    play(test)


@pytest.mark.spec("MX-8.2-3", "MX-8.2-4", "MX-8.2-5")
def test_contradicting_tool_is_ignored(place: Place, play: Play) -> None:
    lies = [
        ("mcp/request:tools/call:fail", rpc(params=PARAMS)),
        ("mcp/request:tools/call:Write", rpc(params=PARAMS)),
        ("mcp/proposal:tools/call:fail", {"method": "tools/call", "params": PARAMS}),
    ]

    async def test(join: Joins) -> None:
        await assert_ignored(lies, place, join)

    play(test)


async def assert_ignored(lies: list[tuple[str, Envelope]], place: Place, join: Joins) -> None:
    topic = place.topic()
    worker = clerk(place, topic)
    async with worker.participant.connected():
        boss, observer = await join(topic, "supervisor"), await join(topic, "observer")
        ids = [await boss.say(kind, payload, to=["worker"]) for kind, payload in lies]
        end = await boss.chat("end")
        # The gateway has passed all of it on, and the participant has let nobody hear of it.
        heard = [
            item["id"] for item in await observer.receive_until(end) if item["from"] == "supervisor"
        ]
        assert heard == ids
        assert [event.id for event in await worker.until(end) if event.sender == boss.id] == []
        assert worker.participant.proposals == {}
        assert worker.participant.reputation == {"supervisor": len(lies)}
        # It answers what is true, and that alone.
        answer = await ask(boss, CALL_WRITE, rpc(params=PARAMS))
        assert answer["payload"]["result"]["content"][0]["text"] == "wrote hello"
        message = await observer.until("mcp/response:tools/call:write")
        assert message == answer
    assert worker.written == ["hello"]


@pytest.mark.spec("MX-8.2-4")
def test_invalid_response_is_ignored(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        boss = clerk(place, topic, "supervisor")
        async with boss.participant.connected():
            worker, agent = await join(topic, "worker"), await join(topic, "agent")
            await wait_for_participants(boss.participant, "worker", "agent")
            calling = asyncio.create_task(boss.participant.call("worker", "write", {"text": "x"}))
            request = await worker.until(CALL_WRITE)
            kind, about = "mcp/response:tools/call:write", {"correlation_id": request["id"]}
            lie = result(request, "a lie")
            await worker.say("mcp/response:tools/list", lie, **about)
            await worker.say("mcp/response:tools/call:other", lie, **about)
            await worker.say(kind, {**lie, "id": 4711}, **about)
            await worker.say(kind, request["payload"], **about)
            await worker.say(kind, lie)
            end = await worker.chat("end")
            assert [item.id for item in await boss.until(end) if item.sender == "worker"] == []
            # Who answers for another is found out as well.
            await agent.say(kind, lie, to=["supervisor"], **about)
            end = await agent.chat("end")
            assert [item.id for item in await boss.until(end) if item.sender == "agent"] == []
            assert boss.participant.reputation == {"worker": 5, "agent": 1}
            assert not calling.done()
            await worker.say(kind, result(request, "the truth"), **about)
            assert (await calling)["content"][0]["text"] == "the truth"

    play(test)


@pytest.mark.spec("MX-8.2-5")
def test_violations_are_counted_by_participant(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        worker = clerk(place, topic)
        async with worker.participant.connected():
            peers = [await join(topic, name) for name in ("supervisor", "administrator", "agent")]
            for times, peer in enumerate(peers):
                for _ in range(times):
                    await peer.say("chat", {"words": "none"}, to=["worker"])
                await worker.until(await peer.chat("end"))
            expected = {"administrator": 1, "agent": 2}
            assert worker.participant.reputation == expected
            assert worker.participant.status.reputation == expected
            assert worker.participant.status.dropped_messages == 3

    play(test)


# -- MCP integration


@pytest.mark.spec("MX-8.2-6")
def test_participant_is_mcp_server(place: Place, play: Play) -> None:
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "peer", "version": "1"},
    }

    async def test(join: Joins) -> None:
        topic = place.topic()
        async with clerk(place, topic).participant.connected():
            boss = await join(topic, "supervisor")
            answer = await ask(boss, "mcp/request:initialize", rpc("initialize", hello))
            assert answer["kind"] == "mcp/response:initialize"
            introduced = answer["payload"]["result"]
            assert introduced["protocolVersion"] == "2025-06-18"
            assert introduced["serverInfo"]["name"] == "clerk"
            assert "tools" in introduced["capabilities"]
            answer = await ask(boss, "mcp/request:tools/list", rpc("tools/list"))
            tools = {tool["name"]: tool for tool in answer["payload"]["result"]["tools"]}
            assert set(tools) == {"write", "fail"}
            assert tools["write"]["inputSchema"]["required"] == ["text"]
            answer = await ask(boss, "mcp/request:ping", rpc("ping"))
            assert answer["payload"] == {"jsonrpc": "2.0", "id": 1, "result": {}}

    play(test)


@pytest.mark.spec("MX-8.2-7")
def test_requests_reach_tools_and_responses_reach_caller(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        boss = clerk(place, topic, "supervisor")
        async with boss.participant.connected():
            worker, other = await join(topic, "worker"), await join(topic, "administrator")
            answer = await ask(other, CALL_WRITE, rpc(params=PARAMS), "supervisor")
            assert answer["kind"] == "mcp/response:tools/call:write"
            assert answer["payload"]["result"]["content"][0]["text"] == "wrote hello"
            assert boss.written == ["hello"]
            await wait_for_participants(boss.participant, "worker")
            asking = asyncio.create_task(boss.participant.request("worker", "tools/list"))
            request = await worker.until("mcp/request:tools/list")
            assert (request["from"], request["to"]) == ("supervisor", ["worker"])
            payload = {"jsonrpc": "2.0", "id": request["payload"]["id"], "result": {"tools": []}}
            await worker.say("mcp/response:tools/list", payload, correlation_id=request["id"])
            assert await asking == {"tools": []}

    play(test)


@pytest.mark.spec("MX-8.2-8", "MX-8.2-9")
def test_response_correlates_with_envelope(place: Place, play: Play) -> None:
    """And not the JSON-RPC id, which is that of the payload; errors too."""
    asked: list[tuple[str, Envelope, str]] = [
        (CALL_WRITE, rpc(params=PARAMS, id="rpc-1"), "result"),
        ("mcp/request:tools/call:fail", rpc(params={"name": "fail"}, id=2), "result"),
        (CALL_WRITE, rpc(params={"name": "write", "arguments": {"text": 1}}, id=3), "result"),
        ("mcp/request:tools/call:gone", rpc(params={"name": "gone"}, id=4), "error"),
        ("mcp/request:tasks/list", rpc("tasks/list", id="env-5"), "error"),
    ]

    async def test(join: Joins) -> None:
        topic = place.topic()
        async with clerk(place, topic).participant.connected():
            boss = await join(topic, "supervisor")
            for kind, payload, member in asked:
                id = await boss.say(kind, payload, to=["worker"])
                answer = await boss.until(lambda one: one["kind"].startswith("mcp/response:"))
                assert answer["kind"] == kind.replace("request", "response", 1)
                assert answer["correlation_id"] == id
                assert answer["to"] == ["supervisor"]
                assert answer["payload"]["id"] == payload["id"]
                assert member in answer["payload"]

    play(test)


# -- proposal handling


@pytest.mark.spec("MX-8.2-10")
def test_proposals_are_recognised(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        boss = clerk(place, topic, "supervisor").participant
        by_kind: list[str] = []
        by_type: list[Any] = []
        boss.on("mcp/proposal:*", lambda event: by_kind.append(event.id))
        boss.on(Proposal, lambda event: by_type.append(event.content))
        async with boss.connected():
            events = boss.events()
            agent = await join(topic, "agent")
            payload = {"method": "tools/call", "params": PARAMS}
            kind = "mcp/proposal:tools/call:write"
            proposal = await agent.say(kind, payload, to=["worker"])
            await agent.chat("end")
            await wait_until(events, lambda event: isinstance(event.content, Chat))
            assert by_kind == [proposal]
            [content] = by_type
            assert (content.id, content.proposer, content.to) == (proposal, "agent", ("worker",))
            assert (content.method, content.context) == ("tools/call", "write")
            assert json.loads(bytes(content.params)) == PARAMS
            tracked = boss.proposals[proposal]
            assert (tracked.status, tracked.target) == ("pending", "worker")

    play(test)


@pytest.mark.spec("MX-8.2-11", "MX-8.2-12")
def test_fulfilled_proposal_is_sent_to_target(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        boss = clerk(place, topic, "supervisor").participant
        async with boss.connected():
            events = boss.events()
            agent, worker = await join(topic, "agent"), await join(topic, "worker")
            await wait_for_participants(boss, "agent", "worker")
            payload = {"method": "tools/call", "params": PARAMS}
            proposal = await agent.say("mcp/proposal:tools/call:write", payload, to=["worker"])
            await wait_until(events, lambda event: event.id == proposal)
            fulfilling = asyncio.create_task(boss.fulfil(proposal))
            request = await worker.until(CALL_WRITE)
            assert (request["from"], request["to"]) == ("supervisor", ["worker"])
            assert request["correlation_id"] == proposal
            assert request["payload"]["method"] == "tools/call"
            assert request["payload"]["params"] == PARAMS
            answered = await worker.say(
                "mcp/response:tools/call:write",
                result(request),
                to=["supervisor", "agent"],
                correlation_id=request["id"],
            )
            assert (await fulfilling)["content"][0]["text"] == "done"
            # The proposer sees the same.
            message = await agent.until(CALL_WRITE)
            assert message == request
            assert (await agent.until(answered))["correlation_id"] == request["id"]
            with pytest.raises(SendError, match="fulfilled by supervisor"):
                await boss.fulfil(proposal)

    play(test)


# -- connection behaviour


@pytest.mark.spec("MX-8.2-13")
def test_welcome_sets_identity_and_capabilities(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        await join(topic, "administrator")
        agent = clerk(place, topic, "agent").participant
        assert (agent.id, agent.capabilities) == ("", ())
        async with agent.connected():
            events = agent.events()
            assert agent.id == "agent"
            assert agent.capabilities == ("mcp/proposal:*", "mcp/response:*", "chat")
            assert dict(agent.participants) == {"administrator": ("mcp/*", "chat")}
            assert agent.can_send("mcp/proposal:tools/call:write")
            assert not agent.can_send(CALL_WRITE)
            # A later welcome, when somebody gives it more.
            await place.change("agent", topic, add=["mcp/request:tools/*"], remove=[])
            await wait_until(events, lambda event: event.kind == "system/welcome")
            assert "mcp/request:tools/*" in agent.capabilities
            assert agent.can_send(CALL_WRITE)

    play(test)


@pytest.mark.spec("MX-8.2-14")
def test_presence_is_tracked(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        worker = clerk(place, topic).participant
        async with worker.connected():
            events = worker.events()
            assert dict(worker.participants) == {}
            agent = await join(topic, "agent")
            await wait_for_participants(worker, "agent")
            assert worker.participants["agent"] == tuple(agent.capabilities)
            boss = await join(topic, "supervisor")
            await wait_for_participants(worker, "supervisor")
            await agent.socket.close()
            await wait_until(
                events,
                lambda event: event.kind == "system/presence" and event.content.event == "leave",
            )
            assert dict(worker.participants) == {"supervisor": tuple(boss.capabilities)}

    play(test)


@pytest.mark.spec("MX-8.2-15")
def test_unpermitted_message_is_not_sent() -> None:
    """The gateway made by hand refuses nothing: what it heard is what was on the wire."""

    async def test(made: SmallGateway) -> None:
        agent = Participant(made.url, topic="room", token="t-agent")
        async with (
            Participant(made.url, topic="room", token="t-worker").connected(),
            agent.connected(),
        ):
            await wait_for_participants(agent, "worker")
            for sending in (
                agent.request("worker", "tools/list"),
                agent.request("worker", "tools/call", PARAMS),
                agent.send(CALL_WRITE, rpc(params=PARAMS), ["worker"]),
                agent.request_all("ping"),
                agent.send("system/error", {"error": "x", "message": "x"}),
            ):
                with pytest.raises(SendError) as error:
                    await sending
                assert isinstance(error.value, InterlockError)
            await agent.chat("the first")
            await made.heard("chat")
            assert [item["kind"] for item in made.said] == ["chat"]

    asyncio.run(run_with_gateway(test, agent=PROPOSES))
