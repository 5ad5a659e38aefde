"""The membership of a participant: it sends and receives messages, without a connection of its own.

Received texts are passed to `receive`; sent texts go to the callback `send`. Every received message
is checked before anything uses it: first the envelope, then the payload against the kind, then the
ids. A message that fails a check is rejected and counted for its sender. The checks cannot be
disabled.
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
        server: RequestServer,
        send: Callable[[bytes], None],
        on_welcome: Callable[[], None],
        proposals: ProposalTracker,
        new_id: Callable[[], str],
        now: Callable[[], str],
    ) -> None:
        self._send_text = send
        self._on_welcome = on_welcome
        self._new_id = new_id
        self._now = now
        self._numbers = count(1)
        self._grants = KindGrants(())
        self._dropped_by_sender: Counter[str] = Counter()
        self._is_connected = False
        self.id = ""
        """The id of this participant. It stays when the connection is lost."""
        self.capabilities: tuple[str, ...] = ()
        self.participants: dict[str, tuple[str, ...]] = {}
        """The other participants and their capabilities."""
        self.dropped_messages = 0
        """The number of messages that failed a check."""
        self.lost_messages = 0
        """The number of lost messages, as counted by the gateway."""
        self.threads = MessageThreads()
        self.pending = TopicRequests()
        self.proposals = proposals
        self.listeners = Listeners()
        self.responder = TopicResponder(server, self.send, self.can_send, proposals.get)

    @property
    def is_connected(self) -> bool:
        return self._is_connected

    @property
    def reputation(self) -> Mapping[str, int]:
        """The number of dropped messages, by sender."""
        return dict(self._dropped_by_sender)

    def can_send(self, kind: str) -> bool:
        """Return whether the last welcome allows this kind."""
        return not is_reserved(kind) and self._grants.grants(kind)

    # -- sending

    def send(
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
        return self._send_envelope(kind, payload, to, correlation_id)[0]

    def propose(self, kind: str, payload: bytes, to: Sequence[str]) -> Proposal:
        """Send a proposal. Raises SendError and InterlockError."""
        _, proposal = self._send_envelope(kind, payload, to, None)
        assert proposal is not None
        return proposal

    def send_request(
        self,
        to: Sequence[str],
        method: str,
        params: bytes,
        *,
        correlation_id: str | None = None,
        wait_for_all: bool = False,
    ) -> TopicRequest:
        """Send a request and return the pending request. Raises SendError and InterlockError."""
        try:
            kind = request_kind(method, read_context(method, params))
        except PayloadError as error:
            raise SendError(error.message, INVALID_REQUEST) from None
        payload = jsonrpc.request(next(self._numbers), method, params)
        id = self.send(kind, payload, to, correlation_id)
        message = self.threads.find_request(id)
        assert message is not None
        return self.pending.add(message, to or self.participants, wait_for_all=wait_for_all)

    def cancel_request(self, pending_request: TopicRequest) -> None:
        """Cancel a pending request, and notify the recipients if that is allowed."""
        self.pending.remove(pending_request)
        head, request_id = pending_request.message.head, pending_request.message.request_id
        kind = request_kind(mcp.CANCELLED)
        if self._is_connected and self.can_send(kind) and isinstance(request_id, bytes):
            params = b'{"requestId":%b}' % request_id
            self.send(kind, jsonrpc.notification(mcp.CANCELLED, params), head.to, head.id)

    def _send_envelope(
        self, kind: str, payload: bytes, to: Sequence[str], correlation_id: str | None
    ) -> tuple[str, Proposal | None]:
        if is_reserved(kind):
            raise SendError(f"Only a gateway may send {kind[:_MAX_SHOWN]}.")
        if not self._is_connected:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, "There is no connection to the topic. Try again later."
            )
        if not self.can_send(kind):
            capabilities_text = ", ".join(self.capabilities)[:_MAX_SHOWN] or "nothing"
            raise SendError(
                f"{self.id} may not send {kind[:_MAX_SHOWN]}. It may send: {capabilities_text}."
            )
        envelope, content = self._encode_checked(kind, payload, to, correlation_id)
        self.threads.record(envelope, content)
        proposal = None
        if isinstance(content, Request):
            self.proposals.on_request(envelope.head, content)
        elif isinstance(content, payloads.ProposalPayload):
            proposal = self.proposals.on_proposal(envelope.head, content)
        self._send_text(envelope.text)
        if self.id in envelope.head.to and isinstance(content, Request | Response | Notification):
            # The gateway does not return a message to its sender.
            asyncio.get_running_loop().call_soon(self._handle_own, envelope, content)
        return envelope.head.id, proposal

    def _encode_checked(
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

    def receive(self, text: bytes) -> None:
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
        except PayloadError as error:
            self._drop(head.sender, error.message)
            return
        if isinstance(content, Welcome):
            self._handle_welcome(envelope, content)
            return
        if not self._is_connected:
            self._drop(head.sender, "It arrived before the welcome.")
            return
        if head.sender == self.id:
            self._drop(head.sender, "Its sender is this participant.")
            return
        if self._is_pending(head.id) and head.sender != GATEWAY:
            self._drop(head.sender, f"The id {head.id[:60]!r} belongs to a pending message.")
            return
        reason = self.threads.record(envelope, content)
        if reason:
            self._drop(head.sender, reason)
            return
        self._handle(envelope, content)

    def _is_pending(self, id: str) -> bool:
        """Return whether this id belongs to a pending request or proposal, however old.

        `threads` removes old messages, and no other message may take the place of a pending one.
        """
        return id in self.pending or self.proposals.has_id(id)

    def on_disconnect(self, reason: str) -> None:
        """Handle the loss of the connection: all pending requests fail."""
        self._is_connected = False
        self.participants = {}
        self.pending.fail_all(reason)
        self.responder.close()

    def _handle_own(self, envelope: Envelope, content: Content) -> None:
        if self._is_connected:
            self._handle(envelope, content)

    def _handle(self, envelope: Envelope, content: Content) -> None:
        head = envelope.head
        verified: bool | None = True
        event_content: object = content
        match content:
            case Response():
                verified = self.threads.matches_request(head, content)
                if verified is False:
                    self._drop(head.sender, "It does not match the request that it names.")
                    return
                self.pending.handle_response(head, content)
                self.proposals.on_response(head, content)
            case Request():
                if head.sender != self.id:
                    self.proposals.on_request(head, content)
                self.responder.on_request(head, content, self.id)
            case Notification():
                self.responder.on_notification(head, content)
            case payloads.ProposalPayload():
                event_content = self.proposals.on_proposal(head, content)
            case Chat():
                self.proposals.on_chat(head, content)
            case Presence():
                self._handle_presence(content)
            case Problem():
                self._handle_problem(head, content)
        self.listeners.notify(Event(event_content, envelope, verified))

    def _handle_welcome(self, envelope: Envelope, welcome: Welcome) -> None:
        you = welcome.you
        if you.id not in envelope.head.to or (self._is_connected and you.id != self.id):
            return  # for another participant
        earlier_ids = set(self.participants)
        self.id = you.id
        self.capabilities = you.capabilities
        # Other gateways may list patterns that grant nothing, such as `system/*`. Ignore them.
        self._grants = KindGrants(
            pattern for pattern in you.capabilities if not find_pattern_problem(pattern)
        )
        self.participants = {
            participant.id: participant.capabilities
            for participant in welcome.participants
            if participant.id != you.id
        }
        self._is_connected = True
        for former_id in earlier_ids - self.participants.keys():
            self._on_leave(former_id)
        self._on_welcome()
        self.listeners.notify(Event(welcome, envelope))

    def _handle_presence(self, presence: Presence) -> None:
        participant = presence.participant
        if participant.id == self.id:
            return  # the welcome has more information
        if presence.event == JOIN:
            self.participants[participant.id] = participant.capabilities
        elif self.participants.pop(participant.id, None) is not None:
            self._on_leave(participant.id)

    def _on_leave(self, participant: str) -> None:
        self.pending.on_leave(participant)
        self.responder.on_leave(participant)

    def _handle_problem(self, head: EnvelopeHeader, problem: Problem) -> None:
        if self.id not in head.to:
            # A notice about a message of another participant, which chose the correlation id.
            return
        self.lost_messages += max(problem.lost, 0)
        failure = _FAILURES.get(problem.error, INVALID_REQUEST)
        sentence = f"The gateway did not forward it: {problem.message or problem.error}"
        error = InterlockError(failure, sentence, {"error": problem.error})
        self.pending.fail(head.correlation_id, error)
        self.proposals.fail(head.correlation_id, error)

    def _drop(self, sender: str, reason: str) -> None:
        self.dropped_messages += 1
        sender = sender[:_MAX_SHOWN]
        self._dropped_by_sender[sender] += 1
        if len(self._dropped_by_sender) > MAX_MISBEHAVING_PARTICIPANTS:
            sender_id, _ = self._dropped_by_sender.most_common()[-2:][0]
            del self._dropped_by_sender[sender_id]
        _log.info("topic client: message of %r discarded: %s", sender, reason[:_MAX_SHOWN])
