"""Who is registered with this node: ownership of segments, leases, budgets, and the tree below.

Sessions (`subserver_session.py`) know how to speak; here is decided. A subserver that dials in
becomes an upstream of its own, made by the node (`begin`), whose connector waits for its next
channel. It stays one for the grace period when it is lost, and is forgotten after that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import UNSET, Raw, UnsetType

from interlock.channels.channel import Channel
from interlock.core.call import Caller
from interlock.core.ports import Clock
from interlock.core.upstreams.listing import RawOffering
from interlock.errors import (
    AUTHORITY_REJECTED,
    CYCLE_DETECTED,
    FORBIDDEN,
    INVALID_PARAMS,
    INVALID_SEGMENT,
    NAMESPACE_CONFLICT,
    SHUTTING_DOWN,
    SPLIT_BRAIN,
    TOO_BUSY,
    UPSTREAM_LOST,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
    ProtocolError,
)
from interlock.protocol import jsonrpc
from interlock.protocol import mcpax as ax
from interlock.protocol.aql_terms import BUILTIN_SEGMENT
from interlock.protocol.scopes import ADMIN, READ, WRITE, highest_level, lowest_level, parse_scope
from interlock.tree.authority import check_authority, must_prove, refuse_mutable
from interlock.tree.config import SubserversConfig
from interlock.tree.dial_in import DialIn
from interlock.tree.leases import Leases, split_brain
from interlock.tree.subserver_record import (
    CallLater,
    ChildAssignment,
    RegistrationStore,
    SegmentClaim,
    SubserverRecord,
    Timer,
    budget_for,
    key_of,
    with_itself,
)
from interlock.tree.subserver_session import AxSession, keys_changed, until_registered

if TYPE_CHECKING:
    from interlock.core.upstreams.supervisor import Supervisor


# -- Who gets a segment: the first, its owner of old, or the same subserver come back.


class SegmentHolder:
    """Somebody who has a segment."""

    def __init__(self, info: SubserverRecord) -> None:
        self.info = info


def check_claim(claim: SegmentClaim | None, wanted: ax.Registration, verified: bool) -> None:
    """Hold a registration against who had the segment before. Raises InterlockError.

    A proven claim displaces an unproven one, never the other way round.
    """
    if claim is None:
        return
    same = _same_authority(wanted.authority, claim.authority)
    if (same and (verified or not claim.verified)) or (verified and not claim.verified):
        return
    raise InterlockError(
        AUTHORITY_REJECTED,
        f"The segment {wanted.segment!r} belongs to {claim.authority}"
        + (", and that has to be proven." if same else ". Ask for another."),
        {"segment": wanted.segment},
    )


def check_segment(
    wanted: ax.Registration,
    verified: bool,
    *,
    place: ChildAssignment | None,
    held: SegmentHolder | None,
    mine: SegmentHolder | None,
    room: bool,
) -> None:
    """Hold a registration against who is registered now. Raises InterlockError.

    `held` has the wanted segment, `mine` is the same caller's with the wanted subserver_id.
    """
    if wanted.segment == BUILTIN_SEGMENT:
        raise _conflict(wanted, "the node's own operations are called so")
    if place is not None and wanted.segment != place.segment:
        raise InterlockError(
            INVALID_SEGMENT,
            f"The config calls it {place.segment!r}: it must register as that.",
            {"segment": wanted.segment, "expected": place.segment},
        )
    if mine is not None:
        info = mine.info
        if info.verified and not verified:
            raise InterlockError(
                AUTHORITY_REJECTED,
                f"It is registered as {info.segment!r} with a proof of its authority: whoever "
                "takes its place has to prove it too.",
                {"segment": wanted.segment},
            )
        if info.live and not _same_authority(info.authority, wanted.authority):
            raise _conflict(wanted, "it is registered with another authority")
    if held is not None and held is not mine:
        info = held.info
        heir = (
            not info.live
            and verified
            and info.verified
            and _same_authority(info.authority, wanted.authority)
        )
        if not heir:
            raise _conflict(
                wanted,
                "another subserver has it"
                if info.live
                else "another had it a moment ago, and may come back",
            )
    if held is None and mine is None and not room:
        raise InterlockError(
            TOO_BUSY, "This node has as many registrations as it may (`subservers.most`)."
        )


def _same_authority(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return one is other
    return ax.dns_name(one) == ax.dns_name(other)


def _conflict(wanted: ax.Registration, why: str) -> InterlockError:
    return InterlockError(
        NAMESPACE_CONFLICT,
        f"The segment {wanted.segment!r} cannot be had: {why}.",
        {"segment": wanted.segment},
    )


def taken_by_another(segment: str) -> InterlockError:
    return InterlockError(
        NAMESPACE_CONFLICT,
        f"The segment {segment!r} is that of a server in the config. Ask for another.",
        {"segment": segment},
    )


def replaced() -> InterlockError:
    return InterlockError(
        NAMESPACE_CONFLICT, "The same subserver has registered again, on another channel."
    )


def not_known() -> InterlockError:
    return InterlockError(FORBIDDEN, "Whoever registered it may not be here any more.")


def nobody_may() -> InterlockError:
    return InterlockError(FORBIDDEN, "Nobody may register with this node.")


# -- Segments that belong to an authority, also when nobody is registered there.

USED_EVERY: Final = 3600.0
"""So often it is written down that an unproven claim is still used: else it would lapse."""

_log = logging.getLogger("interlock.upstreams")


class Claims:
    """The claims on the segments of one node."""

    def __init__(self, store: RegistrationStore, wall_clock: Clock) -> None:
        self._store = store
        self._wall_clock = wall_clock

    def check(self, wanted: ax.Registration, verified: bool) -> None:
        """Raises InterlockError when the segment is another's."""
        check_claim(self._store.claim_on(wanted.segment), wanted, verified)

    def use(self, info: SubserverRecord) -> None:
        """It is listed by its authority: whose segment it is from now on. Asked as often as
        anybody likes, and written when it is news."""
        authority = info.authority
        if authority is None:
            return
        try:
            claim = self._store.claim_on(info.segment)
            if (
                claim is None
                or claim.authority != authority
                or (info.verified and not claim.verified)
                or (not claim.verified and self._wall_clock() - claim.used >= USED_EVERY)
            ):
                self._store.keep_claim(info.segment, authority, info.verified)
        except InterlockError as error:
            _log.warning(
                "%s: its authority could not be written down: %s", info.segment, error.message
            )


