"""WebSocket framing: every split of the stream gives the same events, for both sides."""

from __future__ import annotations

import sys
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.errors import PARSE_ERROR, PAYLOAD_TOO_LARGE
from interlock.protocol import websocket
from interlock.protocol.websocket import (
    MAX_FRAGMENTS,
    BinaryMessage,
    Close,
    FrameDecoder,
    Ping,
    Pong,
    Violation,
    WebSocketEvent,
    close_frame,
    mask_in_python,
    ping_frame,
    pong_frame,
    text_frame,
    text_head,
)
from tests.protocol.parser_feeding import assert_every_split_gives, cut, feed_all

LIMIT = 70_000
MASK = b"\x37\xfa\x21\x3d"
CLIENT_DECODER = partial(FrameDecoder, masked=False, max_message=LIMIT)
SERVER_DECODER = partial(FrameDecoder, masked=True, max_message=LIMIT)


def frame(first: int, payload: bytes = b"", mask: bytes = b"", length: bytes = b"") -> bytes:
    """Return a frame, which may be invalid.

    `length` is the second byte and the bytes of the length.
    """
    if not length:
        size = len(payload)
        if size < 126:
            length = bytes((size,))
        elif size < 65536:
            length = b"\x7e" + size.to_bytes(2, "big")
        else:
            length = b"\x7f" + size.to_bytes(8, "big")
    if mask:
        length = bytes((length[0] | 0x80,)) + length[1:]
        payload = mask_slowly(payload, mask)
    return bytes((first,)) + length + mask + payload


def mask_slowly(payload: bytes, mask: bytes) -> bytes:
    return bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


def check(frames: list[tuple[int, bytes]], expected: list[WebSocketEvent]) -> None:
    """Check that both decoders read the frames, in every split."""
    for make, mask in ((CLIENT_DECODER, b""), (SERVER_DECODER, MASK)):
        data = b"".join(frame(first, payload, mask) for first, payload in frames)
        more = text_frame(b"more", mask)
        assert_every_split_gives(
            make, data, expected, trailing=more[:3], rest=more[3:], trailing_items=[b"more"]
        )


def check_rejected(
    data: bytes, expected: Violation, make: partial[FrameDecoder] = CLIENT_DECODER
) -> None:
    """Check that the data are rejected in every split."""
    nothing: list[WebSocketEvent] = []
    assert_every_split_gives(
        make, data, [expected], trailing=b"\x81", rest=b"\x01a", trailing_items=nothing
    )


@pytest.mark.parametrize(
    ("data", "make", "event"),
    [
        pytest.param("810548656c6c6f", CLIENT_DECODER, b"Hello", id="unmasked text"),
        pytest.param("818537fa213d7f9f4d5158", SERVER_DECODER, b"Hello", id="masked text"),
        pytest.param("890548656c6c6f", CLIENT_DECODER, Ping(b"Hello"), id="ping"),
        pytest.param("8a8537fa213d7f9f4d5158", SERVER_DECODER, Pong(b"Hello"), id="masked pong"),
        pytest.param("010348656c80026c6f", CLIENT_DECODER, b"Hello", id="fragmented text"),
    ],
)
def test_reads_rfc_examples(data: str, make: partial[FrameDecoder], event: WebSocketEvent) -> None:
    assert feed_all(make(), [bytes.fromhex(data)]) == [event]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 133, 134, 65535, 65536, LIMIT])
def test_reads_every_length_form(size: int) -> None:
    text = b"x" * size
    for make, mask in ((CLIENT_DECODER, b""), (SERVER_DECODER, MASK)):
        data = text_frame(text, mask)
        assert data == frame(0x81, text, mask)
        assert make().feed(data) == [text]
        for place in (1, 2, 3, 5, 9, 12, len(data) - 1):
            assert feed_all(make(), cut(data, [place])) == [text]
        assert make().feed(data + data + data[:1]) == [text, text]


def test_reads_messages_and_control_frames() -> None:
    check(
        [(0x81, b"one"), (0x82, b"\xff\x00"), (0x81, b"")],
        [b"one", BinaryMessage(b"\xff\x00"), b""],
    )
    check(
        [(0x81, "Grüße, 世界".encode()), (0x89, b""), (0x8A, b"\xff")],
        ["Grüße, 世界".encode(), Ping(b""), Pong(b"\xff")],
    )


def test_joins_fragments_around_control_frames() -> None:
    check([(0x01, b"a"), (0x00, b"b"), (0x80, b"c")], [b"abc"])
    check([(0x01, b""), (0x89, b"p"), (0x00, b""), (0x80, b"")], [Ping(b"p"), b""])
    check([(0x02, b"\xff"), (0x80, b"\xfe"), (0x81, b"t")], [BinaryMessage(b"\xff\xfe"), b"t"])
    # A character may be cut by the fragments.
    euro = "€".encode()
    check([(0x01, euro[:1]), (0x8A, b""), (0x80, euro[1:])], [Pong(b""), euro])


