"""An open topic: its members, and which messages each of them receives.

The room judges a message by its head and forwards the original bytes. All messages of one turn of
the event loop go to each receiver in one batch, made once for all receivers of the same messages:
the write to a socket costs more than the message. The room stores the messages of one turn and
nothing older.

This module does no I/O. Callers pass `call_soon`, ids and times.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from interlock.core.call import Caller
from interlock.errors import (
    CAPABILITY_VIOLATION,
    FORBIDDEN,
    IDENTITY_MISMATCH,
    MESSAGES_LOST,
    TOO_BUSY,
    InterlockError,
)
from interlock.protocol.kinds import compile_grants, is_reserved
from interlock.protocol.mcpx_terms import (
    ERROR,
    GATEWAY,
    GUEST,
    JOIN,
    LEAVE,
    PRESENCE,
    REPLACED_CODE,
    SLOW_READER_CODE,
    WELCOME,
)
from interlock.protocol.websocket import text_frame
from interlock.topics.config import TopicConfig
from interlock.topics.member import Batch, Member, MessageLoss
from interlock.topics.rate_limits import MAX_REJECTIONS_PER_SECOND, MemberRateLimits
from interlock.topics.wire import system_messages as system
from interlock.topics.wire.envelope import EnvelopeError, EnvelopeHeader, read_head

MAX_MESSAGES_PER_TURN: Final = 512
"""The maximum number of messages that wait for the end of a turn. One more flushes all of them."""
MAX_BYTES_PER_TURN: Final = 256 * 1024
DIRECTED: Final = "directed"
_MAX_TUPLE_SIZE: Final = 8

log = logging.getLogger(__name__)


class _QueuedMessage(msgspec.Struct, gc=False):
    """A message of this turn for everybody except `excluded`."""

    text: bytes
    head: EnvelopeHeader
    frame: bytes
    without: Member | None
    sender: Member | None = None
    """None: the gateway."""


class Room:
    """An open topic."""

    def __init__(
        self,
        name: str,
        settings: TopicConfig,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        new_id: Callable[[], str],
        now: Callable[[], str],
        on_violation: Callable[[Member, str, str], None],
        on_flood: Callable[[Member, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            on_violation: called with the member, the error and the kind when a message is rejected.
            on_flood: disconnects a member with too many rejected messages; called with the reason.
        """
        self.name = name
        self.settings = settings
        self.members: dict[str, Member] = {}
        """By id."""
        self._call_soon = call_soon
        self._new_id = new_id
        self._now = now
        self._on_violation = on_violation
        self._on_flood = on_flood or self._flooded
        self._pending: list[_QueuedMessage] = []
        self._pending_bytes = 0
        self._fresh: dict[Member, int] = {}
        """Members that joined in this turn, and the number of messages that were queued before
        them."""
        self._flushing = False
        self._allowances = MemberRateLimits(clock)
        self._refused_of_gone = 0

    @property
    def refused(self) -> int:
        """The number of messages rejected since the room was opened, including those of former
        members."""
        return self._refused_of_gone + sum(member.refused for member in self.members.values())

    # -- members

    def check(self, id: str, caller: Caller, *, inside: bool = False) -> None:
        """Raise InterlockError if this member cannot join now."""
        present = self.members.get(id)
        if present is None:
            if caller.kind == GUEST and self._guests() >= self.settings.most_guests:
                raise InterlockError(
                    TOO_BUSY,
                    f"The topic {self.name} has too many guests. Join with a token, or try again "
                    "later.",
                )
            if not inside and len(self.members) >= self.settings.most:
                raise InterlockError(
                    TOO_BUSY,
                    f"The topic {self.name} is full: it has {self.settings.most} participants. "
                    "Try again later.",
                )
        elif inside or present.inside or not _is_same_caller(present.caller, caller):
            raise InterlockError(
                FORBIDDEN,
                f"The id {id!r} is in use by another participant of the topic {self.name}. "
                "Configure another `id` for one of the two.",
            )

    def _guests(self) -> int:
        return sum(member.caller.kind == GUEST for member in self.members.values())

    def join(self, member: Member) -> None:
        """Add a member, welcome it and announce it. Raises as `check_join` does.

        A second connection of the same participant replaces the first. It is announced only to
        members of the node itself, which may have sent a request to the first connection.
        """
        self.check(member.id, member.caller, inside=member.inside)
        older = self.members.get(member.id)
        if older is not None:
            self.flush()
        elif self._pending:
            # Not flushed: when many join at once, each gets the announcements in one batch.
            self._fresh[member] = len(self._pending)
        self.members[member.id] = member
        self._allowances.came(member.id)
        self._welcome(member)
        if older is None or older.capabilities != member.capabilities:
            self._tell_of(member, JOIN)
        elif older is not None:
            self._tell_own(member)
        if older is not None:
            self._refused_of_gone += older.refused
            older.outlet.close(
                REPLACED_CODE,
                f"{member.id} joined with another connection. A participant has one connection: "
                "give each program a token of its own.",
            )

    def leave(self, member: Member, reason: str = "") -> None:
        """Remove a member. Does nothing if another connection has replaced it."""
        if self.members.get(member.id) is not member:
            return
        if any(said.sender is member for said in self._pending):
            # While the sender is still known: another member may have that id in a moment.
            self.flush()
        del self.members[member.id]
        self._refused_of_gone += member.refused
        self._fresh.pop(member, None)
        # The next guest with this id is another one.
        self._allowances.left(member.id, comes_back=member.caller.kind != GUEST)
        log.debug("%s left the topic %s: %s", member.id, self.name, reason)
        self._tell_of(member, LEAVE)

    def regrant(self, member: Member, capabilities: Sequence[str]) -> None:
        """Change the capabilities of a member: welcome it again and announce it to the others."""
        if self.members.get(member.id) is not member:
            return
        self.flush()
        member.capabilities = tuple(capabilities)
        member.grants = compile_grants(member.capabilities)
        self._welcome(member)
        self._tell_of(member, JOIN, without=member)

    def lost(self, member: Member, loss: MessageLoss) -> None:
        """Tell a slow reader how many messages it lost, and who is in the room now."""
        if self.members.get(member.id) is not member:
            return
        self._fail(
            member,
            MESSAGES_LOST.mcpx,
            f"You read too slowly and lost {loss.lost} messages. A welcome message with the "
            "participants and your capabilities follows.",
            "",
            lost=loss.lost,
            first=loss.first,
            last=loss.last,
            kinds=loss.kinds,
        )
        self._welcome(member)

    # -- messages

    def say(self, member: Member, text: bytes) -> EnvelopeHeader | None:
        """Forward a message at the end of this turn. Returns None if it was rejected; the sender
        was told."""
        if self.members.get(member.id) is not member:
            return None
        rate = self.settings.messages_per_second
        if not (rate is None or member.inside or self._allowances.may_say(member.id, rate)):
            # Checked first: parsing a message costs the same if it is rejected afterwards.
            self._too_much(member, text, rate)
            return None
        try:
            head = read_head(text)
        except EnvelopeError as error:
            self._refuse(member, error.failure.mcpx, error.message, error.id, error.kind)
            return None
        kind = head.kind
        if head.sender != member.id:
            why = f"You are {member.id!r} here and cannot send as {head.sender[:100]!r}."
            self._refuse(member, IDENTITY_MISMATCH.mcpx, why, head.id, kind)
            return None
        if not member.grants.grants(kind):
            self._violation(member, head)
            return None
        self._queue(_QueuedMessage(text, head, text_frame(text), member, member))
        return head

    def blame(self, member: Member, error: str, kind: str) -> None:
        """Count a forwarded message as rejected, because a member of the node itself found it
        invalid."""
        if self.members.get(member.id) is member:
            self._count(member, error, kind)

    def flush(self) -> None:
        """Send the messages of this turn."""
        pending = self._pending
        if not pending or self._flushing:
            return
        fresh = self._fresh
        self._pending, self._fresh = [], {}
        self._pending_bytes = 0
        self._flushing = True
        try:
            self._deliver(pending, fresh)
        finally:
            self._flushing = False

    # -- delivery

    def _queue(self, said: _QueuedMessage) -> None:
        pending = self._pending
        if not pending:
            self._call_soon(self.flush)
        pending.append(said)
        self._pending_bytes += len(said.frame)
        if len(pending) > MAX_MESSAGES_PER_TURN or self._pending_bytes > MAX_BYTES_PER_TURN:
            self.flush()

    def _deliver(self, pending: list[_QueuedMessage], fresh: dict[Member, int]) -> None:
        """Send the queued messages. This loop runs for every receiver of every message, so it is
        short."""
        whole = _make_batch(pending)
        apart = {said.without for said in pending} | fresh.keys()
        addressed = any(said.head.to for said in pending)
        sorting: _BatchSelector | None = None
        for member in tuple(self.members.values()):
            batch = whole
            if member in apart or (addressed and member.routing == DIRECTED):
                sorting = sorting or _BatchSelector(pending, fresh)
                own = sorting.batch_for(member)
                if own is None:
                    continue
                batch = own
            try:
                member.outlet.deliver(batch)
            except Exception:
                self._broken(member)

    def _broken(self, member: Member) -> None:
        """Log a failed delivery. A failing sink must not cost the other members their messages."""
        log.exception("%s in the topic %s could not be sent anything", member.id, self.name)

    def _hand_alone(self, member: Member, text: bytes, head: EnvelopeHeader) -> None:
        try:
            member.outlet.deliver(Batch(text_frame(text), (text,), (head,), (None,)))
        except Exception:
            self._broken(member)

    def _welcome(self, member: Member) -> None:
        id = self._new_id()
        others = [other for other in self.members.values() if other is not member]
        text = system.write_welcome(id, self._now(), member, others)
        self._hand_alone(member, text, EnvelopeHeader(id, WELCOME, GATEWAY, (member.id,)))

    def _tell_of(self, member: Member, event: str, without: Member | None = None) -> None:
        id = self._new_id()
        capabilities = member.capabilities if event == JOIN else None
        text = system.write_presence(id, self._now(), event, member.id, capabilities)
        self._queue(
            _QueuedMessage(text, EnvelopeHeader(id, PRESENCE, GATEWAY), text_frame(text), without)
        )

    def _tell_own(self, member: Member) -> None:
        """Announce the new connection of a member to the members of the node itself."""
        id = self._new_id()
        text = system.write_presence(id, self._now(), JOIN, member.id, member.capabilities)
        for own in tuple(self.members.values()):
            if own.inside:
                self._hand_alone(own, text, EnvelopeHeader(id, PRESENCE, GATEWAY))

    def _violation(self, member: Member, head: EnvelopeHeader) -> None:
        kind = head.kind
        why = f"You lack capability for '{kind}'"
        if is_reserved(kind):
            why += ": it is reserved for the gateway"
        stays = self._refuse(
            member,
            CAPABILITY_VIOLATION.mcpx,
            why,
            head.id,
            kind,
            attempted_kind=kind,
            your_capabilities=member.capabilities,
        )
        if stays and self.settings.notice:
            self._notice(member, head)

    def _refuse(
        self, member: Member, error: str, why: str, about: str, kind: str, **more: Any
    ) -> bool:
        """Reject a message and tell its sender. Returns False if the sender was disconnected for
        it."""
        stays = self._count(member, error, kind)
        if stays:
            self._fail(member, error, why, about, **more)
        return stays

    def _count(self, member: Member, error: str, kind: str = "") -> bool:
        """Count a rejected message. Returns False if its sender was disconnected for too many of
        them."""
        member.refused += 1
        self._on_violation(member, error, kind)
        if member.inside or self._allowances.may_be_refused(member.id):
            return True
        why = f"More than {MAX_REJECTIONS_PER_SECOND} of your messages a second were rejected."
        self._on_flood(member, why)
        return False

    def _too_much(self, member: Member, text: bytes, rate: int) -> None:
        """Reject a message above the rate limit. The sender is told at a limited rate; otherwise
        the message is not even parsed."""
        if not self._allowances.may_be_answered(member.id):
            self._count(member, TOO_BUSY.mcpx)
            return
        try:
            head = read_head(text)
        except EnvelopeError as error:
            about, kind = error.id, error.kind
        else:
            about, kind = head.id, head.kind
        why = f"The rate limit is {rate} messages a second. Wait, then send the message again."
        self._refuse(member, TOO_BUSY.mcpx, why, about, kind)

    def _flooded(self, member: Member, why: str) -> None:
        self.leave(member, why)
        member.outlet.close(SLOW_READER_CODE, why)

    def _fail(self, member: Member, error: str, why: str, about: str, **more: Any) -> None:
        id, to, correlation = self._new_id(), (member.id,), about or None
        text = system.error(id, self._now(), to, error, why, correlation, **more)
        self._hand_alone(member, text, EnvelopeHeader(id, ERROR, GATEWAY, to, correlation))

    def _notice(self, member: Member, head: EnvelopeHeader) -> None:
        """Tell the others about a violation, at a limited rate: rejected messages must not fill the
        room."""
        if not self._allowances.may_be_noticed(member.id):
            return
        id, kind = self._new_id(), head.kind
        text = system.error(
            id,
            self._now(),
            (),
            CAPABILITY_VIOLATION.mcpx,
            f"{member.id} lacks capability for '{kind}'",
            head.id,
            attempted_kind=kind,
            participant=member.id,
        )
        told = EnvelopeHeader(id, ERROR, GATEWAY, (), head.id)
        self._queue(_QueuedMessage(text, told, text_frame(text), member))


