"""The proposals that wait, as `interlock topic join` lists them. Pure.

Those of one proposer stand together, and whoever proposes much takes no more room than others do. A
proposal keeps its number for as long as it waits, whatever comes and goes around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace


class PendingProposal(msgspec.Struct, frozen=True):
    """A proposal that waits."""

    id: str
    proposer: str
    target: str
    what: str
    """`tools/call write_file`"""
    params: bytes
    mine: bool = False
    """Whether it is one's own: nobody fulfils those."""
    barred: str = ""
    """Why it cannot be fulfilled by oneself. Empty: it can."""
    said: str = ""
    """The last that was said about it by whom it is for, and who that is."""
    number: int = 0

    def is_same(self, other: PendingProposal | None) -> bool:
        """Whether the other asks for the very same, whatever is said about it."""
        return other is not None and self._asked_for() == other._asked_for()

    def _asked_for(self) -> tuple[object, ...]:
        return self.id, self.proposer, self.target, self.what, self.params, self.mine


class HiddenProposals(msgspec.Struct, frozen=True):
    """Proposals of one proposer for which there is no room."""

    proposer: str
    count: int


def arranged(
    before: Iterable[PendingProposal], now: Iterable[PendingProposal], last: int
) -> tuple[PendingProposal, ...]:
    """Those of one proposer together, the oldest first. Who waited before keeps its number, and who
    comes gets the next after `last`: no key for one that has gone is about another."""
    known = {one.id: one for one in before}
    groups: dict[str, list[PendingProposal]] = {}
    for one in now:
        older = known.get(one.id)
        if older is not None and older.number and one.is_same(older):
            number = older.number
        else:
            number = last = last + 1
        numbered = one if one.number == number else replace(one, number=number)
        groups.setdefault(one.proposer, []).append(numbered)
    return tuple(one for group in groups.values() for one in group)


def folded(
    waiting: Sequence[PendingProposal], chosen: str, most: int
) -> list[PendingProposal | HiddenProposals]:
    """What is listed of them in so many rows: the chosen one always, then the oldest of each
    proposer, and how many there are beside them."""
    if len(waiting) <= most:
        return list(waiting)
    groups = _groups(waiting)
    rows: list[PendingProposal | HiddenProposals] = []
    for of_each in range(most, 0, -1):
        rows = [row for group in groups for row in _shortened(group, chosen, of_each)]
        if len(rows) <= most:
            return rows
    place = next((at for at, one in enumerate(rows) if _is(one, chosen)), 0)
    # One more than the chosen one, to see that the list goes on.
    first = max(0, min(place - most + 2, len(rows) - most)) if most > 1 else place
    return rows[first : first + most]


def _shortened(
    group: list[PendingProposal], chosen: str, most: int
) -> Iterable[PendingProposal | HiddenProposals]:
    """The oldest of a proposer, the chosen one, and how many there are between and behind them."""
    place = next((at for at, one in enumerate(group) if one.id == chosen), 0)
    if place < most:
        return [*group[:most], *_as_rows(group[most:])]
    between, behind = group[most:place], group[place + 1 :]
    return [*group[:most], *_as_rows(between), group[place], *_as_rows(behind)]


def _is(row: PendingProposal | HiddenProposals, chosen: str) -> bool:
    return isinstance(row, PendingProposal) and row.id == chosen


def of_same(waiting: Iterable[PendingProposal], one: PendingProposal) -> tuple[str, ...]:
    """The ids of all that the proposer of this one has proposed."""
    return tuple(other.id for other in waiting if other.proposer == one.proposer)


def beside(waiting: Sequence[PendingProposal], chosen: str, step: int) -> str:
    """The first proposal of the next proposer, or of the one before."""
    groups = _groups(waiting)
    place = next((at for at, group in enumerate(groups) if _has(group, chosen)), 0 - step)
    return groups[max(0, min(place + step, len(groups) - 1))][0].id


def _has(group: Iterable[PendingProposal], id: str) -> bool:
    return any(one.id == id for one in group)


def _groups(waiting: Iterable[PendingProposal]) -> Sequence[list[PendingProposal]]:
    groups: dict[str, list[PendingProposal]] = {}
    for one in waiting:
        groups.setdefault(one.proposer, []).append(one)
    return list(groups.values())


def _as_rows(hidden: list[PendingProposal]) -> list[PendingProposal | HiddenProposals]:
    # A row that says "1 more" takes as much room as that one.
    return [HiddenProposals(hidden[0].proposer, len(hidden))] if len(hidden) > 1 else list(hidden)
