"""The replay of a rule over all stored decisions: what it would have decided."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from interlock.automation.decision import HumanDecision
from interlock.automation.rule import CompiledRule, read_case
from interlock.core.config import LearnedRule
from interlock.trust.approvals.proofs import APPROVE, REFUSE

MOST_EXAMPLES: Final = 10
VERDICTS: Final = {"allow": APPROVE, "deny": REFUSE}
"""By what a rule does, what a human would have said."""


class ReplayResult(msgspec.Struct, frozen=True):
    """What a rule would have decided. `same`, `other` and `unjudged` add up to `covered`."""

    covered: int
    """Decisions that it would have taken over, or may have."""
    same: int
    other: int
    unjudged: int
    """Those of which too little is kept to say. In life such a call is looked at whole."""
    examples: tuple[HumanDecision, ...] = ()
    """What humans decided otherwise, the newest first."""

    @property
    def words(self) -> str:
        """`would have decided 214 of 216 the same`."""
        judged = self.same + self.other
        if not self.covered:
            return "would have decided nothing: no decision that is remembered is about this"
        said = f"would have decided {self.same} of {judged} the same"
        if self.unjudged:
            said += f"; of {self.unjudged} more too little is kept to say"
        return said


def replay(rule: LearnedRule, history: Iterable[HumanDecision]) -> ReplayResult:
    """Raises BadValue for a condition that is none."""
    compiled = CompiledRule(rule)
    verdict = VERDICTS[rule.then]
    same = unjudged = 0
    other: list[HumanDecision] = []
    seen: set[str] = set()
    for one in history:
        if one.approval in seen:
            continue
        seen.add(one.approval)
        covers = compiled.covers(read_case(one))
        if covers is None:
            unjudged += 1
        elif covers and one.verdict == verdict:
            same += 1
        elif covers:
            other.append(one)
    other.sort(key=lambda one: -one.time)
    return ReplayResult(
        same + len(other) + unjudged, same, len(other), unjudged, tuple(other[:MOST_EXAMPLES])
    )
