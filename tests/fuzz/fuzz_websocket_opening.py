"""The opening of a WebSocket: any bytes are an answer or none, any headers are lawful or not."""

from __future__ import annotations

from interlock.errors import ProtocolError
from interlock.protocol.websocket_opening import Answer, AnswerReader, check_answer, refusal

SEEDS = [
    b"\x03HTTP/1.1 101 Switched\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81",
    b"\x00HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\n{}",
    b"\x09HTTP/1.1 200\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nUpgrade: websocket\r\n"
    b"Connection: a,Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n",
    b"\x01HTTP/1.1 200 OK\r\n folded: \r\n:\r\n\r\n",
    b"\x20\r\n\r\n",
]


def TestOneInput(data: bytes) -> None:
    """The first byte is the size of a read."""
    if not data:
        return
    step, stream = 1 + data[0], data[1:]
    expected = _read(stream, len(stream) or 1)
    assert _read(stream, step) == expected
    if expected is None:
        return
    answer, _ = expected
    why = refusal(b"GET", "1.1", answer.headers)
    assert why is None or why.status in (400, 426)
    try:
        check_answer(answer, bytes(16))
    except ProtocolError:
        return
    assert answer.status == 101


def _read(stream: bytes, step: int) -> tuple[Answer, bytes] | None:
    reader = AnswerReader()
    for start in range(0, len(stream), step):
        try:
            answer = reader.feed(stream[start : start + step])
        except ProtocolError:
            return None
        if answer is not None:
            return answer, reader.rest + stream[start + step :]
    return None
