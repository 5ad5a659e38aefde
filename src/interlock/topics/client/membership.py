"""The membership of a participant: it sends and receives messages, without a connection of its own.

Received texts are passed to `receive`; sent texts go to the callback `send`. Every received message
is checked before anything uses it: first the envelope, then the payload against the kind, then the
ids. A message that fails is dropped and counted against its sender. The checks cannot be disabled.
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
    read_content,
    read_context,
)
from interlock.topics.wire.threads import MessageThreads

MAX_MISBEHAVING_PARTICIPANTS: Final = 1_000
"""The maximum number of participants whose dropped messages are counted."""
_MAX_SHOWN: Final = 200
_FAILURES: Final = {
    failure.mcpx: failure
    for failure in (CAPABILITY_VIOLATION, IDENTITY_MISMATCH, PROTOCOL_MISMATCH, TOO_BUSY)
}
_log = logging.getLogger("interlock.topics")


class Membership:
    """A participant is a member from the welcome until the connection is lost."""

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
        """The id of this participant. It stays when the connection is lost."""
        self.capabilities: tuple[str, ...] = ()
        self.participants: dict[str, tuple[str, ...]] = {}
        """The other participants and their capabilities."""
        self.dropped = 0
        """The number of messages that failed a check."""
        self.lost_messages = 0
        """The number of lost messages, as counted by the gateway."""
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
        """The number of dropped messages, by sender."""
        return dict(self._misbehaved)

    def can(self, kind: str) -> bool:
        """Return whether the last welcome allows this kind."""
        return not is_reserved(kind) and self._grants.grants(kind)

    # -- sending

    def say(
        self,
        kind: str,
        payload: bytes,
        to: Sequence[str] = (),
        correlation_id: str | None = None,
    ) -> str:
        """Send an envelope and return its id.

        Raises SendError if the gateway or a receiver would reject the message, and InterlockError
        while there is no connection.
        """
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
        """Send a request and return the pending request. Raises SendError and InterlockError."""
        try:
            kind = request_kind(method, read_context(method, params))
        except PayloadError as lie:
            raise SendError(lie.message, INVALID_REQUEST) from None
        payload = jsonrpc.request(next(self._numbers), method, params)
        id = self.say(kind, payload, to, correlation_id)
        seen = self.threads.find_request(id)
        assert seen is not None
        return self.pending.expect(seen, to or self.participants, all=all)

    def give_up(self, asked: TopicRequest) -> None:
        """Cancel a pending request, and notify the recipients if that is allowed."""
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
            raise SendError(f"Only a gateway may send {kind[:_MAX_SHOWN]}.")
        if not self._inside:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, "There is no connection to the topic. Try again later."
            )
        if not self.can(kind):
            allowed = ", ".join(self.capabilities)[:_MAX_SHOWN] or "nothing"
            raise SendError(f"{self.id} may not send {kind[:_MAX_SHOWN]}. It may send: {allowed}.")
        envelope, content = self._checked(kind, payload, to, correlation_id)
        self.threads.record(envelope, content)
        proposal = None
        if isinstance(content, Request):
            self.fulfilling.asked(envelope.head, content)
        elif isinstance(content, payloads.ProposalPayload):
            proposal = self.fulfilling.proposed(envelope.head, content)
        self._send(envelope.text)
        if self.id in envelope.head.to and isinstance(content, Request | Response | Notification):
            # The gateway does not return a message to its sender.
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
                    f"The envelope has {len(text)} bytes. The limit is {MAX_ENVELOPE_BYTES}. Send "
                    "less data, "
                    "or a link to it.",
                    PAYLOAD_TOO_LARGE,
                )
            envelope = read_envelope(text)
            return envelope, read_content(envelope)
        except (EnvelopeError, PayloadError) as error:
            raise SendError(
                f"Receivers would reject this message. {error.message}", INVALID_REQUEST
            ) from None
        except ValueError as error:
            raise SendError(f"Cannot send this message: {error}.", INVALID_REQUEST) from None

    # -- receiving

    def take(self, text: bytes) -> None:
        """Handle a received message. Never raises."""
        try:
            envelope = read_envelope(text, MAX_GATEWAY_ENVELOPE_BYTES)
        except EnvelopeError as error:
            self._drop(error.sender, error.message)
            return
        head = envelope.head
        if len(text) > MAX_ENVELOPE_BYTES and head.sender != GATEWAY:
            self._drop(head.sender, f"It has {len(text)} bytes. The limit is {MAX_ENVELOPE_BYTES}.")
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
            self._drop(head.sender, "It arrived before the welcome.")
            return
        if head.sender == self.id:
            self._drop(head.sender, "Its sender is this participant.")
            return
        if self._is_under_way(head.id) and head.sender != GATEWAY:
            self._drop(head.sender, f"The id {head.id[:60]!r} belongs to a pending message.")
            return
        why = self.threads.record(envelope, content)
        if why:
            self._drop(head.sender, why)
            return
        self._hear(envelope, content)

    def _is_under_way(self, id: str) -> bool:
        """Return whether this id belongs to a pending request or proposal, however old.

        `threads` removes old messages, and no other message may take the place of a pending one.
        """
        return id in self.pending or self.fulfilling.knows(id)

    def lost(self, why: str) -> None:
        """Handle the loss of the connection: all pending requests fail."""
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
                verified = self.threads.matches_request(head, content)
                if verified is False:
                    self._drop(head.sender, "It does not match the request that it names.")
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
            return  # for another participant
        before = set(self.participants)
        self.id = you.id
        self.capabilities = you.capabilities
        # Other gateways may list patterns that grant nothing, such as `system/*`. Ignore them.
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
            return  # the welcome has more information
        if presence.event == JOIN:
            self.participants[who.id] = who.capabilities
        elif self.participants.pop(who.id, None) is not None:
            self._left(who.id)

    def _left(self, participant: str) -> None:
        self.pending.left(participant)
        self.answering.left(participant)

    def _problem(self, head: EnvelopeHeader, problem: Problem) -> None:
        if self.id not in head.to:
            # A notice about a message of another participant, which chose the correlation id.
            return
        self.lost_messages += max(problem.lost, 0)
        failure = _FAILURES.get(problem.error, INVALID_REQUEST)
        sentence = f"The gateway did not forward it: {problem.message or problem.error}"
        error = InterlockError(failure, sentence, {"error": problem.error})
        self.pending.refused(head.correlation_id, error)
        self.fulfilling.refused(head.correlation_id, error)

    def _drop(self, sender: str, why: str) -> None:
        self.dropped += 1
        sender = sender[:_MAX_SHOWN]
        self._misbehaved[sender] += 1
        if len(self._misbehaved) > MAX_MISBEHAVING_PARTICIPANTS:
            least, _ = self._misbehaved.most_common()[-2:][0]
            del self._misbehaved[least]
        _log.info("message of %r dropped: %s", sender, why[:_MAX_SHOWN])
