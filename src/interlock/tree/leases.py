"""Leases of registered subservers, which other aggregators of the tree can see (MCP-AX §13).

Heartbeats renew leases. Thousands of heartbeats can come in one second, so leases are written
together, with a short delay. If the store is locked by another process, registered subservers are
not affected: the write is repeated later. Only new registrations are rejected with "try again".

A lease belongs to a subserver_id, not to a caller: one child can have different caller names at
two aggregators, so callers cannot be compared across a tree. Within this aggregator they can. If
two callers register the same subserver_id, the first one has the lease. The second one is served
without a lease. It does not change the lease, and gets it when the first one has disconnected.
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
from interlock.tree.subserver_session import QUIET_LEASE_SECONDS, AxSession

WRITE_DELAY_SECONDS: Final = 0.5
"""The maximum delay between a heartbeat and the write of its lease."""
MIN_LEASE_SECONDS: Final = 2.0
"""The minimum duration of a lease, so that several writes are possible before it expires."""
WARNING_INTERVAL_SECONDS: Final = 60.0

_log = logging.getLogger("interlock.upstreams")


class Leases:
    """The leases of one aggregator."""

    def __init__(
        self,
        store: RegistrationStore,
        aggregator_id: str,
        *,
        wall_clock: Clock,
        call_later: CallLater,
        on_split: Callable[[AxSession, InterlockError], None],
    ) -> None:
        """Create the leases of an aggregator.

        Args:
            on_split: called after this aggregator moved to another tree, for each session whose
                subserver is registered with another aggregator of that tree.
        """
        self._store = store
        self._aggregator_id = aggregator_id
        self._tree_id = aggregator_id
        self._wall_clock = wall_clock
        self._call_later = call_later
        self._on_split = on_split
        self._sessions: dict[str, dict[str, AxSession]] = {}
        """Sessions by subserver_id and caller, in registration order. The first has the lease."""
        self._renewals: dict[str, float] = {}
        self._released: set[str] = set()
        self._move_pending = False
        """True while some leases are not yet written for the present tree."""
        self._timer: Timer | None = None
        self._last_warning = -math.inf

    @property
    def tree_id(self) -> str:
        """The tree of the leases. At the root it is the id of the aggregator."""
        return self._tree_id

    def move_to_tree(self, tree_id: str) -> None:
        """Move all leases to another tree."""
        self._tree_id = tree_id
        self._move_pending = bool(self._sessions)
        if self._move_pending:
            self._write()

    def check(self, subserver_id: str) -> None:
        """Check that no other aggregator of this tree has the subserver. Raises InterlockError."""
        other = self._store.find_other_lease(subserver_id, self._aggregator_id, self._tree_id)
        if other is not None:
            raise split_brain_error(other.aggregator_id)

    def take(self, session: AxSession, registration: ax.Registration) -> None:
        """Take the lease for a registration.

        Raises InterlockError if another aggregator of this tree has the lease, or the store is not
        usable. Nothing is changed then.
        """
        id, caller = registration.subserver_id, session.caller.name
        sessions = self._sessions.get(id, {})
        if not sessions or next(iter(sessions)) == caller:
            other = self._store.take_lease(
                id,
                self._aggregator_id,
                self._tree_id,
                registration.authority or "",
                self._expiry(session),
            )
            if other is not None:
                raise split_brain_error(other.aggregator_id)
            self._released.discard(id)
        self._sessions.setdefault(id, sessions)[caller] = session

    def renew(self, session: AxSession) -> None:
        """Renew the lease of a session, with the next write."""
        registration = session.registration
        if registration is not None and self._holder(registration.subserver_id) is session:
            self._renewals[registration.subserver_id] = self._expiry(session)
            self._write_soon()

    def release(self, session: AxSession) -> None:
        """Release the lease of a session that has ended."""
        registration = session.registration
        sessions = None if registration is None else self._sessions.get(registration.subserver_id)
        if (
            registration is None
            or sessions is None
            or sessions.get(session.caller.name) is not session
        ):
            return
        id, holder = registration.subserver_id, self._holder(registration.subserver_id)
        del sessions[session.caller.name]
        if holder is not session:
            return
        next_holder = self._holder(id)
        if next_holder is not None:
            self.renew(next_holder)
            return
        del self._sessions[id]
        self._renewals.pop(id, None)
        self._released.add(id)
        # Write at once: the subserver may be registering with another aggregator.
        self._write(include_renewals=False)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _holder(self, subserver_id: str) -> AxSession | None:
        return next(iter(self._sessions.get(subserver_id, {}).values()), None)

    # -- writing

    def _write_soon(self) -> None:
        if self._timer is None:
            self._timer = self._call_later(WRITE_DELAY_SECONDS, self._write)

    def _write(self, *, include_renewals: bool = True) -> None:
        """Write pending changes. Without `include_renewals`, only the urgent ones."""
        try:
            if self._move_pending:
                self._take_all()
            renewals = self._renewals.items() if include_renewals else ()
            if renewals or self._released:
                self._store.renew_leases(self._aggregator_id, renewals, self._released)
            self._released.clear()
            if include_renewals:
                self._renewals.clear()
        except InterlockError as error:
            self._warn(error)
        has_pending = self._renewals or self._released or self._move_pending
        if include_renewals or not has_pending:
            self.close()
        if has_pending:
            self._write_soon()

    def _take_all(self) -> None:
        holders = [(id, next(iter(sessions.values()))) for id, sessions in self._sessions.items()]
        others = self._store.take_leases(
            self._aggregator_id,
            self._tree_id,
            [
                (
                    id,
                    (session.registration and session.registration.authority) or "",
                    self._expiry(session),
                )
                for id, session in holders
            ],
        )
        self._move_pending = False
        for id, session in holders:
            if id in others:
                # The earlier registration stays.
                self._on_split(session, split_brain_error(others[id].aggregator_id))

    def _warn(self, error: InterlockError) -> None:
        """Log the error at most once a minute, because writes are retried twice per second."""
        now = self._wall_clock()
        if now - self._last_warning >= WARNING_INTERVAL_SECONDS:
            self._last_warning = now
            _log.warning("leases: cannot write to the registration store: %s", error.message)

    def _expiry(self, session: AxSession) -> float:
        """Return the time at which the lease expires without another heartbeat."""
        seconds = (
            max(session.interval * ax.MAX_MISSED_HEARTBEATS, MIN_LEASE_SECONDS)
            if session.interval
            else QUIET_LEASE_SECONDS
        )
        return self._wall_clock() + seconds


def split_brain_error(other: str) -> InterlockError:
    return InterlockError(
        SPLIT_BRAIN,
        "The subserver is registered with another aggregator of this tree. Deregister it there "
        "first.",
        {"parent_id": other},
    )
