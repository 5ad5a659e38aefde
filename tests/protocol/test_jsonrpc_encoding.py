"""Encoding of JSON-RPC messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from interlock.protocol import jsonrpc
from interlock.protocol.jsonrpc import (
    Message,
    decode_error,
    decode_members,
    decode_message,
    decode_value,
    error_response,
    notification,
    remove_line_breaks,
    request,
    result_response,
)
from interlock.protocol.lines import LineDecoder, encode_line
from tests.protocol import json_values
from tests.protocol.parser_feeding import assert_every_split_gives


def decode_one(data: bytes) -> Message:
    message = decode_message(data)
    assert isinstance(message, Message)
    return message


def raw(member: Any) -> bytes:
    assert member is not UNSET
    return bytes(member)


# --- there and back ---

IDENTIFIERS = st.integers().map(lambda number: b"%d" % number) | json_values.text.map(
    lambda text: json.dumps(text).encode()
)


@given(id=st.integers(0), method=json_values.text, params=st.none() | json_values.objects)
def test_request_survives_round_trip(id: int, method: str, params: dict[str, Any] | None) -> None:
    encoded = None if params is None else jsonrpc.encode_value(params)
    message = decode_one(request(id, method, encoded))
    assert message.is_request
    assert raw(message.id) == b"%d" % id
    assert message.method == method
    if params is None:
        assert message.params is UNSET
    else:
        assert decode_value(raw(message.params)) == params


@given(method=json_values.text, params=st.none() | json_values.objects)
def test_notification_survives_round_trip(method: str, params: dict[str, Any] | None) -> None:
    encoded = None if params is None else jsonrpc.encode_value(params)
    message = decode_one(notification(method, encoded))
    assert message.is_notification
    assert message.method == method
    assert (
        message.params is UNSET if params is None else decode_value(raw(message.params)) == params
    )


@given(id=IDENTIFIERS, result=json_values.values)
def test_result_survives_round_trip(id: bytes, result: Any) -> None:
    message = decode_one(result_response(id, jsonrpc.encode_value(result)))
    assert message.is_response
    assert raw(message.id) == id
    assert decode_value(raw(message.result)) == result


@given(
    id=IDENTIFIERS, code=st.integers(), text=json_values.text, data=st.none() | json_values.values
)
def test_error_survives_round_trip(id: bytes, code: int, text: str, data: Any) -> None:
    for written in (data, None if data is None else Raw(jsonrpc.encode_value(data))):
        message = decode_one(error_response(id, code, text, written))
        assert message.is_response
        assert raw(message.id) == id
        error = decode_error(raw(message.error))
        assert (error.code, error.message) == (code, text)
        if data is None:
            assert error.data is UNSET
        else:
            assert decode_value(raw(error.data)) == data


@given(json_values.objects)
def test_members_survive_round_trip(members: dict[str, Any]) -> None:
    encoded = jsonrpc.encode_value(members)
    assert json.loads(jsonrpc.encode_members(decode_members(encoded))) == json.loads(encoded)


# --- errors of a peer ---


@pytest.mark.parametrize(
    ("data", "code", "text"),
    [
        (b'{"code":-32000,"message":"no"}', -32000, "no"),
        (b'{"code":-32000,"message":"no","data":{"a":1},"x":2}', -32000, "no"),
        (b'{"code":7}', 7, ""),
        (b'{"message":"no code"}', -32603, "no code"),
        (b"{}", -32603, ""),
        (
            b'{"code":"E_FAIL","message":"no"}',
            -32603,
            "The peer returned an error that is not",
        ),
        (b'{"code":1.5,"message":"no"}', -32603, "The peer returned an error that is not"),
        (b'{"code":true,"message":"no"}', -32603, "The peer returned an error that is not"),
        (b'{"code":1,"message":null}', -32603, "The peer returned an error that is not"),
        (b'"boom"', -32603, "The peer returned an error that is not"),
        (b"null", -32603, "The peer returned an error that is not"),
        (b'{"code":1,"message":"\xff"}', -32603, "The peer returned an error that is not"),
    ],
)
def test_decodes_error_of_peer(data: bytes, code: int, text: str) -> None:
    error = decode_error(data)
    assert error.code == code
    assert error.message.startswith(text)


def test_error_data_stays_raw() -> None:
    assert (
        bytes(decode_error(b'{"code":1,"message":"m","data":{ "a" :1e3}}').data) == b'{ "a" :1e3}'  # type: ignore[arg-type]
    )


# --- one line ---


@given(json_values.values, st.sampled_from([None, 0, 1, 4, "\t", "\r\n "]))
def test_removing_line_breaks_keeps_value(value: Any, indent: int | str | None) -> None:
    written = json.dumps(value, indent=indent, ensure_ascii=False).encode()
    line = remove_line_breaks(written)
    assert b"\n" not in line
    assert b"\r" not in line
    assert json.loads(line) == json.loads(written)
    assert len(line) == len(written)


def test_single_line_is_not_copied() -> None:
    payload = b'{"a":"b c"}'
    assert remove_line_breaks(payload) is payload


def test_reads_lines_in_every_split() -> None:
    pretty = b'{\r\n "jsonrpc": "2.0",\n "id": "a\\nb",\n "method": "\xc3\xa9"\n}'
    messages = [remove_line_breaks(pretty), result_response(b'"a\\nb"', b"{}")]
    stream = b"".join(encode_line(message) for message in messages)
    assert_every_split_gives(
        LineDecoder,
        stream,
        messages,
        trailing=b'{"i',
        rest=b'd":1}\n',
        trailing_items=[b'{"id":1}'],
    )
    assert [raw(decode_one(message).id) for message in messages] == [b'"a\\nb"', b'"a\\nb"']
