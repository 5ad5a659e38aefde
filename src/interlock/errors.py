"""The table of all failures, and the exception that carries a row of it.

Every protocol has a column: its error code is looked up here and nowhere else. This module imports
nothing of Interlock, so that every other package can use it.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple


class Fault(Enum):
    """The side that caused a failure."""

    CALLER = "caller"
    UPSTREAM = "upstream"
    NODE = "node"


class Failure(NamedTuple):
    """A row of the table.

    `code` is the JSON-RPC code for session clients, `stateless_code` the code for 2026-07-28
    clients: that revision forbids new codes between -32000 and -32099. `ax_code` is the code on
    MCP-AX channels, as the draft defines it. `ax_name` is the symbol that MCP-AX uses as the
    message; the sentence is then in the data. Empty: the draft has no symbol, the sentence is the
    message.
    """

    name: str
    code: int
    stateless_code: int
    ax_code: int
    ax_name: str
    http: int
    grpc: str
    aql: str
    mcpx: str
    retryable: bool
    fault: Fault


_TABLE: Final[dict[str, Failure]] = {}


def _define(
    name: str,
    code: int,
    http: int,
    grpc: str,
    aql: str,
    fault: Fault,
    *,
    stateless_code: int | None = None,
    ax_code: int | None = None,
    ax_name: str = "",
    mcpx: str = "internal_error",
    retryable: bool = False,
) -> Failure:
    row = Failure(
        name,
        code,
        code if stateless_code is None else stateless_code,
        code if ax_code is None else ax_code,
        ax_name,
        http,
        grpc,
        aql,
        mcpx,
        retryable,
        fault,
    )
    _TABLE[name] = row
    return row


_CALLER, _UPSTREAM, _NODE = Fault.CALLER, Fault.UPSTREAM, Fault.NODE

# Protocol errors of a caller.
PARSE_ERROR = _define(
    "parse_error", -32700, 400, "INVALID_ARGUMENT", "VALIDATION_INVALID_ENCODING", _CALLER,
    mcpx="malformed_envelope",
)  # fmt: skip
INVALID_REQUEST = _define(
    "invalid_request", -32600, 400, "INVALID_ARGUMENT", "VALIDATION_INVALID_TYPE", _CALLER,
    mcpx="malformed_envelope",
)  # fmt: skip
METHOD_NOT_FOUND = _define(
    "method_not_found", -32601, 404, "UNIMPLEMENTED", "NOT_FOUND_OPERATION", _CALLER,
    mcpx="method_not_found",
)  # fmt: skip
INVALID_PARAMS = _define(
    "invalid_params", -32602, 400, "INVALID_ARGUMENT", "VALIDATION_INVALID_TYPE", _CALLER,
)  # fmt: skip
HEADER_MISMATCH = _define(
    "header_mismatch", -32020, 400, "INVALID_ARGUMENT", "VALIDATION_INVALID_TYPE", _CALLER,
)  # fmt: skip
MISSING_CLIENT_CAPABILITY = _define(
    "missing_client_capability", -32021, 400, "FAILED_PRECONDITION", "PERMISSION_DENIED", _CALLER,
)  # fmt: skip
UNSUPPORTED_VERSION = _define(
    "unsupported_protocol_version", -32022, 400, "FAILED_PRECONDITION", "VALIDATION_INVALID_TYPE",
    _CALLER, ax_code=-31009, ax_name="unsupported_version",
)  # fmt: skip
PAYLOAD_TOO_LARGE = _define(
    "payload_too_large", -32600, 413, "RESOURCE_EXHAUSTED", "VALIDATION_PAYLOAD_TOO_LARGE",
    _CALLER, mcpx="payload_too_large",
)  # fmt: skip
UNKNOWN_SESSION = _define(
    "unknown_session", -32600, 404, "FAILED_PRECONDITION", "TOKEN_INVALID", _CALLER,
    ax_code=-31011, ax_name="unknown_session",
)  # fmt: skip

FOREIGN_ORIGIN = _define(
    "foreign_origin", -31032, 403, "PERMISSION_DENIED", "PERMISSION_DENIED", _CALLER,
)  # fmt: skip
TOO_BUSY = _define(
    "too_busy", -31026, 503, "RESOURCE_EXHAUSTED", "RATE_LIMIT_EXCEEDED", _NODE, retryable=True,
    mcpx="rate_limited",
)  # fmt: skip

# Requests that are not permitted, or name something unknown.
UNAUTHENTICATED = _define(
    "unauthenticated", -31030, 401, "UNAUTHENTICATED", "PERMISSION_DENIED", _CALLER,
    mcpx="unauthorized",
)  # fmt: skip
FORBIDDEN = _define(
    "forbidden", -31031, 403, "PERMISSION_DENIED", "PERMISSION_DENIED", _CALLER,
    ax_code=-31006, ax_name="scope_denied", mcpx="capability_violation",
)  # fmt: skip
# MCP uses -32602 for an unknown tool. MCP-AX §5.2 requires -32601 on its own channels. For a
# stateless client, -32601 and HTTP 404 would mean that the *method* is unknown.
UNKNOWN_TOOL = _define(
    "unknown_tool", -32602, 400, "NOT_FOUND", "NOT_FOUND_OPERATION", _CALLER, ax_code=-32601,
)  # fmt: skip
UNKNOWN_PROMPT = _define(
    "unknown_prompt", -32602, 400, "NOT_FOUND", "NOT_FOUND_OPERATION", _CALLER,
)  # fmt: skip
UNKNOWN_TASK = _define(
    "unknown_task", -32602, 400, "NOT_FOUND", "NOT_FOUND_OPERATION", _CALLER,
)  # fmt: skip
# The code of the session protocol is not defined in the stateless protocol.
UNKNOWN_RESOURCE = _define(
    "unknown_resource", -32002, 400, "NOT_FOUND", "NOT_FOUND_OPERATION", _CALLER,
    stateless_code=-32602,
)  # fmt: skip
INVALID_STATE = _define(
    "invalid_request_state", -32602, 400, "INVALID_ARGUMENT", "TOKEN_INVALID", _CALLER,
)  # fmt: skip
INVALID_ARGUMENTS = _define(
    "invalid_arguments", -32602, 400, "INVALID_ARGUMENT", "VALIDATION_INVALID_TYPE", _CALLER,
)  # fmt: skip
INVALID_CURSOR = _define(
    "invalid_cursor", -32602, 400, "INVALID_ARGUMENT", "VALIDATION_INVALID_TYPE", _CALLER,
)  # fmt: skip
CANCELLED = _define(
    "cancelled", -31012, 200, "CANCELLED", "INTERNAL_ERROR", _CALLER,
)  # fmt: skip

BUDGET_EXCEEDED = _define(
    "budget_exceeded", -31027, 200, "RESOURCE_EXHAUSTED", "RATE_LIMIT_EXCEEDED", _CALLER,
    ax_code=-32003, ax_name="budget_exceeded",
)  # fmt: skip

# Rejected and ended registrations of subservers.
NAMESPACE_CONFLICT = _define(
    "namespace_conflict", -31001, 409, "ALREADY_EXISTS", "CONFLICT_ALREADY_EXISTS", _CALLER,
    ax_name="namespace_conflict",
)  # fmt: skip
CYCLE_DETECTED = _define(
    "cycle_detected", -31002, 409, "FAILED_PRECONDITION", "CONFLICT_STATE", _CALLER,
    ax_name="cycle_detected",
)  # fmt: skip
SPLIT_BRAIN = _define(
    "split_brain", -31003, 409, "FAILED_PRECONDITION", "CONFLICT_STATE", _CALLER,
    ax_name="split_brain",
)  # fmt: skip
AUTHORITY_REJECTED = _define(
    "authority_rejected", -31004, 403, "PERMISSION_DENIED", "PERMISSION_DENIED", _CALLER,
    ax_name="authority_rejected",
)  # fmt: skip
INVALID_SEGMENT = _define(
    "invalid_segment", -31005, 400, "INVALID_ARGUMENT", "VALIDATION_INVALID_TYPE", _CALLER,
    ax_name="invalid_segment",
)  # fmt: skip
ROUTE_MISMATCH = _define(
    "route_mismatch", -32602, 400, "INVALID_ARGUMENT", "VALIDATION_INVALID_TYPE", _CALLER,
    ax_name="route_mismatch",
)  # fmt: skip

# Approvals, and tools and calls that are blocked.
CONFIRMATION_REQUIRED = _define(
    "confirmation_required", -31033, 200, "FAILED_PRECONDITION", "CONFIRMATION_REQUIRED", _CALLER,
    ax_name="confirmation_required",
)  # fmt: skip
PROOF_INVALID = _define(
    "proof_invalid", -31007, 403, "PERMISSION_DENIED", "TOKEN_INVALID", _CALLER,
    ax_name="proof_invalid",
)  # fmt: skip
CONFIRMATION_EXPIRED = _define(
    "confirmation_expired", -31008, 410, "FAILED_PRECONDITION", "TOKEN_EXPIRED", _CALLER,
    ax_name="confirmation_expired",
)  # fmt: skip
UNKNOWN_APPROVAL = _define(
    "unknown_approval", -31034, 404, "NOT_FOUND", "TOKEN_INVALID", _CALLER,
    ax_name="unknown_approval",
)  # fmt: skip
ALREADY_DECIDED = _define(
    "already_decided", -31035, 409, "FAILED_PRECONDITION", "TOKEN_ALREADY_USED", _CALLER,
    ax_name="already_decided",
)  # fmt: skip
APPROVAL_REFUSED = _define(
    "approval_refused", -31038, 403, "PERMISSION_DENIED", "PERMISSION_DENIED", _CALLER,
    ax_name="approval_refused",
)  # fmt: skip
MASKED_ARGUMENTS = _define(
    "masked_arguments", -31045, 400, "FAILED_PRECONDITION", "CONFIRMATION_REQUIRED", _CALLER,
)  # fmt: skip
TOOL_HELD = _define(
    "tool_held", -31036, 200, "FAILED_PRECONDITION", "CONFLICT_STATE", _UPSTREAM,
    ax_name="tool_held",
)  # fmt: skip
DENIED = _define(
    "denied_by_policy", -31039, 403, "PERMISSION_DENIED", "PERMISSION_DENIED", _CALLER,
    ax_name="denied_by_policy", mcpx="capability_violation",
)  # fmt: skip

# Topics: messages that a participant must not send, or did not get.
PROTOCOL_MISMATCH = _define(
    "protocol_mismatch", -31040, 400, "FAILED_PRECONDITION", "VALIDATION_INVALID_TYPE", _CALLER,
    mcpx="protocol_mismatch",
)  # fmt: skip
IDENTITY_MISMATCH = _define(
    "identity_mismatch", -31041, 403, "PERMISSION_DENIED", "PERMISSION_DENIED", _CALLER,
    mcpx="identity_mismatch",
)  # fmt: skip
CAPABILITY_VIOLATION = _define(
    "capability_violation", -31042, 403, "PERMISSION_DENIED", "PERMISSION_DENIED", _CALLER,
    mcpx="capability_violation",
)  # fmt: skip
MESSAGES_LOST = _define(
    "messages_lost", -31043, 200, "DATA_LOSS", "RATE_LIMIT_EXCEEDED", _CALLER,
    mcpx="messages_lost",
)  # fmt: skip
UNKNOWN_PARTICIPANT = _define(
    "unknown_participant", -31044, 404, "NOT_FOUND", "NOT_FOUND_OPERATION", _CALLER,
)  # fmt: skip

# Failures of an upstream.
DEADLINE_EXCEEDED = _define(
    "deadline_exceeded", -31010, 200, "DEADLINE_EXCEEDED", "INTERNAL_ERROR", _UPSTREAM,
    ax_name="downstream_timeout",
)  # fmt: skip
UPSTREAM_UNAVAILABLE = _define(
    "upstream_unavailable", -31020, 200, "UNAVAILABLE", "INTERNAL_ERROR", _UPSTREAM,
    ax_code=-32002, ax_name="tool_degraded", retryable=True,
)  # fmt: skip
UPSTREAM_LOST = _define(
    "upstream_lost", -31021, 200, "UNAVAILABLE", "INTERNAL_ERROR", _UPSTREAM,
)  # fmt: skip
CIRCUIT_OPEN = _define(
    "circuit_open", -31022, 200, "UNAVAILABLE", "INTERNAL_ERROR", _UPSTREAM, retryable=True,
)  # fmt: skip
UPSTREAM_PROTOCOL = _define(
    "upstream_protocol_error", -31023, 200, "INTERNAL", "INTERNAL_ERROR", _UPSTREAM,
)  # fmt: skip
# A JSON-RPC error of the upstream: its code and message are passed on.
UPSTREAM_ERROR = _define(
    "upstream_error", -32603, 200, "UNKNOWN", "INTERNAL_ERROR", _UPSTREAM,
)  # fmt: skip

# Drivers and contracts. The names of the rows are those of AIP-14 and AIP-30.
NO_ROUTE = _define(
    "no_route", -31050, 200, "UNAVAILABLE", "INTERNAL_ERROR", _NODE, ax_name="no_route",
)  # fmt: skip
NO_ROUTE_IN_REGION = _define(
    "no_route_in_region", -31051, 200, "FAILED_PRECONDITION", "PERMISSION_DENIED", _NODE,
    ax_name="no_route_in_region",
)  # fmt: skip
PINNED_PROVIDER_UNAVAILABLE = _define(
    "pinned_provider_unavailable", -31052, 200, "UNAVAILABLE", "INTERNAL_ERROR", _NODE,
    ax_name="pinned_provider_unavailable",
)  # fmt: skip
POLICY_VIOLATION = _define(
    "policy_violation", -31053, 403, "PERMISSION_DENIED", "PERMISSION_DENIED", _CALLER,
    ax_name="policy_violation", mcpx="capability_violation",
)  # fmt: skip
REGION_MISMATCH = _define(
    "region_mismatch", -31054, 403, "PERMISSION_DENIED", "PERMISSION_DENIED", _CALLER,
    ax_name="region_mismatch", mcpx="capability_violation",
)  # fmt: skip
INPUT_UNSUPPORTED = _define(
    "input_unsupported", -31055, 400, "INVALID_ARGUMENT", "VALIDATION_INVALID_TYPE", _CALLER,
    ax_name="input_unsupported",
)  # fmt: skip
AUTH_REQUIRED = _define(
    "auth_required", -31056, 200, "FAILED_PRECONDITION", "PERMISSION_DENIED", _NODE,
    ax_name="auth_required",
)  # fmt: skip
AUTH_FAILED = _define(
    "auth_failed", -31057, 200, "FAILED_PRECONDITION", "PERMISSION_DENIED", _UPSTREAM,
    ax_name="auth_failed",
)  # fmt: skip
VERSION_MISMATCH = _define(
    "version_mismatch", -31058, 200, "FAILED_PRECONDITION", "CONFLICT_STATE", _NODE,
    ax_name="version_mismatch",
)  # fmt: skip
INSTALL_FAILED = _define(
    "install_failed", -31059, 200, "FAILED_PRECONDITION", "INTERNAL_ERROR", _NODE,
    ax_name="install_failed",
)  # fmt: skip
TOOL_UNAVAILABLE = _define(
    "tool_unavailable", -31060, 200, "UNAVAILABLE", "INTERNAL_ERROR", _UPSTREAM,
    ax_name="tool_unavailable",
)  # fmt: skip
EXECUTE_BINDING_MISMATCH = _define(
    "execute_binding_mismatch", -31061, 200, "FAILED_PRECONDITION", "INTERNAL_ERROR", _NODE,
    ax_name="execute_binding_mismatch",
)  # fmt: skip
OUTPUT_PARSE_FAILED = _define(
    "output_parse_failed", -31062, 200, "INTERNAL", "INTERNAL_ERROR", _UPSTREAM,
    ax_name="output_parse_failed",
)  # fmt: skip
SANDBOX_UNAVAILABLE = _define(
    "sandbox_unavailable", -31063, 200, "FAILED_PRECONDITION", "INTERNAL_ERROR", _NODE,
    ax_name="sandbox_unavailable",
)  # fmt: skip
# A major version of a contract that was removed: the data names the replacement.
DEPRECATED_VERSION = _define(
    "deprecated_version", -31064, 410, "FAILED_PRECONDITION", "NOT_FOUND_OPERATION", _CALLER,
    ax_name="deprecated_version",
)  # fmt: skip

# Contract registry.
UNKNOWN_CONTRACT = _define(
    "unknown_contract", -31065, 404, "NOT_FOUND", "NOT_FOUND_OPERATION", _CALLER,
)  # fmt: skip
CONTRACT_CONFLICT = _define(
    "contract_conflict", -31066, 409, "ALREADY_EXISTS", "CONFLICT_ALREADY_EXISTS", _CALLER,
)  # fmt: skip
BREAKING_CHANGE = _define(
    "breaking_change", -31067, 409, "FAILED_PRECONDITION", "CONFLICT_STATE", _CALLER,
)  # fmt: skip

# Failures of the node itself.
INTERNAL = _define(
    "internal_error", -32603, 200, "INTERNAL", "INTERNAL_ERROR", _NODE,
)  # fmt: skip
INTERNAL_ERROR_TEXT: Final = "Internal error. See the log of the node."
"""The message of an `INTERNAL` error whose cause is only in the log."""
SHUTTING_DOWN = _define(
    "shutting_down", -31024, 503, "UNAVAILABLE", "INTERNAL_ERROR", _NODE, retryable=True,
)  # fmt: skip
UNRECORDABLE = _define(
    "journal_unavailable", -31037, 503, "UNAVAILABLE", "INTERNAL_ERROR", _NODE, retryable=True,
)  # fmt: skip
CONFIG = _define(
    "config_error", -31025, 500, "FAILED_PRECONDITION", "INTERNAL_ERROR", _NODE,
)  # fmt: skip

_BY_AX_NAME: Final = {row.ax_name: row for row in _TABLE.values() if row.ax_name}


def failure_by_name(name: str) -> Failure:
    """Return the row with this name. Raises KeyError."""
    return _TABLE[name]


def failure_for_ax(code: int, symbol: str) -> Failure | None:
    """Return the row for a code and a symbol from an MCP-AX channel. None: unknown."""
    row = _BY_AX_NAME.get(symbol)
    return row if row is not None and row.ax_code == code else None


def all_failures() -> tuple[Failure, ...]:
    """Return all rows, in the order of the table."""
    return tuple(_TABLE.values())


class InterlockError(Exception):
    """An error: a row of the table, a message for a person, and data for a program."""

    __slots__ = ("data", "failure", "message")

    def __init__(self, failure: Failure, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message
        self.data = data

    @property
    def retryable(self) -> bool:
        """True if a retry may succeed: by the row of the table, or because the error has a time."""
        return self.failure.retryable or "retry_after_ms" in (self.data or ())


class ProtocolError(InterlockError):
    """Input that violates its protocol. The only exception that a parser may raise."""

    def __init__(
        self,
        message: str,
        failure: Failure = PARSE_ERROR,
        data: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(failure, message, data)
