"""Responses to calls that wait for approval, and outcomes of approved calls in their records. Pure.

A plain client gets a tool result that a model and a person understand. A client that can open a
page for its user (`elicitation` by `url`) gets the address of the approval instead.

An approved call ends in one of three states: an upstream answered it (`done`), it was never sent
(`void`), or its outcome is unknown (`lost`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.core.call import Call, Client, Outcome, RelayedError, UpstreamResponseError
from interlock.core.journal.audit import OK, TOOL_ERROR
from interlock.core.pipeline.client_requests import capabilities_of
from interlock.core.pipeline.request_state import SealedState, StateSealer
from interlock.errors import (
    APPROVAL_REFUSED,
    BUDGET_EXCEEDED,
    CANCELLED,
    CONFIRMATION_EXPIRED,
    CONFIRMATION_REQUIRED,
    DEADLINE_EXCEEDED,
    INTERNAL,
    SHUTTING_DOWN,
    TOO_BUSY,
    UNRECORDABLE,
    UPSTREAM_LOST,
    UPSTREAM_PROTOCOL,
    InterlockError,
    ProtocolError,
    failure_by_name,
)
from interlock.primitives.timestamps import format_utc
from interlock.protocol.input_required import REQUEST_STATE, write_input_request
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members, encode_value
from interlock.protocol.mcp import ELICITATION, META_APPROVAL_ONLY, Era, summarize_result
from interlock.protocol.mcpax import APPROVAL, EXECUTED_AT, STATUS
from interlock.trust.approvals.record import (
    DISPATCHING,
    DONE,
    LOST,
    MAX_RESULT_BYTES,
    REFUSED,
    VERIFY,
    VOID,
    Approval,
    StoredError,
)

REQUIRED: Final = CONFIRMATION_REQUIRED.name
COMPLETE_NOTICE: Final = "notifications/elicitation/complete"
URL_REQUIRED_CODE: Final = -32042
"""The error code of the session protocol for a user who must open a page first."""
INPUT_KEY: Final = "approval"
"""The key of the one request in an `input_required` result."""


class UrlElicitationRequiredError(UpstreamResponseError):
    """An error that asks the user of the caller to open a page first."""

    def __init__(self, message: str, data: bytes) -> None:
        super().__init__(URL_REQUIRED_CODE, message, Raw(data))
        self.failure = CONFIRMATION_REQUIRED


def can_open_urls(client: Client) -> bool:
    """Return whether a client declared that it can open an address for its user."""
    elicitation = capabilities_of(client.capabilities).get("elicitation")
    return isinstance(elicitation, dict) and "url" in elicitation


OPERATORS_ENROLLED: Final = "operators_enrolled"
"""A member of the pending result: False while no proof could count. Otherwise it is omitted."""
NO_OPERATORS_TEXT: Final = (
    " This node has no operators yet, so no operator can approve calls. Its user enrols first: "
    "`interlock keys new NAME`."
)


def pending_text(
    approval: Approval, url: str | None, *, has_operators: bool = True, until: str = ""
) -> str:
    """Return the text for the model, which should pass it on to its user.

    Args:
        has_operators: whether any proof can be valid.
    """
    instruction = f"at {url}" if url else f"with `interlock approve {approval.id}`"
    requirement = "A person must approve it first"
    if approval.action == VERIFY:
        requirement = "A person must approve it first, with their own key or passkey"
    until = until or format_utc(approval.expires)
    rule = f" Rule: {' '.join(approval.rule.split())}." if approval.rule else ""
    reason = " ".join(approval.reason.split())
    reason_text = f" Reason: {reason}{'' if reason[-1] in '.!?…' else '.'}" if reason else ""
    return (
        f"{approval.tool} was not called. {requirement}.{reason_text}{rule} Ask your user to "
        f"decide {instruction} until "
        f"{until}. You cannot approve it yourself. The call runs once it is approved. Then make "
        f"exactly the same call again to get its result. Approval: {approval.id}."
        f"{'' if has_operators else NO_OPERATORS_TEXT}"
    )


def pending_result(approval: Approval, url: str | None, *, has_operators: bool = True) -> Outcome:
    """Return the tool result `confirmation_required` (MCP-AX §11.3)."""
    until = format_utc(approval.expires)
    content: dict[str, Any] = {
        "status": REQUIRED,
        "confirmation_id": approval.id,
        "tool": approval.tool,
        "arguments": Raw(approval.shown),
        "capability": Raw(approval.capability),
        "route": approval.route,
        "expires_at": until,
        "args_sha256": approval.digest,
        "nonce": approval.nonce,
        "aud": approval.audience,
        "action": approval.action,
    }
    if approval.masked:
        content["masked"] = approval.masked
    if approval.meta_shown:
        content["meta"] = Raw(approval.meta_shown)
    if approval.reason:
        content["reason"] = approval.reason
    if url is not None:
        content["url"] = url
    if not has_operators:
        content[OPERATORS_ENROLLED] = False
    text = pending_text(approval, url, has_operators=has_operators, until=until)
    result = {
        "content": [{"type": "text", "text": text}],
        "structuredContent": content,
        "isError": True,
        "_meta": {STATUS: REQUIRED},
    }
    return Outcome(encode_value(result), Era.SESSION)


def url_elicitation(approval: Approval, url: str) -> dict[str, Any]:
    """Return the elicitation that opens the page of an approval."""
    return {
        "mode": "url",
        "elicitationId": approval.id,
        "url": url,
        "message": f"Approve or reject the call of {approval.tool}. It runs only if approved.",
    }


def url_error(approval: Approval, url: str) -> UrlElicitationRequiredError:
    """Return the error of the session protocol that asks the client to open the page."""
    data = {"elicitations": [url_elicitation(approval, url)]}
    return UrlElicitationRequiredError(pending_text(approval, url), encode_value(data))


def url_input_request(approval: Approval, url: str, state: str) -> Outcome:
    """Return the `input_required` result of the stateless protocol. The client opens the page and
    makes its request again."""
    request = encode_value(url_elicitation(approval, url))
    return Outcome(write_input_request({INPUT_KEY: (ELICITATION, request)}, state), Era.STATELESS)


def _read_action(call: Call) -> str | None:
    """Return what the user did with the page. None: the request does not say."""
    raw = (call.extra_params or {}).get("inputResponses")
    if raw is None:
        return None
    try:
        response = decode_value(decode_members(raw)[INPUT_KEY])
    except (KeyError, ProtocolError):
        return None
    return str(response.get("action", "")) if isinstance(response, dict) else ""


def is_accepted(call: Call) -> bool | None:
    """Return whether the user opened the page. None: the request does not say."""
    action = _read_action(call)
    return None if action is None else action == "accept"


def is_declined(call: Call) -> bool:
    """Return whether the user declined explicitly. A user that only closed the dialog did not."""
    return _read_action(call) == "decline"


def read_state(call: Call, seals: StateSealer) -> SealedState | None:
    """Return the `requestState` that the caller got with the page address for this very call. None:
    the call brings no such state."""
    raw = (call.extra_params or {}).get(REQUEST_STATE)
    try:
        state = None if raw is None else decode_value(raw)
        state_data = seals.open(state, call) if isinstance(state, str) else None
    except InterlockError:
        return None
    return state_data if state_data is not None and state_data.is_restart else None


def read_approval_id(call: Call, seals: StateSealer) -> str:
    """Return the approval id that the call names: in its `requestState`, its `_meta`, or as an AQL
    confirmation token. Empty: none."""
    state = read_state(call, seals)
    if state is not None:
        return state.handle
    if call.operation_request is not None:
        token = call.operation_request.confirmation
        if token:
            return token.partition("_")[2]
    return _read_meta_id(call, APPROVAL)


def read_required_approval(call: Call) -> str:
    """Return the id of the approval whose result alone the call asks for. Empty: none, or the
    member of `_meta` is not valid."""
    return _read_meta_id(call, META_APPROVAL_ONLY)


def _read_meta_id(call: Call, key: str) -> str:
    raw = None if call.meta is None else call.meta.get(key)
    try:
        value = None if raw is None else decode_value(raw)
    except InterlockError:
        return ""
    return value if isinstance(value, str) else ""


def read_child_approval(result: bytes | Raw) -> tuple[str, float] | None:
    """Return the id of the approval that a child node requires, and when it expires. None: the
    result requires no approval. 0 as the time: the result does not say."""
    if STATUS.encode() not in bytes(result):
        return None
    try:
        members = decode_members(result)
        if decode_value(decode_members(members["_meta"])[STATUS]) != REQUIRED:
            return None
        content = decode_value(members["structuredContent"])
    except (KeyError, ProtocolError):
        return None
    id = content.get("confirmation_id") if isinstance(content, dict) else None
    if not isinstance(id, str) or not 1 <= len(id) <= 200:
        return None
    return id, parse_time(content.get("expires_at"))


def parse_time(text: object) -> float:
    """Return the wall clock time of an ISO 8601 text in seconds. 0: the text is no time."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


