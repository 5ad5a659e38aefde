"""Line framing: however a stream is cut, the same lines come out, and little is kept."""

from __future__ import annotations

from interlock.protocol.lines import LineDecoder, OversizeLine

SEEDS = [
    b"\x08\x01a\nbb\r\n\nccccccccc\nd\n",
    b"\x00\x00\n\r\n\r\r\n",
    b"\x03\x02    \n    x\n\t\t\t\t\t",
    b'\xff\x10{"jsonrpc":"2.0","id":1,"method":"ping"}\n{"jsonrpc":"2.0","id":1,"result":{}}\r\n',
]


def TestOneInput(data: bytes) -> None:
    """The first byte is the limit, the second the size of a read."""
    if len(data) < 2:
        return
    limit, step, stream = 1 + data[0], 1 + data[1], data[2:]
    whole, cut = LineDecoder(limit), LineDecoder(limit)
    expected = whole.feed(stream)
    read: list[bytes | OversizeLine] = []
    for start in range(0, len(stream), step):
        read += cut.feed(stream[start : start + step])
        assert cut.pending <= limit
    assert read == expected
    assert all(isinstance(line, OversizeLine) or 0 < len(line) <= limit for line in read)
    assert cut.close() == whole.close()
