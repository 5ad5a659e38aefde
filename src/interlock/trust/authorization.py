"""Authorization: decides about each call between the resolution of its tool and its dispatch.

`ORDER` lists the decision steps. A feature fills a step by its name, with `Authorizer.install`,
before the node starts. The approval gate holds calls that must wait for an operator.

Operations of the node itself are tools here, with two differences: a call reaches them only through
the AQL stage, and some are as free as a list of tools.
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
from interlock.trust.policy.decision import make_decision
from interlock.trust.policy.visibility import Visibility
from interlock.trust.scopes import check_method_scopes, check_scopes

ORDER: Final = (
    "scopes",
    "always_denied",
    # The arguments are validated here: a caller that may not call a tool learns nothing of its
    # schema.
    "pins",
    "policy",
    "proposal",
    "contract_floor",
    "learned",
    # Again, because no rule, learned or not, may weaken a contract.
    "contract_floor",
    "danger",
    "safety_loop",
    "budget",
)
"""The decision steps of a call, in their order. The order is security: the caller gets the error of
the first step that rejects the call. `scopes` and `always_denied` are in `check_tool`, `policy` is
in `authorize`; the others are `DecisionStep`s."""
_BUILT_IN: Final = frozenset({"scopes", "always_denied", "policy"})

# -- Traits of calls: a step applies to calls with some of them. A call has one or more.

PLAIN: Final = 1
"""Any call of a server's tool."""
HELD: Final = 2
"""The call needs approval, by the decision so far."""
IN_VIEW: Final = 4
"""The call was made in a view of AQL."""
PROPOSED: Final = 8
"""The call was proposed in a topic."""
OF_CONTRACT: Final = 16
"""Its tool is a driver contract."""
OWN_OPERATION: Final = 32
"""The call is an operation of the node."""
FREE_OPERATION: Final = 64
"""The call is an operation that is authorized like a list of tools, or that no rule applies to."""
OTHER: Final = 128
"""The request calls no tool."""
PASSED_ON: Final = 256
"""The request calls no tool, and only its upstream knows its effect."""
EVERYTHING: Final = (1 << 9) - 1

Decide = Callable[[Call, Decision], Decision]
"""Takes a call and the decision so far, and returns that decision or a stricter one. Raises
InterlockError to reject the call."""


class DecisionStep:
    """A step of the order. Its owner may change it while the node runs."""

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
        when: the step is skipped while this is false. It may be a collection that fills up later.
        applies_to: the traits of calls that the step applies to.
        previewed: whether the step also applies to calls that are only previewed. It must not
            change anything then.
        """
        self.name = name
        self.decide = decide
        self.when = when
        self.applies_to = applies_to
        self.previewed = previewed


_PROPOSED: Final = make_decision(
    PolicyAction.CONFIRM, "proposal", "The call was proposed in a topic."
)
"""A proposal always needs an operator, whatever the rules would allow."""


def confirm_proposals(call: Call, decision: Decision) -> Decision:
    return _PROPOSED if decision.action < PolicyAction.CONFIRM else decision


class MinimumActions:
    """The strictest actions that contracts of drivers require, whatever the rules say."""

    def __init__(self) -> None:
        self.by_tool: dict[str, Decision] = {}
        """By canonical name."""

    def replace(self, minimums: Mapping[str, Decision]) -> None:
        self.by_tool.clear()
        self.by_tool.update(minimums)

    def decide(self, call: Call, decision: Decision) -> Decision:
        """Return the stricter of the decision so far and the minimum of the tool's contract."""
        route = call.route
        if route is None or route.upstream != CONTRACTS:
            return decision
        minimum = self.by_tool.get(route.canonical)
        if minimum is not None and minimum.action > decision.action:
            return minimum
        return decision


