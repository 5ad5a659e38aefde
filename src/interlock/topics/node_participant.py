"""The node as a participant of a topic: the messages that it receives and sends.

It is a member like any other, with directed routing: it receives messages addressed to it or to
everybody. Requests go to `requests.py`, proposals to `proposals.py`. Other parts, such as an
upstream that is a participant, receive messages with `add_listener`. Nothing is trusted unchecked:
a message whose kind does not match its payload, or whose id was used before, is dropped and counted
as rejected.

The node does no work while the room delivers. Messages wait in `NodeInbox` and are handled in the
next turns of the event loop, a limited number in each, because the node has other clients too. A
participant that sends faster than the node reads is disconnected. The sender of a message, and
whether its id is new, are determined at once: another member may have that id, or use that message
id, a moment later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Raw

from interlock.core.call import Caller, Credentials
from interlock.core.catalog.catalog import Catalog
from interlock.core.journal.audit import Audit
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.server.mcp.server_info import ServerInfo
from interlock.errors import (
    INVALID_REQUEST,
    PAYLOAD_TOO_LARGE,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
    ProtocolError,
)
from interlock.primitives.bounded_dict import BoundedDict
from interlock.protocol import kinds
from interlock.protocol.mcp import TOOLS_CALL
from interlock.protocol.mcpx_terms import (
    GUEST,
    LEAVE,
    MAX_ENVELOPE_BYTES,
    PRESENCE,
    SLOW_READER_CODE,
)
from interlock.topics.gateway import Gateway
from interlock.topics.member import Batch, Member, ParticipantProfile
from interlock.topics.proposals import Fulfilments, ProposalHandler, node_proposal_error
from interlock.topics.requests import NodeRequestHandler
from interlock.topics.room import DIRECTED, Room
from interlock.topics.wire.envelope import EnvelopeHeader, read_envelope, write_envelope
from interlock.topics.wire.payloads import (
    Notification,
    PayloadError,
    Presence,
    ProposalPayload,
    Request,
    read_content,
)
from interlock.trust.approvals.service import Approvals

# -- Messages of a room that wait for the node: one queue for each participant, handled in turns, so
# that no participant waits behind the messages of another.
#
# The size is bounded, for each participant and in total. What the gateway says about a participant
# is in the queue of that participant: it leaves after its messages, not before.

MAX_WAITING_MESSAGES: Final = 1_000
"""The maximum number of messages of one participant that wait for the node."""
MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
MAX_TOTAL_WAITING_BYTES: Final = 64 * 1024 * 1024
_MESSAGE_OVERHEAD_BYTES: Final = 500
"""The approximate overhead of a message beside its text."""


class NodeMessage(NamedTuple):
    """A message for the node."""

    member: Member | None
    """The sender. None: the gateway."""
    head: EnvelopeHeader
    text: bytes
    is_new: bool = True
    """True if no earlier message had its id."""

    @property
    def is_counted(self) -> bool:
        """True for messages that count against the limits of their sender. Those of the gateway and
        of the node's own members do not."""
        return self.member is not None and not self.member.internal

    @property
    def weight(self) -> int:
        return len(self.text) + _MESSAGE_OVERHEAD_BYTES


class _ParticipantQueue:
    """The waiting messages of one participant."""

    __slots__ = ("byte_count", "message_count", "messages")

    def __init__(self) -> None:
        self.messages: deque[NodeMessage] = deque()
        self.message_count = 0
        self.byte_count = 0

    def update_counts(self, message: NodeMessage, sign: int) -> int:
        """Add or subtract a message from the counts. Returns the change in bytes."""
        if not message.is_counted:
            return 0
        self.message_count += sign
        self.byte_count += sign * message.weight
        return sign * message.weight