# -- Outcomes in records


def to_stored_error(error: InterlockError) -> StoredError:
    if isinstance(error, UpstreamResponseError):
        data = b"" if error.raw_data is None else bytes(error.raw_data)
        return StoredError(error.failure.name, error.message, error.code, data)
    data = b"" if not error.data else encode_value(error.data)
    return StoredError(error.failure.name, error.message, None, data)


def from_stored_error(stored: StoredError) -> InterlockError:
    if stored.code is not None:
        raw_data = Raw(stored.data) if stored.data else None
        return UpstreamResponseError(stored.code, stored.message, raw_data)
    data: Any = decode_value(stored.data) if stored.data else None
    return InterlockError(failure_by_name(stored.failure), stored.message, data)


def mark_as_earlier(outcome: Outcome, approval: Approval, *, in_text: bool = True) -> Outcome:
    """Mark an outcome as the outcome of an earlier call.

    The mark is in `_meta` and, for models and people, a text at the end of the content. A result
    whose `_meta` is no object stays as it is.

    Args:
        in_text: whether to add the text.
    """
    try:
        members = decode_members(outcome.result)
        meta = decode_members(members.get("_meta", Raw(b"{}")))
        content = msgspec.json.decode(members.get("content", b"null"), type=list[Raw] | None)
    except (ProtocolError, msgspec.DecodeError):
        return outcome
    if in_text and content is not None and APPROVAL not in meta:
        text = {"type": "text", "text": _earlier_text(approval)}
        members["content"] = Raw(encode_value([*content, text]))
    meta[APPROVAL] = Raw(encode_value(approval.id))
    # A child node that stored the outcome knows the time better.
    meta.setdefault(EXECUTED_AT, Raw(encode_value(format_utc(approval.ended))))
    members["_meta"] = Raw(encode_members(meta))
    result = encode_members(members)
    return Outcome(result, outcome.era, outcome.summary and summarize_result(result))


