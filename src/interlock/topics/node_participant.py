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
        return self.member is not None and not self.member.inside

    @property
    def weight(self) -> int:
        return len(self.text) + _MESSAGE_OVERHEAD_BYTES


class _ParticipantQueue:
    """The waiting messages of one participant."""

    __slots__ = ("bytes", "messages", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[NodeMessage] = deque()
        self.messages = 0
        self.bytes = 0

    def count(self, one: NodeMessage, sign: int) -> int:
        """Add or subtract a message from the counts. Returns the change in bytes."""
        if not one.is_counted:
            return 0
        self.messages += sign
        self.bytes += sign * one.weight
        return sign * one.weight


class NodeInbox:
    """The messages of one room that wait for the node."""

    def __init__(self) -> None:
        self._lines: dict[str, _ParticipantQueue] = {}
        """By participant, in the order of their turns."""
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._lines)

    @property
    def messages(self) -> int:
        """The number of waiting messages of participants."""
        return sum(line.messages for line in self._lines.values())

    def add(self, whose: str, one: NodeMessage) -> None:
        line = self._lines.get(whose)
        if line is None:
            line = self._lines[whose] = _ParticipantQueue()
        line.waiting.append(one)
        self.bytes += line.count(one, 1)

    def take(self) -> NodeMessage:
        """Remove and return the next message."""
        whose = next(iter(self._lines))
        line = self._lines.pop(whose)
        one = line.waiting.popleft()
        self.bytes += line.count(one, -1)
        if line.waiting:
            self._lines[whose] = line
        return one

    def too_much_of(self) -> str | None:
        """Return the participant with the most bytes if the total exceeds the limit, else None."""
        if self.bytes <= MAX_TOTAL_WAITING_BYTES:
            return None
        return max(self._lines, key=lambda whose: self._lines[whose].bytes)

    def is_too_much(self, whose: str) -> bool:
        """Return whether a participant exceeds its limit."""
        line = self._lines.get(whose)
        return line is not None and (
            line.messages > MAX_WAITING_MESSAGES or line.bytes > MAX_WAITING_BYTES
        )

    def drop(self, whose: str) -> list[NodeMessage]:
        """Remove and return the messages of a participant. What the gateway said about it stays."""
        line = self._lines.pop(whose, None)
        if line is None:
            return []
        self.bytes -= line.bytes
        for one in line.waiting:
            if not one.is_counted:
                self.add(whose, one)
        return [one for one in line.waiting if one.is_counted]


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
    named = kinds.request_kind if isinstance(content, Request) else kinds.proposal_kind
    whole = named(content.method, content.context)
    if not member.grants.grants(whole):
        raise PayloadError(
            f"The kind leaves out {content.context[:100]!r}, which you may not send: only "
            "a sender that may send every context of a kind may leave it out."
        )


def _make_message_key(head: EnvelopeHeader) -> str | tuple[str, str]:
    """Return the key by which a message is unique. Responses are unique per sender, so that a
    participant cannot block the response of another by using its id first."""
    return (head.sender, head.id) if head.kind.startswith(_RESPONSE) else head.id


