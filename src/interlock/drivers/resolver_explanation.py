"""Why a contract goes to the driver it goes to: for a person, line by line, and for the journal."""

from __future__ import annotations

from typing import Any, Final

from interlock.drivers.resolver import Candidate, Decision
from interlock.manifests.model import Cost
from interlock.primitives.timestamps import format_utc_ms

RESOLVED: Final = "driver.resolved"
PHASES: Final = {
    1: "implements it",
    2: "able to serve it",
    3: "allowed to serve it",
    4: "pinned",
}


def explain(decision: Decision) -> list[str]:
    """The decision, phase by phase, then the order of those that are left."""
    lines = [_title(decision)]
    left = decision.total
    step = 0
    for phase, word in PHASES.items():
        if phase == 4 and decision.pinned is None:
            continue
        step += 1
        out = [one for one in decision.rejected if one.phase == phase]
        left -= len(out)
        shown = f"{word} ({decision.pinned})" if phase == 4 else word
        lines.append(f"  {step}. {shown}: {left} of {left + len(out)}")
        lines += [f"       not {one.driver}: {one.reason}" for one in out]
    if decision.order:
        lines.append(f"  {step + 1}. in this order:")
        lines += [f"       {place}. {_shown(one)}" for place, one in enumerate(decision.order, 1)]
    if decision.failure is not None:
        lines.append(f"  {decision.failure.name}: {_ending(decision)}")
    else:
        lines.append(f"  {decision.message}")
    return lines


def _ending(decision: Decision) -> str:
    """Why nobody is left; what was told of single drivers is not told again."""
    reasons = [one.reason.removesuffix(".") for one in decision.rejected]
    if decision.pinned is None and any(reason in decision.message for reason in reasons):
        return f"no driver can serve {decision.contract} now."
    return decision.message


def resolved_row(
    decision: Decision,
    *,
    user_id: str,
    workspace_id: str,
    at: float,
) -> dict[str, Any]:
    """The audit row of AIP-30 that tells how a driver was chosen. `at`: the wall clock."""
    selected = decision.selected
    return {
        "type": RESOLVED,
        "tool_id": decision.contract,
        "tool_version": decision.version,
        "user_id": user_id,
        "workspace_id": workspace_id,
        "candidates_total": decision.total,
        "candidates_passed_phase_2_capability": decision.passed_capability,
        "candidates_passed_phase_3_policy": decision.passed_policy,
        "pinned_provider": decision.pinned,
        "rejected": [
            {"provider_id": one.driver, "phase": one.phase, "reason": one.reason}
            for one in decision.rejected
        ],
        "selected": None
        if selected is None
        else {
            "provider_id": selected.driver.key,
            "kind": selected.driver.kind,
            "cost_units_per_call": _own_cost(selected).units_per_call,
        },
        "ts": format_utc_ms(at),
    }


def _title(decision: Decision) -> str:
    version = f" {decision.version}" if decision.version else ""
    drivers = "1 driver declares" if decision.total == 1 else f"{decision.total} drivers declare"
    return f"{decision.contract}{version}: {drivers if decision.total else 'no driver declares'} it"


def _own_cost(candidate: Candidate) -> Cost:
    """What the driver itself says that a call costs."""
    own, general = candidate.entry.cost or Cost(), candidate.driver.cost or Cost()
    priced = own if own.units_per_call is not None else general
    return Cost(own.cost_class or general.cost_class, priced.units_per_call, priced.currency)


def _shown(candidate: Candidate) -> str:
    driver, cost = candidate.driver, _own_cost(candidate)
    words: list[str] = [driver.kind]
    if cost.units_per_call is not None:
        words.append(f"{cost.units_per_call:g} {cost.currency or 'millicents'} a call")
    elif cost.cost_class is not None:
        words.append(cost.cost_class)
    return f"{driver.key} ({', '.join(words)})"
