"""The gateway: all topics of a node, their open rooms, members and capabilities.

A room is open while it has members. Nothing outlives it except capabilities that an administrator
changed, until the config changes or the process ends. Every member was admitted by `admit`, and is
checked again whenever the config changes.

This module does no I/O. Callers pass `call_soon`, ids and times.
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
from interlock.topics.connection_limits import DEFAULT_MAX_CONNECTIONS, ConnectionCounter
from interlock.topics.member import (
    CapabilityUpdate,
    Member,
    MessageLoss,
    MessageSink,
    ParticipantProfile,
)
from interlock.topics.room import Room
from interlock.topics.wire.envelope import EnvelopeHeader

MAX_CAPABILITIES: Final = 100
"""The maximum number of patterns of one participant after a change."""
MAX_CAPABILITY_CHANGES: Final = 10_000
"""The maximum number of participants whose changed capabilities are stored. The oldest are removed
first."""
DENIAL_INTERVAL_SECONDS: Final = 60.0
"""The minimum time between two journal entries about the same error of one member. The entry counts
the others."""
SEND_METHOD: Final = "topics/say"
_CLIENT: Final = Client(Era.SESSION, LATEST_SESSION)
_MAX_GUEST_ID_ATTEMPTS: Final = 20
_LOGGED_COUNTS: Final = frozenset(10**power for power in range(10))
"""The counts of rejections of one member at which the log has another line."""

log = logging.getLogger(__name__)


class ConnectionInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A connection, in its JSON shape."""

    connection_id: str
    participant_id: str
    capabilities: tuple[str, ...]
    connected_at: str
    topic: str
    routing: str


