"""Tests of members that do not read, are silent or violate the protocol."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from interlock.core.call import Caller
from interlock.core.server.http.server import tls_context
from interlock.protocol.mcpx_terms import MAX_ENVELOPE_BYTES
from interlock.protocol.websocket import (
    Close,
    FrameDecoder,
    Ping,
    WebSocketEvent,
    close_frame,
    text_frame,
)
from interlock.topics.config import TopicConfig
from interlock.topics.member import Member
from interlock.topics.socket import MAX_UNSENT_BYTES, TopicSocket
from tests.channels.certificates import Authority
from tests.support.clock import run_ready_tasks
from tests.topics.manual_transport import MASK
from tests.topics.peers import HANG_TIMEOUT, Envelope, WebSocketParticipant, join_topic
from tests.topics.topic_server import TopicServer, run

FILLER = "x" * 4000
LEAST_BUFFER = 4096


class RawMember:
    """A member with minimum buffers that reads on request."""

    def __init__(self, sock: socket.socket, *, masked: bool = False) -> None:
        self._sock = sock
        self._decoder = FrameDecoder(masked=masked, max_message=1 << 24)
        self._events: list[WebSocketEvent] = []

    async def open(self, port: int, topic: str, token: str) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._sock, ("127.0.0.1", port))
        lines = (
            f"GET /ws?topic={topic} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket",
            "Connection: Upgrade", "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", f"Authorization: Bearer {token}",
            "", "",
        )  # fmt: skip
        await self.send("\r\n".join(lines).encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += await loop.sock_recv(self._sock, 1)
        assert answer.startswith(b"HTTP/1.1 101 ")

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def event(self) -> WebSocketEvent:
        async with asyncio.timeout(HANG_TIMEOUT):
            while not self._events:
                data = await asyncio.get_running_loop().sock_recv(self._sock, 1 << 16)
                if not data:
                    raise ConnectionResetError
                self._events += self._decoder.feed(data)
        return self._events.pop(0)

    async def hear(self) -> Envelope:
        while not isinstance(event := await self.event(), bytes):
            assert isinstance(event, Ping)
        return dict(json.loads(event))

    async def close_code(self) -> int:
        """Read on until it is closed."""
        while not isinstance(event := await self.event(), Close):
            continue
        return event.code


@asynccontextmanager
async def join_raw(rooms: TopicServer, name: str, topic: str = "room") -> AsyncIterator[RawMember]:
    with socket.socket() as sock:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LEAST_BUFFER)
        member = RawMember(sock)
        await member.open(rooms.http.port, topic, f"t-{name}")
        assert (await member.hear())["kind"] == "system/welcome"
        yield member


def find_socket(rooms: TopicServer, id: str) -> TopicSocket:
    member = rooms.gateway.find_member("room", id)
    assert member is not None
    assert isinstance(member.sink, TopicSocket)
    return member.sink


async def send_until_full(
    rooms: TopicServer, speaker: WebSocketParticipant, listener: WebSocketParticipant, stuck: str
) -> int:
    """Say things until the one who does not read has more waiting than its queue takes. The
    listener hears every one of them; returns how many they were."""
    said = 0
    while rooms.gateway.find_member("room", stuck) is not None:
        outlet = find_socket(rooms, stuck)
        if outlet._loss.count >= 10:
            break
        id = await speaker.chat(FILLER)
        await listener.until(id)
        said += 1
        assert outlet.unread < MAX_UNSENT_BYTES + 200 * 1024
    return said


def test_unread_member_does_not_affect_others_and_learns_loss() -> None:
    async def test(rooms: TopicServer) -> None:
        async with (
            rooms.join("agent", "human") as (agent, human),
            join_raw(rooms, "worker") as stuck,
        ):
            said = await send_until_full(rooms, agent, human, "worker")
            # It reads on: what was kept, then what it lost, then who is there.
            got: list[Envelope] = []
            while (heard := await stuck.hear())["kind"] != "system/error":
                got.append(heard)
            payload = heard["payload"]
            assert payload["error"] == "messages_lost"
            chats = [one for one in got if one["kind"] == "chat"]
            assert len(chats) + payload["lost"] == said
            assert payload["kinds"] == {"chat": payload["lost"]}
            assert payload["first"] <= payload["last"]
            welcome = await stuck.hear()
            assert welcome["kind"] == "system/welcome"
            assert len(welcome["payload"]["participants"]) == 2
            # And it is a member as before.
            again = await agent.chat("again")
            assert (await stuck.hear())["id"] == again

    run(test, rooms={"room": TopicConfig(access="private", queue=20)})


@pytest.mark.spec("MX-6.4a-3")
def test_close_overflow_disconnects_unread_member() -> None:
    async def test(rooms: TopicServer) -> None:
        async with (
            rooms.join("agent", "human") as (agent, human),
            join_raw(rooms, "worker") as stuck,
        ):
            await send_until_full(rooms, agent, human, "worker")
            left = await human.until(lambda one: one["payload"].get("event") == "leave")
            assert left["payload"]["participant"]["id"] == "worker"
            assert await stuck.close_code() == 1013

    run(test, rooms={"room": TopicConfig(access="private", queue=20, overflow="close")})


@pytest.mark.spec("MX-6.4a-3")
def test_stalled_member_is_disconnected() -> None:
    async def test(rooms: TopicServer) -> None:
        async with (
            rooms.join("agent", "human") as (agent, human),
            join_raw(rooms, "worker") as stuck,
        ):
            said = 0
            while rooms.gateway.find_member("room", "worker") is not None:
                id = await agent.chat(FILLER)
                await human.until(lambda one, id=id: one["id"] == id)
                said += 1
            assert await stuck.close_code() == 1013
            assert said > MAX_UNSENT_BYTES / len(FILLER)

    run(test, rooms={"room": TopicConfig(access="private", stalled=0.3)})


def test_unresponsive_member_is_disconnected() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("human") as (human,), join_raw(rooms, "worker"):
            # It reads nothing, and so answers no ping.
            left = await human.until(lambda one: one["payload"].get("event") == "leave")
            assert left["payload"]["participant"]["id"] == "worker"
            assert rooms.present == ["human"]

    run(test, rooms={"room": TopicConfig(access="private", ping=0.1)})


def test_disconnected_member_leaves() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("human") as (human,):
            async with join_raw(rooms, "worker"):
                await human.until(lambda one: one["payload"]["participant"]["id"] == "worker")
            left = await human.until("system/presence")
            assert left["payload"]["event"] == "leave"

    run(test)


@pytest.mark.spec("MX-2.2-5")
def test_messages_to_disconnected_member_are_lost() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("human") as (human,):
            async with join_raw(rooms, "worker"):
                await human.until(lambda one: one["payload"]["participant"]["id"] == "worker")
            await human.until(lambda one: one["payload"].get("event") == "leave")
            said = await human.chat("can you hear me?", to=["worker"])
            # The sender is not held up and not told; nothing is sent again.
            async with rooms.join("worker") as (worker,):
                marker = await human.chat("now?")
                assert said not in [one["id"] for one in await worker.receive_until(marker)]

    run(test)


# -- breaking the wire


@pytest.mark.spec("MX-6.4a-3")
def test_protocol_violations_have_close_codes() -> None:
    not_utf8 = b"\x81\x82" + MASK + bytes((0xFF ^ 1, 0xFE ^ 2))
    frames = {
        1009: text_frame(b"x" * (MAX_ENVELOPE_BYTES + 1), MASK),
        1003: b"\x82\x83" + MASK + b"abc",
        1007: not_utf8,
        1002: text_frame(b"not masked"),
        4567: close_frame(4567, "as you like", MASK),
    }

    async def test(rooms: TopicServer) -> None:
        async with rooms.join("human") as (human,):
            for code, frame in frames.items():
                async with join_raw(rooms, "worker") as member:
                    await member.send(frame)
                    assert await member.close_code() == code
                await human.until(lambda one: one["payload"].get("event") == "leave")
            assert rooms.present == ["human"]
            # The others never noticed, and as much as is allowed passes.
            async with rooms.join("agent") as (agent,):
                envelope = agent.envelope("chat", {"text": ""})
                room = MAX_ENVELOPE_BYTES - len(json.dumps(envelope, separators=(",", ":")))
                envelope["payload"]["text"] = "x" * room
                text = json.dumps(envelope, separators=(",", ":"))
                assert len(text) == MAX_ENVELOPE_BYTES
                await agent.socket.send(text)
                assert (await human.until(envelope["id"])) == envelope

    run(test)


@pytest.mark.spec("MX-6.4a-3")
def test_invalid_envelopes_keep_connection_open() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("human", "agent") as (human, agent):
            bad = [
                "not JSON", "[]", '"text"', "1", "{}", "", '{"protocol":"mcpx/v0.1"}',
                json.dumps(agent.envelope("chat", protocol="mcpx/v9")),
                json.dumps({**agent.envelope("chat"), "from": "human"}),
                json.dumps(agent.envelope("system/presence")),
                json.dumps(agent.envelope("mcp/request:tools/call")),
                json.dumps(agent.envelope("chat", payload=None, to="human")),
            ]  # fmt: skip
            for text in bad * 10:
                await agent.socket.send(text)
            marker = await agent.chat("still here")
            heard = await human.receive_until(marker)
            assert [one["kind"] for one in heard] == ["system/presence"] * 2
            errors = 0
            while errors < len(bad) * 10:
                errors += (await agent.hear())["kind"] == "system/error"
            assert agent.socket.close_code is None

    run(test)


# -- many


def find_leftovers() -> list[TopicSocket | Member]:
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, TopicSocket | Member)]


def test_thousand_connections_leave_no_state() -> None:
    names = [f"p{number}" for number in range(20)]
    # Held here, so that nothing new can be taken for one of them: what other tests left behind.
    before = find_leftovers()

    async def test(rooms: TopicServer) -> None:
        async with rooms.join("human", max_queue=None) as (human,):
            for _ in range(25):
                async with AsyncExitStack() as stack:
                    members = [
                        await stack.enter_async_context(join_raw(rooms, one)) for one in names
                    ]
                    assert len(rooms.present) == 21
                    for member in members[::2]:
                        await member.send(close_frame(1000, "", MASK))
                        assert await member.close_code() == 1000
                left = 0
                while left < 20:
                    heard = await human.until("system/presence")
                    left += heard["payload"]["event"] == "leave"
            assert rooms.present == ["human"]
        while rooms.door.connections:
            await run_ready_tasks(1)
        assert rooms.gateway.rooms == {}
        known = {id(one) for one in before}
        assert [type(one) for one in find_leftovers() if id(one) not in known] == []

    # Nobody waits for the end of a token whose owner is gone.
    in_an_hour = time.time() + 3600
    run(test, callers=[Caller(name, kind="jwt", expires_at=in_an_hour) for name in names])


# -- TLS


def test_serves_members_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    identity = authority.issue("node", "127.0.0.1")
    trusts = ssl.create_default_context(cafile=authority.file)

    async def test(rooms: TopicServer) -> None:
        async with (
            join_topic(rooms.url(), "t-agent", ssl=trusts) as agent,
            join_topic(rooms.url(), "t-human", ssl=trusts) as human,
        ):
            for size in (1, 1000, 200_000, 800_000):
                said = await agent.chat("x" * size)
                assert len((await human.until(said))["payload"]["text"]) == size
            await agent.socket.send(b"binary")
            assert (await agent.wait_closed())[0] == 1003
            await human.until(lambda one: one["payload"].get("event") == "leave")

    run(test, tls=tls_context(identity.certificate, identity.key))


def test_unread_member_over_tls_learns_loss(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    identity = authority.issue("node", "127.0.0.1")
    trusts = ssl.create_default_context(cafile=authority.file)

    async def test(rooms: TopicServer) -> None:
        async with (
            join_topic(rooms.url(), "t-agent", ssl=trusts) as agent,
            join_topic(rooms.url(), "t-human", ssl=trusts) as human,
            join_topic(rooms.url(), "t-worker", ssl=trusts, max_queue=1) as stuck,
        ):
            said = await send_until_full(rooms, agent, human, "worker")
            got = 0
            while (heard := await stuck.hear())["kind"] != "system/error":
                got += heard["kind"] == "chat"
            assert heard["payload"]["error"] == "messages_lost"
            assert got + heard["payload"]["lost"] == said
            assert (await stuck.hear())["kind"] == "system/welcome"

    settings = {"room": TopicConfig(access="private", queue=20)}
    run(test, tls=tls_context(identity.certificate, identity.key), rooms=settings)
