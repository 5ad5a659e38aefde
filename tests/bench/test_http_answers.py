"""The response reader of the benchmarks: whole, bytewise and surplus input."""

from __future__ import annotations

import pytest

from bench.http_answers import AnswerReader, BadAnswer, HttpAnswer, event_messages

PLAIN = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n" + b'{"a":1}'
)
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nMcp-Session-Id: AbC\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'3\r\n{"a\r\n4;x=y\r\n":1}\r\n0\r\n\r\n'
)
ACCEPTED = b"HTTP/1.1 202 Accepted\r\nDate: now\r\n\r\n"


def feed_bytewise(reader: AnswerReader, data: bytes) -> HttpAnswer | None:
    response = None
    for at in range(len(data)):
        assert response is None, "an answer came before its end"
        response = reader.feed(data[at : at + 1])
    return response


@pytest.mark.parametrize(("data", "body"), [(PLAIN, b'{"a":1}'), (CHUNKED, b'{"a":1}')])
def test_reads_whole_and_bytewise_repeatedly(data: bytes, body: bytes) -> None:
    reader = AnswerReader()
    for response in (
        reader.feed(data),
        feed_bytewise(reader, data),
        reader.feed(data),
        feed_bytewise(reader, data),
    ):
        assert response is not None
        assert (response.status, response.body) == (200, body)


def test_keeps_case_of_header_values() -> None:
    response = AnswerReader().feed(CHUNKED)
    assert response is not None
    assert response.header(b"mcp-session-id") == b"AbC"
    assert response.header(b"content-length") is None


def test_empty_body_needs_no_length() -> None:
    response = AnswerReader().feed(ACCEPTED)
    assert response is not None
    assert (response.status, response.body) == (202, b"")


def test_reads_second_response_with_other_length_or_status() -> None:
    reader = AnswerReader()
    first = reader.feed(PLAIN)
    assert first is not None
    longer = PLAIN.replace(b"Length: 7", b"Length: 8") + b" "
    second = reader.feed(longer)
    assert second is not None
    assert second.body == b'{"a":1} '
    third = reader.feed(longer.replace(b"200 OK", b"500 No"))
    assert third is not None
    assert third.status == 500


@pytest.mark.parametrize(
    "data",
    [
        PLAIN + b"x",
        CHUNKED + b"x",
        b"SSH-2.0-server\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nno length",
    ],
)
def test_rejects_invalid_response(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        AnswerReader().feed(data)


def test_omits_events_without_data() -> None:
    body = b": hello\n\nid: 1\ndata:\n\nevent: message\r\ndata: {}\r\n\r\ndata: a\ndata: b\n\n"
    assert event_messages(body) == [b"{}", b"a\nb"]
