"""Dismissals: suggestions that a human rejected, and rules that a human took back. They are
suggested again only after as many new decisions as there were before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from interlock.automation.config import AutomationConfig
from interlock.automation.rule import CompiledRule, DecisionCase
from interlock.core.config import LearnedRule
from interlock.core.config.problems import BadValue


class Dismissal(msgspec.Struct, frozen=True, kw_only=True):
    """A suggestion or a rule that somebody rejected."""

    id: str
    """Of the suggestion."""
    rule: LearnedRule
    by: str
    time: float
    """Seconds on the wall clock."""
    agreed: int
    """Decisions that bore the rule then."""
    reverted: bool = False
    """Whether it was in force, and taken back."""


def dismissal_of(
    id: str,
    rule: LearnedRule,
    agreed: Sequence[DecisionCase],
    dismissed: Iterable[Dismissal],
    settings: AutomationConfig,
) -> Dismissal | None:
    """By what a suggestion is dismissed: itself, or one that was for most of the same decisions.
    `agreed`: the decisions that bear it. None: by nothing."""
    for one in sorted(dismissed, key=lambda one: -one.time):
        if one.rule.then != rule.then:
            continue
        new = sum(case.decided.time > one.time for case in agreed)
        if new >= max(one.agreed, settings.decisions):
            continue
        if one.id == id or 2 * _covered(one.rule, agreed) >= len(agreed):
            return one
    return None


def _covered(rule: LearnedRule, cases: Iterable[DecisionCase]) -> int:
    try:
        compiled = CompiledRule(rule)
    except BadValue:
        # It was written by another version, or by hand.
        return 0
    return sum(bool(compiled.covers(one)) for one in cases)