class NodeInbox:
    """The messages of one room that wait for the node."""

    def __init__(self) -> None:
        self._queues: dict[str, _ParticipantQueue] = {}
        """By participant, in the order of their turns."""
        self.byte_count = 0

    def __bool__(self) -> bool:
        return bool(self._queues)

    @property
    def message_count(self) -> int:
        """The number of waiting messages of participants."""
        return sum(queue.message_count for queue in self._queues.values())

    def add(self, participant: str, message: NodeMessage) -> None:
        queue = self._queues.get(participant)
        if queue is None:
            queue = self._queues[participant] = _ParticipantQueue()
        queue.messages.append(message)
        self.byte_count += queue.update_counts(message, 1)

    def pop(self) -> NodeMessage:
        """Remove and return the next message."""
        participant = next(iter(self._queues))
        queue = self._queues.pop(participant)
        message = queue.messages.popleft()
        self.byte_count += queue.update_counts(message, -1)
        if queue.messages:
            self._queues[participant] = queue
        return message

    def find_largest_excess(self) -> str | None:
        """Return the participant with the most bytes if the total exceeds the limit, else None."""
        if self.byte_count <= MAX_TOTAL_WAITING_BYTES:
            return None
        return max(self._queues, key=lambda participant: self._queues[participant].byte_count)

    def exceeds_limit(self, participant: str) -> bool:
        """Return whether a participant exceeds its limit."""
        queue = self._queues.get(participant)
        return queue is not None and (
            queue.message_count > MAX_WAITING_MESSAGES or queue.byte_count > MAX_WAITING_BYTES
        )

    def remove_messages(self, participant: str) -> list[NodeMessage]:
        """Remove and return the messages of a participant. What the gateway said about it stays."""
        queue = self._queues.pop(participant, None)
        if queue is None:
            return []
        self.byte_count -= queue.byte_count
        for message in queue.messages:
            if not message.is_counted:
                self.add(participant, message)
        return [message for message in queue.messages if message.is_counted]


INTERNAL_CREDENTIALS: Final = Credentials("inside")
"""The credentials of the node's own members. They authenticate nobody, and no call is made with
them."""
CAPABILITIES: Final = ("mcp/*", kinds.CHAT)
MAX_STORED_IDS: Final = 4_096
"""The maximum number of message ids that are stored."""
MAX_MESSAGES_PER_TURN: Final = 32
"""The maximum number of messages of participants that are handled in one turn of the event loop."""
MAX_BYTES_PER_TURN: Final = 64 * 1024
"""The maximum number of bytes of these messages. The message that exceeds it is the last."""
MAX_GUEST_MESSAGE_BYTES: Final = 4 * 1024
"""The maximum size of a message of a guest. Guests cannot call tools, so longer messages are not
parsed."""

_MCP: Final = "mcp/"
_HANDLED_PREFIXES: Final = (f"{kinds.REQUEST}:", f"{kinds.PROPOSAL}:")
"""Prefixes of the kinds that a node handles."""
_PROPOSAL: Final = f"{kinds.PROPOSAL}:"
_RESPONSE: Final = f"{kinds.RESPONSE}:"
_REUSED_ID: Final = "its id was used before"

_log = logging.getLogger("interlock.topics")

MessageListener = Callable[[EnvelopeHeader, bytes], None]
"""Receives a message: its head and the whole envelope."""


def _check_capability(
    member: Member, head: EnvelopeHeader, content: Request | ProposalPayload
) -> None:
    """Check the capability for the kind with its context. Raises PayloadError.

    MCPx lets a kind leave its context out, and the gateway checks only the kind. So the node
    checks the complete kind against the capabilities of the sender.
    """
    if not content.context or kinds.read_kind(head.kind).context:
        return
    make_kind = kinds.request_kind if isinstance(content, Request) else kinds.proposal_kind
    full_kind = make_kind(content.method, content.context)
    if not member.grants.grants(full_kind):
        raise PayloadError(
            f"The kind omits the context {content.context[:100]!r}, and you may not send that "
            "context. Only a sender that may send every context of a kind may omit it."
        )


