"""Tests of the request limits: each limit is accepted, and one more is rejected."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.aql.config import KIBIBYTE, MEBIBYTE, AqlConfig, AqlLimits
from interlock.aql.language import errors, limits
from interlock.aql.language.errors import AqlError
from interlock.aql.language.limits import (
    check_request,
    check_response,
    depth_of,
    has_unsafe_integers,
)
from interlock.core.config.load import parse_config
from interlock.errors import InterlockError
from tests.protocol.json_values import values

DEFAULTS = AqlLimits()
LARGE = AqlLimits(request_bytes=10 * MEBIBYTE)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def load_limits(name: str, value: int) -> AqlLimits:
    return parse_config(json.dumps({"aql": {"limits": {name: value}}})).section(AqlConfig).limits


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def get_error_data(raw: bytes, held: AqlLimits = DEFAULTS) -> dict[str, Any]:
    with pytest.raises(AqlError) as caught:
        check_request(raw, held)
    assert caught.value.code == "VALIDATION_PAYLOAD_TOO_LARGE"
    assert errors.is_safe_message(caught.value.message)
    assert caught.value.data is not None
    return caught.value.data


@pytest.mark.spec("AQ-4.7.5-2")
@pytest.mark.parametrize(
    ("raw", "depth"),
    [
        (b'{"a":{"b":{"c":{}}}}', 4), (b"[]", 1), (b"1", 0), (b'"[[["', 0),
        (b'{"a":[{}],"b":{}}', 3), (b'{"\\"[":["]\\\\"]}', 2), (b"[[],[[]],[]]", 3),
    ],
)  # fmt: skip
def test_counts_depth_from_root(raw: bytes, depth: int) -> None:
    assert depth_of(raw) == depth


def measure_depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(measure_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(measure_depth, value), default=0)
    return 0


@given(values)
def test_depth_equals_depth_of_value(value: Any) -> None:
    assert depth_of(as_json(value)) == measure_depth(value)
    assert depth_of(json.dumps(value, ensure_ascii=False, indent=1).encode()) == measure_depth(
        value
    )


@pytest.mark.spec("AQ-4.7.5-1", "AQ-4.7.5-3", "AQ-ERR-4.7-1")
@pytest.mark.parametrize(
    ("at", "over", "held", "expected"),
    [
        (
            nested(32),
            nested(33),
            DEFAULTS,
            {
                "limit_type": "nesting_depth",
                "limit_value": 32,
                "actual_value": 33,
                "unit": "levels",
            },
        ),
        (
            as_json([0] * 10_000),
            as_json([0] * 10_001),
            DEFAULTS,
            {
                "limit_type": "array_elements",
                "limit_value": 10_000,
                "actual_value": 10_001,
                "unit": "elements",
            },
        ),
        (
            as_json("x" * (MEBIBYTE - 2)),
            as_json("x" * (MEBIBYTE - 1)),
            DEFAULTS,
            {
                "limit_type": "request_size",
                "limit_value": MEBIBYTE,
                "actual_value": MEBIBYTE + 1,
                "unit": "bytes",
            },
        ),
        (
            as_json({"a": "x" * MEBIBYTE}),
            as_json({"a": "x" * (MEBIBYTE + 1)}),
            LARGE,
            {
                "limit_type": "string_length",
                "limit_value": MEBIBYTE,
                "actual_value": MEBIBYTE + 1,
                "unit": "bytes",
                "param_name": "a",
            },
        ),
    ],
    ids=["depth", "elements", "request", "string"],
)
def test_accepts_each_limit_and_rejects_one_more(
    at: bytes, over: bytes, held: AqlLimits, expected: dict[str, Any]
) -> None:
    check_request(at, held)
    assert get_error_data(over, held) == expected


@pytest.mark.spec("AQ-4.7.5-1", "AQ-ERR-4.7-1")
def test_rejects_large_response() -> None:
    check_response(10 * MEBIBYTE, DEFAULTS)
    with pytest.raises(AqlError) as caught:
        check_response(10 * MEBIBYTE + 1, DEFAULTS)
    assert caught.value.data == {
        "limit_type": "response_size",
        "limit_value": 10 * MEBIBYTE,
        "actual_value": 10 * MEBIBYTE + 1,
        "unit": "bytes",
    }
    assert "fields" in caught.value.message
    assert errors.is_safe_message(caught.value.message)


@pytest.mark.spec("AQ-4.7.5-1")
@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("request_bytes", 64 * KIBIBYTE, 10 * MEBIBYTE),
        ("response_bytes", MEBIBYTE, 100 * MEBIBYTE),
        ("string_bytes", 64 * KIBIBYTE, 10 * MEBIBYTE),
        ("array_elements", 100, 100_000),
        ("depth", 8, 64),
    ],
)
def test_rejects_limits_out_of_range(name: str, least: int, most: int) -> None:
    for value in (least, most):
        assert getattr(load_limits(name, value), name) == value
    for value in (least - 1, most + 1):
        with pytest.raises(InterlockError, match=name):
            load_limits(name, value)


def test_counts_bytes_not_characters() -> None:
    check_request(json.dumps("é" * (MEBIBYTE // 2), ensure_ascii=False).encode(), LARGE)
    over = json.dumps(["é" * (MEBIBYTE // 2) + "a"], ensure_ascii=False).encode()
    assert get_error_data(over, LARGE)["limit_type"] == "string_length"


def test_names_large_array_inside_request() -> None:
    details = get_error_data(as_json({"params": {"rows": [{"cells": [1] * 10_001}]}}))
    assert details["limit_type"] == "array_elements"
    assert details["param_name"] == "params.rows.0.cells"


def test_allows_many_commas_outside_of_one_array() -> None:
    check_request(as_json([[0] * 1_000 for _ in range(11)]), DEFAULTS)
    check_request(as_json({"text": "," * 20_000}), DEFAULTS)


@pytest.mark.parametrize(
    "raw",
    [nested(32_768), b'{"a":' * 10_000 + b"1" + b"}" * 10_000],
    ids=["arrays", "objects"],
)
def test_rejects_very_deep_nesting(raw: bytes) -> None:
    details = get_error_data(raw)
    assert details["limit_type"] == "nesting_depth"
    assert details["actual_value"] > 32


def test_leaves_unclosed_json_to_parser() -> None:
    check_request(b"[" * 65_536, DEFAULTS)


@pytest.mark.spec("AQ-4.7.5-5")
def test_describes_limits() -> None:
    assert limits.describe_limits(DEFAULTS) == {
        "max_request_size": 1_048_576,
        "max_response_size": 10_485_760,
        "max_string_length": 1_048_576,
        "max_array_elements": 10_000,
        "max_nesting_depth": 32,
    }


@pytest.mark.spec("AQ-4.7.3-1", "AQ-4.7.3-2")
def test_finds_unsafe_integers() -> None:
    most = 2**53 - 1
    for safe in (most, -most, 0, True, 1e300, str(most * 10), [most], {"a": {"b": [1.5]}}):
        assert not has_unsafe_integers(safe)
    for unsafe in (most + 1, -most - 1, 10**40, [most + 2], {"a": [{"b": -(2**60)}]}):
        assert has_unsafe_integers(unsafe)
    error = limits.unsafe_integer_error("issue_id", as_text=True)
    assert error.code == "VALIDATION_OUT_OF_RANGE"
    assert "'issue_id'" in error.message
    assert "string" in error.message
    assert errors.is_safe_message(error.message)


@given(st.integers() | st.integers(-(2**70), 2**70))
def test_marks_requests_with_unsafe_integers(number: int) -> None:
    if not -limits.MAX_SAFE_INTEGER <= number <= limits.MAX_SAFE_INTEGER:
        assert check_request(as_json({"a": [number]}), DEFAULTS)


@given(st.binary(max_size=300))
def test_accepts_or_rejects_any_bytes(data: bytes) -> None:
    try:
        check_request(data, DEFAULTS)
        code = "VALIDATION_"
    except AqlError as error:
        code = error.code
    assert code.startswith("VALIDATION_")


@given(values)
def test_accepts_every_request_within_limits(value: Any) -> None:
    if "\\u0000" in json.dumps(value):
        return
    check_request(as_json(value), DEFAULTS)
    check_request(msgspec.json.encode(value), DEFAULTS)