# -- Everybody who is registered, or may come back: by segment, by who they are, by upstream.


class SubserverRegistration(SegmentHolder):
    """One subserver, from its registration until it is forgotten."""

    def __init__(self, info: SubserverRecord, session: AxSession) -> None:
        super().__init__(info)
        self.session: AxSession | None = session
        self.dial_in: DialIn | None = None
        """None: the node started it, and its upstream is the config's."""
        self.supervisor: Supervisor | None = None
        self.grace: Timer | None = None
        self.told: ax.SubserverBudget | None = None
        """The budget that it knows of."""
        self.shown = b""
        """The keys of this node that it knows of."""
        self.duplicates: set[str] = set()
        """Descendants of it that are registered elsewhere in the tree. It is told once."""

    def calm(self) -> None:
        """Nobody waits for its return any longer."""
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None


class SubserverRegistrations:
    """A subserver_id is that of the caller who brings it: another caller with the same one is
    another subserver, and keeps nobody out."""

    def __init__(self) -> None:
        self._by_segment: dict[str, SubserverRegistration] = {}
        self._by_id: dict[tuple[str, str], SubserverRegistration] = {}
        self._by_key: dict[str, SubserverRegistration] = {}

    def __len__(self) -> int:
        return len(self._by_segment)

    def __iter__(self) -> Iterator[SubserverRegistration]:
        """All that are there now, whatever becomes of them meanwhile."""
        return iter(list(self._by_segment.values()))

    def at(self, segment: str) -> SubserverRegistration | None:
        return self._by_segment.get(segment)

    def of(self, caller: str, subserver_id: str) -> SubserverRegistration | None:
        return self._by_id.get((caller, subserver_id))

    def behind(self, key: str) -> SubserverRegistration | None:
        return self._by_key.get(key)

    def registered(self, session: AxSession) -> SubserverRegistration | None:
        """What is known of a session that is registered now."""
        wanted = session.wanted
        record = None if wanted is None else self.of(session.caller.name, wanted.subserver_id)
        return record if record is not None and record.session is session else None

    def infos(self) -> list[SubserverRecord]:
        """By segment."""
        return [self._by_segment[segment].info for segment in sorted(self._by_segment)]

    def add(self, record: SubserverRegistration) -> None:
        info = record.info
        self._by_segment[info.segment] = self._by_key[info.key] = record
        self._by_id[info.caller, info.subserver_id] = record

    def remove(self, record: SubserverRegistration) -> bool:
        """False: it was removed before."""
        info = record.info
        if self._by_segment.get(info.segment) is not record:
            return False
        del self._by_segment[info.segment], self._by_key[info.key]
        del self._by_id[info.caller, info.subserver_id]
        return True

    def below(self, *, but: SubserverRegistration | None = None) -> Iterator[str]:
        """The ids of the aggregators that are below now, through whomever they are."""
        for record in self._by_segment.values():
            if record.session is not None and record is not but:
                yield from record.info.subtree_ids

    def descendants(self, *, but: SubserverRegistration | None = None) -> Iterator[str]:
        """The subserver_ids of everything that is registered below now, leaves included."""
        for record in self._by_segment.values():
            if record.session is not None and record is not but:
                yield record.info.subserver_id
                yield from record.info.descendant_ids

    def brings(self, subserver_id: str) -> SubserverRegistration | None:
        """The registered aggregator that has this subserver below it."""
        for record in self._by_segment.values():
            if record.session is not None and subserver_id in record.info.descendant_ids:
                return record
        return None


