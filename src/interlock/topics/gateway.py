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
    granted: tuple[str, ...]
    capabilities: tuple[str, ...]

    def applies_to(self, caller: Caller, granted: tuple[str, ...]) -> bool:
        current = (self.caller.name, self.caller.kind, self.granted)
        return current == (caller.name, caller.kind, granted)


class Gateway:
    """The topics of a node."""

    def __init__(
        self,
        config: TopicsConfig,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        new_id: Callable[[], str],
        now: Callable[[], str],
        on_open: Callable[[Room], None] = lambda _: None,
        on_close: Callable[[Room], None] = lambda _: None,
        audit: Audit | None = None,
        clock: Callable[[], float] = time.monotonic,
        max_connections: int = DEFAULT_MAX_CONNECTIONS,
    ) -> None:
        """
        Args:
            on_open: called with a new room; may add members of the node itself.
            on_close: called with a room that has lost those members.
            max_connections: the maximum number of connections to all topics, without a setting.
        """
        self.config = config
        self.rooms: dict[str, Room] = {}
        """Open rooms, by name."""
        self._call_soon = call_soon
        self._new_id = new_id
        self._now = now
        self._on_open = on_open
        self._on_close = on_close
        self._audit = audit
        self._clock = clock
        self._capability_changes: BoundedDict[tuple[str, str], _ChangedCapabilities] = BoundedDict(
            MAX_CAPABILITY_CHANGES
        )
        self._max_connections = max_connections
        self._connections = ConnectionCounter(config.max_connections or max_connections)
        self.rejected = 0
        """The number of rejected messages of all members."""

    def start(self) -> None:
        """Open the rooms in which the node itself takes part."""
        for name, settings in self.config.rooms.items():
            if self._is_permanent(name, settings) and name not in self.rooms:
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
        guest = self._new_guest_id(topic) if caller is None else ""
        _, participant = admission.find_participant(self.config, topic, caller, guest=guest)
        known_caller = caller or _make_guest_caller(participant.id)
        room = self.rooms.get(topic)
        if room is not None:
            room.check_join(participant.id, known_caller)
        if room is None or participant.id not in room.members:
            self._connections.check(caller)
        capabilities = self._find_capabilities(
            topic, participant.id, known_caller, participant.capabilities
        )
        return msgspec.structs.replace(participant, capabilities=capabilities)

    def add_member(
        self,
        topic: str,
        participant: ParticipantProfile,
        sink: MessageSink,
        *,
        caller: Caller | None,
        credentials: Credentials,
        internal: bool = False,
    ) -> Member:
        """Add a member that `admit` admitted, or a member of the node itself. Raises
        InterlockError."""
        room = self.rooms.get(topic)
        if room is None:
            settings = self.find_settings(topic)
            if settings is None:
                raise InterlockError(FORBIDDEN, f"The topic {topic} no longer exists.")
            room = self._open(topic, settings)
        member = Member(
            topic,
            participant.id,
            participant.capabilities,
            compile_grants(participant.capabilities),
            participant.routing,
            sink,
            caller or _make_guest_caller(participant.id),
            credentials,
            self._new_id(),
            self._now(),
            internal,
        )
        previous = room.members.get(participant.id)
        room.join(member)
        self._connections.on_join(member)
        if previous is not None:
            self._connections.on_leave(previous)
            # Continue the counts of the older connection: nothing is lost or reported twice.
            member.denial_samplers = previous.denial_samplers
        return member

    def leave(self, member: Member, reason: str = "") -> None:
        """Remove a member. Close its room if it is empty."""
        room = self.rooms.get(member.topic)
        if room is None or room.members.get(member.id) is not member:
            return
        room.leave(member, reason)
        self._connections.on_leave(member)
        for error, denial_samplers in member.denial_samplers.items():
            if denial_samplers.suppressed:
                self._record_rejection(
                    member, error, f"{denial_samplers.suppressed} more until it left"
                )
        if member.caller.kind == GUEST:
            # The next guest may have the same id.
            self._capability_changes.pop((member.topic, member.id), None)
        if not member.internal:
            self._close_if_empty(room)

    def disconnect(self, callers: Container[str]) -> None:
        """Disconnect the members of callers whose credentials are no longer valid."""
        for member in self.connected_members():
            if member.caller.name in callers and member.caller.kind != GUEST:
                self.disconnect_member(
                    member, "Your credentials are no longer valid. Join again with new ones."
                )

    # -- messages

    def send(self, member: Member, text: bytes) -> EnvelopeHeader | None:
        """Forward a message. Returns None if it was rejected."""
        room = self.rooms.get(member.topic)
        return None if room is None else room.send(member, text)

    def report_loss(self, member: Member, loss: MessageLoss) -> None:
        """Tell a slow reader what it lost."""
        room = self.rooms.get(member.topic)
        if room is not None:
            room.report_loss(member, loss)

    # -- members

    def find_settings(self, topic: str) -> TopicConfig | None:
        """Return the settings of a topic, or None if the config has no such topic."""
        return admission.find_settings(self.config, topic)

    def find_member(self, topic: str, id: str) -> Member | None:
        room = self.rooms.get(topic)
        return None if room is None else room.members.get(id)

    def list_connections(self) -> list[ConnectionInfo]:
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
            for member in self.connected_members()
        ]

    # -- capabilities

    def change_capabilities(
        self, id: str, add: Sequence[str], remove: Sequence[str], *, by: str, topic: str | None
    ) -> CapabilityUpdate:
        """Add and remove capabilities of a participant. Raises InterlockError.

        Args:
            by: the name of the caller that requests the change.
            topic: required if `id` is in several topics.
        """
        topic_name = self._find_topic(id, topic)
        member = self.find_member(topic_name, id)
        change: _ChangedCapabilities | None = None
        if member is not None:
            old, name = member.capabilities, member.caller.name
            if member.internal:
                reason = f"{id!r} is the node itself. Change its capabilities in the config."
                raise InterlockError(FORBIDDEN, reason)
        else:
            # It has left and would get its changed capabilities back: remove them meanwhile.
            change = self._capability_changes[topic_name, id]
            old, name = change.capabilities, change.caller.name
        if name == by:
            raise InterlockError(
                FORBIDDEN,
                "You cannot change your own capabilities. Ask another administrator.",
            )
        new = _apply_change(old, add, remove)
        if new != old:
            if member is not None:
                self._store_change(member, new)
                self.rooms[topic_name].change_capabilities(member, new)
            elif change is not None:
                self._capability_changes[topic_name, id] = msgspec.structs.replace(
                    change, capabilities=new
                )
            if self._audit is not None:
                detail = f"by {by}: {' '.join(old)} -> {' '.join(new)}"
                self._audit.record_change("topics", f"{topic_name}/{id}", "capabilities", detail)
        return CapabilityUpdate(id, old, new, by, self._now())

    def configure(self, config: TopicsConfig) -> None:
        """Apply a new config: check every member again."""
        self.config = config
        self._connections.limit = config.max_connections or self._max_connections
        self._remove_outdated_changes()
        for room in tuple(self.rooms.values()):
            settings = self.find_settings(room.name)
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
            on_violation=self._count_rejection,
            on_flood=lambda member, reason: self.disconnect_member(
                member, reason, SLOW_READER_CODE
            ),
            clock=self._clock,
        )
        self._on_open(room)
        return room

    def _close(self, room: Room, code: int, reason: str) -> None:
        room.flush()
        self.rooms.pop(room.name, None)
        for member in tuple(room.members.values()):
            member.sink.close(code, reason)
            self._connections.on_leave(member)
        room.members.clear()
        self._on_close(room)

    def _close_if_empty(self, room: Room) -> None:
        if self.rooms.get(room.name) is not room or self._is_permanent(room.name, room.settings):
            return
        if all(member.internal for member in room.members.values()):
            self._close(room, SHUTTING_DOWN_CODE, "All participants have disconnected.")

    def _is_permanent(self, name: str, settings: TopicConfig) -> bool:
        """Return whether a room stays open without connections, because the node takes part."""
        named = name in self.config.rooms and not admission.is_glob(name)
        return named and (settings.node is not None or settings.record != "off")

    def _reconfigure(self, room: Room, settings: TopicConfig) -> None:
        previous, room.settings = room.settings, settings
        is_node_changed = _node_settings(previous) != _node_settings(settings)
        if is_node_changed:
            for member in tuple(room.members.values()):
                if member.internal:
                    room.leave(member, "its config changed")
                    member.sink.close(SHUTTING_DOWN_CODE, "The config of this participant changed.")
            self._on_close(room)
        for member in tuple(room.members.values()):
            if not member.internal:
                self.recheck(member)
        if is_node_changed and self.rooms.get(room.name) is room:
            self._on_open(room)

    def update_caller(self, member: Member, caller: Caller) -> None:
        """Update the caller of a member. Disconnect the member if its credentials belong to another
        caller now."""
        previous = member.caller
        member.caller = caller
        if (previous.name, previous.kind) != (caller.name, caller.kind):
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
            _, profile = admission.find_participant(self.config, room.name, caller, guest=member.id)
        except InterlockError as error:
            self.disconnect_member(member, error.message)
            return
        if profile.id != member.id:
            self.disconnect_member(member, f"Your id is now {profile.id}. Join again.")
            return
        capabilities = self._find_capabilities(
            room.name, member.id, member.caller, profile.capabilities
        )
        if capabilities != member.capabilities:
            room.change_capabilities(member, capabilities)

    def disconnect_member(self, member: Member, reason: str, code: int = FORBIDDEN_CODE) -> None:
        """Close the connection of one member."""
        self.leave(member, reason)
        member.sink.close(code, reason)

    def _find_capabilities(
        self, topic: str, id: str, caller: Caller, granted: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Return the capabilities from the config, or those that an administrator set instead.

        Reading changes nothing. So a participant cannot undo a change by connecting as another
        caller in the meantime.
        """
        change = self._capability_changes.get((topic, id))
        if change is None or not change.applies_to(caller, granted):
            return granted
        return change.capabilities

    def _store_change(self, member: Member, capabilities: tuple[str, ...]) -> None:
        caller = None if member.caller.kind == GUEST else member.caller
        _, profile = admission.find_participant(self.config, member.topic, caller, guest=member.id)
        self._capability_changes[member.topic, member.id] = _ChangedCapabilities(
            member.caller, profile.capabilities, capabilities
        )

    def _remove_outdated_changes(self) -> None:
        """Remove changes of participants whose config changed, so that an older config does not
        bring them back."""
        for (topic, id), change in tuple(self._capability_changes.items()):
            caller = None if change.caller.kind == GUEST else change.caller
            try:
                _, profile = admission.find_participant(self.config, topic, caller, guest=id)
            except InterlockError:
                del self._capability_changes[topic, id]
                continue
            if (profile.id, profile.capabilities) != (id, change.granted):
                del self._capability_changes[topic, id]

    def _find_topic(self, id: str, topic: str | None) -> str:
        """Return the topic of a participant that is connected or has changed capabilities. Raises
        InterlockError."""
        topics = {name for name, room in self.rooms.items() if id in room.members}
        topics |= {name for name, participant in self._capability_changes if participant == id}
        if topic is not None:
            topics &= {topic}
        if not topics:
            place = "in any topic" if topic is None else f"in the topic {topic[:100]}"
            raise InterlockError(
                UNKNOWN_PARTICIPANT, f"There is no participant {id[:100]!r} {place} now."
            )
        if len(topics) > 1:
            raise InterlockError(
                NAMESPACE_CONFLICT,
                f"{id[:100]!r} is in several topics: {', '.join(sorted(topics))}. Choose one: "
                "?topic=NAME.",
            )
        return topics.pop()

    def connected_members(self) -> list[Member]:
        """Return the members that have a connection."""
        return [
            member
            for room in self.rooms.values()
            for member in room.members.values()
            if not member.internal
        ]

    def _count_rejection(self, member: Member, error: str, kind: str) -> None:
        self.rejected += 1
        if member.rejected in _LOGGED_COUNTS:
            log.info(
                "topic %s: %d messages of %s rejected, the last: %s, %.100r",
                member.topic, member.rejected, member.id, error, redact(kind),
            )  # fmt: skip
        if member.internal:
            return
        sampler = member.denial_samplers.get(error)
        if sampler is None:
            sampler = member.denial_samplers[error] = Sampler(1, DENIAL_INTERVAL_SECONDS)
        suppressed = sampler.sample(self._clock())
        if suppressed is None:
            return
        suppressed_note = f" (and {suppressed} more before it)" if suppressed else ""
        # Redact before truncation: half a secret would not be recognized.
        self._record_rejection(member, error, f"{redact(kind)[:100]!r}{suppressed_note}")

    def _record_rejection(self, member: Member, error: str, detail: str) -> None:
        """Write a rejection to the journal, as for any rejected call. Guests are recorded as
        strangers."""
        if self._audit is not None:
            call = Call(SEND_METHOD, TOPIC_SERVER, member.credentials, _CLIENT, name=member.topic)
            call.caller = None if member.caller.kind == GUEST else member.caller
            self._audit.record(call, error, 0, f"{member.id}: {detail}")

    def _new_guest_id(self, topic: str) -> str:
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
    removed = frozenset(remove)
    new = tuple(dict.fromkeys(pattern for pattern in (*old, *add) if pattern not in removed))
    if len(new) > MAX_CAPABILITIES:
        raise InterlockError(
            INVALID_PARAMS,
            f"A participant can have at most {MAX_CAPABILITIES} capabilities. Use patterns.",
        )
    return new
