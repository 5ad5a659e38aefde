"""The node as a participant of a topic: what it hears there, and what it says.

It sits in the room like anybody else, in directed mode: it hears what is addressed to it and what
is said to all. Requests go to `requests.py`, proposals to `proposals.py`; who else wants to hear
what some say (an upstream here that is a participant there) uses `listen`. It believes nothing that
it hears: a kind that says something else than its payload, or an id that was there before, leads
nowhere and is counted against its sender.

Nothing is done while the room delivers: messages wait in `NodeInbox` and are taken in the loop's
next turns, so much in each, since there are others whom the node serves. Who has it fall far behind
is let go. Whose message it was, and whether its id is new, is looked up at once, though: somebody
else may have that seat, or say that id, a moment later.
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
from interlock.topics.proposals import Fulfilments, ProposalHandler, given_to_the_node
from interlock.topics.requests import RequestHandler
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

# -- What waits for the node in a room until it is taken: a line for each participant, and one of
# each line in turn, so that nobody waits behind what another has said.
#
# How much may wait is bounded, for one and for all together. What the gateway says about somebody
# stands in the line of that one: it leaves after what it said, and not before.

MOST_BEHIND: Final = 1_000
"""So many messages of one participant wait to be taken."""
MOST_BYTES_BEHIND: Final = 16 * 1024 * 1024
MOST_BYTES_OF_ALL: Final = 64 * 1024 * 1024
_EACH: Final = 500
"""What a message costs beside its text, roughly."""


class NodeMessage(NamedTuple):
    """A message for the node."""

    member: Member | None
    """Who said it. None: the gateway."""
    head: EnvelopeHeader
    text: bytes
    is_new: bool = True
    """Whether no message had its id before."""

    @property
    def is_counted(self) -> bool:
        """What the gateway says, and the node's own members, is not theirs to answer for."""
        return self.member is not None and not self.member.inside

    @property
    def weight(self) -> int:
        return len(self.text) + _EACH


