"""Tests of joins over real connections."""

from __future__ import annotations

import asyncio
import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from interlock.core.call import Caller
from interlock.protocol.websocket import text_frame
from interlock.topics.config import ParticipantConfig, TopicConfig
from tests.topics.manual_transport import MASK
from tests.topics.peers import WebSocketParticipant, get_rejection, join_topic
from tests.topics.test_slow_members import join_raw
from tests.topics.topic_server import PUBLIC, RESTRICTED, TopicServer, run, wait_until

# -- coming in


@pytest.mark.spec("MX-6.2a-1")
@pytest.mark.spec("MX-8.1-1")
def test_topic_has_one_path() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("agent") as (agent,):
            assert agent.socket.response is not None
            assert agent.socket.response.status_code == 101
        for path in ("/other?topic=room", "/ws/room?topic=room", "/"):
            with pytest.raises(InvalidStatus) as caught:
                async with connect(rooms.address(path).replace("http", "ws"), proxy=None):
                    raise AssertionError("it was let in")
            assert caught.value.response.status_code == 404

    run(test)


@pytest.mark.spec("MX-6.2a-3")
def test_welcome_comes_first() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("human", "agent") as (human, agent):
            assert agent.id == "robot-alpha"
            assert agent.capabilities == ["mcp/proposal:*", "mcp/response:*", "chat"]
            assert agent.welcome["payload"]["participants"] == [
                {"id": "human", "capabilities": ["mcp/*", "chat"]}
            ]
            assert agent.welcome["to"] == ["robot-alpha"]
            # Then everybody hears who came, the newcomer too; it is not told of those before it.
            for peer in (agent, human):
                joined_by = await peer.until("system/presence")
                if peer is human:
                    joined_by = await peer.until("system/presence")
                assert joined_by["payload"] == {
                    "event": "join",
                    "participant": {"id": "robot-alpha", "capabilities": agent.capabilities},
                }

    run(test, rooms=RESTRICTED)


@pytest.mark.spec("MX-6.2a-2")
@pytest.mark.spec("MX-8.1-3")
def test_same_token_is_same_participant() -> None:
    async def test(rooms: TopicServer) -> None:
        for _ in range(2):
            async with rooms.join("agent") as (agent,):
                assert agent.id == "robot-alpha"
            await wait_until(lambda: rooms.present == [])

    run(test, rooms=RESTRICTED)


@pytest.mark.spec("MX-5.1-1")
def test_capabilities_follow_token_and_role() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("agent", "human", "operator") as (agent, human, operator):
            # Whose token it is, a pattern of names, or what it is.
            assert agent.capabilities == ["mcp/proposal:*", "mcp/response:*", "chat"]
            assert human.capabilities == ["mcp/*", "chat"]
            assert operator.capabilities == ["mcp/proposal:*", "chat", "x/*"]
            assert (await get_rejection(rooms.url(), "t-worker")).status == 403

    run(test, rooms=RESTRICTED, callers=[Caller("operator", kind="jwt", roles=("ops",))])


@pytest.mark.spec("MX-6.2a-5")
def test_client_cannot_choose_id() -> None:
    async def test(rooms: TopicServer) -> None:
        hints = "&id=boss&participant=boss&from=boss&name=boss"
        headers = {"Authorization": "Bearer t-agent", "X-Participant-Id": "boss"}
        url = rooms.url(more=hints)
        async with connect(url, additional_headers=headers, proxy=None) as client:
            assert (await WebSocketParticipant(client).begin()).id == "agent"

    run(test)


@pytest.mark.spec("MX-8.1-4")
def test_connection_records_list_each_connection() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("agent", "human"), rooms.join("agent", topic="more") as (again,):
            records = rooms.gateway.list_connections()
            assert [(one.participant_id, one.topic) for one in records] == [
                ("agent", "room"),
                ("human", "room"),
                ("agent", "more"),
            ]
            assert len({one.connection_id for one in records}) == 3
            await again.socket.close()
            await wait_until(lambda: len(rooms.gateway.list_connections()) == 2)
        await wait_until(lambda: rooms.gateway.list_connections() == [])
        assert rooms.gateway.rooms == {}

    both = TopicConfig(access="private")
    run(test, rooms={"room": both, "more": both})


def test_reads_message_in_same_packet_as_request() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("human") as (human,):
            reader, writer = await asyncio.open_connection("127.0.0.1", rooms.http.port)
            head = (
                "GET /ws?topic=room HTTP/1.1", f"Host: 127.0.0.1:{rooms.http.port}",
                "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Authorization: Bearer t-agent",
                "", "",
            )  # fmt: skip
            said = {"protocol": "mcpx/v0.1", "id": "early", "from": "agent", "kind": "chat"}
            frame = text_frame(json.dumps({**said, "payload": {"text": "hi"}}).encode(), MASK)
            writer.write("\r\n".join(head).encode() + frame)
            assert (await human.until("early"))["from"] == "agent"
            writer.close()
            left = await human.until(lambda one: one["payload"].get("event") == "leave")
            assert left["payload"]["participant"]["id"] == "agent"
            del reader

    run(test)


@pytest.mark.spec("MX-6.3a-4")
def test_routing_selects_received_messages() -> None:
    async def test(rooms: TopicServer) -> None:
        async with (
            rooms.join("agent", "human") as (agent, human),
            rooms.join("worker", more="&routing=directed") as (worker,),
        ):
            for_human = await agent.chat(to=["human"])
            for_worker = await agent.chat(to=["worker"])
            last = await agent.chat()

            async def chats(peer: WebSocketParticipant) -> list[str]:
                heard = await peer.receive_until(last)
                return [one["id"] for one in heard if one["kind"] == "chat"]

            assert await chats(worker) == [for_worker]
            assert await chats(human) == [for_human, for_worker]

    run(test)


