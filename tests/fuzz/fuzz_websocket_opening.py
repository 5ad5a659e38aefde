"""The opening of a WebSocket: any bytes are an answer or none, any headers are lawful or not."""

from __future__ import annotations

from interlock.errors import ProtocolError
from interlock.protocol.websocket_handshake import (
    HandshakeResponseReader,
    check_response,
    find_rejection,
)
from tests.fuzz.heads import head_in_pieces

SEEDS = [
    b"\x03HTTP/1.1 101 Switched\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81",
    b"\x00HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\n{}",
    b"\x09HTTP/1.1 200\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nUpgrade: websocket\r\n"
    b"Connection: a,Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n",
    b"\x01HTTP/1.1 200 OK\r\n folded: \r\n:\r\n\r\n",
    b"\x20\r\n\r\n",
]


def TestOneInput(data: bytes) -> None:
    expected = head_in_pieces(HandshakeResponseReader, data)
    if expected is None:
        return
    answer, _ = expected
    why = find_rejection(b"GET", "1.1", answer.headers)
    assert why is None or why.status in (400, 426)
    try:
        check_response(answer, bytes(16))
    except ProtocolError:
        return
    assert answer.status == 101
