"""May it? What stands between a call whose meaning is known and its way out, in this order:
scopes, pins, policy, danger, the safety loop, budgets. What has to wait for a human goes to the
gate.

Operations of the node's own are tools like any other here, but for two things: nobody reaches them
by name past the AQL stage, and some are as free as asking for a list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Protocol, cast

from msgspec.structs import replace

from interlock.core.call import Call, Caller, Outcome, Principal, Route, principal
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.effects import EffectLevel
from interlock.core.catalog.offering import CONTRACTS, Tool
from interlock.core.config.trust import PolicyConfig
from interlock.core.pipeline.resolution import unknown_tool
from interlock.errors import CONFIRMATION_REQUIRED, InterlockError
from interlock.protocol.aql_terms import OWN
from interlock.protocol.mcp import TOOLS_LIST
from interlock.trust.budgets import Budgets
from interlock.trust.policy import Action, Decision, Policy
from interlock.trust.policy.decision import decision as decided
from interlock.trust.policy.visibility import Seeing
from interlock.trust.scopes import check_other_scopes, check_scopes, is_passed_on

READ_ONLY: Final = EffectLevel.READ_ONLY.word
PROPOSED: Final = decided(Action.CONFIRM, "proposal", "It was proposed in a topic.")
"""Who proposes wants a human, whatever the rules would let it do by itself."""


class Gate(Protocol):
    """Where calls wait for a human."""

    host: Any
    """What goes on with those that are let through."""

    def hold(self, call: Call, decision: Decision) -> None:
        """Answer it with what it waits for; or let it go on, if a human let exactly it through."""

    def finished(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """A call that was let through is over, or one whose result says that it failed."""


class HiddenError(InterlockError):
    """A call of a tool that its caller does not see. The caller is told that there is none, the
    journal has the reason."""

    def __init__(self, unknown: InterlockError, reason: InterlockError) -> None:
        super().__init__(unknown.failure, unknown.message, unknown.data)
        self.reason = reason


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
        self.free: Collection[str] = ()
        """Operations of the node's own that are judged as a list of tools is."""
        self.floors: Mapping[str, Decision] = {}
        """What operations of the node's own wait for at least."""
        self.contract_floors: Mapping[str, Decision] = {}
        """What calls of contracts wait for at least, by canonical name. Empty: nobody need ask."""
        self.firm_floors: Collection[str] = ()
        """Those of them that no rule has a say in: nobody calls them but the gate."""
        self.danger: Callable[[Call, Decision], Decision] = lambda _, decision: decision
        """Makes the decision about something dangerous stricter. Raises InterlockError."""
        self.danger_everywhere = False
        """Whether it is asked about calls of the plain view that do not wait, too."""
        self.watched: Mapping[Principal, object] = {}
        """Who has an execution that is watched, or is blocked. Empty: nobody need ask."""
        self.watch: Callable[[Call, Decision], Decision] = lambda _, decision: decision
        """The safety loop's word about a call of one of them. Raises InterlockError."""
        self.learned: Callable[[Call, Decision], Decision] | None = None
        """Rules that a human accepted from decisions of the past: they answer in its place what
        would wait for a confirmation. Raises InterlockError."""
        self._covered: tuple[Caller | None, Route | None, str] = (None, None, "")
        """Who called what last, by which name, and had the scopes for it: the very objects, and
        neither ever changes."""
        self._catalog = catalog
        self._budgets = budgets
        self._limited = budgets.limited

    def follow(self, policy: Policy) -> None:
        """Decide by these rules from now on."""
        self.policy = policy
        self.sees = Seeing(policy)

    def screen(self, call: Call) -> None:
        """Refuse what no arguments could make right, before anybody looks at the arguments: who
        may not call a tool must not learn from it, nor make the node work.

        Raises InterlockError: for a tool that the caller does not see, as if there were none."""
        caller, route = call.caller, call.route
        if call.upstream == OWN:
            if route is None or (call.asked is None and not call.approval):
                # In the plain view an operation of the node's own is no tool.
                raise unknown_tool(call.name, self._catalog.current, self.sees(call))
            return
        if self.scope_limits:
            check_scopes(call, route, self.scope_limits)  # type: ignore[arg-type]
        elif caller is not None and caller.scopes is not None:
            whose, what, name = self._covered
            if caller is not whose or route is not what or call.name != name:
                check_scopes(call, route, {})  # type: ignore[arg-type]
                self._covered = caller, route, call.name
        if self.sees.denies and route is not None:
            try:
                self.policy.deny_always(call)
            except InterlockError as denial:
                if call.view is not None or call.proposal is not None or call.approval:
                    # AQL and topics have codes of their own, and who approves knows the tool.
                    raise
                unknown = unknown_tool(call.name, self._catalog.current, self.sees(call))
                raise HiddenError(unknown, denial) from None

    def __call__(self, call: Call) -> Decision:
        """What happens to a call of a tool that was screened. Raises InterlockError."""
        if call.upstream == OWN:
            return self._own(call)
        route = call.route
        if self.held:
            self.refuse_held(call)
        standing = self.policy.standing_by_effect
        decision = standing.get(call.effect) if standing and route is not None else None
        if decision is None:
            decision = self.policy.decide(call)
        if call.proposal is not None and decision.action < Action.CONFIRM:
            decision = PROPOSED
        if self.contract_floors and route is not None and route.upstream == CONTRACTS:
            decision = self.with_contract_floor(route, decision)
        if decision.gated and self.learned is not None:
            decision = self.learned(call, decision)
            if self.contract_floors and not decision.gated and route is not None:
                # A rule, learned or not, does not speak for a contract.
                decision = self.with_contract_floor(route, decision)
        if decision.gated or call.view is not None or self.danger_everywhere:
            decision = self.danger(call, decision)
        if self.watched:
            decision = self._watched(call, decision)
        if self._limited:
            self._budgets.reserve(call)
        return decision

    def with_contract_floor(self, route: Route, decision: Decision) -> Decision:
        """The stricter of what the rules say and what the contract of a tool asks for."""
        if route.upstream != CONTRACTS:
            return decision
        floor = self.contract_floors.get(route.canonical)
        return floor if floor is not None and floor.action > decision.action else decision

    def _own(self, call: Call) -> Decision:
        """The same for an operation of the node's own."""
        route = call.route
        assert route is not None
        name = route.upstream_name
        floor = self.floors.get(name)
        if name in self.free:
            return self._watched(call, self._as_a_list(call))
        if floor is not None and name in self.firm_floors:
            return self._watched(call, floor)
        caller = call.caller
        if caller is not None and caller.scopes is not None:
            check_scopes(call, cast("Tool | None", route), self.scope_limits)
        decision = self.policy.decide(call)
        if floor is not None and floor.action > decision.action:
            # Who wrote a rule for it has thought about it.
            decision = decision if decision.names_tool else floor
        decision = self._watched(call, decision)
        if self._limited:
            self._budgets.reserve(call)
        return decision

    def _as_a_list(self, call: Call) -> Decision:
        """Who may ask for tools may ask for these. Raises InterlockError."""
        verb, call.verb = call.verb, TOOLS_LIST
        try:
            return self.policy.decide(call)
        finally:
            call.verb = verb

    def _watched(self, call: Call, decision: Decision) -> Decision:
        caller = call.caller
        if caller is None or principal(caller) not in self.watched:
            return decision
        return self.watch(call, decision)

    def hold(self, call: Call, decision: Decision) -> None:
        """A human has to let it through. Raises InterlockError where none can be asked."""
        if self.gate is None:
            raise InterlockError(
                CONFIRMATION_REQUIRED, "A human has to confirm this call, and none can be asked."
            )
        unjudged = self.policy.explain_unjudged(call, decision.rule)
        if unjudged:
            reason = f"{decision.reason} The condition of rule {decision.rule} could not be "
            reason += f"evaluated, so it applies: {unjudged.rstrip('.')}."
            decision = replace(decision, reason=reason.lstrip())
        self.gate.hold(call, decision)

    def other(self, call: Call) -> None:
        """The same for what is no call of a tool: it never waits for a human."""
        check_other_scopes(call, self._catalog, self.scope_limits)
        decision = self.policy.decide(call)
        if self.watched:
            self._watched(call, decision)
        if self._limited and is_passed_on(call):
            self._budgets.reserve(call)
