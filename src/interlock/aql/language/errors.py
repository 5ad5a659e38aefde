"""The errors of AQL: codes, their rows in the error table, and messages.

Messages obey a rule of the public conformance runner: they contain nothing that resembles a stack
trace. Its pattern matches any word that ends in "at", followed by another word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final

from interlock import errors
from interlock.errors import Failure, InterlockError
from interlock.protocol.aql_terms import EndpointFamily

# Quoting of text from other parties in messages: the text itself, short and on one line.
#
# Invisible characters, and characters that could end the quotation, are escaped as in JSON. So two
# different texts never look the same, and a quotation can be decoded. Text that the conformance
# runner would take for a stack trace is escaped, too.

MAX_QUOTED_CHARACTERS: Final = 60
"""Default maximum length of a quoted name or value, in characters."""

STACK_TRACE_PATTERN: Final = re.compile(
    r"at\s+\S+|typeerror|referenceerror|syntaxerror|/src/|/node_modules/|\.[tj]s:\d", re.IGNORECASE
)
"""Patterns that messages must not contain. Without a word boundary: "format x" matches, too."""


def is_safe_message(message: str) -> bool:
    """Return whether no part of a message resembles a stack trace."""
    return STACK_TRACE_PATTERN.search(message) is None


def shorten(name: str, limit: int = MAX_QUOTED_CHARACTERS) -> str:
    """Return a shortened name for error details."""
    shortened = name if len(name) <= limit else name[:limit] + "…"
    return shortened.encode("utf-8", "replace").decode()


def quotable(name: str) -> str:
    """Return a name for a message, between single quotes."""
    return escape(shorten(name))


def escape(text: str) -> str:
    """Return escaped text for a message, between single quotes."""
    return escape_stack_traces(
        _escape_invisible(text.replace("\\", "\\\\").replace("'", "\\u0027"))
    )


def quote_value(value: Any, limit: int = MAX_QUOTED_CHARACTERS) -> str:
    """Return a value as JSON for a message. A shortened value has its length and a unique mark."""
    return escape_stack_traces(plain_value(value, limit))


def plain_value(value: Any, limit: int = MAX_QUOTED_CHARACTERS) -> str:
    """Return a value like `value` does, for texts to which the conformance rule does not apply."""
    encoded = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    full_text = value if isinstance(value, str) else encoded
    if len(full_text) <= limit:
        return _escape_invisible(encoded)
    shortened = f"{full_text[:limit]}…"
    if isinstance(value, str):
        shortened = json.dumps(shortened, ensure_ascii=False)
    return f"{_escape_invisible(shortened)} ({len(full_text)} characters, #{value_mark(value)})"


def value_mark(value: Any) -> str:
    """Return a short hash that distinguishes a value from others."""
    encoded = json.dumps(value, sort_keys=True)
    return blake2b(encoded.encode(), digest_size=6).hexdigest()


def _escape_invisible(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _escape_character(character) for character in text
    )


def _escape_character(character: str) -> str:
    return json.dumps(character)[1:-1] if not character.isascii() else f"\\u{ord(character):04x}"


def escape_stack_traces(text: str) -> str:
    """Escape the parts of JSON text that resemble a stack trace."""
    while (match := STACK_TRACE_PATTERN.search(text)) is not None:
        # After "at", escaping the space is enough.
        index = match.start() + 2 * (match[0][:2].lower() == "at")
        text = f"{text[:index]}\\u{ord(text[index]):04x}{text[index + 1 :]}"
    return text


FAILURE_BY_CODE: Final[dict[str, Failure]] = {
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
    "VALIDATION_INVALID_VALUE": errors.INVALID_ARGUMENTS,
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
    "RATE_LIMIT_QUOTA_PAUSE": errors.CONFIRMATION_REQUIRED,
    "RATE_LIMIT_QUOTA_EXHAUSTED": errors.BUDGET_EXCEEDED,
    "CONFIRMATION_REQUIRED": errors.CONFIRMATION_REQUIRED,
    "INTERNAL_ERROR": errors.INTERNAL,
}
"""Code → row of the error table. Other codes of the draft use the row of a related code."""

BATCH_PARTIAL_FAILURE: Final = "BATCH_PARTIAL_FAILURE"
"""Defined by the draft and never sent: a batch that was processed is a success."""

TEMPLATES: Final[dict[str, str]] = {
    "VALIDATION_MISSING_PARAM": "Missing required parameter '{param_name}'",
    "VALIDATION_INVALID_TYPE": (
        "Parameter '{param_name}' must be {expected_type}, received {actual_type}."
    ),
    "VALIDATION_UNKNOWN_PARAM": "Unknown parameter {unknown_params} for operation '{operation}'.",
    "VALIDATION_UNKNOWN_FIELD": "Unknown field {unknown_fields} in '{param_name}'.",
    "VALIDATION_ENDPOINT_MISMATCH": (
        "Operation '{operation}' belongs to the endpoint '{expected_endpoint}', not to "
        "'{actual_endpoint}'. Call it there."
    ),
    "VALIDATION_PAYLOAD_TOO_LARGE": (
        "Too large: {limit_type} is {actual_value} {unit}, the limit is {limit_value}."
    ),
    "VALIDATION_INVALID_ENCODING": "Invalid UTF-8 text in '{location}'",
    "VALIDATION_OUT_OF_RANGE": (
        "Parameter '{param_name}' must be an integer from {minimum} to {maximum}: JSON readers may "
        "round other integers."
    ),
    "NOT_FOUND_OPERATION": "Unknown operation '{operation}'.",
    "NOT_FOUND_RESOURCE": "Unknown {resource_type} '{resource_id}'.",
}
"""Beginnings of messages. The placeholders are members of the details."""

_MAX_NAMES: Final = 20
FAILED: Final = "failed"
"""The state of a server that does not reconnect by itself."""
_QUOTED_PLACEHOLDERS: Final = frozenset({"param_name", "operation", "location", "resource_id"})
"""Placeholders with untrusted text, which is quoted."""
_MAX_DESCRIPTION: Final = 160


class AqlError(InterlockError):
    """An error with an AQL code."""

    def __init__(self, code: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(FAILURE_BY_CODE.get(code, errors.INVALID_ARGUMENTS), message, details)
        self.code = code


def code_of(error: InterlockError) -> str:
    """Return the AQL code of any error of the node."""
    return error.code if isinstance(error, AqlError) else error.failure.aql


def _sanitize_description(text: str) -> str:
    """Return a description from another party, as far as messages may quote it."""
    line = " ".join(text.split())
    match = STACK_TRACE_PATTERN.search(line)
    if match is None:
        shortened = line
    else:
        shortened = line[: match.start()].rpartition(" ")[0].rstrip(" ,;:(") + "…"
        if shortened == "…":
            return ""
    return (
        shortened
        if len(shortened) <= _MAX_DESCRIPTION
        else shortened[:_MAX_DESCRIPTION].rstrip() + "…"
    )


def _fill_template(code: str, details: dict[str, Any]) -> str:
    """Fill a template. Lists become quoted names."""
    return TEMPLATES[code].format_map(
        {key: _format_value(key, value) for key, value in details.items()}
    )


def _format_value(key: str, value: Any) -> Any:
    if isinstance(value, list):
        return format_names(value)
    return escape(value) if key in _QUOTED_PLACEHOLDERS and isinstance(value, str) else value


def format_names(names: Sequence[str]) -> str:
    """Return names as text for a message."""
    quoted = ", ".join(f"'{escape(name)}'" for name in names[:_MAX_NAMES])
    remaining = len(names) - _MAX_NAMES
    return f"{quoted} and {remaining} more" if remaining > 0 else quoted or "none"


def missing_parameter(param: str, operation: str, type: str, description: str) -> AqlError:
    code = "VALIDATION_MISSING_PARAM"
    details: dict[str, Any] = {"param_name": param, "expected_type": type}
    operation_hint = ""
    if operation:
        details["operation"] = operation
        operation_hint = f" Operation '{operation}' requires it."
    description = _sanitize_description(description).rstrip(".")
    expected = f"{type} ({description})" if description else type
    return AqlError(
        code, f"{_fill_template(code, details)}. Expected: {expected}.{operation_hint}", details
    )


def unknown_parameters(
    operation: str, names: Sequence[str], valid: Iterable[str], suggestion: str | None
) -> AqlError:
    """Return the error for unknown parameters of an operation."""
    code = "VALIDATION_UNKNOWN_PARAM"
    details: dict[str, Any] = {
        "operation": operation,
        "unknown_params": [shorten(name) for name in names],
        "valid_params": list(valid),
    }
    return _unknown_name_error(code, details, details["valid_params"], suggestion)


def unknown_field(
    param: str, names: Sequence[str], valid: Iterable[str], suggestion: str | None = None
) -> AqlError:
    """Return the error for unknown members of an object such as `input`."""
    code = "VALIDATION_UNKNOWN_FIELD"
    details: dict[str, Any] = {
        "param_name": param,
        "unknown_fields": [shorten(name) for name in names],
        "valid_fields": list(valid),
    }
    return _unknown_name_error(code, details, details["valid_fields"], suggestion)


def _unknown_name_error(
    code: str, details: dict[str, Any], valid: Sequence[str], suggestion: str | None
) -> AqlError:
    hint = ""
    if suggestion:
        details["did_you_mean"] = suggestion
        hint = f" Did you mean '{escape(suggestion)}'?"
    return AqlError(
        code, f"{_fill_template(code, details)} Valid: {format_names(valid)}.{hint}", details
    )


def wrong_type(param: str, expected: str, actual: str, reason: str = "") -> AqlError:
    code = "VALIDATION_INVALID_TYPE"
    details = {"param_name": param, "expected_type": expected, "actual_type": actual}
    if reason:
        details["reason"] = reason
    return AqlError(code, _fill_template(code, details), details)


def conflicting_parameters(param: str, message: str, hint: str = "") -> AqlError:
    """Return the error for parameters that cannot be combined."""
    details = {"param_name": param, "expected_type": "absent", "actual_type": "present"}
    if hint:
        details["hint"] = hint
    return AqlError("VALIDATION_INVALID_TYPE", f"{message} {hint}".rstrip(), details)


def wrong_endpoint(operation: str, expected: EndpointFamily, actual: str) -> AqlError:
    code = "VALIDATION_ENDPOINT_MISMATCH"
    details = {
        "operation": operation,
        "expected_endpoint": expected.tool,
        "actual_endpoint": actual,
    }
    return AqlError(code, _fill_template(code, details), details)


def unknown_operation(name: str, suggestions: Sequence[str]) -> AqlError:
    code = "NOT_FOUND_OPERATION"
    details: dict[str, Any] = {"operation": shorten(name), "available": list(suggestions)}
    hint = f" Did you mean '{suggestions[0]}'?" if suggestions else ""
    return AqlError(
        code,
        f"{_fill_template(code, details)}{hint} Call introspect for a list of operations.",
        details,
    )


def server_not_connected(name: str, server: str, state: str) -> AqlError:
    """Return the error for an operation of a server that is not connected.

    Args:
        state: the state of the server.
    """
    code = "NOT_FOUND_OPERATION"
    details: dict[str, Any] = {
        "operation": shorten(name),
        "available": [],
        "server": server,
        "server_state": state,
        "retryable": state != FAILED,
    }
    next_step = "Try again soon." if state != FAILED else "`interlock status` shows the reason."
    return AqlError(
        code,
        f"{_fill_template(code, details)} Its server '{escape(server)}' is {state}, and has "
        f"listed no tools yet. {next_step}",
        details,
    )


def unknown_resource(kind: str, id: str) -> AqlError:
    code = "NOT_FOUND_RESOURCE"
    details = {"resource_type": kind, "resource_id": shorten(id)}
    return AqlError(code, _fill_template(code, details), details)


def too_large(limit_type: str, limit: int, actual: int, unit: str) -> AqlError:
    code = "VALIDATION_PAYLOAD_TOO_LARGE"
    details: dict[str, Any] = {
        "limit_type": limit_type,
        "limit_value": limit,
        "actual_value": actual,
        "unit": unit,
    }
    return AqlError(code, _fill_template(code, details), details)


def invalid_encoding(location: str, offset: int | None = None) -> AqlError:
    code = "VALIDATION_INVALID_ENCODING"
    details: dict[str, Any] = {"location": shorten(location)}
    position = ""
    if offset is not None:
        details["byte_offset"] = offset
        position = f", byte {offset}"
    return AqlError(
        code,
        f"{_fill_template(code, details)}{position}. Send text without invalid or NUL characters.",
        details,
    )


def out_of_range(param: str, minimum: int, maximum: int, *, as_text: bool = False) -> AqlError:
    """Return the error for an integer that JSON readers may not represent exactly."""
    code = "VALIDATION_OUT_OF_RANGE"
    details: dict[str, Any] = {"param_name": param, "minimum": minimum, "maximum": maximum}
    hint = " Send it as a string." if as_text else ""
    return AqlError(code, _fill_template(code, details) + hint, details)
