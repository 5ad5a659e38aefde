"""What goes wrong in AQL: its codes, their rows in the one table, and their sentences.

The sentences keep a rule of the public conformance runner: nothing in them looks like a line of a
stack trace. Its pattern takes any word that ends in "at", followed by another word, for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from interlock import errors
from interlock.errors import Failure, InterlockError
from interlock.protocol.aql.words import Family

ROW: Final[dict[str, Failure]] = {
    "VALIDATION_MISSING_PARAM": errors.INVALID_ARGUMENTS,
    "VALIDATION_INVALID_TYPE": errors.INVALID_ARGUMENTS,
    "VALIDATION_INVALID_ENUM": errors.INVALID_ARGUMENTS,
    "VALIDATION_OUT_OF_RANGE": errors.INVALID_ARGUMENTS,
    "VALIDATION_PATTERN_MISMATCH": errors.INVALID_ARGUMENTS,
    "VALIDATION_UNKNOWN_PARAM": errors.INVALID_ARGUMENTS,
    "VALIDATION_UNKNOWN_FIELD": errors.INVALID_ARGUMENTS,
    "VALIDATION_ENDPOINT_MISMATCH": errors.INVALID_ARGUMENTS,
    "VALIDATION_INVALID_ENCODING": errors.PARSE_ERROR,
    "VALIDATION_PAYLOAD_TOO_LARGE": errors.PAYLOAD_TOO_LARGE,
    "VALIDATION_INVALID_STATE": errors.INVALID_ARGUMENTS,
    "BATCH_VALIDATION_ERROR": errors.INVALID_ARGUMENTS,
    "INVALID_QUERY_TYPE": errors.INVALID_ARGUMENTS,
    "NOT_FOUND_OPERATION": errors.UNKNOWN_TOOL,
    "NOT_FOUND_RESOURCE": errors.UNKNOWN_RESOURCE,
    "PERMISSION_DENIED": errors.DENIED,
    "PERMISSION_DANGER_LEVEL_DENIED": errors.DENIED,
    "PERMISSION_TRUST_LEVEL_INSUFFICIENT": errors.DENIED,
    "TOKEN_INVALID": errors.PROOF_INVALID,
    "TOKEN_EXPIRED": errors.CONFIRMATION_EXPIRED,
    "TOKEN_SCOPE_MISMATCH": errors.PROOF_INVALID,
    "TOKEN_ALREADY_USED": errors.ALREADY_DECIDED,
    "CONFLICT_ALREADY_EXISTS": errors.TOOL_HELD,
    "CONFLICT_VERSION_MISMATCH": errors.TOOL_HELD,
    "CONFLICT_INVALID_STATE": errors.TOOL_HELD,
    "RATE_LIMIT_EXCEEDED": errors.BUDGET_EXCEEDED,
    "RATE_LIMIT_QUOTA_EXCEEDED": errors.BUDGET_EXCEEDED,
    "CONFIRMATION_REQUIRED": errors.CONFIRMATION_REQUIRED,
    "INTERNAL_ERROR": errors.INTERNAL,
}
"""Code → row. Codes of the draft that are not here have the row of their nearest relative."""

_UNLAWFUL: Final = re.compile(
    r"at\s+\S+|typeerror|referenceerror|syntaxerror|/src/|/node_modules/|\.[tj]s:\d", re.IGNORECASE
)


class AqlError(InterlockError):
    """A failure with a code of AQL."""

    def __init__(self, code: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(ROW.get(code, errors.INVALID_ARGUMENTS), message, details)
        self.code = code


def code_of(error: InterlockError) -> str:
    """What AQL calls any failure of the node."""
    return error.code if isinstance(error, AqlError) else error.failure.aql


def lawful(message: str) -> bool:
    """Whether no part of a message could be taken for a stack trace."""
    return _UNLAWFUL.search(message) is None


def missing(param: str, operation: str, type: str, about: str) -> AqlError:
    expected = f"{type} ({about})" if about else type
    return AqlError(
        "VALIDATION_MISSING_PARAM",
        f"Missing required parameter '{param}'. Expected: {expected}.",
        {"param_name": param, "operation": operation, "expected_type": type},
    )


def unknown(
    operation: str, unknown: Sequence[str], valid: Iterable[str], near: str | None
) -> AqlError:
    names = list(valid)
    shown = ", ".join(f"'{name}'" for name in unknown)
    known = ", ".join(f"'{name}'" for name in names) or "none"
    hint = f" Did you mean '{near}'?" if near else ""
    plural = "s" if len(unknown) > 1 else ""
    return AqlError(
        "VALIDATION_UNKNOWN_PARAM",
        f"Unknown parameter{plural} {shown} for operation '{operation}'. Valid: {known}.{hint}",
        {
            "operation": operation,
            "unknown": list(unknown),
            "valid": names,
            **({"did_you_mean": near} if near else {}),
        },
    )


def wrong_type(param: str, expected: str, actual: str, reason: str = "") -> AqlError:
    details = {"param_name": param, "expected_type": expected, "actual_type": actual}
    if reason:
        details["reason"] = reason
    return AqlError(
        "VALIDATION_INVALID_TYPE",
        f"Parameter '{param}' must be {expected}, received {actual}.",
        details,
    )


def wrong_endpoint(operation: str, expected: Family, actual: str) -> AqlError:
    return AqlError(
        "VALIDATION_ENDPOINT_MISMATCH",
        f"Operation '{operation}' belongs to the endpoint '{expected.tool}', not to '{actual}'. "
        f"Call it there.",
        {
            "operation": operation,
            "expected_endpoint": expected.tool,
            "actual_endpoint": actual,
        },
    )


def no_operation(name: str, near: Sequence[str]) -> AqlError:
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return AqlError(
        "NOT_FOUND_OPERATION",
        f"Unknown operation '{name[:100]}'.{hint} Ask introspect for what there is.",
        {"operation": name[:100], "available": list(near)},
    )


def too_large(limit_type: str, limit: int, actual: int, unit: str) -> AqlError:
    return AqlError(
        "VALIDATION_PAYLOAD_TOO_LARGE",
        f"Too large: {limit_type} is {actual} {unit}, the limit is {limit}.",
        {"limit_type": limit_type, "limit": limit, "actual": actual, "unit": unit},
    )


def encoding(location: str, offset: int | None = None) -> AqlError:
    where = "" if offset is None else f", byte {offset}"
    details: dict[str, Any] = {"location": location}
    if offset is not None:
        details["byte_offset"] = offset
    return AqlError(
        "VALIDATION_INVALID_ENCODING",
        f"Not valid UTF-8 text in '{location}'{where}. Send text without broken or NUL characters.",
        details,
    )
