"""Tests of the limits of unread messages per room, and of lower limits for guests."""

from __future__ import annotations

import pytest

from interlock.topics.config import TopicConfig
from interlock.topics.member import RoomBacklog
from interlock.topics.socket import TopicSocket
from tests.topics.manual_transport import chat_envelope
from tests.topics.peers import get_rejection, join_topic
from tests.topics.test_socket import BIG, SocketBench, numbered_envelopes
from tests.topics.topic_server import TopicServer, run

MAX_BYTES = 40 * (BIG + 200)


class UnreadSocket(SocketBench):
    """A socket that does not read, in a room with space for 40 messages."""

    def __init__(
        self, shared: RoomBacklog, *, guest: bool = False, overflow: str = "report"
    ) -> None:
        super().__init__(
            shared=shared, guest=guest, overflow=overflow, unread=MAX_BYTES, queue_bytes=1000 * BIG
        )
        self.filled = self.fill()

    def send_many(self, times: int) -> None:
        for number in range(times):
            self.deliver(chat_envelope(f"m-{number}", size=BIG))

    @property
    def got(self) -> int:
        return len(self.wire.texts) - self.filled


def test_members_share_room_limit() -> None:
    shared = RoomBacklog()
    one, other = UnreadSocket(shared), UnreadSocket(shared)
    one.send_many(30)
    other.send_many(30)
    assert shared.bytes <= MAX_BYTES
    other.read_on()
    assert 9 <= other.got <= 11
    assert [loss.count for loss in other.resumed] == [30 - other.got]
    # What one has read there is for the other.
    one.read_on()
    assert one.got == 30
    assert shared.bytes == 0
    other.filled += other.got + other.fill()
    other.send_many(35)
    other.read_on()
    assert other.got == 35
    assert shared.bytes == 0


@pytest.mark.parametrize("overflow", ["report", "close"])
def test_disconnect_releases_queue(overflow: str) -> None:
    shared = RoomBacklog()
    one = UnreadSocket(shared, overflow=overflow)
    one.send_many(30)
    assert shared.bytes > 0
    if overflow == "close":
        one.send_many(30)
    else:
        one.socket.close(1001, "The node stops.")
    assert shared.bytes == 0
    assert not one.is_open()


def test_guests_use_half_of_limit() -> None:
    shared = RoomBacklog()
    guest, known = UnreadSocket(shared, guest=True), UnreadSocket(shared)
    guest.send_many(40)
    known.send_many(18)
    guest.read_on()
    known.read_on()
    assert 19 <= guest.got <= 20
    assert (known.got, known.resumed) == (18, [])


def test_limits_queue_of_guest() -> None:
    guest = SocketBench(guest=True, queue=40)
    filled = guest.fill()
    guest.deliver(*numbered_envelopes(range(40)))
    guest.read_on()
    assert guest.wire.texts[filled:] == numbered_envelopes(range(10))


def test_connection_without_token_has_guest_limits() -> None:
    async def test(rooms: TopicServer) -> None:
        async with join_topic(rooms.url()) as guest, rooms.join("agent") as (agent,):
            kept = {}
            for one in (guest, agent):
                member = rooms.gateway.find_member("room", one.id)
                assert member is not None
                assert isinstance(member.sink, TopicSocket)
                kept[one.id] = member.sink._max_queued_messages
            assert kept == {guest.id: 10, "agent": 40}

    run(test, rooms={"room": TopicConfig(access="public", queue=40)})


def test_guests_cannot_fill_room() -> None:
    async def test(rooms: TopicServer) -> None:
        async with join_topic(rooms.url()), join_topic(rooms.url()) as second:
            answer = await get_rejection(rooms.url())
            assert answer.status == 503
            assert "token" in answer.sentence
            async with rooms.join("agent", "human") as (agent, _):
                said = await agent.chat()
                assert (await second.until(said))["from"] == "agent"
                # It is full now, for everybody.
                assert (await get_rejection(rooms.url(), "t-worker")).status == 503
            # A guest's connection may be younger than the room's limit: all share one account.
            (unread,) = {id(one._backlog) for one in rooms.door._sockets}
            assert unread

    run(test, rooms={"room": TopicConfig(access="public", max_participants=4)})


def test_guest_limit_is_configurable() -> None:
    async def test(rooms: TopicServer) -> None:
        async with join_topic(rooms.url()):
            assert (await get_rejection(rooms.url())).status == 503

    run(test, rooms={"room": TopicConfig(access="public", max_guests=1)})
    assert TopicConfig(max_participants=1).guest_limit == 1
    assert TopicConfig(max_participants=1_000).guest_limit == 500