# -- Which aggregators may be below this one: none that is above it, and not too many.
#
# What a child says of its subtree goes up to the parent, and from there to the root. Somebody
# above that finds itself in it would end the registration of this whole node: so a child is
# refused here that names one of those who are known to be above.


def refuse_cycle(ids: Iterable[str], own: str, above: Collection[str]) -> None:
    """Raises InterlockError when this aggregator, or one above it, is among them."""
    for one in ids:
        if one == own:
            raise InterlockError(
                CYCLE_DETECTED,
                "This node is below the one that registers: it cannot be above it too.",
                {"aggregator_id": own},
            )
        if one in above:
            raise InterlockError(
                CYCLE_DETECTED,
                "A node above this one is said to be below the one that registers: it cannot be "
                "both.",
                {"aggregator_id": one},
            )


def refuse_crowd(ids: Iterable[str], others: Iterable[str]) -> None:
    """Raises InterlockError when with these and the others too many are below this aggregator."""
    below = {*ids, *others}
    if len(below) > ax.MAX_SUBTREE_IDS:
        raise ProtocolError(
            f"Too many nodes below: with these there would be {len(below)}, and no more than "
            f"{ax.MAX_SUBTREE_IDS} can be told of. Register some of them elsewhere.",
            INVALID_PARAMS,
            {"field": ax.SUBTREE_IDS},
        )


def bringers(
    records: Iterable[SubserverRegistration], ids: Collection[str] | None
) -> Iterator[tuple[SubserverRegistration, InterlockError]]:
    """Those through whom these aggregators are below, or without any ids the one who brings the
    most; each with why it has to go."""
    live = [one for one in records if one.session is not None and one.info.subtree_ids]
    if ids is None:
        if live:
            crowd = ProtocolError(
                "Too many nodes below: the parent of this node takes no more.",
                INVALID_PARAMS,
                {"field": ax.SUBTREE_IDS},
            )
            yield max(live, key=lambda one: len(one.info.subtree_ids)), crowd
        return
    for record in live:
        found = set(ids).intersection(record.info.subtree_ids)
        if found:
            yield (
                record,
                InterlockError(
                    CYCLE_DETECTED,
                    "A node above this one is below it too, through this one.",
                    {"aggregator_id": min(found)},
                ),
            )


# -- What a registered subserver is asked for at most, and the keys by which it checks who asks.