def read_executed_at(result: bytes | Raw, approval: str) -> str:
    """Return when the call of this approval was executed. Empty: the result is not marked as the
    outcome of an earlier call."""
    try:
        meta = decode_members(decode_members(result)["_meta"])
        if decode_value(meta[APPROVAL]) != approval:
            return ""
        return str(decode_value(meta[EXECUTED_AT]))
    except (KeyError, ProtocolError):
        return ""


def _earlier_text(approval: Approval) -> str:
    by = f", approved by {approval.by}" if approval.by else ""
    return (
        f"This is the result of an earlier call, executed at {format_utc(approval.ended)}{by}. "
        f"It was not executed again. Approval: {approval.id}."
    )


def stored_outcome(approval: Approval) -> Outcome:
    raw = Raw(approval.result)
    return Outcome(approval.result, Era(approval.era), summarize_result(raw))


# -- The final states of an approval

_UNKNOWN_OUTCOME: Final = frozenset(
    {DEADLINE_EXCEEDED, UPSTREAM_LOST, UPSTREAM_PROTOCOL, CANCELLED, SHUTTING_DOWN, INTERNAL}
)
"""Failures of a dispatched call without a response of its upstream."""
_TEMPORARY: Final = frozenset({TOO_BUSY, BUDGET_EXCEEDED})
"""Failures by which a child node turns a request away before anything happens."""
_MAX_NOTE_LENGTH: Final = 500
_RESULT_TOO_LONG: Final = encode_value(
    {
        "content": [
            {"type": "text", "text": "The call was executed. Its result is too long to store."}
        ]
    }
)


