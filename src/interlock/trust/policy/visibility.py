"""Visibility: which tools a caller can see. Tools that it can never call are not in its lists.

A tool that the caller may call with some arguments, or after approval, is visible.
"""

from __future__ import annotations

from interlock.core.call import Call
from interlock.core.catalog.offering import Tool
from interlock.core.catalog.snapshot import View
from interlock.protocol.scopes import scopes_cover
from interlock.trust.policy import Decision, Policy, PolicyAction
from interlock.trust.scopes import required_level


class Visibility:
    """Finds the view of the tools for a caller."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.may_deny = policy.default == PolicyAction.DENY.label or any(
            rule.action is PolicyAction.DENY for rule in policy.rules
        )
        """True if a tool may be invisible to some caller."""

    def __call__(self, call: Call) -> View | None:
        """Return the view of the call's caller. None: all tools."""
        caller = call.caller
        if caller is None or (caller.scopes is None and not self.may_deny):
            return None
        policy, scopes, may_deny = self._policy, caller.scopes, self.may_deny

        def can_see(tool: Tool) -> bool:
            if scopes is not None and not scopes_cover(
                scopes, required_level(tool), tool.canonical
            ):
                return False
            if not may_deny:
                return True
            plan = policy.plan_tool(caller, tool)
            return not (isinstance(plan, Decision) and plan.action is PolicyAction.DENY)

        return View(
            (caller.name, caller.parent_caller, caller.roles, scopes, policy.version), can_see
        )