def _is_same_caller(one: Caller, other: Caller) -> bool:
    return one.name == other.name and one.kind == other.kind


def _make_batch(said: list[_QueuedMessage]) -> Batch:
    if len(said) == 1:
        only = said[0]
        return Batch(only.frame, (only.text,), (only.head,), (only.sender,))
    return Batch(
        b"".join([one.frame for one in said]),
        tuple([one.text for one in said]),
        tuple([one.head for one in said]),
        tuple([one.sender for one in said]),
    )


class _BatchSelector:
    """Chooses the messages of a turn for each member. Members with the same messages share a
    batch."""

    def __init__(self, pending: list[_QueuedMessage], fresh: dict[Member, int]) -> None:
        self._pending = pending
        self._fresh = fresh
        self._addresses = [_make_recipient_test(said.head.to) for said in pending]
        self._made: dict[tuple[bool, ...], Batch | None] = {}

    def batch_for(self, member: Member) -> Batch | None:
        """Return the batch of a member, or None if it is empty."""
        directed, id, since = member.routing == DIRECTED, member.id, self._fresh.get(member, 0)
        takes = tuple(
            [
                place >= since
                and said.without is not member
                and (not directed or self._addresses[place](id))
                for place, said in enumerate(self._pending)
            ]
        )
        if takes not in self._made:
            chosen = [said for said, wanted in zip(self._pending, takes, strict=True) if wanted]
            self._made[takes] = _make_batch(chosen) if chosen else None
        return self._made[takes]


def _make_recipient_test(to: tuple[str, ...]) -> Callable[[str], bool]:
    if not to:
        return lambda _: True
    return (to if len(to) <= _MAX_TUPLE_SIZE else frozenset(to)).__contains__