def test_ignores_bytes_after_close() -> None:
    for payload, event in (
        (b"", Close(1005, "")),
        (b"\x03\xe8", Close(1000, "")),
        (b"\x0f\xa0namespace_conflict", Close(4000, "namespace_conflict")),
        (b"\x03\xe9" + "geschlossen – für heute".encode(), Close(1001, "geschlossen – für heute")),
    ):
        nothing: list[WebSocketEvent] = []
        data = text_frame(b"last") + frame(0x88, payload)
        assert_every_split_gives(
            CLIENT_DECODER,
            data,
            [b"last", event],
            trailing=b"\x81",
            rest=b"\x01a",
            trailing_items=nothing,
        )


@pytest.mark.parametrize(
    ("data", "code"),
    [
        *(pytest.param(frame(0x81 | bit), 1002, id=f"bit {bit}") for bit in (0x10, 0x20, 0x40)),
        *(pytest.param(frame(0x80 | op), 1002, id=f"op {op}") for op in (3, 4, 5, 6, 7, 11, 15)),
        pytest.param(frame(0x81, b"a", MASK), 1002, id="masked"),
        pytest.param(frame(0x09), 1002, id="fragmented ping"),
        pytest.param(frame(0x08), 1002, id="fragmented close"),
        pytest.param(frame(0x89, b"x" * 126), 1002, id="long ping"),
        pytest.param(frame(0x80, b"a"), 1002, id="without a fragmented message"),
        pytest.param(frame(0x00, b"a"), 1002, id="continuation without message"),
        pytest.param(frame(0x81, b"x" * 125, length=b"\x7e\x00\x7d"), 1002, id="125 in 2 bytes"),
        pytest.param(frame(0x81, b"x", length=b"\x7f" + bytes(7) + b"\x01"), 1002, id="1 in 8"),
        pytest.param(
            frame(0x81, length=b"\x7f" + (65535).to_bytes(8, "big")), 1002, id="65535 in 8"
        ),
        pytest.param(frame(0x81, length=b"\x7f" + b"\x80" + bytes(7)), 1002, id="highest bit"),
        pytest.param(frame(0x88, b"\x03"), 1002, id="incomplete close code"),
        *(
            pytest.param(frame(0x88, code.to_bytes(2, "big")), 1002, id=f"close {code}")
            for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535)
        ),
        pytest.param(frame(0x88, b"\x03\xe8\xff"), 1007, id="close reason"),
        pytest.param(frame(0x81, b"\xff"), 1007, id="text"),
        pytest.param(frame(0x81, b"\xed\xa0\x80"), 1007, id="half a surrogate pair"),
        pytest.param(frame(0x01, b"\xe2\x82") + frame(0x80, b"a"), 1007, id="text in parts"),
        pytest.param(
            frame(0x81, length=b"\x7f" + (LIMIT + 1).to_bytes(8, "big")), 1009, id="too long"
        ),
    ],
)
def test_rejects_invalid_frames(data: bytes, code: int) -> None:
    decoder = CLIENT_DECODER()
    (violation,) = feed_all(decoder, [data])
    assert isinstance(violation, Violation)
    assert violation.code == code
    assert violation.error().failure is (PAYLOAD_TOO_LARGE if code == 1009 else PARSE_ERROR)
    assert decoder.pending == 0
    check_rejected(data, violation)


def test_server_requires_masks() -> None:
    violation = Violation(1002, "A frame is not masked.")
    for size in (0, 5, 6, 126, 128, 134, 300):
        check_rejected(frame(0x81, b"x" * size), violation, SERVER_DECODER)
    # Its unmasked length, read as a masked one, would fit what is there.
    for second in range(128):
        assert SERVER_DECODER().feed(bytes((0x81, second)) + b"x" * (second + 132)) == [violation]


def test_reads_eight_byte_length() -> None:
    decoder = CLIENT_DECODER()
    assert decoder.feed(b"\x81\x7f" + bytes(5) + b"\x01\x00\x00" + b"x" * 119) == []
    assert decoder.feed(b"x" * (65536 - 119)) == [b"x" * 65536]


@pytest.mark.parametrize("size", [120, 121, 125])
def test_rejects_longer_length_form_than_needed(size: int) -> None:
    data = frame(0x81, b"x" * size, MASK, b"\x7e" + size.to_bytes(2, "big"))
    check_rejected(data, Violation(1002, "A length is not in its shortest form."), SERVER_DECODER)


def test_rejects_message_inside_other_message() -> None:
    for opcode in (0x81, 0x82, 0x01):
        data = frame(0x01, b"a") + frame(opcode, b"b")
        check_rejected(data, Violation(1002, "A message begins before the previous one has ended."))


