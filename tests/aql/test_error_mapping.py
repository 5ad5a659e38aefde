"""Tests of the mapping of upstream failures to AQL codes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.aql import error_mapping
from interlock.aql.language.envelope import is_error
from interlock.aql.language.errors import FAILURE_BY_CODE, AqlError, is_safe_message
from interlock.core.call import RelayedError, UpstreamLostError, UpstreamResponseError
from interlock.errors import (
    DEADLINE_EXCEEDED,
    DENIED,
    FORBIDDEN,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
    all_failures,
)

STATUSES = {
    400: "VALIDATION_INVALID_TYPE",
    401: "PERMISSION_DENIED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND_RESOURCE",
    409: "CONFLICT_ALREADY_EXISTS",
    418: "VALIDATION_INVALID_TYPE",
    422: "VALIDATION_INVALID_TYPE",
    429: "RATE_LIMIT_EXCEEDED",
    500: "INTERNAL_ERROR",
    503: "INTERNAL_ERROR",
    504: "INTERNAL_ERROR",
}


def error_result(text: str, **members: Any) -> bytes:
    content = [{"type": "text", "text": text}]
    return json.dumps({"content": content, "isError": True, **members}).encode()


@pytest.mark.spec("AQ-ERR-6.1-1", "AQ-OPS-8.1-1")
@pytest.mark.parametrize(("status", "code"), STATUSES.items())
def test_maps_http_status_to_code(status: int, code: str) -> None:
    assert error_mapping.code_of_status(status) == code
    gone = UpstreamLostError(UPSTREAM_UNAVAILABLE, "It said so.", was_sent=False, status=status)
    assert error_mapping.map_error(gone)[0] == code
    assert error_mapping.map_error(gone)[2]["http_status"] == status


@pytest.mark.spec("AQ-ERR-4.9-1")
@pytest.mark.parametrize(
    "result",
    [
        lambda status: error_result(f"Request failed with status code {status}"),
        lambda status: error_result(f"HTTP {status}: no"),
        lambda status: error_result(json.dumps({"error": {"status": status, "message": "no"}})),
        lambda status: error_result("no", structuredContent={"statusCode": status}),
        lambda status: error_result("no", structuredContent={"error": {"code": str(status)}}),
    ],
)
@pytest.mark.parametrize("status", [403, 404, 503])
def test_reads_http_status_from_result(result: Any, status: int) -> None:
    code, message, details = error_mapping.map_result(result(status))
    assert code == STATUSES[status]
    assert details["http_status"] == status
    assert is_safe_message(message)


@pytest.mark.spec("AQ-ERR-7-1")
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Issue 7 not found", "NOT_FOUND_RESOURCE"),
        ("ENOENT: no such file or directory, open 'x'", "NOT_FOUND_RESOURCE"),
        ("Repository does not exist", "NOT_FOUND_RESOURCE"),
        ("Access denied to /etc", "PERMISSION_DENIED"),
        ("Forbidden", "PERMISSION_DENIED"),
        ("A branch of this name already exists", "CONFLICT_ALREADY_EXISTS"),
        ("API rate limit exceeded for user", "RATE_LIMIT_EXCEEDED"),
        ("Too many requests", "RATE_LIMIT_EXCEEDED"),
        ("Everything is on fire", "INTERNAL_ERROR"),
        ("The answer is 404", "INTERNAL_ERROR"),
        ("", "INTERNAL_ERROR"),
    ],
)
def test_maps_server_text_to_code(text: str, code: str) -> None:
    assert error_mapping.map_result(error_result(text))[0] == code


def test_hides_stack_trace() -> None:
    java = "Boom: it broke\n    at com.x.Y.z(Y.java:7)\n    at com.x.A.b(A.java:9)"
    python = 'Traceback (most recent call last):\n  File "/src/x.py", line 1\nValueError: bad name'
    for text, kept in ((java, "Boom: it broke"), (python, "ValueError: bad name")):
        code, message, details = error_mapping.map_result(error_result(text))
        assert code == "INTERNAL_ERROR"
        assert details["upstream_error"] == kept
        assert is_safe_message(message)


def test_masks_secrets_and_limits_server_text() -> None:
    text = "failed with token=sk-abcdefghijklmnopqrstuvwxyz " + "x" * 5_000
    details = error_mapping.map_result(error_result(text))[2]
    assert "sk-abc" not in details["upstream_error"]
    assert len(details["upstream_error"]) <= error_mapping.MAX_UPSTREAM_TEXT


@pytest.mark.parametrize(
    "result",
    [
        b"{}", b"[]", b"null", b'{"content":7}', b'{"content":[7,{"type":"text"}]}', b"\xff",
        b'{"content":[{"type":"text","text":"\\ud800"}]}', b'{"structuredContent":[[]]}',
    ],
)  # fmt: skip
def test_maps_invalid_result_to_internal_error(result: bytes) -> None:
    assert error_mapping.map_result(result)[0] == "INTERNAL_ERROR"


@pytest.mark.spec("AQ-ERR-7.1-1")
def test_maps_json_rpc_error_of_server() -> None:
    code, message, details = error_mapping.map_error(UpstreamResponseError(-32602, "bad x", None))
    assert (code, details["upstream_code"]) == ("VALIDATION_INVALID_TYPE", -32602)
    assert details["upstream_error"] == "bad x"
    assert is_safe_message(message)
    data = Raw(b'{"status":404}')
    assert (
        error_mapping.map_error(UpstreamResponseError(-32000, "no", data))[0]
        == "NOT_FOUND_RESOURCE"
    )
    assert error_mapping.map_error(UpstreamResponseError(1, "x", Raw(b"{")))[0] == "INTERNAL_ERROR"


def test_names_missing_scope_and_deny_reason() -> None:
    error = InterlockError(FORBIDDEN, "clerk lacks the scope write:x.", {"missing": ["write:x"]})
    code, _, details = error_mapping.map_error(error)
    assert (code, details["required_scope"]) == ("PERMISSION_DENIED", "write:x")
    code, message, details = error_mapping.map_error(
        InterlockError(DENIED, "That is not allowed at night.")
    )
    assert is_safe_message(message)
    assert details["reason"] == "That is not allowed at night."


@pytest.mark.spec("AQ-ERR-7.1-1")
@pytest.mark.spec("AQ-OPS-8.1-1")
def test_every_failure_maps_to_safe_message_and_code() -> None:
    for row in all_failures():
        code, message, _ = error_mapping.map_error(InterlockError(row, "Look at this, at once."))
        assert is_safe_message(message), row.name
        assert message
        assert code.startswith(
            ("VALIDATION_", "NOT_FOUND_", "PERMISSION_", "CONFLICT_", "RATE_LIMIT_", "TOKEN_")
        ) or code in ("INTERNAL_ERROR", "CONFIRMATION_REQUIRED")


@pytest.mark.spec("AQ-ERR-7-1")
def test_aql_codes_map_to_themselves() -> None:
    for code, row in FAILURE_BY_CODE.items():
        error = AqlError(code, "x")
        assert error.failure is row
        assert error_mapping.map_error(error)[0] == code


@pytest.mark.spec("AQ-MCP-4.1-2")
def test_marks_mcp_errors() -> None:
    for code in FAILURE_BY_CODE:
        assert is_error(code) is (code == "INTERNAL_ERROR")
        assert is_error(code, "mcp") is True
    assert is_error("SOMETHING_NEW") is True


def test_maps_deadline_of_child_node() -> None:
    code, _, details = error_mapping.map_error(
        RelayedError(DEADLINE_EXCEEDED, "late", {"hop": "x"})
    )
    assert (code, details) == ("INTERNAL_ERROR", {"hop": "x"})


@given(st.text(max_size=400))
def test_maps_any_server_text_safely(text: str) -> None:
    code, message, details = error_mapping.map_result(error_result(text))
    assert is_safe_message(message)
    assert code
    assert len(details.get("upstream_error", "")) <= error_mapping.MAX_UPSTREAM_TEXT
    json.dumps(details)
