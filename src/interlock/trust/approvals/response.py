"""What a caller is told whose call waits for a human, and what the call came to, written into its
record and told again from it. Pure.

A plain client gets a tool result that a model and its person understand. A client that can open a
page for its user (`elicitation` by `url`) is given the address of this one approval instead.

Three things can be known of a call that was let through: it was answered (`done`), it was never
sent (`void`), or neither can be said (`lost`).
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
from interlock.protocol.mcp import ELICITATION, Era, summarize_result
from interlock.protocol.mcpax import APPROVAL, EXECUTED_AT, STATUS
from interlock.trust.approvals.record import (
    DISPATCHING,
    DONE,
    LOST,
    MOST_RESULT,
    REFUSED,
    VERIFY,
    VOID,
    Approval,
    StoredError,
)

REQUIRED: Final = CONFIRMATION_REQUIRED.name
COMPLETE_NOTICE: Final = "notifications/elicitation/complete"
URL_FIRST: Final = -32042
"""How a session server says that its user must go somewhere before it can begin."""
INPUT: Final = "approval"
"""The key of the one question in an `input_required` result."""


class UrlElicitationRequiredError(UpstreamResponseError):
    """The caller's user must open a page first."""

    def __init__(self, message: str, data: bytes) -> None:
        super().__init__(URL_FIRST, message, Raw(data))
        self.failure = CONFIRMATION_REQUIRED


def opens_pages(client: Client) -> bool:
    """Whether a client said that it can open an address for its user."""
    able = capabilities_of(client.capabilities).get("elicitation")
    return isinstance(able, dict) and "url" in able


OPERATORS_ENROLLED: Final = "operators_enrolled"
"""In a held result: False where no proof could count so far. Otherwise it is left out."""
NOBODY_YET: Final = (
    " Nobody can confirm calls at this node yet: its user enrols first, with "
    "`interlock keys new NAME`."
)


def sentence(approval: Approval, url: str | None, *, nobody: bool = False, until: str = "") -> str:
    """What a model reads, and should tell its person. `nobody`: no proof could count so far."""
    how = f"at {url}" if url else f"with `interlock approve {approval.id}`"
    who = "a human, with a key or passkey of their own," if approval.action == VERIFY else "a human"
    until = until or format_utc(approval.expires)
    rule = f" Rule: {' '.join(approval.rule.split())}." if approval.rule else ""
    reason = " ".join(approval.reason.split())
    why = f" Why: {reason}{'' if reason[-1] in '.!?…' else '.'}" if reason else ""
    return (
        f"{approval.tool} was not called: {who} must confirm it first.{why}{rule} Ask your user to "
        f"decide {how} until {until}. You cannot confirm it yourself. Once "
        "it is confirmed it is executed; make exactly the same call again to get its result. "
        f"Approval: {approval.id}.{NOBODY_YET if nobody else ''}"
    )


def held_result(approval: Approval, url: str | None, *, nobody: bool = False) -> Outcome:
    """`confirmation_required`, as a tool result."""
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
    if nobody:
        content[OPERATORS_ENROLLED] = False
    result = {
        "content": [{"type": "text", "text": sentence(approval, url, nobody=nobody, until=until)}],
        "structuredContent": content,
        "isError": True,
        "_meta": {STATUS: REQUIRED},
    }
    return Outcome(encode_value(result), Era.SESSION)


def page_question(approval: Approval, url: str) -> dict[str, Any]:
    """The elicitation that opens the page of an approval."""
    return {
        "mode": "url",
        "elicitationId": approval.id,
        "url": url,
        "message": f"Approve or reject the call of {approval.tool}. It runs only if approved.",
    }


def url_error(approval: Approval, url: str) -> UrlElicitationRequiredError:
    """For the session wire."""
    data = {"elicitations": [page_question(approval, url)]}
    return UrlElicitationRequiredError(sentence(approval, url), encode_value(data))


def url_needed(approval: Approval, url: str, state: str) -> Outcome:
    """For the stateless wire: the client opens the page, and makes its request again."""
    question = encode_value(page_question(approval, url))
    return Outcome(write_input_request({INPUT: (ELICITATION, question)}, state), Era.STATELESS)


def _action(call: Call) -> str | None:
    """What the user did with the page, where the request brings that. None: it brings nothing."""
    raw = (call.extra_params or {}).get("inputResponses")
    if raw is None:
        return None
    try:
        answer = decode_value(decode_members(raw)[INPUT])
    except (KeyError, ProtocolError):
        return None
    return str(answer.get("action", "")) if isinstance(answer, dict) else ""


