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
from interlock.trust.approvals.response import read_child_approval

MAX_FULFILMENTS = 1_024
_NO_OUTCOME: Any = object()
_MAX_SHOWN = 200


class Proposal:
    """A proposed call, of this participant or another."""

    def __init__(self, tracked_proposal: TrackedProposal, tracker: ProposalTracker) -> None:
        self.id = tracked_proposal.proposalId
        self.proposer = tracked_proposal.proposer
        self.to = tracked_proposal.to
        self.method = tracked_proposal.method
        self.context = tracked_proposal.context
        self.params: Raw = tracked_proposal.params
        self.expires = tracked_proposal.expires
        """On the clock of its participant."""
        self._tracker = tracker
        self._outcome: Any = _NO_OUTCOME
        self._changed_outcome: Any = _NO_OUTCOME
        """The outcome of a fulfilment with other arguments."""
        self._waiters: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        call_text = f"{self.method} {self.context}".strip()
        return f"Proposal({self.id!r}, {call_text!r} by {self.proposer!r})"

    async def outcome(self, timeout: float | None = None, *, is_changed: bool = False) -> Any:
        """Wait for the fulfilment and return its result.

        Raises InterlockError for an error response, if the proposal was not fulfilled in time, or
        if it was fulfilled with other arguments (unless `is_changed`).

        Args:
            timeout: seconds; default: the lifetime of the proposal.
            is_changed: accept the result of a fulfilment with other arguments.
        """
        return await self._tracker.wait_for_outcome(self, timeout, is_changed)

    def set_outcome(self, outcome: Any, *, is_changed: bool = False) -> None:
        """Set the outcome. Only the first counts.

        Args:
            is_changed: it is the outcome of other arguments. An outcome of the proposed arguments
            may
                still follow.
        """
        if is_changed:
            if self._changed_outcome is not _NO_OUTCOME:
                return
            self._changed_outcome = outcome
        elif self._outcome is _NO_OUTCOME:
            self._outcome = outcome
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def has_outcome(self) -> bool:
        """True if an outcome is known, of the proposed arguments or others."""
        return self._outcome is not _NO_OUTCOME or self._changed_outcome is not _NO_OUTCOME

    async def wait(self, seconds: float, is_changed: bool) -> Any:
        """Wait for the outcome. Raises TimeoutError."""
        if not self.has_outcome:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                async with asyncio.timeout(seconds):
                    await waiter
            finally:
                self._waiters.remove(waiter)
        outcome = self._outcome
        if outcome is _NO_OUTCOME:
            if not is_changed:
                raise InterlockError(
                    ALREADY_DECIDED,
                    "The proposal was fulfilled with other arguments. Use changed=True to get the "
                    "result.",
                    {"changed": True, "sent": True},
                )
            outcome = self._changed_outcome
        if isinstance(outcome, InterlockError):
            raise outcome
        return outcome


def _needs_approval(response: Response) -> bool:
    """Return whether a response says that the call was not made because an operator must approve
    it."""
    if response.error is None:
        return response.result is not None and read_child_approval(response.result) is not None
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

    __slots__ = ("awaiting_approval", "has_response", "is_changed", "proposal", "request")

    def __init__(self, proposal: str, message: ThreadMessage, is_changed: bool) -> None:
        self.proposal = proposal
        self.request = message
        """The request that a response must match."""
        self.is_changed = is_changed
        """True if it has other arguments."""
        self.has_response = False
        self.awaiting_approval: set[str] = set()
        """The recipients that responded that an operator must approve."""


