"""What became of an execution, read from how its call ended; and how far it has come until then.

A call that was made in a view ends with an envelope inside the result of a tool. Where it ends with
something else, that is told in the same words.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from interlock.call import Outcome
from interlock.errors import InterlockError
from interlock.pipeline.approval.record import DONE, EXPIRED, REFUSED
from interlock.pipeline.aql.confirming import PREFIX
from interlock.protocol.aql.envelope import data_of
from interlock.protocol.aql.faults import code_of
from interlock.protocol.mcp import INPUT_REQUIRED, TASK

REQUIRED: Final = "CONFIRMATION_REQUIRED"
RETRY: Final = "retry_execution"
LOST: Final = "lost"
"""Why an execution failed that ran when its node ended."""
_MOST_CHARACTERS: Final = 500

_decode = msgspec.json.Decoder().decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class End(NamedTuple):
    """A result to be kept, or a failure to be told."""

    result: bytes | None
    error: dict[str, Any] | None


class _Text(msgspec.Struct, gc=False):
    text: str = ""


class _Result(msgspec.Struct, gc=False):
    content: list[_Text] = []
    resultType: str = ""


_decode_result = msgspec.json.Decoder(_Result).decode


def how_it_ended(outcome: Outcome | None, error: InterlockError | None) -> End:
    if error is not None or outcome is None:
        return End(None, _told(error))
    envelope = envelope_of(outcome.result)
    if envelope is None:
        return _without_envelope(outcome)
    failure = envelope.get("error")
    return End(outcome.result if failure is None else None, None if failure is None else failure)


def as_it_stands(
    error: dict[str, Any], operation: str, state_of: Callable[[str], str]
) -> dict[str, Any]:
    """Why one failed, as it is told now: whether a human has decided meanwhile what it waited for,
    and how it is gone on with. `state_of`: how an approval stands, empty where nobody knows."""
    details = error.get("details")
    if error.get("code") != REQUIRED or not isinstance(details, dict):
        return error
    token = str(details.get("confirmation_token", ""))
    id = token.removeprefix(PREFIX)
    state = state_of(id)
    if state == DONE:
        message = "A human approved it and it was done: retry_execution collects the result."
    elif state == REFUSED:
        message = "A human refused it, and it was not done."
    elif state == EXPIRED:
        message = "No human decided in time, and it was not done. retry_execution asks again."
    else:
        url = details.get("url")
        where = url if isinstance(url, str) else f"`interlock approve {id}`"
        message = (
            f"It waits for a human, who must confirm '{operation}' first: {where}. You cannot do "
            "it yourself. Ask your user; then retry_execution collects the result."
        )
    told = {**details, "continue_with": RETRY}
    if state:
        told["approval"] = state
    return {**error, "message": message, "details": told}


def failure(message: str, reason: str, code: str = "INTERNAL_ERROR") -> dict[str, Any]:
    return {"code": code, "message": message, "details": {"reason": reason}}


def may_have_been_done(error: dict[str, Any] | None) -> bool:
    """Whether something may have come of what failed so. What was refused was not done; of anything
    else nobody knows how far it came."""
    return error is None or str(error.get("code", "INTERNAL_")).startswith("INTERNAL_")


def envelope_of(result: bytes) -> dict[str, Any] | None:
    """The envelope in a tool's result. None: there is none."""
    try:
        content = _decode_result(result).content
        found = _decode(content[0].text) if content else None
    except _UNREADABLE:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("success"), bool) else None


def data_in(result: bytes) -> Any:
    """What an execution gave, as it is shown to whoever asks for it."""
    envelope = envelope_of(result)
    if envelope is not None:
        if "results" in envelope:
            return {key: envelope[key] for key in ("results", "summary") if key in envelope}
        return envelope.get("data")
    try:
        return _decode(data_of(result).raw)
    except (ValueError, *_UNREADABLE):
        return None


def _told(error: InterlockError | None) -> dict[str, Any]:
    if error is None:
        return failure("It ended without an answer.", LOST)
    return {
        "code": code_of(error),
        "message": error.message,
        "details": {"reason": error.failure.name, **(error.data or {})},
    }


def _without_envelope(outcome: Outcome) -> End:
    glance = outcome.glance
    try:
        kind = _decode_result(outcome.result).resultType
    except _UNREADABLE:
        kind = ""
    if kind in (INPUT_REQUIRED, TASK):
        message = (
            "The server asks for something before it goes on, which an execution cannot answer. "
            "Call the operation without '_async'."
        )
        return End(None, failure(message, kind, "CONFLICT_INVALID_STATE"))
    try:
        data = data_of(outcome.result)
    except ValueError:
        return End(None, failure("The server answered with something that is no result.", "result"))
    if data.failed or (glance is not None and glance.is_error):
        return End(
            None,
            {
                "code": "INTERNAL_ERROR",
                "message": "The operation failed on its server.",
                "details": {"upstream_error": data.raw[:_MOST_CHARACTERS].decode(errors="replace")},
            },
        )
    return End(outcome.result, None)


# -- on the way


def moved(before: dict[str, Any] | None, params: bytes | Raw) -> dict[str, Any] | None:
    """How far it has come, by what its upstream says. None: it says nothing that could be shown.

    The percentage stays between 0 and 100 and never goes back.
    """
    try:
        said = _decode_members(params)
        progress, total, message = (_value(said, key) for key in ("progress", "total", "message"))
    except _UNREADABLE:
        return None
    shown: dict[str, Any] = {}
    if _is_number(progress) and _is_number(total) and total > 0:
        known = 0.0 if before is None else before.get("percentage", 0.0)
        shown["percentage"] = round(max(known, min(100.0, max(0.0, progress / total * 100))), 2)
        shown |= {"current": progress, "total": total}
    elif before is not None and "percentage" in before:
        shown["percentage"] = before["percentage"]
    if isinstance(message, str) and message:
        shown["message"] = message[:_MOST_CHARACTERS]
    return shown or None


def _value(said: dict[str, Raw], key: str) -> Any:
    return _decode(said[key]) if key in said else None


def _is_number(value: Any) -> bool:
    """Whole numbers of JSON may be too large for any arithmetic."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 2**53 and isfinite(value)
