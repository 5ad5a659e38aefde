"""Who is registered with this node: ownership of segments, leases, budgets, and the tree below.

Sessions (`session.py`) know how to speak; here is decided. A subserver that dials in becomes an
upstream of its own, made by the node (`begin`), whose connector waits for its next channel. It
stays one for the grace period when it is lost, and is forgotten after that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Container
from pathlib import Path
from typing import TYPE_CHECKING, Final

from interlock.call import Caller
from interlock.channels.channel import Channel
from interlock.config.model import SubserversConfig
from interlock.errors import (
    SHUTTING_DOWN,
    UPSTREAM_LOST,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
)
from interlock.ports import Clock
from interlock.protocol import ax, jsonrpc
from interlock.upstreams.ax.authority import check_authority, must_prove, refuse_mutable
from interlock.upstreams.ax.claims import Claims
from interlock.upstreams.ax.desk import CallLater, Place
from interlock.upstreams.ax.dial_in import DialIn
from interlock.upstreams.ax.grants import Grants
from interlock.upstreams.ax.leases import Leases, split_brain
from interlock.upstreams.ax.ownership import (
    check_segment,
    nobody_may,
    not_known,
    replaced,
    taken_by_another,
)
from interlock.upstreams.ax.records import Record, Records
from interlock.upstreams.ax.session import AxSession, until_registered
from interlock.upstreams.ax.subserver import Subserver, TreeStore, budget_for, key_of, with_itself
from interlock.upstreams.ax.subtree import bringers, refuse_crowd, refuse_cycle
from interlock.upstreams.listing import RawOffer

if TYPE_CHECKING:
    from interlock.upstreams.supervisor import Supervisor

OK: Final = "ok"
"""The outcome of what is not refused, to the audit."""

_log = logging.getLogger("interlock.upstreams")


class Registrar:
    """Everybody who dials in."""

    def __init__(
        self,
        *,
        store: TreeStore,
        settings: SubserversConfig,
        aggregator_id: str,
        own_info: bytes,
        begin: Callable[[Subserver, DialIn], Supervisor],
        end: Callable[[str], None],
        taken: Callable[[str], bool],
        on_change: Callable[[], None],
        on_granted: Callable[[Subserver], None] | None = None,
        on_lost: Callable[[Subserver, str], None] | None = None,
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
        self.own_info = own_info
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
        self._budget_cap = ax.Budget()
        self._channels: set[AxSession] = set()
        self._records = Records()
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
        self.grants = Grants()

    # -- what the node asks

    def accept(self, channel: Channel, caller: Caller) -> None:
        """Somebody dialled in, and may be here."""
        if self._closed or not self._settings.enabled:
            channel.close(1001, "nobody registers here")
            return
        self._open(AxSession(channel, caller, self))

    async def adopt(self, channel: Channel, *, key: str, segment: str) -> AxSession:
        """The session of a child that the node started, once it has registered as what the config
        says. Raises InterlockError when it does not."""
        session = AxSession(channel, Caller(f"config:{key}"), self, Place(key, segment))
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

    def subservers(self) -> list[Subserver]:
        """Everybody who is registered, or still listed, by segment."""
        return self._records.infos()

    def subserver(self, key: str) -> Subserver | None:
        """What is known of the subserver behind an upstream of the node."""
        record = self._records.behind(key)
        return None if record is None else record.info

    def subtree_ids(self) -> tuple[str, ...]:
        """This aggregator, and all that are below it now."""
        return tuple(dict.fromkeys((self.aggregator_id, *self._records.below())))

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
    def budget_cap(self) -> ax.Budget:
        """What this node may itself be asked for: nobody below is granted more."""
        return self._budget_cap

    @budget_cap.setter
    def budget_cap(self, cap: ax.Budget) -> None:
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
            session.channel.names,
            aggregator_id=self.aggregator_id,
            trust=[self._base_dir / Path(one).expanduser() for one in self._settings.trust],
            wall_clock=self._wall_clock,
        )
        self._check(session, wanted, verified)
        self._leases.check(wanted.subserver_id)
        return verified

    def admit(self, session: AxSession, identity: ax.Identity | None) -> ax.Registered:
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
            record = Record(info, session)
            self._records.add(record)
        else:
            before, record.session = record.session, session
            record.calm()
            if before is not None:
                self._ended(info, replaced())
                before.dismiss(replaced())
        record.told, record.shown = info.budget, b""
        return ax.Registered(
            assigned_segment=wanted.segment,
            session_id=session.id,
            heartbeat_deadline_ms=ax.heartbeat_deadline_ms(wanted.heartbeat_interval_ms),
            budget=info.budget,
            aggregator_id=self.aggregator_id,
            tree_id=self.tree_id,
            auth_scope=info.auth_scope,
            jwks=self.grants.show(record),
        )

    def refused(self, session: AxSession, error: InterlockError) -> None:
        segment = "" if session.wanted is None else session.wanted.segment
        self._note(segment, session.caller.name, ax.REGISTER, error.failure.name, error.message)

    def joined(self, session: AxSession) -> None:
        record = self._record(session)
        if record is None:
            return
        info = record.info
        _log.info("%s has registered as %s", session.channel.label, info.segment)
        self._note(info.segment, info.caller, ax.REGISTER, OK, f"from {session.channel.label}")
        if self._on_granted is not None:
            self._on_granted(info)
        if session.place is None:
            if record.dial_in is None:
                record.dial_in = DialIn(info.segment, self.own_info, lambda: self.list_ttl)
                record.supervisor = self._begin(info, record.dial_in)
            record.dial_in.arrive(session)
        if info.subtree_ids:
            self._on_change()

    def beaten(self, session: AxSession, beat: ax.Beat) -> bytes:
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
        return jsonrpc.encode_value(answer)

    def renew(self, session: AxSession) -> None:
        self._leases.renew(session)

    def vet(self, session: AxSession, offer: RawOffer) -> None:
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
        if info.subtree_ids:
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

    def _above(self, deep: bool) -> frozenset[str]:
        """Who is known to be above this node, for whoever has others below it."""
        known = (self.tree_id, self._parent_id) if deep else ()
        return frozenset(one for one in known if one and one != self.aggregator_id)

    def _dismiss_those_above(self) -> None:
        above = self._above(True)
        if above:
            self.dismiss_bringers(above)

    def _record(self, session: AxSession) -> Record | None:
        return self._records.registered(session)

    def _describe(
        self, session: AxSession, wanted: ax.Registration, info: Subserver | None
    ) -> Subserver:
        """What is true of it from now on; in the same object where there is one."""
        channel = session.channel
        if info is None:
            key = key_of(wanted.segment) if session.place is None else session.place.key
            info = Subserver(key=key, segment=wanted.segment, subserver_id=wanted.subserver_id)
        info.caller, info.peer, info.label = session.caller.name, channel.peer, channel.label
        info.session_id, info.verified = session.id, session.verified
        info.budget = budget_for(self._settings, wanted.segment).capped(self._budget_cap)
        info.registered_at = info.last_beat = self._wall_clock()
        info.lost_at, info.problem = None, ""
        info.learn(wanted)
        self.grants.grant(info, session, self._settings.proof)
        return info

    def _drop(self, record: Record, error: InterlockError | None, reason: str = "") -> None:
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
        if session is not None and info.subtree_ids:
            self._on_change()

    # -- what is told

    def _ended(self, info: Subserver, error: InterlockError) -> None:
        name = error.failure.name
        self._note(info.segment, info.caller, ax.SESSION_ENDED, name, error.message)

    def _note(self, segment: str, caller: str, verb: str, outcome: str, detail: str) -> None:
        if self._audit is not None:
            self._audit(segment, caller, verb, outcome, detail)

    # -- budgets

    def _grant_anew(self) -> None:
        for record in self._records:
            budget = budget_for(self._settings, record.info.segment).capped(self._budget_cap)
            if budget != record.info.budget:
                record.info.budget = budget
                if record.session is not None and self._on_granted is not None:
                    self._on_granted(record.info)
