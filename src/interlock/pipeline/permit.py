"""May it? What stands between a call whose meaning is known and its way out, in this order:
scopes, pins, policy, budgets. What has to wait for a human goes to the gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, cast

from interlock.call import Call, Outcome
from interlock.catalog.catalog import Catalog
from interlock.catalog.effects import EffectLevel
from interlock.catalog.offering import Tool
from interlock.config.trust import PolicyConfig
from interlock.errors import CONFIRMATION_REQUIRED, InterlockError
from interlock.pipeline.budget import Budgets
from interlock.pipeline.policy import Decision, Policy
from interlock.pipeline.scopes import check_other_scopes, check_scopes, is_passed_on
from interlock.pipeline.seeing import Seeing

READ_ONLY: Final = EffectLevel.READ_ONLY.word


class Gate(Protocol):
    """Where calls wait for a human."""

    host: Any
    """What goes on with those that are let through."""

    def hold(self, call: Call, decision: Decision) -> None:
        """Answer it with what it waits for; or let it go on, if a human let exactly it through."""

    def finished(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """A call that was let through is over, or one whose result says that it failed."""


class Permit:
    """Asked for every call."""

    def __init__(self, catalog: Catalog, budgets: Budgets) -> None:
        # Nobody who builds a pipeline by hand has rules.
        self.follow(Policy(PolicyConfig(default="allow")))
        self.gate: Gate | None = None
        self.scope_limits: Mapping[str, str] = {}
        """The highest level of subservers that may not be asked for everything."""
        self.held: Mapping[Any, object] = {}
        """Tools that changed since a human accepted them. Empty: nobody need ask."""
        self.refuse_held: Callable[[Call], None] = lambda _: None
        """Raises InterlockError for a call of one of them."""
        self._catalog = catalog
        self._budgets = budgets
        self._limited = budgets.limited

    def follow(self, policy: Policy) -> None:
        """Decide by these rules from now on."""
        self.policy = policy
        self.sees = Seeing(policy)

    def __call__(self, call: Call) -> Decision:
        """What happens to a call of a tool. Raises InterlockError."""
        caller = call.caller
        if self.scope_limits or (caller is not None and caller.scopes is not None):
            check_scopes(call, cast("Tool | None", call.route), self.scope_limits)
        if self.held:
            self.refuse_held(call)
        decision = self.policy.decide(call)
        if self._limited:
            self._budgets.reserve(call)
        return decision

    def hold(self, call: Call, decision: Decision) -> None:
        """A human has to let it through. Raises InterlockError where none can be asked."""
        if self.gate is None:
            raise InterlockError(
                CONFIRMATION_REQUIRED, "A human has to confirm this call, and none can be asked."
            )
        self.gate.hold(call, decision)

    def other(self, call: Call) -> None:
        """The same for what is no call of a tool: it never waits for a human."""
        check_other_scopes(call, self._catalog, self.scope_limits)
        self.policy.decide(call)
        if self._limited and is_passed_on(call):
            self._budgets.reserve(call)