def _make_message_key(head: EnvelopeHeader) -> str | tuple[str, str]:
    """Return the key by which a message is unique. Responses are unique per sender, so that a
    participant cannot block the response of another by using its id first."""
    return (head.sender, head.id) if head.kind.startswith(_RESPONSE) else head.id


def _read_presence_id(text: bytes) -> str:
    """Return the participant that a presence message is about. Empty for other messages."""
    try:
        content = read_content(read_envelope(text))
    except ProtocolError:
        return ""
    return content.participant.id if isinstance(content, Presence) else ""


class NodeParticipant:
    """The node in one room."""

    def __init__(
        self,
        gateway: Gateway,
        room: Room,
        *,
        id: str,
        pipeline: Pipeline,
        approvals: Approvals | None,
        server_info: ServerInfo,
        catalog: Catalog,
        audit: Audit | None,
        call_soon: Callable[[Callable[[], None]], Any],
        new_id: Callable[[], str],
        now: Callable[[], str],
        fulfilments: Fulfilments | None = None,
    ) -> None:
        """Join the room.

        Args:
            now: returns the time as RFC 3339 text.
            fulfilments: calls under way, shared with an earlier participant of the node in this
                room.
        """
        self.id = id
        self.topic = room.name
        self._listeners: list[tuple[frozenset[str], MessageListener]] = []
        self._gateway = gateway
        self._room = room
        self._call_soon = call_soon
        self._new_id = new_id
        self._now = now
        self._ids: BoundedDict[str | tuple[str, str], None] = BoundedDict(MAX_STORED_IDS)
        self._inbox = NodeInbox()
        self._unhandled_proposals: dict[str, None] = {}
        """Proposals that the room has seen and the node has not handled yet."""
        self._is_scheduled = False
        self._disconnecting: set[Member] = set()
        """Members whose messages are ignored until they are disconnected."""
        self._closed = False
        self._requests = NodeRequestHandler(
            self, pipeline, catalog=catalog, server_info=server_info
        )
        self._proposals = ProposalHandler(
            self, pipeline, approvals, server_info=server_info, audit=audit, fulfilments=fulfilments
        )
        self._member = gateway.add_member(
            room.name,
            ParticipantProfile(id, CAPABILITIES, DIRECTED),
            self,
            caller=Caller(id, can_call=False, can_register=False, kind="node"),
            credentials=INTERNAL_CREDENTIALS,
            internal=True,
        )

    # -- sending

    def send(
        self,
        kind: str,
        payload: bytes | Raw,
        to: Sequence[str] = (),
        correlation_id: str | None = None,
    ) -> str:
        """Send a message and return the id of its envelope. Nobody receives it before this returns.

        Raises InterlockError if it is too long or the node has left the room.
        """
        id = self._new_id()
        text = write_envelope(
            id=id,
            sender=self.id,
            kind=kind,
            payload=payload,
            to=to,
            correlation_id=correlation_id,
            ts=self._now(),
        )
        if len(text) > MAX_ENVELOPE_BYTES:
            raise InterlockError(
                PAYLOAD_TOO_LARGE,
                f"The message has {len(text)} bytes. The limit of a topic is {MAX_ENVELOPE_BYTES}.",
            )
        if self._closed:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"The node has disconnected from the topic {self.topic}."
            )
        self._register_id(id)
        if self._room.send(self._member, text) is None:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"The topic {self.topic} rejected {kind[:100]!r} from the node.",
            )
        return id

    # -- receiving

    def add_listener(self, listener: MessageListener, participants: Collection[str]) -> None:
        """Call `listener` for the messages of these participants, except chats, and for those of
        the gateway. The messages of one participant come in order."""
        self._listeners.append((frozenset(participants), listener))

    def deliver(self, batch: Batch) -> None:
        """Queue the messages of the room for the node.

        Messages of a member that has left are dropped: its id may belong to another member, which
        is not responsible for them.
        """
        if self._closed:
            return
        members = self._room.members
        for sender, head, text in zip(batch.senders, batch.heads, batch.texts, strict=True):
            if sender is None:
                self._inbox.add(_read_presence_id(text), NodeMessage(None, head, text))
            elif members.get(sender.id) is sender and sender not in self._disconnecting:
                self._enqueue(sender, head, text)
        self._schedule()

    def _enqueue(self, sender: Member, head: EnvelopeHeader, text: bytes) -> None:
        is_new = self._register_id(_make_message_key(head))
        if not self._is_handled(head):
            if not is_new:
                self._count_rejection(sender, head, _REUSED_ID)
            return
        self._inbox.add(sender.id, NodeMessage(sender, head, text, is_new))
        if is_new and head.kind.startswith(_PROPOSAL):
            self._unhandled_proposals[head.id] = None
        if sender.internal:
            return
        if self._inbox.exceeds_limit(sender.id):
            self._drop_participant(sender.id)
        elif (participant := self._inbox.find_largest_excess()) is not None:
            self._drop_participant(participant)

    def _is_handled(self, head: EnvelopeHeader) -> bool:
        """Return whether any part of the node handles the message. Other messages are not
        stored."""
        if head.kind.startswith(_PROPOSAL):
            # Proposals to everybody are for the people in the room.
            return self.id in head.to
        if head.kind.startswith(_HANDLED_PREFIXES):
            return True
        return head.kind.startswith(_MCP) and any(
            head.sender in participants for participants, _ in self._listeners
        )

    def _drop_participant(self, participant: str) -> None:
        """Drop the messages of a participant with too many of them, and disconnect it."""
        messages = self._inbox.remove_messages(participant)
        for message in messages:
            self._unhandled_proposals.pop(message.head.id, None)
        member = messages[-1].member if messages else None
        if member is not None:
            self._disconnecting.add(member)
            self._call_soon(lambda: self._disconnect(member))

    def _disconnect(self, member: Member) -> None:
        reason = f"You sent more requests than {self.id} can handle. Wait for its responses."
        self._gateway.disconnect_member(member, reason, SLOW_READER_CODE)
        # It has left. Another member may have its id now.
        self._disconnecting.discard(member)

    def _schedule(self) -> None:
        if self._inbox and not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._handle_messages)

    def _handle_messages(self) -> None:
        self._is_scheduled = False
        remaining_messages, remaining_bytes = MAX_MESSAGES_PER_TURN, MAX_BYTES_PER_TURN
        while remaining_messages > 0 and remaining_bytes > 0 and self._inbox and not self._closed:
            message = self._inbox.pop()
            if message.is_counted:
                remaining_messages -= 1
                remaining_bytes -= len(message.text)
            try:
                self._handle(message)
            except Exception:
                # One failing message must not cost the others.
                _log.exception("topic %s: failed to handle a message", self.topic)
        self._schedule()

    def _handle(self, message: NodeMessage) -> None:
        member, head, text = message.member, message.head, message.text
        if message.is_new:
            self._unhandled_proposals.pop(head.id, None)
        if member is not None and not (message.is_new and self._is_id_unused(head)):
            self._count_rejection(member, head, _REUSED_ID)
            self._report_reused_id(member, head)
            return
        for participants, listener in self._listeners:
            if member is None or head.sender in participants:
                try:
                    listener(head, text)
                except Exception:
                    _log.exception("topic %s: a listener failed", self.topic)
        if head.kind == PRESENCE or (
            member is not None and head.kind.startswith(_HANDLED_PREFIXES)
        ):
            self._handle_content(member, head, text)

    def _handle_content(self, member: Member | None, head: EnvelopeHeader, text: bytes) -> None:
        """Handle a message for the node after its payload has been checked."""
        payload = b""
        try:
            if (
                member is not None
                and member.caller.kind == GUEST
                and len(text) > MAX_GUEST_MESSAGE_BYTES
            ):
                raise PayloadError(
                    f"Messages of guests to {self.id} have at most {MAX_GUEST_MESSAGE_BYTES} "
                    "bytes. "
                    "Join with a token."
                )
            envelope = read_envelope(text)
            payload = bytes(envelope.payload)
            content = read_content(envelope)
            if member is not None and isinstance(content, Request | ProposalPayload):
                _check_capability(member, head, content)
        except ProtocolError as error:
            if member is not None:
                self._count_rejection(member, head, error.message)
                self._report_invalid(member, head, payload, error)
            return
        if isinstance(content, Presence):
            # From the gateway: `read_content` rejects all others.
            if content.event == LEAVE:
                self._requests.on_leave(content.participant.id)
        elif member is None or member.internal:
            # Unknown sender, or the node's own member: neither makes calls.
            return
        elif isinstance(content, Request):
            if self._reject_duplicate_fulfilment(member, head, content):
                return
            self._requests.handle_request(member, head, content)
        elif isinstance(content, Notification):
            self._requests.handle_notification(member, content)
        elif isinstance(content, ProposalPayload):
            self._proposals.handle_proposal(member, head, content)

    def _reject_duplicate_fulfilment(
        self, member: Member, head: EnvelopeHeader, request: Request
    ) -> bool:
        """Handle a request that fulfils a proposal which the node fulfils itself.

        Returns True if so. The request gets an error if it was sent to the node. A proposal is not
        executed twice because two participants saw it.
        """
        if head.correlation_id is None or request.method != TOOLS_CALL:
            return False
        try:
            if head.correlation_id in self._unhandled_proposals:
                # The request arrived before the node has handled the proposal.
                raise node_proposal_error(head.correlation_id)
            self._proposals.node_proposals.check_open_to_others(head.correlation_id)
        except InterlockError as error:
            self._requests.reject_request(member, head, request, error)
            return True
        return False

    def _report_invalid(
        self, member: Member, head: EnvelopeHeader, payload: bytes, error: InterlockError
    ) -> None:
        """Tell the sender of an invalid message to the node what was wrong."""
        if self.id not in head.to:
            return
        if head.kind.startswith(kinds.REQUEST):
            self._requests.reject_invalid(member, head, payload, error)
        elif head.kind.startswith(kinds.PROPOSAL):
            text = f"Rejected: {error.message}"
            self._proposals.send_chat(member.id, head.id, text, end_reason=error.failure.name)

    def _report_reused_id(self, member: Member, head: EnvelopeHeader) -> None:
        """Report a reused message id in a chat without a correlation id.

        A response with that id would be taken for a response to its first user.
        """
        if self.id in head.to and head.kind.startswith(_HANDLED_PREFIXES):
            text = f"Your message was rejected: its id {head.id!r} was used before. Each message "
            self._proposals.send_chat(member.id, None, f"{text}needs a new id.")

    def _register_id(self, id: str | tuple[str, str]) -> bool:
        """Return whether no stored message had this id, and store it."""
        if id in self._ids:
            return False
        self._ids[id] = None
        return True

    def _is_id_unused(self, head: EnvelopeHeader) -> bool:
        """Return whether nothing with this id is pending, however old it is."""
        if not head.kind.startswith(_HANDLED_PREFIXES):
            return True
        return not (
            self._requests.is_pending(head.id) or self._proposals.node_proposals.is_open(head.id)
        )

    def _count_rejection(self, member: Member, head: EnvelopeHeader, reason: str) -> None:
        """Count an invalid message as rejected, as if the gateway had rejected it."""
        _log.debug("topic %s: invalid message of %.100r: %s", self.topic, head.sender, reason)
        if member.internal:
            member.rejected += 1
            return
        # Not while the room delivers: this may disconnect the sender.
        self._call_soon(lambda: self._room.count_rejection(member, INVALID_REQUEST.mcpx, head.kind))

    # -- leaving

    def close(self, code: int | None = None, reason: str = "") -> None:
        """Leave the room. With a `code` the room has already removed the node."""
        if self._closed:
            return
        self._requests.close()
        self._proposals.close()
        self._closed = True
        if code is None and self._room.members.get(self.id) is self._member:
            self._gateway.leave(self._member, reason)
