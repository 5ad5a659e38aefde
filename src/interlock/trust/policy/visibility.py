"""What may a caller see? Tools that it could never call are not in its lists.

A tool that may be called with some arguments, or after a human said so, is seen.
"""

from __future__ import annotations

from interlock.core.call import Call
from interlock.core.catalog.offering import Tool
from interlock.core.catalog.snapshot import View
from interlock.protocol.scopes import scopes_cover
from interlock.trust.policy import Decision, Policy, PolicyAction
from interlock.trust.scopes import level_of


class Visibility:
    """Finds the view of a caller."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.denies = policy.default == PolicyAction.DENY.word or any(
            rule.action is PolicyAction.DENY for rule in policy.rules
        )
        """Whether there may be tools that somebody does not see."""

    def __call__(self, call: Call) -> View | None:
        """What its caller sees of the tools. None: all of them."""
        caller = call.caller
        if caller is None or (caller.scopes is None and not self.denies):
            return None
        policy, scopes, denies = self._policy, caller.scopes, self.denies

        def sees(tool: Tool) -> bool:
            if scopes is not None and not scopes_cover(scopes, level_of(tool), tool.canonical):
                return False
            if not denies:
                return True
            found = policy.standing(caller, tool)
            return not (isinstance(found, Decision) and found.action is PolicyAction.DENY)

        return View((caller.name, caller.parent_caller, caller.roles, scopes, policy.version), sees)
