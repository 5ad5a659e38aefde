"""Confirmation tokens: names of approvals.

There is no second store. A token names an approval. The owner, the call, the expiry and the use are
read from the approval. Sending a token back approves nothing: only an operator's proof does, and
the caller of an operation can never give that proof itself.
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
    review_call,
)
from interlock.trust.approvals.response import OPERATORS_ENROLLED
from interlock.trust.approvals.service import Approvals

# The limit of attempts with wrong tokens.

MAX_ATTEMPTS: Final = 20
WINDOW_SECONDS: Final = 60.0
"""After this many wrong tokens of one caller in this many seconds, valid tokens must wait too."""


class TokenAttemptLimiter:
    """Limits attempts with wrong tokens, per principal."""

    def __init__(self, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self._windows: KeyedWindows[Principal] = KeyedWindows(MAX_ATTEMPTS, WINDOW_SECONDS, clock)

    def check_limit(self, owner: Principal) -> None:
        """Check the limit. Raises AqlError."""
        wait = self._windows.wait_seconds(owner)
        if wait <= 0:
            return
        raise AqlError(
            "RATE_LIMIT_EXCEEDED",
            "Too many invalid tokens or proofs. Wait before you send another token.",
            {
                "limit": MAX_ATTEMPTS,
                "remaining": 0,
                "window": "minute",
                "resets_at": format_utc(self._wall_clock() + wait),
                "retry_after_seconds": int(wait) + 1,
            },
        )

    def add_failure(self, owner: Principal) -> None:
        self._windows.add(owner)


TOKEN_PREFIX: Final = "conf_"
TOKEN: Final = "confirmation_token"
MAX_APPROVAL_SECONDS: Final = {
    Danger.DESTRUCTIVE: 900.0,
    Danger.DANGEROUS: 900.0,
    Danger.FORBIDDEN: 120.0,
}
"""The longest time to approve a call, by its danger level. Other levels have no limit."""
MAX_QUOTA_APPROVAL_SECONDS: Final = 600.0
"""The longest time to approve that a paused quota continues."""
_TOKEN_PATTERN: Final = re.compile(r"conf_[A-Za-z0-9_-]{1,64}", re.ASCII)
_PLACEHOLDER_PATTERN: Final = re.compile(r"\{([a-z_][a-z0-9_]{0,99})\}")
_NO_OPERATOR_HINT: Final = (
    " No operator of this node is enrolled yet. Your user must enrol first: "
    "`interlock keys new NAME`."
)
_MAX_ISSUED: Final = 10_000
_MAX_NAMED_VALUES: Final = 5
_MAX_VALUE_CHARACTERS: Final = 80


def to_token(id: str) -> str:
    return TOKEN_PREFIX + id


def mask_token(token: str) -> str:
    """Return the masked token for errors and the journal."""
    visible_part = token[: len(TOKEN_PREFIX) + 2] if _TOKEN_PATTERN.fullmatch(token) else token[:2]
    return f"{visible_part}…"


class ConfirmationTokens:
    """Creates tokens of approvals, and checks tokens that clients send."""

    def __init__(
        self,
        approvals: Approvals,
        audit: Audit,
        *,
        settings: Callable[[str], OperationConfig],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        """
        Args:
            settings: returns the config of a tool, by its canonical name.
        """
        self._approvals = approvals
        self._audit = audit
        self._settings = settings
        self._wall_clock = wall_clock
        self._attempts = TokenAttemptLimiter(clock, wall_clock)
        self._issued: dict[str, str] = {}
        """Operation names by approval id, of issued tokens."""
        self._remote_approvals: dict[str, tuple[Principal, str]] = {}
        """Approvals that a node below holds, by id: the owner, and the digest of the call."""
        self.close = approvals.watch(
            self._on_transition, (APPROVED, VOID, EXPIRED), ids=self._issued
        )
        """Stops watching approvals."""

    # -- issuing tokens

    def report_pending(self, call: Call, result: bytes) -> ErrorReport | None:
        """Convert the result of a gate to an AQL error. None: the result is of another kind."""
        try:
            content = decode_value(decode_members(result)["structuredContent"])
            id, expires = content["confirmation_id"], content["expires_at"]
        except (KeyError, TypeError, ProtocolError):
            return None
        request = cast("AqlRequest", call.operation_request)
        operation = request.operation
        token = to_token(str(id))
        url = content.get("url")
        instruction = str(url) if isinstance(url, str) else f"`interlock approve {id}`"
        details: dict[str, Any] = {
            "operation": operation.name,
            "danger_level": operation.danger.label,
            "confirmation_message": self._confirmation_message(call, operation),
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
        has_no_operator = content.get(OPERATORS_ENROLLED) is False
        if has_no_operator:
            details[OPERATORS_ENROLLED] = False
        self._record(call, operation, "CONFIRMATION_REQUIRED", token)
        if id not in self._issued:
            if len(self._issued) >= _MAX_ISSUED:
                oldest = next(iter(self._issued))
                del self._issued[oldest]
                self._remote_approvals.pop(oldest, None)
            self._issued[str(id)] = operation.name
            self._record(call, operation, "TOKEN_ISSUED", token)
        record = self._approvals.find(str(id))
        if (record is None or record.at) and call.caller is not None:
            self._remote_approvals[str(id)] = principal(call.caller), _digest(call, operation)
        features = operation.signature.features
        token_parameter = TOKEN if TOKEN in features else CONFIRMATION
        message = (
            f"'{operation.name}' needs approval: {instruction}. You cannot approve it yourself. "
            f"Ask your user, then send the same request again with '{token_parameter}'."
            f"{_NO_OPERATOR_HINT if has_no_operator else ''}"
        )
        return ErrorReport("CONFIRMATION_REQUIRED", message, details)

    def _confirmation_message(self, call: Call, operation: Operation) -> str:
        """Return the confirmation message for the operator, with the values of this call."""
        arguments = dict(call.decoded_arguments) if isinstance(call.decoded_arguments, dict) else {}
        values: dict[str, Any] = {}
        for parameter in operation.signature.parameters:
            if parameter.upstream_name in arguments:
                value = arguments.pop(parameter.upstream_name)
                values[parameter.name] = MASK if parameter.sensitive else value
        # Arguments that the tool accepts but its schema does not name.
        values |= arguments
        template = self._settings(operation.canonical).confirmation_message
        if template is not None:
            return _PLACEHOLDER_PATTERN.sub(
                lambda match: _fill_placeholder(match, values), template
            )
        parts = [
            f"{errors.quotable(name)} {_quote(parameter)}" for name, parameter in values.items()
        ]
        text = ", ".join(parts[:_MAX_NAMED_VALUES])
        if len(parts) > _MAX_NAMED_VALUES:
            remaining = dict(list(values.items())[_MAX_NAMED_VALUES:])
            text += f" and {len(remaining)} more (#{errors.value_mark(remaining)})"
        return f"Confirm {operation.name}{f' with {text}' if text else ''}?"

    def approver(self, id: str) -> str:
        """Return who approved a call. Empty: unknown on this node."""
        record = self._approvals.find(id)
        return "" if record is None else record.by

    # -- checking tokens

    def check(self, call: Call, request: AqlRequest) -> None:
        """Check the token of a request.

        The gate decides what the token permits. Raises AqlError.
        """
        token, operation = request.confirmation, request.operation
        caller = call.caller
        assert caller is not None
        self._attempts.check_limit(principal(caller))
        pending = True
        try:
            remote_approval = (
                self._remote_approvals.get(token[len(TOKEN_PREFIX) :])
                if _TOKEN_PATTERN.fullmatch(token)
                else None
            )
            if remote_approval is not None and remote_approval[0] == principal(caller):
                # The node that holds the approval decides if the token is still valid.
                self._check_scope(token, remote_approval[1], call, operation)
            else:
                record = self._find_own(token, caller)
                self._check_valid(record, token)
                self._check_scope(token, record.digest, call, operation)
                pending = record.state == PENDING
        except AqlError as error:
            self._attempts.add_failure(principal(caller))
            self._record(call, operation, "TOKEN_REJECTED", token, error.code)
            raise
        if not pending:
            self._record(call, operation, "TOKEN_VALIDATED", token)

    def _find_own(self, token: str, caller: Caller) -> Approval:
        record = None
        if _TOKEN_PATTERN.fullmatch(token):
            record = self._approvals.find(token[len(TOKEN_PREFIX) :])
        if record is None or record.at or principal(record.caller) != principal(caller):
            raise invalid_token_error()
        return record

    def _check_valid(self, record: Approval, token: str) -> None:
        now = self._wall_clock()
        if record.state in (EXPIRED, VOID) or (record.state == PENDING and now >= record.expires):
            raise AqlError(
                "TOKEN_EXPIRED",
                "The confirmation is no longer valid. Send the request again without its token.",
                {
                    "token": mask_token(token),
                    "expired_at": format_utc(record.ended or record.expires),
                    "current_time": format_utc(now),
                },
            )
        if record.collected:
            raise AqlError(
                "TOKEN_ALREADY_USED",
                "The token was used: its operation was executed once, and the result was returned.",
                {
                    "token": mask_token(token),
                    "consumed_at": format_utc(record.decided or record.ended),
                },
            )

    def _check_scope(self, token: str, digest: str, call: Call, operation: Operation) -> None:
        if _digest(call, operation) != digest:
            id = token[len(TOKEN_PREFIX) :]
            record = self._approvals.find(id)
            token_operation = self._issued.get(id) or ("" if record is None else record.tool)
            raise AqlError(
                "TOKEN_SCOPE_MISMATCH",
                "The token belongs to another operation, or to other parameters.",
                {
                    "token": mask_token(token),
                    "token_operation": token_operation,
                    "requested_operation": operation.name,
                },
            )

    # -- the journal

    def record_denial(self, call: Call, code: str) -> None:
        """Record a denied operation in the journal."""
        if isinstance(call.operation_request, AqlRequest):
            self._record(call, call.operation_request.operation, "OPERATION_DENIED", "", code)

    def _on_transition(self, approval: Approval) -> None:
        operation = self._issued.get(approval.id)
        if operation is None:
            return
        description = f"token:{mask_token(to_token(approval.id))} tool:{approval.tool}"
        if approval.state == APPROVED:
            detail = f"{description} by {approval.by} ({approval.proof})"
            self._audit.record_change("aql", operation, "CONFIRMATION_GRANTED", detail)
        elif approval.state in (VOID, EXPIRED):
            event = "TOKEN_REVOKED" if approval.state == VOID else "TOKEN_EXPIRED"
            self._audit.record_change("aql", operation, event, f"{description} {approval.note}")

    def _record(
        self, call: Call, operation: Operation, event: str, token: str, reason: str = ""
    ) -> None:
        caller = "" if call.caller is None else call.caller.name
        parts = [
            f"token:{mask_token(token)}" if token else "",
            f"tool:{operation.canonical}",
            f"caller:{caller[:100]}",
            f"danger:{operation.danger.label}",
            reason,
        ]
        detail = " ".join(part for part in parts if part)
        self._audit.record_change("aql", operation.name, event, detail)

    # -- confirm_operation

    async def confirm(self, request: AqlRequest) -> dict[str, Any]:
        """Approve or reject a call of another caller. Raises InterlockError."""
        params = request.params or {}
        call = request.call
        assert call is not None
        assert call.caller is not None
        caller = call.caller
        self._attempts.check_limit(principal(caller))
        id = str(params.get("approval_id") or "")
        token = str(params.get("confirmation_token") or "")
        if not id and not token:
            raise errors.missing_parameter(
                "confirmation_token", request.operation.name, "string", "or 'approval_id'"
            )
        if token:
            id = token[len(TOKEN_PREFIX) :] if _TOKEN_PATTERN.fullmatch(token) else ""
        record = self._approvals.find(id) if id else None
        if record is None:
            self._attempts.add_failure(principal(caller))
            raise invalid_token_error()
        if not record.at and principal(record.caller) == principal(caller):
            raise AqlError(
                "PERMISSION_DENIED",
                "You cannot confirm your own operation. An operator must decide.",
                {"reason": "self_approval"},
            )
        return await self._decide(record, params, caller)

    async def _decide(
        self, record: Approval, params: dict[str, Any], caller: Caller
    ) -> dict[str, Any]:
        proof = params.get("proof")
        masked_token = mask_token(to_token(record.id))
        try:
            if not params["approve"]:
                reason = str(params.get("reason") or "")
                await self._approvals.reject(
                    record.id, proof=proof, reason=reason, presented_by=caller
                )
                return {"confirmation_token": masked_token, "status": "refused"}
            if not proof:
                raise AqlError(
                    "PERMISSION_DENIED",
                    "'proof' is missing: the signature of an operator for this call.",
                    {"reason": "proof_required"},
                )
            outcome = await self._approvals.confirm(record.id, str(proof), caller)
        except InterlockError:
            self._attempts.add_failure(principal(caller))
            raise
        try:
            data = data_of(outcome.result)
        except ValueError:
            return {"confirmation_token": masked_token, "status": "decided"}
        status = "failed" if data.failed else "executed"
        return {
            "confirmation_token": masked_token,
            "status": status,
            "result": decode_value(data.raw),
        }


def _digest(call: Call, operation: Operation) -> str:
    """Return the digest that an approval of the call would have."""
    assert call.caller is not None
    return review_call(call, operation.tool).digest


def invalid_token_error() -> AqlError:
    """Return the same error for unknown, malformed, and other callers' tokens."""
    return AqlError(
        "TOKEN_INVALID",
        "The confirmation token is not valid. Send the request without it for a new one.",
    )


