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
    excluded: Member | None
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
        self._on_flood = on_flood or self._disconnect_flooder
        self._messages: list[_QueuedMessage] = []
        self._message_bytes = 0
        self._new_members: dict[Member, int] = {}
        """Members that joined in this turn, and the number of messages that were queued before
        them."""
        self._flushing = False
        self._rate_limits = MemberRateLimits(clock)
        self._rejected_of_former_members = 0

    @property
    def rejected(self) -> int:
        """The number of messages rejected since the room was opened, including those of former
        members."""
        return self._rejected_of_former_members + sum(
            member.rejected for member in self.members.values()
        )

    # -- members

    def check_join(self, id: str, caller: Caller, *, internal: bool = False) -> None:
        """Raise InterlockError if this member cannot join now."""
        current = self.members.get(id)
        if current is None:
            if caller.kind == GUEST and self._guests() >= self.settings.guest_limit:
                raise InterlockError(
                    TOO_BUSY,
                    f"The topic {self.name} has too many guests. Join with a token, or try again "
                    "later.",
                )
            if not internal and len(self.members) >= self.settings.max_participants:
                raise InterlockError(
                    TOO_BUSY,
                    f"The topic {self.name} is full: it has {self.settings.max_participants} "
                    "participants. "
                    "Try again later.",
                )
        elif internal or current.internal or not _is_same_caller(current.caller, caller):
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
        self.check_join(member.id, member.caller, internal=member.internal)
        previous = self.members.get(member.id)
        if previous is not None:
            self.flush()
        elif self._messages:
            # Not flushed: when many join at once, each gets the announcements in one batch.
            self._new_members[member] = len(self._messages)
        self.members[member.id] = member
        self._rate_limits.on_join(member.id)
        self._send_welcome(member)
        if previous is None or previous.capabilities != member.capabilities:
            self._announce(member, JOIN)
        elif previous is not None:
            self._announce_internally(member)
        if previous is not None:
            self._rejected_of_former_members += previous.rejected
            previous.sink.close(
                REPLACED_CODE,
                f"{member.id} joined with another connection. A participant has one connection: "
                "give each program a token of its own.",
            )

    def leave(self, member: Member, reason: str = "") -> None:
        """Remove a member. Does nothing if another connection has replaced it."""
        if self.members.get(member.id) is not member:
            return
        if any(message.sender is member for message in self._messages):
            # While the sender is still known: another member may have that id in a moment.
            self.flush()
        del self.members[member.id]
        self._rejected_of_former_members += member.rejected
        self._new_members.pop(member, None)
        # The next guest with this id is another one.
        self._rate_limits.on_leave(member.id, keeps_id=member.caller.kind != GUEST)
        log.debug("topic %s: %s disconnected: %s", self.name, member.id, reason)
        self._announce(member, LEAVE)

    def change_capabilities(self, member: Member, capabilities: Sequence[str]) -> None:
        """Change the capabilities of a member: welcome it again and announce it to the others."""
        if self.members.get(member.id) is not member:
            return
        self.flush()
        member.capabilities = tuple(capabilities)
        member.grants = compile_grants(member.capabilities)
        self._send_welcome(member)
        self._announce(member, JOIN, excluded=member)

    def report_loss(self, member: Member, loss: MessageLoss) -> None:
        """Tell a slow reader how many messages it lost, and who is in the room now."""
        if self.members.get(member.id) is not member:
            return
        self._send_error(
            member,
            MESSAGES_LOST.mcpx,
            f"You read too slowly and lost {loss.count} messages. A welcome message with the "
            "participants and your capabilities follows.",
            "",
            lost=loss.count,
            first=loss.first,
            last=loss.last,
            kinds=loss.kinds,
        )
        self._send_welcome(member)

    # -- messages

    def send(self, member: Member, text: bytes) -> EnvelopeHeader | None:
        """Forward a message at the end of this turn. Returns None if it was rejected; the sender
        was told."""
        if self.members.get(member.id) is not member:
            return None
        rate = self.settings.messages_per_second
        if not (
            rate is None or member.internal or self._rate_limits.allows_message(member.id, rate)
        ):
            # Checked first: parsing a message costs the same if it is rejected afterwards.
            self._reject_above_rate(member, text, rate)
            return None
        try:
            head = read_head(text)
        except EnvelopeError as error:
            self._reject(member, error.failure.mcpx, error.message, error.id, error.kind)
            return None
        kind = head.kind
        if head.sender != member.id:
            reason = f"You are {member.id!r} here and cannot send as {head.sender[:100]!r}."
            self._reject(member, IDENTITY_MISMATCH.mcpx, reason, head.id, kind)
            return None
        if not member.grants.grants(kind):
            self._reject_capability(member, head)
            return None
        self._queue(_QueuedMessage(text, head, text_frame(text), member, member))
        return head

    def count_rejection(self, member: Member, error: str, kind: str) -> None:
        """Count a forwarded message as rejected, because a member of the node itself found it
        invalid."""
        if self.members.get(member.id) is member:
            self._count_rejection(member, error, kind)

    def flush(self) -> None:
        """Send the messages of this turn."""
        messages = self._messages
        if not messages or self._flushing:
            return
        new_members = self._new_members
        self._messages, self._new_members = [], {}
        self._message_bytes = 0
        self._flushing = True
        try:
            self._deliver(messages, new_members)
        finally:
            self._flushing = False

    # -- delivery

    def _queue(self, message: _QueuedMessage) -> None:
        messages = self._messages
        if not messages:
            self._call_soon(self.flush)
        messages.append(message)
        self._message_bytes += len(message.frame)
        if len(messages) > MAX_MESSAGES_PER_TURN or self._message_bytes > MAX_BYTES_PER_TURN:
            self.flush()

    def _deliver(self, messages: list[_QueuedMessage], new_members: dict[Member, int]) -> None:
        """Send the queued messages. This loop runs for every receiver of every message, so it is
        short."""
        full_batch = _make_batch(messages)
        special_members = {message.excluded for message in messages} | new_members.keys()
        addressed = any(message.head.to for message in messages)
        selector: _BatchSelector | None = None
        for member in tuple(self.members.values()):
            batch = full_batch
            if member in special_members or (addressed and member.routing == DIRECTED):
                selector = selector or _BatchSelector(messages, new_members)
                member_batch = selector.batch_for(member)
                if member_batch is None:
                    continue
                batch = member_batch
            try:
                member.sink.deliver(batch)
            except Exception:
                self._log_failed_delivery(member)

    def _log_failed_delivery(self, member: Member) -> None:
        """Log a failed delivery. A failing sink must not cost the other members their messages."""
        log.exception("topic %s: cannot send messages to %s", self.name, member.id)

    def _deliver_to(self, member: Member, text: bytes, head: EnvelopeHeader) -> None:
        try:
            member.sink.deliver(Batch(text_frame(text), (text,), (head,), (None,)))
        except Exception:
            self._log_failed_delivery(member)

    def _send_welcome(self, member: Member) -> None:
        id = self._new_id()
        other_members = [other for other in self.members.values() if other is not member]
        text = system.write_welcome(id, self._now(), member, other_members)
        self._deliver_to(member, text, EnvelopeHeader(id, WELCOME, GATEWAY, (member.id,)))

    def _announce(self, member: Member, event: str, excluded: Member | None = None) -> None:
        id = self._new_id()
        capabilities = member.capabilities if event == JOIN else None
        text = system.write_presence(id, self._now(), event, member.id, capabilities)
        self._queue(
            _QueuedMessage(text, EnvelopeHeader(id, PRESENCE, GATEWAY), text_frame(text), excluded)
        )

    def _announce_internally(self, member: Member) -> None:
        """Announce the new connection of a member to the members of the node itself."""
        id = self._new_id()
        text = system.write_presence(id, self._now(), JOIN, member.id, member.capabilities)
        for internal_member in tuple(self.members.values()):
            if internal_member.internal:
                self._deliver_to(internal_member, text, EnvelopeHeader(id, PRESENCE, GATEWAY))

    def _reject_capability(self, member: Member, head: EnvelopeHeader) -> None:
        kind = head.kind
        reason = f"You lack capability for '{kind}'"
        if is_reserved(kind):
            reason += ": it is reserved for the gateway"
        is_connected = self._reject(
            member,
            CAPABILITY_VIOLATION.mcpx,
            reason,
            head.id,
            kind,
            attempted_kind=kind,
            your_capabilities=member.capabilities,
        )
        if is_connected and self.settings.notice:
            self._notify_others(member, head)

    def _reject(
        self,
        member: Member,
        error: str,
        reason: str,
        correlation_id: str,
        kind: str,
        **members: Any,
    ) -> bool:
        """Reject a message and tell its sender. Returns False if the sender was disconnected for
        it."""
        is_connected = self._count_rejection(member, error, kind)
        if is_connected:
            self._send_error(member, error, reason, correlation_id, **members)
        return is_connected

    def _count_rejection(self, member: Member, error: str, kind: str = "") -> bool:
        """Count a rejected message. Returns False if its sender was disconnected for too many of
        them."""
        member.rejected += 1
        self._on_violation(member, error, kind)
        if member.internal or self._rate_limits.allows_rejection(member.id):
            return True
        reason = f"More than {MAX_REJECTIONS_PER_SECOND} of your messages a second were rejected."
        self._on_flood(member, reason)
        return False

    def _reject_above_rate(self, member: Member, text: bytes, rate: int) -> None:
        """Reject a message above the rate limit. The sender is told at a limited rate; otherwise
        the message is not even parsed."""
        if not self._rate_limits.allows_rate_error(member.id):
            self._count_rejection(member, TOO_BUSY.mcpx)
            return
        try:
            head = read_head(text)
        except EnvelopeError as error:
            correlation_id, kind = error.id, error.kind
        else:
            correlation_id, kind = head.id, head.kind
        reason = f"The rate limit is {rate} messages a second. Wait, then send the message again."
        self._reject(member, TOO_BUSY.mcpx, reason, correlation_id, kind)

    def _disconnect_flooder(self, member: Member, reason: str) -> None:
        self.leave(member, reason)
        member.sink.close(SLOW_READER_CODE, reason)

    def _send_error(
        self, member: Member, error: str, reason: str, correlation_id: str, **members: Any
    ) -> None:
        id, to, correlation = self._new_id(), (member.id,), correlation_id or None
        text = system.write_error(id, self._now(), to, error, reason, correlation, **members)
        self._deliver_to(member, text, EnvelopeHeader(id, ERROR, GATEWAY, to, correlation))

    def _notify_others(self, member: Member, head: EnvelopeHeader) -> None:
        """Tell the others about a violation, at a limited rate: rejected messages must not fill the
        room."""
        if not self._rate_limits.allows_notice(member.id):
            return
        id, kind = self._new_id(), head.kind
        text = system.write_error(
            id,
            self._now(),
            (),
            CAPABILITY_VIOLATION.mcpx,
            f"{member.id} lacks capability for '{kind}'",
            head.id,
            attempted_kind=kind,
            participant=member.id,
        )
        notice_head = EnvelopeHeader(id, ERROR, GATEWAY, (), head.id)
        self._queue(_QueuedMessage(text, notice_head, text_frame(text), member))


