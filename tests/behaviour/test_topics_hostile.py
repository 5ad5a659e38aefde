"""Invalid input to the topics of a real node does not affect other participants."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from interlock.protocol.mcpx_terms import MAX_ENVELOPE_BYTES
from tests.behaviour.topic_rooms import (
    LIBRARIES,
    TOKENS,
    JoinRejected,
    Joins,
    Place,
    Play,
    player,
    running_place,
)
from tests.topics.peers import HANG_TIMEOUT, WebSocketParticipant

pytestmark = [pytest.mark.feature("topics"), pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from running_place(tmp_path_factory.mktemp("topics"))


@pytest.fixture(params=LIBRARIES)
def play(request: pytest.FixtureRequest, place: Place) -> Play:
    return player(place, request.param)


def invalid_messages(peer: WebSocketParticipant) -> list[tuple[str, str]]:
    """What it may not send, and the error that comes of it."""

    def changed(**members: Any) -> str:
        named = {name.rstrip("_"): value for name, value in members.items()}
        return json.dumps({**peer.envelope("chat", {"text": "x"}), **named})

    def without(member: str) -> str:
        whole = peer.envelope("chat", {"text": "x"})
        return json.dumps({name: value for name, value in whole.items() if name != member})

    whole = json.dumps(peer.envelope("chat", {"text": "x"}))
    malformed = [
        "", " ", "not JSON", "{", whole + "}", whole + whole, "[" + whole + "]", "null", "1",
        '"chat"', "[]", "{}", "[" * 100_000, '{"a":' * 100_000, whole.replace('"x"', "NaN"),
        *(without(member) for member in ("protocol", "id", "from", "kind", "payload")),
        changed(id=""), changed(id="x" * 257), changed(id=1), changed(id=None), changed(kind=""),
        changed(kind="x" * 4097), changed(kind=["chat"]), changed(payload=[]), changed(payload="x"),
        changed(payload=None), changed(to="agent"), changed(to=[1]), changed(to={}),
        changed(to=["x"] * 1001), changed(correlation_id=1), changed(protocol=1), changed(from_=1),
        # Doubled members, and what another reader may take for one.
        whole[:-1] + ',"kind":"system/presence"}', whole[:-1] + ',"from":"administrator"}',
        whole[:-1] + ',"k\\u0069nd":"mcp/request:tools/call"}', changed(Kind="system/presence"),
        changed(FROM="administrator"),
    ]  # fmt: skip
    return [
        *((text, "malformed_envelope") for text in malformed),
        (changed(protocol="mcpx/v0.2"), "protocol_mismatch"),
        (changed(protocol="mcp-x/v0"), "protocol_mismatch"),
        (changed(from_="administrator"), "identity_mismatch"),
        (changed(from_="system:gateway"), "identity_mismatch"),
        (changed(from_=peer.id + " "), "identity_mismatch"),
        (changed(from_=""), "identity_mismatch"),
        (changed(kind="system/welcome"), "capability_violation"),
        (changed(kind="system:gateway"), "capability_violation"),
        (changed(kind="presence"), "capability_violation"),
        (changed(kind="mcp/request:tools/call"), "capability_violation"),
        (changed(kind="mcp/request:tools/call\x00"), "capability_violation"),
        (changed(kind="*"), "capability_violation"),
        (changed(kind="mcp/*"), "capability_violation"),
    ]


def described_errors(peer: WebSocketParticipant) -> list[tuple[str, str, str]]:
    """One of each class of what is bad: the text, the error, and what its message has to say."""

    def changed(**members: Any) -> str:
        named = {name.rstrip("_"): value for name, value in members.items()}
        return json.dumps({**peer.envelope("chat", {"text": "x"}), **named})

    whole = json.dumps(peer.envelope("chat", {"text": "x"}))
    return [
        ("not JSON", "malformed_envelope", "The message is not JSON"),
        ("[]", "malformed_envelope", "one JSON object: the envelope."),
        ("{}", "malformed_envelope", "has no member `protocol`"),
        (changed(id=1), "malformed_envelope", "`id` of the envelope must be a string"),
        (changed(payload=[]), "malformed_envelope", "`payload` of the envelope must be an object."),
        (whole[:-1] + ',"kind":"chat"}', "malformed_envelope", "send it once."),
        (changed(protocol="mcpx/v0.2"), "protocol_mismatch", 'use a client for "mcpx/v0.1"'),
        (changed(from_="administrator"), "identity_mismatch", "You are 'agent' here"),
        (changed(kind="system/welcome"), "capability_violation", "for the gateway"),
        (changed(kind="mcp/request:x"), "capability_violation", "for 'mcp/request:x'"),
    ]


def test_invalid_messages_get_helpful_errors(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        await join(topic, "observer")
        agent = await join(topic, "agent")
        for text, error, words in described_errors(agent):
            await agent.socket.send(text)
            payload = (await agent.until("system/error"))["payload"]
            assert (payload["error"], words in payload["message"]) == (error, True), payload

    play(test)


def test_invalid_messages_are_not_forwarded(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        observer, agent = await join(topic, "observer"), await join(topic, "agent")
        for text, error in invalid_messages(agent):
            await agent.socket.send(text)
            told = await agent.until("system/error")
            assert told["payload"]["error"] == error, text[:200]
            assert told["to"] == ["agent"]
            assert told["payload"]["message"]
        marker = await agent.chat("still here")
        messages = await observer.receive_until(marker)
        assert {message["from"] for message in messages} == {"system:gateway"}
        assert {message["kind"] for message in messages} == {"system/presence"}

    play(test)


@pytest.mark.spec("MX-6.4a-3")
def test_protocol_violations_close_connection(place: Place, play: Play) -> None:
    """Only what the wire itself forbids, and one is told why."""
    forbidden: list[tuple[str | bytes, int, str]] = [
        (b"binary", 1003, "Only text messages are accepted, no binary messages."),
        ("x" * (MAX_ENVELOPE_BYTES + 1), 1009, f"longer than {MAX_ENVELOPE_BYTES} bytes"),
    ]

    async def test(join: Joins) -> None:
        topic = place.topic()
        observer = await join(topic, "observer")
        for sent, code, words in forbidden:
            agent = await join(topic, "agent")
            await agent.socket.send(sent)
            closed = await agent.wait_closed()
            assert closed[0] == code
            assert words in closed[1]
            await observer.until(lambda one: one["payload"].get("event") == "leave")
        # The longest that there may be is only not JSON.
        agent = await join(topic, "agent")
        await agent.socket.send("x" * MAX_ENVELOPE_BYTES)
        assert (await agent.until("system/error"))["payload"]["error"] == "malformed_envelope"
        assert await observer.chat("here")

    play(test)


@pytest.mark.spec("MX-6.4a-3")
def test_limits_message_rate(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic("paced")
        agent, observer = await join(topic, "agent"), await join(topic, "observer")
        actual = [await agent.chat() for _ in range(150)]
        told = await agent.until("system/error")
        assert told["payload"]["error"] == "rate_limited"
        assert told["correlation_id"] in actual
        marker = await observer.chat("end")
        messages = await agent.receive_until(marker)
        # Not each is answered: it hears now and then that this is too much.
        errors = [
            message["payload"]["error"] for message in messages if message["kind"] == "system/error"
        ]
        assert {*errors} <= {"rate_limited"}
        assert len(errors) < 75
        # What it may say in a second was passed on.
        assert await observer.until(lambda one: one["from"] == "agent")

    play(test)


@pytest.mark.spec("MX-6.2a-8")
def test_second_connection_replaces_first(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic()
        observer = await join(topic, "observer")
        older = await join(topic, "agent")
        newer = await join(topic, "agent")
        assert (await older.wait_closed())[0] == 4009
        marker = await newer.chat("it is me")
        messages = await observer.receive_until(marker)
        joins = [
            message for message in messages if message["payload"]["participant"]["id"] == "agent"
        ]
        assert [join["payload"]["event"] for join in joins] == ["join"]
        third = await join(topic, "monitor")
        others = [participant["id"] for participant in third.welcome["payload"]["participants"]]
        assert sorted(others) == ["agent", "observer"]

    play(test)


@pytest.mark.spec("MX-6.2a-7")
def test_rejects_token_in_url(place: Place, play: Play) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic("open")
        for name in ("token", "access_token", "bearer", "authorization", "api_key", "key", "auth"):
            for who in ("agent", None):
                with pytest.raises(JoinRejected) as error:
                    await join(topic, who, f"&{name}={TOKENS['agent']}")
                assert error.value.status == 400

    play(test)
    journal = b"".join(
        path.read_bytes() for path in place.running.folder.rglob("*") if path.is_file()
    )
    assert TOKENS["agent"].encode() not in journal


def test_unknown_ids_and_malformed_http_are_rejected(place: Place) -> None:
    """Nothing that is no request opens anything, and the node goes on."""

    async def test(join: Joins) -> None:
        topic = place.topic()
        observer = await join(topic, "observer")
        port = place.running.port
        for sent in (
            b"\x81\x85abcdhello",
            b"GET /ws?topic=%b HTTP/1.1\r\n\r\n" % topic.encode(),
            b"GET /ws?topic=%b HTTP/1.0\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
            % topic.encode(),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), HANG_TIMEOUT)
            assert b" 101 " not in answer
            writer.close()
        with pytest.raises(InvalidStatus) as error:
            async with connect(
                place.url(topic),
                additional_headers={"Authorization": f"Bearer {TOKENS['agent']}"},
                origin="https://evil.example",  # type: ignore[arg-type]
                proxy=None,
            ):
                raise AssertionError("it was let in")
        assert error.value.response.status_code == 403
        marker = await observer.chat("end")
        agent = await join(topic, "agent")
        assert agent.welcome["payload"]["participants"][0]["id"] == "observer"
        assert marker

    player(place, "websockets")(test)


async def join_without_reading(
    place: Place, topic: str
) -> tuple[socket.socket, asyncio.StreamReader]:
    """A participant that comes in and then reads nothing; its reader is given for later."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", place.running.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1)
    lines = (
        f"GET /ws?topic={topic} HTTP/1.1", f"Host: 127.0.0.1:{place.running.port}",
        "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        f"Authorization: Bearer {TOKENS['worker']}", "", "",
    )  # fmt: skip
    writer.write("\r\n".join(lines).encode())
    return sock, reader


