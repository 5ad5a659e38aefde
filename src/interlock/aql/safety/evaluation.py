"""The five stages that evaluate a step: limit, outcome, patterns, risk, tolerance. The first
that pauses or stops ends it. Pure: everything it needs is given to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from interlock.aql.config import AgentSafety, SafetyConfig
from interlock.aql.safety.patterns import ActionHint, ActionPatterns, read
from interlock.aql.safety.risk_score import TOLERANCES, RiskScore, score, tier_of
from interlock.aql.safety.store import Tier
from interlock.protocol.aql_terms import Danger, matches_glob

STEP_LIMIT: Final = "Step limit exceeded"
TIERS: Final[tuple[Tier, ...]] = ("advisory", "confirm", "verify", "danger_zone")
_STRICTEST: Final = ("conservative", "moderate", "aggressive")

StepEffect = Literal["continue", "pause", "stop"]


class SafetyRules(msgspec.Struct, frozen=True):
    """The safety rules of one agent."""

    max_steps: int
    tolerance: str
    deny: ActionPatterns
    requires_approval: ActionPatterns
    auto_approve: ActionPatterns
    stages: frozenset[int]
    relaxes: bool
    repeat_raises_at: int


def rules_for(config: SafetyConfig, caller: str, element: str) -> SafetyRules:
    """`caller` is known, `element` only says so: by its own name an agent can get stricter rules,
    and no others."""
    limit = config.max_steps
    tolerance: str = config.tolerance
    deny, requires, auto = config.deny, config.requires_approval, config.auto_approve
    own = _first(config, caller)
    if own is not None:
        limit = limit if own.max_steps is None else own.max_steps
        tolerance = own.tolerance or tolerance
        deny = deny if own.deny is None else own.deny
        requires = requires if own.requires_approval is None else own.requires_approval
        auto = auto if own.auto_approve is None else own.auto_approve
    said = _first(config, element)
    if said is not None and said is not own:
        limit = limit if said.max_steps is None else min(limit, said.max_steps)
        tolerance = stricter_tolerance(tolerance, said.tolerance or tolerance)
        deny = [*deny, *(said.deny or ())]
        requires = [*requires, *(said.requires_approval or ())]
        if said.auto_approve is not None:
            auto = [glob for glob in auto if glob in said.auto_approve]
    # The step limit is the loop: without it there is none.
    stages = frozenset({1, *config.stages})
    return SafetyRules(
        limit,
        tolerance,
        ActionPatterns(deny),
        ActionPatterns(requires),
        ActionPatterns(auto),
        stages,
        config.tolerance_relaxes_confirm,
        config.repeat_raises_at,
    )


def _first(config: SafetyConfig, name: str) -> AgentSafety | None:
    return next((one for glob, one in config.agents.items() if matches_glob(glob, name)), None)


def stricter_tolerance(one: str, other: str) -> str:
    return min(one, other, key=_STRICTEST.index)


class StepAction(msgspec.Struct, frozen=True):
    """The operation of a step, as the node knows it."""

    name: str
    local: str
    danger: Danger
    trust: str = ""


class StepVerdict(msgspec.Struct, frozen=True):
    """The verdict of the stages."""

    effect: StepEffect
    stage: int
    """Which one ended it; 5: all were passed."""
    factors: list[str]
    reason: str = ""
    tier: Tier | None = None
    """Where the fourth stage ran."""
    value: int = 0
    denied: bool = False
    """By a pattern that nothing may fit."""


def report(
    hint: ActionHint,
    rules: SafetyRules,
    *,
    steps: int,
    max_steps: int,
    tolerance: str,
    outcome: str = "",
    action: StepAction | None = None,
    repeated: int = 0,
    let: Tier | None = None,
) -> StepVerdict:
    """A step that is reported. `steps`: those before it. `action`: the operation that it names.
    `let`: the tier up to which a human let exactly this one through."""
    if steps >= max_steps:
        return StepVerdict("pause", 1, [f"{steps} of {max_steps} steps were made"], STEP_LIMIT)
    asked = let is not None
    if 2 in rules.stages and outcome == "failure" and not asked:
        return StepVerdict("pause", 2, ["the previous step failed"], "The previous step failed")
    factors: list[str] = []
    if 3 in rules.stages:
        stopped = _patterns(hint, rules, action, factors, asked)
        if stopped is not None:
            return stopped
    return _risk(hint, rules, action, factors, tolerance, repeated, let, named=False)


def call(
    action: StepAction,
    rules: SafetyRules,
    *,
    tolerance: str,
    reported: int,
    repeated: int = 0,
    let: Tier | None = None,
) -> StepVerdict:
    """An operation that is really called. `reported`: how risky the report was."""
    hint = read(action.local)
    factors: list[str] = []
    if 3 in rules.stages:
        stopped = _patterns(hint, rules, action, factors, let is not None)
        if stopped is not None:
            if stopped.effect != "continue" or tier_of(reported) == "advisory":
                return stopped
            factors = []
    return _risk(hint, rules, action, factors, tolerance, repeated, let, named=True, least=reported)


def _patterns(
    hint: ActionHint, rules: SafetyRules, action: StepAction | None, factors: list[str], asked: bool
) -> StepVerdict | None:
    hints = [hint] if action is None else [hint, read(action.local), read(action.name)]
    denied = _first_of(rules.deny, hints)
    if denied is not None:
        why = f"Denied by pattern '{denied}'"
        return StepVerdict("stop", 3, [f"deny pattern '{denied}'"], why, denied=True)
    if asked:
        return None
    wanted = _first_of(rules.requires_approval, hints)
    if wanted is not None:
        why = f"Pattern '{wanted}' requires approval"
        return StepVerdict("pause", 3, [f"requires_approval pattern '{wanted}'"], why)
    said = rules.deny.said(hint) or rules.requires_approval.said(hint)
    if said is not None:
        why = f"Its words fit pattern '{said}', which requires approval"
        return StepVerdict("pause", 3, [f"words of pattern '{said}'"], why)
    # A name promises nothing: the node must not know better.
    harmless = action is None or action.danger <= Danger.REVERSIBLE
    fitting = rules.auto_approve.whole(hint)
    if fitting is not None and harmless:
        return StepVerdict("continue", 3, [f"auto_approve pattern '{fitting}'"])
    return None


def _first_of(patterns: ActionPatterns, hints: Sequence[ActionHint]) -> str | None:
    return next((glob for glob in map(patterns.found, hints) if glob is not None), None)


def _risk(
    hint: ActionHint,
    rules: SafetyRules,
    action: StepAction | None,
    factors: list[str],
    tolerance: str,
    repeated: int,
    let: Tier | None,
    *,
    named: bool,
    least: int = 0,
) -> StepVerdict:
    found: RiskScore = score(
        hint,
        danger=None if action is None else action.danger,
        trust="" if action is None else action.trust,
        repeated=repeated,
        repeat_raises_at=rules.repeat_raises_at,
        named=named,
    )
    value = max(found.value, least)
    factors = [*factors, *found.factors, f"risk score {value}"]
    if least > found.value:
        factors.append("the report was riskier than the operation")
    tier = tier_of(value) if 4 in rules.stages else None
    if tier is not None and let is not None and TIERS.index(tier) <= TIERS.index(let):
        factors.append("let through by a human")
        return StepVerdict("continue", 5, factors, tier=tier, value=value)
    threshold = TOLERANCES[tolerance]
    if tier == "danger_zone":
        return StepVerdict("stop", 4, factors, f"Risk score {value}: danger zone", tier, value)
    if tier == "verify":
        return StepVerdict("pause", 4, factors, f"Risk score {value}: verify", tier, value)
    if tier == "confirm":
        if not (rules.relaxes and 5 in rules.stages and value <= threshold):
            return StepVerdict("pause", 4, factors, f"Risk score {value}: confirm", tier, value)
        factors.append(f"let on by the tolerance '{tolerance}'")
    if 5 in rules.stages and value > threshold and let is None:
        why = f"Risk score {value} is above the tolerance '{tolerance}' ({threshold})"
        return StepVerdict("pause", 5, [*factors, "above the tolerance"], why, tier, value)
    return StepVerdict("continue", 5, factors, tier=tier, value=value)
