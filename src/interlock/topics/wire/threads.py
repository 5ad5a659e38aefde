"""Which messages belong together: what was asked, proposed, fulfilled and answered, by ids.

A response does not say what it answers but by the id of an envelope, so whoever receives it must
have seen that one. The memory is bounded, by messages and by bytes, and keeps no payload: the
oldest are forgotten, and a response to those is neither right nor wrong.

Pure.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from interlock.protocol.kinds import read_kind
from interlock.protocol.mcpx_terms import GATEWAY
from interlock.topics.wire.envelope import Envelope, EnvelopeHeader
from interlock.topics.wire.payloads import Content, ProposalPayload, Request, Response

MOST: Final = 4_096
MOST_BYTES: Final = 8 * 1024 * 1024
_EACH: Final = 200
"""What a message costs beside its own texts, roughly."""
_decode_text: Final = msgspec.json.Decoder(str).decode


class ThreadMessage(msgspec.Struct, frozen=True):
    """A message that came by, without its payload."""

    head: EnvelopeHeader
    method: str = ""
    context: str = ""
    request_id: str | bytes | None = None
    """The JSON-RPC id, of a request: see `id_value`."""
    proposal: bool = False
    weight: int = 0

    @property
    def asked(self) -> bool:
        return self.request_id is not None


class MessageThreads:
    """What was seen lately in one topic, by anybody."""

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._seen: dict[str, ThreadMessage] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._seen)

    def record(self, envelope: Envelope, content: Content) -> str:
        """Remember a message. Why it must not be believed, where its id was used before; empty:
        nothing speaks against it."""
        head = envelope.head
        before = self._seen.get(head.id)
        if before is not None:
            if head.sender == GATEWAY:
                return ""
            return f"The id {head.id[:60]!r} was used before, by {before.head.sender[:60]!r}."
        seen = seen_of(head, content)
        self._seen[head.id] = seen
        self._bytes += seen.weight
        while len(self._seen) > self._most or self._bytes > self._most_bytes:
            oldest = next(iter(self._seen))
            self._bytes -= self._seen.pop(oldest).weight
        return ""

    def proposal(self, id: str | None) -> ThreadMessage | None:
        """A proposal that was seen."""
        seen = self._seen.get(id) if id is not None else None
        return seen if seen is not None and seen.proposal else None

    def request(self, id: str | None) -> ThreadMessage | None:
        """A request that was seen."""
        seen = self._seen.get(id) if id is not None else None
        return seen if seen is not None and seen.asked else None

    def fits(self, head: EnvelopeHeader, response: Response) -> bool | None:
        """Whether a response answers the request that it names. None: that was never seen here, so
        nobody can tell."""
        if head.correlation_id is None:
            return False
        if head.correlation_id not in self._seen:
            return None
        asked = self.request(head.correlation_id)
        return asked is not None and answers(asked, head, response)

    def chain(self, id: str) -> tuple[str, ...]:
        """Everything that belongs to a message, in the order in which it came: the proposal, what
        fulfilled it, the responses, the errors. Empty: it was never seen."""
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


def answers(asked: ThreadMessage, head: EnvelopeHeader, response: Response) -> bool:
    """Whether a response is one to this very request: the method, the context and the JSON-RPC id
    are the same, and it comes from somebody who was asked."""
    if asked.head.to and head.sender not in asked.head.to:
        return False
    return (
        id_value(response.id) == asked.request_id
        and response.method == asked.method
        # A request that names no context in its kind may be answered in the same way.
        and response.context in (asked.context, read_kind(asked.head.kind).context)
    )


def id_value(raw: Raw | bytes) -> str | bytes:
    """A JSON-RPC id as something to compare. A peer may write the same text with other escapes; a
    number stays as it is written, for it can have any length."""
    try:
        return _decode_text(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return bytes(raw)


def seen_of(head: EnvelopeHeader, content: Content) -> ThreadMessage:
    """What is kept of a message."""
    weight = _EACH + sum(map(len, (head.id, head.kind, head.sender, *head.to)))
    weight += len(head.correlation_id or "")
    if isinstance(content, Request):
        request_id = id_value(content.id)
        weight += len(request_id) + len(content.context)
        return ThreadMessage(head, content.method, content.context, request_id, weight=weight)
    if isinstance(content, ProposalPayload):
        weight += len(content.context)
        return ThreadMessage(head, content.method, content.context, proposal=True, weight=weight)
    return ThreadMessage(head, weight=weight)
