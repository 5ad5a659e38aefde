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
    changed_fulfilments: tuple[str, ...] = ()
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
        max_proposals: int = MAX_PROPOSALS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """
        Args:
            stamp: formats a time.
        """
        self._seconds = seconds
        self._stamp = stamp
        self._max_proposals = max_proposals
        self._max_bytes = max_bytes
        self._proposals: dict[str, TrackedProposal] = {}
        self._bytes_by_proposer: Counter[str] = Counter()
        """Estimated bytes, by proposer."""

    @property
    def all(self) -> Mapping[str, TrackedProposal]:
        """The proposals by id. The mapping changes as they do."""
        return self._proposals

    def get(self, id: str | None) -> TrackedProposal | None:
        return self._proposals.get(id) if id is not None else None

    def record(self, head: EnvelopeHeader, payload: ProposalPayload, now: float) -> TrackedProposal:
        """Track a proposal that was received or sent.

        It replaces an earlier one with the same id. The caller must make sure that the earlier one
        is not another participant's.
        """
        older = self._proposals.pop(head.id, None)
        if older is not None:
            self._subtract_bytes(older)
        tracked = TrackedProposal(
            proposalId=head.id,
            proposer=head.sender,
            target=head.to[0] if head.to else "",
            method=payload.method,
            params=Raw(bytes(payload.params)),
            status="pending",
            createdAt=self._stamp(now),
            expiresAt=self._stamp(now + self._seconds),
            to=head.to,
            context=payload.context,
            expires=now + self._seconds,
        )
        self._proposals[head.id] = tracked
        self._bytes_by_proposer[head.sender] += _estimate_bytes(tracked)
        while (
            len(self._proposals) > self._max_proposals
            or self._bytes_by_proposer.total() > self._max_bytes
        ):
            self._evict_one()
        return tracked

    def add_fulfilment(self, head: EnvelopeHeader, request: Request) -> TrackedProposal | None:
        """Record a request that names a proposal, received or about to be sent.

        Returns the proposal if the request fulfils it, else None.
        """
        tracked = self.get(head.correlation_id)
        if tracked is None:
            return None
        mismatch = _find_mismatch(tracked, head, request)
        if mismatch:
            self._change(tracked, note=mismatch)
            return None
        # Notes from the pending state no longer matter. Notes about a fulfilment stay.
        notes = [tracked.note] if tracked.status == "fulfilled" and tracked.note else []
        changed_ids = tracked.changed_fulfilments
        if not is_same_call(tracked.params, request.params):
            notes.append(f"{head.sender} changed the arguments")
            changed_ids = (*changed_ids, head.id)[:100]
        if tracked.status == "fulfilled":
            notes.append(f"{head.sender} fulfilled it again")
        elif tracked.status != "pending":
            notes.append(f"{head.sender} fulfilled it after it was {tracked.status} here")
        return self._change(
            tracked,
            status=TRANSITIONS[tracked.status, "fulfil"],
            fulfilled_by=tracked.fulfilled_by or head.sender,
            fulfilments=(*tracked.fulfilments, head.id)[:100],
            changed_fulfilments=changed_ids,
            note="; ".join(notes)[:_MAX_NOTE_LENGTH],
        )

    def withdraw_fulfilment(self, id: str, fulfilment: str) -> None:
        """Undo a fulfilment: its response said that the call was not made because a person decides
        elsewhere. The proposal is pending again if it has no other fulfilment."""
        tracked = self.get(id)
        if tracked is None or fulfilment not in tracked.fulfilments:
            return
        remaining = tuple(
            request_id for request_id in tracked.fulfilments if request_id != fulfilment
        )
        changed_ids = tuple(
            request_id for request_id in tracked.changed_fulfilments if request_id != fulfilment
        )
        if remaining:
            self._change(tracked, fulfilments=remaining, changed_fulfilments=changed_ids)
        else:
            status = TRANSITIONS[tracked.status, "withdraw"]
            self._change(
                tracked,
                status=status,
                fulfilled_by="",
                fulfilments=(),
                changed_fulfilments=(),
                note="",
            )

    def reject(self, id: str, reason: str = "") -> TrackedProposal | None:
        """Reject a proposal locally. Returns None if it is unknown or not pending."""
        tracked = self.get(id)
        status = None if tracked is None else TRANSITIONS.get((tracked.status, "reject"))
        if tracked is None or status is None:
            return None
        return self._change(tracked, status=status, note=reason)

    def add_note(self, id: str, note: str) -> None:
        """Add a note about a proposal. Notes about problems of a fulfilment stay."""
        tracked = self.get(id)
        if tracked is not None and not (tracked.status == "fulfilled" and tracked.note):
            self._change(tracked, note=note)

    def expire(self, now: float) -> list[TrackedProposal]:
        """Expire the proposals that are due, and return them."""
        due = [proposal for proposal in self._proposals.values() if proposal.expires <= now]
        return [
            self._change(proposal, status=status)
            for proposal in due
            if (status := TRANSITIONS.get((proposal.status, "expire"))) is not None
        ]

    def _change(self, tracked: TrackedProposal, **members: object) -> TrackedProposal:
        updated: TrackedProposal = msgspec.structs.replace(tracked, **members)
        self._proposals[tracked.proposalId] = updated
        return updated

    def _evict_one(self) -> None:
        """Remove the oldest proposal of the proposer that uses the most memory."""
        largest_proposer = max(self._bytes_by_proposer, key=self._bytes_by_proposer.__getitem__)
        oldest = next(self._by_proposer(largest_proposer))
        del self._proposals[oldest.proposalId]
        self._subtract_bytes(oldest)

    def _subtract_bytes(self, removed_proposal: TrackedProposal) -> None:
        self._bytes_by_proposer[removed_proposal.proposer] -= _estimate_bytes(removed_proposal)
        if self._bytes_by_proposer[removed_proposal.proposer] <= 0:
            del self._bytes_by_proposer[removed_proposal.proposer]

    def _by_proposer(self, proposer: str) -> Iterator[TrackedProposal]:
        return (proposal for proposal in self._proposals.values() if proposal.proposer == proposer)


