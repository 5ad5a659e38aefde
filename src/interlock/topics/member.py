"""Members of a room and the messages for them: the types that rooms, sockets and participants
share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from interlock.core.call import Caller, Credentials
from interlock.primitives.rate_limits import Sampler

if TYPE_CHECKING:
    from interlock.protocol.kinds import KindGrants
    from interlock.topics.wire.envelope import EnvelopeHeader


class Batch(msgspec.Struct, frozen=True):
    """Messages for several receivers, encoded once for all of them."""

    frames: bytes
    """The text frames of a WebSocket server, ready to be written."""
    texts: tuple[bytes, ...]
    """The envelopes as they were received."""
    heads: tuple[EnvelopeHeader, ...]
    senders: tuple[Member | None, ...] = ()
    """The sender of each message at the time of sending; None: the gateway. The id may belong to
    another member by now, so no permission depends on it."""


class MessageSink(Protocol):
    """The destination of messages for a member."""

    def deliver(self, batch: Batch) -> None:
        """Accept messages. Never blocks and never raises, so that one member cannot affect the
        others."""

    def close(self, code: int, reason: str) -> None:
        """Disconnect the member."""


class ParticipantProfile(msgspec.Struct, frozen=True):
    """A participant that may join: its id in the topic and its capabilities."""

    id: str
    capabilities: tuple[str, ...]
    routing: str = "all"


class Member(msgspec.Struct, eq=False):
    """A participant that is in a room now."""

    topic: str
    id: str
    capabilities: tuple[str, ...]
    grants: KindGrants
    routing: str
    sink: MessageSink
    caller: Caller
    credentials: Credentials
    connection: str
    connected_at: str
    """RFC 3339."""
    internal: bool = False
    """True for members of the node itself, which have no connection."""
    rejected: int = 0
    """The number of its messages that were rejected."""
    denial_samplers: dict[str, Sampler] = msgspec.field(default_factory=dict)
    """By error: which of those rejections are written to the journal."""


class RoomBacklog(msgspec.Struct, weakref=True):
    """The total size of the messages that wait for slow readers of a room."""

    bytes: int = 0


class MessageLoss(msgspec.Struct):
    """The messages that were not delivered to a member because it read too slowly."""

    count: int = 0
    first: str = ""
    """The time of the first loss, RFC 3339."""
    last: str = ""
    kinds: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of messages of each kind: at most 16 kinds, the rest under one name."""


class CapabilityUpdate(msgspec.Struct, frozen=True, rename="camel"):
    """A change of capabilities, in its JSON shape."""

    participant_id: str
    old_capabilities: tuple[str, ...]
    new_capabilities: tuple[str, ...]
    modified_by: str
    modified_at: str