class ProposalTracker:
    """The proposals of one topic."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        stamp: Callable[[float], str],
        receives_all: bool,
        seconds: float = LIFETIME_SECONDS,
    ) -> None:
        """
        Args:
            receives_all: True with routing "all": it receives messages to others, and so all
                fulfilments.
        """
        self._clock = clock
        self._receives_all = receives_all
        self._proposals = Proposals(seconds, stamp=stamp)
        self._handles: WeakValueDictionary[str, Proposal] = WeakValueDictionary()
        self._fulfilments: dict[str, _Fulfilment] = {}
        """Requests by id. A participant that sends many displaces only its own."""

    @property
    def proposals(self) -> Mapping[str, TrackedProposal]:
        """The current states."""
        self._proposals.expire(self._clock())
        return self._proposals.all

    def get(self, id: str | None) -> TrackedProposal | None:
        return self._proposals.get(id)

    def has_id(self, id: str) -> bool:
        """Return whether a proposal, or a request that fulfils one, with this id was seen."""
        return self._proposals.get(id) is not None or id in self._fulfilments or id in self._handles

    # -- messages

    def on_proposal(self, head: EnvelopeHeader, proposal: payloads.ProposalPayload) -> Proposal:
        tracked_proposal = self._proposals.record(head, proposal, self._clock())
        handle = self._handles[head.id] = Proposal(tracked_proposal, self)
        return handle

    def on_request(self, head: EnvelopeHeader, request: Request) -> TrackedProposal | None:
        """Record a request that was received or is about to be sent. Returns the proposal that it
        fulfils."""
        if head.correlation_id is None:
            return None
        tracked_proposal = self._proposals.add_fulfilment(head, request)
        if tracked_proposal is not None:
            is_changed = not is_same_call(tracked_proposal.params, request.params)
            message = summarize_message(head, request)
            self._fulfilments[head.id] = _Fulfilment(
                tracked_proposal.proposalId, message, is_changed
            )
            if len(self._fulfilments) > MAX_FULFILMENTS:
                self._evict_one()
        return tracked_proposal

    def _evict_one(self) -> None:
        """Remove the oldest request of the participant with the most requests."""
        counts = Counter(
            fulfilment.request.head.sender for fulfilment in self._fulfilments.values()
        )
        sender = counts.most_common(1)[0][0]
        oldest = next(
            id
            for id, fulfilment in self._fulfilments.items()
            if fulfilment.request.head.sender == sender
        )
        del self._fulfilments[oldest]

    def on_response(self, head: EnvelopeHeader, response: Response) -> None:
        """Record a response."""
        fulfilment = self._fulfilments.get(head.correlation_id or "")
        if fulfilment is None or not is_response_to(fulfilment.request, head, response):
            return
        request_head = fulfilment.request.head
        if _needs_approval(response):
            fulfilment.awaiting_approval.add(head.sender)
            # Any of several recipients might make the call. A completed fulfilment stays completed.
            if (
                not fulfilment.has_response
                and request_head.to
                and fulfilment.awaiting_approval.issuperset(request_head.to)
            ):
                self._proposals.withdraw_fulfilment(fulfilment.proposal, request_head.id)
            return
        fulfilment.has_response = True
        proposal = self._handles.get(fulfilment.proposal)
        if proposal is not None and is_proposal_outcome(
            proposal.to, request_head.sender, head.sender
        ):
            proposal.set_outcome(
                read_outcome(head.sender, response), is_changed=fulfilment.is_changed
            )

    def on_chat(self, head: EnvelopeHeader, chat: Chat) -> None:
        """Handle a chat about a proposal: store it as a note for the proposer.

        A chat is no outcome, except for one: that the proposal has ended without a call, if its
        only recipient says so to the proposer.
        """
        id = head.correlation_id
        tracked_proposal = self._proposals.get(id)
        if id is None or tracked_proposal is None:
            return
        note = f"{head.sender}: {chat.text[:_MAX_SHOWN]}"
        if (
            not chat.end_reason
            or tracked_proposal.to != (head.sender,)
            or tracked_proposal.proposer not in head.to
        ):
            self._proposals.add_note(id, note)
            return
        self._proposals.reject(id, note)
        proposal = self._handles.get(id)
        if proposal is not None:
            data = {
                "participant": head.sender,
                "ended": chat.end_reason[:_MAX_SHOWN],
                "sent": False,
            }
            proposal.set_outcome(InterlockError(_find_failure(chat.end_reason), chat.text, data))

    def fail(self, id: str | None, error: InterlockError) -> None:
        """Fail a proposal that the gateway did not forward."""
        proposal = self._handles.get(id or "")
        if proposal is not None:
            self._proposals.reject(proposal.id, error.message)
            proposal.set_outcome(error)

    # -- decisions

    def get_fulfillable(
        self,
        proposal_id: str,
        own_id: str,
        *,
        force: bool,
        reviewed: Proposal | TrackedProposal | None = None,
    ) -> TrackedProposal:
        """Return a proposal that may be fulfilled here. Raises SendError.

        Args:
            reviewed: the proposal that the caller decided about.
        """
        tracked_proposal = self.proposals.get(proposal_id)
        if tracked_proposal is None:
            raise SendError(f"There is no proposal {proposal_id[:100]!r} here.", UNKNOWN_APPROVAL)
        if reviewed is not None and _decision_key(reviewed) != _decision_key(tracked_proposal):
            raise SendError(
                f"The proposal {proposal_id[:100]!r} has changed. Review it again.",
                CONFIRMATION_EXPIRED,
            )
        if tracked_proposal.proposer == own_id:
            raise SendError(
                "You cannot fulfil your own proposal. Another participant must do that."
            )
        if tracked_proposal.status != "pending" and not force:
            by = f" by {tracked_proposal.fulfilled_by}" if tracked_proposal.fulfilled_by else ""
            raise SendError(
                f"The proposal {proposal_id[:100]!r} is {tracked_proposal.status}{by}. To fulfil "
                "it anyway, use "
                "force=True.",
                CONFIRMATION_EXPIRED if tracked_proposal.status == "expired" else INVALID_REQUEST,
            )
        return tracked_proposal

    def reject(self, proposal_id: str, reason: str) -> bool:
        self._proposals.expire(self._clock())
        return self._proposals.reject(proposal_id, reason) is not None

    async def wait_for_outcome(
        self, proposal: Proposal, timeout: float | None, is_changed: bool
    ) -> Any:
        if not self._receives_all and not proposal.has_outcome:
            raise SendError(
                'With routing="directed" fulfilments are not received. Use routing="all".',
                INVALID_REQUEST,
            )
        remaining = max(proposal.expires - self._clock(), 0.0)
        try:
            return await proposal.wait(remaining if timeout is None else timeout, is_changed)
        except TimeoutError:
            raise self._make_timeout_error(proposal.id) from None

    def _make_timeout_error(self, id: str) -> InterlockError:
        tracked_proposal = self.proposals.get(id)
        status = "pending" if tracked_proposal is None else tracked_proposal.status
        note = "" if tracked_proposal is None else tracked_proposal.note
        problem = (
            "was fulfilled but got no response" if status == "fulfilled" else "was not fulfilled"
        )
        remark = f" Last note: {note}" if note else ""
        data = {"status": status, "note": note, "sent": True}
        return InterlockError(
            DEADLINE_EXCEEDED,
            f"The proposal {problem} in time.{remark} Use a longer timeout.",
            data,
        )
