"""The errors of AQL: codes, their rows in the one table, and messages.

The sentences keep a rule of the public conformance runner: nothing in them looks like a line of a
stack trace. Its pattern takes any word that ends in "at", followed by another word, for one.
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

# -- What somebody else wrote, as a sentence of AQL quotes it: the same text, short and on one
# line.
#
# Whatever a reader could not see, or could take for the end of the quotation, stands as JSON
# escapes it, so that two different texts never look the same, and a quotation can be read back.
# So does what the public conformance runner would take for a line of a stack trace.

LONGEST: Final = 60
"""Characters of a name or a value, unless said otherwise."""

UNLAWFUL: Final = re.compile(
    r"at\s+\S+|typeerror|referenceerror|syntaxerror|/src/|/node_modules/|\.[tj]s:\d", re.IGNORECASE
)
"""What must not be in a message. No word boundary: "format x" is caught, too."""


def lawful(message: str) -> bool:
    """Whether no part of a message could be taken for a stack trace."""
    return UNLAWFUL.search(message) is None


def short(name: str, most: int = LONGEST) -> str:
    """A name that somebody sent, as details give it back."""
    cut = name if len(name) <= most else name[:most] + "…"
    return cut.encode("utf-8", "replace").decode()


def shown(name: str) -> str:
    """A name that somebody sent, as a sentence has it between single quotes."""
    return escaped(short(name))


def escaped(text: str) -> str:
    """The same of a text that is short enough."""
    return lawfully(_seen(text.replace("\\", "\\\\").replace("'", "\\u0027")))


def value(one: Any, most: int = LONGEST) -> str:
    """A value as JSON, for a sentence. One that is cut says how long it is, and has a mark that
    another value does not have."""
    return lawfully(plain_value(one, most))


def plain_value(one: Any, most: int = LONGEST) -> str:
    """The same where no sentence is made of it: for humans."""
    written = json.dumps(one, ensure_ascii=False, separators=(", ", ": "))
    long = one if isinstance(one, str) else written
    if len(long) <= most:
        return _seen(written)
    cut = f"{long[:most]}…"
    if isinstance(one, str):
        cut = json.dumps(cut, ensure_ascii=False)
    return f"{_seen(cut)} ({len(long)} characters, #{mark(one)})"


def mark(one: Any) -> str:
    """By what a value is told from another one."""
    written = json.dumps(one, sort_keys=True)
    return blake2b(written.encode(), digest_size=6).hexdigest()


def _seen(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def _escape(one: str) -> str:
    return json.dumps(one)[1:-1] if not one.isascii() else f"\\u{ord(one):04x}"


def lawfully(text: str) -> str:
    """JSON that no message has to leave out."""
    while (found := UNLAWFUL.search(text)) is not None:
        # Behind "at" the gap is what makes it one.
        place = found.start() + 2 * (found[0][:2].lower() == "at")
        text = f"{text[:place]}\\u{ord(text[place]):04x}{text[place + 1 :]}"
    return text


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
"""Code → row. Codes of the draft that are not here have the row of their nearest relative."""

BATCH_PARTIAL_FAILURE: Final = "BATCH_PARTIAL_FAILURE"
"""Announced by the draft, never sent: a batch that was worked through is a success."""

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
    "VALIDATION_INVALID_ENCODING": "Not valid UTF-8 text in '{location}'",
    "VALIDATION_OUT_OF_RANGE": (
        "Parameter '{param_name}' must be an integer from {minimum} to {maximum}: readers of JSON "
        "round anything beyond."
    ),
    "NOT_FOUND_OPERATION": "Unknown operation '{operation}'.",
    "NOT_FOUND_RESOURCE": "There is no {resource_type} '{resource_id}'.",
}
"""How sentences begin. What they fill in is in the details, under the same name."""

_MOST_NAMES: Final = 20
FAILED: Final = "failed"
"""The state of a server that does not come by itself."""
_NAMES: Final = frozenset({"param_name", "operation", "location", "resource_id"})
"""What stands between quotes in a sentence, and may be of anybody's making."""
_LONGEST_ABOUT: Final = 160


