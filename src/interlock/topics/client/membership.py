"""A participant's place in a topic: what it hears and says, without a connection.

Texts come in by `take` and go out by `send`. Everything that comes is checked before anybody hears
of it: first the envelope, then the payload against the kind, then the ids. What fails is dropped
and counted against its sender. Nothing here can be switched off.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Final

from interlock.errors import (
    CAPABILITY_VIOLATION,
    IDENTITY_MISMATCH,
    INVALID_REQUEST,
    PAYLOAD_TOO_LARGE,
    PROTOCOL_MISMATCH,
    TOO_BUSY,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
)
from interlock.protocol import jsonrpc, mcp
from interlock.protocol.kinds import KindGrants, find_pattern_problem, is_reserved, request_kind
from interlock.protocol.mcpx_terms import (
    GATEWAY,
    JOIN,
    MAX_ENVELOPE_BYTES,
    MAX_GATEWAY_ENVELOPE_BYTES,
)
from interlock.topics.client.errors import SendError
from interlock.topics.client.events import Event, Listeners
from interlock.topics.client.pending_requests import TopicRequest, TopicRequests
from interlock.topics.client.proposals import Proposal, ProposalTracker
from interlock.topics.client.responder import TopicResponder
from interlock.topics.client.tools import RequestServer
from interlock.topics.wire import payloads
from interlock.topics.wire.envelope import (
    Envelope,
    EnvelopeError,
    EnvelopeHeader,
    read_envelope,
    write_envelope,
)
from interlock.topics.wire.payloads import (
    Chat,
    Content,
    Notification,
    PayloadError,
    Presence,
    Problem,
    Request,
    Response,
    Welcome,
    context_of,
    read_content,
)
from interlock.topics.wire.threads import MessageThreads

MOST_REMEMBERED: Final = 1_000
"""Participants whose misbehaviour is counted."""
_SHOWN: Final = 200
_FAILURES: Final = {
    failure.mcpx: failure
    for failure in (CAPABILITY_VIOLATION, IDENTITY_MISMATCH, PROTOCOL_MISMATCH, TOO_BUSY)
}
_log = logging.getLogger("interlock.topics")


class Membership:
    """It is inside from a welcome on, until the connection is lost."""

    def __init__(
        self,
        *,
        serving: RequestServer,
        send: Callable[[bytes], None],
        on_welcome: Callable[[], None],
        fulfilling: ProposalTracker,
        new_id: Callable[[], str],
        now: Callable[[], str],
    ) -> None:
        self._send = send
        self._on_welcome = on_welcome
        self._new_id = new_id
        self._now = now
        self._numbers = count(1)
        self._grants = KindGrants(())
        self._misbehaved: Counter[str] = Counter()
        self._inside = False
        self.id = ""
        """Who it is. It stays what it was when the connection is lost."""
        self.capabilities: tuple[str, ...] = ()
        self.participants: dict[str, tuple[str, ...]] = {}
        """Everybody else, and what they may send."""
        self.dropped = 0
        """Messages that nobody could believe."""
        self.lost_messages = 0
        """As the gateway counts them."""
        self.threads = MessageThreads()
        self.pending = TopicRequests()
        self.fulfilling = fulfilling
        self.listeners = Listeners()
        self.answering = TopicResponder(serving, self.say, self.can, fulfilling.get)

    @property
    def inside(self) -> bool:
        return self._inside

    @property
    def reputation(self) -> Mapping[str, int]:
        """How often somebody sent what was not to be believed."""
        return dict(self._misbehaved)

    def can(self, kind: str) -> bool:
        """Whether the last welcome allows it."""
        return not is_reserved(kind) and self._grants.grants(kind)

    # -- speaking

    def say(
        self,
        kind: str,
        payload: bytes,
        to: Sequence[str] = (),
        correlation_id: str | None = None,
    ) -> str:
        """Send an envelope, and return its id. Raises SendError for what the gateway or a receiver
        would refuse: nothing is sent then. Raises InterlockError while there is no connection."""
        return self._speak(kind, payload, to, correlation_id)[0]

    def propose(self, kind: str, payload: bytes, to: Sequence[str]) -> Proposal:
        """Send a proposal. Raises SendError and InterlockError."""
        _, proposal = self._speak(kind, payload, to, None)
        assert proposal is not None
        return proposal

    def ask(
        self,
        to: Sequence[str],
        method: str,
        params: bytes,
        *,
        correlation_id: str | None = None,
        all: bool = False,
    ) -> TopicRequest:
        """Send a request, and what waits for its answer. Raises SendError and InterlockError."""
        try:
            kind = request_kind(method, context_of(method, params))
        except PayloadError as lie:
            raise SendError(lie.message, INVALID_REQUEST) from None
        payload = jsonrpc.request(next(self._numbers), method, params)
        id = self.say(kind, payload, to, correlation_id)
        seen = self.threads.request(id)
        assert seen is not None
        return self.pending.expect(seen, to or self.participants, all=all)

    def give_up(self, asked: TopicRequest) -> None:
        """Nobody waits for an answer any more: say so, where that is allowed."""
        self.pending.forget(asked)
        head, number = asked.seen.head, asked.seen.request_id
        kind = request_kind(mcp.CANCELLED)
        if self._inside and self.can(kind) and isinstance(number, bytes):
            params = b'{"requestId":%b}' % number
            self.say(kind, jsonrpc.notification(mcp.CANCELLED, params), head.to, head.id)

    def _speak(
        self, kind: str, payload: bytes, to: Sequence[str], correlation_id: str | None
    ) -> tuple[str, Proposal | None]:
        if is_reserved(kind):
            raise SendError(f"Only a gateway may say {kind[:_SHOWN]}.")
        if not self._inside:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, "There is no connection to the topic now: try again later."
            )
        if not self.can(kind):
            allowed = ", ".join(self.capabilities)[:_SHOWN] or "nothing"
            raise SendError(f"{self.id} may not send {kind[:_SHOWN]}. It may send: {allowed}.")
        envelope, content = self._checked(kind, payload, to, correlation_id)
        self.threads.record(envelope, content)
        proposal = None
        if isinstance(content, Request):
            self.fulfilling.asked(envelope.head, content)
        elif isinstance(content, payloads.ProposalPayload):
            proposal = self.fulfilling.proposed(envelope.head, content)
        self._send(envelope.text)
        if self.id in envelope.head.to and isinstance(content, Request | Response | Notification):
            # Nobody is sent what it said itself.
            asyncio.get_running_loop().call_soon(self._hear_self, envelope, content)
        return envelope.head.id, proposal

    def _checked(
        self, kind: str, payload: bytes, to: Sequence[str], correlation_id: str | None
    ) -> tuple[Envelope, Content]:
        try:
            text = write_envelope(
                id=self._new_id(), sender=self.id, kind=kind, payload=payload, to=to,
                correlation_id=correlation_id, ts=self._now(),
            )  # fmt: skip
            if len(text) > MAX_ENVELOPE_BYTES:
                raise SendError(
                    f"An envelope has at most {MAX_ENVELOPE_BYTES} bytes, and this one has "
                    f"{len(text)}: send less, or where it can be found.",
                    PAYLOAD_TOO_LARGE,
                )
            envelope = read_envelope(text)
            return envelope, read_content(envelope)
        except (EnvelopeError, PayloadError) as error:
            raise SendError(f"Nobody would believe it. {error.message}", INVALID_REQUEST) from None
        except ValueError as error:
            raise SendError(f"It cannot be sent: {error}.", INVALID_REQUEST) from None

    # -- hearing

    def take(self, text: bytes) -> None:
        """A message came. It never raises."""
        try:
            envelope = read_envelope(text, MAX_GATEWAY_ENVELOPE_BYTES)
        except EnvelopeError as error:
            self._drop(error.sender, error.message)
            return
        head = envelope.head
        if len(text) > MAX_ENVELOPE_BYTES and head.sender != GATEWAY:
            self._drop(head.sender, f"It has {len(text)} bytes, more than an envelope may.")
            return
        try:
            content = read_content(envelope)
        except PayloadError as lie:
            self._drop(head.sender, lie.message)
            return
        if isinstance(content, Welcome):
            self._welcomed(envelope, content)
            return
        if not self._inside:
            self._drop(head.sender, "It came before the welcome.")
            return
        if head.sender == self.id:
            self._drop(head.sender, "It says that it was sent by this very participant.")
            return
        if self._is_under_way(head.id) and head.sender != GATEWAY:
            self._drop(head.sender, f"The id {head.id[:60]!r} belongs to what is not over yet.")
            return
        why = self.threads.record(envelope, content)
        if why:
            self._drop(head.sender, why)
            return
        self._hear(envelope, content)

    def _is_under_way(self, id: str) -> bool:
        """Whether something of this id is waited for, or could be decided, however long ago it
        came: `threads` forgets when much is said, and nobody may put another in its place."""
        return id in self.pending or self.fulfilling.knows(id)

    def lost(self, why: str) -> None:
        """The connection is gone, and with it everything that was under way."""
        self._inside = False
        self.participants = {}
        self.pending.lost(why)
        self.answering.close()

    def _hear_self(self, envelope: Envelope, content: Content) -> None:
        if self._inside:
            self._hear(envelope, content)

    def _hear(self, envelope: Envelope, content: Content) -> None:
        head = envelope.head
        verified: bool | None = True
        shown: object = content
        match content:
            case Response():
                verified = self.threads.fits(head, content)
                if verified is False:
                    self._drop(head.sender, "It does not answer the request that it names.")
                    return
                self.pending.settle(head, content)
                self.fulfilling.answered(head, content)
            case Request():
                if head.sender != self.id:
                    self.fulfilling.asked(head, content)
                self.answering.asked(head, content, self.id)
            case Notification():
                self.answering.told(head, content)
            case payloads.ProposalPayload():
                shown = self.fulfilling.proposed(head, content)
            case Chat():
                self.fulfilling.said(head, content)
            case Presence():
                self._present(content)
            case Problem():
                self._problem(head, content)
        self.listeners.tell(Event(shown, envelope, verified))

    def _welcomed(self, envelope: Envelope, welcome: Welcome) -> None:
        you = welcome.you
        if you.id not in envelope.head.to or (self._inside and you.id != self.id):
            return  # somebody else's
        before = set(self.participants)
        self.id = you.id
        self.capabilities = you.capabilities
        # Other gateways may list what grants nothing, as `system/*` does: one is welcome anyway.
        self._grants = KindGrants(one for one in you.capabilities if not find_pattern_problem(one))
        self.participants = {
            one.id: one.capabilities for one in welcome.participants if one.id != you.id
        }
        self._inside = True
        for gone in before - self.participants.keys():
            self._left(gone)
        self._on_welcome()
        self.listeners.tell(Event(welcome, envelope))

    def _present(self, presence: Presence) -> None:
        who = presence.participant
        if who.id == self.id:
            return  # its welcome says more
        if presence.event == JOIN:
            self.participants[who.id] = who.capabilities
        elif self.participants.pop(who.id, None) is not None:
            self._left(who.id)

    def _left(self, participant: str) -> None:
        self.pending.left(participant)
        self.answering.left(participant)

    def _problem(self, head: EnvelopeHeader, problem: Problem) -> None:
        if self.id not in head.to:
            # A notice to all, about what somebody else said: that chose the id that it is about.
            return
        self.lost_messages += max(problem.lost, 0)
        failure = _FAILURES.get(problem.error, INVALID_REQUEST)
        sentence = f"The gateway did not forward it: {problem.message or problem.error}"
        error = InterlockError(failure, sentence, {"error": problem.error})
        self.pending.refused(head.correlation_id, error)
        self.fulfilling.refused(head.correlation_id, error)

    def _drop(self, sender: str, why: str) -> None:
        self.dropped += 1
        sender = sender[:_SHOWN]
        self._misbehaved[sender] += 1
        if len(self._misbehaved) > MOST_REMEMBERED:
            least, _ = self._misbehaved.most_common()[-2:][0]
            del self._misbehaved[least]
        _log.info("dropped a message of %r: %s", sender, why[:_SHOWN])
