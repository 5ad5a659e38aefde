"""The policy: who may do what. Compiled once, asked for every request.

What does not depend on arguments is found out once for a caller and a tool, and remembered. The
memory is by the tool itself, not by its name: a tool that was listed anew is judged anew.
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
from interlock.trust.policy.decision import Decision, PolicyAction, decision
from interlock.trust.policy.rules import PolicyRequest, Rule, RuleIndex

Profile = tuple[str, str, tuple[str, ...], tuple[str, ...] | None]
_MOST_PLANS: Final = 200_000
"""How many pairs of caller and tool are remembered before all are forgotten."""
_ABOUT_TOOL_CALLS: Final = f"{REQUEST}:{mcp.TOOLS_CALL}"
_EVERYBODY: Final[Profile] = ("", "", (), None)
_NOBODY: Final = Caller("")
_MUTATING: Final = EffectLevel.MUTATING.label
_IRREVERSIBLE: Final = EffectLevel.IRREVERSIBLE.label
_NAMELESS: Final = "?"
"""A tool that has no name is a tool all the same."""
_SHOWN: Final = 100

FREE: Final = frozenset(verb for verb, method in mcp.METHODS.items() if method.allowed_by_default)
"""What `default: deny` leaves open: lists, what holds a connection up, the tasks of calls that a
rule allowed, and proofs, each of which is for a call that is judged by itself."""

_ALLOWED: Final = decision(PolicyAction.ALLOW, "default:allow")
_SAFE: Final = decision(PolicyAction.ALLOW, "default:safe")
_CONFIRMED: Final = decision(
    PolicyAction.CONFIRM, "default:safe", "What this tool does cannot be undone."
)
_DENIED: Final = decision(PolicyAction.DENY, "default:deny", "No rule allows it.")
_DENY: Final = PolicyAction.DENY
"""Looked up once: members of an enumeration are slow to find."""


class ConditionalRules(msgspec.Struct, frozen=True):
    """What remains to be found out with the arguments of a call."""

    conditional: tuple[Rule, ...]
    """Rules that fit but for their condition, the most restrictive first. All of them are more
    restrictive than what stands otherwise, or there is nothing else."""
    otherwise: Decision
    harmless: Decision | ConditionalRules | None = None
    """What holds instead for a call that is not irreversible by its arguments, though its tool is.
    """


class Policy:
    """All rules, compiled."""

    def __init__(self, config: PolicyConfig, catalog: Catalog | None = None) -> None:
        """`catalog`: knows prompts by all their names. Raises what `Rule` raises."""
        self._catalog = catalog
        self.default: str = config.default
        self.rules: tuple[Rule, ...] = tuple(
            Rule(rule, number) for number, rule in enumerate(config.rules)
        )
        self.conditional = frozenset(rule.decision.rule for rule in self.rules if rule.conditions)
        """The names of the rules that have a condition."""
        self.version: str = version_of(config)
        """Changes whenever the rules do."""
        about_others = [rule for rule in self.rules if rule.kinds]
        self._about_tools = RuleIndex([rule for rule in self.rules if _may_be_tool_call(rule)])
        self._about_others = RuleIndex(about_others)
        self._others = bool(about_others)
        self._who_matters = any(rule.about_who for rule in self.rules)
        self._plans: dict[Profile, dict[Tool, Decision | ConditionalRules]] = {}
        self._last_caller: Caller | None = None
        self._last_plans: dict[Tool, Decision | ConditionalRules] = {}
        self._planned = 0
        by_default = {level.label: self._default(level.label) for level in EffectLevel}
        self.standing_by_effect: dict[str, Decision] = {}
        """What happens to every call of a tool with such an effect. Empty: it takes a decision."""
        if not self.rules and self.default != "deny":
            self.standing_by_effect = by_default
        self._of_tools: dict[Tool, tuple[PolicyRequest, list[Rule]]] = {}
        self._of_callers: dict[Profile, list[Rule]] = {}

    # -- asked for every request

    def decide(self, call: Call) -> Decision:
        """What happens to the call. Raises InterlockError when it is denied."""
        found: Decision | ConditionalRules | None = None
        tool = call.route
        if tool is not None and call.caller is self._last_caller and call.method == mcp.TOOLS_CALL:
            # What stands whatever the arguments are is mostly at hand, found for an earlier call.
            found = self._last_plans.get(tool)  # type: ignore[call-overload]
        if type(found) is not Decision:
            found = self.judge(call)
        if found.action is _DENY:
            raise _denial(call, found, self.version)
        return found

    def deny_always(self, call: Call) -> None:
        """Raises InterlockError when a call of a listed tool is denied, whatever its arguments."""
        found = self.standing(call.caller or _NOBODY, cast("Tool", call.route))
        if type(found) is Decision and found.action is _DENY:
            raise _denial(call, found, self.version)

    def judge(self, call: Call) -> Decision:
        """What happens to the call, denial included. Raises InterlockError for arguments that
        cannot be judged because they are not one thing."""
        if call.method != mcp.TOOLS_CALL:
            return self._judge_other(call)
        tool = cast("Tool | None", call.route)
        if not self.rules:
            return self._default(call.effect if tool is not None else _IRREVERSIBLE)
        caller = call.caller or _NOBODY
        if tool is None:
            return self._judge_unlisted(call)
        plan = self.standing(caller, tool)
        if type(plan) is Decision:
            return plan
        return self._with_arguments(call, caller, cast("ConditionalRules", plan))

    def _judge_unlisted(self, call: Call) -> Decision:
        """A tool that no list names. It may be a listed one under a name that only its server
        takes for the same: so the worst is assumed of it, and nothing is remembered."""
        offering = None if self._catalog is None else self._catalog.offering(call.upstream)
        name = call.name or _NAMELESS
        if offering is not None and offering.prefix:
            name = f"{offering.prefix}.{name}"
        kind = request_kind(mcp.TOOLS_CALL, name)
        found = [
            self.judge_as(call, PolicyRequest(((kind,),), name, effect, call.upstream))
            for effect in (_MUTATING, _IRREVERSIBLE)
        ]
        return max(found, key=lambda one: one.action)

    def _with_arguments(self, call: Call, caller: Caller, plan: ConditionalRules) -> Decision:
        if plan.harmless is not None and call.effect != _IRREVERSIBLE:
            if type(plan.harmless) is Decision:
                return plan.harmless
            plan = cast("ConditionalRules", plan.harmless)
        if not plan.conditional:
            return plan.otherwise
        about = about_call(call, caller, read_arguments(call))
        for rule in plan.conditional:
            if rule.holds(about):
                return rule.decision
        return plan.otherwise

    def explain_unjudged(self, call: Call, rule_name: str) -> str:
        """Why the condition of the rule that decided has no answer for this call. Empty: it has
        one, or no condition. Not for the path of a call that is let through."""
        rule = next((one for one in self.rules if one.decision.rule == rule_name), None)
        if rule is None or not rule.conditions:
            return ""
        about = about_call(call, call.caller or _NOBODY, read_arguments(call))
        for condition in rule.conditions:
            try:
                condition.holds(about)
            except UndecidableError as why:
                return "its arguments cannot be read" if about is None else str(why)
        return ""

    def _judge_other(self, call: Call) -> Decision:
        if not self._others:
            return self._default_other(call.method)
        return self.judge_as(
            call, PolicyRequest(kinds_of(call, self._catalog), server=call.upstream)
        )

    def judge_as(self, call: Call, asked: PolicyRequest) -> Decision:
        """What happens to a call that asks for this. Nothing is remembered."""
        caller = call.caller or _NOBODY
        other = "" if asked.tool else call.method
        plan = self.plan(caller, asked, other=other)
        if type(plan) is Decision:
            found = plan
        else:
            found = self._with_arguments(call, caller, cast("ConditionalRules", plan))
        if found.needs_approval and other:
            # Nobody can be asked about it, so it does not happen.
            return decision(
                PolicyAction.DENY,
                found.rule,
                found.reason or "Only tool calls can wait for a human.",
            )
        return found

    # -- once for a caller and a tool

    def standing(self, caller: Caller, tool: Tool) -> Decision | ConditionalRules:
        """What the rules come to for every call of this tool by this caller."""
        if caller is self._last_caller:
            known = self._last_plans.get(tool)
            if known is not None:
                return known
        profile = (
            (caller.name, caller.parent_caller, caller.roles, caller.scopes)
            if self._who_matters
            else _EVERYBODY
        )
        plans = self._plans.get(profile)
        plan = None if plans is None else plans.get(tool)
        if plan is None:
            plan = self._remember(profile, caller, tool)
        # Most calls are of somebody who has just called, and whose profile need not be made.
        self._last_caller, self._last_plans = caller, self._plans[profile]
        return plan

    def _remember(
        self, profile: Profile, caller: Caller, tool: Tool
    ) -> Decision | ConditionalRules:
        if self._planned >= _MOST_PLANS:
            self._plans.clear()
            self._of_tools.clear()
            self._of_callers.clear()
            self._planned = 0
        about_tool = self._of_tools.get(tool)
        if about_tool is None:
            about_tool = self._of_tools[tool] = self._rules_of(tool)
        asked, of_tool = about_tool
        of_caller = self._of_callers.get(profile)
        if of_caller is None:
            of_caller = self._of_callers[profile] = [
                rule for rule in self._about_tools.for_caller(caller) if rule.fits_caller(caller)
            ]
        fitting = [rule for rule in of_tool if rule.fits_caller(caller)]
        fitting += [rule for rule in of_caller if rule.fits(asked)]
        plan = _plan(fitting, self._default(asked.effect))
        if tool.effect.choices:
            plan = self._with_harmless(plan, caller, asked)
        self._plans.setdefault(profile, {})[tool] = plan
        self._planned += 1
        return plan

    def _with_harmless(
        self, plan: Decision | ConditionalRules, caller: Caller, asked: PolicyRequest
    ) -> Decision | ConditionalRules:
        """The same plan for a tool some of whose calls are not irreversible."""
        harmless = self.plan(caller, msgspec.structs.replace(asked, effect=_MUTATING))
        if harmless == plan:
            return plan
        if isinstance(plan, Decision):
            return ConditionalRules((), plan, harmless)
        return ConditionalRules(plan.conditional, plan.otherwise, harmless)

    def _rules_of(self, tool: Tool) -> tuple[PolicyRequest, list[Rule]]:
        """What rules see of a call of this tool, and which of those found by it fit."""
        asked = self.asked_of(tool)
        return asked, [rule for rule in self._about_tools.for_asked(asked) if rule.fits(asked)]

    def asked_of(self, tool: Tool) -> PolicyRequest:
        """What rules see of a call of this tool."""
        kind = request_kind(mcp.TOOLS_CALL, tool.canonical)
        said = ToolAnnotations(tool)
        return PolicyRequest(((kind,),), tool.canonical, tool.effect_name, tool.upstream, said)

    def plan(
        self, caller: Caller, asked: PolicyRequest, *, other: str = "", tool: Tool | None = None
    ) -> Decision | ConditionalRules:
        """The same for anything that is asked for; nothing is remembered but of a `tool`. `other`:
        the verb, when it is no tool call."""
        if tool is not None:
            return self.standing(caller, tool)
        index = self._about_others if other else self._about_tools
        found = [*index.for_asked(asked), *index.for_caller(caller)]
        fitting = [rule for rule in found if rule.fits_caller(caller) and rule.fits(asked)]
        default = self._default_other(other) if other else self._default(asked.effect)
        return _plan(fitting, default)

    # -- when no rule fits

    def _default(self, effect: str) -> Decision:
        if self.default == "safe":
            return _CONFIRMED if effect == _IRREVERSIBLE else _SAFE
        return _ALLOWED if self.default == "allow" else _DENIED

    def _default_other(self, verb: str) -> Decision:
        if self.default == "deny" and verb not in FREE:
            return _DENIED
        return _SAFE if self.default == "safe" else _ALLOWED


def about_call(
    call: Call, caller: Caller, arguments: dict[str, Any] | None
) -> dict[str, Any] | None:
    """What conditions can speak of."""
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
    """The same for the same rules, in whatever order they stand."""
    encode = msgspec.json.Encoder(order="deterministic").encode
    rules = sorted(map(encode, (*config.rules, *config.learned)))
    whole = b"\n".join([config.default.encode(), *rules])
    return hashlib.sha256(whole).hexdigest()[:16]


def _may_be_tool_call(rule: Rule) -> bool:
    """Whether any of its kinds can be that of a tool call."""
    return not rule.kinds or any(
        pattern.prefix.startswith(_ABOUT_TOOL_CALLS) or _ABOUT_TOOL_CALLS.startswith(pattern.prefix)
        for pattern in rule.kinds
    )


def _plan(fitting: list[Rule], default: Decision) -> Decision | ConditionalRules:
    """What rules that all fit come to."""
    found, worst = default, -1
    conditional: list[Rule] = []
    if len(fitting) > 1:
        fitting.sort(key=_most_restrictive_first)
    for rule in fitting:
        if not rule.conditions:
            found, worst = rule.decision, rule.action
            break
        conditional.append(rule)
    conditional = [rule for rule in conditional if rule.action > worst]
    return ConditionalRules(tuple(conditional), found) if conditional else found


def _most_restrictive_first(rule: Rule) -> tuple[int, int]:
    return (-rule.action, rule.number)


def _denial(call: Call, found: Decision, version: str) -> InterlockError:
    route = call.route
    what = (call.name if route is None else route.canonical) or call.method
    shown = what if len(what) <= _SHOWN else what[:_SHOWN] + "…"
    why = f" {found.reason}" if found.reason else ""
    return InterlockError(
        DENIED,
        f"The policy of this node does not allow {shown} (rule {found.rule}).{why}",
        {"rule": found.rule, "reason": found.reason, "subject": shown, "policy": version},
    )
