"""Who is registered with this node: ownership of segments, leases, budgets, and the tree below.

Sessions (`session.py`) know how to speak; here is decided. A subserver that dials in becomes an
upstream of its own, made by the node (`begin`), whose connector waits for its next channel. It
stays one for the grace period when it is lost, and is forgotten after that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.call import Caller
from interlock.channels.channel import Channel
from interlock.config.model import SubserversConfig
from interlock.errors import (
    AUTHORITY_REJECTED,
    CYCLE_DETECTED,
    SHUTTING_DOWN,
    SPLIT_BRAIN,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
)
from interlock.ports import Clock
from interlock.protocol import ax, jsonrpc
from interlock.upstreams.ax.authority import check_authority, first_mutable, must_prove
from interlock.upstreams.ax.dial_in import DialIn
from interlock.upstreams.ax.leases import Leases, split_brain
from interlock.upstreams.ax.ownership import (
    Holder,
    check_claim,
    check_segment,
    nobody_may,
    replaced,
    taken_by_another,
)
from interlock.upstreams.ax.session import AxSession, CallLater, Place, Timer
from interlock.upstreams.ax.subserver import Subserver, TreeStore, as_budget, key_of, with_itself
from interlock.upstreams.listing import RawOffer

if TYPE_CHECKING:
    from interlock.upstreams.supervisor import Supervisor

_log = logging.getLogger("interlock.upstreams")


class _Record(Holder):
    """One subserver, from its registration until it is forgotten."""

    def __init__(self, info: Subserver, session: AxSession) -> None:
        super().__init__(info)
        self.session: AxSession | None = session
        self.dial_in: DialIn | None = None
        """None: the node started it, and its upstream is the config's."""
        self.supervisor: Supervisor | None = None
        self.grace: Timer | None = None
        self.told: ax.Budget | None = None
        """The budget that it knows of."""
        self.claimed = False
        """Whether its authority is written down."""


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
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
        call_later: CallLater | None = None,
        base_dir: Path = Path(),
    ) -> None:
        """`begin` makes the upstream of a new subserver and begins it; `end` ends it, and withdraws
        what it offered. `taken` tells whether a configured server has a segment. `on_change`: the
        ids of the subtree are others now. `on_granted`: a new session, or a new budget for it.
        `on_lost`: a registered one cannot be reached any more. `base_dir`: what the paths in
        `trust` are relative to."""
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
        self._wall_clock = wall_clock
        self._base_dir = base_dir
        self._budget_cap = ax.Budget()
        self._channels: set[AxSession] = set()
        self._by_segment: dict[str, _Record] = {}
        self._by_id: dict[str, _Record] = {}
        self._by_key: dict[str, _Record] = {}
        self._leases = Leases(
            store, aggregator_id, wall_clock=wall_clock, call_later=self.call_later
        )
        self._closed = False

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
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def registered() -> None:
            if not done.done():
                done.set_result(None)

        def over(reason: str) -> None:
            if not done.done():
                words = f"{key} did not register: {reason}"
                done.set_exception(InterlockError(UPSTREAM_UNAVAILABLE, words))

        session.on_registered, session.on_over = registered, over
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
        return [self._by_segment[segment].info for segment in sorted(self._by_segment)]

    def subserver(self, key: str) -> Subserver | None:
        """What is known of the subserver behind an upstream of the node."""
        record = self._by_key.get(key)
        return None if record is None else record.info

    def subtree_ids(self) -> tuple[str, ...]:
        """This aggregator, and all that are below it now."""
        ids = dict.fromkeys((self.aggregator_id,))
        for record in self._by_segment.values():
            if record.session is not None:
                ids.update(dict.fromkeys(record.info.subtree_ids))
        return tuple(ids)

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
        if tree_id == self.tree_id:
            return
        self._leases.tree_id = tree_id
        for record in list(self._by_segment.values()):
            session = record.session
            if session is None or session.wanted is None:
                continue
            try:
                self._leases.take(session, session.wanted)
            except InterlockError as error:
                _log.warning("%s: its lease: %s", record.info.segment, error.message)
                if error.failure is SPLIT_BRAIN:
                    # In the new tree somebody else has it, who came first.
                    self.dismiss(session, error)

    @property
    def budget_cap(self) -> ax.Budget:
        """What this node may itself be asked for: nobody below is granted more."""
        return self._budget_cap

    @budget_cap.setter
    def budget_cap(self, cap: ax.Budget) -> None:
        self._budget_cap = cap
        self._grant_anew()

    def configure(self, settings: SubserversConfig) -> None:
        """Go on by other settings. Who may not be here any more is sent away."""
        self._settings = settings
        for record in list(self._by_segment.values()):
            if record.dial_in is None:
                continue
            if not settings.enabled:
                self._drop(record, nobody_may())
            elif self._taken(record.info.segment):
                self._drop(record, taken_by_another(record.info.segment))
        if not settings.enabled:
            for session in list(self._channels):
                if session.place is None:
                    session.dismiss(nobody_may())
        self._grant_anew()

    def close(self) -> None:
        """Send everybody away: the node stops."""
        self._closed = True
        error = InterlockError(SHUTTING_DOWN, "The node stops.")
        for record in list(self._by_segment.values()):
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
        mine = self._by_id.get(wanted.subserver_id)
        held = self._by_segment.get(wanted.segment)
        if mine is not held or session.place is not None:
            # It moves to another segment, or comes in the place of another.
            for old in (mine, held):
                if old is not None:
                    self._drop(old, replaced())
        self._leases.take(session, wanted)
        record = self._by_segment.get(wanted.segment)
        info = self._describe(session, wanted, None if record is None else record.info)
        before = None
        if record is None:
            record = _Record(info, session)
            self._by_segment[wanted.segment] = self._by_id[wanted.subserver_id] = record
            self._by_key[info.key] = record
        else:
            before, record.session = record.session, session
            if record.grace is not None:
                record.grace.cancel()
                record.grace = None
        record.told, record.claimed = info.budget, False
        if before is not None:
            before.dismiss(replaced())
        return ax.Registered(
            assigned_segment=wanted.segment,
            session_id=session.id,
            heartbeat_deadline_ms=ax.heartbeat_deadline_ms(wanted.heartbeat_interval_ms),
            budget=info.budget,
            aggregator_id=self.aggregator_id,
            tree_id=self.tree_id,
        )

    def joined(self, session: AxSession) -> None:
        record = self._record(session)
        if record is None:
            return
        info = record.info
        _log.info("%s has registered as %s", session.channel.label, info.segment)
        if self._on_granted is not None:
            self._on_granted(info)
        if session.place is None:
            if record.dial_in is None:
                record.dial_in = DialIn(info.key, self.own_info, lambda: self.list_ttl)
                record.supervisor = self._begin(info, record.dial_in)
            record.dial_in.arrive(session)
        if info.subtree_ids:
            self._on_change()

    def beaten(self, session: AxSession, beat: ax.Beat) -> bytes:
        record = self._record(session)
        assert record is not None
        info = record.info
        if beat.subtree_ids is not None:
            self._refuse_cycle(beat.subtree_ids)
            ids = with_itself(info.subserver_id, beat.subtree_ids)
            if info.role == "aggregator" and ids != info.subtree_ids:
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
        return jsonrpc.encode_value(answer)

    def renew(self, session: AxSession) -> None:
        self._leases.renew(session)

    def vet(self, session: AxSession, offer: RawOffer) -> None:
        record = self._record(session)
        if record is None:
            raise InterlockError(UPSTREAM_UNAVAILABLE, "It is not registered any more.")
        info = record.info
        if not info.verified and must_prove(self._settings.proof, info.peer):
            mutable = first_mutable(offer.tools)
            if mutable is not None:
                error = InterlockError(
                    AUTHORITY_REJECTED,
                    f"{info.segment} lists tools that may change something ({mutable}), and has "
                    "not proven its authority. Send a proof, or let all its tools say that they "
                    "only read.",
                )
                self.dismiss(session, error)
                raise error
        if info.authority is not None and session.place is None and not record.claimed:
            # Only now: who is never listed keeps nobody else out.
            record.claimed = True
            self._keep_claim(info.segment, info.authority, info.verified)

    def dismiss(self, session: AxSession, error: InterlockError) -> None:
        record = self._record(session)
        if record is None:
            session.dismiss(error)
        else:
            self._drop(record, error)

    def lost(self, session: AxSession, reason: str) -> None:
        record = self._record(session)
        if record is None:
            return
        info = record.info
        record.session = None
        info.session_id = ""
        info.lost_at = self._wall_clock()
        info.problem = reason
        self._leases.release(info.subserver_id)
        _log.warning("%s is lost: %s", info.segment, reason)
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
        self._refuse_cycle((wanted.subserver_id, *(wanted.subtree_ids or ())))
        if session.place is None:
            if self._taken(wanted.segment):
                raise taken_by_another(wanted.segment)
            if self._settings.sticky:
                check_claim(self._store.claim_on(wanted.segment), wanted, verified)
        check_segment(
            wanted,
            verified,
            caller=session.caller.name,
            place=session.place,
            held=self._by_segment.get(wanted.segment),
            mine=self._by_id.get(wanted.subserver_id),
            room=len(self._by_segment) < self._settings.most,
        )
        self._leases.check(wanted.subserver_id)

    def _refuse_cycle(self, ids: tuple[str, ...]) -> None:
        if self.aggregator_id in ids:
            raise InterlockError(
                CYCLE_DETECTED,
                "This node is below the one that registers: it cannot be above it too.",
                {"aggregator_id": self.aggregator_id},
            )

    def _record(self, session: AxSession) -> _Record | None:
        """What is known of a session that is registered now."""
        wanted = session.wanted
        record = None if wanted is None else self._by_id.get(wanted.subserver_id)
        return record if record is not None and record.session is session else None

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
        info.budget = self._budget(wanted.segment)
        info.registered_at = info.last_beat = self._wall_clock()
        info.lost_at, info.problem = None, ""
        info.learn(wanted)
        return info

    def _drop(self, record: _Record, error: InterlockError | None, reason: str = "") -> None:
        """Forget a subserver, with everything that it offered, at once."""
        info, session = record.info, record.session
        reason = reason if error is None else error.message
        if self._by_segment.get(info.segment) is not record:
            return
        del self._by_segment[info.segment], self._by_id[info.subserver_id], self._by_key[info.key]
        if record.grace is not None:
            record.grace.cancel()
            record.grace = None
        record.session = None
        info.session_id = ""
        if session is not None:
            self._leases.release(info.subserver_id)
        if record.supervisor is not None:
            record.supervisor.withdraw(reason)
        if session is not None and error is not None:
            session.dismiss(error)
        if record.dial_in is not None:
            self._end(info.key)
        if session is not None and info.subtree_ids:
            self._on_change()

    # -- budgets

    def _budget(self, segment: str) -> ax.Budget:
        link = self._settings.links.get(segment)
        own = None if link is None else link.budget
        return as_budget(self._settings.budget if own is None else own).capped(self._budget_cap)

    def _grant_anew(self) -> None:
        for record in list(self._by_segment.values()):
            budget = self._budget(record.info.segment)
            if budget != record.info.budget:
                record.info.budget = budget
                if record.session is not None and self._on_granted is not None:
                    self._on_granted(record.info)

    # -- what is written down

    def _keep_claim(self, segment: str, authority: str, verified: bool) -> None:
        try:
            self._store.keep_claim(segment, authority, verified)
        except InterlockError as error:
            _log.warning("%s: its authority could not be written down: %s", segment, error.message)
