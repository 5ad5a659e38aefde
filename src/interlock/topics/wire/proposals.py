"""The states of proposals, as a participant tracks them (MCPx §10.2).

None of this is ever sent: MCPx has no messages for it. A proposal is fulfilled when the same call
is seen as a request that names the proposal. Changed arguments are recorded; a request for another
call does not fulfil it. `is_proposal_outcome` decides whose response is the outcome. The memory is
bounded, and a participant that fills it displaces only its own proposals.

This module does no I/O. Callers pass the time.
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

LIFETIME_SECONDS: Final = 300.0
"""Seconds until a pending proposal expires."""
MAX_PROPOSALS: Final = 1_024
MAX_BYTES: Final = 16 * 1024 * 1024

_MAX_NOTE_LENGTH: Final = 1_000

Status = Literal["pending", "fulfilled", "rejected", "expired"]
Transition = Literal["fulfil", "reject", "expire", "withdraw"]

TRANSITIONS: Final[dict[tuple[Status, Transition], Status]] = {
    ("pending", "fulfil"): "fulfilled",
    ("pending", "reject"): "rejected",
    ("pending", "expire"): "expired",
    # Other participants have other clocks and may decide otherwise. What was seen counts.
    ("rejected", "fulfil"): "fulfilled",
    ("expired", "fulfil"): "fulfilled",
    ("fulfilled", "fulfil"): "fulfilled",
    # The recipient responded that the call was not made and that a person decides elsewhere.
    ("fulfilled", "withdraw"): "pending",
}
"""All state transitions of a proposal. Every other combination changes nothing."""


class TrackedProposal(msgspec.Struct, frozen=True):
    """A proposal and its state. The camelCase members are those of the example in the draft."""

    proposalId: str
    proposer: str
    target: str
    """The first recipient. Empty: everybody."""
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
    """The ids of the requests that fulfilled it, in order."""
    changed: tuple[str, ...] = ()
    """The ids of those requests that had other arguments."""
    note: str = ""
    """A remark for readers: a second fulfilment, other arguments, the reason of a rejection."""


class Proposals:
    """The proposals of one topic, oldest first."""

    def __init__(
        self,
        seconds: float = LIFETIME_SECONDS,
        *,
        stamp: Callable[[float], str],
        most: int = MAX_PROPOSALS,
        most_bytes: int = MAX_BYTES,
    ) -> None:
        """
        Args:
            stamp: formats a time.
        """
        self._seconds = seconds
        self._stamp = stamp
        self._most = most
        self._most_bytes = most_bytes
        self._kept: dict[str, TrackedProposal] = {}
        self._weights: Counter[str] = Counter()
        """Estimated bytes, by proposer."""

    @property
    def all(self) -> Mapping[str, TrackedProposal]:
        """The proposals by id. The mapping changes as they do."""
        return self._kept

    def get(self, id: str | None) -> TrackedProposal | None:
        return self._kept.get(id) if id is not None else None

    def record(
        self, head: EnvelopeHeader, proposal: ProposalPayload, now: float
    ) -> TrackedProposal:
        """Track a proposal that was received or sent.

        It replaces an earlier one with the same id. The caller must make sure that the earlier one
        is not another participant's.
        """
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
        self._weights[head.sender] += _estimate_bytes(tracked)
        while len(self._kept) > self._most or self._weights.total() > self._most_bytes:
            self._forget_one()
        return tracked

    def fulfilled(self, head: EnvelopeHeader, request: Request) -> TrackedProposal | None:
        """Record a request that names a proposal, received or about to be sent.

        Returns the proposal if the request fulfils it, else None.
        """
        tracked = self.get(head.correlation_id)
        if tracked is None:
            return None
        why_not = _find_mismatch(tracked, head, request)
        if why_not:
            self._change(tracked, note=why_not)
            return None
        # Notes from the pending state no longer matter. Notes about a fulfilment stay.
        notes = [tracked.note] if tracked.status == "fulfilled" and tracked.note else []
        changed = tracked.changed
        if not is_same_call(tracked.params, request.params):
            notes.append(f"{head.sender} changed the arguments")
            changed = (*changed, head.id)[:100]
        if tracked.status == "fulfilled":
            notes.append(f"{head.sender} fulfilled it again")
        elif tracked.status != "pending":
            notes.append(f"{head.sender} fulfilled it after it was {tracked.status} here")
        return self._change(
            tracked,
            status=TRANSITIONS[tracked.status, "fulfil"],
            fulfilled_by=tracked.fulfilled_by or head.sender,
            fulfilments=(*tracked.fulfilments, head.id)[:100],
            changed=changed,
            note="; ".join(notes)[:_MAX_NOTE_LENGTH],
        )

    def withdrawn(self, id: str, fulfilment: str) -> None:
        """Undo a fulfilment: its response said that the call was not made because a person decides
        elsewhere. The proposal is pending again if it has no other fulfilment."""
        tracked = self.get(id)
        if tracked is None or fulfilment not in tracked.fulfilments:
            return
        left = tuple(one for one in tracked.fulfilments if one != fulfilment)
        changed = tuple(one for one in tracked.changed if one != fulfilment)
        if left:
            self._change(tracked, fulfilments=left, changed=changed)
        else:
            status = TRANSITIONS[tracked.status, "withdraw"]
            self._change(
                tracked, status=status, fulfilled_by="", fulfilments=(), changed=(), note=""
            )

    def reject(self, id: str, reason: str = "") -> TrackedProposal | None:
        """Reject a proposal locally. Returns None if it is unknown or not pending."""
        tracked = self.get(id)
        status = None if tracked is None else TRANSITIONS.get((tracked.status, "reject"))
        if tracked is None or status is None:
            return None
        return self._change(tracked, status=status, note=reason)

    def remark(self, id: str, note: str) -> None:
        """Add a note about a proposal. Notes about problems of a fulfilment stay."""
        tracked = self.get(id)
        if tracked is not None and not (tracked.status == "fulfilled" and tracked.note):
            self._change(tracked, note=note)

    def expire(self, now: float) -> list[TrackedProposal]:
        """Expire the proposals that are due, and return them."""
        due = [one for one in self._kept.values() if one.expires <= now]
        return [
            self._change(one, status=status)
            for one in due
            if (status := TRANSITIONS.get((one.status, "expire"))) is not None
        ]

    def _change(self, tracked: TrackedProposal, **members: object) -> TrackedProposal:
        changed: TrackedProposal = msgspec.structs.replace(tracked, **members)
        self._kept[tracked.proposalId] = changed
        return changed

    def _forget_one(self) -> None:
        """Remove the oldest proposal of the proposer that uses the most memory."""
        heaviest = max(self._weights, key=self._weights.__getitem__)
        oldest = next(self._of(heaviest))
        del self._kept[oldest.proposalId]
        self._lighten(oldest)

    def _lighten(self, gone: TrackedProposal) -> None:
        self._weights[gone.proposer] -= _estimate_bytes(gone)
        if self._weights[gone.proposer] <= 0:
            del self._weights[gone.proposer]

    def _of(self, proposer: str) -> Iterator[TrackedProposal]:
        return (one for one in self._kept.values() if one.proposer == proposer)


def is_same_call(one: Raw | bytes, other: Raw | bytes) -> bool:
    """Return whether two params describe the same call. `_meta` belongs to the message and is
    ignored."""
    if bytes(one) == bytes(other):
        return True
    try:
        ours, theirs = decode_value(one), decode_value(other)
    except ProtocolError:
        return False
    for params in (ours, theirs):
        if isinstance(params, dict):
            params.pop("_meta", None)
    return _is_equal_json(ours, theirs)


def _is_equal_json(one: object, other: object) -> bool:
    """Return whether two values are equal as JSON. For Python 1, 1.0 and True are equal.

    Iterative, because the values may be nested deeply.
    """
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


def is_proposal_outcome(to: tuple[str, ...], asked_by: str, answered_by: str) -> bool:
    """Return whether the response to a fulfilment is the outcome of the proposal.

    It is if a recipient of the proposal sent the response or the request. Otherwise any participant
    that may request and respond could invent an outcome.

    Args:
        to: the recipients of the proposal; empty: everybody.
    """
    return not to or answered_by in to or asked_by in to


def _find_mismatch(tracked: TrackedProposal, head: EnvelopeHeader, request: Request) -> str:
    if (request.method, request.context) != (tracked.method, tracked.context):
        return f"{head.sender} named it in a request for another call"
    elsewhere = not set(head.to) & set(tracked.to)
    if tracked.to and elsewhere and head.sender not in tracked.to:
        return f"{head.sender} sent the request to a participant that is not a recipient"
    return ""


def _estimate_bytes(tracked: TrackedProposal) -> int:
    texts = (tracked.proposalId, tracked.proposer, tracked.context, *tracked.to)
    return 400 + len(bytes(tracked.params)) + sum(map(len, texts))
