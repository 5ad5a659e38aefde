"""Tests of the request reader: valid requests, invalid requests and random bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.aql.config import AqlLimits
from interlock.aql.language import errors
from interlock.aql.language.errors import AqlError
from interlock.aql.language.request import (
    BatchRequest,
    SingleRequest,
    find_unreadable_call,
    kind_of,
    read_item,
    read_request,
)
from tests.aql.language.schemas import OPERATION_INPUT, matches_schema
from tests.protocol.json_values import objects, values

LIMITS = AqlLimits()
NAMES = st.text("abcdefgh_", min_size=1, max_size=20).filter(lambda name: name[0] != "_")
PARAMS = st.dictionaries(
    NAMES.filter(lambda name: name not in ("operation", "params", "operations")), values, max_size=5
).filter(lambda one: "\\u0000" not in json.dumps(one))


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def read_single(value: Any) -> SingleRequest:
    found = read_request(as_json(value), LIMITS)
    assert isinstance(found, SingleRequest)
    return found


def decode_members(members: dict[str, Raw]) -> dict[str, Any]:
    return {name: json.loads(bytes(raw)) for name, raw in members.items()}


def get_error(value: Any, *, raw: bytes | None = None) -> AqlError:
    with pytest.raises(AqlError) as caught:
        read_request(as_json(value) if raw is None else raw, LIMITS)
    assert errors.is_safe_message(caught.value.message)
    return caught.value


@pytest.mark.spec("AQ-4.7.5-1")
@pytest.mark.parametrize(
    ("value", "limit"),
    [
        ([0] * 10_001, "array_elements"),
        (json.loads("[" * 31 + "]" * 31), "nesting_depth"),
        ("x" * 1024 * 1024, "request_size"),
    ],
    ids=["elements", "depth", "request"],
)
def test_limits_hold_for_every_request(value: Any, limit: str) -> None:
    error = get_error({"operation": "list_users", "params": {"a": value}})
    assert error.code == "VALIDATION_PAYLOAD_TOO_LARGE"
    assert error.data["limit_type"] == limit  # type: ignore[index]


@pytest.mark.spec("AQ-4.4-1", "AQ-4.1-1")
@pytest.mark.parametrize(
    ("sent", "operation", "params"),
    [
        ({"operation": "list_users"}, "list_users", {}),
        ({"operation": "list_users", "params": {}}, "list_users", {}),
        ({"operation": "list_users", "params": None}, "list_users", {}),
        (
            {"operation": "create_document", "params": {"title": "A", "tags": ["x"]}},
            "create_document",
            {"title": "A", "tags": ["x"]},
        ),
        ({"operation": "get_user", "user_id": "u1"}, "get_user", {"user_id": "u1"}),
        (
            {"operation": "a", "params": {"params": {"operation": 1}}},
            "a",
            {"params": {"operation": 1}},
        ),
    ],
)
def test_reads_valid_requests(sent: dict[str, Any], operation: str, params: dict[str, Any]) -> None:
    found = read_single(sent)
    assert (found.operation, decode_members(found.params)) == (operation, params)
    assert matches_schema(OPERATION_INPUT, {**sent, "params": sent.get("params") or {}})


@pytest.mark.spec("AQ-4.2-1")
def test_params_override_top_level_and_conflicts_are_listed() -> None:
    found = read_single(
        {"operation": "get_user", "user_id": "a", "page": 1, "params": {"user_id": "b"}}
    )
    assert decode_members(found.params) == {"user_id": "b", "page": 1}
    assert decode_members(found.top) == {"user_id": "a", "page": 1}
    assert found.duplicates == ("user_id",)
    assert found.raw_params is None


def test_equal_values_are_no_conflict() -> None:
    raw = b'{"operation":"a","x":{"b": 1,"c":2},"params":{"x":{"c":2,"b":1.0}}}'
    found = read_request(raw, LIMITS)
    assert isinstance(found, SingleRequest)
    assert found.duplicates == ()


@given(PARAMS)
def test_keeps_bytes_of_params(params: dict[str, Any]) -> None:
    inner = as_json(params)
    found = read_request(b'{"operation":"x","params":' + inner + b"}", LIMITS)
    assert isinstance(found, SingleRequest)
    assert decode_members(found.params) == params
    assert found.raw_params is not None
    assert bytes(found.raw_params) == inner


@given(PARAMS, PARAMS)
def test_merges_top_level_and_params(top: dict[str, Any], inside: dict[str, Any]) -> None:
    found = read_single({**top, "operation": "x", "params": inside})
    assert decode_members(found.params) == {**top, **inside}
    assert set(found.duplicates) <= set(top) & set(inside)
    again = read_single({"params": inside, "operation": "x", **top})
    assert decode_members(again.params) == decode_members(found.params)


def test_separates_underscore_members_at_both_levels() -> None:
    found = read_single(
        {
            "operation": "a",
            "_request_id": "r1",
            "_confirmation": "top",
            "params": {"x": 1, "_confirmation": "inside", "_nobody_knows": {}},
        }
    )
    assert decode_members(found.params) == {"x": 1}
    assert decode_members(found.meta) == {
        "_request_id": "r1",
        "_confirmation": "inside",
        "_nobody_knows": {},
    }
    assert found.raw_params is None


def test_keeps_underscore_names_inside_values() -> None:
    found = read_single({"operation": "a", "params": {"x": "_y", "z": {"_k": 1}}})
    assert decode_members(found.params) == {"x": "_y", "z": {"_k": 1}}
    assert found.raw_params is not None
    assert found.meta == {}


def test_last_of_duplicate_members_counts() -> None:
    found = read_request(b'{"operation":"a","operation":"b","params":{"x":1,"x":2}}', LIMITS)
    assert isinstance(found, SingleRequest)
    assert (found.operation, decode_members(found.params)) == ("b", {"x": 2})


@pytest.mark.spec("AQ-4.1-1", "AQ-5.3-1", "AQ-OPS-2.2-1")
def test_rejects_request_without_operation() -> None:
    for sent in (
        {}, {"x": 1}, {"params": {"x": 1}}, {"operation": ""}, {"operation": "", "params": {}},
    ):  # fmt: skip
        error = get_error(sent)
        assert error.code == "VALIDATION_MISSING_PARAM"
        assert error.data is not None
        assert error.data["param_name"] == "operation"
        assert "'operation'" in error.message


@pytest.mark.spec("AQ-4.1-1", "AQ-OPS-2.2-1")
@pytest.mark.parametrize(
    ("sent", "param", "expected", "actual"),
    [
        ({"operation": 7}, "operation", "string", "integer"),
        ({"operation": None}, "operation", "string", "null"),
        ({"operation": ["a"]}, "operation", "string", "array"),
        ({"operation": "a", "params": "x"}, "params", "object", "string"),
        ({"operation": "a", "params": []}, "params", "object", "array"),
        ({"operation": "a", "params": 1.5}, "params", "object", "number"),
        ({"operation": "a", "params": True}, "params", "object", "boolean"),
        ([], "arguments", "object", "array"),
        ("operation", "arguments", "object", "string"),
        (None, "arguments", "object", "null"),
    ],
)
def test_rejects_wrong_types(sent: Any, param: str, expected: str, actual: str) -> None:
    error = get_error(sent)
    assert error.code == "VALIDATION_INVALID_TYPE"
    assert error.data == {
        "param_name": param,
        "expected_type": expected,
        "actual_type": actual,
    }


def test_rejects_too_long_operation_name() -> None:
    error = get_error({"operation": "a" * 65_536})
    assert error.code == "NOT_FOUND_OPERATION"
    assert len(error.message) < 300


@pytest.mark.spec("AQ-4.7.1-1")
@pytest.mark.parametrize(
    "bad",
    [
        b"\xc0\x80",
        b"\xe0\x80\xaf",
        b"\xed\xa0\x80",
        b"\xed\xbf\xbf",
        b"\xff",
        b"\xe2\x82",
        b"\xf4\x90\x80\x80",
        b"a\x80b",
    ],
    ids=[
        "overlong 2",
        "overlong 3",
        "surrogate high",
        "surrogate low",
        "never a byte",
        "truncated",
        "beyond",
        "continuation",
    ],
)
def test_rejects_invalid_utf8(bad: bytes) -> None:
    before = b'{"operation":"a","params":{"x":"'
    error = get_error(None, raw=before + bad + b'"}}')
    assert error.code == "VALIDATION_INVALID_ENCODING"
    assert error.data is not None
    assert error.data["location"] == "arguments"
    assert len(before) <= error.data["byte_offset"] <= len(before) + len(bad)


@pytest.mark.spec("AQ-4.7.1-1", "AQ-4.7.1-2")
@pytest.mark.parametrize(
    ("text", "lawful"),
    [
        ("\\ud800", False),
        ("\\uDFFF", False),
        ("\\ud800x", False),
        ("\\ud83d\\u0041", False),
        ("\\udc00\\ud800", False),
        ("a\\u0000b", False),
        ("\\ud83d\\ude00", True),
        ("\\\\ud800", True),
        ("\\\\u0000", True),
        ("\\u00e9", True),
    ],
)
def test_rejects_invalid_unicode_escapes(text: str, lawful: bool) -> None:
    raw = b'{"operation":"a","params":{"x":{"name":["' + text.encode() + b'"]}}}'
    if lawful:
        assert isinstance(read_request(raw, LIMITS), SingleRequest)
        return
    error = get_error(None, raw=raw)
    assert error.code == "VALIDATION_INVALID_ENCODING"
    assert error.data is not None
    assert error.data["location"] == "params.x.name.0"


@pytest.mark.spec("AQ-4.7.1-1")
@pytest.mark.parametrize("text", [b"x\\u0000", b"\\ud800", b"\\uDFFF"])
def test_rejects_invalid_text_in_the_name_of_a_member(text: bytes) -> None:
    error = get_error(None, raw=b'{"operation":"a","params":{"' + text + b'":1}}')
    assert error.code == "VALIDATION_INVALID_ENCODING"


@pytest.mark.spec("AQ-4.7.3-1", "AQ-4.7.3-2")
def test_marks_and_keeps_long_numbers() -> None:
    largest = b'{"operation":"a","params":{"x":9007199254740991}}'
    for raw, looked in (
        (largest, True),
        (b'{"operation":"a","params":{"x":12345}}', False),
        (b'{"operation":"a","params":{"x":12345678901234567890}}', True),
        (b'{"operation":"a","params":{"x":"12345678901234567890"}}', True),
    ):
        found = read_request(raw, LIMITS)
        assert isinstance(found, SingleRequest)
        assert found.long_numbers is looked
        assert bytes(found.params["x"]) in raw


@pytest.mark.parametrize(
    ("operations", "reason"),
    [([], "empty"), ("x", "not_an_array"), ({}, "not_an_array"), ([{}] * 51, "too_many")],
)
def test_rejects_invalid_batches(operations: Any, reason: str) -> None:
    error = get_error({"operations": operations})
    assert error.code == "BATCH_VALIDATION_ERROR"
    assert error.data is not None
    assert error.data["reason"] == reason


def test_batch_keeps_bytes_of_items() -> None:
    raw = b'{"operations":[{"operation":"a"}, {"operation":"b","params":{"x": 1}},7],"_meta":{}}'
    found = read_request(raw, LIMITS)
    assert isinstance(found, BatchRequest)
    assert [bytes(one) for one in found.items[:2]] == [
        b'{"operation":"a"}',
        b'{"operation":"b","params":{"x": 1}}',
    ]
    assert list(found.meta) == ["_meta"]
    assert read_item(found.items[1], LIMITS).operation == "b"
    with pytest.raises(AqlError) as caught:
        read_item(found.items[2], LIMITS)
    assert caught.value.code == "VALIDATION_INVALID_TYPE"


def test_rejects_batch_with_operation_and_nested_batch() -> None:
    error = get_error({"operations": [{"operation": "a"}], "operation": "b"})
    assert error.code == "BATCH_VALIDATION_ERROR"
    assert "'operation'" in error.message
    with pytest.raises(AqlError) as caught:
        read_item(as_json({"operations": [{"operation": "a"}]}), LIMITS)
    assert caught.value.code == "BATCH_VALIDATION_ERROR"


@given(st.binary(max_size=200) | objects.map(as_json))
def test_reads_or_rejects_any_bytes(data: bytes) -> None:
    found: SingleRequest | BatchRequest | AqlError
    try:
        found = read_request(data, LIMITS)
    except AqlError as error:
        found = error
    if isinstance(found, AqlError):
        assert errors.is_safe_message(found.message)
    elif isinstance(found, SingleRequest):
        assert found.operation
        assert not any(name.startswith("_") for name in found.params)
    else:
        assert 0 < len(found.items) <= LIMITS.batch


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b" {}", "object"), (b"[1]", "array"), (b'"x"', "string"), (b"true", "boolean"),
        (b"null", "null"), (b"-1", "integer"), (b"1e3", "number"), (b"", "nothing"),
        (b"nul", "unreadable"), (b"[", "unreadable"), (b"\xff", "unreadable"),
    ],
)  # fmt: skip
def test_names_kind_of_raw_value(raw: bytes, kind: str) -> None:
    assert kind_of(raw) == kind


CALL = b'{"jsonrpc":"2.0","id":"7","method":"tools/call","params":{"arguments":{"x":"%b"}}}'


@pytest.mark.spec("AQ-4.7.1-1")
def test_finds_id_and_position_in_unreadable_call() -> None:
    begins = CALL.index(b"%b")
    assert find_unreadable_call(CALL % b"a\xc0\x80") == (b'"7"', begins + 1)
    assert find_unreadable_call(CALL % b"\\ud800") == (b'"7"', begins)
    assert find_unreadable_call(CALL % b"\\udc00 \xff") == (b'"7"', begins)
    assert find_unreadable_call(CALL % b"\xff \\ud800") == (b'"7"', begins)


def test_ignores_readable_calls_and_messages_without_id() -> None:
    assert find_unreadable_call(CALL % "é\\ud83d\\ude00".encode()) is None
    assert find_unreadable_call(b"\xff") is None
    assert find_unreadable_call((CALL % b"\xff").replace(b"tools/call", b"tools/list")) is None
    assert find_unreadable_call((CALL % b"\xff").replace(b'"id":"7",', b"")) is None


@given(st.binary(max_size=100))
def test_unreadable_call_search_takes_any_bytes(data: bytes) -> None:
    find_unreadable_call(data)
    find_unreadable_call(CALL % data)