class _Line:
    """Of one participant."""

    __slots__ = ("bytes", "messages", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[NodeMessage] = deque()
        self.messages = 0
        self.bytes = 0

    def count(self, one: NodeMessage, sign: int) -> int:
        """How many bytes that makes more, or less."""
        if not one.is_counted:
            return 0
        self.messages += sign
        self.bytes += sign * one.weight
        return sign * one.weight


class NodeInbox:
    """The messages of one room that wait for the node."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        """By participant, whose turn it is next first."""
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._lines)

    @property
    def messages(self) -> int:
        """How many wait that participants said."""
        return sum(line.messages for line in self._lines.values())

    def add(self, whose: str, one: NodeMessage) -> None:
        line = self._lines.get(whose)
        if line is None:
            line = self._lines[whose] = _Line()
        line.waiting.append(one)
        self.bytes += line.count(one, 1)

    def take(self) -> NodeMessage:
        """The next one, of whose turn it is."""
        whose = next(iter(self._lines))
        line = self._lines.pop(whose)
        one = line.waiting.popleft()
        self.bytes += line.count(one, -1)
        if line.waiting:
            self._lines[whose] = line
        return one

    def too_much_of(self) -> str | None:
        """Whose messages are the most of all, where there are too many of all."""
        if self.bytes <= MOST_BYTES_OF_ALL:
            return None
        return max(self._lines, key=lambda whose: self._lines[whose].bytes)

    def is_too_much(self, whose: str) -> bool:
        """Whether more of one participant waits than may."""
        line = self._lines.get(whose)
        return line is not None and (line.messages > MOST_BEHIND or line.bytes > MOST_BYTES_BEHIND)

    def drop(self, whose: str) -> list[NodeMessage]:
        """What a participant said is not taken any more; what was said about it is."""
        line = self._lines.pop(whose, None)
        if line is None:
            return []
        self.bytes -= line.bytes
        for one in line.waiting:
            if not one.is_counted:
                self.add(whose, one)
        return [one for one in line.waiting if one.is_counted]


INSIDE: Final = Credentials("inside")
"""What the node's own members come with. It authenticates as nobody: no call is made with it."""
CAPABILITIES: Final = ("mcp/*", kinds.CHAT)
MOST_IDS: Final = 4_096
"""So many ids of messages are remembered."""
MOST_IN_TURN: Final = 32
"""Messages of participants that are taken in one turn of the loop."""
MOST_BYTES_IN_TURN: Final = 64 * 1024
"""And so many bytes of them: the one that passes this is the last."""
LONGEST_OF_GUESTS: Final = 4 * 1024
"""Who came without a token can call nothing, so nothing that is longer is looked at."""

_MCP: Final = "mcp/"
_FOR_NODES: Final = (f"{kinds.REQUEST}:", f"{kinds.PROPOSAL}:")
"""How the kinds begin that a node does something about."""
_PROPOSAL: Final = f"{kinds.PROPOSAL}:"
_RESPONSE: Final = f"{kinds.RESPONSE}:"
_REUSED: Final = "its id was there before"

_log = logging.getLogger("interlock.topics")

Heard = Callable[[EnvelopeHeader, bytes], None]
"""Takes a message that the node heard: its head, and the whole envelope."""


def _check_granted(
    member: Member, head: EnvelopeHeader, content: Request | ProposalPayload
) -> None:
    """The draft lets a kind leave its context out, and the gateway judged the kind: so the node
    holds the whole kind against what its sender may say. Raises PayloadError."""
    if not content.context or kinds.read_kind(head.kind).context:
        return
    named = kinds.request_kind if isinstance(content, Request) else kinds.proposal_kind
    whole = named(content.method, content.context)
    if not member.grants.grants(whole):
        raise PayloadError(
            f"The kind leaves out {content.context[:100]!r}, which its sender may not name: only "
            "whoever may send every context of a kind may leave it out."
        )


def _known_by(head: EnvelopeHeader) -> str | tuple[str, str]:
    """By what a message is the same as another. Answers are told apart by who gave them: nobody
    silences another by an id that it will take."""
    return (head.sender, head.id) if head.kind.startswith(_RESPONSE) else head.id


def _whom(text: bytes) -> str:
    """Whom it is about that the gateway said. Empty: nobody in particular."""
    try:
        said = read_content(read_envelope(text))
    except ProtocolError:
        return ""
    return said.participant.id if isinstance(said, Presence) else ""


class NodeParticipant:
    """The node's place in one room."""

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
        """It takes its seat at once. `now`: the time as RFC 3339. `fulfilments`: what whoever had
        the seat before began, and what is begun here."""
        self.id = id
        self.topic = room.name
        self._listeners: list[tuple[frozenset[str], Heard]] = []
        self._gateway = gateway
        self._room = room
        self._call_soon = call_soon
        self._new_id = new_id
        self._now = now
        self._ids: BoundedDict[str | tuple[str, str], None] = BoundedDict(MOST_IDS)
        self._arrivals = NodeInbox()
        self._coming: dict[str, None] = {}
        """Proposals that everybody has heard, and the node has not come to yet."""
        self._taking = False
        self._let_go: set[Member] = set()
        """Whose messages are not taken any more, until it is gone."""
        self._closed = False
        self._asking = RequestHandler(self, pipeline, catalog=catalog, hello=hello)
        self._proposing = ProposalHandler(
            self, pipeline, approvals, hello=hello, audit=audit, fulfilments=fulfilments
        )
        self._member = gateway.enter(
            room.name,
            ParticipantProfile(id, CAPABILITIES, DIRECTED),
            self,
            caller=Caller(id, can_call=False, can_register=False, kind="node"),
            credentials=INSIDE,
            inside=True,
        )

    # -- saying

    def say(
        self,
        kind: str,
        payload: bytes | Raw,
        to: Sequence[str] = (),
        correlation_id: str | None = None,
    ) -> str:
        """Say something; returns the id of the envelope. Nobody hears it before this returns.

        Raises InterlockError when it is too long, or the node is not in the room any more.
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
                f"A message of {len(text)} bytes does not fit into a topic: "
                f"{MAX_ENVELOPE_BYTES} are the most.",
            )
        if self._closed:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"The node is not in the topic {self.topic} any more."
            )
        self._is_new(id)
        if self._room.say(self._member, text) is None:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"The topic {self.topic} did not take {kind[:100]!r} from the node.",
            )
        return id

    # -- hearing

    def listen(self, told: Heard, of: Collection[str]) -> None:
        """Tell somebody what these participants say, but for their chats, and what the gateway
        says: what one says in its order."""
        self._listeners.append((frozenset(of), told))

    def deliver(self, batch: Batch) -> None:
        """Take what the room has for the node. What somebody said who is gone leads nowhere: its
        id may be another's already, who must not answer for it."""
        if self._closed:
            return
        members = self._room.members
        for sender, head, text in zip(batch.senders, batch.heads, batch.texts, strict=True):
            if sender is None:
                self._arrivals.add(_whom(text), NodeMessage(None, head, text))
            elif members.get(sender.id) is sender and sender not in self._let_go:
                self._arrived(sender, head, text)
        self._take_soon()

    def _arrived(self, sender: Member, head: EnvelopeHeader, text: bytes) -> None:
        is_new = self._is_new(_known_by(head))
        if not self._is_wanted(head):
            if not is_new:
                self._count(sender, head, _REUSED)
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
        """Whether anybody here does something about it. What is for others, or is only said, is not
        kept at all."""
        if head.kind.startswith(_PROPOSAL):
            # What is proposed to all is for the people in the room.
            return self.id in head.to
        if head.kind.startswith(_FOR_NODES):
            return True
        return head.kind.startswith(_MCP) and any(head.sender in of for of, _ in self._listeners)

    def _send_away(self, whose: str) -> None:
        """So much of this participant waits that it has to go."""
        dropped = self._arrivals.drop(whose)
        for one in dropped:
            self._coming.pop(one.head.id, None)
        member = dropped[-1].member if dropped else None
        if member is not None:
            self._let_go.add(member)
            self._call_soon(lambda: self._let_it_go(member))

    def _let_it_go(self, member: Member) -> None:
        why = f"You ask more of {self.id} than it can take: wait for its answers."
        self._gateway.disconnect_member(member, why, SLOW_READER_CODE)
        # Nothing of it is heard any more, whoever has its place now.
        self._let_go.discard(member)

    def _take_soon(self) -> None:
        if self._arrivals and not self._taking:
            self._taking = True
            self._call_soon(self._take)

    def _take(self) -> None:
        self._taking = False
        left, room = MOST_IN_TURN, MOST_BYTES_IN_TURN
        while left > 0 and room > 0 and self._arrivals and not self._closed:
            one = self._arrivals.take()
            if one.is_counted:
                left -= 1
                room -= len(one.text)
            try:
                self._hear(one)
            except Exception:
                # One message is not worth the others.
                _log.exception("a message in the topic %s could not be taken", self.topic)
        self._take_soon()

    def _hear(self, one: NodeMessage) -> None:
        member, head, text = one.member, one.head, one.text
        if one.is_new:
            self._coming.pop(head.id, None)
        if member is not None and not (one.is_new and self._is_free(head)):
            self._count(member, head, _REUSED)
            self._tell_of_reuse(member, head)
            return
        for of, told in self._listeners:
            if member is None or head.sender in of:
                try:
                    told(head, text)
                except Exception:
                    _log.exception("somebody who listens in the topic %s failed", self.topic)
        if head.kind == PRESENCE or (member is not None and head.kind.startswith(_FOR_NODES)):
            self._read(member, head, text)

    def _read(self, member: Member | None, head: EnvelopeHeader, text: bytes) -> None:
        """Take what is for the node itself, once it is known to be what it says."""
        payload = b""
        try:
            if member is not None and member.caller.kind == GUEST and len(text) > LONGEST_OF_GUESTS:
                raise PayloadError(
                    f"A message without a token has at most {LONGEST_OF_GUESTS} bytes for "
                    f"{self.id}: come with one."
                )
            envelope = read_envelope(text)
            payload = bytes(envelope.payload)
            content = read_content(envelope)
            if member is not None and isinstance(content, Request | ProposalPayload):
                _check_granted(member, head, content)
        except ProtocolError as lie:
            if member is not None:
                self._count(member, head, lie.message)
                self._report(member, head, payload, lie)
            return
        if isinstance(content, Presence):
            # Only a gateway says that: whatever else claims to be one was a lie.
            if content.event == LEAVE:
                self._asking.left(content.participant.id)
        elif member is None or member.inside:
            # Nobody knows who said it, or it is the node's own: neither makes calls.
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
        """Somebody fulfils a proposal that the node makes itself: it is told so if it asked the
        node, and that is all. Nothing is made twice because two looked at it."""
        if head.correlation_id is None or request.method != TOOLS_CALL:
            return False
        try:
            if head.correlation_id in self._coming:
                # Whoever fulfils it has heard of it sooner than the node came to it.
                raise given_to_the_node(head.correlation_id)
            self._proposing.made_here.must_be_open_to_others(head.correlation_id)
        except InterlockError as error:
            self._asking.refuse(member, head, request, error)
            return True
        return False

    def _report(
        self, member: Member, head: EnvelopeHeader, payload: bytes, lie: InterlockError
    ) -> None:
        """Whoever addressed the node is told what was wrong."""
        if self.id not in head.to:
            return
        if head.kind.startswith(kinds.REQUEST):
            self._asking.lied(member, head, payload, lie)
        elif head.kind.startswith(kinds.PROPOSAL):
            said = f"Not taken: {lie.message}"
            self._proposing.chat(member.id, head.id, said, ended=lie.failure.name)

    def _tell_of_reuse(self, member: Member, head: EnvelopeHeader) -> None:
        """In words, and about no message: an answer about that id would be taken for one to whoever
        had it first."""
        if self.id in head.to and head.kind.startswith(_FOR_NODES):
            said = f"A message of yours was dropped: its id {head.id!r} was there before. Each "
            self._proposing.chat(member.id, None, f"{said}message needs an id of its own.")

    def _is_new(self, id: str | tuple[str, str]) -> bool:
        """Whether no message had this id, as far as is remembered."""
        if id in self._ids:
            return False
        self._ids[id] = None
        return True

    def _is_free(self, head: EnvelopeHeader) -> bool:
        """Whether nothing of this id is under way, however long ago it came."""
        if not head.kind.startswith(_FOR_NODES):
            return True
        return not (
            self._asking.is_under_way(head.id) or self._proposing.made_here.is_open(head.id)
        )

    def _count(self, member: Member, head: EnvelopeHeader, why: str) -> None:
        """A message leads nowhere, and its sender is to blame: as if the gateway had refused it."""
        _log.debug("a message of %.100r in the topic %s: %s", head.sender, self.topic, why)
        if member.inside:
            member.refused += 1
            return
        # Not while the room delivers: who lies too often is let go.
        self._call_soon(lambda: self._room.blame(member, INVALID_REQUEST.mcpx, head.kind))

    # -- leaving

    def close(self, code: int | None = None, reason: str = "") -> None:
        """The room lets the node go; without a code it is the node that leaves."""
        if self._closed:
            return
        self._asking.close()
        self._proposing.close()
        self._closed = True
        if code is None and self._room.members.get(self.id) is self._member:
            self._gateway.leave(self._member, reason)
