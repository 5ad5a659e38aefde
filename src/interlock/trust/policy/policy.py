"""The policy: decides who may do what. It is compiled once and evaluated for every request.

Results that do not depend on arguments are cached by caller and tool. The cache key is the tool
object, not its name: a tool that is listed again is evaluated again.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, cast

import msgspec

from interlock.core.call import Call, Caller
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.effects import EffectLevel
from interlock.core.catalog.offering import Tool
from interlock.core.config.conditions import UndecidableError
from interlock.core.config.trust import PolicyConfig
from interlock.errors import DENIED, InterlockError
from interlock.protocol import mcp
from interlock.protocol.kinds import REQUEST, request_kind
from interlock.trust.policy.attributes import ToolAnnotations, kinds_of, read_arguments
from interlock.trust.policy.decision import Decision, PolicyAction, make_decision
from interlock.trust.policy.rules import PolicyRequest, Rule, RuleIndex

Profile = tuple[str, str, tuple[str, ...], tuple[str, ...] | None]
_MAX_PLANS: Final = 200_000
"""The number of pairs of caller and tool at which the cache is cleared."""
_TOOL_CALL_KIND: Final = f"{REQUEST}:{mcp.TOOLS_CALL}"
_ANY_CALLER: Final[Profile] = ("", "", (), None)
_NO_CALLER: Final = Caller("")
_MUTATING: Final = EffectLevel.MUTATING.label
_IRREVERSIBLE: Final = EffectLevel.IRREVERSIBLE.label
_UNNAMED_TOOL: Final = "?"
"""The name of a tool without a name, so that the request still calls a tool."""
_MAX_SUBJECT_LENGTH: Final = 100

FREE_METHODS: Final = frozenset(
    name for name, method in mcp.METHODS.items() if method.allowed_by_default
)
"""Methods that `default: deny` allows: lists, connection upkeep, tasks of allowed calls, and
proofs, whose calls are authorized themselves."""

_ALLOWED: Final = make_decision(PolicyAction.ALLOW, "default:allow")
_SAFE: Final = make_decision(PolicyAction.ALLOW, "default:safe")
_CONFIRMED: Final = make_decision(
    PolicyAction.CONFIRM, "default:safe", "The effect of this tool cannot be undone."
)
_DENIED: Final = make_decision(PolicyAction.DENY, "default:deny", "No rule allows it.")
_DENY: Final = PolicyAction.DENY
"""A module constant, because enum members are slow to look up."""


class ConditionalRules(msgspec.Struct, frozen=True):
    """A result that depends on the arguments of the call."""

    conditional: tuple[Rule, ...]
    """Matching rules with conditions, the most restrictive first. All are more restrictive than
    `otherwise`."""
    otherwise: Decision
    harmless: Decision | ConditionalRules | None = None
    """The result for a call that its arguments make reversible, though its tool is irreversible."""


class Policy:
    """All rules of a config, compiled."""

    def __init__(self, config: PolicyConfig, catalog: Catalog | None = None) -> None:
        """Args:
        catalog: resolves the names of prompts.

        Raises the errors of `Rule`.
        """
        self._catalog = catalog
        self.default: str = config.default
        self.rules: tuple[Rule, ...] = tuple(
            Rule(rule, number) for number, rule in enumerate(config.rules)
        )
        self.conditional = frozenset(rule.decision.rule for rule in self.rules if rule.conditions)
        """The names of the rules with a condition."""
        self.version: str = version_of(config)
        """A digest that changes with the rules."""
        other_rules = [rule for rule in self.rules if rule.kinds]
        self._tool_rules = RuleIndex([rule for rule in self.rules if _may_be_tool_call(rule)])
        self._other_rules = RuleIndex(other_rules)
        self._has_other_rules = bool(other_rules)
        self._depends_on_caller = any(rule.selects_callers for rule in self.rules)
        self._plans: dict[Profile, dict[Tool, Decision | ConditionalRules]] = {}
        self._last_caller: Caller | None = None
        self._last_plans: dict[Tool, Decision | ConditionalRules] = {}
        self._plan_count = 0
        by_default = {level.label: self._default(level.label) for level in EffectLevel}
        self.default_by_effect: dict[str, Decision] = {}
        """The decision about every call of a tool, by effect. Empty: rules have to be evaluated."""
        if not self.rules and self.default != "deny":
            self.default_by_effect = by_default
        self._rules_by_tool: dict[Tool, tuple[PolicyRequest, list[Rule]]] = {}
        self._rules_by_caller: dict[Profile, list[Rule]] = {}

    # -- Evaluated for every request

    def decide(self, call: Call) -> Decision:
        """Return the decision about a call. Raises InterlockError when it is denied."""
        result: Decision | ConditionalRules | None = None
        tool = call.route
        if tool is not None and call.caller is self._last_caller and call.method == mcp.TOOLS_CALL:
            # A result that does not depend on arguments is usually cached from an earlier call.
            result = self._last_plans.get(tool)  # type: ignore[call-overload]
        if type(result) is not Decision:
            result = self.judge(call)
        if result.action is _DENY:
            raise _denied_error(call, result, self.version)
        return result

    def check_always_denied(self, call: Call) -> None:
        """Raise InterlockError when a call of a listed tool is denied with any arguments."""
        plan = self.plan_tool(call.caller or _NO_CALLER, cast("Tool", call.route))
        if type(plan) is Decision and plan.action is _DENY:
            raise _denied_error(call, plan, self.version)

    def judge(self, call: Call) -> Decision:
        """Return the decision about a call, also when it is denied. Raises InterlockError for
        ambiguous arguments."""
        if call.method != mcp.TOOLS_CALL:
            return self._judge_other(call)
        tool = cast("Tool | None", call.route)
        if not self.rules:
            return self._default(call.effect if tool is not None else _IRREVERSIBLE)
        caller = call.caller or _NO_CALLER
        if tool is None:
            return self._judge_unlisted(call)
        plan = self.plan_tool(caller, tool)
        if type(plan) is Decision:
            return plan
        return self._evaluate_conditions(call, caller, cast("ConditionalRules", plan))

    def _judge_unlisted(self, call: Call) -> Decision:
        """Return the decision about a tool that no list names. It may be a listed tool under a name
        that only its server accepts, so the most restrictive result counts, and nothing is
        cached."""
        offering = None if self._catalog is None else self._catalog.offering(call.upstream)
        name = call.name or _UNNAMED_TOOL
        if offering is not None and offering.prefix:
            name = f"{offering.prefix}.{name}"
        kind = request_kind(mcp.TOOLS_CALL, name)
        decisions = [
            self.judge_as(call, PolicyRequest(((kind,),), name, effect, call.upstream))
            for effect in (_MUTATING, _IRREVERSIBLE)
        ]
        return max(decisions, key=lambda decision: decision.action)

    def _evaluate_conditions(self, call: Call, caller: Caller, plan: ConditionalRules) -> Decision:
        if plan.harmless is not None and call.effect != _IRREVERSIBLE:
            if type(plan.harmless) is Decision:
                return plan.harmless
            plan = cast("ConditionalRules", plan.harmless)
        if not plan.conditional:
            return plan.otherwise
        attributes = condition_attributes(call, caller, read_arguments(call))
        for rule in plan.conditional:
            if rule.is_satisfied(attributes):
                return rule.decision
        return plan.otherwise

    def explain_undecidable(self, call: Call, rule_name: str) -> str:
        """Return why the condition of a rule cannot be evaluated for a call. Empty: it can, or the
        rule has none. It evaluates again, so use it only for calls that wait."""
        rule = next((rule for rule in self.rules if rule.decision.rule == rule_name), None)
        if rule is None or not rule.conditions:
            return ""
        attributes = condition_attributes(call, call.caller or _NO_CALLER, read_arguments(call))
        for condition in rule.conditions:
            try:
                condition.is_satisfied(attributes)
            except UndecidableError as error:
                return "its arguments cannot be read" if attributes is None else str(error)
        return ""

    def _judge_other(self, call: Call) -> Decision:
        if not self._has_other_rules:
            return self._default_other(call.method)
        return self.judge_as(
            call, PolicyRequest(kinds_of(call, self._catalog), server=call.upstream)
        )

    def judge_as(self, call: Call, request: PolicyRequest) -> Decision:
        """Return the decision about a call with the attributes of `request`. Nothing is cached."""
        caller = call.caller or _NO_CALLER
        method = "" if request.tool else call.method
        plan = self.plan(caller, request, method=method)
        if type(plan) is Decision:
            decision = plan
        else:
            decision = self._evaluate_conditions(call, caller, cast("ConditionalRules", plan))
        if decision.needs_approval and method:
            # No operator can be asked about it, so it is denied.
            return make_decision(
                PolicyAction.DENY,
                decision.rule,
                decision.reason or "Only tool calls can wait for approval.",
            )
        return decision

    # -- Once for a caller and a tool

    def plan_tool(self, caller: Caller, tool: Tool) -> Decision | ConditionalRules:
        """Return the result for all calls of a tool by a caller."""
        if caller is self._last_caller:
            cached = self._last_plans.get(tool)
            if cached is not None:
                return cached
        profile = (
            (caller.name, caller.parent_caller, caller.roles, caller.scopes)
            if self._depends_on_caller
            else _ANY_CALLER
        )
        plans = self._plans.get(profile)
        plan = None if plans is None else plans.get(tool)
        if plan is None:
            plan = self._make_plan(profile, caller, tool)
        # The next call is usually by the same caller, and then needs no profile.
        self._last_caller, self._last_plans = caller, self._plans[profile]
        return plan

    def _make_plan(
        self, profile: Profile, caller: Caller, tool: Tool
    ) -> Decision | ConditionalRules:
        if self._plan_count >= _MAX_PLANS:
            self._plans.clear()
            self._rules_by_tool.clear()
            self._rules_by_caller.clear()
            self._plan_count = 0
        cached = self._rules_by_tool.get(tool)
        if cached is None:
            cached = self._rules_by_tool[tool] = self._find_tool_rules(tool)
        request, tool_rules = cached
        caller_rules = self._rules_by_caller.get(profile)
        if caller_rules is None:
            caller_rules = self._rules_by_caller[profile] = [
                rule for rule in self._tool_rules.for_caller(caller) if rule.fits_caller(caller)
            ]
        matches = [rule for rule in tool_rules if rule.fits_caller(caller)]
        matches += [rule for rule in caller_rules if rule.fits(request)]
        plan = _combine(matches, self._default(request.effect))
        if tool.effect.choices:
            plan = self._add_harmless(plan, caller, request)
        self._plans.setdefault(profile, {})[tool] = plan
        self._plan_count += 1
        return plan

    def _add_harmless(
        self, plan: Decision | ConditionalRules, caller: Caller, request: PolicyRequest
    ) -> Decision | ConditionalRules:
        """Add the result for calls of the tool that are not irreversible."""
        harmless = self.plan(caller, msgspec.structs.replace(request, effect=_MUTATING))
        if harmless == plan:
            return plan
        if isinstance(plan, Decision):
            return ConditionalRules((), plan, harmless)
        return ConditionalRules(plan.conditional, plan.otherwise, harmless)

    def _find_tool_rules(self, tool: Tool) -> tuple[PolicyRequest, list[Rule]]:
        """Return the request for a call of a tool, and the matching rules that its index finds."""
        request = self.tool_request(tool)
        return request, [
            rule for rule in self._tool_rules.for_request(request) if rule.fits(request)
        ]

    def tool_request(self, tool: Tool) -> PolicyRequest:
        """Return the attributes that rules see of a call of a tool."""
        kind = request_kind(mcp.TOOLS_CALL, tool.canonical)
        annotations = ToolAnnotations(tool)
        return PolicyRequest(
            ((kind,),), tool.canonical, tool.effect_name, tool.upstream, annotations
        )

    def plan(
        self, caller: Caller, request: PolicyRequest, *, method: str = "", tool: Tool | None = None
    ) -> Decision | ConditionalRules:
        """Return the result for any request.

        Args:
            method: the method of a request that is no tool call.
            tool: the tool of a tool call, whose result is cached.
        """
        if tool is not None:
            return self.plan_tool(caller, tool)
        index = self._other_rules if method else self._tool_rules
        candidates = [*index.for_request(request), *index.for_caller(caller)]
        matches = [rule for rule in candidates if rule.fits_caller(caller) and rule.fits(request)]
        default = self._default_other(method) if method else self._default(request.effect)
        return _combine(matches, default)

    # -- Defaults

    def _default(self, effect: str) -> Decision:
        if self.default == "safe":
            return _CONFIRMED if effect == _IRREVERSIBLE else _SAFE
        return _ALLOWED if self.default == "allow" else _DENIED

    def _default_other(self, method: str) -> Decision:
        if self.default == "deny" and method not in FREE_METHODS:
            return _DENIED
        return _SAFE if self.default == "safe" else _ALLOWED


def condition_attributes(
    call: Call, caller: Caller, arguments: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Return the attributes of a call that conditions can use. None: its arguments are
    undecidable."""
    if arguments is None:
        return None
    route = call.route
    return {
        "args": arguments,
        "tool": call.name if route is None else route.canonical,
        "caller": caller.name,
        "roles": list(caller.roles),
        "scopes": list(caller.scopes or ()),
        "effect": call.effect or _IRREVERSIBLE,
        "server": call.upstream,
    }


