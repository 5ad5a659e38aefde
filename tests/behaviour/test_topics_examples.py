"""The examples 9.1 to 9.4 of MCPx v0.1, and what the draft wants topics for, on a real node with
participants that are not ours. 9.4 with a human's inbox is in `test_topics_node`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.topics.client import Participant
from tests.behaviour.topic_rooms import (
    LIBRARIES,
    MIXED,
    TOKENS,
    JoinRejected,
    Joins,
    Place,
    Play,
    player,
    running_place,
)
from tests.topics.peers import WebSocketParticipant

pytestmark = [pytest.mark.feature("topics"), pytest.mark.timeout(1800)]

CONTEXT = "dangerous_operation"
PARAMS = {"name": CONTEXT, "arguments": {"target": "production"}}
REQUEST = f"mcp/request:tools/call:{CONTEXT}"
RESPONSE = f"mcp/response:tools/call:{CONTEXT}"
PROPOSAL = f"mcp/proposal:tools/call:{CONTEXT}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from running_place(tmp_path_factory.mktemp("topics"))


@pytest.fixture(params=LIBRARIES)
def play(request: pytest.FixtureRequest, place: Place) -> Play:
    return player(place, request.param)


def call(id: int = 44) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": PARAMS}


def result(id: int = 44) -> dict[str, Any]:
    content = [{"type": "text", "text": "Operation completed"}]
    return {"jsonrpc": "2.0", "id": id, "result": {"content": content}}


async def proposed_by(agent: WebSocketParticipant) -> str:
    return await agent.say(PROPOSAL, {"method": "tools/call", "params": PARAMS}, to=["worker"])


@pytest.mark.spec("MX-9.1-1")
@pytest.mark.spec("MX-1-1")
@pytest.mark.spec("MX-2.1-3")
def test_proposal_workflow_completes(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        worker = await join(topic, "worker")
        human = await join(topic, "supervisor")
        observer = await join(topic, "observer")
        # 1. The agent may propose.
        agent = await join(topic, "agent")
        assert agent.capabilities == ["mcp/proposal:*", "mcp/response:*", "chat"]
        # 2. What it asks for directly is blocked.
        direct = await agent.say(REQUEST, call(), to=["worker"])
        error = await agent.read_rejection(direct)
        assert error["error"] == "capability_violation"
        assert error["attempted_kind"] == REQUEST
        # 3. What it proposes, everybody sees; nobody has seen the request.
        proposal = await proposed_by(agent)
        for peer in (worker, human, observer):
            messages = await peer.receive_until(proposal)
            assert direct not in [item["id"] for item in messages]
        # 4. and 5. One who may makes the real call, which names the proposal.
        fulfilment = await human.say(REQUEST, call(), to=["worker"], correlation_id=proposal)
        request = await worker.until(fulfilment)
        assert (request["from"], request["correlation_id"]) == ("supervisor", proposal)
        assert request["payload"]["params"] == PARAMS
        # 6. The target does it, and answers both.
        answer = await worker.say(
            RESPONSE, result(), to=["supervisor", "agent"], correlation_id=fulfilment
        )
        for peer in (human, agent, observer):
            response = await peer.until(answer)
            assert response["correlation_id"] == fulfilment
            assert response["payload"] == result()

    play(test)


@pytest.mark.spec("MX-7-2")
@pytest.mark.spec("MX-2.1-3")
def test_four_pillars_hold(place: Place, play: Play) -> None:
    """Capabilities, a gateway that looks at kinds alone, receivers that look at all of it, and a
    namespace that is the gateway's."""
    done: list[str] = []

    async def test(join: Joins) -> None:
        topic = place.topic()
        target = Participant(
            place.url("").partition("?")[0], topic=topic, token=TOKENS["worker"], name="target"
        )

        @target.tool()
        def safe() -> str:
            done.append("safe")
            return "done"

        @target.tool()
        def dangerous() -> str:
            done.append("dangerous")
            return "done"

        async with target.connected():
            human, agent = await join(topic, "supervisor"), await join(topic, "agent")
            request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
            call_of = {
                name: {**request, "params": {"name": name, "arguments": {}}}
                for name in ("safe", "dangerous")
            }
            kind = "mcp/request:tools/call:safe"
            # What one has no capability for goes nowhere.
            blocked = await agent.say(kind, call_of["safe"], to=["worker"])
            assert (await agent.read_rejection(blocked))["error"] == "capability_violation"
            # The gateway passes on what lies about its payload; the receiver does not believe it.
            lie = await human.say(kind, call_of["dangerous"], to=["worker"])
            assert (await agent.until(lie))["payload"] == call_of["dangerous"]
            # Nobody speaks as the gateway, not even one who may say anything.
            answer = await place.change("supervisor", topic, add=["*"], remove=[])
            assert "*" in answer.json()["newCapabilities"]
            for kind_of_gateways in ("system/error", "system/presence"):
                forged = await human.say(kind_of_gateways, {"error": "x", "message": "x"})
                assert "reserved" in (await human.read_rejection(forged))["message"]
            messages = await agent.receive_until(await human.say("anything", {}))
            kinds = [item["kind"] for item in messages if item["from"] == "supervisor"]
            assert not [kind for kind in kinds if kind.startswith("system/")]
            # And what is what it says is done.
            asked = await human.say(kind, call_of["safe"], to=["worker"])
            answer = await human.until(lambda one: one.get("correlation_id") == asked)
            assert answer["kind"] == "mcp/response:tools/call:safe"
            assert target.reputation["supervisor"] >= 1
        assert done == ["safe"]
        done.clear()

    play(test)