def granted_scope(wanted: str | None, scopes: tuple[str, ...] | None, *, unproven: bool) -> str:
    """The most that a subserver is asked for: what it wants, and no more than who registered it
    may do. `unproven`: it had to prove its authority and did not."""
    if unproven:
        return READ
    levels = [parse_scope(one).level for one in scopes or ()]
    may = ADMIN if scopes is None else highest_level(READ, *levels)
    return lowest_level(wanted or WRITE, may)


class SubserverGrants:
    """What every subserver was granted."""

    def __init__(self) -> None:
        self.limits: dict[str, str] = {}
        """Those that may not be asked for everything: the highest level that each may be asked
        for, by the key of its upstream."""
        self.keys: Callable[[], bytes] = bytes
        """Gives this node's public keys, the same object until they are others. Empty: it makes no
        tokens."""

    def grant(self, info: SubserverRecord, session: AxSession, proof: str) -> None:
        """Decide how much it is asked for. `proof`: who must prove its authority."""
        wanted = session.wanted
        unproven = not session.verified and must_prove(proof, session.channel.peer)
        info.auth_scope = granted_scope(
            None if wanted is None else wanted.auth_scope, session.caller.scopes, unproven=unproven
        )
        if info.auth_scope == ADMIN:
            self.release(info.key)
        else:
            self.limits[info.key] = info.auth_scope

    def release(self, key: str) -> None:
        """It is no more."""
        self.limits.pop(key, None)

    def show(self, record: SubserverRegistration) -> Raw | UnsetType:
        """The keys, for one who does not know them. UNSET: it knows them, or there are none."""
        keys = self.keys()
        if keys == record.shown:
            return UNSET
        record.shown = keys
        return Raw(keys)

    def show_in(self, answer: dict[str, object], record: SubserverRegistration) -> None:
        """Show them in the answer to a heartbeat, if there is any need."""
        keys = self.show(record)
        if keys is not UNSET:
            answer["jwks"] = keys

    def tell(self, records: Iterable[SubserverRegistration]) -> None:
        """The keys are others: tell everybody before anything comes that is signed with them."""
        told = keys_changed(self.keys())
        for record in records:
            if record.session is not None:
                record.session.channel.send(told)


OK: Final = "ok"
"""The outcome of what is not refused, to the audit."""


