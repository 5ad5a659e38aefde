"""The mapping of errors to those of AQL: code, message and details. Pure.

A failure of the node has its code in the one table of `errors`. What a server did has none: its
status decides, else its words. What a server wrote never becomes the sentence, but a detail, with
secrets masked and without a stack trace.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from interlock import errors
from interlock.aql.language.errors import AqlError, code_of, lawful
from interlock.core.call import UpstreamLostError, UpstreamResponseError
from interlock.core.redaction import redact
from interlock.errors import InterlockError, ProtocolError
from interlock.protocol.jsonrpc import decode_members, decode_value

MOST_UPSTREAM: Final = 500
"""So much of what a server wrote is passed on."""
_MOST_READ: Final = 8_000
"""So much of it is looked at."""

NOT_FOUND: Final = "NOT_FOUND_RESOURCE"
DENIED: Final = "PERMISSION_DENIED"
EXISTS: Final = "CONFLICT_ALREADY_EXISTS"
LIMITED: Final = "RATE_LIMIT_EXCEEDED"
INVALID: Final = "VALIDATION_INVALID_TYPE"
INTERNAL: Final = "INTERNAL_ERROR"


class ErrorReport(NamedTuple):
    """An error as a client reads it."""

    code: str
    message: str
    details: dict[str, Any]


_BY_STATUS: Final = {401: DENIED, 403: DENIED, 404: NOT_FOUND, 409: EXISTS, 429: LIMITED}

_CUES: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
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
_TRACE: Final = re.compile(
    r"^\s*(?:at\s+\S+|File \"|Traceback \(|\.{3} \d+ more|#\d+ +/|Caused by:|\S+\.[jt]s:\d)",
    re.MULTILINE,
)

_SENTENCES: Final[dict[str, str]] = {
    errors.DENIED.name: "The rules of this node do not let you do this.",
    errors.FORBIDDEN.name: "You may not do this: a scope is missing, or your token is not for it.",
    errors.APPROVAL_REFUSED.name: "A human refused this. It was not executed.",
    errors.CONFIRMATION_EXPIRED.name: "It was not confirmed in time, or something changed since. "
    "Make the same request again.",
    errors.TOO_BUSY.name: "Too much is under way. Try again later.",
    errors.BUDGET_EXCEEDED.name: "The budget for this is used up.",
    errors.DEADLINE_EXCEEDED.name: "It did not end within its time. Look before you try again: "
    "it may have been executed.",
    errors.UPSTREAM_UNAVAILABLE.name: "The server of this operation cannot be reached. Try later.",
    errors.UPSTREAM_LOST.name: "The server of this operation went away. Look before you try "
    "again: it may have been executed.",
    errors.CIRCUIT_OPEN.name: "The server of this operation failed too often. Try later.",
    errors.UPSTREAM_PROTOCOL.name: "The server of this operation gave an answer which is none.",
    errors.UPSTREAM_ERROR.name: "The server of this operation refused the request.",
    errors.TOOL_HELD.name: "This operation changed since a human accepted it, and is held.",
    errors.INTERNAL.name: "The node failed on this request; its log says where.",
    errors.SHUTTING_DOWN.name: "The node is shutting down.",
    errors.UNRECORDABLE.name: "It was not executed: the journal cannot be written now. Try later.",
    errors.INVALID_ARGUMENTS.name: "The parameters do not fit this operation.",
    errors.INVALID_PARAMS.name: "The request cannot be read.",
    errors.UNKNOWN_TOOL.name: "There is no such operation any more. Ask introspect.",
    errors.CONFIRMATION_REQUIRED.name: "A human has to confirm this, and none can be asked.",
}
"""What is said where the node's own sentence would look like a stack trace."""

_CODES: Final = {
    errors.UNKNOWN_RESOURCE.name: NOT_FOUND,
    errors.TOOL_HELD.name: "CONFLICT_INVALID_STATE",
}
"""Where a row of the table has another word for what an operation met."""
_SAID_BY_SERVER: Final = {
    NOT_FOUND: "The server found nothing for these parameters.",
    DENIED: "The server does not let this node do it.",
    EXISTS: "The server says it exists already.",
    LIMITED: "The server was asked too often. Try again later.",
    INVALID: "The server did not accept the parameters.",
    INTERNAL: "The server failed on this operation.",
}


def of_status(status: int) -> str:
    """The code for an HTTP status that is a failure."""
    found = _BY_STATUS.get(status)
    if found is not None:
        return found
    return INVALID if 400 <= status < 500 else INTERNAL


