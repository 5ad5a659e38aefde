"""The gateway's checklist (section 8.1 of MCPx v0.1), on a real node with participants that are not
ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.behaviour.topic_rooms import (
    LIBRARIES,
    JoinRejected,
    Joins,
    Place,
    Play,
    is_now,
    player,
    running_place,
)
from tests.topics.peers import WebSocketParticipant

pytestmark = [pytest.mark.feature("topics"), pytest.mark.timeout(1800)]

CALL = "mcp/request:tools/call"
REQUEST = {
    "jsonrpc": "2.0",
    "id": 42,
    "method": "tools/call",
    "params": {"name": "dangerous_operation", "arguments": {"target": "production"}},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from running_place(tmp_path_factory.mktemp("topics"))


@pytest.fixture(params=LIBRARIES)
def play(request: pytest.FixtureRequest, place: Place) -> Play:
    return player(place, request.param)


# -- connection management


@pytest.mark.spec("MX-8.1-1")
@pytest.mark.spec("MX-8.1-2")
@pytest.mark.spec("MX-8.1-3")
@pytest.mark.spec("MX-8.1-4")
def test_participants_connect(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        agent = await join(topic, "agent")
        assert agent.id == "agent"
        for who, status in (("nobody-knows-this", 401), (None, 401)):
            with pytest.raises(JoinRejected) as error:
                await join(topic, who)
            assert error.value.status == status
        with pytest.raises(JoinRejected) as error:
            await join(place.topic("closed"), "agent")
        assert error.value.status == 403
        with pytest.raises(JoinRejected) as error:
            await join("", "agent")
        assert error.value.status == 400
        # There is a state for each, until it leaves.
        worker = await join(topic, "worker")
        others = [participant["id"] for participant in worker.welcome["payload"]["participants"]]
        assert others == ["agent"]
        await agent.socket.close()
        await worker.until(lambda one: one["payload"].get("event") == "leave")
        monitor = await join(topic, "monitor")
        others = [participant["id"] for participant in monitor.welcome["payload"]["participants"]]
        assert others == ["worker"]

    play(test)


# -- capability enforcement


@pytest.mark.spec("MX-8.1-5")
@pytest.mark.spec("MX-8.1-6")
@pytest.mark.spec("MX-8.1-7")
@pytest.mark.spec("MX-8.1-8")
def test_capabilities_are_enforced(place: Place, play: Play) -> None:
    granted = {
        "administrator": [CALL, "mcp/response:tools/call", "mcp/proposal:tools/call", "chat"],
        "worker": ["mcp/response:tools/call", "mcp/response:resources/read:file:///a", "chat"],
        "agent": ["mcp/proposal:tools/call", "mcp/response:tools/list", "chat"],
        "monitor": ["mcp/request:tools/list", "mcp/request:resources/read", "chat"],
        "newcomer": ["mcp/proposal:tools/call:x", "chat"],
    }
    refused = {
        "administrator": ["x/other", "chats", "mcp"],
        "worker": [CALL, "mcp/proposal:tools/call", "chat/x"],
        "agent": [CALL, "mcp/request:tools/list", "mcp/request:tools/call:safe"],
        "monitor": [CALL, "mcp/request:resources/subscribe", "mcp/proposal:tools/call"],
        "newcomer": [CALL, "mcp/response:tools/call", "MCP/proposal:tools/call"],
    }

    async def test(join: Joins) -> None:
        topic = place.topic()
        observer = await join(topic, "observer")
        for name, kinds in granted.items():
            peer = await join(topic, name)
            passed = [await peer.say(kind) for kind in kinds]
            blocked = {await peer.say(kind): kind for kind in refused[name]}
            marker = await peer.chat("end")
            heard = [item for item in await observer.receive_until(marker) if item["from"] == name]
            assert [message["id"] for message in heard] == passed
            for id, kind in blocked.items():
                error = await peer.read_rejection(id)
                assert error["error"] == "capability_violation"
                assert error["attempted_kind"] == kind
                assert error["your_capabilities"] == peer.capabilities

    play(test)


@pytest.mark.spec("MX-6.2a-4")
def test_rate_limit_checks_every_message(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        agent, observer = await join(topic, "agent"), await join(topic, "observer")
        for _ in range(999):
            await agent.chat()
        blocked = await agent.say(CALL, REQUEST)
        assert (await agent.read_rejection(blocked))["error"] == "capability_violation"
        marker = await agent.chat("end")
        heard = [item for item in await observer.receive_until(marker) if item["from"] == "agent"]
        assert [message["kind"] for message in heard] == ["chat"] * 999

    play(test)


# -- system messages


@pytest.mark.spec("MX-8.1-9")
@pytest.mark.spec("MX-8.1-10")
def test_welcome_and_presence_are_sent(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        supervisor = await join(topic, "supervisor")
        agent = await join(topic, "agent")
        assert agent.welcome["protocol"] == "mcpx/v0.1"
        assert agent.welcome["from"] == "system:gateway"
        assert agent.welcome["payload"] == {
            "you": {"id": "agent", "capabilities": ["mcp/proposal:*", "mcp/response:*", "chat"]},
            "participants": [{"id": "supervisor", "capabilities": ["mcp/*", "chat"]}],
        }
        came = await supervisor.until(
            lambda one: one["payload"].get("participant", {}).get("id") == "agent"
        )
        assert (came["kind"], came["payload"]["event"]) == ("system/presence", "join")
        assert came["payload"]["participant"]["capabilities"] == agent.capabilities
        await agent.socket.close()
        went = await supervisor.until("system/presence")
        assert went["payload"] == {"event": "leave", "participant": {"id": "agent"}}

    play(test)


@pytest.mark.spec("MX-3-16")
def test_gateway_messages_have_timestamp(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        observer, agent = await join(topic, "observer"), await join(topic, "agent")
        blocked = await agent.say(CALL, REQUEST)
        error = await agent.until(lambda one: one.get("correlation_id") == blocked)
        assert error["kind"] == "system/error"
        came = await observer.until(
            lambda one: one["payload"].get("participant", {}).get("id") == "agent"
        )
        await agent.socket.close()
        went = await observer.until(lambda one: one["payload"].get("event") == "leave")
        for said in (observer.welcome, agent.welcome, came, went, error):
            assert said["from"] == "system:gateway"
            assert is_now(said["ts"])

    play(test)


@pytest.mark.spec("MX-8.1-11")
@pytest.mark.spec("MX-8.1-12")
def test_errors_and_reserved_kinds_are_handled(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        boss, observer = await join(topic, "administrator"), await join(topic, "observer")
        for kind in ("system/welcome", "system/presence", "system/error", "system/x", "system"):
            blocked = await boss.say(kind, {"event": "leave", "participant": {"id": "observer"}})
            error = await boss.read_rejection(blocked)
            assert error["error"] == "capability_violation"
            assert "reserved" in error["message"]
        forged = {**boss.envelope("chat"), "from": "system:gateway"}
        await boss.socket.send(json.dumps(forged))
        assert (await boss.read_rejection(forged["id"]))["error"] == "identity_mismatch"
        old = boss.envelope("chat", protocol="mcp-x/v0")
        await boss.socket.send(json.dumps(old))
        assert (await boss.read_rejection(old["id"]))["error"] == "protocol_mismatch"
        await boss.socket.send("this is not JSON")
        assert (await boss.until("system/error"))["payload"]["error"] == "malformed_envelope"
        marker = await boss.chat("end")
        messages = await observer.receive_until(marker)
        # Only what the gateway itself said.
        assert {message["from"] for message in messages} == {"system:gateway"}
        assert {message["kind"] for message in messages} == {"system/presence"}

    play(test)


# -- message routing


@pytest.mark.spec("MX-8.1-13")
@pytest.mark.spec("MX-8.1-14")
@pytest.mark.spec("MX-2.1-4")
@pytest.mark.spec("MX-2.2-1")
@pytest.mark.spec("MX-3.3-4")
def test_messages_are_routed(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        boss = await join(topic, "administrator")
        everything = await join(topic, "observer")
        directed = await join(topic, "worker", "&routing=directed")
        to_worker = await boss.say(CALL, REQUEST, to=["worker"])
        to_agent = await boss.say(CALL, REQUEST, to=["agent"])
        # The sample of the draft, without `to` and `ts`.
        sample = {
            **boss.envelope("chat"),
            "payload": {"text": "Hello everyone!", "format": "plain"},
        }
        await boss.socket.send(json.dumps(sample))
        empty = await boss.chat(to=[])
        marker = await boss.chat("end")
        said = [to_worker, to_agent, sample["id"], empty]

        async def heard_by(peer: WebSocketParticipant) -> list[str]:
            return [
                item["id"] for item in await peer.receive_until(marker) if item["from"] == boss.id
            ]

        # There is no secrecy: who wants to hear everything does.
        assert await heard_by(everything) == said
        assert await heard_by(directed) == [to_worker, sample["id"], empty]

    play(test)


@pytest.mark.spec("MX-2.2-1")
def test_docs_state_topics_are_not_confidential() -> None:
    page = (Path(__file__).parents[2] / "docs" / "topics.md").read_text("utf-8")
    assert "A topic is open to all its members." in page
    assert "no private\nchannels and no encryption between members" in page


@pytest.mark.spec("MX-8.1-15")
@pytest.mark.spec("MX-8.1-16")
@pytest.mark.spec("MX-1-1")
def test_envelopes_pass_unchanged(place: Place, play: Play) -> None:
    """Spaces, order, numbers, unknown members, and a payload that is a lie about its kind."""
    odd = (
        '{ "x-more": [1, 2.50, 1e3], "payload" : {"method":"resources/read", "n": 1.0, '
        '"n": 2, "Payload": null, "big": 12345678901234567890, "u": "\\u00fc ü"},\n'
        '"kind":"mcp/proposal:tools/call:safe_tool","to":["worker"],"ts":"2025-08-26T14:00:00Z",'
        '"from":"agent","id":"odd-1", "protocol":"mcpx/v0.1"}'
    )

    async def test(join: Joins) -> None:
        topic = place.topic()
        agent, observer = await join(topic, "agent"), await join(topic, "observer")
        await agent.socket.send(odd)
        while (text := await observer.text()) != odd:
            assert json.loads(text)["from"] == "system:gateway"

    play(test)
