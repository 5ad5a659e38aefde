"""The five stages of the evaluation of a step: limit, outcome, patterns, risk, tolerance.

The first stage that pauses or stops the step ends the evaluation. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from interlock.aql.config import AgentSafety, SafetyConfig
from interlock.aql.safety.patterns import ActionHint, ActionPatterns, normalize_hint
from interlock.aql.safety.risk_score import TOLERANCES, RiskScore, compute_score, tier_of
from interlock.aql.safety.store import Tier
from interlock.protocol.aql_terms import Danger, matches_glob

STEP_LIMIT: Final = "Step limit exceeded"
TIERS: Final[tuple[Tier, ...]] = ("advisory", "confirm", "verify", "danger_zone")
_TOLERANCE_ORDER: Final = ("conservative", "moderate", "aggressive")

StepEffect = Literal["continue", "pause", "stop"]


class SafetyRules(msgspec.Struct, frozen=True):
    """The safety rules of one agent."""

    max_steps: int
    tolerance: str
    deny: ActionPatterns
    requires_approval: ActionPatterns
    auto_approve: ActionPatterns
    stages: frozenset[int]
    tolerance_relaxes_confirm: bool
    repeat_raises_at: int


def rules_for(config: SafetyConfig, caller: str, element: str) -> SafetyRules:
    """Return the rules of an agent.

    The caller is authenticated. The element name is not: it can only make the rules stricter.
    """
    limit = config.max_steps
    tolerance: str = config.tolerance
    deny, requires_approval, auto_approve = (
        config.deny,
        config.requires_approval,
        config.auto_approve,
    )
    by_caller = _find_agent_settings(config, caller)
    if by_caller is not None:
        limit = limit if by_caller.max_steps is None else by_caller.max_steps
        tolerance = by_caller.tolerance or tolerance
        deny = deny if by_caller.deny is None else by_caller.deny
        requires_approval = (
            requires_approval
            if by_caller.requires_approval is None
            else by_caller.requires_approval
        )
        auto_approve = auto_approve if by_caller.auto_approve is None else by_caller.auto_approve
    by_element = _find_agent_settings(config, element)
    if by_element is not None and by_element is not by_caller:
        limit = limit if by_element.max_steps is None else min(limit, by_element.max_steps)
        tolerance = stricter_tolerance(tolerance, by_element.tolerance or tolerance)
        deny = [*deny, *(by_element.deny or ())]
        requires_approval = [*requires_approval, *(by_element.requires_approval or ())]
        if by_element.auto_approve is not None:
            auto_approve = [glob for glob in auto_approve if glob in by_element.auto_approve]
    # The step limit is mandatory: without it there is no loop.
    stages = frozenset({1, *config.stages})
    return SafetyRules(
        limit,
        tolerance,
        ActionPatterns(deny),
        ActionPatterns(requires_approval),
        ActionPatterns(auto_approve),
        stages,
        config.tolerance_relaxes_confirm,
        config.repeat_raises_at,
    )


def _find_agent_settings(config: SafetyConfig, name: str) -> AgentSafety | None:
    return next(
        (settings for glob, settings in config.agents.items() if matches_glob(glob, name)), None
    )


def stricter_tolerance(first: str, second: str) -> str:
    return min(first, second, key=_TOLERANCE_ORDER.index)


class StepAction(msgspec.Struct, frozen=True):
    """The operation of a step."""

    name: str
    local_name: str
    danger: Danger
    trust: str = ""


class StepVerdict(msgspec.Struct, frozen=True):
    """The verdict of the evaluation."""

    effect: StepEffect
    stage: int
    """The stage that ended the evaluation. 5: all stages were passed."""
    factors: list[str]
    reason: str = ""
    tier: Tier | None = None
    """The risk tier. None: the fourth stage did not run."""
    value: int = 0
    denied: bool = False
    """True if a deny pattern matched."""


def evaluate_report(
    hint: ActionHint,
    rules: SafetyRules,
    *,
    steps: int,
    max_steps: int,
    tolerance: str,
    outcome: str = "",
    action: StepAction | None = None,
    repeated: int = 0,
    approved_tier: Tier | None = None,
) -> StepVerdict:
    """Evaluate a reported step.

    Args:
        steps: the number of previous steps.
        action: the operation that the report names.
        approved_tier: the risk tier up to which an operator approved exactly this step.
    """
    if steps >= max_steps:
        return StepVerdict("pause", 1, [f"{steps} of {max_steps} steps were made"], STEP_LIMIT)
    is_approved = approved_tier is not None
    if 2 in rules.stages and outcome == "failure" and not is_approved:
        return StepVerdict("pause", 2, ["the previous step failed"], "The previous step failed")
    factors: list[str] = []
    if 3 in rules.stages:
        pattern_verdict = _check_patterns(hint, rules, action, factors, is_approved)
        if pattern_verdict is not None:
            return pattern_verdict
    return _check_risk(
        hint, rules, action, factors, tolerance, repeated, approved_tier, is_named=False
    )


def evaluate_call(
    action: StepAction,
    rules: SafetyRules,
    *,
    tolerance: str,
    reported: int,
    repeated: int = 0,
    approved_tier: Tier | None = None,
) -> StepVerdict:
    """Evaluate an actual call.

    Args:
        reported: the risk score of the report.
        approved_tier: the risk tier up to which an operator approved this step.
    """
    hint = normalize_hint(action.local_name)
    factors: list[str] = []
    if 3 in rules.stages:
        pattern_verdict = _check_patterns(hint, rules, action, factors, approved_tier is not None)
        if pattern_verdict is not None:
            if pattern_verdict.effect != "continue" or tier_of(reported) == "advisory":
                return pattern_verdict
            factors = []
    return _check_risk(
        hint,
        rules,
        action,
        factors,
        tolerance,
        repeated,
        approved_tier,
        is_named=True,
        min_value=reported,
    )


def _check_patterns(
    hint: ActionHint,
    rules: SafetyRules,
    action: StepAction | None,
    factors: list[str],
    is_approved: bool,
) -> StepVerdict | None:
    hints = (
        [hint]
        if action is None
        else [hint, normalize_hint(action.local_name), normalize_hint(action.name)]
    )
    deny_pattern = _first_match(rules.deny, hints)
    if deny_pattern is not None:
        reason = f"Denied by pattern '{deny_pattern}'"
        return StepVerdict("stop", 3, [f"deny pattern '{deny_pattern}'"], reason, denied=True)
    if is_approved:
        return None
    approval_pattern = _first_match(rules.requires_approval, hints)
    if approval_pattern is not None:
        reason = f"Pattern '{approval_pattern}' requires approval"
        return StepVerdict("pause", 3, [f"requires_approval pattern '{approval_pattern}'"], reason)
    phrase_pattern = rules.deny.find_phrase(hint) or rules.requires_approval.find_phrase(hint)
    if phrase_pattern is not None:
        reason = f"Its words match pattern '{phrase_pattern}', which requires approval"
        return StepVerdict("pause", 3, [f"words of pattern '{phrase_pattern}'"], reason)
    # A name alone guarantees nothing, if the node knows the operation to be more dangerous.
    is_harmless = action is None or action.danger <= Danger.REVERSIBLE
    approve_pattern = rules.auto_approve.find_exact(hint)
    if approve_pattern is not None and is_harmless:
        return StepVerdict("continue", 3, [f"auto_approve pattern '{approve_pattern}'"])
    return None


def _first_match(patterns: ActionPatterns, hints: Sequence[ActionHint]) -> str | None:
    return next((glob for glob in map(patterns.find_match, hints) if glob is not None), None)


def _check_risk(
    hint: ActionHint,
    rules: SafetyRules,
    action: StepAction | None,
    factors: list[str],
    tolerance: str,
    repeated: int,
    approved_tier: Tier | None,
    *,
    is_named: bool,
    min_value: int = 0,
) -> StepVerdict:
    risk_score: RiskScore = compute_score(
        hint,
        danger=None if action is None else action.danger,
        trust="" if action is None else action.trust,
        repeated=repeated,
        repeat_raises_at=rules.repeat_raises_at,
        is_named=is_named,
    )
    value = max(risk_score.value, min_value)
    factors = [*factors, *risk_score.factors, f"risk score {value}"]
    if min_value > risk_score.value:
        factors.append("the report was riskier than the operation")
    tier = tier_of(value) if 4 in rules.stages else None
    if (
        tier is not None
        and approved_tier is not None
        and TIERS.index(tier) <= TIERS.index(approved_tier)
    ):
        factors.append("approved by an operator")
        return StepVerdict("continue", 5, factors, tier=tier, value=value)
    threshold = TOLERANCES[tolerance]
    if tier == "danger_zone":
        return StepVerdict("stop", 4, factors, f"Risk score {value}: danger zone", tier, value)
    if tier == "verify":
        return StepVerdict("pause", 4, factors, f"Risk score {value}: verify", tier, value)
    if tier == "confirm":
        if not (rules.tolerance_relaxes_confirm and 5 in rules.stages and value <= threshold):
            return StepVerdict("pause", 4, factors, f"Risk score {value}: confirm", tier, value)
        factors.append(f"allowed by the tolerance '{tolerance}'")
    if 5 in rules.stages and value > threshold and approved_tier is None:
        reason = f"Risk score {value} is above the tolerance '{tolerance}' ({threshold})"
        return StepVerdict("pause", 5, [*factors, "above the tolerance"], reason, tier, value)
    return StepVerdict("continue", 5, factors, tier=tier, value=value)
