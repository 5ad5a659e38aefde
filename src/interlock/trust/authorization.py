"""Authorization: what stands between a call whose tool is known and its way out.

`ORDER` is the one list of the decision steps. A feature fills a step by its name, with
`Authorizer.install`, before the node starts. What has to wait for an operator goes to the gate.

Operations of the node's own are tools like any other here, but for two things: nobody reaches them
by name past the AQL stage, and some are as free as asking for a list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, cast

from msgspec.structs import replace

from interlock.core.call import Call, Caller, HiddenToolError, Route
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.offering import CONTRACTS, Tool
from interlock.core.config.trust import PolicyConfig
from interlock.core.pipeline.resolution import is_passed_on, unknown_tool_error
from interlock.errors import InterlockError
from interlock.protocol.aql_terms import BUILTIN_KEY
from interlock.protocol.mcp import TOOLS_LIST
from interlock.trust.budgets import Budgets
from interlock.trust.policy import Decision, Policy, PolicyAction
from interlock.trust.policy.decision import decision as decided
from interlock.trust.policy.visibility import Visibility
from interlock.trust.scopes import check_other_scopes, check_scopes

ORDER: Final = (
    "scopes",
    "always_denied",
    # Here the arguments are validated: whoever may not call a tool learns nothing of its schema.
    "pins",
    "policy",
    "proposal",
    "contract_floor",
    "learned",
    # Again: no rule, learned or not, speaks for a contract.
    "contract_floor",
    "danger",
    "safety_loop",
    "budget",
)
"""The decision steps of a call, first to last. The order is security: the first step that rejects a
call decides what its caller hears. `scopes` and `always_denied` are in `screen`, `policy` is in
`authorize`; the others are `DecisionStep`s."""
_BUILT_IN: Final = frozenset({"scopes", "always_denied", "policy"})

# -- To which calls a step applies. A call has one or more of these traits.

PLAIN: Final = 1
"""Every call of a server's tool."""
HELD: Final = 2
"""It waits for an operator, by what was decided so far."""
IN_VIEW: Final = 4
"""It was made in a view of AQL."""
PROPOSED: Final = 8
"""It was proposed in a topic."""
OF_CONTRACT: Final = 16
"""Its tool is the contract of a driver."""
OWN_OPERATION: Final = 32
"""It is an operation of the node's own."""
FREE_OPERATION: Final = 64
"""It is one of those that are judged as a list of tools is, or that no rule has a say in."""
OTHER: Final = 128
"""It calls no tool."""
PASSED_ON: Final = 256
"""It calls no tool, and nobody but its upstream knows what it does."""
EVERYTHING: Final = (1 << 9) - 1

Decide = Callable[[Call, Decision], Decision]
"""Takes a call and what was decided so far, and returns that or something stricter. Raises
InterlockError for a call that it rejects."""


class DecisionStep:
    """One step of the order. Its owner may change it while the node runs."""

    __slots__ = ("applies_to", "decide", "name", "previewed", "when")

    def __init__(
        self,
        name: str,
        decide: Decide,
        *,
        when: object = True,
        applies_to: int = PLAIN,
        previewed: bool = False,
    ) -> None:
        """Args:
        name: its place in `ORDER`.
        when: skipped while this is false. An empty collection that fills up later is fine.
        applies_to: the traits of calls that it is asked about.
        previewed: whether it is asked about calls that are only looked at. It changes nothing then.
        """
        self.name = name
        self.decide = decide
        self.when = when
        self.applies_to = applies_to
        self.previewed = previewed


_PROPOSED: Final = decided(PolicyAction.CONFIRM, "proposal", "It was proposed in a topic.")
"""Whoever proposes wants an operator, whatever the rules would let it do by itself."""


def hold_proposals(call: Call, decision: Decision) -> Decision:
    return _PROPOSED if decision.action < PolicyAction.CONFIRM else decision


class MinimumActions:
    """What calls of contracts wait for at least, whatever the rules say."""

    def __init__(self) -> None:
        self.by_tool: dict[str, Decision] = {}
        """By canonical name."""

    def replace(self, floors: Mapping[str, Decision]) -> None:
        self.by_tool.clear()
        self.by_tool.update(floors)

    def decide(self, call: Call, decision: Decision) -> Decision:
        """The stricter of what the rules say and what the contract of the tool asks for."""
        route = call.route
        if route is None or route.upstream != CONTRACTS:
            return decision
        floor = self.by_tool.get(route.canonical)
        return floor if floor is not None and floor.action > decision.action else decision


