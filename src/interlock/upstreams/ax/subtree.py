"""Which aggregators may be below this one: none that is above it, and not too many.

What a child says of its subtree goes up to the parent, and from there to the root. Somebody above
that finds itself in it would end the registration of this whole node: so a child is refused here
that names one of those who are known to be above.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from interlock.errors import CYCLE_DETECTED, INVALID_PARAMS, InterlockError, ProtocolError
from interlock.protocol import ax

if TYPE_CHECKING:
    from interlock.upstreams.ax.records import Record


def refuse_cycle(ids: Iterable[str], own: str, above: Collection[str]) -> None:
    """Raises InterlockError when this aggregator, or one above it, is among them."""
    for one in ids:
        if one == own:
            raise InterlockError(
                CYCLE_DETECTED,
                "This node is below the one that registers: it cannot be above it too.",
                {"aggregator_id": own},
            )
        if one in above:
            raise InterlockError(
                CYCLE_DETECTED,
                "A node above this one is said to be below the one that registers: it cannot be "
                "both.",
                {"aggregator_id": one},
            )


def refuse_crowd(ids: Iterable[str], others: Iterable[str]) -> None:
    """Raises InterlockError when with these and the others too many are below this aggregator."""
    below = {*ids, *others}
    if len(below) > ax.MOST_SUBTREE_IDS:
        raise ProtocolError(
            f"Too many nodes below: with these there would be {len(below)}, and no more than "
            f"{ax.MOST_SUBTREE_IDS} can be told of. Register some of them elsewhere.",
            INVALID_PARAMS,
            {"field": ax.SUBTREE_IDS},
        )


def bringers(
    records: Iterable[Record], ids: Collection[str] | None
) -> Iterator[tuple[Record, InterlockError]]:
    """Those through whom these aggregators are below, or without any ids the one who brings the
    most; each with why it has to go."""
    live = [one for one in records if one.session is not None and one.info.subtree_ids]
    if ids is None:
        if live:
            crowd = ProtocolError(
                "Too many nodes below: the parent of this node takes no more.",
                INVALID_PARAMS,
                {"field": ax.SUBTREE_IDS},
            )
            yield max(live, key=lambda one: len(one.info.subtree_ids)), crowd
        return
    for record in live:
        found = set(ids).intersection(record.info.subtree_ids)
        if found:
            yield (
                record,
                InterlockError(
                    CYCLE_DETECTED,
                    "A node above this one is below it too, through this one.",
                    {"aggregator_id": min(found)},
                ),
            )
