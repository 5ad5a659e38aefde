"""Error codes and result envelopes of AIP-14 and AIP-30.

The table in `interlock/errors.py` has more rows than the two specifications have codes. This module
maps every row to a specified code. A code of a tool's own (`stripe:card_declined`) passes
unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from interlock import errors
from interlock.core.call import Outcome
from interlock.drivers.translation import ExtractedValue, error_text
from interlock.errors import UPSTREAM_ERROR, InterlockError, ProtocolError
from interlock.protocol.jsonrpc import decode_value

INPUT_INVALID: Final = "input_invalid"
TIMEOUT: Final = "timeout"
INTERNAL: Final = "internal"

_SPECIFIED: Final = (
    errors.NO_ROUTE,
    errors.NO_ROUTE_IN_REGION,
    errors.PINNED_PROVIDER_UNAVAILABLE,
    errors.POLICY_VIOLATION,
    errors.REGION_MISMATCH,
    errors.INPUT_UNSUPPORTED,
    errors.AUTH_REQUIRED,
    errors.AUTH_FAILED,
    errors.VERSION_MISMATCH,
    errors.INSTALL_FAILED,
    errors.TOOL_UNAVAILABLE,
    errors.EXECUTE_BINDING_MISMATCH,
    errors.OUTPUT_PARSE_FAILED,
    errors.SANDBOX_UNAVAILABLE,
    errors.DEPRECATED_VERSION,
    errors.CANCELLED,
    errors.UPSTREAM_ERROR,
)
_CODES: Final[dict[str, str]] = {
    **{row.name: row.name for row in _SPECIFIED},
    errors.INVALID_ARGUMENTS.name: INPUT_INVALID,
    errors.INVALID_PARAMS.name: INPUT_INVALID,
    errors.PAYLOAD_TOO_LARGE.name: INPUT_INVALID,
    errors.DEADLINE_EXCEEDED.name: TIMEOUT,
    # The caller is not authenticated, not authorized, or not approved.
    errors.UNAUTHENTICATED.name: errors.POLICY_VIOLATION.name,
    errors.FORBIDDEN.name: errors.POLICY_VIOLATION.name,
    errors.DENIED.name: errors.POLICY_VIOLATION.name,
    errors.APPROVAL_REFUSED.name: errors.POLICY_VIOLATION.name,
    errors.CONFIRMATION_REQUIRED.name: errors.POLICY_VIOLATION.name,
    errors.CONFIRMATION_EXPIRED.name: errors.POLICY_VIOLATION.name,
    errors.BUDGET_EXCEEDED.name: errors.POLICY_VIOLATION.name,
    errors.TOOL_HELD.name: errors.POLICY_VIOLATION.name,
    # The tool is not available at the moment.
    errors.UNKNOWN_TOOL.name: errors.TOOL_UNAVAILABLE.name,
    errors.UPSTREAM_UNAVAILABLE.name: errors.TOOL_UNAVAILABLE.name,
    errors.UPSTREAM_LOST.name: errors.TOOL_UNAVAILABLE.name,
    errors.CIRCUIT_OPEN.name: errors.TOOL_UNAVAILABLE.name,
    errors.SHUTTING_DOWN.name: errors.TOOL_UNAVAILABLE.name,
    errors.TOO_BUSY.name: errors.TOOL_UNAVAILABLE.name,
    errors.UPSTREAM_PROTOCOL.name: errors.UPSTREAM_ERROR.name,
}
_NAMESPACED: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}:[a-z0-9][a-z0-9._:-]{0,126}", re.I)


class ToolFault(InterlockError):
    """A failure that a tool or a driver.py reports with a code of its own, such as
    `stripe:card_declined`."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        data: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(UPSTREAM_ERROR, message, {**(data or {}), "code": code})
        self._retryable = retryable

    @property
    def retryable(self) -> bool:
        return self._retryable or super().retryable


def is_namespaced(code: object) -> bool:
    """Return whether `code` is a namespaced code, such as `stripe:card_declined`."""
    return isinstance(code, str) and _NAMESPACED.fullmatch(code) is not None


def aip_code(error: InterlockError) -> str:
    """Return the code of AIP-14 and AIP-30 for an error."""
    code = (error.data or {}).get("code")
    if isinstance(code, str) and is_namespaced(code):
        return code
    return _CODES.get(error.failure.name, INTERNAL)


def tool_result(
    outcome: ExtractedValue | Outcome | InterlockError | Any, ms: float
) -> dict[str, Any]:
    """Return the result envelope of a call: `{ok, value, ms}` or `{ok, error, ms}` (AIP-14).

    Args:
        outcome: the value of a contract, a raw MCP result, or an error.
        ms: the duration of the call.
    """
    if isinstance(outcome, Outcome):
        outcome = _from_result(outcome)
    if isinstance(outcome, InterlockError):
        return {"ok": False, "error": _error_envelope(outcome), "ms": ms}
    value = outcome.value if isinstance(outcome, ExtractedValue) else outcome
    return {"ok": True, "value": value, "ms": ms}


def _error_envelope(error: InterlockError) -> dict[str, Any]:
    code = aip_code(error)
    envelope: dict[str, Any] = {
        "code": code,
        "message": error.message,
        "retryable": error.retryable,
    }
    cause = {name: value for name, value in (error.data or {}).items() if name != "code"}
    if code == INPUT_INVALID:
        envelope["field"] = _first_field(cause)
    if cause:
        envelope["cause"] = cause
    return envelope


def _first_field(cause: Mapping[str, Any]) -> str:
    problems = cause.get("problems")
    first = problems[0] if isinstance(problems, list) and problems else {}
    return str(first.get("field", "")) if isinstance(first, dict) else ""


def _from_result(outcome: Outcome) -> Any:
    """Extract the value of a raw MCP result, or return the error that the result reports."""
    try:
        result = decode_value(outcome.result)
    except ProtocolError as exc:
        return exc
    if not isinstance(result, dict):
        return ExtractedValue(result)
    if result.get("isError") is True:
        return InterlockError(UPSTREAM_ERROR, error_text(result))
    structured = result.get("structuredContent")
    return ExtractedValue(
        {"content": result.get("content", [])} if structured is None else structured
    )


def not_ready() -> InterlockError:
    """Return the error for a request whose deadline passed before the server was ready."""
    return InterlockError(
        errors.DEADLINE_EXCEEDED, "The driver's server was not ready within the timeout. Try again."
    )
