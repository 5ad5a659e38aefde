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
    call: str
    """The call, such as `tools/call write_file`."""
    params: bytes
    is_own: bool = False
    """True for one's own proposal, which one cannot fulfil."""
    blocked_reason: str = ""
    """Why the user cannot fulfil it. Empty: the user can."""
    remark: str = ""
    """The last remark of a recipient, with its name."""
    number: int = 0

    def is_same(self, other: PendingProposal | None) -> bool:
        """Return whether the other is the same proposal, apart from remarks."""
        return other is not None and self._comparison_key() == other._comparison_key()

    def _comparison_key(self) -> tuple[object, ...]:
        return self.id, self.proposer, self.target, self.call, self.params, self.is_own


class HiddenProposals(msgspec.Struct, frozen=True):
    """Proposals of one proposer that are not listed for lack of space."""

    proposer: str
    count: int


def arrange_proposals(
    listed: Iterable[PendingProposal], pending: Iterable[PendingProposal], last_number: int
) -> tuple[PendingProposal, ...]:
    """Group proposals by proposer, oldest first, and number them.

    Known proposals keep their numbers. New ones get numbers after `last_number`, so that a key
    for a proposal that is gone never selects another.
    """
    previous = {proposal.id: proposal for proposal in listed}
    groups: dict[str, list[PendingProposal]] = {}
    for proposal in pending:
        previous_proposal = previous.get(proposal.id)
        if (
            previous_proposal is not None
            and previous_proposal.number
            and proposal.is_same(previous_proposal)
        ):
            number = previous_proposal.number
        else:
            number = last_number = last_number + 1
        numbered = proposal if proposal.number == number else replace(proposal, number=number)
        groups.setdefault(proposal.proposer, []).append(numbered)
    return tuple(proposal for group in groups.values() for proposal in group)


def fold_proposals(
    pending: Sequence[PendingProposal], selected_id: str, max_rows: int
) -> list[PendingProposal | HiddenProposals]:
    """Return at most `max_rows` rows: the selected proposal, the oldest of each proposer, and the
    numbers of hidden ones."""
    if len(pending) <= max_rows:
        return list(pending)
    groups = _group_by_proposer(pending)
    rows: list[PendingProposal | HiddenProposals] = []
    for rows_per_group in range(max_rows, 0, -1):
        rows = [
            row for group in groups for row in _shorten_group(group, selected_id, rows_per_group)
        ]
        if len(rows) <= max_rows:
            return rows
    index = next(
        (position for position, row in enumerate(rows) if _is_selected(row, selected_id)), 0
    )
    # Show one more than the selected one, as a sign that the list continues.
    first = max(0, min(index - max_rows + 2, len(rows) - max_rows)) if max_rows > 1 else index
    return rows[first : first + max_rows]


def _shorten_group(
    group: list[PendingProposal], selected_id: str, max_rows: int
) -> Iterable[PendingProposal | HiddenProposals]:
    """Return the oldest proposals of one proposer, the selected one, and the numbers of hidden
    ones."""
    index = next(
        (position for position, proposal in enumerate(group) if proposal.id == selected_id), 0
    )
    if index < max_rows:
        return [*group[:max_rows], *_make_hidden_rows(group[max_rows:])]
    between, behind = group[max_rows:index], group[index + 1 :]
    return [
        *group[:max_rows],
        *_make_hidden_rows(between),
        group[index],
        *_make_hidden_rows(behind),
    ]


def _is_selected(row: PendingProposal | HiddenProposals, selected_id: str) -> bool:
    return isinstance(row, PendingProposal) and row.id == selected_id


def find_same_proposer(
    pending: Iterable[PendingProposal], proposal: PendingProposal
) -> tuple[str, ...]:
    """Return the ids of all proposals of the same proposer."""
    return tuple(other.id for other in pending if other.proposer == proposal.proposer)


def find_neighbor_group(pending: Sequence[PendingProposal], selected_id: str, step: int) -> str:
    """Return the first proposal of the next or previous proposer."""
    groups = _group_by_proposer(pending)
    index = next(
        (position for position, group in enumerate(groups) if _contains(group, selected_id)),
        0 - step,
    )
    return groups[max(0, min(index + step, len(groups) - 1))][0].id


def _contains(group: Iterable[PendingProposal], id: str) -> bool:
    return any(proposal.id == id for proposal in group)


def _group_by_proposer(pending: Iterable[PendingProposal]) -> Sequence[list[PendingProposal]]:
    groups: dict[str, list[PendingProposal]] = {}
    for proposal in pending:
        groups.setdefault(proposal.proposer, []).append(proposal)
    return list(groups.values())


def _make_hidden_rows(hidden: list[PendingProposal]) -> list[PendingProposal | HiddenProposals]:
    # A row "1 more" needs as much space as the proposal itself.
    return [HiddenProposals(hidden[0].proposer, len(hidden))] if len(hidden) > 1 else list(hidden)
