"""Who sits in a topic, and how what is said there reaches them: the shapes that the rooms share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from interlock.core.call import Caller, Credentials
from interlock.primitives.rate_limits import Sampler

if TYPE_CHECKING:
    from interlock.protocol.kinds import KindGrants
    from interlock.topics.wire.envelope import EnvelopeHeader


class Batch(msgspec.Struct, frozen=True):
    """What several receivers are sent alike, made once for all of them."""

    frames: bytes
    """The text frames of a server, ready to be written."""
    texts: tuple[bytes, ...]
    """The envelopes, as they came."""
    heads: tuple[EnvelopeHeader, ...]
    senders: tuple[Member | None, ...] = ()
    """Who said each of them, as it was when it was said; None: the gateway. An id may be somebody
    else's by now, so no right hangs on that."""


class MessageSink(Protocol):
    """Where messages for a member go."""

    def deliver(self, batch: Batch) -> None:
        """Take them. It never blocks and never raises: no member is another's misfortune."""

    def close(self, code: int, reason: str) -> None:
        """Let the member go."""


class ParticipantProfile(msgspec.Struct, frozen=True):
    """A participant that may join: its id in the topic, and its capabilities."""

    id: str
    capabilities: tuple[str, ...]
    routing: str = "all"


class Member(msgspec.Struct, eq=False):
    """Somebody who is in a room now."""

    topic: str
    id: str
    capabilities: tuple[str, ...]
    grants: KindGrants
    routing: str
    outlet: MessageSink
    caller: Caller
    credentials: Credentials
    connection: str
    connected_at: str
    """RFC 3339."""
    inside: bool = False
    """Whether it is the node's own, and has no connection."""
    refused: int = 0
    """How many of its messages went nowhere."""
    denied: dict[str, Sampler] = msgspec.field(default_factory=dict)
    """What of that is in the journal, by error."""


class RoomBacklog(msgspec.Struct, weakref=True):
    """How much is kept for those in a room who do not read, all of them together."""

    bytes: int = 0


class MessageLoss(msgspec.Struct):
    """What a member that did not read in time was not sent."""

    lost: int = 0
    first: str = ""
    """When the first of them was lost, RFC 3339."""
    last: str = ""
    kinds: dict[str, int] = msgspec.field(default_factory=dict)
    """How many of which kind: at most 16 of them, the rest under one name."""


class CapabilityUpdate(msgspec.Struct, frozen=True, rename="camel"):
    """Capabilities that were changed, as the wire tells of it."""

    participant_id: str
    old_capabilities: tuple[str, ...]
    new_capabilities: tuple[str, ...]
    modified_by: str
    modified_at: str