def of_error(error: InterlockError) -> ErrorReport:
    """Any failure of the pipeline."""
    if isinstance(error, AqlError):
        return ErrorReport(error.code, error.message, dict(error.data or {}))
    if isinstance(error, UpstreamResponseError):
        return _of_answer(error)
    details = dict(error.data or {})
    failure = error.failure
    code = _CODES.get(failure.name) or code_of(error)
    if isinstance(error, UpstreamLostError) and error.status >= 400:
        code = of_status(error.status)
        details["http_status"] = error.status
    elif failure in (errors.FORBIDDEN, errors.DENIED):
        details.setdefault("reason", error.message)
        missing = details.pop("missing", None)
        if isinstance(missing, list) and missing:
            details["required_scope"] = missing[0]
    if error.retryable:
        details["retryable"] = True
    message = error.message
    if not lawful(message):
        details.setdefault("reason", redact(message)[:MOST_UPSTREAM])
        message = _SENTENCES.get(failure.name, "It failed.")
    return ErrorReport(code, message, details)


def of_result(result: bytes) -> ErrorReport:
    """What a tool says of itself in a result that is marked as an error."""
    text, structured = _read(result)
    return _by_cues(text, _status_in(structured) or _status_said(text))


def _of_answer(error: UpstreamResponseError) -> ErrorReport:
    data: Any = None
    if error.raw_data is not None:
        try:
            data = decode_value(error.raw_data)
        except ProtocolError:
            data = None
    status = _status_in(data) or _status_said(error.message)
    blame = _by_cues(error.message, status, INVALID if error.code == -32602 else INTERNAL)
    return blame._replace(details={**blame.details, "upstream_code": error.code})


def _by_cues(text: str, status: int, otherwise: str = INTERNAL) -> ErrorReport:
    details: dict[str, Any] = {}
    if status:
        code = of_status(status)
        details["http_status"] = status
    else:
        code = next((code for cue, code in _CUES if cue.search(text)), otherwise)
    shown = harmless(text)
    if shown:
        details["upstream_error"] = shown
    return ErrorReport(code, _SAID_BY_SERVER[code], details)


def harmless(text: str) -> str:
    """What a server wrote, as it may be shown: short, no secret, no stack trace."""
    trace = _TRACE.search(text)
    if trace is not None:
        # The last line of a Python trace is the one that says something.
        last = text.rstrip().rpartition("\n")[2] if text[trace.start() :].find("Trace") == 0 else ""
        text = text[: trace.start()].rstrip() or last
    shown = redact(" ".join(text.split())[:_MOST_READ])
    return shown if len(shown) <= MOST_UPSTREAM else shown[: MOST_UPSTREAM - 1] + "…"


def _read(result: bytes) -> tuple[str, Any]:
    """The text of a result, and what of it is data."""
    try:
        members = decode_members(result)
        content = decode_value(members["content"]) if "content" in members else []
        raw = members.get("structuredContent")
        structured = None if raw is None else decode_value(raw)
    except ProtocolError:
        return "", None
    texts = [
        block["text"][:_MOST_READ]
        for block in (content if isinstance(content, list) else [])
        if isinstance(block, dict) and isinstance(block.get("text"), str)
    ]
    text = "\n".join(texts)[:_MOST_READ]
    if structured is None and text[:1] in ("{", "["):
        try:
            structured = decode_value(text.encode())
        except ProtocolError:
            structured = None
    if not text and structured is not None:
        text = _words_of(structured)
    return text, structured


def _words_of(structured: Any) -> str:
    """The sentence in an error that is data: `message`, or `error`, or one inside the other."""
    for _ in range(3):
        if isinstance(structured, str):
            return structured[:_MOST_READ]
        if not isinstance(structured, dict):
            break
        structured = structured.get("message") or structured.get("error")
    return ""


def _status_in(value: Any) -> int:
    """A status in an error that is data, or in what it holds as `error`. 0: there is none."""
    for _ in range(3):
        if not isinstance(value, dict):
            return 0
        for key in _STATUS_KEYS:
            found = value.get(key)
            if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) == 3:
                found = int(found)
            if type(found) is int and 400 <= found < 600:
                return found
        value = value.get("error")
    return 0


def _status_said(text: str) -> int:
    found = _STATUS.search(text[:_MOST_READ])
    return 0 if found is None else int(found[1] or found[2])
