"""In which order drivers are taken that could all serve a call: phase 5.

The contract's default, then the cheaper, then the nearer kind, then who was last seen healthy, then
the name. Prices are compared within one currency. A driver that has no such price comes behind all
that have one, by its cost class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from interlock.catalog.drivers.candidates import Candidate
from interlock.catalog.drivers.limits import effective_cost
from interlock.manifests.driver import Cost
from interlock.manifests.tool import ToolContract

KINDS: Final = ("builtin", "sdk", "http", "mcp", "cli")
"""From the nearest to the farthest."""
COST_CLASSES: Final = ("trivial", "metered", "expensive")
CURRENCY: Final = "USD"
"""What a price without a currency is in: units are millicents."""

_KIND: Final = {kind: place for place, kind in enumerate(KINDS)}
_CLASS: Final = {word: place for place, word in enumerate(COST_CLASSES)}


def ranked(contract: ToolContract, candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates, the best first."""
    found = list(candidates)
    costs = [effective_cost(contract, one.driver, one.entry) for one in found]
    currency = _common_currency(costs)
    keys = [_key(contract, one, cost, currency) for one, cost in zip(found, costs, strict=True)]
    order = sorted(range(len(found)), key=lambda place: keys[place])
    return [found[place] for place in order]


def _key(
    contract: ToolContract, candidate: Candidate, cost: Cost, currency: str
) -> tuple[Any, ...]:
    driver, passed = candidate.driver, candidate.standing.health_passed_at
    price = _comparable(cost, currency)
    return (
        contract.default_implementation not in (driver.id, driver.key),
        price is None,
        _CLASS[cost.cost_class or "trivial"] if price is None else price,
        _KIND[driver.kind],
        passed is None,
        0.0 if passed is None else -passed,
        driver.id,
        # Two majors of one driver: the newer one.
        -driver.major,
        driver.version,
        candidate.entry.line,
    )


def _comparable(cost: Cost, currency: str) -> float | None:
    """A price that can be compared with the others. What is free is free in every currency."""
    units = cost.units_per_call
    if units is None or (units and _currency(cost) != currency):
        return None
    return units


def _common_currency(costs: list[Cost]) -> str:
    """The one that most prices are in."""
    used = Counter(_currency(cost) for cost in costs if cost.units_per_call)
    return min(used, key=lambda one: (-used[one], one), default=CURRENCY)


def _currency(cost: Cost) -> str:
    return cost.currency.upper() or CURRENCY
