"""Proposals of this participant and of others: their outcomes, and which of them it may fulfil.

A proposer learns the outcome as every participant does: it sees the request that fulfils its
proposal, and the response.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from msgspec import Raw

from interlock.errors import (
    ALREADY_DECIDED,
    APPROVAL_REFUSED,
    CONFIRMATION_EXPIRED,
    CONFIRMATION_REQUIRED,
    DEADLINE_EXCEEDED,
    INVALID_REQUEST,
    UNKNOWN_APPROVAL,
    Failure,
    InterlockError,
    ProtocolError,
    failure_by_name,
)
from interlock.protocol import jsonrpc
from interlock.topics.client.errors import SendError
from interlock.topics.client.pending_requests import read_outcome
from interlock.topics.wire import payloads
from interlock.topics.wire.envelope import EnvelopeHeader
from interlock.topics.wire.payloads import Chat, Request, Response
from interlock.topics.wire.proposals import (
    LIFETIME_SECONDS,
    Proposals,
    TrackedProposal,
    is_proposal_outcome,
    is_same_call,
)
from interlock.topics.wire.threads import ThreadMessage, is_response_to, summarize_message
from interlock.trust.approvals.response import needed_below

MAX_FULFILMENTS = 1_024
_NO_OUTCOME: Any = object()
_MAX_SHOWN = 200


class Proposal:
    """A proposed call, of this participant or another."""

    def __init__(self, tracked: TrackedProposal, owner: ProposalTracker) -> None:
        self.id = tracked.proposalId
        self.proposer = tracked.proposer
        self.to = tracked.to
        self.method = tracked.method
        self.context = tracked.context
        self.params: Raw = tracked.params
        self.expires = tracked.expires
        """On the clock of its participant."""
        self._owner = owner
        self._outcome: Any = _NO_OUTCOME
        self._changed: Any = _NO_OUTCOME
        """The outcome of a fulfilment with other arguments."""
        self._waiting: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        what = f"{self.method} {self.context}".strip()
        return f"Proposal({self.id!r}, {what!r} by {self.proposer!r})"

    async def outcome(self, timeout: float | None = None, *, changed: bool = False) -> Any:
        """Wait for the fulfilment and return its result.

        Raises InterlockError for an error response, if the proposal was not fulfilled in time, or
        if it was fulfilled with other arguments (unless `changed`).

        Args:
            timeout: seconds; default: the lifetime of the proposal.
            changed: accept the result of a fulfilment with other arguments.
        """
        return await self._owner.until_over(self, timeout, changed)

    def settle(self, outcome: Any, *, changed: bool = False) -> None:
        """Set the outcome. Only the first counts.

        Args:
            changed: it is the outcome of other arguments. An outcome of the proposed arguments may
                still follow.
        """
        if changed:
            if self._changed is not _NO_OUTCOME:
                return
            self._changed = outcome
        elif self._outcome is _NO_OUTCOME:
            self._outcome = outcome
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    @property
    def settled(self) -> bool:
        """True if an outcome is known, of the proposed arguments or others."""
        return self._outcome is not _NO_OUTCOME or self._changed is not _NO_OUTCOME

    async def wait(self, seconds: float, changed: bool) -> Any:
        """Wait for the outcome. Raises TimeoutError."""
        if not self.settled:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                async with asyncio.timeout(seconds):
                    await waiting
            finally:
                self._waiting.remove(waiting)
        outcome = self._outcome
        if outcome is _NO_OUTCOME:
            if not changed:
                raise InterlockError(
                    ALREADY_DECIDED,
                    "The proposal was fulfilled with other arguments. Use changed=True to get the "
                    "result.",
                    {"changed": True, "sent": True},
                )
            outcome = self._changed
        if isinstance(outcome, InterlockError):
            raise outcome
        return outcome


def _needs_approval(response: Response) -> bool:
    """Return whether a response says that the call was not made because an operator must approve
    it."""
    if response.error is None:
        return response.result is not None and needed_below(response.result) is not None
    try:
        return jsonrpc.decode_error(response.error).code == CONFIRMATION_REQUIRED.code
    except ProtocolError:
        return False


def _find_failure(name: str) -> Failure:
    try:
        return failure_by_name(name)
    except KeyError:
        return APPROVAL_REFUSED


def _decision_key(proposal: Proposal | TrackedProposal) -> tuple[object, ...]:
    """Return everything that a decision about a proposal depends on."""
    return proposal.proposer, proposal.to, proposal.method, bytes(proposal.params)


class _Fulfilment:
    """A request that fulfils a proposal."""

    __slots__ = ("answered", "changed", "held", "proposal", "seen")

    def __init__(self, proposal: str, seen: ThreadMessage, changed: bool) -> None:
        self.proposal = proposal
        self.seen = seen
        """The request that a response must match."""
        self.changed = changed
        """True if it has other arguments."""
        self.answered = False
        self.held: set[str] = set()
        """The recipients that responded that an operator must approve."""


class ProposalTracker:
    """The proposals of one topic."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        stamp: Callable[[float], str],
        sees_all: bool,
        seconds: float = LIFETIME_SECONDS,
    ) -> None:
        """
        Args:
            sees_all: True with routing "all": it receives messages to others, and so all
                fulfilments.
        """
        self._clock = clock
        self._sees_all = sees_all
        self._proposals = Proposals(seconds, stamp=stamp)
        self._known: WeakValueDictionary[str, Proposal] = WeakValueDictionary()
        self._fulfils: dict[str, _Fulfilment] = {}
        """Requests by id. A participant that sends many displaces only its own."""

    @property
    def tracked(self) -> Mapping[str, TrackedProposal]:
        """The current states."""
        self._proposals.expire(self._clock())
        return self._proposals.all

    def get(self, id: str | None) -> TrackedProposal | None:
        return self._proposals.get(id)

    def knows(self, id: str) -> bool:
        """Return whether a proposal, or a request that fulfils one, with this id was seen."""
        return self._proposals.get(id) is not None or id in self._fulfils or id in self._known

    # -- messages

    def proposed(self, head: EnvelopeHeader, proposal: payloads.ProposalPayload) -> Proposal:
        tracked = self._proposals.record(head, proposal, self._clock())
        known = self._known[head.id] = Proposal(tracked, self)
        return known

    def asked(self, head: EnvelopeHeader, request: Request) -> TrackedProposal | None:
        """Record a request that was received or is about to be sent. Returns the proposal that it
        fulfils."""
        if head.correlation_id is None:
            return None
        tracked = self._proposals.add_fulfilment(head, request)
        if tracked is not None:
            changed = not is_same_call(tracked.params, request.params)
            seen = summarize_message(head, request)
            self._fulfils[head.id] = _Fulfilment(tracked.proposalId, seen, changed)
            if len(self._fulfils) > MAX_FULFILMENTS:
                self._forget_one()
        return tracked

    def _forget_one(self) -> None:
        """Remove the oldest request of the participant with the most requests."""
        often = Counter(one.seen.head.sender for one in self._fulfils.values())
        most = often.most_common(1)[0][0]
        oldest = next(id for id, one in self._fulfils.items() if one.seen.head.sender == most)
        del self._fulfils[oldest]

    def answered(self, head: EnvelopeHeader, response: Response) -> None:
        """Record a response."""
        found = self._fulfils.get(head.correlation_id or "")
        if found is None or not is_response_to(found.seen, head, response):
            return
        asked = found.seen.head
        if _needs_approval(response):
            found.held.add(head.sender)
            # Any of several recipients might make the call. A completed fulfilment stays completed.
            if not found.answered and asked.to and found.held.issuperset(asked.to):
                self._proposals.withdraw_fulfilment(found.proposal, asked.id)
            return
        found.answered = True
        proposal = self._known.get(found.proposal)
        if proposal is not None and is_proposal_outcome(proposal.to, asked.sender, head.sender):
            proposal.settle(read_outcome(head.sender, response), changed=found.changed)

    def said(self, head: EnvelopeHeader, chat: Chat) -> None:
        """Handle a chat about a proposal: store it as a note for the proposer.

        A chat is no outcome, except for one: that the proposal has ended without a call, if its
        only recipient says so to the proposer.
        """
        id = head.correlation_id
        tracked = self._proposals.get(id)
        if id is None or tracked is None:
            return
        note = f"{head.sender}: {chat.text[:_MAX_SHOWN]}"
        if not chat.end_reason or tracked.to != (head.sender,) or tracked.proposer not in head.to:
            self._proposals.add_note(id, note)
            return
        self._proposals.reject(id, note)
        proposal = self._known.get(id)
        if proposal is not None:
            data = {
                "participant": head.sender,
                "ended": chat.end_reason[:_MAX_SHOWN],
                "sent": False,
            }
            proposal.settle(InterlockError(_find_failure(chat.end_reason), chat.text, data))

    def refused(self, id: str | None, error: InterlockError) -> None:
        """Fail a proposal that the gateway did not forward."""
        proposal = self._known.get(id or "")
        if proposal is not None:
            self._proposals.reject(proposal.id, error.message)
            proposal.settle(error)

    # -- decisions

    def to_fulfil(
        self, which: str, me: str, *, force: bool, shown: Proposal | TrackedProposal | None = None
    ) -> TrackedProposal:
        """Return a proposal that may be fulfilled here. Raises SendError.

        Args:
            shown: the proposal that the caller decided about.
        """
        tracked = self.tracked.get(which)
        if tracked is None:
            raise SendError(f"No proposal {which[:100]!r} was seen here.", UNKNOWN_APPROVAL)
        if shown is not None and _decision_key(shown) != _decision_key(tracked):
            raise SendError(
                f"The proposal {which[:100]!r} has changed. Review it again.",
                CONFIRMATION_EXPIRED,
            )
        if tracked.proposer == me:
            raise SendError(
                "You cannot fulfil your own proposal. Another participant must do that."
            )
        if tracked.status != "pending" and not force:
            by = f" by {tracked.fulfilled_by}" if tracked.fulfilled_by else ""
            raise SendError(
                f"The proposal {which[:100]!r} is {tracked.status}{by}. To fulfil it anyway, use "
                "force=True.",
                CONFIRMATION_EXPIRED if tracked.status == "expired" else INVALID_REQUEST,
            )
        return tracked

    def reject(self, which: str, reason: str) -> bool:
        self._proposals.expire(self._clock())
        return self._proposals.reject(which, reason) is not None

    async def until_over(self, proposal: Proposal, timeout: float | None, changed: bool) -> Any:
        if not self._sees_all and not proposal.settled:
            raise SendError(
                'With routing="directed" fulfilments are not received. Use routing="all".',
                INVALID_REQUEST,
            )
        left = max(proposal.expires - self._clock(), 0.0)
        try:
            return await proposal.wait(left if timeout is None else timeout, changed)
        except TimeoutError:
            raise self._in_vain(proposal.id) from None

    def _in_vain(self, id: str) -> InterlockError:
        tracked = self.tracked.get(id)
        status = "pending" if tracked is None else tracked.status
        note = "" if tracked is None else tracked.note
        what = "was fulfilled but got no response" if status == "fulfilled" else "was not fulfilled"
        said = f" Last remark: {note}" if note else ""
        data = {"status": status, "note": note, "sent": True}
        return InterlockError(DEADLINE_EXCEEDED, f"The proposal {what} in time.{said}", data)
