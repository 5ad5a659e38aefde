"""Newline-delimited framing: every split of the stream gives the same lines."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.errors import INVALID_REQUEST, PAYLOAD_TOO_LARGE, ProtocolError
from interlock.protocol.lines import MAX_LINE_BYTES, LineDecoder, OversizeLine, encode_line
from tests.protocol.parser_feeding import assert_every_split_gives, cut, feed_all, splits

LIMIT = 16


def small_decoder() -> LineDecoder:
    return LineDecoder(LIMIT)


def check(data: bytes, expected: Sequence[bytes | OversizeLine]) -> None:
    assert_every_split_gives(
        small_decoder, data, expected, trailing=b'{"i', rest=b'":1}\n', trailing_items=[b'{"i":1}']
    )


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        pytest.param(b"", [], id="nothing"),
        pytest.param(b'{"id":1}\n', [b'{"id":1}'], id="one line"),
        pytest.param(b"a\nb\nc\n", [b"a", b"b", b"c"], id="several lines"),
        pytest.param(b"a\r\nb\r\n", [b"a", b"b"], id="crlf"),
        pytest.param(b"a\r\r\n", [b"a\r"], id="only one carriage return belongs to the line end"),
        pytest.param(b"a\rb\n", [b"a\rb"], id="a carriage return inside a line stays"),
        pytest.param(b"\n\r\n  \n\t\r\n", [], id="blank lines"),
        pytest.param(b"\na\n\nb\n\n", [b"a", b"b"], id="blank lines between"),
        pytest.param(b" a \n", [b" a "], id="white space around a line stays"),
        pytest.param(b"\x00\xff\xfe\n", [b"\x00\xff\xfe"], id="any bytes"),
        pytest.param(b"x" * LIMIT + b"\n", [b"x" * LIMIT], id="exactly at the limit"),
    ],
)
def test_reads_lines(data: bytes, lines: list[bytes]) -> None:
    check(data, lines)


@pytest.mark.parametrize("length", [LIMIT + 1, LIMIT + 2, 3 * LIMIT, 50 * LIMIT])
def test_reports_oversize_line_and_continues(length: int) -> None:
    big = b"x" * length
    oversize = OversizeLine(LIMIT, big[:LIMIT])
    check(big + b"\n", [oversize])
    check(b"before\n" + big + b"\nafter\r\n", [b"before", oversize, b"after"])
    check(big + b"\n" + big + b"\n", [oversize, oversize])


def test_carriage_return_counts_towards_limit() -> None:
    check(b"x" * LIMIT + b"\r\n", [OversizeLine(LIMIT, b"x" * LIMIT)])


def test_limits_whitespace() -> None:
    check(b" " * (LIMIT + 1) + b"\n", [OversizeLine(LIMIT, b" " * LIMIT)])


def test_reports_oversize_line_early_without_storing_it() -> None:
    decoder = small_decoder()
    assert decoder.feed(b"x" * LIMIT) == []
    assert decoder.pending == LIMIT
    assert decoder.feed(b"x") == [OversizeLine(LIMIT, b"x" * LIMIT)]
    assert decoder.pending == 0
    assert decoder.feed(b"x" * 1000) == []
    assert decoder.pending == 0
    assert decoder.feed(b"x\nnext\n") == [b"next"]


def test_oversize_line_keeps_start_with_id() -> None:
    start = b'{"jsonrpc":"2.0","id":7,"result":"'
    [oversize] = LineDecoder(1000).feed(start + b"x" * 1000)
    assert isinstance(oversize, OversizeLine)
    assert oversize.head.startswith(start)
    assert len(oversize.head) == 256


def test_describes_oversize_line() -> None:
    error = OversizeLine(LIMIT, b"").error()
    assert isinstance(error, ProtocolError)
    assert error.failure is PAYLOAD_TOO_LARGE
    assert error.message.startswith("A line is longer than 16 bytes")
    assert error.data == {"limit": LIMIT}


def test_default_limit_is_four_mib() -> None:
    decoder = LineDecoder()
    assert decoder.feed(b"x" * MAX_LINE_BYTES + b"\n") == [b"x" * MAX_LINE_BYTES]
    [oversize] = decoder.feed(b"x" * (MAX_LINE_BYTES + 1) + b"\n")
    assert isinstance(oversize, OversizeLine)
    assert oversize.limit == 4 * 1024 * 1024


def test_rejects_limit_below_one() -> None:
    with pytest.raises(ValueError, match="max_bytes"):
        LineDecoder(0)


@pytest.mark.parametrize(
    ("data", "tail"),
    [
        (b"", None),
        (b"whole\n", None),
        (b"cut off", b"cut off"),
        (b"whole\ncut off", b"cut off"),
        (b"cut off\r", b"cut off"),
        (b" \t", None),
        (b"x" * (LIMIT + 1), None),
    ],
)
def test_close_returns_incomplete_line(data: bytes, tail: bytes | None) -> None:
    for name, chunks in splits(data):
        decoder = small_decoder()
        feed_all(decoder, chunks)
        assert decoder.close() == tail, name
        assert decoder.pending == 0, name
        assert decoder.feed(b"again\n") == [b"again"], name


@pytest.mark.parametrize("payload", [b"a\nb", b"a\n", b"\ra", b"a\r\nb", b"", b"  ", b"\t"])
def test_rejects_payload_with_line_breaks(payload: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        encode_line(payload)
    assert caught.value.failure is INVALID_REQUEST


one_line = st.binary(min_size=1, max_size=40).filter(
    lambda payload: not payload.isspace() and b"\n" not in payload and b"\r" not in payload
)
places = st.lists(st.integers(0, 400), max_size=8)


@given(payloads=st.lists(one_line, max_size=8), places=places)
def test_lines_survive_round_trip_in_any_split(payloads: list[bytes], places: list[int]) -> None:
    stream = b"".join(encode_line(payload) for payload in payloads)
    decoder = LineDecoder()
    assert feed_all(decoder, cut(stream, places)) == payloads
    assert decoder.close() is None


stream_bytes = st.lists(
    st.sampled_from([b"\n", b"\r", b"\r\n", b" ", b"a", b"bc", b"x" * 15, b"y" * 16, b"z" * 17])
).map(b"".join)


@given(stream=stream_bytes | st.binary(), places=places)
def test_any_split_equals_splitting_at_newlines(stream: bytes, places: list[int]) -> None:
    *ended, tail = stream.split(b"\n")
    expected: list[bytes | OversizeLine] = []
    for line in ended:
        if len(line) > LIMIT:
            expected.append(OversizeLine(LIMIT, line[:LIMIT]))
        elif line.strip():
            expected.append(line.removesuffix(b"\r"))
    if len(tail) > LIMIT:
        expected.append(OversizeLine(LIMIT, tail[:LIMIT]))
    decoder = small_decoder()
    assert feed_all(decoder, cut(stream, places)) == expected
    assert decoder.pending <= LIMIT