class Authorizer:
    """Decides about every call (the authorization stage of the pipeline)."""

    def __init__(
        self,
        catalog: Catalog,
        budgets: Budgets,
        policy: Policy | None = None,
        steps: Collection[DecisionStep] = (),
    ) -> None:
        """Args:
        policy: None allows everything.
        """
        self.budgets = budgets
        self.contract_minimums = MinimumActions()
        self._catalog = catalog
        self._frozen = False
        self.installed: dict[str, DecisionStep] = {}
        """By step name. Only `install` fills it."""
        self._before: tuple[DecisionStep, ...] = ()
        self._after: tuple[DecisionStep, ...] = ()
        self._after_plain: tuple[DecisionStep, ...] = ()
        """The steps of `_after` that may apply to a call without special traits."""
        self._contract_tools = self.contract_minimums.by_tool
        self._scope_limits: Mapping[str, str] = {}
        self._exempt: Collection[str] = ()
        self._minimums: Mapping[str, Decision] = {}
        self._fixed: Collection[str] = ()
        self._last_check: tuple[Caller | None, Route | None, str] = (None, None, "")
        """The last call that had its scopes: caller, route and name. Compared by identity, because
        none of these objects changes."""
        self.set_policy(policy or Policy(PolicyConfig(default="allow")))
        proposal = DecisionStep("proposal", confirm_proposals, applies_to=PROPOSED)
        contract_floor = DecisionStep(
            "contract_floor",
            self.contract_minimums.decide,
            when=self.contract_minimums.by_tool,
            applies_to=OF_CONTRACT,
            previewed=True,
        )
        # These steps belong to the authorizer and never change. Other steps may change their
        # traits.
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

    # -- Setup

    def install(self, *steps: DecisionStep) -> None:
        """Fill steps of the order, before the node starts. A later step replaces one of its
        name."""
        if self._frozen:
            raise RuntimeError("decision steps cannot be installed after the node has started")
        for step in steps:
            if step.name not in ORDER or step.name in _BUILT_IN:
                raise ValueError(f"{step.name!r} is not a decision step that can be installed")
            self.installed[step.name] = step
        policy_index = ORDER.index("policy")
        numbered = [(number, self.installed.get(name)) for number, name in enumerate(ORDER)]
        self._before = tuple(
            [step for number, step in numbered if step is not None and number < policy_index]
        )
        self._after = tuple(
            [step for number, step in numbered if step is not None and number > policy_index]
        )
        self._after_plain = tuple([step for step in self._after if step not in self._special])

    def limit_scopes(self, limits: Mapping[str, str]) -> None:
        """Limit subservers to the highest level that each is registered for, by upstream."""
        self._scope_limits = limits

    def set_operation_rules(
        self,
        *,
        exempt: Collection[str],
        minimums: Mapping[str, Decision],
        fixed: Collection[str],
    ) -> None:
        """Set how operations of the node are authorized.

        Args:
            exempt: operations that are authorized like a list of tools.
            minimums: the least strict decision for an operation.
            fixed: operations whose decision is always the minimum, without the policy. Only the
                gate calls them.
        """
        self._exempt, self._minimums, self._fixed = exempt, minimums, fixed

    def freeze(self) -> None:
        """Accept no more steps: the node starts."""
        self._frozen = True

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the steps that exist, in their order."""
        return tuple(name for name in ORDER if name in _BUILT_IN or name in self.installed)

    def set_policy(self, policy: Policy) -> None:
        """Replace the policy."""
        self.policy = policy
        self.view_of = Visibility(policy)

    # -- Calls of tools

    def check_tool(self, call: Call) -> None:
        """Reject a call that is not allowed with any arguments, before the arguments are read. A
        caller that may not call a tool must not learn from it, nor make the node work.

        Raises InterlockError. A tool that the caller cannot see is reported as unknown.
        """
        caller, route = call.caller, call.route
        if call.upstream == BUILTIN_KEY:
            if route is None or (call.operation_request is None and not call.approval_id):
                # In the plain view, operations of the node are no tools.
                raise unknown_tool_error(call.name, self._catalog.current, self.view_of(call))
            return
        if self._scope_limits:
            check_scopes(call, route, self._scope_limits)  # type: ignore[arg-type]
        elif caller is not None and caller.scopes is not None:
            checked_caller, checked_route, checked_name = self._last_check
            if (
                caller is not checked_caller
                or route is not checked_route
                or call.name != checked_name
            ):
                check_scopes(call, route, {})  # type: ignore[arg-type]
                self._last_check = caller, route, call.name
        if self.view_of.may_deny and route is not None:
            try:
                self.policy.check_always_denied(call)
            except InterlockError as denial:
                if call.view is not None or call.proposal is not None or call.approval_id:
                    # AQL and topics have error codes of their own, and an approver knows the tool.
                    raise
                unknown = unknown_tool_error(call.name, self._catalog.current, self.view_of(call))
                raise HiddenToolError(unknown, denial) from None

    def authorize(self, call: Call) -> Decision:
        """Decide about a call of a tool that passed `check_tool`. Raises InterlockError."""
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
        defaults = policy.default_by_effect
        decision = defaults.get(call.effect) if defaults and route is not None else None
        if decision is None:
            decision = policy.decide(call)
        for step in self._after_plain if traits == PLAIN else self._after:
            if step.when and step.applies_to & (
                traits | HELD if decision.needs_approval else traits
            ):
                decision = step.decide(call, decision)
        return decision

    def preview(self, call: Call) -> Decision:
        """Decide about a call that is not made. Raises InterlockError."""
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
        """Decide about an operation of the node."""
        route = call.route
        assert route is not None
        name = route.upstream_name
        minimum = self._minimums.get(name)
        if name in self._exempt:
            return self._run_later_steps(call, self._decide_as_list(call), FREE_OPERATION)
        if minimum is not None and name in self._fixed:
            return self._run_later_steps(call, minimum, FREE_OPERATION)
        caller = call.caller
        if caller is not None and caller.scopes is not None:
            check_scopes(call, cast("Tool | None", route), self._scope_limits)
        decision = self.policy.decide(call)
        if minimum is not None and minimum.action > decision.action:
            # A rule that names the operation is intended, and replaces the minimum.
            decision = decision if decision.names_tool else minimum
        return self._run_later_steps(call, decision, OWN_OPERATION)

    def _run_later_steps(self, call: Call, decision: Decision, traits: int) -> Decision:
        for step in self._after:
            if step.when and step.applies_to & traits:
                decision = step.decide(call, decision)
        return decision

    def _decide_as_list(self, call: Call) -> Decision:
        """Decide as about `tools/list`. Raises InterlockError."""
        method, call.method = call.method, TOOLS_LIST
        try:
            return self.policy.decide(call)
        finally:
            call.method = method

    def explain(self, call: Call, decision: Decision) -> Decision:
        """Add to a decision why a condition of its rule could not be evaluated."""
        if decision.rule not in self.policy.conditional:
            return decision
        problem = self.policy.explain_undecidable(call, decision.rule)
        if not problem:
            return decision
        reason = f"{decision.reason} The condition of rule {decision.rule} could not be "
        reason += f"evaluated, so it applies: {problem.rstrip('.')}."
        return replace(decision, reason=reason.lstrip())

    # -- Other methods

    def authorize_method(self, call: Call) -> None:
        """Authorize a request that is not a tool call. Such a request never waits for an operator.
        Raises InterlockError."""
        check_method_scopes(call, self._catalog, self._scope_limits)
        decision = self.policy.decide(call)
        self._run_later_steps(call, decision, PASSED_ON if is_passed_on(call) else OTHER)

    def charge_budget(self, call: Call) -> None:
        """Release what a call has reserved, if it was never sent."""
        self.budgets.release(call, call.is_dispatched)


_UNDECIDED: Final[Any] = make_decision(PolicyAction.ALLOW, "")
"""The decision for steps before the policy, which only reject."""
