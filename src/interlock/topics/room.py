"""One topic while somebody is in it: who is there, and who is sent what.

A message is judged by its head alone, and passed on as it came. What is said in one turn of the
loop goes to each receiver in one batch, made once for all who get the same: it is the write to a
socket that costs, not the message. The room keeps the messages of one turn and nothing older.

No sockets and no clock of its own: `call_soon`, ids and times are given.
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
from interlock.topics.rate_limits import MOST_REFUSED, MemberRateLimits
from interlock.topics.wire import system_messages as system
from interlock.topics.wire.envelope import EnvelopeError, EnvelopeHeader, read_head

MOST_IN_TURN: Final = 512
"""Messages that wait for the end of a turn; with one more all of them leave at once."""
MOST_BYTES_IN_TURN: Final = 256 * 1024
DIRECTED: Final = "directed"
_FEW: Final = 8

log = logging.getLogger(__name__)


class _Said(msgspec.Struct, gc=False):
    """A message of this turn, for everybody but `without`."""

    text: bytes
    head: EnvelopeHeader
    frame: bytes
    without: Member | None
    sender: Member | None = None
    """Who said it. None: the gateway."""


class Room:
    """A topic that is open."""

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
        """`on_violation` hears who said what it may not: the member, the error, the kind.
        `on_flood` lets go of somebody of whom too much is refused, and says why."""
        self.name = name
        self.settings = settings
        self.members: dict[str, Member] = {}
        """By id."""
        self._call_soon = call_soon
        self._new_id = new_id
        self._now = now
        self._on_violation = on_violation
        self._on_flood = on_flood or self._flooded
        self._pending: list[_Said] = []
        self._pending_bytes = 0
        self._fresh: dict[Member, int] = {}
        """Who came in this turn, and how many of its messages were there before."""
        self._flushing = False
        self._allowances = MemberRateLimits(clock)
        self._refused_of_gone = 0

    @property
    def refused(self) -> int:
        """How many messages led nowhere since the room was opened, of those who left too."""
        return self._refused_of_gone + sum(member.refused for member in self.members.values())

    # -- who is there

    def check(self, id: str, caller: Caller, *, inside: bool = False) -> None:
        """Raises InterlockError when such a member cannot come in now."""
        present = self.members.get(id)
        if present is None:
            if caller.kind == GUEST and self._guests() >= self.settings.most_guests:
                raise InterlockError(
                    TOO_BUSY,
                    f"The topic {self.name} takes no more guests now. Come with a token, or try "
                    "again when one of them has left.",
                )
            if not inside and len(self.members) >= self.settings.most:
                raise InterlockError(
                    TOO_BUSY,
                    f"The topic {self.name} is full: {self.settings.most} participants are in it. "
                    "Try again when one of them has left.",
                )
        elif inside or present.inside or not _same(present.caller, caller):
            raise InterlockError(
                FORBIDDEN,
                f"Somebody else is called {id!r} in the topic {self.name}. Give the seat of one of "
                "the two an `id` of its own.",
            )

    def _guests(self) -> int:
        return sum(member.caller.kind == GUEST for member in self.members.values())

    def join(self, member: Member) -> None:
        """Welcome it, and tell everybody. The same participant by another connection takes the
        place of the older one, and nobody has to be told but the node's own members, who may have
        asked the older one for something. Raises as `check` does."""
        self.check(member.id, member.caller, inside=member.inside)
        older = self.members.get(member.id)
        if older is not None:
            self.flush()
        elif self._pending:
            # Not sent at once: when many come together, each is told of the others in one go.
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
                f"{member.id} came in by another connection. One program at a time is a "
                "participant: give each its own token.",
            )

    def leave(self, member: Member, reason: str = "") -> None:
        """It is not there any more. One whose place another took does not leave again."""
        if self.members.get(member.id) is not member:
            return
        if any(said.sender is member for said in self._pending):
            # While it is still known who said it: somebody else may have that id in a moment.
            self.flush()
        del self.members[member.id]
        self._refused_of_gone += member.refused
        self._fresh.pop(member, None)
        # Who is called like a guest that left is somebody else.
        self._allowances.left(member.id, comes_back=member.caller.kind != GUEST)
        log.debug("%s left the topic %s: %s", member.id, self.name, reason)
        self._tell_of(member, LEAVE)

    def regrant(self, member: Member, capabilities: Sequence[str]) -> None:
        """It may say other things from now on: it is welcomed anew, and the others are told."""
        if self.members.get(member.id) is not member:
            return
        self.flush()
        member.capabilities = tuple(capabilities)
        member.grants = compile_grants(member.capabilities)
        self._welcome(member)
        self._tell_of(member, JOIN, without=member)

    def lost(self, member: Member, loss: MessageLoss) -> None:
        """It did not read in time: tell it how much it was not sent, and who is there now."""
        if self.members.get(member.id) is not member:
            return
        self._fail(
            member,
            MESSAGES_LOST.mcpx,
            f"You did not read in time, and {loss.lost} messages were not kept for you. Who is "
            "here, and what you may send, comes next.",
            "",
            lost=loss.lost,
            first=loss.first,
            last=loss.last,
            kinds=loss.kinds,
        )
        self._welcome(member)

    # -- what is said

    def say(self, member: Member, text: bytes) -> EnvelopeHeader | None:
        """Pass it on, at the end of this turn. None: it goes nowhere, and its sender was told."""
        if self.members.get(member.id) is not member:
            return None
        rate = self.settings.messages_per_second
        if not (rate is None or member.inside or self._allowances.may_say(member.id, rate)):
            # First of all: what will be refused costs as much as what is passed on.
            self._too_much(member, text, rate)
            return None
        try:
            head = read_head(text)
        except EnvelopeError as error:
            self._refuse(member, error.failure.mcpx, error.message, error.id, error.kind)
            return None
        kind = head.kind
        if head.sender != member.id:
            why = f"You are {member.id!r} here and cannot speak for {head.sender[:100]!r}."
            self._refuse(member, IDENTITY_MISMATCH.mcpx, why, head.id, kind)
            return None
        if not member.grants.grants(kind):
            self._violation(member, head)
            return None
        self._queue(_Said(text, head, text_frame(text), member, member))
        return head

    def blame(self, member: Member, error: str, kind: str) -> None:
        """Something that it said was passed on, and a member of the node itself saw that it leads
        nowhere: that counts as what the room refuses."""
        if self.members.get(member.id) is member:
            self._count(member, error, kind)

    def flush(self) -> None:
        """Send what was said in this turn."""
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

    # -- how

    def _queue(self, said: _Said) -> None:
        pending = self._pending
        if not pending:
            self._call_soon(self.flush)
        pending.append(said)
        self._pending_bytes += len(said.frame)
        if len(pending) > MOST_IN_TURN or self._pending_bytes > MOST_BYTES_IN_TURN:
            self.flush()

    def _deliver(self, pending: list[_Said], fresh: dict[Member, int]) -> None:
        """The loop that runs for every receiver of everything: there is little in it."""
        whole = _batch(pending)
        apart = {said.without for said in pending} | fresh.keys()
        addressed = any(said.head.to for said in pending)
        sorting: _Sorting | None = None
        for member in tuple(self.members.values()):
            batch = whole
            if member in apart or (addressed and member.routing == DIRECTED):
                sorting = sorting or _Sorting(pending, fresh)
                own = sorting.batch_for(member)
                if own is None:
                    continue
                batch = own
            try:
                member.outlet.deliver(batch)
            except Exception:
                self._broken(member)

    def _broken(self, member: Member) -> None:
        """It broke its promise, and must not take the others' messages with it."""
        log.exception("%s in the topic %s could not be sent anything", member.id, self.name)

    def _hand_alone(self, member: Member, text: bytes, head: EnvelopeHeader) -> None:
        try:
            member.outlet.deliver(Batch(text_frame(text), (text,), (head,), (None,)))
        except Exception:
            self._broken(member)

    def _welcome(self, member: Member) -> None:
        id = self._new_id()
        others = [other for other in self.members.values() if other is not member]
        text = system.welcome(id, self._now(), member, others)
        self._hand_alone(member, text, EnvelopeHeader(id, WELCOME, GATEWAY, (member.id,)))

    def _tell_of(self, member: Member, event: str, without: Member | None = None) -> None:
        id = self._new_id()
        capabilities = member.capabilities if event == JOIN else None
        text = system.presence(id, self._now(), event, member.id, capabilities)
        self._queue(_Said(text, EnvelopeHeader(id, PRESENCE, GATEWAY), text_frame(text), without))

    def _tell_own(self, member: Member) -> None:
        """Tell the node's own members that it came in anew."""
        id = self._new_id()
        text = system.presence(id, self._now(), JOIN, member.id, member.capabilities)
        for own in tuple(self.members.values()):
            if own.inside:
                self._hand_alone(own, text, EnvelopeHeader(id, PRESENCE, GATEWAY))

    def _violation(self, member: Member, head: EnvelopeHeader) -> None:
        kind = head.kind
        why = f"You lack capability for '{kind}'"
        if is_reserved(kind):
            why += ": it is reserved, only the gateway says that"
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
        """Tell it that its message went nowhere. False: it is gone."""
        stays = self._count(member, error, kind)
        if stays:
            self._fail(member, error, why, about, **more)
        return stays

    def _count(self, member: Member, error: str, kind: str = "") -> bool:
        """It goes nowhere. False: as did too many before it, and its sender is gone."""
        member.refused += 1
        self._on_violation(member, error, kind)
        if member.inside or self._allowances.may_be_refused(member.id):
            return True
        why = f"More than {MOST_REFUSED} of your messages a second were refused."
        self._on_flood(member, why)
        return False

    def _too_much(self, member: Member, text: bytes, rate: int) -> None:
        """Told now and then; it is not even looked at otherwise."""
        if not self._allowances.may_be_answered(member.id):
            self._count(member, TOO_BUSY.mcpx)
            return
        try:
            head = read_head(text)
        except EnvelopeError as error:
            about, kind = error.id, error.kind
        else:
            about, kind = head.id, head.kind
        why = f"You may send {rate} messages a second here: wait, and send it again."
        self._refuse(member, TOO_BUSY.mcpx, why, about, kind)

    def _flooded(self, member: Member, why: str) -> None:
        self.leave(member, why)
        member.outlet.close(SLOW_READER_CODE, why)

    def _fail(self, member: Member, error: str, why: str, about: str, **more: Any) -> None:
        id, to, correlation = self._new_id(), (member.id,), about or None
        text = system.error(id, self._now(), to, error, why, correlation, **more)
        self._hand_alone(member, text, EnvelopeHeader(id, ERROR, GATEWAY, to, correlation))

    def _notice(self, member: Member, head: EnvelopeHeader) -> None:
        """Tell the others. Not about each: nobody may fill the room by what is refused."""
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
        self._queue(_Said(text, told, text_frame(text), member))


def _same(one: Caller, other: Caller) -> bool:
    return one.name == other.name and one.kind == other.kind


def _batch(said: list[_Said]) -> Batch:
    if len(said) == 1:
        only = said[0]
        return Batch(only.frame, (only.text,), (only.head,), (only.sender,))
    return Batch(
        b"".join([one.frame for one in said]),
        tuple([one.text for one in said]),
        tuple([one.head for one in said]),
        tuple([one.sender for one in said]),
    )


class _Sorting:
    """Who is sent which messages of a turn; those who get the same get the same batch."""

    def __init__(self, pending: list[_Said], fresh: dict[Member, int]) -> None:
        self._pending = pending
        self._fresh = fresh
        self._addresses = [_addresses(said.head.to) for said in pending]
        self._made: dict[tuple[bool, ...], Batch | None] = {}

    def batch_for(self, member: Member) -> Batch | None:
        """None: there is nothing for it."""
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
            self._made[takes] = _batch(chosen) if chosen else None
        return self._made[takes]


def _addresses(to: tuple[str, ...]) -> Callable[[str], bool]:
    if not to:
        return lambda _: True
    return (to if len(to) <= _FEW else frozenset(to)).__contains__
