"""Decoding of JSON-RPC messages: ids, batches and invalid messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from interlock.errors import INVALID_REQUEST, PARSE_ERROR, PAYLOAD_TOO_LARGE, Failure, ProtocolError
from interlock.protocol.jsonrpc import (
    MAX_BATCH,
    BadMessage,
    Message,
    decode_error,
    decode_members,
    decode_message,
    decode_single,
    decode_value,
    error_response,
    result_response,
)

DEEP = 100_000


def decode_one(data: bytes) -> Message:
    message = decode_message(data)
    assert isinstance(message, Message)
    return message


def batch(data: bytes) -> list[Message | BadMessage]:
    members = decode_message(data)
    assert isinstance(members, list)
    return members


def raw(member: Any) -> bytes:
    assert member is not UNSET
    return bytes(member)


# --- what a message is ---


def test_reads_request() -> None:
    message = decode_one(b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a"}}')
    assert (message.is_request, message.is_notification, message.is_response) == (
        True,
        False,
        False,
    )
    assert raw(message.id) == b"7"
    assert message.method == "tools/call"
    assert raw(message.params) == b'{"name":"a"}'
    assert message.result is UNSET
    assert message.error is UNSET


def test_reads_notification() -> None:
    message = decode_one(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    assert (message.is_request, message.is_notification, message.is_response) == (
        False,
        True,
        False,
    )
    assert message.id is UNSET
    assert message.params is UNSET


@pytest.mark.parametrize(
    ("data", "result", "error"),
    [
        (b'{"jsonrpc":"2.0","id":"x","result":{"a": [1]}}', b'{"a": [1]}', None),
        (b'{"jsonrpc":"2.0","id":1,"result":null}', b"null", None),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}', None, True),
        (b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m"}}', None, True),
    ],
    ids=["result", "a null result is a result", "error", "an error about nothing readable"],
)
def test_reads_response(data: bytes, result: bytes | None, error: bool | None) -> None:
    message = decode_one(data)
    assert (message.is_request, message.is_notification, message.is_response) == (
        False,
        False,
        True,
    )
    assert (None if message.result is UNSET else bytes(message.result)) == result
    assert (message.error is not UNSET) is bool(error)


def test_ignores_unknown_members() -> None:
    message = decode_one(b'{"x":{"id":9},"jsonrpc":"2.0","y":null,"id":1,"method":"ping","z":[]}')
    assert raw(message.id) == b"1"
    assert message.method == "ping"


TWINS = [
    *("Method", "METHOD", "meth od", "Params", "PARAM\u017f", "param\u017f", "ID", "Id"),
    *("i\u0307d", "\u0131d", "\u0130D", "Result", "jsonRPC", "me\u200bthod", "me_thod"),
]


@pytest.mark.parametrize("twin", TWINS)
def test_rejects_members_similar_to_known_members(twin: str) -> None:
    request = {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {}, twin: "x"}
    body = json.dumps(request).encode()
    with pytest.raises(BadMessage, match="which some servers read as") as caught:
        decode_message(body)
    first, invalid = batch(b'[{"jsonrpc":"2.0","id":1,"method":"m"},%b]' % body)
    assert isinstance(first, Message)
    assert isinstance(invalid, BadMessage)
    assert caught.value.id == invalid.id == b"7"


def test_response_may_have_any_members_except_method() -> None:
    response = decode_single(b'{"jsonrpc":"2.0","id":1,"result":{},"Error":null}')
    assert response == Message("2.0", Raw(b"1"), result=Raw(b"{}"))
    with pytest.raises(BadMessage):
        decode_single(b'{"jsonrpc":"2.0","id":1,"result":{},"Method":"tools/call"}')


def test_ignores_whitespace() -> None:
    message = decode_one(
        b' \r\n\t{ "jsonrpc" : "2.0" , "id" : 1 , "method" : "a" , "params" : { } } \n'
    )
    assert raw(message.id) == b"1"
    assert raw(message.params) == b"{ }"


def test_last_duplicate_member_counts() -> None:
    message = decode_one(b'{"jsonrpc":"2.0","id":1,"id":2,"method":"a","method":"b"}')
    assert (raw(message.id), message.method) == (b"2", "b")
    assert bytes(decode_members(b'{"a":1,"a":2}')["a"]) == b"2"
    assert decode_value(b'{"a":1,"a":2}') == {"a": 2}


# --- ids ---

IDS = [
    b"0",
    b"-0",
    b"-1",
    b"1",
    b'"1"',
    b"9007199254740993",
    b"18446744073709551616",
    b"1234567890" * 4,
    b"-" + b"9" * 40,
    b'""',
    b'"null"',
    b'"a\\nb"',
    b'"\\u0061"',
    b'"\\ud83d\\ude00"',
    b'"\\\\\\""',
    b'"\\/"',
    '"é世😀"'.encode(),
    b'"' + b"x" * 10_000 + b'"',
]


@pytest.mark.parametrize("id", IDS, ids=lambda id: id[:24].decode())
def test_returns_id_unchanged(id: bytes) -> None:
    request = decode_one(b'{"jsonrpc":"2.0","id":' + id + b',"method":"ping"}')
    assert raw(request.id) == id
    response = result_response(raw(request.id), b"{}")
    assert b'"id":' + id + b"," in response
    assert raw(decode_one(response).id) == id
    assert raw(decode_one(error_response(raw(request.id), -1, "m")).id) == id


def test_number_and_text_are_different_ids() -> None:
    number = decode_one(b'{"jsonrpc":"2.0","id":1,"method":"a"}')
    text = decode_one(b'{"jsonrpc":"2.0","id":"1","method":"a"}')
    assert raw(number.id) != raw(text.id)


@pytest.mark.parametrize(
    "id",
    [b"1.0", b"1.5", b"1e2", b"1E2", b"-1e-2", b"true", b"false", b"{}", b"[]", b'["a"]', b"null"],
    ids=bytes.decode,
)
def test_rejects_other_ids(id: bytes) -> None:
    with pytest.raises(BadMessage, match="`id` must be a string or an integer") as caught:
        decode_message(b'{"jsonrpc":"2.0","id":' + id + b',"method":"a"}')
    assert caught.value.failure is INVALID_REQUEST
    # What cannot be read cannot be repeated.
    assert caught.value.id == b"null"


@pytest.mark.parametrize("id", [b"1.5", b"true", b"[]"], ids=bytes.decode)
def test_rejects_response_with_invalid_id(id: bytes) -> None:
    with pytest.raises(BadMessage):
        decode_message(b'{"jsonrpc":"2.0","id":' + id + b',"result":{}}')


# --- what is refused, and with which code ---


@pytest.mark.parametrize(
    ("data", "failure", "sentence", "id"),
    [
        # not JSON
        (b"", PARSE_ERROR, "not JSON", None),
        (b" \n", PARSE_ERROR, "not JSON", None),
        (b"{", PARSE_ERROR, "not JSON", None),
        (b"hello", PARSE_ERROR, "not JSON", None),
        (b"Content-Length: 12", PARSE_ERROR, "not JSON", None),
        (b"{'jsonrpc':'2.0'}", PARSE_ERROR, "not JSON", None),
        (b'{"jsonrpc":"2.0","id":1,"method":"a"} x', PARSE_ERROR, "not JSON", None),
        (b'{"jsonrpc":"2.0","id":1,"method":"a"}{}', PARSE_ERROR, "not JSON", None),
        (b'{"jsonrpc":"2.0","id":1,"method":"a",}', PARSE_ERROR, "not JSON", None),
        (b'{"jsonrpc":"2.0","id":01,"method":"a"}', PARSE_ERROR, "not JSON", None),
        (b'{"jsonrpc":"2.0","id":-,"method":"a"}', PARSE_ERROR, "not JSON", None),
        (b'{"jsonrpc":"2.0","id":"a\nb","method":"a"}', PARSE_ERROR, "not JSON", None),
        (b'{"jsonrpc":"2.0","id":"\\ud800","method":"a"}', PARSE_ERROR, "not JSON", None),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":"a\nb"}}', PARSE_ERROR, "JSON", None),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":"\\q"}}', PARSE_ERROR, "JSON", None),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","params":[1,]}', PARSE_ERROR, "JSON", None),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":00}}', PARSE_ERROR, "JSON", None),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","params":NaN}', PARSE_ERROR, "JSON", None),
        (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"a"}', PARSE_ERROR, "not JSON", None),
        # not UTF-8
        (b"\xff", PARSE_ERROR, r"not UTF-8 \(byte 0\)", None),
        (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', PARSE_ERROR, r"UTF-8 \(byte 34\)", None),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","params":"\xc3("}', PARSE_ERROR, "UTF-8", None),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","x":"\xed\xa0\x80"}', PARSE_ERROR, "UTF-8", None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"a","x":"\xff"}]', PARSE_ERROR, "UTF-8", None),
        ('{"jsonrpc":"2.0","id":1,"method":"a"}'.encode("utf-16"), PARSE_ERROR, "UTF-8", None),
        # JSON, but no envelope
        (b"null", INVALID_REQUEST, "must be a JSON object", b"null"),
        (b"1", INVALID_REQUEST, "must be a JSON object", b"null"),
        (b'"ping"', INVALID_REQUEST, "must be a JSON object", b"null"),
        (b"{}", INVALID_REQUEST, '`jsonrpc` must be "2.0"', b"null"),
        (b'{"id":1,"method":"a"}', INVALID_REQUEST, "`jsonrpc`", b"1"),
        (b'{"jsonrpc":"1.0","id":"x","method":"a"}', INVALID_REQUEST, "`jsonrpc`", b'"x"'),
        (b'{"jsonrpc":2.0,"id":1,"method":"a"}', INVALID_REQUEST, "`jsonrpc`", b"1"),
        (b'{"jsonrpc":2.0,"id":[1],"method":"a"}', INVALID_REQUEST, "`jsonrpc`", b"null"),
        (b'{"jsonrpc":null,"method":"a"}', INVALID_REQUEST, "`jsonrpc`", b"null"),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', INVALID_REQUEST, "`method` must be a str", b"1"),
        (b'{"jsonrpc":"2.0","id":1,"method":null}', INVALID_REQUEST, "`method` must be", b"1"),
        (b'{"jsonrpc":"2.0"}', INVALID_REQUEST, "`method` is missing", b"null"),
        (b'{"jsonrpc":"2.0","id":1}', INVALID_REQUEST, "`method` is missing", b"1"),
        (b'{"jsonrpc":"2.0","result":{}}', INVALID_REQUEST, "`method` is missing", b"null"),
        (b'{"jsonrpc":"2.0","id":1,"result":1,"error":{}}', INVALID_REQUEST, "needs either", b"1"),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","result":1}', INVALID_REQUEST, "not both", b"1"),
        (b'{"jsonrpc":"2.0","method":"a","error":{}}', INVALID_REQUEST, "not both", b"null"),
    ],
)  # fmt: skip
def test_rejects_invalid_message(
    data: bytes, failure: Failure, sentence: str, id: bytes | None
) -> None:
    with pytest.raises(ProtocolError, match=sentence) as caught:
        decode_message(data)
    assert caught.value.failure is failure
    # Only a message that could be read as JSON has an id to answer to.
    assert getattr(caught.value, "id", None) == id


@pytest.mark.parametrize(
    "data",
    [
        b"[" * DEEP,
        b'{"id":' * DEEP,
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"jsonrpc":1,"id":1,"method":"a","params":' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'[{"jsonrpc":"2.0","id":1,"method":"a","params":' + b"[" * DEEP + b"]" * DEEP + b"}]",
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    ],
    ids=["open arrays", "open objects", "params", "params, bad version", "in a batch", "objects"],
)
def test_rejects_deep_nesting(data: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"nested too deeply|not JSON"):
        decode_message(data)


def test_reads_moderate_nesting() -> None:
    params = b'{"a":' * 200 + b"1" + b"}" * 200
    message = decode_one(b'{"jsonrpc":"2.0","id":1,"method":"a","params":' + params + b"}")
    assert raw(message.params) == params


def test_rejects_batch_where_single_is_required() -> None:
    assert decode_single(b'{"jsonrpc":"2.0","method":"a"}').is_notification
    with pytest.raises(BadMessage, match="must be a JSON object"):
        decode_single(b'[{"jsonrpc":"2.0","method":"a"}]')


# --- batches ---


def test_batch_keeps_order() -> None:
    members = batch(
        b' \n[{"jsonrpc":"2.0","id":1,"method":"a"}, {"jsonrpc":"2.0","method":"b"},'
        b'{"jsonrpc":"2.0","id":"x","result":{}}] '
    )
    first, second, third = members
    assert isinstance(first, Message)
    assert first.is_request
    assert isinstance(second, Message)
    assert second.is_notification
    assert isinstance(third, Message)
    assert third.is_response


def test_bad_batch_member_does_not_affect_others() -> None:
    members = batch(
        b'[1,{"jsonrpc":"2.0","id":1,"method":"a"},{"foo":"boo"},{"jsonrpc":"1.0","id":"k",'
        b'"method":"a"},[],null,{"jsonrpc":"2.0","id":5,"method":7},'
        b'{"jsonrpc":"2.0","id":null,"method":"a"}]'
    )
    ids = [member.id if isinstance(member, BadMessage) else None for member in members]
    assert ids == [b"null", None, b"null", b'"k"', b"null", b"null", b"5", b"null"]
    assert isinstance(members[1], Message)
    assert all(
        member.failure is INVALID_REQUEST for member in members if isinstance(member, BadMessage)
    )


def test_empty_batch_is_one_invalid_request() -> None:
    with pytest.raises(BadMessage, match="batch is empty") as caught:
        decode_message(b" [ ] ")
    assert caught.value.id == b"null"


def test_limits_batch_size() -> None:
    member = b'{"jsonrpc":"2.0","method":"a"}'
    assert len(batch(b"[" + b",".join([member] * MAX_BATCH) + b"]")) == MAX_BATCH
    with pytest.raises(ProtocolError, match="Split it") as caught:
        decode_message(b"[" + b",".join([member] * (MAX_BATCH + 1)) + b"]")
    assert caught.value.failure is PAYLOAD_TOO_LARGE


@pytest.mark.parametrize(
    "data",
    [b"[", b"[1", b"[1,]", b"[1] x", b'[{"jsonrpc":"2.0","id":1,"method":"a","params":nope}]'],
)
def test_rejects_batch_that_is_not_json(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_message(data)
    assert caught.value.failure is PARSE_ERROR


# --- any bytes ---

FRAGMENTS = st.sampled_from(
    [
        b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u", b"d800", b"null", b"1", b"-", b"e",
        b'"jsonrpc":"2.0"', b'"id":1', b'"id":null', b'"method":"a"', b'"params":{}', b'"result":1',
        b'"error":{}', b" ", b"\n", b"\xff", b"\xc3\xa9",
    ]
)  # fmt: skip


@given(st.binary() | st.lists(FRAGMENTS, max_size=20).map(b"".join))
@example(b'{"jsonrpc":"2.0","id":"\\ud800\\u0041","method":"a"}')
def test_reads_or_rejects_any_bytes(data: bytes) -> None:
    caught: ProtocolError | None = None
    try:
        decoded = decode_message(data)
    except ProtocolError as error:
        caught = error
    if caught is not None:
        assert caught.failure in (PARSE_ERROR, INVALID_REQUEST, PAYLOAD_TOO_LARGE)
        assert caught.message
        return
    members = decoded if isinstance(decoded, list) else [decoded]
    assert members
    for member in members:
        if isinstance(member, Message):
            assert [
                member.is_request, member.is_notification, member.is_response
            ].count(True) == 1  # fmt: skip
    # What we read, the standard library reads too: no second opinion about what was meant.
    json.loads(data)


@given(st.binary() | st.lists(FRAGMENTS, max_size=20).map(b"".join))
@example(b'{"\xff":1}')
@example(b'{"message":"\xff"}')
@example(b'{"code":1.5}')
def test_reads_or_rejects_any_message_part(data: bytes) -> None:
    for decode in (decode_members, decode_value):
        try:
            decode(data)
        except ProtocolError:
            continue
    assert isinstance(decode_error(data).code, int)
