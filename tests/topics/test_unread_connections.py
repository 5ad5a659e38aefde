"""Tests of members that leave without reading, and of members that send only pings."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from socket import SHUT_WR

import pytest

from interlock.channels.websocket import CLOSING  # type: ignore[attr-defined]
from interlock.core.server.http.server import tls_context
from interlock.protocol.websocket import Pong, close_frame, ping_frame, pong_frame
from interlock.topics.config import TopicConfig
from interlock.topics.socket import MAX_MESSAGE_SECONDS, MAX_PINGS_PER_SECOND
from tests.channels.certificates import Authority
from tests.topics.manual_transport import MASK, ManualTransport
from tests.topics.peers import WebSocketParticipant, join_topic
from tests.topics.test_slow_members import RawMember, join_raw, send_until_full
from tests.topics.test_socket import SocketBench, text
from tests.topics.topic_server import TopicServer, run, wait_until

QUEUE = {"room": TopicConfig(access="private", queue=20)}


def closes(one: SocketBench) -> None:
    one.send(close_frame(1000, "", MASK))


def ends_its_bytes(one: SocketBench) -> None:
    one.socket.eof_received()
    # As transports do it after that.
    one.wire.close()


def sends_binary(one: SocketBench) -> None:
    one.send(b"\x82\x80" + MASK)


def is_closed(one: SocketBench) -> None:
    one.socket.close(4003, "Not welcome.")
    one.send(close_frame(4003, "", MASK))


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("how", [closes, ends_its_bytes, sends_binary, is_closed])
def test_aborts_closed_connection_that_never_reads(
    how: Callable[[SocketBench], None], half: bool
) -> None:
    one = SocketBench(ManualTransport(eof=half))
    one.fill()
    how(one)
    cut_off = []
    for seconds in (CLOSING - 0.1, 0.1):
        one.timers.pass_by(seconds)
        cut_off.append(one.wire.aborted)
    assert cut_off == [False, True]
    one.socket.connection_lost(None)
    assert one.timers.waiting == 0
    assert len(one.gone) == 1


@pytest.mark.parametrize("frame", [ping_frame, pong_frame])
def test_disconnects_sender_of_only_pings(frame: Callable[..., bytes]) -> None:
    one = SocketBench()
    sign = frame(b"", MASK)
    for _ in range(3):
        one.send(sign * MAX_PINGS_PER_SECOND)
        one.timers.pass_by(1.0)
        assert one.gone == []
    answered = len(one.wire.seen)
    assert answered == (3 * MAX_PINGS_PER_SECOND if frame is ping_frame else 0)
    one.send(sign * (3 * MAX_PINGS_PER_SECOND), text(b"unheard"))
    assert one.closed_with == 1013
    assert [type(event) for event in one.wire.seen[answered:-1]] in (
        [],
        [Pong] * MAX_PINGS_PER_SECOND,
    )
    assert (one.heard, len(one.gone)) == ([], 1)
    one.socket.connection_lost(None)
    assert one.timers.waiting == 0


HALF = text(b"x" * 5000)
IN_PARTS = (b"\x01\x80" + MASK, b"\x00\x80" + MASK, b"\x80\x80" + MASK)
"""A message of no bytes in three frames."""


LOOK = 10.0


def send_in_parts(one: SocketBench, seconds: float, piece: bytes) -> None:
    """Send a part of a message before each check."""
    for _ in range(int(seconds / LOOK)):
        one.send(piece)
        one.timers.pass_by(LOOK)


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        (HALF[:1], b""),
        (HALF[:100], b"x"),
        (b"\x01\x81" + MASK + b"x", IN_PARTS[1]),
        (IN_PARTS[0], IN_PARTS[1]),
        (b"\x01\x81" + MASK + b"x", ping_frame(b"", MASK)),
        (text(b"whole") + HALF[:100], b"x"),
    ],
    ids=["a byte", "part of a frame", "parts", "empty parts", "pings between", "after another"],
)
def test_limits_duration_of_message(begins: bytes, goes_on: bytes) -> None:
    one = SocketBench(ping=LOOK)
    one.send(begins)
    send_in_parts(one, MAX_MESSAGE_SECONDS, goes_on)
    assert one.gone == []
    send_in_parts(one, 2 * LOOK, goes_on)
    assert one.closed_with == 1013
    assert len(one.gone) == 1


def test_slow_messages_are_not_endless() -> None:
    one = SocketBench(ping=LOOK)
    for _ in range(20):
        # At each look it is in the middle of something, and of something else than before.
        one.send(HALF[:4000])
        one.timers.pass_by(LOOK)
        one.send(HALF[4000:])
        one.send(HALF[:10])
        one.timers.pass_by(LOOK)
        one.send(HALF[10:])
    assert len(one.heard) == 40
    ping = ping_frame(b"there?", MASK)
    for _ in range(20):
        one.send(ping[:-3])
        one.timers.pass_by(LOOK)
        one.send(ping[-3:])
    one.send(*IN_PARTS[:1])
    one.timers.pass_by(LOOK)
    one.send(*IN_PARTS[1:])
    assert one.heard[-1] == b""
    assert one.is_open()


async def say_close(member: RawMember) -> None:
    await member.send(close_frame(1000, "", MASK))


async def end_bytes(member: RawMember) -> None:
    member._sock.shutdown(SHUT_WR)


@pytest.mark.parametrize("how", [say_close, end_bytes])
def test_unread_connection_does_not_block_node(
    how: Callable[[RawMember], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.channels.websocket.CLOSING", 0.2)

    async def left(
        rooms: TopicServer,
        agent: WebSocketParticipant,
        human: WebSocketParticipant,
        stuck: RawMember,
    ) -> None:
        await send_until_full(rooms, agent, human, "worker")
        await how(stuck)
        await human.until(lambda one: one["payload"].get("event") == "leave")

    async def test(rooms: TopicServer) -> None:
        async with rooms.join("agent", "human") as (agent, human):
            async with join_raw(rooms, "worker") as stuck:
                await left(rooms, agent, human, stuck)
                await wait_until(lambda: rooms.door.connections == 2)
            async with join_raw(rooms, "worker") as stuck:
                await left(rooms, agent, human, stuck)
                # The node stops meanwhile.
                rooms.gateway.close()
                await rooms.door.close()
                assert rooms.door.connections == 0

    run(test, rooms=QUEUE)


def test_unread_connection_does_not_block_node_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.channels.websocket.CLOSING", 0.2)
    authority = Authority(tmp_path)
    identity = authority.issue("node", "127.0.0.1")
    trusts = ssl.create_default_context(cafile=authority.file)

    async def test(rooms: TopicServer) -> None:
        async with (
            join_topic(rooms.url(), "t-agent", ssl=trusts) as agent,
            join_topic(rooms.url(), "t-human", ssl=trusts) as human,
            join_topic(
                rooms.url(), "t-worker", ssl=trusts, max_queue=1, close_timeout=0.1
            ) as stuck,
        ):
            await send_until_full(rooms, agent, human, "worker")
            stuck.socket.transport.write(close_frame(1000, "", MASK))
            await human.until(lambda one: one["payload"].get("event") == "leave")
            await wait_until(lambda: rooms.door.connections == 2)

    run(test, rooms=QUEUE, tls=tls_context(identity.certificate, identity.key))
