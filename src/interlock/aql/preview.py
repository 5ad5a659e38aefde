"""Dry runs: what a request would do, and which approval it would need.

A dry run sends nothing, reserves nothing, creates no approval and uses no quota.
"""

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
    """Describes calls without making them."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def __call__(self, request: AqlRequest) -> dict[str, Any]:
        """Describe the call in `request.params["child"]`. Raises InterlockError."""
        parent, child = request.call, (request.params or {})["child"]
        assert parent is not None
        child_request: AqlRequest = child.operation_request
        operation = child_request.operation
        tool = operation.tool
        child.caller = parent.caller
        child.route, child.upstream, child.effect = tool, tool.upstream, tool.effect_name
        child.is_retryable = tool.repeatable
        try:
            validate_arguments(child, tool)
        except InterlockError as error:
            argument_error = None
            if error.failure is INVALID_ARGUMENTS and isinstance(child.decoded_arguments, dict):
                argument_error = argument_errors.explain_error(operation, child.decoded_arguments)
            raise argument_error or error from None
        data: dict[str, Any] = {
            "dry_run": True,
            "operation": operation.name,
            "tool": tool.canonical,
            "server": tool.segment,
            "category": operation.category.value,
            "effect": child.effect,
            "danger_level": operation.danger.label,
            "arguments": redact_value(child.decoded_arguments),
            **self._preview_decision(child),
        }
        if operation.reasons:
            data["reasons"] = list(operation.reasons)
        return data

    def _preview_decision(self, call: Call) -> dict[str, Any]:
        """Return the decision that the authorizer would make."""
        try:
            decision = self._authorizer.preview(call)
        except InterlockError as error:
            code, message, details = error_mapping.map_error(error)
            return {
                "decision": PolicyAction.DENY.label,
                "requires_confirmation": False,
                "reason": details.get("reason", message),
                "code": code,
            }
        summary: dict[str, Any] = {
            "decision": decision.action.label,
            "requires_confirmation": decision.needs_approval,
        }
        if decision.reason:
            summary["reason"] = decision.reason
        return summary