class _ChangedCapabilities(msgspec.Struct, frozen=True):
    """Capabilities that an administrator set. They apply to this caller while the config grants
    what it granted then."""

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
        most: int = DEFAULT_MAX_CONNECTIONS,
    ) -> None:
        """
        Args:
            on_opened: called with a new room; may add members of the node itself.
            on_closed: called with a room that has lost those members.
            most: the maximum number of connections to all topics, if the config sets none.
        """
        self.config = config
        self.rooms: dict[str, Room] = {}
        """Open rooms, by name."""
        self._call_soon = call_soon
        self._new_id = new_id
        self._now = now
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._audit = audit
        self._clock = clock
        self._changed: BoundedDict[tuple[str, str], _ChangedCapabilities] = BoundedDict(
            MAX_CAPABILITY_CHANGES
        )
        self._most = most
        self._census = ConnectionCounter(config.most or most)
        self.refused = 0
        """The number of rejected messages of all members."""

    def start(self) -> None:
        """Open the rooms in which the node itself takes part."""
        for name, settings in self.config.rooms.items():
            if self._stays(name, settings) and name not in self.rooms:
                self._open(name, settings)

    def close(self, code: int = SHUTTING_DOWN_CODE) -> None:
        """Disconnect all members."""
        for room in tuple(self.rooms.values()):
            self._close(room, code, "The node stops.")

    # -- joining and leaving

    def admit(self, topic: str, caller: Caller | None) -> ParticipantProfile:
        """Return the participant that a caller would be in a topic. Raises InterlockError.

        Args:
            caller: None if the client sent no credential.
        """
        guest = self._guest(topic) if caller is None else ""
        _, participant = admission.find_participant(self.config, topic, caller, guest=guest)
        who = caller or _make_guest_caller(participant.id)
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
        """Add a member that `admit` admitted, or a member of the node itself. Raises
        InterlockError."""
        room = self.rooms.get(topic)
        if room is None:
            settings = self.settings(topic)
            if settings is None:
                raise InterlockError(FORBIDDEN, f"The topic {topic} no longer exists.")
            room = self._open(topic, settings)
        member = Member(
            topic,
            participant.id,
            participant.capabilities,
            compile_grants(participant.capabilities),
            participant.routing,
            outlet,
            caller or _make_guest_caller(participant.id),
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
            # Continue the counts of the older connection: nothing is lost or reported twice.
            member.denied = older.denied
        return member

    def leave(self, member: Member, reason: str = "") -> None:
        """Remove a member. Close its room if it is empty."""
        room = self.rooms.get(member.topic)
        if room is None or room.members.get(member.id) is not member:
            return
        room.leave(member, reason)
        self._census.left(member)
        for error, denied in member.denied.items():
            if denied.suppressed:
                self._deny(member, error, f"{denied.suppressed} more until it left")
        if member.caller.kind == GUEST:
            # The next guest may have the same id.
            self._changed.pop((member.topic, member.id), None)
        if not member.inside:
            self._close_if_empty(room)

    def disconnect(self, callers: Container[str]) -> None:
        """Disconnect the members of callers whose credentials are no longer valid."""
        for member in self.outside():
            if member.caller.name in callers and member.caller.kind != GUEST:
                self.disconnect_member(
                    member, "Your credentials are no longer valid. Join again with new ones."
                )

    # -- messages

    def say(self, member: Member, text: bytes) -> EnvelopeHeader | None:
        """Forward a message. Returns None if it was rejected."""
        room = self.rooms.get(member.topic)
        return None if room is None else room.say(member, text)

    def lost(self, member: Member, loss: MessageLoss) -> None:
        """Tell a slow reader what it lost."""
        room = self.rooms.get(member.topic)
        if room is not None:
            room.lost(member, loss)

    # -- members

    def settings(self, topic: str) -> TopicConfig | None:
        """Return the settings of a topic, or None if the config has no such topic."""
        return admission.find_settings(self.config, topic)

    def member(self, topic: str, id: str) -> Member | None:
        room = self.rooms.get(topic)
        return None if room is None else room.members.get(id)

    def connections(self) -> list[ConnectionInfo]:
        """Return all connections. Members of the node itself have none."""
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

    # -- capabilities

    def change(
        self, id: str, add: Sequence[str], remove: Sequence[str], *, by: str, topic: str | None
    ) -> CapabilityUpdate:
        """Add and remove capabilities of a participant. Raises InterlockError.

        Args:
            by: the name of the caller that requests the change.
            topic: required if `id` is in several topics.
        """
        where = self._where(id, topic)
        member = self.member(where, id)
        changed: _ChangedCapabilities | None = None
        if member is not None:
            old, name = member.capabilities, member.caller.name
            if member.inside:
                why = f"{id!r} is the node itself. Change its capabilities in the config."
                raise InterlockError(FORBIDDEN, why)
        else:
            # It has left and would get its changed capabilities back: remove them meanwhile.
            changed = self._changed[where, id]
            old, name = changed.capabilities, changed.caller.name
        if name == by:
            raise InterlockError(
                FORBIDDEN,
                "You cannot change your own capabilities. Ask another administrator.",
            )
        new = _apply_change(old, add, remove)
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
        """Apply a new config: check every member again."""
        self.config = config
        self._census.most = config.most or self._most
        self._forget_changes()
        for room in tuple(self.rooms.values()):
            settings = self.settings(room.name)
            if settings is None:
                self._close(room, FORBIDDEN_CODE, "This topic no longer exists.")
            else:
                # Also if the settings are the same: a caller may have other roles now.
                self._reconfigure(room, settings)
        for room in tuple(self.rooms.values()):
            self._close_if_empty(room)
        self.start()

    # -- rooms

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
        """Return whether a room stays open without connections, because the node takes part."""
        named = name in self.config.rooms and not admission.is_glob(name)
        return named and (settings.node is not None or settings.record != "off")

    def _reconfigure(self, room: Room, settings: TopicConfig) -> None:
        older, room.settings = room.settings, settings
        seats_anew = _node_settings(older) != _node_settings(settings)
        if seats_anew:
            for member in tuple(room.members.values()):
                if member.inside:
                    room.leave(member, "its config changed")
                    member.outlet.close(
                        SHUTTING_DOWN_CODE, "The config of this participant changed."
                    )
            self._on_closed(room)
        for member in tuple(room.members.values()):
            if not member.inside:
                self.recheck(member)
        if seats_anew and self.rooms.get(room.name) is room:
            self._on_opened(room)

    def known_as(self, member: Member, caller: Caller) -> None:
        """Update the caller of a member. Disconnect the member if its credentials belong to another
        caller now."""
        older = member.caller
        member.caller = caller
        if (older.name, older.kind) != (caller.name, caller.kind):
            self.disconnect_member(
                member, "Your credentials belong to another caller now. Join again."
            )
        elif not (caller.can_call or caller.can_join):
            self.disconnect_member(member, "You are no longer allowed to join topics.")

    def recheck(self, member: Member) -> None:
        """Check a member against the current config: disconnect it or update its capabilities."""
        room = self.rooms.get(member.topic)
        if room is None or room.members.get(member.id) is not member:
            return
        caller = None if member.caller.kind == GUEST else member.caller
        try:
            _, given = admission.find_participant(self.config, room.name, caller, guest=member.id)
        except InterlockError as error:
            self.disconnect_member(member, error.message)
            return
        if given.id != member.id:
            self.disconnect_member(member, f"Your id is now {given.id}. Join again.")
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
        """Return the capabilities from the config, or those that an administrator set instead.

        Reading changes nothing. So a participant cannot undo a change by connecting as another
        caller in the meantime.
        """
        changed = self._changed.get((topic, id))
        if changed is None or not changed.holds(caller, given):
            return given
        return changed.capabilities

    def _keep(self, member: Member, capabilities: tuple[str, ...]) -> None:
        caller = None if member.caller.kind == GUEST else member.caller
        _, given = admission.find_participant(self.config, member.topic, caller, guest=member.id)
        self._changed[member.topic, member.id] = _ChangedCapabilities(
            member.caller, given.capabilities, capabilities
        )

    def _forget_changes(self) -> None:
        """Remove changes of participants whose config changed, so that an older config does not
        bring them back."""
        for (topic, id), changed in tuple(self._changed.items()):
            caller = None if changed.caller.kind == GUEST else changed.caller
            try:
                _, given = admission.find_participant(self.config, topic, caller, guest=id)
            except InterlockError:
                del self._changed[topic, id]
                continue
            if (given.id, given.capabilities) != (id, changed.given):
                del self._changed[topic, id]

    def _where(self, id: str, topic: str | None) -> str:
        """Return the topic of a participant that is connected or has changed capabilities. Raises
        InterlockError."""
        found = {name for name, room in self.rooms.items() if id in room.members}
        found |= {name for name, participant in self._changed if participant == id}
        if topic is not None:
            found &= {topic}
        if not found:
            where = "in any topic" if topic is None else f"in the topic {topic[:100]}"
            raise InterlockError(
                UNKNOWN_PARTICIPANT, f"There is no participant {id[:100]!r} {where} now."
            )
        if len(found) > 1:
            raise InterlockError(
                NAMESPACE_CONFLICT,
                f"{id[:100]!r} is in several topics: {', '.join(sorted(found))}. Choose one: "
                "?topic=NAME.",
            )
        return found.pop()

    def outside(self) -> list[Member]:
        """Return the members that have a connection."""
        return [
            member
            for room in self.rooms.values()
            for member in room.members.values()
            if not member.inside
        ]

    def _count(self, member: Member, error: str, kind: str) -> None:
        self.refused += 1
        if member.refused in _LOGGED_COUNTS:
            log.info(
                "topic %s: %d messages of %s rejected; the last: %s, %.100r",
                member.topic, member.refused, member.id, error, redact(kind),
            )  # fmt: skip
        if member.inside:
            return
        sampler = member.denied.get(error)
        if sampler is None:
            sampler = member.denied[error] = Sampler(1, DENIAL_INTERVAL_SECONDS)
        suppressed = sampler.sample(self._clock())
        if suppressed is None:
            return
        folded = f" (and {suppressed} more before it)" if suppressed else ""
        # Redact before truncation: half a secret would not be recognized.
        self._deny(member, error, f"{redact(kind)[:100]!r}{folded}")

    def _deny(self, member: Member, error: str, detail: str) -> None:
        """Write a rejection to the journal, as for any rejected call. Guests are recorded as
        strangers."""
        if self._audit is not None:
            call = Call(SEND_METHOD, TOPIC_SERVER, member.credentials, _CLIENT, name=member.topic)
            call.caller = None if member.caller.kind == GUEST else member.caller
            self._audit.record(call, error, 0, f"{member.id}: {detail}")

    def _guest(self, topic: str) -> str:
        """Return an unused id for a guest."""
        room = self.rooms.get(topic)
        # Long enough that a name is not reused soon: responses to a former guest may be under way.
        letters = 6
        for _ in range(_MAX_GUEST_ID_ATTEMPTS):
            digest = hashlib.blake2b(self._new_id().encode(), digest_size=16).digest()
            name = "guest-" + "".join(chr(ord("a") + byte % 26) for byte in digest[:letters])
            if room is None or name not in room.members:
                return name
            letters = min(letters + 1, len(digest))
        raise InterlockError(FORBIDDEN, "There is no free id for a guest. Join with a token.")


def _node_settings(settings: TopicConfig) -> tuple[object, ...]:
    """Return all settings that concern the node's own members of a topic."""
    return settings.node, settings.record, settings.record_per_second, settings.upstreams


def _make_guest_caller(id: str) -> Caller:
    return Caller(id, can_call=False, can_register=False, kind=GUEST)


def _apply_change(
    old: tuple[str, ...], add: Sequence[str], remove: Sequence[str]
) -> tuple[str, ...]:
    """Return the capabilities after a change. Raises InterlockError for a pattern that grants
    nothing."""
    for pattern in (*add, *remove):
        if problem := find_pattern_problem(pattern):
            raise InterlockError(
                INVALID_PARAMS, f"The capability {pattern[:100]!r} grants nothing: {problem}."
            )
    gone = frozenset(remove)
    new = tuple(dict.fromkeys(one for one in (*old, *add) if one not in gone))
    if len(new) > MAX_CAPABILITIES:
        raise InterlockError(
            INVALID_PARAMS,
            f"A participant can have at most {MAX_CAPABILITIES} capabilities. Use patterns.",
        )
    return new