def accepted(call: Call) -> bool | None:
    """Whether the user opened the page. None: the request does not say."""
    action = _action(call)
    return None if action is None else action == "accept"


def declined(call: Call) -> bool:
    """Whether the user refused explicitly. A user that only closed the question decided nothing."""
    return _action(call) == "decline"


def state_of(call: Call, seals: StateSealer) -> SealedState | None:
    """What its caller was given when it was asked to open the page for this very call, and brings
    back. None: nothing of the kind."""
    raw = (call.extra_params or {}).get(REQUEST_STATE)
    try:
        state = None if raw is None else decode_value(raw)
        opened = seals.open(state, call) if isinstance(state, str) else None
    except InterlockError:
        return None
    return opened if opened is not None and opened.is_restart else None


def named_approval(call: Call, seals: StateSealer) -> str:
    """The id of the approval that the call brings back: in its `requestState`, its `_meta`, or as
    an AQL confirmation token. Empty: none."""
    state = state_of(call, seals)
    if state is not None:
        return state.handle
    if call.operation_request is not None:
        token = call.operation_request.confirmation
        if token:
            return token.partition("_")[2]
    raw = None if call.meta is None else call.meta.get(APPROVAL)
    try:
        named = None if raw is None else decode_value(raw)
    except InterlockError:
        return ""
    return named if isinstance(named, str) else ""


def needed_below(result: bytes | Raw) -> tuple[str, float] | None:
    """The id of the approval that a node below demands, and until when (0: it does not say)."""
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
    return id, seconds_of(content.get("expires_at"))


