"""Proposals, of this participant and of others: what becomes of them, and who may fulfil them.

A proposer learns the outcome as everybody does: it sees the request that fulfils its proposal, and
the response to that.
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
from interlock.topics.client.pending_requests import outcome_of
from interlock.topics.wire import payloads
from interlock.topics.wire.envelope import EnvelopeHeader
from interlock.topics.wire.payloads import Chat, Request, Response
from interlock.topics.wire.proposals import LIFETIME, Proposals, TrackedProposal, may_settle, same
from interlock.topics.wire.threads import ThreadMessage, answers, seen_of
from interlock.trust.approvals.response import needed_below

MOST_FULFILMENTS = 1_024
_NOTHING: Any = object()
_SHOWN = 200


class Proposal:
    """A call that somebody proposed: this participant, or another."""

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
        self._outcome: Any = _NOTHING
        self._changed: Any = _NOTHING
        """What came of it with other arguments."""
        self._waiting: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        what = f"{self.method} {self.context}".strip()
        return f"Proposal({self.id!r}, {what!r} by {self.proposer!r})"

    async def outcome(self, timeout: float | None = None, *, changed: bool = False) -> Any:
        """What the call came to, once somebody has fulfilled the proposal. Raises InterlockError:
        the error that was the answer, that nobody fulfilled it in time, or that somebody did so
        with other arguments than were proposed, unless `changed`. Without a timeout the lifetime of
        the proposal is waited for."""
        return await self._owner.until_over(self, timeout, changed)

    def settle(self, outcome: Any, *, changed: bool = False) -> None:
        """The first outcome is the one. `changed`: it is that of other arguments, and one of those
        that were proposed may still come."""
        if changed:
            if self._changed is not _NOTHING:
                return
            self._changed = outcome
        elif self._outcome is _NOTHING:
            self._outcome = outcome
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    @property
    def settled(self) -> bool:
        """Whether it is known what came of it, as it was proposed or with other arguments."""
        return self._outcome is not _NOTHING or self._changed is not _NOTHING

    async def wait(self, seconds: float, changed: bool) -> Any:
        """Raises TimeoutError."""
        if not self.settled:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                async with asyncio.timeout(seconds):
                    await waiting
            finally:
                self._waiting.remove(waiting)
        outcome = self._outcome
        if outcome is _NOTHING:
            if not changed:
                raise InterlockError(
                    ALREADY_DECIDED,
                    "The proposal was fulfilled with other arguments than were proposed. Say "
                    "changed=True to get what came of that.",
                    {"changed": True, "sent": True},
                )
            outcome = self._changed
        if isinstance(outcome, InterlockError):
            raise outcome
        return outcome


def _is_held(response: Response) -> bool:
    """Whether it says that the call was not made, because a human decides elsewhere."""
    if response.error is None:
        return response.result is not None and needed_below(response.result) is not None
    try:
        return jsonrpc.decode_error(response.error).code == CONFIRMATION_REQUIRED.code
    except ProtocolError:
        return False


def _failure_of(name: str) -> Failure:
    try:
        return failure_by_name(name)
    except KeyError:
        return APPROVAL_REFUSED


def _said(proposal: Proposal | TrackedProposal) -> tuple[object, ...]:
    """All that somebody who decides about it looks at, to the letter."""
    return proposal.proposer, proposal.to, proposal.method, bytes(proposal.params)


class _Fulfilment:
    """A request that fulfils a proposal."""

    __slots__ = ("answered", "changed", "held", "proposal", "seen")

    def __init__(self, proposal: str, seen: ThreadMessage, changed: bool) -> None:
        self.proposal = proposal
        self.seen = seen
        """What must be in the answer."""
        self.changed = changed
        """Whether it has other arguments."""
        self.answered = False
        self.held: set[str] = set()
        """Who of those who were asked said that a human decides elsewhere."""


class ProposalTracker:
    """The proposals of one topic."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        stamp: Callable[[float], str],
        sees_all: bool,
        seconds: float = LIFETIME,
    ) -> None:
        """`sees_all`: it hears what is said to others, and so who fulfils what."""
        self._clock = clock
        self._sees_all = sees_all
        self._proposals = Proposals(seconds, stamp=stamp)
        self._known: WeakValueDictionary[str, Proposal] = WeakValueDictionary()
        self._fulfils: dict[str, _Fulfilment] = {}
        """Requests by id. Whoever talks much makes nobody else's be forgotten."""

    @property
    def tracked(self) -> Mapping[str, TrackedProposal]:
        """As they stand now."""
        self._proposals.expire(self._clock())
        return self._proposals.all

    def get(self, id: str | None) -> TrackedProposal | None:
        return self._proposals.get(id)

    def knows(self, id: str) -> bool:
        """Whether a proposal of this id was seen, or a request that fulfils one."""
        return self._proposals.get(id) is not None or id in self._fulfils or id in self._known

    # -- what is seen

    def proposed(self, head: EnvelopeHeader, proposal: payloads.ProposalPayload) -> Proposal:
        tracked = self._proposals.record(head, proposal, self._clock())
        known = self._known[head.id] = Proposal(tracked, self)
        return known

    def asked(self, head: EnvelopeHeader, request: Request) -> TrackedProposal | None:
        """A request came by, or is about to be sent. The proposal that it fulfils, if any."""
        if head.correlation_id is None:
            return None
        tracked = self._proposals.fulfilled(head, request)
        if tracked is not None:
            changed = not same(tracked.params, request.params)
            seen = seen_of(head, request)
            self._fulfils[head.id] = _Fulfilment(tracked.proposalId, seen, changed)
            if len(self._fulfils) > MOST_FULFILMENTS:
                self._forget_one()
        return tracked

    def _forget_one(self) -> None:
        """The oldest of whoever fulfilled the most."""
        often = Counter(one.seen.head.sender for one in self._fulfils.values())
        most = often.most_common(1)[0][0]
        oldest = next(id for id, one in self._fulfils.items() if one.seen.head.sender == most)
        del self._fulfils[oldest]

    def answered(self, head: EnvelopeHeader, response: Response) -> None:
        """A response came by."""
        found = self._fulfils.get(head.correlation_id or "")
        if found is None or not answers(found.seen, head, response):
            return
        asked = found.seen.head
        if _is_held(response):
            found.held.add(head.sender)
            # Of several each might make it; and what was answered once stays answered.
            if not found.answered and asked.to and found.held.issuperset(asked.to):
                self._proposals.withdrawn(found.proposal, asked.id)
            return
        found.answered = True
        proposal = self._known.get(found.proposal)
        if proposal is not None and may_settle(proposal.to, asked.sender, head.sender):
            proposal.settle(outcome_of(head.sender, response), changed=found.changed)

    def said(self, head: EnvelopeHeader, chat: Chat) -> None:
        """Words about a proposal settle nothing. They are kept for whoever waits in vain. That it
        comes to nothing counts if whom it was proposed to says so, and nobody else was meant."""
        id = head.correlation_id
        tracked = self._proposals.get(id)
        if id is None or tracked is None:
            return
        note = f"{head.sender}: {chat.text[:_SHOWN]}"
        if not chat.ended or tracked.to != (head.sender,) or tracked.proposer not in head.to:
            self._proposals.remark(id, note)
            return
        self._proposals.reject(id, note)
        proposal = self._known.get(id)
        if proposal is not None:
            data = {"participant": head.sender, "ended": chat.ended[:_SHOWN], "sent": False}
            proposal.settle(InterlockError(_failure_of(chat.ended), chat.text, data))

    def refused(self, id: str | None, error: InterlockError) -> None:
        """The gateway did not forward it."""
        proposal = self._known.get(id or "")
        if proposal is not None:
            self._proposals.reject(proposal.id, error.message)
            proposal.settle(error)

    # -- what is decided here

    def to_fulfil(
        self, which: str, me: str, *, force: bool, shown: Proposal | TrackedProposal | None = None
    ) -> TrackedProposal:
        """A proposal that may be fulfilled here. `shown`: what somebody looked at, who decided to.
        Raises SendError."""
        tracked = self.tracked.get(which)
        if tracked is None:
            raise SendError(f"No proposal {which[:100]!r} was seen here.", UNKNOWN_APPROVAL)
        if shown is not None and _said(shown) != _said(tracked):
            raise SendError(
                f"The proposal {which[:100]!r} is another one by now: look at it again.",
                CONFIRMATION_EXPIRED,
            )
        if tracked.proposer == me:
            raise SendError("Nobody fulfils what it proposed itself: another participant must.")
        if tracked.status != "pending" and not force:
            by = f" by {tracked.fulfilled_by}" if tracked.fulfilled_by else ""
            raise SendError(
                f"The proposal {which[:100]!r} is {tracked.status}{by}: say force=True to fulfil "
                "it all the same.",
                CONFIRMATION_EXPIRED if tracked.status == "expired" else INVALID_REQUEST,
            )
        return tracked

    def reject(self, which: str, reason: str) -> bool:
        self._proposals.expire(self._clock())
        return self._proposals.reject(which, reason) is not None

    async def until_over(self, proposal: Proposal, timeout: float | None, changed: bool) -> Any:
        if not self._sees_all and not proposal.settled:
            raise SendError(
                'With routing="directed" nobody hears who fulfils a proposal: use routing="all".',
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
        what = "was fulfilled, and not answered" if status == "fulfilled" else "was not fulfilled"
        said = f" The last that was said about it: {note}" if note else ""
        data = {"status": status, "note": note, "sent": True}
        return InterlockError(DEADLINE_EXCEEDED, f"The proposal {what} in time.{said}", data)