def _read_presence_id(text: bytes) -> str:
    """Return the participant that a presence message is about. Empty for other messages."""
    try:
        said = read_content(read_envelope(text))
    except ProtocolError:
        return ""
    return said.participant.id if isinstance(said, Presence) else ""


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
        hello: ServerInfo,
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
        self._arrivals = NodeInbox()
        self._coming: dict[str, None] = {}
        """Proposals that the room has seen and the node has not handled yet."""
        self._taking = False
        self._let_go: set[Member] = set()
        """Members whose messages are ignored until they are disconnected."""
        self._closed = False
        self._asking = NodeRequestHandler(self, pipeline, catalog=catalog, hello=hello)
        self._proposing = ProposalHandler(
            self, pipeline, approvals, hello=hello, audit=audit, fulfilments=fulfilments
        )
        self._member = gateway.enter(
            room.name,
            ParticipantProfile(id, CAPABILITIES, DIRECTED),
            self,
            caller=Caller(id, can_call=False, can_register=False, kind="node"),
            credentials=INTERNAL_CREDENTIALS,
            inside=True,
        )

    # -- sending

    def say(
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
            raise InterlockError(UPSTREAM_UNAVAILABLE, f"The node has left the topic {self.topic}.")
        self._is_new(id)
        if self._room.say(self._member, text) is None:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"The topic {self.topic} rejected {kind[:100]!r} from the node.",
            )
        return id

    # -- receiving

    def listen(self, told: MessageListener, of: Collection[str]) -> None:
        """Call `told` for the messages of these participants, except chats, and for those of the
        gateway. The messages of one participant come in order."""
        self._listeners.append((frozenset(of), told))

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
                self._arrivals.add(_read_presence_id(text), NodeMessage(None, head, text))
            elif members.get(sender.id) is sender and sender not in self._let_go:
                self._arrived(sender, head, text)
        self._take_soon()

    def _arrived(self, sender: Member, head: EnvelopeHeader, text: bytes) -> None:
        is_new = self._is_new(_make_message_key(head))
        if not self._is_wanted(head):
            if not is_new:
                self._count(sender, head, _REUSED_ID)
            return
        self._arrivals.add(sender.id, NodeMessage(sender, head, text, is_new))
        if is_new and head.kind.startswith(_PROPOSAL):
            self._coming[head.id] = None
        if sender.inside:
            return
        if self._arrivals.is_too_much(sender.id):
            self._send_away(sender.id)
        elif (most := self._arrivals.too_much_of()) is not None:
            self._send_away(most)

    def _is_wanted(self, head: EnvelopeHeader) -> bool:
        """Return whether any part of the node handles the message. Other messages are not
        stored."""
        if head.kind.startswith(_PROPOSAL):
            # Proposals to everybody are for the people in the room.
            return self.id in head.to
        if head.kind.startswith(_HANDLED_PREFIXES):
            return True
        return head.kind.startswith(_MCP) and any(head.sender in of for of, _ in self._listeners)

    def _send_away(self, whose: str) -> None:
        """Drop the messages of a participant with too many of them, and disconnect it."""
        dropped = self._arrivals.drop(whose)
        for one in dropped:
            self._coming.pop(one.head.id, None)
        member = dropped[-1].member if dropped else None
        if member is not None:
            self._let_go.add(member)
            self._call_soon(lambda: self._let_it_go(member))

    def _let_it_go(self, member: Member) -> None:
        why = f"You sent more requests than {self.id} can handle. Wait for its responses."
        self._gateway.disconnect_member(member, why, SLOW_READER_CODE)
        # It has left. Another member may have its id now.
        self._let_go.discard(member)

    def _take_soon(self) -> None:
        if self._arrivals and not self._taking:
            self._taking = True
            self._call_soon(self._take)

    def _take(self) -> None:
        self._taking = False
        left, room = MAX_MESSAGES_PER_TURN, MAX_BYTES_PER_TURN
        while left > 0 and room > 0 and self._arrivals and not self._closed:
            one = self._arrivals.take()
            if one.is_counted:
                left -= 1
                room -= len(one.text)
            try:
                self._hear(one)
            except Exception:
                # One failing message must not cost the others.
                _log.exception("topic %s: failed to handle a message", self.topic)
        self._take_soon()

    def _hear(self, one: NodeMessage) -> None:
        member, head, text = one.member, one.head, one.text
        if one.is_new:
            self._coming.pop(head.id, None)
        if member is not None and not (one.is_new and self._is_free(head)):
            self._count(member, head, _REUSED_ID)
            self._tell_of_reuse(member, head)
            return
        for of, told in self._listeners:
            if member is None or head.sender in of:
                try:
                    told(head, text)
                except Exception:
                    _log.exception("topic %s: a listener failed", self.topic)
        if head.kind == PRESENCE or (
            member is not None and head.kind.startswith(_HANDLED_PREFIXES)
        ):
            self._read(member, head, text)

    def _read(self, member: Member | None, head: EnvelopeHeader, text: bytes) -> None:
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
        except ProtocolError as lie:
            if member is not None:
                self._count(member, head, lie.message)
                self._report(member, head, payload, lie)
            return
        if isinstance(content, Presence):
            # From the gateway: `read_content` rejects all others.
            if content.event == LEAVE:
                self._asking.left(content.participant.id)
        elif member is None or member.inside:
            # Unknown sender, or the node's own member: neither makes calls.
            return
        elif isinstance(content, Request):
            if self._is_made_here(member, head, content):
                return
            self._asking.request(member, head, content)
        elif isinstance(content, Notification):
            self._asking.notified(member, content)
        elif isinstance(content, ProposalPayload):
            self._proposing.propose(member, head, content)

    def _is_made_here(self, member: Member, head: EnvelopeHeader, request: Request) -> bool:
        """Handle a request that fulfils a proposal which the node fulfils itself.

        Returns True if so. The request gets an error if it was sent to the node. A proposal is not
        executed twice because two participants saw it.
        """
        if head.correlation_id is None or request.method != TOOLS_CALL:
            return False
        try:
            if head.correlation_id in self._coming:
                # The request arrived before the node has handled the proposal.
                raise node_proposal_error(head.correlation_id)
            self._proposing.made_here.must_be_open_to_others(head.correlation_id)
        except InterlockError as error:
            self._asking.refuse(member, head, request, error)
            return True
        return False

    def _report(
        self, member: Member, head: EnvelopeHeader, payload: bytes, lie: InterlockError
    ) -> None:
        """Tell the sender of an invalid message to the node what was wrong."""
        if self.id not in head.to:
            return
        if head.kind.startswith(kinds.REQUEST):
            self._asking.lied(member, head, payload, lie)
        elif head.kind.startswith(kinds.PROPOSAL):
            said = f"Rejected: {lie.message}"
            self._proposing.chat(member.id, head.id, said, ended=lie.failure.name)

    def _tell_of_reuse(self, member: Member, head: EnvelopeHeader) -> None:
        """Report a reused message id in a chat without a correlation id.

        A response with that id would be taken for a response to its first user.
        """
        if self.id in head.to and head.kind.startswith(_HANDLED_PREFIXES):
            said = f"Your message was dropped: its id {head.id!r} was used before. Each message "
            self._proposing.chat(member.id, None, f"{said}needs a new id.")

    def _is_new(self, id: str | tuple[str, str]) -> bool:
        """Return whether no stored message had this id, and store it."""
        if id in self._ids:
            return False
        self._ids[id] = None
        return True

    def _is_free(self, head: EnvelopeHeader) -> bool:
        """Return whether nothing with this id is pending, however old it is."""
        if not head.kind.startswith(_HANDLED_PREFIXES):
            return True
        return not (
            self._asking.is_under_way(head.id) or self._proposing.made_here.is_open(head.id)
        )

    def _count(self, member: Member, head: EnvelopeHeader, why: str) -> None:
        """Count an invalid message as rejected, as if the gateway had rejected it."""
        _log.debug("topic %s: invalid message of %.100r: %s", self.topic, head.sender, why)
        if member.inside:
            member.refused += 1
            return
        # Not while the room delivers: this may disconnect the sender.
        self._call_soon(lambda: self._room.blame(member, INVALID_REQUEST.mcpx, head.kind))

    # -- leaving

    def close(self, code: int | None = None, reason: str = "") -> None:
        """Leave the room. With a `code` the room has already removed the node."""
        if self._closed:
            return
        self._asking.close()
        self._proposing.close()
        self._closed = True
        if code is None and self._room.members.get(self.id) is self._member:
            self._gateway.leave(self._member, reason)
