"""Which of the operations that were found are shown to a model before it asks: those that fit well
enough, and no more than there is room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from interlock.aql.operations import Operation
from interlock.aql.search.searcher import Hit

_BYTES_PER_TOKEN = 4


def tokens_of(operation: Operation) -> int:
    """About what an operation's tool costs a model that is shown it."""
    tool = operation.tool
    return -(-(len(tool.upstream_name) + len(tool.listed)) // _BYTES_PER_TOKEN)


def prefill(
    hits: Iterable[Hit],
    threshold: float,
    budget: int,
    cost: Callable[[Operation], int] = tokens_of,
) -> list[Hit]:
    """The hits whose score reaches the threshold and that together cost no more than the budget.

    A hit that is too dear is passed over: a later one may still have room.
    """
    chosen = []
    for hit in hits:
        price = cost(hit.operation)
        if hit.score >= threshold and price <= budget:
            chosen.append(hit)
            budget -= price
    return chosen
