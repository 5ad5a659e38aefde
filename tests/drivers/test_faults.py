"""Failures as codes of AIP-14 and AIP-30, and the envelope of results."""

from __future__ import annotations

import json

import pytest

from interlock import errors
from interlock.core.call import Outcome, UpstreamResponseError
from interlock.drivers.errors import ToolFault, aip_code, tool_result
from interlock.drivers.resolver import DriverCondition, SelectionPolicy
from interlock.drivers.translation import BoundEntry, ExtractedValue
from interlock.errors import Failure, InterlockError, ProtocolError, all_failures
from interlock.protocol.mcp import Era
from tests.drivers.driver_decisions import candidate, contract, decide, entry, inputs

CODES = {
    "auth_required", "auth_failed", "version_mismatch", "install_failed", "tool_unavailable",
    "execute_binding_mismatch", "input_unsupported", "policy_violation", "region_mismatch",
    "pinned_provider_unavailable", "output_parse_failed", "cancelled", "timeout", "internal",
    "input_invalid", "no_route", "no_route_in_region", "upstream_error", "sandbox_unavailable",
    "deprecated_version",
}  # fmt: skip


@pytest.mark.spec("DR-30.errors-2", "DR-14.errors-1")
@pytest.mark.parametrize(
    ("row", "code"),
    [
        (errors.AUTH_REQUIRED, "auth_required"),
        (errors.AUTH_FAILED, "auth_failed"),
        (errors.VERSION_MISMATCH, "version_mismatch"),
        (errors.INSTALL_FAILED, "install_failed"),
        (errors.TOOL_UNAVAILABLE, "tool_unavailable"),
        (errors.EXECUTE_BINDING_MISMATCH, "execute_binding_mismatch"),
        (errors.INPUT_UNSUPPORTED, "input_unsupported"),
        (errors.POLICY_VIOLATION, "policy_violation"),
        (errors.REGION_MISMATCH, "region_mismatch"),
        (errors.PINNED_PROVIDER_UNAVAILABLE, "pinned_provider_unavailable"),
        (errors.OUTPUT_PARSE_FAILED, "output_parse_failed"),
        (errors.CANCELLED, "cancelled"),
        (errors.DEADLINE_EXCEEDED, "timeout"),
        (errors.INTERNAL, "internal"),
        (errors.INVALID_ARGUMENTS, "input_invalid"),
        (errors.NO_ROUTE, "no_route"),
        (errors.NO_ROUTE_IN_REGION, "no_route_in_region"),
        (errors.UPSTREAM_ERROR, "upstream_error"),
        (errors.DENIED, "policy_violation"),
        (errors.UPSTREAM_UNAVAILABLE, "tool_unavailable"),
        (errors.UNRECORDABLE, "internal"),
        (errors.DEPRECATED_VERSION, "deprecated_version"),
    ],
    ids=lambda value: value.name if isinstance(value, Failure) else str(value),
)
def test_each_failure_has_aip_code(row: Failure, code: str) -> None:
    error = InterlockError(row, "Something.")
    assert aip_code(error) == code
    envelope = tool_result(error, 3.5)
    assert envelope["ok"] is False
    assert envelope["ms"] == 3.5
    assert envelope["error"]["code"] == code
    assert envelope["error"]["message"] == "Something."


def test_every_failure_maps_to_specified_code() -> None:
    assert {aip_code(InterlockError(row, "")) for row in all_failures()} <= CODES
    assert aip_code(ProtocolError("x")) == "internal"
    assert aip_code(UpstreamResponseError(-32000, "x", None)) == "upstream_error"


@pytest.mark.spec("DR-30.errors-1", "DR-14.errors-1")
def test_tool_result_has_envelope() -> None:
    assert tool_result(ExtractedValue({"a": 1}), 12.0) == {
        "ok": True,
        "value": {"a": 1},
        "ms": 12.0,
    }
    assert tool_result({"a": 1}, 1) == {"ok": True, "value": {"a": 1}, "ms": 1}
    plain = tool_result(InterlockError(errors.DEADLINE_EXCEEDED, "Too late."), 30_000)
    assert plain == {
        "ok": False,
        "error": {"code": "timeout", "message": "Too late.", "retryable": False},
        "ms": 30_000,
    }
    busy = tool_result(InterlockError(errors.CIRCUIT_OPEN, "Later.", {"retry_after_ms": 5}), 1)
    assert busy["error"] == {
        "code": "tool_unavailable",
        "message": "Later.",
        "retryable": True,
        "cause": {"retry_after_ms": 5},
    }


@pytest.mark.spec("DR-30.errors-1")
@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"structuredContent": {"a": 1}}, {"ok": True, "value": {"a": 1}, "ms": 1}),
        ({"content": []}, {"ok": True, "value": {"content": []}, "ms": 1}),
        (
            {"isError": True, "content": [{"type": "text", "text": "no"}]},
            {
                "ok": False,
                "error": {"code": "upstream_error", "message": "no", "retryable": False},
                "ms": 1,
            },
        ),
        ([1], {"ok": True, "value": [1], "ms": 1}),
    ],
)
def test_raw_result_has_same_envelope(result: object, expected: dict[str, object]) -> None:
    outcome = Outcome(json.dumps(result).encode(), Era.SESSION)
    assert tool_result(outcome, 1) == expected


def test_invalid_json_result_is_internal_error() -> None:
    assert tool_result(Outcome(b"{", Era.SESSION), 1)["error"]["code"] == "internal"


@pytest.mark.spec("DR-30.errors-3")
def test_own_tool_code_passes_unchanged() -> None:
    error = ToolFault("stripe:card_declined", "The card was declined.", retryable=True)
    assert aip_code(error) == "stripe:card_declined"
    assert error.failure is errors.UPSTREAM_ERROR
    told = tool_result(error, 1)["error"]
    assert told == {
        "code": "stripe:card_declined",
        "message": "The card was declined.",
        "retryable": True,
    }
    assert aip_code(ToolFault("x:y", "")) == "x:y"
    # What has no namespace, or is no code, could be taken for one of the host's.
    for code in ("card_declined", "auth_required", "a b:c", ":x", "x:", ""):
        assert aip_code(ToolFault(code, "")) == "upstream_error"
    with_more = ToolFault("x:y", "", data={"reason": "z"})
    assert tool_result(with_more, 1)["error"]["cause"] == {"reason": "z"}


@pytest.mark.spec("DR-14.errors-1")
def test_invalid_input_names_field_and_no_route_lists_rejections() -> None:
    shape = BoundEntry(contract(inputs=inputs("prompt", prompt="string")), entry()).shape
    with pytest.raises(InterlockError) as caught:
        shape.check_inputs({"prompt": 5})
    error = tool_result(caught.value, 1)["error"]
    assert error["code"] == "input_invalid"
    assert error["field"] == "prompt"
    assert error["cause"]["problems"][0]["pointer"] == "/prompt"
    decision = decide(
        candidate("a-mcp", condition=DriverCondition(authed=False)),
        candidate("b-mcp", policy_tags=("bad",)),
        workspace=SelectionPolicy(forbid=("bad",)),
    )
    error = tool_result(decision.error(), 1)["error"]
    assert error["code"] == "no_route"
    assert [item["driver"] for item in error["cause"]["rejected"]] == ["b-mcp@1", "a-mcp@1"]
