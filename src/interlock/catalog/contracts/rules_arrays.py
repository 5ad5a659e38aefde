"""What has to be shown for words about arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from interlock.catalog.contracts.documents import Node
from interlock.catalog.contracts.evaluated import least_evaluated
from interlock.catalog.contracts.facts import UNBOUNDED, Facts
from interlock.catalog.contracts.given import Given
from interlock.catalog.contracts.meanings import ARRAY

if TYPE_CHECKING:
    from interlock.catalog.contracts.containment import Prover


def _min_items(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    return not facts.kinds & ARRAY or facts.min_items >= wanted.words["minItems"]


def _max_items(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    return not facts.kinds & ARRAY or facts.max_items <= wanted.words["maxItems"]


def _unique(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    if not facts.kinds & ARRAY or not wanted.words["uniqueItems"] or facts.max_items <= 1:
        return True
    return any(node.words["uniqueItems"] for node in facts.having("uniqueItems"))


def _prefix(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    if not facts.kinds & ARRAY:
        return True
    return all(
        facts.max_items <= at
        or prover.contained(prover.inside(given, facts.item(at)), item, level + 1)
        for at, item in enumerate(wanted.listed("prefixItems"))
    )


def _items(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    start = len(wanted.words.get("prefixItems", ()))
    return _from(start, wanted.one("items"), prover, given, facts, level)


def _unevaluated(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    start = least_evaluated(wanted).items
    if "items" in wanted.words or start is None:
        return True
    return _from(start, wanted.one("unevaluatedItems"), prover, given, facts, level)


def _from(start: int, wanted: Node, prover: Prover, given: Given, facts: Facts, level: int) -> bool:
    """Whether all items from a position on are instances."""
    if not facts.kinds & ARRAY:
        return True
    return all(
        facts.max_items <= at
        or prover.contained(prover.inside(given, facts.item(at)), wanted, level + 1)
        for at in range(start, max(start, facts.prefix) + 1)
    )


def _contains(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    if not facts.kinds & ARRAY:
        return True
    sought = wanted.one("contains")
    least = wanted.words.get("minContains", 1)
    most = wanted.words.get("maxContains", UNBOUNDED)
    return _enough(prover, given, facts, sought, least, level) and _few(
        prover, given, facts, sought, most, level
    )


def _enough(
    prover: Prover, given: Given, facts: Facts, sought: Node, least: float, level: int
) -> bool:
    if least == 0:
        return True
    for node in facts.having("contains"):
        if node.words.get("minContains", 1) >= least and prover.contained(
            prover.inside(given, [node.one("contains")]), sought, level + 1
        ):
            return True
    # Or there are enough items, and every one of them is what is sought.
    return facts.min_items >= least and _from(0, sought, prover, given, facts, level)


def _few(prover: Prover, given: Given, facts: Facts, sought: Node, most: float, level: int) -> bool:
    if facts.max_items <= most:
        return True
    return any(
        node.words.get("maxContains", UNBOUNDED) <= most
        and prover.contained(Given((sought,)), node.one("contains"), level + 1)
        for node in facts.having("contains")
    )


ARRAYS: Final = {
    "minItems": _min_items,
    "maxItems": _max_items,
    "uniqueItems": _unique,
    "prefixItems": _prefix,
    "items": _items,
    "unevaluatedItems": _unevaluated,
    "contains": _contains,
}