@pytest.mark.spec("MX-6.4a-3")
def test_slow_reader_is_closed_if_configured(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `overflow: close` it is let go; the others hear everything meanwhile."""
    # Its buffers are the smallest there are: on a busy machine it takes long to read all of it.
    monkeypatch.setattr("interlock.channels.websocket.CLOSING", HANG_TIMEOUT)

    async def test(join: Joins) -> None:
        topic = place.topic("strict")
        agent, observer = await join(topic, "agent"), await join(topic, "observer")
        sock, reader = await join_without_reading(place, topic)
        gone = False
        while not gone:
            id = await agent.chat("x" * 8000)
            messages = await observer.receive_until(id)
            gone = any(message["payload"].get("event") == "leave" for message in messages)
        # It finds out when it reads.
        told, seen = (1013).to_bytes(2, "big") + b"You did not read", b""
        async with asyncio.timeout(HANG_TIMEOUT):
            while told not in seen:
                read = await reader.read(65536)
                assert read
                seen = seen[-len(told) :] + read
        sock.close()

    player(place, "websockets")(test)


def test_slow_reader_learns_of_lost_messages(place: Place) -> None:
    async def test(join: Joins) -> None:
        topic = place.topic("slow")
        agent, observer = await join(topic, "agent"), await join(topic, "observer")
        sock, reader = await join_without_reading(place, topic)
        for _ in range(200):
            # Far more than all buffers in between take.
            id = await agent.chat("x" * 60_000)
            await observer.until(id)
        seen = b""
        async with asyncio.timeout(HANG_TIMEOUT):
            while b"messages_lost" not in seen or b"system/welcome" not in seen[-4096:]:
                seen = (seen + await reader.read(65536))[-100_000:]
        sock.close()

    player(place, "websockets")(test)


def guest_request(place: Place, topic: str) -> bytes:
    """The request of a guest who comes without a token."""
    lines = (
        f"GET /ws?topic={topic} HTTP/1.1", f"Host: 127.0.0.1:{place.running.port}",
        "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", "",
    )  # fmt: skip
    return "\r\n".join(lines).encode()


def test_many_participants_come_and_go(place: Place) -> None:
    """Some say that they leave, others are gone without a word; each is told of once."""
    goodbye = b"\x88\x82\x00\x00\x00\x00" + (1000).to_bytes(2, "big")
    at_once, rounds = 50, 200

    async def test(join: Joins) -> None:
        topic = place.topic("open")
        knock = guest_request(place, topic)

        async def come_and_go(number: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", place.running.port)
            writer.write(knock)
            await reader.readuntil(b"system/welcome")
            if number % 2:
                writer.write(goodbye)
                await reader.read()
                writer.close()
            else:
                writer.transport.abort()

        observer = await join(topic, "observer")
        seen: dict[str, list[str]] = {}
        for _ in range(rounds):
            async with asyncio.TaskGroup() as guests:
                for number in range(at_once):
                    guests.create_task(come_and_go(number))
            left = 0
            while left < at_once:
                payload = (await observer.until("system/presence"))["payload"]
                seen.setdefault(payload["participant"]["id"], []).append(payload["event"])
                left += payload["event"] == "leave"
        assert seen.pop("observer") == ["join"]
        # The id of a guest who is gone may be another's, so many there are.
        for events in seen.values():
            assert events == ["join", "leave"] * (len(events) // 2)
        assert sum(map(len, seen.values())) == 2 * at_once * rounds
        newcomer = await join(topic, "agent")
        others = [participant["id"] for participant in newcomer.welcome["payload"]["participants"]]
        assert others == ["observer"]
        assert place.running.complaints == []

    player(place, "websockets")(test)
