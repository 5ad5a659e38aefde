"""Confirmation tokens: names for approvals, and nothing more.

There is no second store. A token says which approval its bearer means; whose it is, for which call,
until when, and whether it was used, is read from the approval. To bring one back approves nothing:
only a human's proof does, and the caller of an operation can never give that proof by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, cast

from interlock.aql.config import OperationConfig
from interlock.aql.error_mapping import ErrorReport
from interlock.aql.language import errors
from interlock.aql.language.envelope import data_of
from interlock.aql.language.errors import AqlError
from interlock.aql.language.request import CONFIRMATION
from interlock.aql.operations import BuiltinOperation, Operation, Parameter
from interlock.aql.request import AqlRequest
from interlock.core.call import Call, Caller, Principal, principal
from interlock.core.journal.audit import Audit
from interlock.core.redaction import MASK
from interlock.errors import InterlockError, ProtocolError
from interlock.primitives.rate_limits import KeyedWindows
from interlock.primitives.timestamps import format_utc
from interlock.protocol.aql_terms import Category, Danger
from interlock.protocol.jsonrpc import decode_members, decode_value
from interlock.trust.approvals.record import (
    APPROVED,
    EXPIRED,
    PENDING,
    VOID,
    Approval,
    whole,
)
from interlock.trust.approvals.response import OPERATORS_ENROLLED
from interlock.trust.approvals.service import Approvals

# -- How often somebody may bring what does not count, before nobody looks at it any more.

MOST: Final = 20
WINDOW: Final = 60.0
"""After so many wrong ones of one caller in so many seconds, even a right one has to wait."""


class TokenAttemptLimiter:
    """Limits wrong tokens, by the principal behind the connection."""

    def __init__(self, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self._windows: KeyedWindows[Principal] = KeyedWindows(MOST, WINDOW, clock)

    def must_be_few(self, whose: Principal) -> None:
        """Raises AqlError."""
        left = self._windows.wait_seconds(whose)
        if left <= 0:
            return
        raise AqlError(
            "RATE_LIMIT_EXCEEDED",
            "Too many wrong tokens or proofs. Wait before you bring another.",
            {
                "limit": MOST,
                "remaining": 0,
                "window": "minute",
                "resets_at": format_utc(self._wall_clock() + left),
                "retry_after_seconds": int(left) + 1,
            },
        )

    def another(self, whose: Principal) -> None:
        self._windows.add(whose)


PREFIX: Final = "conf_"
TOKEN: Final = "confirmation_token"
FORBIDDEN_SECONDS: Final = 120.0
"""How long a human has for what is forbidden otherwise."""
_TOKEN: Final = re.compile(r"conf_[A-Za-z0-9_-]{1,64}", re.ASCII)
_SLOT: Final = re.compile(r"\{([a-z_][a-z0-9_]{0,99})\}")
_NOBODY_YET: Final = (
    " No operator of this node is enrolled yet: your user enrols first, with "
    "`interlock keys new NAME`."
)
_MOST_FOLLOWED: Final = 10_000
_MOST_NAMED: Final = 5
_LONGEST_VALUE: Final = 80


def token_of(id: str) -> str:
    return PREFIX + id


def hidden(token: str) -> str:
    """A token as failures and the journal show it."""
    shown = token[: len(PREFIX) + 2] if _TOKEN.fullmatch(token) else token[:2]
    return f"{shown}…"


def expiry(call: Call, default: float) -> float:
    """How long a human has to decide about a call, by how bad it can get."""
    asked = call.operation_request
    if isinstance(asked, AqlRequest) and asked.operation.danger is Danger.FORBIDDEN:
        return min(default, FORBIDDEN_SECONDS)
    return default


class ConfirmationTokens:
    """Makes tokens of approvals, and checks tokens that clients send."""

    def __init__(
        self,
        approvals: Approvals,
        audit: Audit,
        *,
        settings: Callable[[str], OperationConfig],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        """`settings`: what the config says of a tool, by its canonical name."""
        self._approvals = approvals
        self._audit = audit
        self._settings = settings
        self._wall_clock = wall_clock
        self._wrong = TokenAttemptLimiter(clock, wall_clock)
        self._issued: dict[str, str] = {}
        """The operations of approvals whose tokens were given out."""
        self._below: dict[str, tuple[Principal, str]] = {}
        """Of those that a node below holds: whose they are, and for which call."""
        self.close = approvals.watch(self._stepped, (APPROVED, VOID, EXPIRED), ids=self._issued)
        """Ends that it hears of approvals."""

    # -- a token is given out

    def required(self, call: Call, result: bytes) -> ErrorReport | None:
        """What the answer of a gate is in AQL. None: it is no such answer."""
        try:
            content = decode_value(decode_members(result)["structuredContent"])
            id, expires = content["confirmation_id"], content["expires_at"]
        except (KeyError, TypeError, ProtocolError):
            return None
        asked = cast("AqlRequest", call.operation_request)
        operation = asked.operation
        token = token_of(str(id))
        url = content.get("url")
        where = str(url) if isinstance(url, str) else f"`interlock approve {id}`"
        details: dict[str, Any] = {
            "operation": operation.name,
            "danger_level": operation.danger.label,
            "confirmation_message": self._message(call, operation),
            "confirmation_token": token,
            "expires_at": expires,
        }
        reasons = [*operation.reasons]
        if content.get("reason"):
            reasons.append(str(content["reason"]))
        if reasons:
            details["reasons"] = reasons
        if isinstance(url, str):
            details["url"] = url
        nobody = content.get(OPERATORS_ENROLLED) is False
        if nobody:
            details[OPERATORS_ENROLLED] = False
        self._note(call, operation, "CONFIRMATION_REQUIRED", token)
        if id not in self._issued:
            if len(self._issued) >= _MOST_FOLLOWED:
                oldest = next(iter(self._issued))
                del self._issued[oldest]
                self._below.pop(oldest, None)
            self._issued[str(id)] = operation.name
            self._note(call, operation, "TOKEN_ISSUED", token)
        record = self._approvals.find(str(id))
        if (record is None or record.at) and call.caller is not None:
            self._below[str(id)] = principal(call.caller), _digest(call, operation)
        features = operation.signature.features
        token_as = TOKEN if TOKEN in features else CONFIRMATION
        message = (
            f"A human must confirm '{operation.name}' first: {where}. You cannot do it yourself. "
            "Ask your user, then send the same request again with "
            f"'{token_as}'.{_NOBODY_YET if nobody else ''}"
        )
        return ErrorReport("CONFIRMATION_REQUIRED", message, details)

    def _message(self, call: Call, operation: Operation) -> str:
        """What a human reads, with the values of this call in it."""
        given = dict(call.decoded_arguments) if isinstance(call.decoded_arguments, dict) else {}
        values: dict[str, Any] = {}
        for one in operation.signature.parameters:
            if one.own in given:
                value = given.pop(one.own)
                values[one.name] = MASK if one.sensitive else value
        # What the tool takes without naming it.
        values |= given
        said = self._settings(operation.canonical).confirmation_message
        if said is not None:
            return _SLOT.sub(lambda slot: _in_slot(slot, values), said)
        named = [f"{errors.shown(name)} {_quoted(one)}" for name, one in values.items()]
        text = ", ".join(named[:_MOST_NAMED])
        if len(named) > _MOST_NAMED:
            rest = dict(list(values.items())[_MOST_NAMED:])
            text += f" and {len(rest)} more (#{errors.mark(rest)})"
        return f"Confirm {operation.name}{f' with {text}' if text else ''}?"

    def approver(self, id: str) -> str:
        """Who approved the call of an approval. Empty: that is not known here."""
        record = self._approvals.find(id)
        return "" if record is None else record.by

    # -- a token is brought back

    def check(self, call: Call, asked: AqlRequest) -> None:
        """Look at the token of a request. What it lets go on is for the gate to say. Raises
        AqlError."""
        token, operation = asked.confirmation, asked.operation
        caller = call.caller
        assert caller is not None
        self._wrong.must_be_few(principal(caller))
        pending = True
        try:
            below = self._below.get(token[len(PREFIX) :]) if _TOKEN.fullmatch(token) else None
            if below is not None and below[0] == principal(caller):
                # Whether it still counts is for the node to say that holds it.
                self._must_be_about(token, below[1], call, operation)
            else:
                record = self._own(token, caller)
                self._must_count(record, token)
                self._must_be_about(token, record.digest, call, operation)
                pending = record.state == PENDING
        except AqlError as refused:
            self._wrong.another(principal(caller))
            self._note(call, operation, "TOKEN_REJECTED", token, refused.code)
            raise
        if not pending:
            self._note(call, operation, "TOKEN_VALIDATED", token)

    def _own(self, token: str, caller: Caller) -> Approval:
        record = None
        if _TOKEN.fullmatch(token):
            record = self._approvals.find(token[len(PREFIX) :])
        if record is None or record.at or principal(record.caller) != principal(caller):
            raise invalid()
        return record

    def _must_count(self, record: Approval, token: str) -> None:
        now = self._wall_clock()
        if record.state in (EXPIRED, VOID) or (record.state == PENDING and now >= record.expires):
            raise AqlError(
                "TOKEN_EXPIRED",
                "The confirmation is no longer valid. Send the request again without its token.",
                {
                    "token": hidden(token),
                    "expired_at": format_utc(record.ended or record.expires),
                    "current_time": format_utc(now),
                },
            )
        if record.collected:
            raise AqlError(
                "TOKEN_ALREADY_USED",
                "The token was used: its operation was executed once, and told.",
                {
                    "token": hidden(token),
                    "consumed_at": format_utc(record.decided or record.ended),
                },
            )

    def _must_be_about(self, token: str, digest: str, call: Call, operation: Operation) -> None:
        if _digest(call, operation) != digest:
            id = token[len(PREFIX) :]
            record = self._approvals.find(id)
            known = self._issued.get(id) or ("" if record is None else record.tool)
            raise AqlError(
                "TOKEN_SCOPE_MISMATCH",
                "The token is for another operation, or for other parameters.",
                {
                    "token": hidden(token),
                    "token_operation": known,
                    "requested_operation": operation.name,
                },
            )

    # -- the journal

    def denied(self, call: Call, code: str) -> None:
        """Somebody was refused an operation."""
        if isinstance(call.operation_request, AqlRequest):
            self._note(call, call.operation_request.operation, "OPERATION_DENIED", "", code)

    def _stepped(self, approval: Approval) -> None:
        operation = self._issued.get(approval.id)
        if operation is None:
            return
        about = f"token:{hidden(token_of(approval.id))} tool:{approval.tool}"
        if approval.state == APPROVED:
            detail = f"{about} by {approval.by} ({approval.proof})"
            self._audit.record_change("aql", operation, "CONFIRMATION_GRANTED", detail)
        elif approval.state in (VOID, EXPIRED):
            word = "TOKEN_REVOKED" if approval.state == VOID else "TOKEN_EXPIRED"
            self._audit.record_change("aql", operation, word, f"{about} {approval.note}")

    def _note(
        self, call: Call, operation: Operation, word: str, token: str, reason: str = ""
    ) -> None:
        caller = "" if call.caller is None else call.caller.name
        parts = [
            f"token:{hidden(token)}" if token else "",
            f"tool:{operation.canonical}",
            f"caller:{caller[:100]}",
            f"danger:{operation.danger.label}",
            reason,
        ]
        detail = " ".join(part for part in parts if part)
        self._audit.record_change("aql", operation.name, word, detail)

    # -- confirm_operation

    async def confirm(self, asked: AqlRequest) -> dict[str, Any]:
        """Decide about a call of somebody else. Raises InterlockError."""
        params = asked.params or {}
        call = asked.call
        assert call is not None
        assert call.caller is not None
        caller = call.caller
        self._wrong.must_be_few(principal(caller))
        id = str(params.get("approval_id") or "")
        token = str(params.get("confirmation_token") or "")
        if not id and not token:
            raise errors.missing(
                "confirmation_token", asked.operation.name, "string", "or 'approval_id'"
            )
        if token:
            id = token[len(PREFIX) :] if _TOKEN.fullmatch(token) else ""
        record = self._approvals.find(id) if id else None
        if record is None:
            self._wrong.another(principal(caller))
            raise invalid()
        if not record.at and principal(record.caller) == principal(caller):
            raise AqlError(
                "PERMISSION_DENIED",
                "Nobody confirms an operation of their own. A human decides, on another way.",
                {"reason": "self_approval"},
            )
        return await self._decide(record, params, caller)

    async def _decide(
        self, record: Approval, params: dict[str, Any], caller: Caller
    ) -> dict[str, Any]:
        proof = params.get("proof")
        shown = hidden(token_of(record.id))
        try:
            if not params["approve"]:
                reason = str(params.get("reason") or "")
                await self._approvals.refuse(
                    record.id, proof=proof, reason=reason, presented_by=caller
                )
                return {"confirmation_token": shown, "status": "refused"}
            if not proof:
                raise AqlError(
                    "PERMISSION_DENIED",
                    "To approve takes 'proof': a human's signature about this very call.",
                    {"reason": "proof_required"},
                )
            outcome = await self._approvals.confirm(record.id, str(proof), caller)
        except InterlockError:
            self._wrong.another(principal(caller))
            raise
        try:
            data = data_of(outcome.result)
        except ValueError:
            return {"confirmation_token": shown, "status": "decided"}
        status = "failed" if data.failed else "executed"
        return {
            "confirmation_token": shown,
            "status": status,
            "result": decode_value(data.raw),
        }


def _digest(call: Call, operation: Operation) -> str:
    """What the approval of a call would be about."""
    assert call.caller is not None
    return whole(call, operation.tool).digest


def invalid() -> AqlError:
    """The same for a token that never was, is malformed, or is another's."""
    return AqlError(
        "TOKEN_INVALID",
        "The confirmation token is not valid. Send the request without it for a new one.",
    )