def version_of(config: PolicyConfig) -> str:
    """Return a digest of the rules that does not depend on their order."""
    encode = msgspec.json.Encoder(order="deterministic").encode
    rules = sorted(map(encode, (*config.rules, *config.learned)))
    content = b"\n".join([config.default.encode(), *rules])
    return hashlib.sha256(content).hexdigest()[:16]


def _may_be_tool_call(rule: Rule) -> bool:
    """Return whether the rule may match a tool call."""
    return not rule.kinds or any(
        pattern.prefix.startswith(_TOOL_CALL_KIND) or _TOOL_CALL_KIND.startswith(pattern.prefix)
        for pattern in rule.kinds
    )


def _combine(matches: list[Rule], default: Decision) -> Decision | ConditionalRules:
    """Return the result of rules that all match."""
    decision, worst = default, -1
    conditional: list[Rule] = []
    if len(matches) > 1:
        matches.sort(key=_restrictiveness)
    for rule in matches:
        if not rule.conditions:
            decision, worst = rule.decision, rule.action
            break
        conditional.append(rule)
    conditional = [rule for rule in conditional if rule.action > worst]
    return ConditionalRules(tuple(conditional), decision) if conditional else decision


def _restrictiveness(rule: Rule) -> tuple[int, int]:
    return (-rule.action, rule.number)


def _denied_error(call: Call, decision: Decision, version: str) -> InterlockError:
    route = call.route
    subject = (call.name if route is None else route.canonical) or call.method
    if len(subject) > _MAX_SUBJECT_LENGTH:
        subject = subject[:_MAX_SUBJECT_LENGTH] + "…"
    reason = f" {decision.reason}" if decision.reason else ""
    return InterlockError(
        DENIED,
        f"The policy of this node denies {subject} (rule {decision.rule}).{reason}",
        {
            "rule": decision.rule,
            "reason": decision.reason,
            "subject": subject,
            "policy": version,
        },
    )
