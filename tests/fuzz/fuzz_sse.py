"""SSE framing: however a stream is cut, the same events come out, or the oversize error."""

from __future__ import annotations

from interlock.protocol.sse import OversizeEvent, SseDecoder, SseEvent

SEEDS = [
    b"\xff\x01event: message\r\ndata: {}\r\n\r\n: ping\r\n\r\nid: 1\r\nretry: 5\r\ndata:\r\n\r\n",
    b"\xff\x02\xef\xbb\xbfdata: a\ndata: b\n\nid\n\ndata\r\r",
    b"\x08\x03data: 1\n\ndata: 1234567890\ndata: x\n\ndata: 2\n\n",
    b"\x0a\x00:::::::::::::::::\r\n\r\ndata:x\r\r\n\n",
    b"\xff\x05id: \0\nretry: 99999999999999999999\nevent:\ndata: \xff\n\n",
]


def TestOneInput(data: bytes) -> None:
    """The first byte is the limit, the second the size of a read."""
    if len(data) < 2:
        return
    limit, step, stream = 1 + data[0], 1 + data[1], data[2:]
    whole, cut = SseDecoder(limit), SseDecoder(limit)
    expected, was_oversize = _read(whole, stream)
    events: list[SseEvent] = []
    oversize = False
    for start in range(0, len(stream), step):
        more, refused = _read(cut, stream[start : start + step])
        events += more
        oversize = oversize or refused
        assert cut.pending <= max(limit, 2)
    assert (events, oversize) == (expected, was_oversize)
    assert (cut.last_event_id, cut.retry) == (whole.last_event_id, whole.retry)
    assert all(len(event.data) <= limit for event in events)


def _read(decoder: SseDecoder, data: bytes) -> tuple[list[SseEvent], bool]:
    try:
        return decoder.feed(data), False
    except OversizeEvent as oversize:
        return oversize.events, True