def confirming_natives(tokens: ConfirmationTokens) -> list[BuiltinOperation]:
    """What the node offers of this."""
    text = {"type": "string", "minLength": 1, "maxLength": 200}
    return [
        BuiltinOperation(
            name="confirm_operation",
            category=Category.EXECUTE,
            effect="mutating",
            description="Confirm or refuse an operation that somebody else asked for, with a "
            "human's proof. Nobody confirms their own.",
            parameters=(
                Parameter(
                    "approve", "approve", "boolean", True, {"type": "boolean"},
                    "Whether it is let through.",
                ),
                Parameter(
                    "confirmation_token", "confirmation_token", "string", False, text,
                    "The token from CONFIRMATION_REQUIRED.",
                ),
                Parameter(
                    "approval_id", "approval_id", "string", False, text,
                    "Instead of the token: the id of the approval.",
                ),
                Parameter(
                    "proof", "proof", "string", False,
                    {"type": "string", "maxLength": 16_384},
                    "A human's signature about this very call.", sensitive=True,
                ),
                Parameter(
                    "reason", "reason", "string", False,
                    {"type": "string", "maxLength": 500}, "Why it is refused.",
                ),
            ),
            free=True,
            lifecycle=True,
            example={"confirmation_token": "conf_…", "approve": True, "proof": "…"},
            answer=tokens.confirm,
        )
    ]  # fmt: skip


def _quoted(value: Any) -> str:
    return errors.plain_value(value, _LONGEST_VALUE)


def _in_slot(slot: re.Match[str], values: dict[str, Any]) -> str:
    """A value in a sentence of the config. It brings its quotes, unless there are some."""
    if slot[1] not in values:
        return slot[0]
    quoted = _quoted(values[slot[1]])
    before, behind = slot.string[: slot.start()][-1:], slot.string[slot.end() :][:1]
    if before != behind or before not in ("'", '"') or not quoted.endswith('"'):
        return quoted
    return quoted[1:-1].replace("'", "\\u0027")
