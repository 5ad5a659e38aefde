"""Server-Sent Events: the WHATWG algorithm, for every split of the stream."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interlock.errors import INVALID_REQUEST, PAYLOAD_TOO_LARGE, ProtocolError
from interlock.protocol.sse import (
    COMMENT_PING,
    MAX_EVENT_BYTES,
    OversizeEvent,
    SseDecoder,
    SseEvent,
    encode_event,
)
from tests.protocol.parser_feeding import assert_every_split_gives, cut, feed_all, splits


def check(data: bytes, expected: list[SseEvent]) -> None:
    assert_every_split_gives(
        SseDecoder,
        data,
        expected,
        trailing=b"data: tra",
        rest=b"iling\n\n",
        trailing_items=[SseEvent(b"trailing")],
    )


@pytest.mark.parametrize(
    ("data", "events"),
    [
        pytest.param(b"", [], id="nothing"),
        pytest.param(b"data: x\n\n", [SseEvent(b"x")], id="lf"),
        pytest.param(b"data: x\r\n\r\n", [SseEvent(b"x")], id="crlf"),
        pytest.param(b"data: x\r\r", [SseEvent(b"x")], id="cr"),
        pytest.param(b"data: x\n\r\n", [SseEvent(b"x")], id="lf then crlf"),
        pytest.param(b"data: x\r\n\n", [SseEvent(b"x")], id="crlf then lf"),
        pytest.param(b"data: x\r\n\r", [SseEvent(b"x")], id="crlf then cr"),
        pytest.param(b"data: x\r\n\ndata: y\n\r", [SseEvent(b"x"), SseEvent(b"y")], id="mixed"),
        pytest.param(b"event: message\r\ndata: {}\r\n\r\n", [SseEvent(b"{}")], id="as SDKs write"),
        pytest.param(b"event: message\ndata: {}\n\n", [SseEvent(b"{}")], id="the same with lf"),
        pytest.param(
            b"data: 1\n\ndata: 2\r\n\r\ndata: 3\r\r",
            [SseEvent(b"1"), SseEvent(b"2"), SseEvent(b"3")],
            id="several events",
        ),
        pytest.param(b"\xef\xbb\xbfdata: x\n\n", [SseEvent(b"x")], id="byte order mark"),
        pytest.param(
            b"data: x\n\n\xef\xbb\xbfdata: y\n\n", [SseEvent(b"x")], id="a mark only at the start"
        ),
        pytest.param(b"\xef\xbb\xbf\xef\xbb\xbfdata: x\n\n", [], id="only one mark is taken off"),
        pytest.param(b"\xef\xbbdata: x\n\n", [], id="half a mark is part of a field name"),
        pytest.param(b": comment\n\ndata: x\n\n", [SseEvent(b"x")], id="comment"),
        pytest.param(b"data: x\n: comment\ndata: y\n\n", [SseEvent(b"x\ny")], id="comment inside"),
        pytest.param(b":\n:\n:\n\n", [], id="comments only"),
        pytest.param(COMMENT_PING, [], id="ping"),
        pytest.param(b"data: a\ndata: b\ndata:  c\n\n", [SseEvent(b"a\nb\n c")], id="three lines"),
        pytest.param(b"data:x\n\n", [SseEvent(b"x")], id="no space"),
        pytest.param(b"data:  x\n\n", [SseEvent(b" x")], id="only one space is taken off"),
        pytest.param(b"data: a:b: c\n\n", [SseEvent(b"a:b: c")], id="colons in data"),
        pytest.param(b"data\n\n", [SseEvent(b"")], id="data without colon"),
        pytest.param(b"data\ndata\n\n", [SseEvent(b"\n")], id="data without colon, twice"),
        pytest.param(b"data:\n\n", [SseEvent(b"")], id="empty data"),
        pytest.param(b"data: \n\n", [SseEvent(b"")], id="empty data after a space"),
        pytest.param(b"event: ping\n\n", [], id="no data, no event"),
        pytest.param(
            b"event: ping\n\ndata: x\n\n", [SseEvent(b"x")], id="a type without data is forgotten"
        ),
        pytest.param(
            b"event: endpoint\ndata: /messages?id=1\n\n",
            [SseEvent(b"/messages?id=1", "endpoint")],
            id="the first event of HTTP+SSE",
        ),
        pytest.param(b"event:\ndata: x\n\n", [SseEvent(b"x")], id="an empty type is message"),
        pytest.param(b"event\ndata: x\n\n", [SseEvent(b"x")], id="a type without colon"),
        pytest.param(
            b"event: a\nevent: b\ndata: x\n\n", [SseEvent(b"x", "b")], id="the last type counts"
        ),
        pytest.param(
            b"id: 7\ndata: x\n\ndata: y\n\n",
            [SseEvent(b"x", id="7"), SseEvent(b"y")],
            id="an id is said by its own event only",
        ),
        pytest.param(b"id: 7\ndata:\n\n", [SseEvent(b"", id="7")], id="priming event"),
        pytest.param(
            b"id: 7\nretry: 500\ndata:\n\n",
            [SseEvent(b"", id="7", retry=500)],
            id="priming event with retry",
        ),
        pytest.param(b"id\ndata: x\n\n", [SseEvent(b"x", id="")], id="an empty id"),
        pytest.param(b"id: a\x00b\ndata: x\n\n", [SseEvent(b"x")], id="an id with NUL is ignored"),
        pytest.param(
            "id: é\nevent: ü\ndata: x\n\n".encode(), [SseEvent(b"x", "ü", "é")], id="utf-8"
        ),
        pytest.param(
            b"id: \xff\ndata: \xff\n\n", [SseEvent(b"\xff", id="�")], id="bytes that are no utf-8"
        ),
        pytest.param(b"retry: 12x\ndata: x\n\n", [SseEvent(b"x")], id="retry must be digits"),
        pytest.param(b"retry: -1\ndata: x\n\n", [SseEvent(b"x")], id="retry has no sign"),
        pytest.param(b"retry:\ndata: x\n\n", [SseEvent(b"x")], id="an empty retry"),
        pytest.param(
            "retry: ٣\ndata: x\n\n".encode(), [SseEvent(b"x")], id="retry takes ASCII digits only"
        ),
        pytest.param(
            b"retry: 007\ndata: x\n\n", [SseEvent(b"x", retry=7)], id="retry with leading zeros"
        ),
        pytest.param(b"retry: 0\ndata: x\n\n", [SseEvent(b"x", retry=0)], id="a retry of nothing"),
        pytest.param(
            b"retry: " + b"9" * 5000 + b"\ndata: x\n\n", [SseEvent(b"x")], id="an absurd retry"
        ),
        pytest.param(b"DATA: x\nData: y\n\n", [], id="field names have a case"),
        pytest.param(b" data: x\n\n", [], id="no space before a field name"),
        pytest.param(b"what: ever\ndata: x\nmore\n\n", [SseEvent(b"x")], id="unknown fields"),
        pytest.param(
            b"event: a\r\nid: 1\r\nretry: 2\r\ndata: x\r\ndata: y\r\n\r\n",
            [SseEvent(b"x\ny", "a", "1", 2)],
            id="every field, with crlf",
        ),
        pytest.param(
            b"event: a\rid: 1\rdata: x\rdata: y\r\r",
            [SseEvent(b"x\ny", "a", "1")],
            id="several fields, with cr",
        ),
        pytest.param(b"\n\n\n\ndata: x\n\n\n\n", [SseEvent(b"x")], id="extra blank lines"),
    ],
)
def test_reads_events(data: bytes, events: list[SseEvent]) -> None:
    check(data, events)


def test_ignores_unfinished_event() -> None:
    for name, chunks in splits(b"id: 1\ndata: x\n"):
        decoder = SseDecoder()
        assert feed_all(decoder, chunks) == [], name
        assert decoder.pending == len(b"id: 1data: x"), name
        assert decoder.last_event_id is None, name


def test_returns_event_with_last_byte() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: x\r\n\r") == [SseEvent(b"x")]
    assert decoder.feed(b"\ndata: y\r\n\r\n") == [SseEvent(b"y")]
    assert decoder.pending == 0


@pytest.mark.parametrize(
    ("data", "last"),
    [
        (b"data: x\n\n", None),
        (b"id: 1\ndata: x\n\n", "1"),
        (b"id: 1\ndata: x\n\ndata: y\n\n", "1"),
        (b"id: 1\n\n", "1"),
        (b"id: 1\ndata: x\n\nid: 2\n\n", "2"),
        (b"id: 1\ndata: x\n\nid: 2\ndata: y", "1"),
        (b"id: 1\ndata: x\n\nid:\ndata: y\n\n", ""),
        (b"id: 1\ndata: x\n\nid: 2\x00\ndata: y\n\n", "1"),
        (b"id: 1\nid: 2\ndata: x\n\n", "2"),
    ],
)
def test_keeps_last_event_id(data: bytes, last: str | None) -> None:
    for name, chunks in splits(data):
        decoder = SseDecoder()
        feed_all(decoder, chunks)
        assert decoder.last_event_id == last, name


def test_reads_retry_without_data() -> None:
    for name, chunks in splits(b"retry: 250\n\n"):
        decoder = SseDecoder()
        assert feed_all(decoder, chunks) == [], name
        assert decoder.retry == 250, name


class CollectingParser:
    """A decoder that counts oversize events instead of raising."""

    def __init__(self, limit: int) -> None:
        self.decoder = SseDecoder(limit)
        self.oversize_count = 0

    def feed(self, data: bytes) -> list[SseEvent]:
        try:
            return self.decoder.feed(data)
        except OversizeEvent as oversize:
            self.oversize_count += 1
            return oversize.events


LIMIT = 30


@pytest.mark.parametrize(
    "big",
    [
        pytest.param(b"data: " + b"x" * 25 + b"\n\n", id="just over, in one line"),
        pytest.param(b"data: " + b"x" * 500 + b"\r\n\r\n", id="far over, in one line"),
        pytest.param(b"data: " + b"x" * 500 + b"\ndata: x\nid: 9\n\n", id="with lines behind it"),
        pytest.param(b"data: xxxxx\n" * 3 + b"\n", id="over with several lines"),
        pytest.param(b":" * 31 + b"\n\n", id="a comment that does not fit"),
        pytest.param(b"event: " + b"e" * 30 + b"\ndata: x\n\n", id="a long type"),
        pytest.param(b"x" * 31 + b"\r\r", id="a long unknown field"),
    ],
)
def test_rejects_only_oversize_event(big: bytes) -> None:
    before, after = encode_event(b"before"), encode_event(b"after")
    for name, chunks in splits(before + big + after):
        parser = CollectingParser(LIMIT)
        assert feed_all(parser, chunks) == [SseEvent(b"before"), SseEvent(b"after")], name
        assert parser.oversize_count == 1, name
        assert parser.decoder.last_event_id is None, name
        assert parser.decoder.pending == 0, name


@pytest.mark.parametrize(
    "fits",
    [
        b"data: " + b"x" * 24 + b"\n\n",
        b"data: " + b"x" * 24 + b"\r\n\r\n",
        b"id: 1\ndata: " + b"x" * 19 + b"\n\n",
        (b":" + b"c" * 20 + b"\n") * 9 + b"data: x\n\n",
    ],
)
def test_reads_event_at_limit(fits: bytes) -> None:
    for name, chunks in splits(fits):
        parser = CollectingParser(LIMIT)
        assert len(feed_all(parser, chunks)) == 1, name
        assert parser.oversize_count == 0, name


def test_reports_oversize_event_early_without_storing_it() -> None:
    decoder = SseDecoder(LIMIT)
    with pytest.raises(OversizeEvent) as caught:
        decoder.feed(b"data: " + b"x" * 25)
    assert caught.value.failure is PAYLOAD_TOO_LARGE
    assert caught.value.data == {"limit": LIMIT}
    assert decoder.feed(b"x" * 10_000) == []
    assert decoder.pending <= 1
    assert decoder.feed(b"\n\ndata: next\n\n") == [SseEvent(b"next")]


def test_skips_rest_of_oversize_event() -> None:
    decoder = SseDecoder(LIMIT)
    with pytest.raises(OversizeEvent):
        decoder.feed(b"data: " + b"x" * 25 + b"\n")
    assert decoder.feed(b"data: rest\n\n") == []
    assert decoder.feed(b"data: next\n\n") == [SseEvent(b"next")]


def test_default_limit_is_four_mib() -> None:
    decoder = SseDecoder()
    at_the_limit = b"x" * (MAX_EVENT_BYTES - len(b"data: "))
    assert decoder.feed(encode_event(at_the_limit)) == [SseEvent(at_the_limit)]
    with pytest.raises(OversizeEvent, match="longer than 4194304 bytes"):
        decoder.feed(encode_event(at_the_limit + b"x"))


def test_rejects_limit_below_one() -> None:
    with pytest.raises(ValueError, match="max_event_bytes"):
        SseDecoder(0)


@pytest.mark.parametrize(
    ("encoded", "wire"),
    [
        (encode_event(b"{}"), b"data: {}\r\n\r\n"),
        (encode_event(b"{}", "message"), b"event: message\r\ndata: {}\r\n\r\n"),
        (encode_event(b"/m", "endpoint"), b"event: endpoint\r\ndata: /m\r\n\r\n"),
        (encode_event(b"", id="1", retry=500), b"id: 1\r\nretry: 500\r\ndata: \r\n\r\n"),
        (encode_event(b'{"a":\n 1,\r\n"b":\r2}'), b'data: {"a":  1,  "b": 2}\r\n\r\n'),
        (encode_event(b"{}\n", "x", "é"), "event: x\r\nid: é\r\ndata: {} \r\n\r\n".encode()),
    ],
)
def test_encodes_events(encoded: bytes, wire: bytes) -> None:
    assert encoded == wire


@pytest.mark.parametrize("text", ["a\nb", "a\r", "\n", "a\0b", "\ud800"])
def test_rejects_type_or_id_with_line_break(text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        encode_event(b"", event=text)
    assert caught.value.failure is INVALID_REQUEST
    with pytest.raises(ProtocolError):
        encode_event(b"", id=text)


@pytest.mark.parametrize("retry", [-1, 10**12])
def test_rejects_invalid_retry(retry: int) -> None:
    with pytest.raises(ProtocolError):
        encode_event(b"", retry=retry)


places = st.lists(st.integers(0, 600), max_size=8)
name_text = st.text(max_size=10).filter(lambda text: not set(text) & set("\r\n\0"))
written_events = st.lists(
    st.builds(
        SseEvent,
        st.binary(max_size=30),
        st.just("message") | name_text.filter(bool),
        st.none() | name_text,
        st.none() | st.integers(0, 10**12 - 1),
    ),
    max_size=6,
)


@given(events=written_events, places=places)
def test_events_survive_round_trip_in_any_split(events: list[SseEvent], places: list[int]) -> None:
    stream = b"".join(encode_event(e.data, e.event, e.id, e.retry) for e in events)
    read = feed_all(SseDecoder(), cut(stream, places))
    line_end = re.compile(rb"[\r\n]")
    assert read == [SseEvent(line_end.sub(b" ", e.data), e.event, e.id, e.retry) for e in events]


def parse_by_standard(stream: bytes) -> tuple[list[SseEvent], str | None]:
    """Parse by the algorithm of the standard, step by step."""
    events: list[SseEvent] = []
    last_id: str | None = None
    data, kind = b"", b""
    own_id: str | None = None
    own_retry: int | None = None
    for line in re.split(rb"\r\n|\n|\r", stream.removeprefix(b"\xef\xbb\xbf"))[:-1]:
        if not line:
            last_id = last_id if own_id is None else own_id
            if data:
                name = kind.decode("utf-8", "replace") or "message"
                events.append(SseEvent(data[:-1], name, own_id, own_retry))
            data, kind, own_id, own_retry = b"", b"", None, None
        elif not line.startswith(b":"):
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data += value + b"\n"
            elif field == b"event":
                kind = value
            elif field == b"id" and b"\0" not in value:
                own_id = value.decode("utf-8", "replace")
            elif field == b"retry" and re.fullmatch(rb"[0-9]+", value):
                own_retry = int(value)
    return events, last_id


# fmt: off
pieces = [
    b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n", b": ", b" ", b"data", b"data: ", b"event: ",
    b"event: message\r\ndata: ", b"id: ", b"id:", b"retry: ", b"12", b"x", b"\0", b"\xff",
    b"\xef\xbb\xbf", b"\xef",
]
# fmt: on
stream_bytes = st.lists(st.sampled_from(pieces), max_size=30).map(b"".join)


@given(stream=stream_bytes | st.binary(), places=places)
@example(stream=b"\xef\xbb", places=[])
@example(stream=b"data: x\r\n\r\n\n", places=[10])
def test_any_split_equals_reference_parser(stream: bytes, places: list[int]) -> None:
    decoder = SseDecoder()
    read = feed_all(decoder, cut(stream, places))
    assert (read, decoder.last_event_id) == parse_by_standard(stream)


@given(stream=stream_bytes | st.binary(), places=places, limit=st.integers(1, 40))
def test_small_limit_bounds_memory(stream: bytes, places: list[int], limit: int) -> None:
    whole, split = CollectingParser(limit), CollectingParser(limit)
    assert feed_all(whole, [stream]) == feed_all(split, cut(stream, places))
    assert bool(whole.oversize_count) == bool(split.oversize_count)
    assert split.decoder.pending <= max(limit, 2)