class Registrar:
    """Everybody who dials in."""

    def __init__(
        self,
        *,
        store: RegistrationStore,
        settings: SubserversConfig,
        aggregator_id: str,
        node_info: bytes,
        begin: Callable[[SubserverRecord, DialIn], Supervisor],
        end: Callable[[str], None],
        taken: Callable[[str], bool],
        on_change: Callable[[], None],
        on_granted: Callable[[SubserverRecord], None] | None = None,
        on_lost: Callable[[SubserverRecord, str], None] | None = None,
        audit: Callable[[str, str, str, str, str], None] | None = None,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
        call_later: CallLater | None = None,
        base_dir: Path = Path(),
    ) -> None:
        """`begin` makes the upstream of a new subserver and begins it; `end` ends it, and withdraws
        what it offered. `taken` tells whether a configured server has a segment. `on_change`: the
        ids of the subtree are others now. `on_granted`: a new session, or a new budget for it.
        `on_lost`: a registered one cannot be reached any more. `audit`: what was decided about a
        registration: the segment, the caller, the verb, `ok` or the name of a failure, a sentence.
        `base_dir`: what the paths in `trust` are relative to."""
        self.aggregator_id = aggregator_id
        self.node_info = node_info
        self.clock = clock
        self.call_later: CallLater = call_later or asyncio.get_running_loop().call_later
        self._store = store
        self._settings = settings
        self._begin = begin
        self._end = end
        self._taken = taken
        self._on_change = on_change
        self._on_granted = on_granted
        self._on_lost = on_lost
        self._audit = audit
        self._wall_clock = wall_clock
        self._base_dir = base_dir
        self._budget_cap = ax.SubserverBudget()
        self._channels: set[AxSession] = set()
        self._records = SubserverRegistrations()
        self._claims = Claims(store, wall_clock)
        self._leases = Leases(
            store,
            aggregator_id,
            wall_clock=wall_clock,
            call_later=self.call_later,
            on_split=self.dismiss,
        )
        self._parent_id: str | None = None
        self._closed = False
        self._left_out = False
        self.grants = SubserverGrants()

    # -- what the node asks

    def accept(
        self,
        channel: Channel,
        caller: Caller,
        on_registered: Callable[[], None] | None = None,
    ) -> None:
        """Somebody dialled in, and may be here."""
        if self._closed or not self._settings.enabled:
            channel.close(1001, "nobody registers here")
            return
        session = AxSession(channel, caller, self)
        session.on_registered = on_registered
        self._open(session)

    async def adopt(self, channel: Channel, *, key: str, segment: str) -> AxSession:
        """The session of a child that the node started, once it has registered as what the config
        says. Raises InterlockError when it does not."""
        session = AxSession(channel, Caller(f"config:{key}"), self, ChildAssignment(key, segment))
        done = until_registered(session, key)
        self._open(session)
        try:
            await done
        except asyncio.CancelledError:
            session.dismiss(InterlockError(SHUTTING_DOWN, "The node does not wait any longer."))
            raise
        return session

    def child_id(self, key: str) -> str:
        """By what a child that the node starts is to be known, also after a restart. Two nodes may
        have a child of the same name: they are two. Raises InterlockError."""
        return self._store.identity(f"child {key}")

    def subservers(self) -> list[SubserverRecord]:
        """Everybody who is registered, or still listed, by segment."""
        return self._records.infos()

    def subserver(self, key: str) -> SubserverRecord | None:
        """What is known of the subserver behind an upstream of the node."""
        record = self._records.behind(key)
        return None if record is None else record.info

    def subtree_ids(self) -> tuple[str, ...]:
        """This aggregator, and all that are below it now."""
        return tuple(dict.fromkeys((self.aggregator_id, *self._records.below())))

    def descendant_ids(self) -> tuple[str, ...]:
        """The subserver_ids of everything that is registered below now, leaves included. Beyond
        what a message may hold, the rest is left out."""
        ids = sorted(set(self._records.descendants()))
        if len(ids) > ax.MAX_SUBTREE_IDS and not self._left_out:
            self._left_out = True
            _log.warning(
                "%d subservers are below this node, and %d can be reported to its parent: a second "
                "registration of the others elsewhere in the tree is not noticed",
                len(ids), ax.MAX_SUBTREE_IDS,
            )  # fmt: skip
        return tuple(ids[: ax.MAX_SUBTREE_IDS])

    def drop_duplicates(self, ids: Collection[str]) -> None:
        """The parent has these subservers registered elsewhere in the tree (MCP-AX §13.4): end
        their registrations here, and tell the aggregators below that have them."""
        duplicates = set(ids)
        parent = self._parent_id or ""
        for record in self._records:
            if record.session is None:
                continue
            if record.info.subserver_id in duplicates:
                self._drop(record, split_brain(parent))
            else:
                record.duplicates |= duplicates & record.info.descendant_ids

    @property
    def channels(self) -> int:
        """How many channels are open, registered or not."""
        return len(self._channels)

    @property
    def list_ttl(self) -> float:
        """How long the list of a subserver is believed."""
        return self._settings.list_ttl

    @property
    def tree_id(self) -> str:
        """Which tree this is. Subservers hear of a new one with their next heartbeat."""
        return self._leases.tree_id

    @tree_id.setter
    def tree_id(self, tree_id: str) -> None:
        if tree_id != self.tree_id:
            self._leases.move(tree_id)
            self._dismiss_those_above()

    @property
    def parent_id(self) -> str | None:
        """The aggregator that this one is registered with: nobody below may have it below."""
        return self._parent_id

    @parent_id.setter
    def parent_id(self, parent_id: str | None) -> None:
        self._parent_id = parent_id
        self._dismiss_those_above()

    def dismiss_bringers(self, ids: Collection[str] | None) -> None:
        """The parent does not bear who is below this node. Send those away through whom these
        aggregators are; or, where nobody says which, the one who brings the most."""
        for record, error in bringers(self._records, ids):
            self._drop(record, error)

    @property
    def budget_cap(self) -> ax.SubserverBudget:
        """What this node may itself be asked for: nobody below is granted more."""
        return self._budget_cap

    @budget_cap.setter
    def budget_cap(self, cap: ax.SubserverBudget) -> None:
        self._budget_cap = cap
        self._grant_anew()

    def configure(self, settings: SubserversConfig, known: Container[str] | None = None) -> None:
        """Go on by other settings. Who may not be here any more is sent away: also who was let in
        as somebody that is not among the `known` any longer. None: everybody is known."""
        self._settings = settings
        for record in self._records:
            info = record.info
            if record.dial_in is None:
                continue
            if not settings.enabled:
                self._drop(record, nobody_may())
            elif self._taken(info.segment):
                self._drop(record, taken_by_another(info.segment))
            elif known is not None and info.caller not in known:
                self._drop(record, not_known())
        for session in list(self._channels):
            if session.place is not None:
                continue
            if not settings.enabled:
                session.dismiss(nobody_may())
            elif known is not None and session.caller.name not in known:
                session.dismiss(not_known())
        self._grant_anew()

    def keys_changed(self) -> None:
        """This node signs its tokens with other keys from now on."""
        self.grants.tell(self._records)

    def close(self) -> None:
        """Send everybody away: the node stops."""
        self._closed = True
        error = InterlockError(SHUTTING_DOWN, "The node stops.")
        for record in self._records:
            self._drop(record, error)
        for session in list(self._channels):
            session.dismiss(error)
        self._leases.close()

    # -- what sessions ask

    def consider(self, session: AxSession, wanted: ax.Registration) -> bool:
        verified = check_authority(
            wanted,
            session.channel.peer_names,
            aggregator_id=self.aggregator_id,
            trust=[self._base_dir / Path(one).expanduser() for one in self._settings.trust],
            wall_clock=self._wall_clock,
        )
        self._check(session, wanted, verified)
        self._leases.check(wanted.subserver_id)
        return verified

    def admit(
        self, session: AxSession, identity: ax.SubserverIdentity | None
    ) -> ax.RegistrationResult:
        wanted = session.wanted
        assert wanted is not None
        # Somebody may have come in between.
        self._check(session, wanted, session.verified)
        if (
            identity is not None
            and identity.parent_id is not None
            and identity.parent_id != self.aggregator_id
            and identity.tree_id in (None, self.tree_id)
        ):
            raise split_brain(identity.parent_id)
        # First of all: a store that cannot be used must not cost anybody a good session.
        self._leases.take(session, wanted)
        mine = self._records.of(session.caller.name, wanted.subserver_id)
        held = self._records.at(wanted.segment)
        if mine is not held or session.place is not None:
            # It moves to another segment, or comes in the place of another.
            for old in (mine, held):
                if old is not None:
                    self._drop(old, replaced())
        record = self._records.at(wanted.segment)
        info = self._describe(session, wanted, None if record is None else record.info)
        if record is None:
            record = SubserverRegistration(info, session)
            self._records.add(record)
        else:
            before, record.session = record.session, session
            record.calm()
            if before is not None:
                self._ended(info, replaced())
                before.dismiss(replaced())
        record.told, record.shown = info.budget, b""
        self._learn_descendants(record, info.descendant_ids, frozenset())
        return ax.RegistrationResult(
            assigned_segment=wanted.segment,
            session_id=session.id,
            heartbeat_deadline_ms=ax.heartbeat_deadline_ms(wanted.heartbeat_interval_ms),
            budget=info.budget,
            aggregator_id=self.aggregator_id,
            tree_id=self.tree_id,
            auth_scope=info.auth_scope,
            jwks=self.grants.show(record),
            duplicate_ids=self._take_duplicates(record) or UNSET,
        )

    def refused(self, session: AxSession, error: InterlockError) -> None:
        segment = "" if session.wanted is None else session.wanted.segment
        self._note(segment, session.caller.name, ax.REGISTER, error.failure.name, error.message)

    def joined(self, session: AxSession) -> None:
        record = self._record(session)
        if record is None:
            return
        info = record.info
        _log.info("segment %s registered (%s)", info.segment, session.channel.label)
        self._note(info.segment, info.caller, ax.REGISTER, OK, f"from {session.channel.label}")
        if self._on_granted is not None:
            self._on_granted(info)
        if session.place is None:
            if record.dial_in is None:
                record.dial_in = DialIn(info.segment, self.node_info, lambda: self.list_ttl)
                record.supervisor = self._begin(info, record.dial_in)
            record.dial_in.arrive(session)
        self._on_change()

    def beaten(self, session: AxSession, beat: ax.HeartbeatParams) -> bytes:
        record = self._record(session)
        assert record is not None
        info = record.info
        if beat.subtree_ids is not None:
            refuse_cycle(beat.subtree_ids, self.aggregator_id, self._above(info.role != "leaf"))
            ids = with_itself(info.subserver_id, beat.subtree_ids)
            if info.role == "aggregator" and ids != info.subtree_ids:
                refuse_crowd(ids, (self.aggregator_id, *self._records.below(but=record)))
                info.subtree_ids = ids
                self._on_change()
        if beat.descendant_ids is not None and info.role == "aggregator":
            descendants = frozenset(beat.descendant_ids)
            if descendants != info.descendant_ids:
                self._learn_descendants(record, descendants, info.descendant_ids)
                self._on_change()
        info.last_beat = self._wall_clock()
        self._leases.renew(session)
        answer: dict[str, object] = {
            "status": "ok",
            "heartbeat_deadline_ms": info.deadline_ms,
            "tree_id": self.tree_id,
        }
        if record.told != info.budget:
            record.told = info.budget
            answer["budget"] = info.budget
        self.grants.show_in(answer, record)
        if record.duplicates:
            answer[ax.DUPLICATE_IDS] = self._take_duplicates(record)
        return jsonrpc.encode_value(answer)

    def renew(self, session: AxSession) -> None:
        self._leases.renew(session)

    def vet(self, session: AxSession, offer: RawOffering) -> None:
        record = self._record(session)
        if record is None:
            raise InterlockError(UPSTREAM_UNAVAILABLE, "It is not registered any more.")
        info = record.info
        if not info.verified and must_prove(self._settings.proof, info.peer):
            try:
                refuse_mutable(info.segment, offer.tools)
            except InterlockError as error:
                self.dismiss(session, error)
                raise
        if session.place is None:
            # Only now: who is never listed keeps nobody else out.
            self._claims.use(info)

    def dismiss(self, session: AxSession, error: InterlockError) -> None:
        record = self._record(session)
        if record is None:
            session.dismiss(error)
        else:
            self._drop(record, error)

    def lost(self, session: AxSession, reason: str, by: str) -> None:
        record = self._record(session)
        if record is None:
            return
        info = record.info
        record.session = None
        info.session_id = ""
        info.lost_at = self._wall_clock()
        info.problem = reason
        self._leases.release(session)
        _log.warning("%s is lost: %s", info.segment, reason)
        self._note(info.segment, info.caller, by, UPSTREAM_LOST.name, reason)
        supervisor = record.supervisor
        if supervisor is None or not supervisor.listed or not self._settings.grace:
            self._drop(record, None, reason)
        else:
            record.grace = self.call_later(
                self._settings.grace, lambda: self._drop(record, None, "it did not come back")
            )
        self._on_change()
        if self._on_lost is not None:
            self._on_lost(info, reason)

    def left(self, session: AxSession, reason: str) -> None:
        record = self._record(session)
        if record is not None:
            self._note(record.info.segment, record.info.caller, ax.DEREGISTER, OK, reason)
            self._drop(record, None, reason)

    def over(self, session: AxSession) -> None:
        self._channels.discard(session)

    # -- deciding

    def _open(self, session: AxSession) -> None:
        self._channels.add(session)
        session.begin()

    def _check(self, session: AxSession, wanted: ax.Registration, verified: bool) -> None:
        """Raises InterlockError when it may not register."""
        if not self._settings.enabled and session.place is None:
            raise nobody_may()
        ids, deep = (wanted.subserver_id, *(wanted.subtree_ids or ())), wanted.is_aggregator
        refuse_cycle(ids, self.aggregator_id, self._above(deep))
        other = self._records.brings(wanted.subserver_id)
        if other is not None and other.info.subserver_id != wanted.subserver_id:
            raise split_brain(other.info.subserver_id)
        if session.place is None:
            if self._taken(wanted.segment):
                raise taken_by_another(wanted.segment)
            if self._settings.sticky:
                self._claims.check(wanted, verified)
        mine = self._records.of(session.caller.name, wanted.subserver_id)
        check_segment(
            wanted,
            verified,
            place=session.place,
            held=self._records.at(wanted.segment),
            mine=mine,
            room=len(self._records) < self._settings.most,
        )
        if deep:
            refuse_crowd(ids, (self.aggregator_id, *self._records.below(but=mine)))

    def _learn_descendants(
        self, record: SubserverRegistration, ids: frozenset[str], known: frozenset[str]
    ) -> None:
        """Take what an aggregator reports. An id that is registered here, or below another one
        that reported it first, is a duplicate: it does not count, and the aggregator is told."""
        others = self._records.descendants(but=record)
        record.duplicates = set((ids - known).intersection(others))
        record.info.descendant_ids = ids - record.duplicates

    def _take_duplicates(self, record: SubserverRegistration) -> tuple[str, ...]:
        """What an aggregator is to drop, told once, and written down."""
        ids, record.duplicates = tuple(sorted(record.duplicates)), set()
        if ids:
            shown = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
            words = f"it reports subservers that are registered elsewhere in the tree: {shown}"
            _log.warning("%s: %s", record.info.segment, words)
            self._note(
                record.info.segment, record.info.caller, ax.HEARTBEAT, SPLIT_BRAIN.name, words
            )
        return ids

    def _above(self, deep: bool) -> frozenset[str]:
        """Who is known to be above this node, for whoever has others below it."""
        known = (self.tree_id, self._parent_id) if deep else ()
        return frozenset(one for one in known if one and one != self.aggregator_id)

    def _dismiss_those_above(self) -> None:
        above = self._above(True)
        if above:
            self.dismiss_bringers(above)

    def _record(self, session: AxSession) -> SubserverRegistration | None:
        return self._records.registered(session)

    def _describe(
        self, session: AxSession, wanted: ax.Registration, info: SubserverRecord | None
    ) -> SubserverRecord:
        """What is true of it from now on; in the same object where there is one."""
        channel = session.channel
        if info is None:
            key = key_of(wanted.segment) if session.place is None else session.place.key
            info = SubserverRecord(
                key=key, segment=wanted.segment, subserver_id=wanted.subserver_id
            )
        info.caller, info.peer, info.label = session.caller.name, channel.peer, channel.label
        info.session_id, info.verified = session.id, session.verified
        info.budget = budget_for(self._settings, wanted.segment).limited_by(self._budget_cap)
        info.registered_at = info.last_beat = self._wall_clock()
        info.lost_at, info.problem = None, ""
        info.learn(wanted)
        self.grants.grant(info, session, self._settings.proof)
        return info

    def _drop(
        self, record: SubserverRegistration, error: InterlockError | None, reason: str = ""
    ) -> None:
        """Forget a subserver, with everything that it offered, at once."""
        info, session = record.info, record.session
        reason = reason if error is None else error.message
        if not self._records.remove(record):
            return
        record.calm()
        record.session = None
        info.session_id = ""
        self.grants.release(info.key)
        if session is not None:
            self._leases.release(session)
        if record.supervisor is not None:
            record.supervisor.withdraw(reason)
        if session is not None and error is not None:
            self._ended(info, error)
            session.dismiss(error)
        if record.dial_in is not None:
            self._end(info.key)
        if session is not None:
            self._on_change()

    # -- what is told

    def _ended(self, info: SubserverRecord, error: InterlockError) -> None:
        name = error.failure.name
        self._note(info.segment, info.caller, ax.SESSION_ENDED, name, error.message)

    def _note(self, segment: str, caller: str, verb: str, outcome: str, detail: str) -> None:
        if self._audit is not None:
            self._audit(segment, caller, verb, outcome, detail)

    # -- budgets

    def _grant_anew(self) -> None:
        for record in self._records:
            budget = budget_for(self._settings, record.info.segment).limited_by(self._budget_cap)
            if budget != record.info.budget:
                record.info.budget = budget
                if record.session is not None and self._on_granted is not None:
                    self._on_granted(record.info)
