"""Tests of the socket of a member on a manual transport."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.channels.websocket import CLOSING  # type: ignore[attr-defined]
from interlock.protocol.mcpx_terms import MAX_ENVELOPE_BYTES
from interlock.protocol.websocket import (
    Close,
    Ping,
    Pong,
    close_frame,
    ping_frame,
    pong_frame,
    text_frame,
)
from interlock.topics.config import TopicConfig
from interlock.topics.member import MessageLoss, RoomBacklog
from interlock.topics.socket import MAX_LOST_KINDS, MAX_UNSENT_BYTES, OTHER_KINDS, TopicSocket
from tests.topics.manual_transport import MASK, ManualTransport, Timers, chat_envelope, make_batch

BIG = 8 * 1024
"""Some messages of this size are more than a transport takes."""
NOW = "2026-01-02T03:04:05Z"


class SocketBench:
    """A member socket with recorded events."""

    def __init__(
        self,
        wire: ManualTransport | None = None,
        *,
        shared: RoomBacklog | None = None,
        guest: bool = False,
        **config: Any,
    ) -> None:
        self.wire = wire or ManualTransport()
        self.timers = Timers()
        self.timers.after_turn = self.wire.end_of_turn
        self.heard: list[bytes] = []
        self.gone: list[str] = []
        self.resumed: list[MessageLoss] = []
        self.socket = TopicSocket(
            self.wire,
            settings=TopicConfig(**config),
            on_text=self.heard.append,
            on_disconnect=self.gone.append,
            on_resumed=self.resumed.append,
            call_later=self.timers.call_later,
            unread=shared,
            guest=guest,
            now=lambda: NOW,
        )

    def send(self, *frames: bytes) -> None:
        self.socket.data_received(b"".join(frames))

    def deliver(self, *texts: bytes) -> None:
        self.socket.deliver(make_batch(texts))

    def fill(self) -> int:
        """The other side stops reading, and its transport is full. Returns how many it has."""
        self.wire.reads = False
        told = 0
        while not self.wire.paused:
            self.deliver(chat_envelope(f"fill-{told}", size=BIG))
            self.wire.end_of_turn()
            told += 1
        return told

    def is_open(self) -> bool:
        return self.socket.is_open

    def read_on(self) -> None:
        """The other side reads all there is, and what comes for it."""
        self.wire.reads = True
        self.wire.read()
        self.timers.pass_by(0.0)

    @property
    def closed_with(self) -> int | None:
        codes = [event.code for event in self.wire.seen if isinstance(event, Close)]
        assert len(codes) <= 1
        return codes[0] if codes else None


def text(payload: bytes) -> bytes:
    return text_frame(payload, MASK)


# -- in and out


def test_passes_messages_unchanged() -> None:
    one = SocketBench()
    one.send(text(b"one"), text("zwei ü".encode()))
    one.deliver(chat_envelope("1"), chat_envelope("2"))
    assert one.heard == [b"one", "zwei ü".encode()]
    assert one.wire.texts == [chat_envelope("1"), chat_envelope("2")]
    assert one.is_open()
    assert one.gone == []


def test_sets_protocol_before_data_arrives() -> None:
    one = SocketBench()
    assert one.wire.protocol is one.socket


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=300).map(bytes.hex), max_size=8), st.data())
def test_reads_messages_from_any_fragments(texts: list[str], data: st.DataObject) -> None:
    one = SocketBench()
    whole = b"".join(text(each.encode()) for each in texts)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=12))
    edges = sorted({0, len(whole), *cuts})
    for start, end in pairwise(edges):
        one.send(whole[start:end])
    assert one.heard == [each.encode() for each in texts]


def test_responds_to_ping() -> None:
    one = SocketBench()
    one.send(ping_frame(b"there?", MASK))
    assert one.wire.seen == [Pong(b"there?")]


# -- what is not allowed on the wire


@pytest.mark.spec("MX-6.4a-3")
@pytest.mark.parametrize(
    ("frame", "code"),
    [
        pytest.param(b"\x82\x83" + MASK + b"abc", 1003, id="binary"),
        pytest.param(text(b"x" * (MAX_ENVELOPE_BYTES + 1)), 1009, id="a byte too many"),
        pytest.param(
            b"\x81\xff" + (1 << 40).to_bytes(8, "big") + MASK, 1009, id="announced too large"
        ),
        pytest.param(b"\x81\x82" + MASK + bytes((0xFF ^ 1, 0xFE ^ 2)), 1007, id="not UTF-8"),
        pytest.param(text_frame(b"bare"), 1002, id="not masked"),
    ],
)
def test_closes_on_invalid_frames(frame: bytes, code: int) -> None:
    one = SocketBench()
    one.send(text(b"before"), frame, text(b"after"))
    assert one.heard == [b"before"]
    assert one.closed_with == code
    assert len(one.gone) == 1
    assert not one.is_open()
    # What follows counts for nothing, and it is told only once.
    one.send(text(b"later"), frame)
    one.socket.connection_lost(None)
    assert (one.heard, len(one.gone)) == ([b"before"], 1)


def test_accepts_largest_message() -> None:
    one = SocketBench()
    one.send(text(b"x" * MAX_ENVELOPE_BYTES))
    assert [len(each) for each in one.heard] == [MAX_ENVELOPE_BYTES]
    assert one.closed_with is None


def test_delays_abort_for_close_reason() -> None:
    one = SocketBench()
    one.send(b"\x82\x80" + MASK)
    assert one.wire.ended
    assert not one.wire.closing
    one.timers.pass_by(CLOSING)
    assert one.wire.aborted


def test_closes_transport_without_half_close() -> None:
    one = SocketBench(ManualTransport(eof=False))
    one.send(b"\x82\x80" + MASK)
    assert (one.closed_with, one.wire.closing) == (1003, True)


# -- ending


def test_client_close() -> None:
    one = SocketBench()
    one.send(text(b"last"), close_frame(4321, "had enough", MASK), text(b"behind it"))
    assert one.heard == [b"last"]
    assert one.gone == ["the client left: had enough"]
    assert one.closed_with == 4321
    assert one.wire.closing
    one.socket.connection_lost(None)
    assert len(one.gone) == 1
    assert one.timers.waiting == 0


def test_server_close() -> None:
    one = SocketBench()
    one.deliver(chat_envelope("1"))
    one.socket.close(4009, "Replaced.")
    one.deliver(chat_envelope("2"))
    one.send(text(b"too late"))
    assert one.wire.seen == [chat_envelope("1"), Close(4009, "Replaced.")]
    assert (one.heard, one.gone) == ([], [])
    one.send(close_frame(4009, "", MASK))
    assert one.wire.closing
    one.socket.connection_lost(None)
    assert len(one.gone) == 1
    assert one.timers.waiting == 0


def test_aborts_without_close_response() -> None:
    one = SocketBench()
    one.socket.close(1001, "")
    one.timers.pass_by(CLOSING - 0.1)
    assert not one.wire.aborted
    one.timers.pass_by(0.1)
    assert one.wire.aborted


def test_reports_lost_connection() -> None:
    one = SocketBench()
    one.wire.closing = True
    one.socket.connection_lost(ConnectionResetError("reset"))
    one.deliver(chat_envelope("1"))
    one.socket.close(1001, "")
    one.socket.abort()
    assert one.gone == ["the connection was lost: reset"]
    assert one.socket.unread == 0
    assert one.timers.waiting == 0


def test_reports_end_of_stream() -> None:
    one = SocketBench()
    one.socket.eof_received()
    one.socket.connection_lost(None)
    assert one.gone == ["the client closed the connection"]


# -- who does not read


def numbered_envelopes(ids: range) -> list[bytes]:
    return [chat_envelope(f"m-{number}") for number in ids]


@pytest.mark.parametrize("at_once", [True, False])
def test_slow_reader_gets_messages_in_order(at_once: bool) -> None:
    one = SocketBench(ManualTransport(at_once=at_once), queue=100)
    filled = one.fill()
    for message in numbered_envelopes(range(60)):
        one.deliver(message)
    one.deliver(*numbered_envelopes(range(60, 100)))
    one.read_on()
    assert one.wire.texts[filled:] == numbered_envelopes(range(100))
    assert one.resumed == []
    one.deliver(chat_envelope("after"))
    assert one.wire.texts[-1] == chat_envelope("after")


def test_counts_messages_beyond_queue() -> None:
    one = SocketBench(queue=10)
    filled = one.fill()
    one.deliver(*numbered_envelopes(range(8)))
    one.deliver(*numbered_envelopes(range(8, 13)))
    one.deliver(chat_envelope("p", kind="mcp/proposal:tools/call"))
    one.read_on()
    assert one.wire.texts[filled:] == numbered_envelopes(range(10))
    assert one.resumed == [MessageLoss(4, NOW, NOW, {"chat": 3, "mcp/proposal:tools/call": 1})]
    # It is told once, and begins anew.
    filled += 10 + one.fill()
    one.deliver(*numbered_envelopes(range(10)))
    one.read_on()
    assert one.wire.texts[filled:] == numbered_envelopes(range(10))
    assert len(one.resumed) == 1


def test_limits_queued_bytes() -> None:
    one = SocketBench(queue=1000, queue_bytes=20 * BIG)
    filled = one.fill()
    for number in range(50):
        one.deliver(chat_envelope(f"m-{number}", size=BIG))
        assert one.socket.unread <= MAX_UNSENT_BYTES + 22 * BIG
    one.read_on()
    got = len(one.wire.texts) - filled
    assert got in (18, 19)
    assert [loss.count for loss in one.resumed] == [50 - got]


def test_drops_message_larger_than_queue() -> None:
    one = SocketBench(queue_bytes=1000)
    filled = one.fill()
    one.deliver(
        chat_envelope("small"), chat_envelope("large", size=2000), chat_envelope("small again")
    )
    # It would fit, but what is lost is one gap.
    one.deliver(chat_envelope("and again"))
    one.read_on()
    assert one.wire.texts[filled:] == [chat_envelope("small")]
    assert [loss.count for loss in one.resumed] == [3]


def test_limits_kinds_in_loss_report() -> None:
    one = SocketBench(queue=1)
    one.fill()
    one.deliver(*(chat_envelope(f"m-{number}", kind=f"x/{number % 40}") for number in range(81)))
    one.read_on()
    (loss,) = one.resumed
    assert loss.count == 80 == sum(loss.kinds.values())
    assert len(loss.kinds) == MAX_LOST_KINDS + 1
    assert loss.kinds[OTHER_KINDS] == 80 - 2 * MAX_LOST_KINDS


@pytest.mark.spec("MX-6.4a-3")
def test_closes_on_full_queue_if_configured() -> None:
    one = SocketBench(queue=10, overflow="close")
    filled = one.fill()
    one.deliver(*numbered_envelopes(range(10)))
    assert one.is_open()
    one.deliver(chat_envelope("one too many"))
    assert not one.is_open()
    # The room is told, but not from inside `deliver`.
    assert one.gone == []
    one.timers.pass_by(0.0)
    assert len(one.gone) == 1
    one.wire.reads = True
    one.wire.read()
    assert one.closed_with == 1013
    assert len(one.wire.texts) == filled
    one.socket.connection_lost(None)
    assert len(one.gone) == 1


@pytest.mark.spec("MX-6.4a-3")
@pytest.mark.parametrize("overflow", ["report", "close"])
def test_disconnects_stalled_reader(overflow: str) -> None:
    one = SocketBench(stalled=30.0, ping=1000.0, overflow=overflow)
    one.fill()
    one.timers.pass_by(29.9)
    assert one.is_open()
    one.timers.pass_by(0.1)
    assert not one.is_open()
    assert one.gone == ["disconnected: You read nothing for 30 seconds."]
    one.wire.reads = True
    one.wire.read()
    assert one.closed_with == 1013


def test_keeps_slow_reader() -> None:
    one = SocketBench(stalled=30.0, ping=1000.0)
    one.fill()
    for _ in range(5):
        one.timers.pass_by(29.0)
        one.wire.read(1000)
        one.timers.pass_by(1.0)
        assert one.is_open()
    one.timers.pass_by(30.0)
    assert not one.is_open()


def test_reading_resets_stall_timeout() -> None:
    one = SocketBench(stalled=30.0, ping=1000.0)
    one.fill()
    one.timers.pass_by(29.0)
    one.read_on()
    one.timers.pass_by(100.0)
    assert one.is_open()
    one.fill()
    one.timers.pass_by(29.0)
    assert one.is_open()


@pytest.mark.parametrize("at_once", [True, False])
def test_writes_queue_in_parts(at_once: bool) -> None:
    wire = ManualTransport(at_once=at_once)
    one = SocketBench(wire, queue_bytes=4 * 1024 * 1024)
    filled = one.fill()
    for number in range(200):
        one.deliver(chat_envelope(f"m-{number}", size=BIG))
    while one.socket.unread:
        wire.read()
        one.timers.pass_by(0.0)
    assert len(wire.texts) == filled + 200
    assert wire.most <= 2 * MAX_UNSENT_BYTES + BIG
    assert one.resumed == []


def test_delays_pong_until_transport_has_space() -> None:
    one = SocketBench()
    filled = one.fill()
    one.deliver(chat_envelope("kept"))
    one.send(*(ping_frame(b"%d" % number, MASK) for number in range(1000)))
    assert one.socket.unread < 2 * MAX_UNSENT_BYTES
    one.read_on()
    assert one.wire.seen[filled:] == [Pong(b"999"), chat_envelope("kept")]
    one.fill()
    one.read_on()
    assert one.wire.seen.count(Pong(b"999")) == 1


def test_aborts_unread_connection_after_close() -> None:
    one = SocketBench()
    one.fill()
    one.deliver(chat_envelope("kept"))
    one.socket.close(4003, "Not welcome.")
    one.timers.pass_by(CLOSING)
    assert one.wire.aborted
    one.socket.connection_lost(None)
    assert one.timers.waiting == 0


Step = tuple[str, int]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["say", "stop", "read", "some", "turn"]), st.integers(1, 9)),
        max_size=40,
    ),
    st.booleans(),
)
def test_reader_gets_messages_or_loss_count(steps: list[Step], at_once: bool) -> None:
    one = SocketBench(
        ManualTransport(at_once=at_once), queue=20, queue_bytes=40 * BIG, stalled=1e9, ping=1e9
    )
    said = 0
    for step, size in steps:
        if step == "say":
            one.deliver(*(chat_envelope(f"{said + at}", size=BIG) for at in range(size)))
            said += size
        elif step == "stop":
            one.wire.reads = False
        elif step == "read":
            one.wire.reads = True
            one.wire.read()
        elif step == "some":
            one.wire.read(size * BIG)
        else:
            one.wire.end_of_turn()
            one.timers.pass_by(0.0)
        assert one.socket.unread <= 42 * BIG + len(one.wire.unsent)
    for _ in range(10):
        one.read_on()
    order = [int(text.split(b'"id":"')[1].split(b'"')[0]) for text in one.wire.texts]
    assert order == sorted(set(order))
    assert len(order) + sum(loss.count for loss in one.resumed) == said


# -- who is silent


def test_disconnects_after_unanswered_ping() -> None:
    one = SocketBench(ping=30.0)
    one.timers.pass_by(30.0)
    one.timers.pass_by(30.0)
    assert one.wire.seen == [Ping(b"")]
    one.timers.pass_by(30.0)
    assert one.closed_with == 1011
    assert one.gone == ["disconnected: You did not respond to a ping."]
    one.timers.pass_by(CLOSING)
    assert one.wire.aborted


def test_keeps_responding_connection() -> None:
    one = SocketBench(ping=30.0)
    answered = 0
    for _ in range(20):
        one.timers.pass_by(30.0)
        if len(one.wire.seen) > answered:
            one.send(pong_frame(b"", MASK))
            answered += 1
    assert one.is_open()
    assert one.wire.seen == [Ping(b"")] * 10


def test_sends_no_ping_to_active_connection() -> None:
    one = SocketBench(ping=30.0)
    for _ in range(20):
        one.send(text(b"hello"))
        one.timers.pass_by(30.0)
    assert one.wire.seen == []


def test_stalled_reader_needs_no_pong() -> None:
    one = SocketBench(ping=10.0, stalled=1000.0)
    one.fill()
    one.timers.pass_by(500.0)
    assert one.is_open()