def _is_same_caller(first: Caller, second: Caller) -> bool:
    return first.name == second.name and first.kind == second.kind


def _make_batch(messages: list[_QueuedMessage]) -> Batch:
    if len(messages) == 1:
        message = messages[0]
        return Batch(message.frame, (message.text,), (message.head,), (message.sender,))
    return Batch(
        b"".join([message.frame for message in messages]),
        tuple([message.text for message in messages]),
        tuple([message.head for message in messages]),
        tuple([message.sender for message in messages]),
    )


class _BatchSelector:
    """Chooses the messages of a turn for each member. Members with the same messages share a
    batch."""

    def __init__(self, messages: list[_QueuedMessage], new_members: dict[Member, int]) -> None:
        self._messages = messages
        self._new_members = new_members
        self._addresses = [_make_recipient_test(message.head.to) for message in messages]
        self._batches: dict[tuple[bool, ...], Batch | None] = {}

    def batch_for(self, member: Member) -> Batch | None:
        """Return the batch of a member, or None if it is empty."""
        directed, id, first_index = (
            member.routing == DIRECTED,
            member.id,
            self._new_members.get(member, 0),
        )
        selection = tuple(
            [
                index >= first_index
                and message.excluded is not member
                and (not directed or self._addresses[index](id))
                for index, message in enumerate(self._messages)
            ]
        )
        if selection not in self._batches:
            messages = [
                message
                for message, is_selected in zip(self._messages, selection, strict=True)
                if is_selected
            ]
            self._batches[selection] = _make_batch(messages) if messages else None
        return self._batches[selection]


def _make_recipient_test(to: tuple[str, ...]) -> Callable[[str], bool]:
    if not to:
        return lambda _: True
    return (to if len(to) <= _MAX_TUPLE_SIZE else frozenset(to)).__contains__
