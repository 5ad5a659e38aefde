"""WebSocket frames, compared with another implementation."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Close as TheirClose
from websockets.frames import Frame as TheirFrame
from websockets.frames import Opcode
from websockets.protocol import OPEN, Protocol
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from interlock.protocol.websocket import (
    BinaryMessage,
    Close,
    FrameDecoder,
    Ping,
    Pong,
    Violation,
    WebSocketEvent,
    close_frame,
    ping_frame,
    pong_frame,
    text_frame,
)
from tests.protocol.parser_feeding import cut, feed_all
from tests.protocol.test_websocket import MASK, frame

LIMIT = 400

first_bytes = st.one_of(
    st.sampled_from([0x81, 0x82, 0x01, 0x02, 0x00, 0x80, 0x89, 0x8A, 0x88]), st.integers(0, 255)
)
payloads = st.one_of(
    st.text(max_size=60).map(str.encode),
    st.binary(max_size=200),
    st.tuples(st.integers(999, 1016) | st.integers(0, 5001), st.text(max_size=50)).map(
        lambda it: it[0].to_bytes(2, "big") + it[1].encode()
    ),
)
frames = st.lists(st.tuples(first_bytes, payloads), max_size=8)


def make_other_side(server: bool) -> Protocol:
    if server:
        return ServerProtocol(state=OPEN, max_size=LIMIT)
    return ClientProtocol(parse_uri("ws://localhost/"), state=OPEN, max_size=LIMIT)


def read_with_other(data: bytes, server: bool) -> list[WebSocketEvent]:
    """Return the messages that the other implementation reads, up to its rejection."""
    peer = make_other_side(server)
    peer.receive_data(data)
    events: list[WebSocketEvent] = []
    parts: list[bytes] = []
    kind = Opcode.TEXT
    for item in peer.events_received():
        assert isinstance(item, TheirFrame)
        payload = bytes(item.data)
        if item.opcode is Opcode.PING:
            events.append(Ping(payload))
        elif item.opcode is Opcode.PONG:
            events.append(Pong(payload))
        elif item.opcode is Opcode.CLOSE:
            close = TheirClose.parse(payload)
            events.append(Close(int(close.code), close.reason))
        else:
            assert item.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
            if item.opcode is not Opcode.CONT:
                kind = item.opcode
            parts.append(payload)
            if item.fin:
                whole = b"".join(parts)
                parts = []
                events.append(BinaryMessage(whole) if kind is Opcode.BINARY else whole)
    if parts and peer.close_rcvd is not None:
        # They resent a close between fragments. The RFC lets control frames stand there.
        events.append(Close(int(peer.close_rcvd.code), peer.close_rcvd.reason))
    elif peer.parser_exc is not None and peer.close_sent is not None and peer.close_rcvd is None:
        events.append(Violation(int(peer.close_sent.code), ""))
    return events


def reject_invalid_text(events: list[WebSocketEvent]) -> list[WebSocketEvent]:
    """Reject text that is not UTF-8, which the other implementation leaves to its reader."""
    for place, event in zip(count(), events, strict=False):
        if type(event) is bytes:
            try:
                event.decode()
            except UnicodeDecodeError:
                return [*events[:place], Violation(1007, "")]
    return events


def without_messages(events: list[WebSocketEvent]) -> list[WebSocketEvent]:
    return [
        Violation(event.code, "") if isinstance(event, Violation) else event for event in events
    ]


@given(frames, st.booleans(), st.lists(st.integers(0, 2000), max_size=5))
def test_reads_frames_like_other_implementation(
    sent: list[tuple[int, bytes]], server: bool, places: list[int]
) -> None:
    mask = MASK if server else b""
    data = b"".join(frame(first, payload, mask) for first, payload in sent)
    ours = feed_all(FrameDecoder(masked=server, max_message=LIMIT), cut(data, places))
    assert without_messages(ours) == reject_invalid_text(read_with_other(data, server))


@given(st.lists(st.text(max_size=150)), st.booleans(), st.binary(max_size=125))
def test_other_implementation_reads_written_frames(
    texts: list[str], server: bool, payload: bytes
) -> None:
    mask = MASK if server else b""
    messages: list[WebSocketEvent] = [text.encode() for text in texts]
    data = b"".join(text_frame(text.encode(), mask) for text in texts)
    data += ping_frame(payload, mask) + pong_frame(payload, mask) + close_frame(4000, "why", mask)
    expected = [*messages, Ping(payload), Pong(payload), Close(4000, "why")]
    assert read_with_other(data, server) == expected


@given(st.lists(st.text(max_size=150)), st.booleans())
def test_reads_frames_of_other_implementation(texts: list[str], server: bool) -> None:
    """`server`: we are."""
    peer = make_other_side(not server)
    for text in texts:
        peer.send_text(text[:70].encode(), fin=False)
        peer.send_ping(b"still there?")
        peer.send_continuation(text[70:].encode(), fin=True)
    peer.send_close(1001, "going")
    expected: list[WebSocketEvent] = []
    for text in texts:
        expected += [Ping(b"still there?"), text.encode()]
    decoder = FrameDecoder(masked=server, max_message=LIMIT * 4)
    data = b"".join(peer.data_to_send())
    assert feed_all(decoder, [data]) == [*expected, Close(1001, "going")]