def seconds_of(text: object) -> float:
    """A moment that was written down, on the wall clock. 0: it is none."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


# -- what a call came to, written down and told again


def trouble_of(error: InterlockError) -> StoredError:
    if isinstance(error, UpstreamResponseError):
        data = b"" if error.raw_data is None else bytes(error.raw_data)
        return StoredError(error.failure.name, error.message, error.code, data)
    data = b"" if not error.data else encode_value(error.data)
    return StoredError(error.failure.name, error.message, None, data)


def error_of(trouble: StoredError) -> InterlockError:
    if trouble.code is not None:
        data = Raw(trouble.data) if trouble.data else None
        return UpstreamResponseError(trouble.code, trouble.message, data)
    known: Any = decode_value(trouble.data) if trouble.data else None
    return InterlockError(failure_by_name(trouble.failure), trouble.message, known)


def marked_as_kept(outcome: Outcome, approval: Approval, *, in_text: bool = True) -> Outcome:
    """The outcome of an earlier call, marked as that in its `_meta` and, for models and people, in
    a text at the end of its content (`in_text`). A result whose `_meta` is no object stays as it
    is."""
    try:
        members = decode_members(outcome.result)
        meta = decode_members(members.get("_meta", Raw(b"{}")))
        content = msgspec.json.decode(members.get("content", b"null"), type=list[Raw] | None)
    except (ProtocolError, msgspec.DecodeError):
        return outcome
    if in_text and content is not None and APPROVAL not in meta:
        text = {"type": "text", "text": _earlier(approval)}
        members["content"] = Raw(encode_value([*content, text]))
    meta[APPROVAL] = Raw(encode_value(approval.id))
    # A node below that kept it knows better when that was.
    meta.setdefault(EXECUTED_AT, Raw(encode_value(format_utc(approval.ended))))
    members["_meta"] = Raw(encode_members(meta))
    result = encode_members(members)
    return Outcome(result, outcome.era, outcome.summary and summarize_result(result))


def kept_at(result: bytes | Raw, approval: str) -> str:
    """When the call was executed whose outcome was kept for this approval. Empty: the result is not
    marked as one."""
    try:
        meta = decode_members(decode_members(result)["_meta"])
        if decode_value(meta[APPROVAL]) != approval:
            return ""
        return str(decode_value(meta[EXECUTED_AT]))
    except (KeyError, ProtocolError):
        return ""


def _earlier(approval: Approval) -> str:
    by = f", approved by {approval.by}" if approval.by else ""
    return (
        f"This is the result of an earlier call, executed at {format_utc(approval.ended)}{by}. "
        f"It was not executed again. Approval: {approval.id}."
    )


def outcome_of(approval: Approval) -> Outcome:
    raw = Raw(approval.result)
    return Outcome(approval.result, Era(approval.era), summarize_result(raw))


# -- How an approval ends.

_UNANSWERED: Final = frozenset(
    {DEADLINE_EXCEEDED, UPSTREAM_LOST, UPSTREAM_PROTOCOL, CANCELLED, SHUTTING_DOWN, INTERNAL}
)
"""How a call that left fails without an answer of its upstream."""
_NOT_NOW: Final = frozenset({TOO_BUSY, BUDGET_EXCEEDED})
"""How a node below turns away who asks, before anything happens."""
_MOST_NOTE: Final = 500
_TOO_LONG: Final = encode_value(
    {"content": [{"type": "text", "text": "It was executed. Its result was too long to be kept."}]}
)


def with_outcome(record: Approval, outcome: Outcome, collected: bool, now: float) -> Approval:
    """The record of a call that was answered. `collected`: whether its caller hears it now."""
    word = TOOL_ERROR if outcome.summary is not None and outcome.summary.is_error else OK
    below, until = needed_below(outcome.result) or ("", 0.0)
    too_long = len(outcome.result) > MOST_RESULT
    return record.step(
        DONE,
        ended=now,
        outcome=REQUIRED if below else word,
        result=_TOO_LONG if too_long else outcome.result,
        era=(Era.SESSION if too_long else outcome.era).value,
        # Another gate below is no end: the same call is answered with it until it is passed.
        collected=collected and not below,
        below=below,
        below_until=until,
    )


def after_below(record: Approval, outcome: Outcome, now: float) -> Approval:
    """The record of a call that waited for a gate below, which was decided by now."""
    if not _refused_below(outcome):
        return with_outcome(record, outcome, False, now)
    error = InterlockError(APPROVAL_REFUSED, f"{record.tool} was not called: it was refused below.")
    return record.step(
        DONE,
        ended=now,
        outcome=error.failure.name,
        trouble=trouble_of(error),
        result=b"",
        below="",
        below_until=0.0,
        collected=False,
    )


def _refused_below(outcome: Outcome) -> bool:
    """Whether this is what a node says of a call that a human refused, and no result of a tool."""
    try:
        members = decode_members(outcome.result)
        return "content" not in members and decode_value(members["status"]) == REFUSED
    except (KeyError, ProtocolError):
        return False


def with_error(
    record: Approval, error: InterlockError, collected: bool, now: float, *, dispatched: bool
) -> Approval:
    """The record of a call that failed. `dispatched`: whether the call left the node."""
    dispatched = dispatched and record.state == DISPATCHING
    if record.below and _says_nothing(record, error, dispatched):
        return record.step(DONE)
    state, note = DONE, ""
    if not dispatched:
        state, note = VOID, f"It was not executed: {error.message}"
    elif error.failure in _UNANSWERED:
        state, note = LOST, f"Whether it was executed is not known: {error.message}"
    return record.step(
        state,
        ended=now,
        outcome=error.failure.name,
        trouble=trouble_of(error),
        note=note[:_MOST_NOTE],
        collected=collected,
        result=b"",
        below="",
        below_until=0.0,
    )


def _says_nothing(record: Approval, error: InterlockError, dispatched: bool) -> bool:
    """Whether a call that waits at a gate below does so still, after somebody asked there and was
    told this: the question did not get there, or the gate has no time for it, or the call that was
    let through there is still under way."""
    if not isinstance(error, RelayedError):
        return not dispatched
    under_way = (error.data or {}).get("confirmation_id") == record.below
    return error.failure in _NOT_NOW or (error.failure is DEADLINE_EXCEEDED and under_way)


def told(record: Approval) -> tuple[Outcome | None, InterlockError | None]:
    """What there is to say about an approval that is over."""
    if record.result:
        return outcome_of(record), None
    about = {"confirmation_id": record.id, "state": record.state}
    if record.trouble is not None:
        return None, error_of(record.trouble)
    if record.state == REFUSED:
        why = f": {record.note}" if record.note else "."
        return None, InterlockError(
            APPROVAL_REFUSED, f"{record.tool} was not called: {record.by} refused it{why}", about
        )
    failure = UPSTREAM_LOST if record.state == LOST else CONFIRMATION_EXPIRED
    return None, InterlockError(failure, f"{record.tool}: {record.note}", about)


def worth_telling(record: Approval) -> bool:
    """Whether its caller, who asks once more, should hear of it before anything else happens."""
    return record.state in (DONE, REFUSED, LOST) or record.trouble is not None


def unwritten() -> InterlockError:
    return InterlockError(
        UNRECORDABLE,
        "The call was not made: its approval cannot be written down now. Try again later.",
    )
