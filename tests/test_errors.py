"""The one table of failures: what must hold of every row, whoever adds it."""

from __future__ import annotations

import re

import pytest

from interlock import errors
from interlock.errors import (
    INVALID_REQUEST,
    PARSE_ERROR,
    Failure,
    Fault,
    InterlockError,
    ProtocolError,
    all_failures,
    failure_by_name,
)

ROWS = [pytest.param(row, id=row.name) for row in all_failures()]

GRPC = {
    "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
    "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
}  # fmt: skip


def named_in_the_module() -> dict[str, Failure]:
    return {name: row for name, row in vars(errors).items() if isinstance(row, Failure)}


def test_every_row_is_in_the_table_under_a_name_of_its_own() -> None:
    constants = named_in_the_module()
    # A name that stood twice would have pushed a row out of the table.
    assert len(constants) == len(all_failures())
    assert {row.name for row in constants.values()} == {row.name for row in all_failures()}
    assert len({row.name for row in all_failures()}) == len(all_failures())


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_found_by_its_name(row: Failure) -> None:
    assert failure_by_name(row.name) is row
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", row.name)


def test_a_name_that_never_was_is_no_failure() -> None:
    with pytest.raises(KeyError):
        failure_by_name("no_such_failure")


@pytest.mark.parametrize("row", ROWS)
def test_codes_stay_out_of_ranges_that_belong_to_others(row: Failure) -> None:
    defined_by_json_rpc = {-32700, -32600, -32601, -32602, -32603}
    defined_by_mcp = {-32020, -32021, -32022}
    # Up to 2025-11-25 a resource that is not there had a number of its own.
    defined_by_the_session_wire = {-32002} if row is errors.UNKNOWN_RESOURCE else set()
    for code in (row.code, row.stateless_code):
        if -32768 <= code <= -32000:
            assert code in defined_by_json_rpc | defined_by_mcp | defined_by_the_session_wire
    # 2026-07-28 forbids every other code between -32000 and -32099.
    assert not -32019 <= row.stateless_code <= -32000
    assert not -32099 <= row.stateless_code <= -32023


def test_numbers_of_mcp_ax() -> None:
    assert errors.UNSUPPORTED_VERSION.ax_code == -31009
    assert errors.DEADLINE_EXCEEDED.ax_code == -31010
    assert errors.UNKNOWN_SESSION.ax_code == -31011
    assert errors.FORBIDDEN.ax_code == -31006
    assert errors.UPSTREAM_UNAVAILABLE.ax_code == -32002
    assert errors.UNKNOWN_TOOL.ax_code == -32601
    assert errors.BUDGET_EXCEEDED.ax_code == -32003


@pytest.mark.spec("AX-4.2-12")
@pytest.mark.parametrize(
    ("row", "code", "symbol"),
    [
        (errors.NAMESPACE_CONFLICT, -31001, "namespace_conflict"),
        (errors.CYCLE_DETECTED, -31002, "cycle_detected"),
        (errors.SPLIT_BRAIN, -31003, "split_brain"),
        (errors.AUTHORITY_REJECTED, -31004, "authority_rejected"),
        (errors.INVALID_SEGMENT, -31005, "invalid_segment"),
        (errors.FORBIDDEN, -31006, "scope_denied"),
        (errors.UNSUPPORTED_VERSION, -31009, "unsupported_version"),
        (errors.DEADLINE_EXCEEDED, -31010, "downstream_timeout"),
        (errors.UNKNOWN_SESSION, -31011, "unknown_session"),
        (errors.UPSTREAM_UNAVAILABLE, -32002, "tool_degraded"),
        (errors.BUDGET_EXCEEDED, -32003, "budget_exceeded"),
    ],
    ids=lambda value: value.name if isinstance(value, Failure) else str(value),
)
def test_symbols_of_mcp_ax(row: Failure, code: int, symbol: str) -> None:
    assert (row.ax_code, row.ax_name) == (code, symbol)
    assert errors.failure_for_ax(code, symbol) is row
    assert errors.failure_for_ax(code - 1, symbol) is None
    assert errors.failure_for_ax(code, "something_else") is None


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (errors.PARSE_ERROR, -32700),
        (errors.INVALID_REQUEST, -32600),
        (errors.METHOD_NOT_FOUND, -32601),
        (errors.INVALID_PARAMS, -32602),
        (errors.INTERNAL, -32603),
        (errors.HEADER_MISMATCH, -32020),
        (errors.MISSING_CLIENT_CAPABILITY, -32021),
        (errors.UNSUPPORTED_VERSION, -32022),
        (errors.UNKNOWN_TOOL, -32602),
        (errors.INVALID_ARGUMENTS, -32602),
        (errors.INVALID_CURSOR, -32602),
    ],
    ids=lambda value: value.name if isinstance(value, Failure) else str(value),
)
def test_codes_that_the_protocols_fix(row: Failure, code: int) -> None:
    assert row.code == code
    assert row.stateless_code == code


