"""The node as a participant of a topic: what it hears there, and what it says.

It sits in the room like anybody else, in directed mode: it hears what is addressed to it and what
is said to all. Requests go to `asking.py`, proposals to `proposing.py`; whoever else wants to
listen (a participant that is an upstream here) is told by `on_heard`. It believes nothing that it
hears: a kind that says something else than its payload, or an id that was there before, leads
nowhere and is counted against its sender.

Nothing is done while the room delivers: messages are taken in the loop's next turn. Whose message
it was is looked up at once, though, since somebody else may have that seat a moment later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Raw

from interlock.call import Caller, Credentials
from interlock.errors import (
    CAPABILITY_VIOLATION,
    PAYLOAD_TOO_LARGE,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
)
from interlock.pipeline.topics.seat import Batch, Member, Outlet, Participant
from interlock.protocol.kinds import CHAT
from interlock.protocol.mcpx.envelope import Head, write_envelope
from interlock.protocol.mcpx.words import GATEWAY, LONGEST

INSIDE: Final = Credentials("inside")
"""What the node's own members come with. It authenticates as nobody: no call is made with it."""
CAPABILITIES: Final = ("mcp/*", CHAT)
DIRECTED: Final = "directed"
MOST_IDS: Final = 4_096
"""So many ids of messages are remembered."""

_log = logging.getLogger("interlock.faces.topics")

Heard = Callable[[Head, bytes], None]
"""Takes a message that the node heard: its head, and the whole envelope."""


class Rooms(Protocol):
    """What a seat needs of the gateway."""

    def enter(
        self,
        topic: str,
        participant: Participant,
        outlet: Outlet,
        *,
        caller: Caller,
        credentials: Credentials,
        inside: bool = False,
    ) -> Member: ...

    def leave(self, member: Member, reason: str = "") -> None: ...


class Speaking(Protocol):
    """What a seat needs of its room."""

    @property
    def name(self) -> str: ...

    @property
    def members(self) -> Mapping[str, Member]: ...

    def say(self, member: Member, text: bytes) -> Head | None: ...


class NodeSeat:
    """The node's place in one room."""

    def __init__(
        self,
        gateway: Rooms,
        room: Speaking,
        *,
        id: str,
        call_soon: Callable[[Callable[[], None]], Any],
        new_id: Callable[[], str],
        now: Callable[[], str],
    ) -> None:
        """It takes its seat at once. `now`: the time as RFC 3339."""
        self.id = id
        self.topic = room.name
        self.on_heard: list[Heard] = []
        """Told of every message, those of the gateway included, in their order."""
        self._gateway = gateway
        self._room = room
        self._call_soon = call_soon
        self._new_id = new_id
        self._now = now
        self._ids: dict[str, None] = {}
        self._arrived: list[tuple[Member | None, Head, bytes]] = []
        self._closed = False
        self._member = gateway.enter(
            room.name,
            Participant(id, CAPABILITIES, DIRECTED),
            self,
            caller=Caller(id, calls=False, registers=False, kind="node"),
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
        if len(text) > LONGEST:
            raise InterlockError(
                PAYLOAD_TOO_LARGE,
                f"A message of {len(text)} bytes does not fit into a topic: {LONGEST} are the "
                "most.",
            )
        if self._closed:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"The node is not in the topic {self.topic} any more."
            )
        self._is_new(id)
        if self._room.say(self._member, text) is None:
            raise InterlockError(
                CAPABILITY_VIOLATION,
                f"The node may not say {kind[:100]!r} in the topic {self.topic}.",
            )
        return id

    # -- hearing

    def deliver(self, batch: Batch) -> None:
        """Take what the room has for the node."""
        if self._closed:
            return
        members, arrived = self._room.members, self._arrived
        if not arrived:
            self._call_soon(self._take)
        arrived.extend(
            (members.get(head.sender), head, text)
            for head, text in zip(batch.heads, batch.texts, strict=True)
        )

    def _take(self) -> None:
        arrived, self._arrived = self._arrived, []
        for member, head, text in arrived:
            if self._closed:
                return
            try:
                self._hear(member, head, text)
            except Exception:
                # One message is not worth the others.
                _log.exception("a message in the topic %s could not be taken", self.topic)

    def _hear(self, member: Member | None, head: Head, text: bytes) -> None:
        if head.sender != GATEWAY and not self._is_new(head.id):
            self._count(member, head, "its id was there before")
            return
        for told in list(self.on_heard):
            try:
                told(head, text)
            except Exception:
                _log.exception("somebody who listens in the topic %s failed", self.topic)

    def _is_new(self, id: str) -> bool:
        """Whether no message had this id, as far as is remembered."""
        ids = self._ids
        if id in ids:
            return False
        if len(ids) >= MOST_IDS:
            del ids[next(iter(ids))]
        ids[id] = None
        return True

    def _count(self, member: Member | None, head: Head, why: str) -> None:
        """A message leads nowhere, and its sender is to blame."""
        if member is not None:
            member.refused += 1
        _log.debug("a message of %.100r in the topic %s: %s", head.sender, self.topic, why)

    # -- leaving

    def close(self, code: int | None = None, reason: str = "") -> None:
        """The room lets the node go; without a code it is the node that leaves."""
        if self._closed:
            return
        self._closed = True
        if code is None and self._room.members.get(self.id) is self._member:
            self._gateway.leave(self._member, reason)
