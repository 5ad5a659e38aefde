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
    is_proposal: bool = False
    weight: int = 0

    @property
    def is_request(self) -> bool:
        return self.request_id is not None


class MessageThreads:
    """The recent messages of one topic, of all participants."""

    def __init__(self, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._messages: dict[str, ThreadMessage] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    def record(self, envelope: Envelope, content: Content) -> str:
        """Record a message. Returns an error text if its id was used before, else an empty text."""
        head = envelope.head
        earlier_message = self._messages.get(head.id)
        if earlier_message is not None:
            if head.sender == GATEWAY:
                return ""
            return (
                f"The id {head.id[:60]!r} was used before, by {earlier_message.head.sender[:60]!r}."
            )
        message = summarize_message(head, content)
        self._messages[head.id] = message
        self._bytes += message.weight
        while len(self._messages) > self._max_messages or self._bytes > self._max_bytes:
            oldest = next(iter(self._messages))
            self._bytes -= self._messages.pop(oldest).weight
        return ""

    def find_proposal(self, id: str | None) -> ThreadMessage | None:
        """Return the proposal with this id, if it was seen."""
        message = self._messages.get(id) if id is not None else None
        return message if message is not None and message.is_proposal else None

    def find_request(self, id: str | None) -> ThreadMessage | None:
        """Return the request with this id, if it was seen."""
        message = self._messages.get(id) if id is not None else None
        return message if message is not None and message.is_request else None

    def matches_request(self, head: EnvelopeHeader, response: Response) -> bool | None:
        """Return whether a response matches the request that it names. None if the request was not
        seen."""
        if head.correlation_id is None:
            return False
        if head.correlation_id not in self._messages:
            return None
        request = self.find_request(head.correlation_id)
        return request is not None and is_response_to(request, head, response)

    def find_thread(self, id: str) -> tuple[str, ...]:
        """Return the ids of the whole thread of a message, in order of arrival: the proposal, its
        fulfilments, responses and errors. Empty if the message was not seen."""
        if id not in self._messages:
            return ()
        root, ancestors = id, {id}
        while (
            parent := self._messages[root].head.correlation_id
        ) in self._messages and parent not in ancestors:
            assert parent is not None
            root = parent
            ancestors.add(root)
        thread_ids = {root} | ancestors
        for message_id, message in self._messages.items():
            if message.head.correlation_id in thread_ids:
                thread_ids.add(message_id)
        return tuple(message_id for message_id in self._messages if message_id in thread_ids)


def is_response_to(request: ThreadMessage, head: EnvelopeHeader, response: Response) -> bool:
    """Return whether a response belongs to this request.

    The method, the context and the JSON-RPC id must be the same, and the sender must be a recipient
    of the request.
    """
    if request.head.to and head.sender not in request.head.to:
        return False
    return (
        decode_id(response.id) == request.request_id
        and response.method == request.method
        # A response may leave the context out of its kind if the request did.
        and response.context in (request.context, read_kind(request.head.kind).context)
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
        return ThreadMessage(head, content.method, content.context, is_proposal=True, weight=weight)
    return ThreadMessage(head, weight=weight)
