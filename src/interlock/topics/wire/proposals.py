"""What became of proposals, as a participant keeps it (section 10.2 of MCPx).

Nothing of this is ever sent: the draft has no messages for it. A proposal is fulfilled when the
same call is seen as a request that names it; whoever changes its arguments is noted, and a request
for something else fulfils nothing. `may_settle` says whose answer is its outcome. The memory is
bounded, and whoever fills it pushes out only what is its own.

Pure: the time is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

import msgspec
from msgspec import Raw

from interlock.errors import ProtocolError
from interlock.protocol.jsonrpc import decode_value
from interlock.topics.wire.envelope import EnvelopeHeader
from interlock.topics.wire.payloads import ProposalPayload, Request

LIFETIME: Final = 300.0
"""Seconds in which a proposal is waited for."""
MOST: Final = 1_024
MOST_BYTES: Final = 16 * 1024 * 1024

_LONGEST_NOTE: Final = 1_000

Status = Literal["pending", "fulfilled", "rejected", "expired"]
Move = Literal["fulfil", "reject", "expire", "withdraw"]

MOVES: Final[dict[tuple[Status, Move], Status]] = {
    ("pending", "fulfil"): "fulfilled",
    ("pending", "reject"): "rejected",
    ("pending", "expire"): "expired",
    # Somebody else may have another clock and another opinion: what was seen was seen.
    ("rejected", "fulfil"): "fulfilled",
    ("expired", "fulfil"): "fulfilled",
    ("fulfilled", "fulfil"): "fulfilled",
    # Whoever was asked says that it was not made, and that somebody else decides.
    ("fulfilled", "withdraw"): "pending",
}
"""Everything that can happen to a proposal. What does not stand here changes nothing."""


class TrackedProposal(msgspec.Struct, frozen=True):
    """A proposal, with the members that the draft's sample has, and what became of it."""

    proposalId: str
    proposer: str
    target: str
    """The first that it was addressed to; empty: everybody."""
    method: str
    params: Raw
    status: Status
    createdAt: str
    expiresAt: str
    to: tuple[str, ...] = ()
    context: str = ""
    expires: float = 0.0
    fulfilled_by: str = ""
    fulfilments: tuple[str, ...] = ()
    """The ids of the requests that fulfilled it, the first of them first."""
    changed: tuple[str, ...] = ()
    """Those of them that had other arguments."""
    note: str = ""
    """What somebody should know: a second fulfilment, other arguments, the reason of a refusal."""