# -- browsers


@pytest.mark.spec("MX-6.2a-7")
def test_browser_sends_token_as_subprotocol() -> None:
    async def test(rooms: TopicServer) -> None:
        for offered, chosen in (
            (["mcpx", "mcpx.bearer.t-human"], "mcpx"),
            (["mcpx.bearer.t-human"], "mcpx.bearer.t-human"),
        ):
            protocols = [Subprotocol(one) for one in offered]
            async with join_topic(rooms.url(), subprotocols=protocols) as human:
                assert human.id == "human"
                assert human.socket.subprotocol == chosen
        protocols = [Subprotocol("mcpx"), Subprotocol("mcpx.bearer.wrong")]
        assert (await get_rejection(rooms.url(), subprotocols=protocols)).status == 401
        protocols = [Subprotocol("mcpx"), Subprotocol("mcpx.bearer.t-human")]
        assert (await get_rejection(rooms.url(), "t-human", subprotocols=protocols)).status == 400

    run(test)


# -- guests


@pytest.mark.spec("MX-6.2a-7")
@pytest.mark.spec("MX-5.1-1")
def test_public_topic_accepts_guests() -> None:
    async def test(rooms: TopicServer) -> None:
        async with join_topic(rooms.url()) as one, join_topic(rooms.url()) as other:
            assert one.id.startswith("guest-")
            assert one.id != other.id
            assert one.capabilities == ["mcp/proposal:*", "chat"]
            assert [(entry["caller"], entry["outcome"]) for entry in rooms.journal] == [
                ("", "ok"),
                ("", "ok"),
            ]
            assert one.id in rooms.journal[0]["detail"]
        # But nobody who shows something that is not good.
        assert (await get_rejection(rooms.url(), "wrong")).status == 401
        basic = ("Authorization", "Basic dTpw")
        assert (await get_rejection(rooms.url(), None, basic)).status == 401
        # And who is known comes as who it is.
        async with rooms.join("human") as (human,):
            assert human.id == "human"

    run(test, rooms=PUBLIC)


# -- twice


@pytest.mark.spec("MX-8.1-10", "MX-3.4-1")
def test_broken_connection_is_announced() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("human") as (human,), rooms.join("agent") as (agent,):
            await human.until(lambda one: one["payload"].get("event") == "join")
            # No closing handshake, not even the end of its bytes.
            agent.socket.transport.abort()
            left = await human.until(lambda one: one["payload"].get("event") == "leave")
            assert left["kind"] == "system/presence"
            assert left["payload"]["participant"] == {"id": "agent"}
            assert rooms.present == ["human"]

    run(test)


@pytest.mark.spec("MX-6.2a-8")
def test_newest_connection_replaces_older() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("human", "agent") as (human, older), rooms.join("agent") as (newer,):
            code, reason = await older.wait_closed()
            assert code == 4009
            assert "another connection" in reason
            assert rooms.present == ["agent", "human"]
            said = await newer.chat()
            events = [one["payload"]["event"] for one in (await human.receive_until(said))]
            # Its own, and the first connection of the other.
            assert events == ["join", "join"]
        await wait_until(lambda: rooms.present == [])

    run(test)


def test_participant_id_cannot_be_taken_over() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("human") as (human,):
            answer = await get_rejection(rooms.url(), "t-other")
            assert answer.status == 403
            said = await human.chat()
            assert said
            assert rooms.present == ["human"]

    seats = [
        ParticipantConfig(callers=["other"], id="human"),
        ParticipantConfig(callers=["human"], id="human"),
    ]
    run(
        test,
        rooms={"room": TopicConfig(participants=seats)},
        callers=[Caller("other", kind="token")],
    )


# -- leaving


def test_expired_token_ends_connection() -> None:
    now = 1000.0

    async def test(rooms: TopicServer) -> None:
        async with rooms.join("human", "brief") as (human, brief):
            code, reason = await brief.wait_closed()
            assert code == 4003
            assert "expired" in reason
            left = await human.until(lambda one: one["payload"].get("event") == "leave")
            assert left["payload"]["participant"]["id"] == "brief"
            assert rooms.present == ["human"]

    run(
        test,
        callers=[Caller("brief", kind="jwt", expires_at=now + 0.05)],
        wall_clock=lambda: now,
    )


def test_expired_token_ends_silent_connection() -> None:
    now = 1000.0

    async def test(rooms: TopicServer) -> None:
        async with rooms.join("human") as (human,), join_raw(rooms, "brief"):
            await human.until(lambda one: one["payload"].get("event") == "leave")
            assert rooms.present == ["human"]
            # Nobody waited for the end of its connection.
            assert rooms.door.connections == 2

    run(
        test,
        callers=[Caller("brief", kind="jwt", expires_at=now + 0.05)],
        wall_clock=lambda: now,
    )


def test_revoked_token_ends_connection() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("agent", "human") as (agent, human):
            rooms.gateway.disconnect({"agent"})
            assert (await agent.wait_closed())[0] == 4003
            assert rooms.present == ["human"]
            await human.chat()

    run(test)


def test_node_stop_closes_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.channels.websocket.CLOSING", 0.2)

    async def test(rooms: TopicServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", rooms.http.port)
        writer.write(
            b"GET /ws?topic=room HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer t-agent\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n" % rooms.http.port
        )
        await reader.readuntil(b"\r\n\r\n")
        async with rooms.join("human") as (human,):
            # One agrees to be closed, the other never does.
            rooms.gateway.close()
            await rooms.door.close()
            assert (await human.wait_closed())[0] == 1001
            assert rooms.door.connections == 0
        writer.close()

    run(test)
