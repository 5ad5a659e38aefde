"""What a caller is told whose call waits for a human, in the words of its wire.

A plain client gets a tool result that a model and its person understand. A client that can open a
page for its user (`elicitation` by `url`) is given the address of this one approval instead.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.core.call import Call, Client, Outcome, UpstreamAnsweredError
from interlock.core.pipeline.client_requests import capabilities_of
from interlock.errors import CONFIRMATION_REQUIRED, InterlockError, ProtocolError, by_name
from interlock.primitives.timestamps import format_utc
from interlock.protocol.input_required import write_needed
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members, encode_value
from interlock.protocol.mcp import ELICITATION, Era, glance_at
from interlock.protocol.mcpax import APPROVAL, EXECUTED_AT, STATUS
from interlock.trust.approvals.record import VERIFY, Approval, Trouble

REQUIRED: Final = CONFIRMATION_REQUIRED.name
COMPLETE_NOTICE: Final = "notifications/elicitation/complete"
URL_FIRST: Final = -32042
"""How a session server says that its user must go somewhere before it can begin."""
INPUT: Final = "approval"
"""The key of the one question in an `input_required` result."""


class UrlFirstError(UpstreamAnsweredError):
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


def sentence(approval: Approval, url: str | None, *, nobody: bool = False) -> str:
    """What a model reads, and should tell its person. `nobody`: no proof could count so far."""
    how = f"at {url}" if url else f"with `interlock approve {approval.id}`"
    who = "a human, with a key or passkey of their own," if approval.action == VERIFY else "a human"
    rule = f" Rule: {' '.join(approval.rule.split())}." if approval.rule else ""
    reason = " ".join(approval.reason.split())
    why = f" Why: {reason}{'' if reason[-1] in '.!?…' else '.'}" if reason else ""
    return (
        f"{approval.tool} was not called: {who} must confirm it first.{why}{rule} Ask your user to "
        f"decide {how} until {format_utc(approval.expires)}. You cannot confirm it yourself. Once "
        "it is confirmed it is executed; make exactly the same call again to get its result. "
        f"Approval: {approval.id}.{NOBODY_YET if nobody else ''}"
    )


def held_result(approval: Approval, url: str | None, *, nobody: bool = False) -> Outcome:
    """`confirmation_required`, as a tool result."""
    content: dict[str, Any] = {
        "status": REQUIRED,
        "confirmation_id": approval.id,
        "tool": approval.tool,
        "arguments": Raw(approval.shown),
        "capability": Raw(approval.capability),
        "route": approval.route,
        "expires_at": format_utc(approval.expires),
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
        "content": [{"type": "text", "text": sentence(approval, url, nobody=nobody)}],
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


def url_error(approval: Approval, url: str) -> UrlFirstError:
    """For the session wire."""
    data = {"elicitations": [page_question(approval, url)]}
    return UrlFirstError(sentence(approval, url), encode_value(data))


def url_needed(approval: Approval, url: str, state: str) -> Outcome:
    """For the stateless wire: the client opens the page, and makes its request again."""
    question = encode_value(page_question(approval, url))
    return Outcome(write_needed({INPUT: (ELICITATION, question)}, state), Era.STATELESS)


def _action(call: Call) -> str | None:
    """What the user did with the page, where the request brings that. None: it brings nothing."""
    raw = (call.extra or {}).get("inputResponses")
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


def trouble_of(error: InterlockError) -> Trouble:
    if isinstance(error, UpstreamAnsweredError):
        data = b"" if error.raw_data is None else bytes(error.raw_data)
        return Trouble(error.failure.name, error.message, error.code, data)
    data = b"" if not error.data else encode_value(error.data)
    return Trouble(error.failure.name, error.message, None, data)


def error_of(trouble: Trouble) -> InterlockError:
    if trouble.code is not None:
        data = Raw(trouble.data) if trouble.data else None
        return UpstreamAnsweredError(trouble.code, trouble.message, data)
    known: Any = decode_value(trouble.data) if trouble.data else None
    return InterlockError(by_name(trouble.failure), trouble.message, known)


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
    return Outcome(result, outcome.era, outcome.glance and glance_at(result))


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
    return Outcome(approval.result, Era(approval.era), glance_at(raw))