class Proposals:
    """The proposals of one topic, the oldest first."""

    def __init__(
        self,
        seconds: float = LIFETIME,
        *,
        stamp: Callable[[float], str],
        most: int = MOST,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """`stamp` writes a time down."""
        self._seconds = seconds
        self._stamp = stamp
        self._most = most
        self._most_bytes = most_bytes
        self._kept: dict[str, TrackedProposal] = {}
        self._weights: Counter[str] = Counter()
        """By proposer."""

    @property
    def all(self) -> Mapping[str, TrackedProposal]:
        """By id. It changes as they do."""
        return self._kept

    def get(self, id: str | None) -> TrackedProposal | None:
        return self._kept.get(id) if id is not None else None

    def record(
        self, head: EnvelopeHeader, proposal: ProposalPayload, now: float
    ) -> TrackedProposal:
        """A proposal came by, or was made. One of an id that is known is in the place of the older
        one: whoever hears it sees to it that this is not somebody else's."""
        older = self._kept.pop(head.id, None)
        if older is not None:
            self._lighten(older)
        tracked = TrackedProposal(
            proposalId=head.id,
            proposer=head.sender,
            target=head.to[0] if head.to else "",
            method=proposal.method,
            params=Raw(bytes(proposal.params)),
            status="pending",
            createdAt=self._stamp(now),
            expiresAt=self._stamp(now + self._seconds),
            to=head.to,
            context=proposal.context,
            expires=now + self._seconds,
        )
        self._kept[head.id] = tracked
        self._weights[head.sender] += _weight(tracked)
        while len(self._kept) > self._most or self._weights.total() > self._most_bytes:
            self._forget_one()
        return tracked

    def fulfilled(self, head: EnvelopeHeader, request: Request) -> TrackedProposal | None:
        """A request that names a proposal came by, or is about to be made. The proposal, where
        that fulfils it; None: it does not."""
        tracked = self.get(head.correlation_id)
        if tracked is None:
            return None
        why_not = _why_not(tracked, head, request)
        if why_not:
            self._change(tracked, note=why_not)
            return None
        # What was said while it waited is over; what was wrong with a fulfilment is not.
        notes = [tracked.note] if tracked.status == "fulfilled" and tracked.note else []
        changed = tracked.changed
        if not same(tracked.params, request.params):
            notes.append(f"{head.sender} changed the arguments")
            changed = (*changed, head.id)[:100]
        if tracked.status == "fulfilled":
            notes.append(f"{head.sender} fulfilled it once more")
        elif tracked.status != "pending":
            notes.append(f"{head.sender} fulfilled it after it was {tracked.status} here")
        return self._change(
            tracked,
            status=MOVES[tracked.status, "fulfil"],
            fulfilled_by=tracked.fulfilled_by or head.sender,
            fulfilments=(*tracked.fulfilments, head.id)[:100],
            changed=changed,
            note="; ".join(notes)[:_LONGEST_NOTE],
        )

    def withdrawn(self, id: str, fulfilment: str) -> None:
        """The request that fulfilled it was answered, and not made: somebody else decides. One that
        nothing else fulfilled waits again."""
        tracked = self.get(id)
        if tracked is None or fulfilment not in tracked.fulfilments:
            return
        left = tuple(one for one in tracked.fulfilments if one != fulfilment)
        changed = tuple(one for one in tracked.changed if one != fulfilment)
        if left:
            self._change(tracked, fulfilments=left, changed=changed)
        else:
            status = MOVES[tracked.status, "withdraw"]
            self._change(
                tracked, status=status, fulfilled_by="", fulfilments=(), changed=(), note=""
            )

    def reject(self, id: str, reason: str = "") -> TrackedProposal | None:
        """It is not wanted here. None: it is not pending, or unknown."""
        tracked = self.get(id)
        status = None if tracked is None else MOVES.get((tracked.status, "reject"))
        if tracked is None or status is None:
            return None
        return self._change(tracked, status=status, note=reason)

    def remark(self, id: str, note: str) -> None:
        """Somebody said something about it. What was wrong with a fulfilment stays."""
        tracked = self.get(id)
        if tracked is not None and not (tracked.status == "fulfilled" and tracked.note):
            self._change(tracked, note=note)

    def expire(self, now: float) -> list[TrackedProposal]:
        """Those whose time is over now."""
        due = [one for one in self._kept.values() if one.expires <= now]
        return [
            self._change(one, status=status)
            for one in due
            if (status := MOVES.get((one.status, "expire"))) is not None
        ]

    def _change(self, tracked: TrackedProposal, **members: object) -> TrackedProposal:
        changed: TrackedProposal = msgspec.structs.replace(tracked, **members)
        self._kept[tracked.proposalId] = changed
        return changed

    def _forget_one(self) -> None:
        """The oldest of whoever has taken the most room."""
        heaviest = max(self._weights, key=self._weights.__getitem__)
        oldest = next(self._of(heaviest))
        del self._kept[oldest.proposalId]
        self._lighten(oldest)

    def _lighten(self, gone: TrackedProposal) -> None:
        self._weights[gone.proposer] -= _weight(gone)
        if self._weights[gone.proposer] <= 0:
            del self._weights[gone.proposer]

    def _of(self, proposer: str) -> Iterator[TrackedProposal]:
        return (one for one in self._kept.values() if one.proposer == proposer)


def same(one: Raw | bytes, other: Raw | bytes) -> bool:
    """Whether two params ask for the same. `_meta` is about a message, not about what is asked."""
    if bytes(one) == bytes(other):
        return True
    try:
        ours, theirs = decode_value(one), decode_value(other)
    except ProtocolError:
        return False
    for params in (ours, theirs):
        if isinstance(params, dict):
            params.pop("_meta", None)
    return _equal(ours, theirs)


def _equal(one: object, other: object) -> bool:
    """Equal as JSON: to Python 1, 1.0 and true are the same. Without recursion: it may be deep."""
    pairs = [(one, other)]
    while pairs:
        one, other = pairs.pop()
        if isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                return False
            pairs.extend((one[name], other[name]) for name in one)
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            pairs.extend(zip(one, other, strict=True))
        elif type(one) is not type(other) or one != other:
            return False
    return True


def may_settle(to: tuple[str, ...], asked_by: str, answered_by: str) -> bool:
    """Whether the answer to a fulfilment is the outcome of the proposal: it comes from somebody
    whom the proposer meant, or from whoever such a one asked. Otherwise anybody who may ask and
    answer could make an outcome up. `to`: whom it was proposed to; nobody: anybody will do."""
    return not to or answered_by in to or asked_by in to


def _why_not(tracked: TrackedProposal, head: EnvelopeHeader, request: Request) -> str:
    if (request.method, request.context) != (tracked.method, tracked.context):
        return f"{head.sender} named it in a request for something else"
    elsewhere = not set(head.to) & set(tracked.to)
    if tracked.to and elsewhere and head.sender not in tracked.to:
        return f"{head.sender} asked somebody for it whom the proposer did not mean"
    return ""


def _weight(tracked: TrackedProposal) -> int:
    texts = (tracked.proposalId, tracked.proposer, tracked.context, *tracked.to)
    return 400 + len(bytes(tracked.params)) + sum(map(len, texts))
