"""A link to one participant of a topic: JSON-RPC in envelopes, which the node says in the room.

Everybody in a room can send anything to the node, and everybody sees what the node asks. So an
answer counts only if it fits in every way what was asked: it comes from the participant who was
asked, names the envelope of the request, has its kind, and its JSON-RPC id. What does not fit
settles nothing.

Touches no socket: it says things by a function, and is told what was heard.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from interlock.errors import (
    PAYLOAD_TOO_LARGE,
    UPSTREAM_LOST,
    InterlockError,
    ProtocolError,
)
from interlock.protocol import jsonrpc, mcp
from interlock.protocol.kinds import CONTEXT_MEMBER, REQUEST, RESPONSE, request_kind
from interlock.protocol.kinds import LONGEST as LONGEST_KIND
from interlock.protocol.mcpx.envelope import Head, read_envelope
from interlock.protocol.mcpx.words import LONGEST
from interlock.upstreams.links.link import NobodyYet, OneChannel, Receiver, Ticket

Say = Callable[[str, bytes, Sequence[str], str | None], str]
"""Says something in the room: kind, payload, to whom, what it is about. Returns the envelope's id;
empty, or InterlockError: it was not said."""

HEAD_ROOM: Final = 8 * 1024
"""What an envelope may have beside its payload: a kind, ids, times."""

_HEARD: Final = frozenset(
    f"{REQUEST}:{method}"
    for method in (
        mcp.TOOLS_CHANGED,
        mcp.PROMPTS_CHANGED,
        mcp.RESOURCES_CHANGED,
        mcp.RESOURCE_UPDATED,
        mcp.PROGRESS,
        mcp.LOG_MESSAGE,
    )
)
"""What a server says unasked. Requests of the participant are none of the link's business."""


class _Named(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    uri: str = ""


class _Said(msgspec.Struct, gc=False):
    """What of a message the kind of its envelope is made from. The message is our own."""

    method: str
    params: _Named = _Named()


class _Cancelled(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    request_id: int = -1


class _Cancels(msgspec.Struct, gc=False):
    params: _Cancelled = _Cancelled()


_decode_said = msgspec.json.Decoder(_Said).decode
_decode_cancels = msgspec.json.Decoder(_Cancels).decode


def kind_of(payload: bytes) -> tuple[str, str]:
    """The kind under which a request or notification of our own goes, and its method."""
    said = _decode_said(payload)
    member = CONTEXT_MEMBER.get(said.method)
    context = "" if member is None else getattr(said.params, member)
    return request_kind(said.method, context), said.method


class ParticipantLink(OneChannel):
    """Carries the requests of one peer to one participant."""

    receiver: Receiver

    def __init__(self, label: str, participant: str, say: Say) -> None:
        self.label = label
        self.participant = participant
        self.receiver = NobodyYet()
        self._to = (participant,)
        self._say = say
        self._sent: dict[str, tuple[Ticket, str]] = {}
        """Requests that are not answered yet: by their envelope, with the kind of the answer."""
        self._envelope_of: dict[int, str] = {}
        """The same envelopes, by JSON-RPC id."""
        self._over = False

    @property
    def under_way(self) -> int:
        """How many requests wait for an answer."""
        return len(self._sent)

    # -- what is heard

    def take(self, head: Head, text: bytes) -> None:
        """Something that the participant said, to the node or to everybody."""
        if self._over or head.sender != self.participant:
            return
        asked = None if head.correlation_id is None else self._sent.get(head.correlation_id)
        if head.kind.startswith(RESPONSE):
            if asked is None:
                # Late, or about what another asked.
                return
            self._answered(head, text, *asked)
        elif head.kind in _HEARD:
            payload = self._readable(text, method=head.kind[len(REQUEST) + 1 :])
            if payload is not None:
                self.receiver.deliver(payload, None if asked is None else asked[0])

    def _answered(self, head: Head, text: bytes, ticket: Ticket, kind: str) -> None:
        if head.kind != kind:
            self._unfit(ticket, f"it named the answer {head.kind[:100]!r} and not {kind[:100]!r}")
            return
        try:
            payload = bytes(read_envelope(text).payload)
            message = jsonrpc.decode_one(payload)
        except ProtocolError as error:
            self._unfit(ticket, error.message.rstrip("."))
            return
        if not message.is_response or bytes(message.id) != b"%d" % ticket.id:  # type: ignore[arg-type]
            self._unfit(ticket, "the answer has another JSON-RPC id than the request")
            return
        self._forget(ticket)
        self.receiver.deliver(payload, ticket)

    def _unfit(self, ticket: Ticket, why: str) -> None:
        """It was asked and it answered, but not what was asked: nobody waits for another try."""
        self._forget(ticket)
        self.receiver.undelivered(ticket.id, f"{why}.")

    def _readable(self, text: bytes, *, method: str) -> bytes | None:
        """The payload of a notification that is what its kind says."""
        try:
            payload = bytes(read_envelope(text).payload)
            message = jsonrpc.decode_one(payload)
        except ProtocolError:
            return None
        if message.method != method or message.id is not UNSET:
            return None
        return payload

    def lost(self, reason: str) -> None:
        """The participant has left the room: everybody who waits is told."""
        if not self._over:
            self._end()
            self.receiver.lost(reason)

    def _end(self) -> None:
        self._over = True
        self._sent.clear()
        self._envelope_of.clear()

    # -- Link

    def send(self, ticket: Ticket, payload: bytes, headers: bytes) -> None:
        if self._over:
            ticket.fail(UPSTREAM_LOST, f"{self.label} is not in the room.", sent=False)
            return
        kind, _ = kind_of(payload)
        if len(payload) > LONGEST - HEAD_ROOM or len(kind) > LONGEST_KIND:
            words = f"{self.label} cannot be told this: an envelope may have {LONGEST} bytes."
            ticket.fail(PAYLOAD_TOO_LARGE, words, sent=False)
            return
        try:
            envelope = self._say(kind, payload, self._to, None)
        except InterlockError as error:
            ticket.fail(error.failure, error.message, sent=False)
            return
        if not envelope:
            words = f"{self.label} cannot be asked: the room did not take the request."
            ticket.fail(UPSTREAM_LOST, words, sent=False)
            return
        self._sent[envelope] = (ticket, RESPONSE + kind[len(REQUEST) :])
        self._envelope_of[ticket.id] = envelope

    def send_open(self, ticket: Ticket, payload: bytes, headers: bytes) -> None:
        self.send(ticket, payload, headers)

    def post(self, payload: bytes, headers: bytes) -> None:
        if self._over:
            return
        kind, method = kind_of(payload)
        about = None
        if method == mcp.CANCELLED:
            about = self._envelope_of.get(_decode_cancels(payload).params.request_id)
        # Nobody waits for an answer, so nobody needs to know that it was not said.
        with contextlib.suppress(InterlockError):
            self._say(kind, payload, self._to, about)

    async def hand_over(self, payload: bytes) -> None:
        # What is said first is heard first.
        self.post(payload, b"")

    def drop(self, ticket: Ticket) -> None:
        self._forget(ticket)

    def _forget(self, ticket: Ticket) -> None:
        self._sent.pop(self._envelope_of.pop(ticket.id, ""), None)

    async def close(self) -> None:
        """The participant stays where it is: nothing but the conversation is over."""
        self._end()
