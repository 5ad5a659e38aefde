"""The mapping of errors to AQL errors: code, message and details. Pure functions.

Errors of the node have their code in the table in `errors`. Errors of a server have no code: the
HTTP status decides, else its text. Text of a server is never used as the message. It becomes a
detail, with secrets masked and without stack traces.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from interlock import errors
from interlock.aql.language.errors import AqlError, code_of, is_safe_message
from interlock.core.call import UpstreamLostError, UpstreamResponseError
from interlock.core.redaction import redact
from interlock.errors import InterlockError, ProtocolError
from interlock.protocol.jsonrpc import decode_members, decode_value

MAX_UPSTREAM_TEXT: Final = 500
"""Maximum number of characters that are passed on from a server's text."""
_MAX_EXAMINED_TEXT: Final = 8_000
"""Maximum number of characters that are examined."""

NOT_FOUND: Final = "NOT_FOUND_RESOURCE"
DENIED: Final = "PERMISSION_DENIED"
EXISTS: Final = "CONFLICT_ALREADY_EXISTS"
LIMITED: Final = "RATE_LIMIT_EXCEEDED"
INVALID: Final = "VALIDATION_INVALID_TYPE"
INTERNAL: Final = "INTERNAL_ERROR"


class ErrorReport(NamedTuple):
    """An error as a client receives it."""

    code: str
    message: str
    details: dict[str, Any]


_BY_STATUS: Final = {401: DENIED, 403: DENIED, 404: NOT_FOUND, 409: EXISTS, 429: LIMITED}

_TEXT_PATTERNS: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), code)
    for pattern, code in (
        (r"\brate.?limit|\btoo many requests\b|\bquota (?:was |is )?exceeded\b", LIMITED),
        (
            r"\b(?:permission|access) (?:was |is )?denied\b|\bforbidden\b|\bunauthori[sz]ed\b"
            r"|\bnot (?:permitted|authori[sz]ed)\b|\bEACCES\b|\bEPERM\b",
            DENIED,
        ),
        (r"\balready exists\b|\bduplicate (?:key|entry|name)\b|\bEEXIST\b", EXISTS),
        (
            r"\bnot found\b|\bno such\b|\bdoes(?: not|n't) exist\b|\bcould not be found\b"
            r"|\bENOENT\b",
            NOT_FOUND,
        ),
    )
)
_STATUS: Final = re.compile(
    r"(?:\bHTTP(?:/[0-9.]+)?|\bstatus(?:[ _]?code)?|\bresponse code|\berror code)"
    r"[\"']?\s{0,2}[:=]?\s{0,2}\(?([45][0-9][0-9])\b"
    r"|\b([45][0-9][0-9]) (?:Not Found|Forbidden|Unauthorized|Conflict|Too Many|Bad Request"
    r"|Unprocessable|Internal Server|Bad Gateway|Service Unavailable|Gateway Time)",
    re.IGNORECASE,
)
_STATUS_KEYS: Final = ("http_status", "httpStatus", "status", "status_code", "statusCode", "code")
_STACK_TRACE: Final = re.compile(
    r"^\s*(?:at\s+\S+|File \"|Traceback \(|\.{3} \d+ more|#\d+ +/|Caused by:|\S+\.[jt]s:\d)",
    re.MULTILINE,
)

_MESSAGES: Final[dict[str, str]] = {
    errors.DENIED.name: "A policy of this node denies this call.",
    errors.FORBIDDEN.name: "Your token lacks a scope, or was issued for another audience.",
    errors.APPROVAL_REFUSED.name: "An operator rejected this call. It was not executed.",
    errors.CONFIRMATION_EXPIRED.name: "The approval expired, or something changed since. "
    "Send the same request again.",
    errors.TOO_BUSY.name: "The node is too busy. Try again later.",
    errors.BUDGET_EXCEEDED.name: "The budget is used up.",
    errors.DEADLINE_EXCEEDED.name: "The call timed out. It may have been executed: check before a "
    "retry.",
    errors.UPSTREAM_UNAVAILABLE.name: "The server of this operation is unavailable. Try later.",
    errors.UPSTREAM_LOST.name: "The connection to the server was lost. The call may have been "
    "executed: check before a retry.",
    errors.CIRCUIT_OPEN.name: "The server of this operation failed too often. Try later.",
    errors.UPSTREAM_PROTOCOL.name: "The server of this operation sent an invalid response.",
    errors.UPSTREAM_ERROR.name: "The server of this operation rejected the request.",
    errors.TOOL_HELD.name: "This operation has changed since its approval and is blocked.",
    errors.INTERNAL.name: errors.INTERNAL_ERROR_TEXT,
    errors.SHUTTING_DOWN.name: "The node is shutting down.",
    errors.UNRECORDABLE.name: "The journal cannot be written now, so nothing was executed. "
    "Try later.",
    errors.INVALID_ARGUMENTS.name: "The parameters are invalid for this operation.",
    errors.INVALID_PARAMS.name: "The request is invalid.",
    errors.UNKNOWN_TOOL.name: "The operation no longer exists. Call introspect for a list.",
    errors.CONFIRMATION_REQUIRED.name: "This call needs approval, but approvals are off.",
}
"""Messages for errors whose own message resembles a stack trace."""

