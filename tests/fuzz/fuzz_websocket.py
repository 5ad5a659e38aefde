"""WebSocket framing: however a stream is cut, the same events come out, and little is kept."""

from __future__ import annotations

from interlock.protocol.websocket import (
    BinaryMessage,
    Close,
    FrameDecoder,
    Ping,
    Violation,
    WebSocketEvent,
    close_frame,
    pong_frame,
    text_frame,
)

SEEDS = [
    b"\x20\x01\x81\x05Hello\x89\x02hi\x88\x02\x03\xe8",
    b"\xa0\x02\x81\x857\xfa!=\x7f\x9fMQX\x82\x80\0\0\0\0",
    b"\x20\x03\x01\x03Hel\x8a\x00\x80\x02lo\x81\x00",
    b"\x7f\x40\x81\x7e\x00\x7e" + b"x" * 126 + b"\x81\x7e\x00\x7d",
    b"\x10\x00\x81\x11" + b"x" * 17,
    b"\x20\x00\x88\x06\x0f\xa0why?\x81\x01a",
    b"\x20\x00\x81\x02\xff\xff",
    b"\x20\x00\xc1\x00",
    b"\xff\x07\x81\xfe\x00\x80abcd" + b"z" * 128,
]


def TestOneInput(data: bytes) -> None:
    """The first byte is the side and the limit, the second the size of a read."""
    if len(data) < 2:
        return
    masked, limit, step, stream = data[0] > 127, 1 + data[0] % 128, 1 + data[1], data[2:]
    whole = FrameDecoder(masked=masked, max_message=limit)
    pieces = FrameDecoder(masked=masked, max_message=limit)
    expected = whole.feed(stream)
    read: list[WebSocketEvent] = []
    for start in range(0, len(stream), step):
        read += pieces.feed(stream[start : start + step])
        # The message so far, one frame's head, a control frame, and a read.
        assert pieces.pending <= limit + 14 + 125 + step
    assert read == expected
    assert pieces.pending == whole.pending
    for event in read[:-1]:
        assert not isinstance(event, Violation | Close)
    for event in read:
        _write_again(event, limit)


def _write_again(event: WebSocketEvent, limit: int) -> None:
    if isinstance(event, bytes):
        event.decode()
        assert len(event) <= limit
        for mask in (b"", b"abcd"):
            decoder = FrameDecoder(masked=bool(mask), max_message=limit)
            assert decoder.feed(text_frame(event, mask)) == [event]
    elif isinstance(event, BinaryMessage):
        assert len(event.payload) <= limit
    elif isinstance(event, Ping):
        pong_frame(event.payload)
    elif isinstance(event, Close):
        decoder = FrameDecoder(masked=False, max_message=1)
        assert decoder.feed(close_frame(event.code, event.reason)) == [event]