def confirmation_operations(tokens: ConfirmationTokens) -> list[BuiltinOperation]:
    """Return the operation `confirm_operation`."""
    text = {"type": "string", "minLength": 1, "maxLength": 200}
    return [
        BuiltinOperation(
            name="confirm_operation",
            category=Category.EXECUTE,
            effect="mutating",
            description="Approve or reject an operation of another caller, with an operator's "
            "proof. You cannot confirm your own operations.",
            parameters=(
                Parameter(
                    "approve", "approve", "boolean", True, {"type": "boolean"},
                    "True to approve, false to reject.",
                ),
                Parameter(
                    "confirmation_token", "confirmation_token", "string", False, text,
                    "The token from CONFIRMATION_REQUIRED.",
                ),
                Parameter(
                    "approval_id", "approval_id", "string", False, text,
                    "The id of the approval, instead of the token.",
                ),
                Parameter(
                    "proof", "proof", "string", False,
                    {"type": "string", "maxLength": 16_384},
                    "The signature of an operator for this call.", sensitive=True,
                ),
                Parameter(
                    "reason", "reason", "string", False,
                    {"type": "string", "maxLength": 500}, "The reason of a rejection.",
                ),
            ),
            free=True,
            lifecycle=True,
            example={"confirmation_token": "conf_…", "approve": True, "proof": "…"},
            answer=tokens.confirm,
        )
    ]  # fmt: skip


def _quote(value: Any) -> str:
    return errors.plain_value(value, _MAX_VALUE_CHARACTERS)


def _fill_placeholder(match: re.Match[str], values: dict[str, Any]) -> str:
    """Return the value for a placeholder. Adds quotes unless the sentence has them."""
    if match[1] not in values:
        return match[0]
    value = _quote(values[match[1]])
    before, after = match.string[: match.start()][-1:], match.string[match.end() :][:1]
    if before != after or before not in ("'", '"') or not value.endswith('"'):
        return value
    return value[1:-1].replace("'", "\\u0027")
