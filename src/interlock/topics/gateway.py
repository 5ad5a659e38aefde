"""All topics of a node: which rooms are open, who comes into them and goes, and who may say what.

A room is open while somebody is in it. Nothing outlives it but capabilities that an admin changed,
and these only until the config or the process changes. Every join was let in by `admit`, and is
looked at again whenever the config changes.

No sockets and no clock of its own: `call_soon`, ids and times are given.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Container, Sequence
from typing import Final

import msgspec

from interlock.core.call import Call, Caller, Client, Credentials
from interlock.core.journal.audit import Audit
from interlock.core.redaction import redact
from interlock.errors import (
    FORBIDDEN,
    INVALID_PARAMS,
    NAMESPACE_CONFLICT,
    UNKNOWN_PARTICIPANT,
    InterlockError,
)
from interlock.primitives.bounded_dict import BoundedDict
from interlock.primitives.rate_limits import Sampler
from interlock.protocol.kinds import compile_grants, find_pattern_problem
from interlock.protocol.mcp import LATEST_SESSION, Era
from interlock.protocol.mcpx_terms import (
    FORBIDDEN_CODE,
    GUEST,
    SHUTTING_DOWN_CODE,
    SLOW_READER_CODE,
    TOPIC_SERVER,
)
from interlock.topics import admission
from interlock.topics.config import TopicConfig, TopicsConfig
from interlock.topics.connection_limits import DEFAULT_MOST, ConnectionCounter
from interlock.topics.member import (
    CapabilityUpdate,
    Member,
    MessageLoss,
    MessageSink,
    ParticipantProfile,
)
from interlock.topics.room import Room
from interlock.topics.wire.envelope import EnvelopeHeader

MOST_CAPABILITIES: Final = 100
"""Patterns that one participant has at most after a change."""
MOST_CHANGED: Final = 10_000
"""Participants whose changed capabilities are remembered; the oldest are forgotten first."""
DENIED_SECONDS: Final = 60.0
"""So often the journal has an entry about one error of one member; the rest is counted in it."""
SAY: Final = "topics/say"
_CLIENT: Final = Client(Era.SESSION, LATEST_SESSION)
_GUEST_TRIES: Final = 20
_WORTH_A_LINE: Final = frozenset(10**power for power in range(10))
"""After so many refusals of one member the log has another line."""

log = logging.getLogger(__name__)


class ConnectionInfo(msgspec.Struct, frozen=True, rename="camel"):
    """All that is known of a connection, as the wire has it."""

    connection_id: str
    participant_id: str
    capabilities: tuple[str, ...]
    connected_at: str
    topic: str
    routing: str


class _Changed(msgspec.Struct, frozen=True):
    """What an admin made of somebody's capabilities. It holds for this caller, while the config
    gives it what it gave it then."""

    caller: Caller
    given: tuple[str, ...]
    capabilities: tuple[str, ...]

    def holds(self, caller: Caller, given: tuple[str, ...]) -> bool:
        mine = (self.caller.name, self.caller.kind, self.given)
        return mine == (caller.name, caller.kind, given)


class Gateway:
    """The topics of a node."""

    def __init__(
        self,
        config: TopicsConfig,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        new_id: Callable[[], str],
        now: Callable[[], str],
        on_opened: Callable[[Room], None] = lambda _: None,
        on_closed: Callable[[Room], None] = lambda _: None,
        audit: Audit | None = None,
        clock: Callable[[], float] = time.monotonic,
        most: int = DEFAULT_MOST,
    ) -> None:
        """`on_opened` may seat members of the node itself; `on_closed` hears when their seats are
        gone. `most`: connections to all topics together, where the config does not say."""
        self.config = config
        self.rooms: dict[str, Room] = {}
        """By name: those that are open."""
        self._call_soon = call_soon
        self._new_id = new_id
        self._now = now
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._audit = audit
        self._clock = clock
        self._changed: BoundedDict[tuple[str, str], _Changed] = BoundedDict(MOST_CHANGED)
        self._most = most
        self._census = ConnectionCounter(config.most or most)
        self.refused = 0
        """How many messages went nowhere, of all members."""

    def start(self) -> None:
        """Open the rooms in which the node itself waits for others."""
        for name, settings in self.config.rooms.items():
            if self._stays(name, settings) and name not in self.rooms:
                self._open(name, settings)

    def close(self, code: int = SHUTTING_DOWN_CODE) -> None:
        """Let everybody go."""
        for room in tuple(self.rooms.values()):
            self._close(room, code, "The node stops.")

    # -- coming and going

    def admit(self, topic: str, caller: Caller | None) -> ParticipantProfile:
        """Whether it may come in now, and as whom. Raises InterlockError. None: somebody who showed
        no credential at all."""
        guest = self._guest(topic) if caller is None else ""
        _, participant = admission.admit(self.config, topic, caller, guest=guest)
        who = caller or _guest_caller(participant.id)
        room = self.rooms.get(topic)
        if room is not None:
            room.check(participant.id, who)
        if room is None or participant.id not in room.members:
            self._census.check(caller)
        capabilities = self._standing(topic, participant.id, who, participant.capabilities)
        return msgspec.structs.replace(participant, capabilities=capabilities)

    def enter(
        self,
        topic: str,
        participant: ParticipantProfile,
        outlet: MessageSink,
        *,
        caller: Caller | None,
        credentials: Credentials,
        inside: bool = False,
    ) -> Member:
        """Let in whom `admit` let in, or a member of the node itself. Raises InterlockError."""
        room = self.rooms.get(topic)
        if room is None:
            settings = self.settings(topic)
            if settings is None:
                raise InterlockError(FORBIDDEN, f"There is no topic {topic} any more.")
            room = self._open(topic, settings)
        member = Member(
            topic,
            participant.id,
            participant.capabilities,
            compile_grants(participant.capabilities),
            participant.routing,
            outlet,
            caller or _guest_caller(participant.id),
            credentials,
            self._new_id(),
            self._now(),
            inside,
        )
        older = room.members.get(participant.id)
        room.join(member)
        self._census.came(member)
        if older is not None:
            self._census.left(older)
            # It goes on where the older connection was: nothing is left untold, or told anew.
            member.denied = older.denied
        return member

    def leave(self, member: Member, reason: str = "") -> None:
        """It is gone. A room that nobody needs any more closes."""
        room = self.rooms.get(member.topic)
        if room is None or room.members.get(member.id) is not member:
            return
        room.leave(member, reason)
        self._census.left(member)
        for error, denied in member.denied.items():
            if denied.suppressed:
                self._deny(member, error, f"{denied.suppressed} more until it left")
        if member.caller.kind == GUEST:
            # The next guest may be called the same.
            self._changed.pop((member.topic, member.id), None)
        if not member.inside:
            self._close_if_empty(room)

    def disconnect(self, callers: Container[str]) -> None:
        """What these callers showed does not count any more: let them go."""
        for member in self.outside():
            if member.caller.name in callers and member.caller.kind != GUEST:
                self.disconnect_member(
                    member, "What you showed to come in does not count any more."
                )

    # -- what is said

    def say(self, member: Member, text: bytes) -> EnvelopeHeader | None:
        """None: it goes nowhere."""
        room = self.rooms.get(member.topic)
        return None if room is None else room.say(member, text)

    def lost(self, member: Member, loss: MessageLoss) -> None:
        """It reads again, and missed something."""
        room = self.rooms.get(member.topic)
        if room is not None:
            room.lost(member, loss)

    # -- who is there

    def settings(self, topic: str) -> TopicConfig | None:
        """What holds in a topic. None: there is none of that name."""
        return admission.settings_of(self.config, topic)

    def member(self, topic: str, id: str) -> Member | None:
        room = self.rooms.get(topic)
        return None if room is None else room.members.get(id)

    def connections(self) -> list[ConnectionInfo]:
        """Everybody who came in by a connection."""
        return [
            ConnectionInfo(
                member.connection,
                member.id,
                member.capabilities,
                member.connected_at,
                member.topic,
                member.routing,
            )
            for member in self.outside()
        ]

    # -- what may be said

    def change(
        self, id: str, add: Sequence[str], remove: Sequence[str], *, by: str, topic: str | None
    ) -> CapabilityUpdate:
        """Give capabilities to somebody who is in a topic, and take others. Raises InterlockError.

        `by` is the caller that wants it. Without `topic`, `id` has to be in one alone.
        """
        where = self._where(id, topic)
        member = self.member(where, id)
        changed: _Changed | None = None
        if member is not None:
            old, name = member.capabilities, member.caller.name
            if member.inside:
                why = f"{id!r} is the node itself: its config says it all."
                raise InterlockError(FORBIDDEN, why)
        else:
            # It has left, and would come back with what it was given: that can be taken meanwhile.
            changed = self._changed[where, id]
            old, name = changed.capabilities, changed.caller.name
        if name == by:
            raise InterlockError(FORBIDDEN, "Nobody changes its own capabilities: ask another.")
        new = _after(old, add, remove)
        if new != old:
            if member is not None:
                self._keep(member, new)
                self.rooms[where].regrant(member, new)
            elif changed is not None:
                self._changed[where, id] = msgspec.structs.replace(changed, capabilities=new)
            if self._audit is not None:
                detail = f"by {by}: {' '.join(old)} -> {' '.join(new)}"
                self._audit.record_change("topics", f"{where}/{id}", "capabilities", detail)
        return CapabilityUpdate(id, old, new, by, self._now())

    def configure(self, config: TopicsConfig) -> None:
        """Look at everybody anew: some have to go, some may say other things."""
        self.config = config
        self._census.most = config.most or self._most
        self._forget_changes()
        for room in tuple(self.rooms.values()):
            settings = self.settings(room.name)
            if settings is None:
                self._close(room, FORBIDDEN_CODE, "This topic is no more.")
            else:
                # Also where the room is as it was: a caller may have other roles now.
                self._reconfigure(room, settings)
        for room in tuple(self.rooms.values()):
            self._close_if_empty(room)
        self.start()

    # -- how

    def _open(self, name: str, settings: TopicConfig) -> Room:
        room = self.rooms[name] = Room(
            name,
            settings,
            call_soon=self._call_soon,
            new_id=self._new_id,
            now=self._now,
            on_violation=self._count,
            on_flood=lambda member, why: self.disconnect_member(member, why, SLOW_READER_CODE),
            clock=self._clock,
        )
        self._on_opened(room)
        return room

    def _close(self, room: Room, code: int, reason: str) -> None:
        room.flush()
        self.rooms.pop(room.name, None)
        for member in tuple(room.members.values()):
            member.outlet.close(code, reason)
            self._census.left(member)
        room.members.clear()
        self._on_closed(room)

    def _close_if_empty(self, room: Room) -> None:
        if self.rooms.get(room.name) is not room or self._stays(room.name, room.settings):
            return
        if all(member.inside for member in room.members.values()):
            self._close(room, SHUTTING_DOWN_CODE, "Everybody has left the topic.")

    def _stays(self, name: str, settings: TopicConfig) -> bool:
        """Whether the node waits there for others to come."""
        named = name in self.config.rooms and not admission.is_glob(name)
        return named and (settings.node is not None or settings.record != "off")

    def _reconfigure(self, room: Room, settings: TopicConfig) -> None:
        older, room.settings = room.settings, settings
        seats_anew = _own_seats(older) != _own_seats(settings)
        if seats_anew:
            for member in tuple(room.members.values()):
                if member.inside:
                    room.leave(member, "its seat has changed")
                    member.outlet.close(SHUTTING_DOWN_CODE, "Its seat has changed.")
            self._on_closed(room)
        for member in tuple(room.members.values()):
            if not member.inside:
                self.recheck(member)
        if seats_anew and self.rooms.get(room.name) is room:
            self._on_opened(room)

    def known_as(self, member: Member, caller: Caller) -> None:
        """This is what its credentials say of it now. Somebody else does not keep its seat."""
        older = member.caller
        member.caller = caller
        if (older.name, older.kind) != (caller.name, caller.kind):
            self.disconnect_member(member, "What you showed is somebody else's now: come in again.")
        elif not (caller.can_call or caller.can_join):
            self.disconnect_member(member, "You may not take part in topics any more.")

    def recheck(self, member: Member) -> None:
        """Whether it may still be here, and what it may say: by the config and its caller as they
        are now."""
        room = self.rooms.get(member.topic)
        if room is None or room.members.get(member.id) is not member:
            return
        caller = None if member.caller.kind == GUEST else member.caller
        try:
            _, given = admission.admit(self.config, room.name, caller, guest=member.id)
        except InterlockError as error:
            self.disconnect_member(member, error.message)
            return
        if given.id != member.id:
            self.disconnect_member(member, f"You are called {given.id} from now on: come in again.")
            return
        capabilities = self._standing(room.name, member.id, member.caller, given.capabilities)
        if capabilities != member.capabilities:
            room.regrant(member, capabilities)

    def disconnect_member(self, member: Member, reason: str, code: int = FORBIDDEN_CODE) -> None:
        """Close the connection of one member."""
        self.leave(member, reason)
        member.outlet.close(code, reason)

    def _standing(
        self, topic: str, id: str, caller: Caller, given: tuple[str, ...]
    ) -> tuple[str, ...]:
        """What the config gives, or what an admin made of it since. Whoever asks changes nothing:
        nobody gets rid of what an admin took by coming as somebody else in between."""
        changed = self._changed.get((topic, id))
        if changed is None or not changed.holds(caller, given):
            return given
        return changed.capabilities

    def _keep(self, member: Member, capabilities: tuple[str, ...]) -> None:
        caller = None if member.caller.kind == GUEST else member.caller
        _, given = admission.admit(self.config, member.topic, caller, guest=member.id)
        self._changed[member.topic, member.id] = _Changed(
            member.caller, given.capabilities, capabilities
        )

    def _forget_changes(self) -> None:
        """Of whom the config gives something else now: nothing of it comes back with an older
        config."""
        for (topic, id), changed in tuple(self._changed.items()):
            caller = None if changed.caller.kind == GUEST else changed.caller
            try:
                _, given = admission.admit(self.config, topic, caller, guest=id)
            except InterlockError:
                del self._changed[topic, id]
                continue
            if (given.id, given.capabilities) != (id, changed.given):
                del self._changed[topic, id]

    def _where(self, id: str, topic: str | None) -> str:
        """The one topic in which somebody is called so, or would come back to."""
        found = {name for name, room in self.rooms.items() if id in room.members}
        found |= {name for name, participant in self._changed if participant == id}
        if topic is not None:
            found &= {topic}
        if not found:
            where = "in any topic" if topic is None else f"in the topic {topic[:100]}"
            raise InterlockError(UNKNOWN_PARTICIPANT, f"Nobody {where} is called {id[:100]!r} now.")
        if len(found) > 1:
            raise InterlockError(
                NAMESPACE_CONFLICT,
                f"{id[:100]!r} is in several topics: {', '.join(sorted(found))}. Say which: "
                "?topic=NAME.",
            )
        return found.pop()

    def outside(self) -> list[Member]:
        """Members that came in by a connection."""
        return [
            member
            for room in self.rooms.values()
            for member in room.members.values()
            if not member.inside
        ]

    def _count(self, member: Member, error: str, kind: str) -> None:
        self.refused += 1
        if member.refused in _WORTH_A_LINE:
            log.info(
                "%s in the topic %s was refused %d times; now: %s, %.100r",
                member.id, member.topic, member.refused, error, redact(kind),
            )  # fmt: skip
        if member.inside:
            return
        sampler = member.denied.get(error)
        if sampler is None:
            sampler = member.denied[error] = Sampler(1, DENIED_SECONDS)
        suppressed = sampler.sample(self._clock())
        if suppressed is None:
            return
        folded = f" (and {suppressed} more before it)" if suppressed else ""
        # Cut last: of half a secret nobody would know that it is one.
        self._deny(member, error, f"{redact(kind)[:100]!r}{folded}")

    def _deny(self, member: Member, error: str, detail: str) -> None:
        """What a room refuses is in the journal as every refusal is. Guests are strangers there."""
        if self._audit is not None:
            call = Call(SAY, TOPIC_SERVER, member.credentials, _CLIENT, name=member.topic)
            call.caller = None if member.caller.kind == GUEST else member.caller
            self._audit.record(call, error, 0, f"{member.id}: {detail}")

    def _guest(self, topic: str) -> str:
        """A name that nobody has there."""
        room = self.rooms.get(topic)
        # So many that a name is not given again soon: answers to one who left may be on their way.
        letters = 6
        for _ in range(_GUEST_TRIES):
            digest = hashlib.blake2b(self._new_id().encode(), digest_size=16).digest()
            name = "guest-" + "".join(chr(ord("a") + byte % 26) for byte in digest[:letters])
            if room is None or name not in room.members:
                return name
            letters = min(letters + 1, len(digest))
        raise InterlockError(FORBIDDEN, "There is no name left for a guest. Come with a token.")


def _own_seats(settings: TopicConfig) -> tuple[object, ...]:
    """All that says who of the node itself sits in a topic, and what it does there."""
    return settings.node, settings.record, settings.record_per_second, settings.upstreams


def _guest_caller(id: str) -> Caller:
    return Caller(id, can_call=False, can_register=False, kind=GUEST)


def _after(old: tuple[str, ...], add: Sequence[str], remove: Sequence[str]) -> tuple[str, ...]:
    """Raises InterlockError for what grants nothing."""
    for pattern in (*add, *remove):
        if problem := find_pattern_problem(pattern):
            raise InterlockError(
                INVALID_PARAMS, f"The capability {pattern[:100]!r} grants nothing: {problem}."
            )
    gone = frozenset(remove)
    new = tuple(dict.fromkeys(one for one in (*old, *add) if one not in gone))
    if len(new) > MOST_CAPABILITIES:
        raise InterlockError(
            INVALID_PARAMS,
            f"A participant has at most {MOST_CAPABILITIES} capabilities: use patterns.",
        )
    return new
