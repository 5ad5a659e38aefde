"""Dry runs: what a request would do, and which approval it would need. A dry run sends,
reserves, holds and uses up nothing."""

from __future__ import annotations

from typing import Any

from interlock.aql import argument_errors, error_mapping
from interlock.aql.request import AqlRequest
from interlock.core.call import Call
from interlock.core.pipeline.validation import validate_arguments
from interlock.core.redaction import redact_value
from interlock.errors import INVALID_ARGUMENTS, InterlockError
from interlock.trust.authorization import Authorizer
from interlock.trust.policy.decision import PolicyAction


class Preview:
    """Looks at calls that are not made."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def __call__(self, asked: AqlRequest) -> dict[str, Any]:
        """`asked.params`: `child`, the call that would be made. Raises InterlockError."""
        parent, child = asked.call, (asked.params or {})["child"]
        assert parent is not None
        request: AqlRequest = child.operation_request
        operation = request.operation
        tool = operation.tool
        child.caller = parent.caller
        child.route, child.upstream, child.effect = tool, tool.upstream, tool.effect_name
        child.is_retryable = tool.repeatable
        try:
            validate_arguments(child, tool)
        except InterlockError as error:
            found = None
            if error.failure is INVALID_ARGUMENTS and isinstance(child.decoded_arguments, dict):
                found = argument_errors.fault(operation, child.decoded_arguments)
            raise found or error from None
        data: dict[str, Any] = {
            "dry_run": True,
            "operation": operation.name,
            "tool": tool.canonical,
            "server": tool.segment,
            "category": operation.category.value,
            "effect": child.effect,
            "danger_level": operation.danger.label,
            "arguments": redact_value(child.decoded_arguments),
            **self._decision(child),
        }
        if operation.reasons:
            data["reasons"] = list(operation.reasons)
        return data

    def _decision(self, call: Call) -> dict[str, Any]:
        """What would be decided."""
        try:
            decision = self._authorizer.preview(call)
        except InterlockError as refused:
            code, message, details = error_mapping.of_error(refused)
            return {
                "decision": PolicyAction.DENY.word,
                "requires_confirmation": False,
                "reason": details.get("reason", message),
                "code": code,
            }
        shown: dict[str, Any] = {
            "decision": decision.action.word,
            "requires_confirmation": decision.needs_approval,
        }
        if decision.reason:
            shown["reason"] = decision.reason
        return shown