_CODE_OVERRIDES: Final = {
    errors.UNKNOWN_RESOURCE.name: NOT_FOUND,
    errors.TOOL_HELD.name: "CONFLICT_INVALID_STATE",
}
"""Errors whose AQL code differs from the table."""
_SERVER_MESSAGES: Final = {
    NOT_FOUND: "The server found nothing for these parameters.",
    DENIED: "The server denied access.",
    EXISTS: "It exists already on the server.",
    LIMITED: "The rate limit of the server is exceeded. Try again later.",
    INVALID: "The server rejected the parameters.",
    INTERNAL: "The server failed to execute this operation.",
}


def code_of_status(status: int) -> str:
    """Return the code for an HTTP error status."""
    code = _BY_STATUS.get(status)
    if code is not None:
        return code
    return INVALID if 400 <= status < 500 else INTERNAL


def map_error(error: InterlockError) -> ErrorReport:
    """Convert an error of the pipeline."""
    if isinstance(error, AqlError):
        return ErrorReport(error.code, error.message, dict(error.data or {}))
    if isinstance(error, UpstreamResponseError):
        return _map_upstream_error(error)
    details = dict(error.data or {})
    failure = error.failure
    code = _CODE_OVERRIDES.get(failure.name) or code_of(error)
    if isinstance(error, UpstreamLostError) and error.status >= 400:
        code = code_of_status(error.status)
        details["http_status"] = error.status
    elif failure in (errors.FORBIDDEN, errors.DENIED):
        details.setdefault("reason", error.message)
        missing = details.pop("missing", None)
        if isinstance(missing, list) and missing:
            details["required_scope"] = missing[0]
    if error.retryable:
        details["retryable"] = True
    message = error.message
    if not is_safe_message(message):
        details.setdefault("reason", redact(message)[:MAX_UPSTREAM_TEXT])
        message = _MESSAGES.get(failure.name, "The call failed.")
    return ErrorReport(code, message, details)


def map_result(result: bytes) -> ErrorReport:
    """Convert a tool result that is marked as an error."""
    text, structured = _read_result(result)
    return _map_text(text, _status_in(structured) or _status_in_text(text))


def _map_upstream_error(error: UpstreamResponseError) -> ErrorReport:
    data: Any = None
    if error.raw_data is not None:
        try:
            data = decode_value(error.raw_data)
        except ProtocolError:
            data = None
    status = _status_in(data) or _status_in_text(error.message)
    report = _map_text(error.message, status, INVALID if error.code == -32602 else INTERNAL)
    return report._replace(details={**report.details, "upstream_code": error.code})


def _map_text(text: str, status: int, default: str = INTERNAL) -> ErrorReport:
    details: dict[str, Any] = {}
    if status:
        code = code_of_status(status)
        details["http_status"] = status
    else:
        code = next((code for pattern, code in _TEXT_PATTERNS if pattern.search(text)), default)
    safe_text = sanitize_text(text)
    if safe_text:
        details["upstream_error"] = safe_text
    return ErrorReport(code, _SERVER_MESSAGES[code], details)


def sanitize_text(text: str) -> str:
    """Return a server's text in a form that is safe to show: short, without secrets and stack
    traces.
    """
    trace_match = _STACK_TRACE.search(text)
    if trace_match is not None:
        # The last line of a Python traceback has the message.
        last = (
            text.rstrip().rpartition("\n")[2]
            if text[trace_match.start() :].find("Trace") == 0
            else ""
        )
        text = text[: trace_match.start()].rstrip() or last
    safe_text = redact(" ".join(text.split())[:_MAX_EXAMINED_TEXT])
    return (
        safe_text
        if len(safe_text) <= MAX_UPSTREAM_TEXT
        else safe_text[: MAX_UPSTREAM_TEXT - 1] + "…"
    )


def _read_result(result: bytes) -> tuple[str, Any]:
    """Return the text and the structured data of a result."""
    try:
        members = decode_members(result)
        content = decode_value(members["content"]) if "content" in members else []
        raw = members.get("structuredContent")
        structured = None if raw is None else decode_value(raw)
    except ProtocolError:
        return "", None
    texts = [
        block["text"][:_MAX_EXAMINED_TEXT]
        for block in (content if isinstance(content, list) else [])
        if isinstance(block, dict) and isinstance(block.get("text"), str)
    ]
    text = "\n".join(texts)[:_MAX_EXAMINED_TEXT]
    if structured is None and text[:1] in ("{", "["):
        try:
            structured = decode_value(text.encode())
        except ProtocolError:
            structured = None
    if not text and structured is not None:
        text = _message_in(structured)
    return text, structured


def _message_in(structured: Any) -> str:
    """Return the message in structured error data: `message`, `error`, or nested ones."""
    for _ in range(3):
        if isinstance(structured, str):
            return structured[:_MAX_EXAMINED_TEXT]
        if not isinstance(structured, dict):
            break
        structured = structured.get("message") or structured.get("error")
    return ""


def _status_in(value: Any) -> int:
    """Return the HTTP status in structured error data, or in its `error`. 0: there is none."""
    for _ in range(3):
        if not isinstance(value, dict):
            return 0
        for key in _STATUS_KEYS:
            status = value.get(key)
            if (
                isinstance(status, str)
                and status.isascii()
                and status.isdigit()
                and len(status) == 3
            ):
                status = int(status)
            if type(status) is int and 400 <= status < 600:
                return status
        value = value.get("error")
    return 0


def _status_in_text(text: str) -> int:
    match = _STATUS.search(text[:_MAX_EXAMINED_TEXT])
    return 0 if match is None else int(match[1] or match[2])
