"""The list of pending proposals in `interlock topic join`. No I/O.

Proposals are grouped by proposer, and a proposer with many of them gets no more space than others.
A proposal keeps its number while it is pending.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace


class PendingProposal(msgspec.Struct, frozen=True):
    """A pending proposal."""

    id: str
    proposer: str
    target: str
    what: str
    """The call, such as `tools/call write_file`."""
    params: bytes
    mine: bool = False
    """True for one's own proposal, which one cannot fulfil."""
    barred: str = ""
    """Why the user cannot fulfil it. Empty: the user can."""
    said: str = ""
    """The last remark of a recipient, with its name."""
    number: int = 0

    def is_same(self, other: PendingProposal | None) -> bool:
        """Return whether the other is the same proposal, apart from remarks."""
        return other is not None and self._asked_for() == other._asked_for()

    def _asked_for(self) -> tuple[object, ...]:
        return self.id, self.proposer, self.target, self.what, self.params, self.mine


class HiddenProposals(msgspec.Struct, frozen=True):
    """Proposals of one proposer that are not listed for lack of space."""

    proposer: str
    count: int


def arrange_proposals(
    before: Iterable[PendingProposal], now: Iterable[PendingProposal], last: int
) -> tuple[PendingProposal, ...]:
    """Group proposals by proposer, oldest first, and number them.

    Known proposals keep their numbers. New ones get numbers after `last`, so that a key for a
    proposal that is gone never selects another.
    """
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


def fold_proposals(
    waiting: Sequence[PendingProposal], chosen: str, most: int
) -> list[PendingProposal | HiddenProposals]:
    """Return at most `most` rows: the selected proposal, the oldest of each proposer, and the
    numbers of hidden ones."""
    if len(waiting) <= most:
        return list(waiting)
    groups = _group_by_proposer(waiting)
    rows: list[PendingProposal | HiddenProposals] = []
    for of_each in range(most, 0, -1):
        rows = [row for group in groups for row in _shorten_group(group, chosen, of_each)]
        if len(rows) <= most:
            return rows
    place = next((at for at, one in enumerate(rows) if _is_selected(one, chosen)), 0)
    # Show one more than the selected one, as a sign that the list continues.
    first = max(0, min(place - most + 2, len(rows) - most)) if most > 1 else place
    return rows[first : first + most]


def _shorten_group(
    group: list[PendingProposal], chosen: str, most: int
) -> Iterable[PendingProposal | HiddenProposals]:
    """Return the oldest proposals of one proposer, the selected one, and the numbers of hidden
    ones."""
    place = next((at for at, one in enumerate(group) if one.id == chosen), 0)
    if place < most:
        return [*group[:most], *_make_hidden_rows(group[most:])]
    between, behind = group[most:place], group[place + 1 :]
    return [*group[:most], *_make_hidden_rows(between), group[place], *_make_hidden_rows(behind)]


def _is_selected(row: PendingProposal | HiddenProposals, chosen: str) -> bool:
    return isinstance(row, PendingProposal) and row.id == chosen


def find_same_proposer(waiting: Iterable[PendingProposal], one: PendingProposal) -> tuple[str, ...]:
    """Return the ids of all proposals of the same proposer."""
    return tuple(other.id for other in waiting if other.proposer == one.proposer)


def find_neighbor_group(waiting: Sequence[PendingProposal], chosen: str, step: int) -> str:
    """Return the first proposal of the next or previous proposer."""
    groups = _group_by_proposer(waiting)
    place = next((at for at, group in enumerate(groups) if _contains(group, chosen)), 0 - step)
    return groups[max(0, min(place + step, len(groups) - 1))][0].id


def _contains(group: Iterable[PendingProposal], id: str) -> bool:
    return any(one.id == id for one in group)


def _group_by_proposer(waiting: Iterable[PendingProposal]) -> Sequence[list[PendingProposal]]:
    groups: dict[str, list[PendingProposal]] = {}
    for one in waiting:
        groups.setdefault(one.proposer, []).append(one)
    return list(groups.values())


def _make_hidden_rows(hidden: list[PendingProposal]) -> list[PendingProposal | HiddenProposals]:
    # A row "1 more" needs as much space as the proposal itself.
    return [HiddenProposals(hidden[0].proposer, len(hidden))] if len(hidden) > 1 else list(hidden)
