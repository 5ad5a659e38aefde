"""The replay of a rule over all stored decisions: what the rule would have decided."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from interlock.automation.decision import HumanDecision
from interlock.automation.rule import CompiledRule, read_case
from interlock.core.config import LearnedRule
from interlock.trust.approvals.proofs import APPROVE, REFUSE

MAX_EXAMPLES: Final = 10
VERDICTS: Final = {"allow": APPROVE, "deny": REFUSE}
"""The decision of an operator that corresponds to each action of a rule."""


class ReplayResult(msgspec.Struct, frozen=True):
    """The result of a replay. `same`, `other` and `unjudged` add up to `covered`."""

    covered: int
    """Decisions that the rule matches or may match."""
    same: int
    other: int
    unjudged: int
    """Decisions of which too little is stored to judge. A live call has all its arguments."""
    examples: tuple[HumanDecision, ...] = ()
    """Decisions against the rule, newest first."""

    @property
    def summary(self) -> str:
        """A text such as `agrees with 214 of 216 decisions`."""
        judged = self.same + self.other
        if not self.covered:
            return "matches no stored decision"
        text = f"agrees with {self.same} of {judged} decisions"
        if self.unjudged:
            text += f"; {self.unjudged} more cannot be judged from the stored arguments"
        return text


def replay(rule: LearnedRule, history: Iterable[HumanDecision]) -> ReplayResult:
    """Replay a rule. Raises InvalidValueError for an invalid condition."""
    compiled = CompiledRule(rule)
    verdict = VERDICTS[rule.then]
    same = unjudged = 0
    other: list[HumanDecision] = []
    seen: set[str] = set()
    for decision in history:
        if decision.approval in seen:
            continue
        seen.add(decision.approval)
        matches = compiled.matches_decision(read_case(decision))
        if matches is None:
            unjudged += 1
        elif matches and decision.verdict == verdict:
            same += 1
        elif matches:
            other.append(decision)
    other.sort(key=lambda decision: -decision.time)
    return ReplayResult(
        same + len(other) + unjudged, same, len(other), unjudged, tuple(other[:MAX_EXAMPLES])
    )
