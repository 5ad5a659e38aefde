"""Decision steps as features install them, with what a test wants them to decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interlock.core.call import Call
from interlock.trust.authorization import EVERYTHING, HELD, IN_VIEW, PLAIN, Decide, DecisionStep
from interlock.trust.policy import Decision


def unchanged(call: Call, decision: Decision) -> Decision:
    return decision


def pins_step(decide: Decide, held: Mapping[Any, object]) -> DecisionStep:
    return DecisionStep("pins", decide, when=held, previewed=True)


def learned_step(decide: Decide | None) -> DecisionStep:
    """None: nothing was learned."""
    return DecisionStep("learned", decide or unchanged, when=decide is not None, applies_to=HELD)


def danger_step(decide: Decide, *, everywhere: bool = False) -> DecisionStep:
    applies_to = PLAIN if everywhere else HELD | IN_VIEW
    return DecisionStep("danger", decide, applies_to=applies_to, previewed=True)


def safety_step(decide: Decide, watched: Mapping[Any, object]) -> DecisionStep:
    return DecisionStep("safety_loop", decide, when=watched, applies_to=EVERYTHING)
