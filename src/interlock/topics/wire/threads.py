"""Threads of messages: proposals, requests and responses that belong together, linked by ids.

A response names its request only by the id of an envelope, so a receiver must have seen that
request. The memory is bounded in messages and bytes, and keeps no payloads. The oldest messages are
removed first; a response to a removed request cannot be verified.

This module does no I/O.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from interlock.protocol.kinds import read_kind
from interlock.protocol.mcpx_terms import GATEWAY
from interlock.topics.wire.envelope import Envelope, EnvelopeHeader
from interlock.topics.wire.payloads import Content, ProposalPayload, Request, Response

MAX_MESSAGES: Final = 4_096
MAX_BYTES: Final = 8 * 1024 * 1024
_MESSAGE_OVERHEAD_BYTES: Final = 200
"""The approximate overhead of a message beside its own strings."""
_decode_text: Final = msgspec.json.Decoder(str).decode


class ThreadMessage(msgspec.Struct, frozen=True):
    """A message that was seen, without its payload."""

    head: EnvelopeHeader
    method: str = ""
    context: str = ""
    request_id: str | bytes | None = None
    """The JSON-RPC id of a request: see `decode_id`."""
    proposal: bool = False
    weight: int = 0

    @property
    def asked(self) -> bool:
        return self.request_id is not None


class MessageThreads:
    """The recent messages of one topic, of all participants."""

    def __init__(self, most: int = MAX_MESSAGES, most_bytes: int = MAX_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._seen: dict[str, ThreadMessage] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._seen)

    def record(self, envelope: Envelope, content: Content) -> str:
        """Record a message. Returns an error text if its id was used before, else an empty text."""
        head = envelope.head
        before = self._seen.get(head.id)
        if before is not None:
            if head.sender == GATEWAY:
                return ""
            return f"The id {head.id[:60]!r} was used before, by {before.head.sender[:60]!r}."
        seen = summarize_message(head, content)
        self._seen[head.id] = seen
        self._bytes += seen.weight
        while len(self._seen) > self._most or self._bytes > self._most_bytes:
            oldest = next(iter(self._seen))
            self._bytes -= self._seen.pop(oldest).weight
        return ""

    def proposal(self, id: str | None) -> ThreadMessage | None:
        """Return the proposal with this id, if it was seen."""
        seen = self._seen.get(id) if id is not None else None
        return seen if seen is not None and seen.proposal else None

    def request(self, id: str | None) -> ThreadMessage | None:
        """Return the request with this id, if it was seen."""
        seen = self._seen.get(id) if id is not None else None
        return seen if seen is not None and seen.asked else None

    def fits(self, head: EnvelopeHeader, response: Response) -> bool | None:
        """Return whether a response matches the request that it names. None if the request was not
        seen."""
        if head.correlation_id is None:
            return False
        if head.correlation_id not in self._seen:
            return None
        asked = self.request(head.correlation_id)
        return asked is not None and is_response_to(asked, head, response)

    def chain(self, id: str) -> tuple[str, ...]:
        """Return the ids of the whole thread of a message, in order of arrival: the proposal, its
        fulfilments, responses and errors. Empty if the message was not seen."""
        if id not in self._seen:
            return ()
        root, up = id, {id}
        while (above := self._seen[root].head.correlation_id) in self._seen and above not in up:
            assert above is not None
            root = above
            up.add(root)
        found = {root} | up
        for one, seen in self._seen.items():
            if seen.head.correlation_id in found:
                found.add(one)
        return tuple(one for one in self._seen if one in found)


def is_response_to(asked: ThreadMessage, head: EnvelopeHeader, response: Response) -> bool:
    """Return whether a response belongs to this request.

    The method, the context and the JSON-RPC id must be the same, and the sender must be a recipient
    of the request.
    """
    if asked.head.to and head.sender not in asked.head.to:
        return False
    return (
        decode_id(response.id) == asked.request_id
        and response.method == asked.method
        # A response may leave the context out of its kind if the request did.
        and response.context in (asked.context, read_kind(asked.head.kind).context)
    )


def decode_id(raw: Raw | bytes) -> str | bytes:
    """Decode a JSON-RPC id for comparison.

    A peer may write the same string with other escapes. A number stays as written, because it can
    have any length.
    """
    try:
        return _decode_text(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return bytes(raw)


def summarize_message(head: EnvelopeHeader, content: Content) -> ThreadMessage:
    """Return what is stored of a message."""
    weight = _MESSAGE_OVERHEAD_BYTES + sum(map(len, (head.id, head.kind, head.sender, *head.to)))
    weight += len(head.correlation_id or "")
    if isinstance(content, Request):
        request_id = decode_id(content.id)
        weight += len(request_id) + len(content.context)
        return ThreadMessage(head, content.method, content.context, request_id, weight=weight)
    if isinstance(content, ProposalPayload):
        weight += len(content.context)
        return ThreadMessage(head, content.method, content.context, proposal=True, weight=weight)
    return ThreadMessage(head, weight=weight)