class Authorizer:
    """Decides about every call."""

    def __init__(
        self,
        catalog: Catalog,
        budgets: Budgets,
        policy: Policy | None = None,
        steps: Collection[DecisionStep] = (),
    ) -> None:
        """Without a policy everything is allowed: nobody who builds a pipeline by hand has one."""
        self.budgets = budgets
        self.contract_floors = MinimumActions()
        self._catalog = catalog
        self._frozen = False
        self.installed: dict[str, DecisionStep] = {}
        """By name. Filled by `install` only."""
        self._before: tuple[DecisionStep, ...] = ()
        self._after: tuple[DecisionStep, ...] = ()
        self._after_plain: tuple[DecisionStep, ...] = ()
        """Those of `_after` that a call without special traits may concern."""
        self._contract_tools = self.contract_floors.by_tool
        self._scope_limits: Mapping[str, str] = {}
        self._free: Collection[str] = ()
        self._floors: Mapping[str, Decision] = {}
        self._firm_floors: Collection[str] = ()
        self._covered: tuple[Caller | None, Route | None, str] = (None, None, "")
        """Who called what last, by which name, and had the scopes for it: the very objects, and
        neither ever changes."""
        self.set_policy(policy or Policy(PolicyConfig(default="allow")))
        proposal = DecisionStep("proposal", hold_proposals, applies_to=PROPOSED)
        contract_floor = DecisionStep(
            "contract_floor",
            self.contract_floors.decide,
            when=self.contract_floors.by_tool,
            applies_to=OF_CONTRACT,
            previewed=True,
        )
        # They are the authorizer's own and never change. Every other step may change its traits.
        self._special = (proposal, contract_floor)
        self.install(
            proposal,
            contract_floor,
            DecisionStep(
                "budget",
                budgets.reserve,
                when=budgets.limited,
                applies_to=PLAIN | OWN_OPERATION | PASSED_ON,
            ),
            *steps,
        )

    # -- set up

    def install(self, *steps: DecisionStep) -> None:
        """Fill steps of the order, before the node starts. The last one of a name counts."""
        if self._frozen:
            raise RuntimeError("the node has started: decision steps cannot be installed any more")
        for step in steps:
            if step.name not in ORDER or step.name in _BUILT_IN:
                raise ValueError(f"{step.name!r} is no decision step that can be installed")
            self.installed[step.name] = step
        place = ORDER.index("policy")
        found = [(number, self.installed.get(name)) for number, name in enumerate(ORDER)]
        self._before = tuple([one for number, one in found if one is not None and number < place])
        self._after = tuple([one for number, one in found if one is not None and number > place])
        self._after_plain = tuple([one for one in self._after if one not in self._special])

    def limit_scopes(self, limits: Mapping[str, str]) -> None:
        """Hold subservers to the highest level that each is registered for, by upstream."""
        self._scope_limits = limits

    def judge_own_operations(
        self,
        *,
        free: Collection[str],
        floors: Mapping[str, Decision],
        firm_floors: Collection[str],
    ) -> None:
        """Say how operations of the node's own are judged.

        Args:
            free: those that are judged as a list of tools is.
            floors: what operations wait for at least.
            firm_floors: those that no rule has a say in: nobody calls them but the gate.
        """
        self._free, self._floors, self._firm_floors = free, floors, firm_floors

    def freeze(self) -> None:
        """Take no more steps: the node starts."""
        self._frozen = True

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the steps that are there, in their order."""
        return tuple(name for name in ORDER if name in _BUILT_IN or name in self.installed)

    def set_policy(self, policy: Policy) -> None:
        """Decide by these rules from now on."""
        self.policy = policy
        self.view_of = Visibility(policy)

    # -- a call of a tool

    def check_tool(self, call: Call) -> None:
        """Refuse what no arguments could make right, before anybody looks at the arguments: who
        may not call a tool must not learn from it, nor make the node work.

        Raises InterlockError: for a tool that the caller does not see, as if there were none."""
        caller, route = call.caller, call.route
        if call.upstream == BUILTIN_KEY:
            if route is None or (call.operation_request is None and not call.approval_id):
                # In the plain view an operation of the node's own is no tool.
                raise unknown_tool_error(call.name, self._catalog.current, self.view_of(call))
            return
        if self._scope_limits:
            check_scopes(call, route, self._scope_limits)  # type: ignore[arg-type]
        elif caller is not None and caller.scopes is not None:
            whose, what, name = self._covered
            if caller is not whose or route is not what or call.name != name:
                check_scopes(call, route, {})  # type: ignore[arg-type]
                self._covered = caller, route, call.name
        if self.view_of.denies and route is not None:
            try:
                self.policy.deny_always(call)
            except InterlockError as denial:
                if call.view is not None or call.proposal is not None or call.approval_id:
                    # AQL and topics have codes of their own, and who approves knows the tool.
                    raise
                unknown = unknown_tool_error(call.name, self._catalog.current, self.view_of(call))
                raise HiddenToolError(unknown, denial) from None

    def authorize(self, call: Call) -> Decision:
        """Decide about a call of a tool that was screened. Raises InterlockError."""
        if call.upstream == BUILTIN_KEY:
            return self._authorize_own(call)
        route, policy = call.route, self.policy
        traits = PLAIN
        if call.view is not None:
            traits |= IN_VIEW
        if call.proposal is not None:
            traits |= PROPOSED
        if self._contract_tools and route is not None and route.upstream == CONTRACTS:
            traits |= OF_CONTRACT
        # A step that does not apply, or has nothing to say now, costs no call.
        for step in self._before:
            if step.when and step.applies_to & traits:
                step.decide(call, _UNDECIDED)
        standing = policy.standing_by_effect
        decision = standing.get(call.effect) if standing and route is not None else None
        if decision is None:
            decision = policy.decide(call)
        for step in self._after_plain if traits == PLAIN else self._after:
            if step.when and step.applies_to & (
                traits | HELD if decision.needs_approval else traits
            ):
                decision = step.decide(call, decision)
        return decision

    def preview(self, call: Call) -> Decision:
        """What would be decided about a call that is not made. Raises InterlockError."""
        if call.upstream == BUILTIN_KEY:
            return self.policy.decide(call)
        check_scopes(call, cast("Tool | None", call.route), self._scope_limits)
        for step in self._before:
            if step.previewed and step.when:
                step.decide(call, _UNDECIDED)
        decision = self.policy.decide(call)
        for step in self._after:
            if step.previewed and step.when:
                decision = step.decide(call, decision)
        return decision

    def _authorize_own(self, call: Call) -> Decision:
        """The same for an operation of the node's own."""
        route = call.route
        assert route is not None
        name = route.upstream_name
        floor = self._floors.get(name)
        if name in self._free:
            return self._further(call, self._as_a_list(call), FREE_OPERATION)
        if floor is not None and name in self._firm_floors:
            return self._further(call, floor, FREE_OPERATION)
        caller = call.caller
        if caller is not None and caller.scopes is not None:
            check_scopes(call, cast("Tool | None", route), self._scope_limits)
        decision = self.policy.decide(call)
        if floor is not None and floor.action > decision.action:
            # Who wrote a rule for it has thought about it.
            decision = decision if decision.names_tool else floor
        return self._further(call, decision, OWN_OPERATION)

    def _further(self, call: Call, decision: Decision, traits: int) -> Decision:
        for step in self._after:
            if step.when and step.applies_to & traits:
                decision = step.decide(call, decision)
        return decision

    def _as_a_list(self, call: Call) -> Decision:
        """Who may ask for tools may ask for these. Raises InterlockError."""
        verb, call.method = call.method, TOOLS_LIST
        try:
            return self.policy.decide(call)
        finally:
            call.method = verb

    def explain(self, call: Call, decision: Decision) -> Decision:
        """The decision by which a call is held, with what could not be evaluated."""
        if decision.rule not in self.policy.conditional:
            return decision
        unjudged = self.policy.explain_unjudged(call, decision.rule)
        if not unjudged:
            return decision
        reason = f"{decision.reason} The condition of rule {decision.rule} could not be "
        reason += f"evaluated, so it applies: {unjudged.rstrip('.')}."
        return replace(decision, reason=reason.lstrip())

    # -- everything else

    def authorize_method(self, call: Call) -> None:
        """Decide about what is no call of a tool: it never waits for an operator. Raises
        InterlockError."""
        check_other_scopes(call, self._catalog, self._scope_limits)
        decision = self.policy.decide(call)
        self._further(call, decision, PASSED_ON if is_passed_on(call) else OTHER)

    def charge_budget(self, call: Call) -> None:
        """Give back what a call has reserved, if it never left."""
        self.budgets.settle(call, call.is_dispatched)


_UNDECIDED: Final[Any] = decided(PolicyAction.ALLOW, "")
"""What steps before the policy get. They only reject."""