def is_same_call(first: Raw | bytes, second: Raw | bytes) -> bool:
    """Return whether two params describe the same call. `_meta` belongs to the message and is
    ignored."""
    if bytes(first) == bytes(second):
        return True
    try:
        first_params, second_params = decode_value(first), decode_value(second)
    except ProtocolError:
        return False
    for params in (first_params, second_params):
        if isinstance(params, dict):
            params.pop("_meta", None)
    return _is_equal_json(first_params, second_params)


def _is_equal_json(first: object, second: object) -> bool:
    """Return whether two values are equal as JSON. For Python 1, 1.0 and True are equal.

    Iterative, because the values may be nested deeply.
    """
    pairs = [(first, second)]
    while pairs:
        first, second = pairs.pop()
        if isinstance(first, dict) and isinstance(second, dict):
            if first.keys() != second.keys():
                return False
            pairs.extend((first[name], second[name]) for name in first)
        elif isinstance(first, list) and isinstance(second, list):
            if len(first) != len(second):
                return False
            pairs.extend(zip(first, second, strict=True))
        elif type(first) is not type(second) or first != second:
            return False
    return True


def is_proposal_outcome(to: tuple[str, ...], requester: str, responder: str) -> bool:
    """Return whether the response to a fulfilment is the outcome of the proposal.

    It is if a recipient of the proposal sent the response or the request. Otherwise any participant
    that may request and respond could invent an outcome.

    Args:
        to: the recipients of the proposal; empty: everybody.
    """
    return not to or responder in to or requester in to


def _find_mismatch(tracked: TrackedProposal, head: EnvelopeHeader, request: Request) -> str:
    if (request.method, request.context) != (tracked.method, tracked.context):
        return f"{head.sender} named it in a request for another call"
    is_other_recipient = not set(head.to) & set(tracked.to)
    if tracked.to and is_other_recipient and head.sender not in tracked.to:
        return f"{head.sender} sent the request to a participant that is not a recipient"
    return ""


def _estimate_bytes(tracked: TrackedProposal) -> int:
    texts = (tracked.proposalId, tracked.proposer, tracked.context, *tracked.to)
    return 400 + len(bytes(tracked.params)) + sum(map(len, texts))
