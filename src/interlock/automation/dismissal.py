"""Dismissals: suggestions that an operator dismissed, and rules that an operator reverted.

They are suggested again only after as many new decisions as there were before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from interlock.automation.config import AutomationConfig
from interlock.automation.rule import CompiledRule, DecisionCase
from interlock.core.config import LearnedRule
from interlock.core.config.problems import InvalidValueError


class Dismissal(msgspec.Struct, frozen=True, kw_only=True):
    """A dismissed suggestion, or a reverted rule."""

    id: str
    """The id of the suggestion."""
    rule: LearnedRule
    by: str
    time: float
    """Seconds since 1970."""
    agreed: int
    """The number of decisions that supported the rule."""
    reverted: bool = False
    """True if the rule was in force, and was reverted."""


def find_dismissal(
    id: str,
    rule: LearnedRule,
    supporting_cases: Sequence[DecisionCase],
    dismissed: Iterable[Dismissal],
    settings: AutomationConfig,
) -> Dismissal | None:
    """Return the dismissal that applies to a suggestion: its own, or that of a rule for most of the
    same decisions.

    Args:
        supporting_cases: the decisions that support the suggestion.

    Returns:
        None: no dismissal applies.
    """
    for dismissal in sorted(dismissed, key=lambda dismissal: -dismissal.time):
        if dismissal.rule.then != rule.then:
            continue
        new_count = sum(case.decision.time > dismissal.time for case in supporting_cases)
        if new_count >= max(dismissal.agreed, settings.decisions):
            continue
        is_same = dismissal.id == id
        if is_same or 2 * _count_matches(dismissal.rule, supporting_cases) >= len(supporting_cases):
            return dismissal
    return None


def _count_matches(rule: LearnedRule, cases: Iterable[DecisionCase]) -> int:
    try:
        compiled = CompiledRule(rule)
    except InvalidValueError:
        # The rule was written by another version, or by hand.
        return 0
    return sum(bool(compiled.matches_decision(case)) for case in cases)
