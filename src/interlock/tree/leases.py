"""Who is registered here, for other aggregators of the tree to see: leases that heartbeats renew.

Thousands may beat in the same second: their leases are written together, a moment later. A store
that cannot be written to, as somebody else holds it, stops nobody: what is to be written waits for
the next moment, and only who registers anew is asked to try again.

A lease is about a subserver_id, whoever brings it: the same child may have one name at this
aggregator and another at the next, so callers cannot be told apart across a tree. Here they can. Of
two callers with one subserver_id the lease is the first one's; the other is served beside it
without one, moves, renews or ends nothing of it, and has it when the first has gone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from interlock.core.ports import Clock
from interlock.errors import SPLIT_BRAIN, InterlockError
from interlock.protocol import mcpax as ax
from interlock.tree.subserver_record import CallLater, RegistrationStore, Timer
from interlock.tree.subserver_session import QUIET_LEASE, AxSession

RENEWED_WITHIN: Final = 0.5
"""So late after a heartbeat its lease is written, at most."""
SHORTEST: Final = 2.0
"""No lease lasts for less: it has to be written several times while it does."""
COMPLAINED_EVERY: Final = 60.0

_log = logging.getLogger("interlock.upstreams")


class Leases:
    """Those of one aggregator."""

    def __init__(
        self,
        store: RegistrationStore,
        aggregator_id: str,
        *,
        wall_clock: Clock,
        call_later: CallLater,
        on_split: Callable[[AxSession, InterlockError], None],
    ) -> None:
        """`on_split`: in the tree that this aggregator has come into another one has the session's
        subserver."""
        self._store = store
        self._aggregator_id = aggregator_id
        self._tree_id = aggregator_id
        self._wall_clock = wall_clock
        self._call_later = call_later
        self._on_split = on_split
        self._held: dict[str, dict[str, AxSession]] = {}
        """By subserver_id and caller, in the order in which they came: the first has the lease."""
        self._renewals: dict[str, float] = {}
        self._released: set[str] = set()
        self._moved = False
        """Not all leases are in the present tree yet."""
        self._timer: Timer | None = None
        self._complained = -math.inf

    @property
    def tree_id(self) -> str:
        """In which tree they hold. At the root it is the aggregator itself."""
        return self._tree_id

    def move(self, tree_id: str) -> None:
        """Hold all of them in another tree from now on."""
        self._tree_id = tree_id
        self._moved = bool(self._held)
        if self._moved:
            self._write()

    def check(self, subserver_id: str) -> None:
        """Raises InterlockError when another aggregator of this tree has it."""
        other = self._store.other_lease(subserver_id, self._aggregator_id, self._tree_id)
        if other is not None:
            raise split_brain(other.aggregator_id)

    def take(self, session: AxSession, wanted: ax.Registration) -> None:
        """Raises InterlockError when another aggregator of this tree has it, or the store cannot be
        used; nothing is changed then."""
        id, caller = wanted.subserver_id, session.caller.name
        held = self._held.get(id, {})
        if not held or next(iter(held)) == caller:
            other = self._store.take_lease(
                id,
                self._aggregator_id,
                self._tree_id,
                wanted.authority or "",
                self._until(session),
            )
            if other is not None:
                raise split_brain(other.aggregator_id)
            self._released.discard(id)
        self._held.setdefault(id, held)[caller] = session

    def renew(self, session: AxSession) -> None:
        """It is still there."""
        wanted = session.wanted
        if wanted is not None and self._holder(wanted.subserver_id) is session:
            self._renewals[wanted.subserver_id] = self._until(session)
            self._write_soon()

    def release(self, session: AxSession) -> None:
        """It is not registered here any more."""
        wanted = session.wanted
        held = None if wanted is None else self._held.get(wanted.subserver_id)
        if wanted is None or held is None or held.get(session.caller.name) is not session:
            return
        id, first = wanted.subserver_id, self._holder(wanted.subserver_id)
        del held[session.caller.name]
        if first is not session:
            return
        heir = self._holder(id)
        if heir is not None:
            self.renew(heir)
            return
        del self._held[id]
        self._renewals.pop(id, None)
        self._released.add(id)
        # At once: it may be on its way to another aggregator.
        self._write(renewing=False)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _holder(self, subserver_id: str) -> AxSession | None:
        return next(iter(self._held.get(subserver_id, {}).values()), None)

    # -- writing

    def _write_soon(self) -> None:
        if self._timer is None:
            self._timer = self._call_later(RENEWED_WITHIN, self._write)

    def _write(self, *, renewing: bool = True) -> None:
        """Everything that waits; or only what is urgent, and the rest in its time."""
        try:
            if self._moved:
                self._take_all()
            renewals = self._renewals.items() if renewing else ()
            if renewals or self._released:
                self._store.renew_leases(self._aggregator_id, renewals, self._released)
            self._released.clear()
            if renewing:
                self._renewals.clear()
        except InterlockError as error:
            self._complain(error)
        waits = self._renewals or self._released or self._moved
        if renewing or not waits:
            self.close()
        if waits:
            self._write_soon()

    def _take_all(self) -> None:
        holders = [(id, next(iter(held.values()))) for id, held in self._held.items()]
        others = self._store.take_leases(
            self._aggregator_id,
            self._tree_id,
            [
                (id, (session.wanted and session.wanted.authority) or "", self._until(session))
                for id, session in holders
            ],
        )
        self._moved = False
        for id, session in holders:
            if id in others:
                # Who came first stays.
                self._on_split(session, split_brain(others[id].aggregator_id))

    def _complain(self, error: InterlockError) -> None:
        """Once in a while: it may go on for long, and be tried twice in a second."""
        now = self._wall_clock()
        if now - self._complained >= COMPLAINED_EVERY:
            self._complained = now
            _log.warning("leases could not be written: %s", error.message)

    def _until(self, session: AxSession) -> float:
        """Until when it counts as registered here without another word."""
        lasts = (
            max(session.interval * ax.MAX_MISSED_HEARTBEATS, SHORTEST)
            if session.interval
            else QUIET_LEASE
        )
        return self._wall_clock() + lasts


def split_brain(other: str) -> InterlockError:
    return InterlockError(
        SPLIT_BRAIN,
        "It is registered with another aggregator of this tree. Deregister it there first.",
        {"parent_id": other},
    )