def test_limits_whole_message() -> None:
    make = partial(FrameDecoder, masked=False, max_message=4)
    too_long = Violation(1009, "A message is longer than 4 bytes.")
    assert make().feed(text_frame(b"1234")) == [b"1234"]
    assert feed_all(make(), [frame(0x01, b"12"), frame(0x80, b"34")]) == [b"1234"]
    # Control frames do not count.
    assert make().feed(frame(0x89, b"123456")) == [Ping(b"123456")]
    for length in (5, 20, 125, 126, 300):
        check_rejected(text_frame(b"x" * length), too_long, make)
    check_rejected(frame(0x01, b"12") + frame(0x00) + frame(0x80, b"345"), too_long, make)
    with pytest.raises(ValueError):
        FrameDecoder(masked=False, max_message=0)


def test_empty_fragments_use_no_memory() -> None:
    decoder = CLIENT_DECODER()
    assert decoder.feed(frame(0x01, b"a") + frame(0x00) * 1000) == []
    assert decoder.pending == 1
    assert decoder.feed(frame(0x80, b"b")) == [b"ab"]


@pytest.mark.parametrize("part", [b"", b"x"])
def test_limits_number_of_fragments(part: bytes) -> None:
    decoder = CLIENT_DECODER()
    assert decoder.feed(frame(0x01, part) + frame(0x00, part) * (MAX_FRAGMENTS - 1)) == []
    assert decoder.is_unfinished
    assert decoder.feed(frame(0x80, part)) == [part * (MAX_FRAGMENTS + 1)]
    assert not decoder.is_unfinished
    decoder.feed(frame(0x01, part) + frame(0x00, part) * (MAX_FRAGMENTS - 1))
    [violation] = decoder.feed(frame(0x00, part) * 3)
    assert isinstance(violation, Violation)
    assert violation.code == 1009
    assert "fragments" in violation.message


def test_counts_finished_messages() -> None:
    decoder = CLIENT_DECODER()
    decoder.feed(frame(0x01, b"a"))
    before = decoder.finished_count
    # Neither more of it nor what may stand in between ends it.
    decoder.feed(frame(0x00, b"b") + frame(0x89, b"ping"))
    decoder.feed(frame(0x80, b"c")[:1])
    assert (decoder.finished_count, decoder.pending) == (before, 3)
    decoder.feed(frame(0x80, b"c")[1:] + text_frame(b"next")[:3])
    assert decoder.finished_count > before
    before = decoder.finished_count
    decoder.feed(text_frame(b"next")[3:] + frame(0x89, b"ping")[:3])
    assert decoder.finished_count > before
    before = decoder.finished_count
    decoder.feed(frame(0x89, b"ping")[3:])
    assert (decoder.finished_count > before, decoder.pending) == (True, 0)


def test_writes_control_frames() -> None:
    for mask in (b"", MASK):
        decoder = FrameDecoder(masked=bool(mask), max_message=10)
        data = ping_frame(b"a", mask) + pong_frame(b"b", mask) + close_frame(4000, "why", mask)
        assert decoder.feed(data) == [Ping(b"a"), Pong(b"b"), Close(4000, "why")]
    assert close_frame(1005) == b"\x88\x00"
    with pytest.raises(ValueError):
        close_frame(1006)
    with pytest.raises(ValueError):
        ping_frame(b"x" * 126)
    with pytest.raises(ValueError):
        text_frame(b"x", b"123")


@pytest.mark.parametrize("reason", ["x" * 200, "€" * 100, "ab" + "€" * 100, "\ud800"])
def test_shortens_close_reason_at_character(reason: str) -> None:
    (closed,) = CLIENT_DECODER().feed(close_frame(1000, reason))
    assert isinstance(closed, Close)
    assert len(closed.reason.encode()) <= 123
    assert reason.startswith(closed.reason) or closed.reason == "?"


def test_writes_head_of_large_message() -> None:
    for size in (0, 126, 65536):
        assert text_head(size) + b"x" * size == text_frame(b"x" * size)


@given(st.binary(max_size=3000), st.binary(min_size=4, max_size=4))
def test_masks_payload(payload: bytes, mask: bytes) -> None:
    expected = mask_slowly(payload, mask)
    assert mask_in_python(payload, mask) == expected
    assert websocket.apply_mask(payload, mask) == expected
    assert mask_in_python(expected, mask) == payload


def test_works_without_native_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "websockets.speedups", None)
    assert websocket._select_mask_function() is mask_in_python
    monkeypatch.setattr(websocket, "apply_mask", mask_in_python)
    for size in (0, 5, 200, 5000):
        data = text_frame(b"x" * size, MASK)
        assert SERVER_DECODER().feed(data) == [b"x" * size]
        assert feed_all(SERVER_DECODER(), cut(data, [3, 9])) == [b"x" * size]


@given(st.lists(st.text(max_size=300)), st.binary(min_size=4, max_size=4), st.lists(st.integers(0)))
def test_written_messages_can_be_read(texts: list[str], mask: bytes, places: list[int]) -> None:
    messages = [text.encode() for text in texts]
    for used in (b"", mask):
        data = b"".join(text_frame(message, used) for message in messages)
        decoder = FrameDecoder(masked=bool(used), max_message=LIMIT)
        assert feed_all(decoder, cut(data, places)) == messages
        assert decoder.pending == 0