def test_what_the_protocols_do_not_name_has_a_number_of_its_own() -> None:
    own = [row.code for row in all_failures() if not -32768 <= row.code <= -32000]
    assert len(set(own)) == len(own)


# What HTTP says of a failure. 200: the request was served, its outcome is an error.
HTTP = {
    "parse_error": 400,
    "invalid_request": 400,
    "method_not_found": 404,
    "invalid_params": 400,
    "header_mismatch": 400,
    "missing_client_capability": 400,
    "unsupported_protocol_version": 400,
    "payload_too_large": 413,
    "unknown_session": 404,
    "foreign_origin": 403,
    "too_busy": 503,
    "confirmation_required": 200,
    "proof_invalid": 403,
    "masked_arguments": 400,
    "confirmation_expired": 410,
    "unknown_approval": 404,
    "already_decided": 409,
    "approval_refused": 403,
    "tool_held": 200,
    "denied_by_policy": 403,
    "journal_unavailable": 503,
    "protocol_mismatch": 400,
    "identity_mismatch": 403,
    "capability_violation": 403,
    "messages_lost": 200,
    "unknown_participant": 404,
    "budget_exceeded": 200,
    "namespace_conflict": 409,
    "cycle_detected": 409,
    "split_brain": 409,
    "authority_rejected": 403,
    "invalid_segment": 400,
    "route_mismatch": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    # To a stateless client 404 would say that the method is unknown.
    "unknown_tool": 400,
    "invalid_arguments": 400,
    "invalid_cursor": 400,
    "unknown_prompt": 400,
    "unknown_task": 400,
    "unknown_resource": 400,
    "invalid_request_state": 400,
    "cancelled": 200,
    "deadline_exceeded": 200,
    "upstream_unavailable": 200,
    "upstream_lost": 200,
    "circuit_open": 200,
    "upstream_protocol_error": 200,
    "upstream_error": 200,
    "no_route": 200,
    "no_route_in_region": 200,
    "pinned_provider_unavailable": 200,
    "policy_violation": 403,
    "region_mismatch": 403,
    "input_unsupported": 400,
    "auth_required": 200,
    "auth_failed": 200,
    "version_mismatch": 200,
    "install_failed": 200,
    "tool_unavailable": 200,
    "execute_binding_mismatch": 200,
    "output_parse_failed": 200,
    "sandbox_unavailable": 200,
    "deprecated_version": 410,
    "unknown_contract": 404,
    "contract_conflict": 409,
    "breaking_change": 409,
    "internal_error": 200,
    "shutting_down": 503,
    "config_error": 500,
}


@pytest.mark.parametrize("row", ROWS)
def test_the_http_status_of_a_failure(row: Failure) -> None:
    assert row.http == HTTP[row.name]
    if row.http in range(400, 500):
        assert row.fault is Fault.CALLER
    if row.http >= 500:
        assert row.fault is Fault.NODE


@pytest.mark.parametrize("row", ROWS)
def test_every_face_has_a_column(row: Failure) -> None:
    assert row.grpc in GRPC
    assert re.fullmatch(r"[A-Z]+(_[A-Z]+)+", row.aql)
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", row.mcpx)


def test_what_may_be_tried_again_as_it_is() -> None:
    retryable = {row.name for row in all_failures() if row.retryable}
    assert {"too_busy", "upstream_unavailable", "circuit_open", "shutting_down"} <= retryable
    # A lost call may have been executed; a caller's mistake stays one.
    assert "upstream_lost" not in retryable
    assert all(row.fault is not Fault.CALLER for row in all_failures() if row.retryable)


def test_an_error_carries_its_row_its_sentence_and_its_details() -> None:
    error = InterlockError(errors.UNKNOWN_TOOL, "There is no such tool.", {"tool": "x"})
    assert str(error) == error.message == "There is no such tool."
    assert error.failure is errors.UNKNOWN_TOOL
    assert error.data == {"tool": "x"}


def test_a_protocol_error_is_a_parse_error_unless_it_says_more() -> None:
    assert ProtocolError("x").failure is PARSE_ERROR
    assert ProtocolError("x", INVALID_REQUEST, {"a": 1}).data == {"a": 1}
    assert isinstance(ProtocolError("x"), InterlockError)