@pytest.mark.spec("MX-9.2-1")
@pytest.mark.spec("MX-7.1-4")
@pytest.mark.spec("MX-5.1-1")
def test_capabilities_can_be_granted(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        worker, agent = await join(topic, "worker"), await join(topic, "newcomer")
        blocked = await agent.say(REQUEST, call(), to=["worker"])
        assert (await agent.read_rejection(blocked))["error"] == "capability_violation"
        answer = await place.change("newcomer", topic, add=["mcp/request:tools/*"], remove=[])
        assert answer.status_code == 200
        # The same call, on the same connection.
        welcome = await agent.until("system/welcome")
        granted = welcome["payload"]["you"]["capabilities"]
        assert granted == answer.json()["newCapabilities"]
        passed = await agent.say(REQUEST, call(), to=["worker"])
        messages = await worker.receive_until(passed)
        assert blocked not in [item["id"] for item in messages]
        # Only by somebody who may, and not by oneself.
        for by in ("newcomer", "supervisor"):
            answer = await place.change("newcomer", topic, by=by, add=["mcp/*"])
            assert answer.status_code == 403

    play(test)


@pytest.mark.spec("MX-9.3-1")
@pytest.mark.spec("MX-5.1-1")
def test_participants_have_different_capabilities(place: Place, play: Play) -> None:
    """Each with exactly what the example gives it, and so not even with chat."""
    kinds = {
        "request": "mcp/request:tools/call:x",
        "read": "mcp/request:resources/read:file:///a",
        "list": "mcp/request:tools/list",
        "response": "mcp/response:tools/call:x",
        "proposal": "mcp/proposal:tools/call:x",
        "chat": "chat",
    }
    granted = {
        "administrator": ["request", "read", "list", "response", "proposal"],
        "worker": ["response"],
        "newcomer": ["proposal"],
        "monitor": ["list"],
    }

    async def test(join: Joins) -> None:
        topic = place.topic("mixed")
        peers = {name: await join(topic, name) for name in granted}
        observer = await join(topic, "observer")
        for name, peer in peers.items():
            assert peer.capabilities == MIXED[name]
            actual = {await peer.say(kind): word for word, kind in kinds.items()}
            end = await peer.say(kinds[granted[name][0]])
            messages = await observer.receive_until(end)
            assert [
                actual[message["id"]] for message in messages if message["from"] == name
            ] == granted[name]
            for id, word in actual.items():
                if word not in granted[name]:
                    error = await peer.read_rejection(id)
                    assert error["error"] == "capability_violation"
                    assert error["your_capabilities"] == MIXED[name]

    play(test)


@pytest.mark.spec("MX-9.4-1")
def test_approved_proposal_is_fulfilled_by_orchestrator(
    place: Place, play: Play, tmp_path: Path
) -> None:
    """The worker is a program of the library's, with a tool that writes files."""
    target = tmp_path / "report.txt"
    params = {"name": "write_file", "arguments": {"path": str(target), "text": "done\n"}}
    request = {"jsonrpc": "2.0", "id": 44, "method": "tools/call", "params": params}
    kind = "mcp/request:tools/call:write_file"

    async def test(join: Joins) -> None:
        topic = place.topic("delegated")
        url = place.url("").partition("?")[0]
        worker = Participant(url, topic=topic, token=TOKENS["worker"], name="worker")

        @worker.tool()
        def write_file(path: str, text: str) -> str:
            # Done twice, it shows.
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(text)
            return f"wrote {len(text)} characters"

        async with worker.connected():
            proposer, human = await join(topic, "agent"), await join(topic, "supervisor")
            orchestrator = await join(topic, "administrator")
            # It may not do it itself, nor may the human.
            for peer in (proposer, human):
                tried = await peer.say(kind, request, to=["worker"])
                assert (await peer.read_rejection(tried))["error"] == "capability_violation"
            proposal = await proposer.say(
                "mcp/proposal:tools/call:write_file",
                {"method": "tools/call", "params": params},
                to=["worker"],
            )
            message = await human.until(proposal)
            assert (message["from"], message["payload"]["params"]) == ("agent", params)
            known = await orchestrator.until(proposal)
            directed = await human.chat(f"fulfil {message['id']}", to=["administrator"])
            await orchestrator.until(directed)
            # Until the human has said so, nothing was done.
            assert not target.exists()
            fulfilment = await orchestrator.say(
                kind,
                {**request, "params": known["payload"]["params"]},
                to=["worker"],
                correlation_id=proposal,
            )
            answers = [
                await peer.until(lambda one: one.get("correlation_id") == fulfilment)
                for peer in (proposer, human, orchestrator)
            ]
            assert answers[0] == answers[1] == answers[2]
            [answer, *_] = answers
            assert answer["from"] == "worker"
            assert answer["to"] == ["administrator", "agent"]
            assert answer["payload"]["id"] == 44
            assert answer["payload"]["result"]["content"][0]["text"] == "wrote 5 characters"
            assert worker.proposals[proposal].fulfilled_by == "administrator"
        assert target.read_text() == "done\n"

    play(test)


@pytest.mark.spec("MX-2.1-1")
def test_several_operators_supervise_agent(place: Place, play: Play) -> None:
    """Both see what it proposes, and either may fulfil it."""

    async def test(join: Joins) -> None:
        topic = place.topic()
        people = [await join(topic, "administrator"), await join(topic, "supervisor")]
        agent, worker = await join(topic, "agent"), await join(topic, "worker")
        for item, other in (people, reversed(people)):
            proposal = await proposed_by(agent)
            assert (await item.until(proposal))["from"] == "agent"
            assert (await other.until(proposal))["from"] == "agent"
            fulfilment = await item.say(REQUEST, call(), to=["worker"], correlation_id=proposal)
            assert (await worker.until(fulfilment))["from"] == item.id
            # The other sees that it is done.
            assert (await other.until(fulfilment))["correlation_id"] == proposal

    play(test)


@pytest.mark.spec("MX-7.1-1")
def test_new_participants_have_default_capabilities(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        # Whoever is known, where nobody said what it may; and who is not.
        for topic, who in ((place.topic("house"), "agent"), (place.topic("open"), None)):
            peer = await join(topic, who)
            assert peer.capabilities == ["mcp/proposal:*", "chat"]

    play(test)


@pytest.mark.spec("MX-5.1-1")
def test_topic_access_is_enforced(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        admitted = {
            "open": {"administrator": True, "agent": True, None: True},
            "house": {"administrator": True, "agent": True, None: False},
            "closed": {"administrator": True, "agent": False, None: False},
        }
        for kind, callers in admitted.items():
            topic = place.topic(kind)
            for who, may in callers.items():
                if may:
                    peer = await join(topic, who)
                    assert peer.id == who or (who is None and peer.id.startswith("guest-"))
                else:
                    with pytest.raises(JoinRejected) as error:
                        await join(topic, who)
                    assert error.value.status == (401 if who is None else 403)

    play(test)