class AqlError(InterlockError):
    """A failure with a code of AQL."""

    def __init__(self, code: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(ROW.get(code, errors.INVALID_ARGUMENTS), message, details)
        self.code = code


def code_of(error: InterlockError) -> str:
    """What AQL calls any failure of the node."""
    return error.code if isinstance(error, AqlError) else error.failure.aql


def _tame(text: str) -> str:
    """A description by somebody else, as far as the rule of these sentences lets it be quoted."""
    line = " ".join(text.split())
    found = UNLAWFUL.search(line)
    if found is None:
        cut = line
    else:
        cut = line[: found.start()].rpartition(" ")[0].rstrip(" ,;:(") + "…"
        if cut == "…":
            return ""
    return cut if len(cut) <= _LONGEST_ABOUT else cut[:_LONGEST_ABOUT].rstrip() + "…"


def _begin(code: str, details: dict[str, Any]) -> str:
    """A sentence of the table, with lists in it as quoted names."""
    return TEMPLATES[code].format_map({key: _filled(key, one) for key, one in details.items()})


def _filled(key: str, one: Any) -> Any:
    if isinstance(one, list):
        return listed(one)
    return escaped(one) if key in _NAMES and isinstance(one, str) else one


def listed(names: Sequence[str]) -> str:
    """Names as a sentence has them."""
    quoted = ", ".join(f"'{escaped(name)}'" for name in names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{quoted} and {more} more" if more > 0 else quoted or "none"


def missing(param: str, operation: str, type: str, about: str) -> AqlError:
    code = "VALIDATION_MISSING_PARAM"
    details: dict[str, Any] = {"param_name": param, "expected_type": type}
    of = ""
    if operation:
        details["operation"] = operation
        of = f" Operation '{operation}' needs it."
    about = _tame(about).rstrip(".")
    expected = f"{type} ({about})" if about else type
    return AqlError(code, f"{_begin(code, details)}. Expected: {expected}.{of}", details)


def unknown(
    operation: str, unknown: Sequence[str], valid: Iterable[str], near: str | None
) -> AqlError:
    """For parameters that an operation does not have."""
    code = "VALIDATION_UNKNOWN_PARAM"
    details: dict[str, Any] = {
        "operation": operation,
        "unknown_params": [short(name) for name in unknown],
        "valid_params": list(valid),
    }
    return _not_known(code, details, details["valid_params"], near)


def unknown_field(
    param: str, unknown: Sequence[str], valid: Iterable[str], near: str | None = None
) -> AqlError:
    """For members that an object such as `input` may not have."""
    code = "VALIDATION_UNKNOWN_FIELD"
    details: dict[str, Any] = {
        "param_name": param,
        "unknown_fields": [short(name) for name in unknown],
        "valid_fields": list(valid),
    }
    return _not_known(code, details, details["valid_fields"], near)


def _not_known(
    code: str, details: dict[str, Any], valid: Sequence[str], near: str | None
) -> AqlError:
    hint = ""
    if near:
        details["did_you_mean"] = near
        hint = f" Did you mean '{escaped(near)}'?"
    return AqlError(code, f"{_begin(code, details)} Valid: {listed(valid)}.{hint}", details)


def wrong_type(param: str, expected: str, actual: str, reason: str = "") -> AqlError:
    code = "VALIDATION_INVALID_TYPE"
    details = {"param_name": param, "expected_type": expected, "actual_type": actual}
    if reason:
        details["reason"] = reason
    return AqlError(code, _begin(code, details), details)


def not_together(param: str, message: str, hint: str = "") -> AqlError:
    """For parameters that are right each by itself, and wrong beside each other."""
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
    return AqlError(code, _begin(code, details), details)


def no_operation(name: str, near: Sequence[str]) -> AqlError:
    code = "NOT_FOUND_OPERATION"
    details: dict[str, Any] = {"operation": short(name), "available": list(near)}
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return AqlError(
        code, f"{_begin(code, details)}{hint} Ask introspect for the operations there are.", details
    )


def not_yet(name: str, server: str, state: str) -> AqlError:
    """For an operation whose server is known, and is not there. `state`: what it does instead."""
    code = "NOT_FOUND_OPERATION"
    details: dict[str, Any] = {
        "operation": short(name),
        "available": [],
        "server": server,
        "server_state": state,
        "retryable": state != FAILED,
    }
    then = "Try again soon." if state != FAILED else "`interlock status` says why."
    return AqlError(
        code,
        f"{_begin(code, details)} Its server '{escaped(server)}' is {state}, and offers nothing "
        f"yet. {then}",
        details,
    )


def no_resource(kind: str, id: str) -> AqlError:
    code = "NOT_FOUND_RESOURCE"
    details = {"resource_type": kind, "resource_id": short(id)}
    return AqlError(code, _begin(code, details), details)


def too_large(limit_type: str, limit: int, actual: int, unit: str) -> AqlError:
    code = "VALIDATION_PAYLOAD_TOO_LARGE"
    details: dict[str, Any] = {
        "limit_type": limit_type,
        "limit_value": limit,
        "actual_value": actual,
        "unit": unit,
    }
    return AqlError(code, _begin(code, details), details)


def encoding(location: str, offset: int | None = None) -> AqlError:
    code = "VALIDATION_INVALID_ENCODING"
    details: dict[str, Any] = {"location": short(location)}
    where = ""
    if offset is not None:
        details["byte_offset"] = offset
        where = f", byte {offset}"
    return AqlError(
        code,
        f"{_begin(code, details)}{where}. Send text without broken or NUL characters.",
        details,
    )


def out_of_range(param: str, least: int, most: int, *, as_text: bool = False) -> AqlError:
    """For an integer that not every reader of JSON reads as it was written."""
    code = "VALIDATION_OUT_OF_RANGE"
    details: dict[str, Any] = {"param_name": param, "minimum": least, "maximum": most}
    hint = " Send it as a string." if as_text else ""
    return AqlError(code, _begin(code, details) + hint, details)