def with_outcome(record: Approval, outcome: Outcome, collected: bool, now: float) -> Approval:
    """Return the record of a call that its upstream answered.

    Args:
        collected: whether the caller receives the outcome now.
    """
    name = TOOL_ERROR if outcome.summary is not None and outcome.summary.is_error else OK
    child_id, until = read_child_approval(outcome.result) or ("", 0.0)
    too_long = len(outcome.result) > MAX_RESULT_BYTES
    return record.with_state(
        DONE,
        ended=now,
        outcome=REQUIRED if child_id else name,
        result=_RESULT_TOO_LONG if too_long else outcome.result,
        era=(Era.SESSION if too_long else outcome.era).value,
        # A call that is pending at a child gate is not final: it is repeated until it passes.
        collected=collected and not child_id,
        below=child_id,
        below_until=until,
    )


def with_child_outcome(record: Approval, outcome: Outcome, now: float) -> Approval:
    """Return the record of a call that waited for a child gate, after the decision there."""
    if not _is_rejected_by_child(outcome):
        return with_outcome(record, outcome, False, now)
    error = InterlockError(
        APPROVAL_REFUSED,
        f"{record.tool} was not called: the approval was rejected at a child node.",
    )
    return record.with_state(
        DONE,
        ended=now,
        outcome=error.failure.name,
        trouble=to_stored_error(error),
        result=b"",
        below="",
        below_until=0.0,
        collected=False,
    )


def _is_rejected_by_child(outcome: Outcome) -> bool:
    """Return whether the outcome is a node's report of a rejected call, and no result of a tool."""
    try:
        members = decode_members(outcome.result)
        return "content" not in members and decode_value(members["status"]) == REFUSED
    except (KeyError, ProtocolError):
        return False


def with_error(
    record: Approval, error: InterlockError, collected: bool, now: float, *, dispatched: bool
) -> Approval:
    """Return the record of a call that failed.

    Args:
        collected: whether the caller receives the error now.
        dispatched: whether the call left the node.
    """
    dispatched = dispatched and record.state == DISPATCHING
    if record.below and _is_still_pending_below(record, error, dispatched):
        return record.with_state(DONE)
    state, note = DONE, ""
    if not dispatched:
        state, note = VOID, f"It was not executed: {error.message}"
    elif error.failure in _UNKNOWN_OUTCOME:
        state, note = LOST, f"The outcome is unknown: {error.message}"
    return record.with_state(
        state,
        ended=now,
        outcome=error.failure.name,
        trouble=to_stored_error(error),
        note=note[:_MAX_NOTE_LENGTH],
        collected=collected,
        result=b"",
        below="",
        below_until=0.0,
    )


def _is_still_pending_below(record: Approval, error: InterlockError, dispatched: bool) -> bool:
    """Return whether a call still waits at a child gate after a request to that gate failed so: the
    request did not arrive, or the gate is too busy, or the call that was approved there is still
    under way."""
    if not isinstance(error, RelayedError):
        return not dispatched
    under_way = (error.data or {}).get("confirmation_id") == record.below
    return error.failure in _TEMPORARY or (error.failure is DEADLINE_EXCEEDED and under_way)


def read_outcome(record: Approval) -> tuple[Outcome | None, InterlockError | None]:
    """Return the outcome or the error of an approval in a final state."""
    if record.result:
        return stored_outcome(record), None
    data = {"confirmation_id": record.id, "state": record.state}
    if record.trouble is not None:
        return None, from_stored_error(record.trouble)
    if record.state == REFUSED:
        reason = f": {record.note}" if record.note else "."
        return None, InterlockError(
            APPROVAL_REFUSED,
            f"{record.tool} was not called: {record.by} rejected the call{reason}",
            data,
        )
    failure = UPSTREAM_LOST if record.state == LOST else CONFIRMATION_EXPIRED
    return None, InterlockError(failure, f"{record.tool}: {record.note}", data)


def must_deliver(record: Approval) -> bool:
    """Return whether a caller that repeats its call must receive this outcome first."""
    return record.state in (DONE, REFUSED, LOST) or record.trouble is not None


def unrecordable_error() -> InterlockError:
    return InterlockError(
        UNRECORDABLE,
        "The call was not made: its approval cannot be written to disk. Try again later.",
    )
