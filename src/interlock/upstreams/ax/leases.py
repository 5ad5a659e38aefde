"""Who is registered here, for other aggregators of the tree to see: leases that heartbeats renew.

Thousands may beat in the same second: their leases are written together, a moment later.
"""

from __future__ import annotations

import logging
from typing import Final

from interlock.errors import SPLIT_BRAIN, InterlockError
from interlock.ports import Clock
from interlock.protocol import ax
from interlock.upstreams.ax.session import QUIET_LEASE, AxSession, CallLater, Timer
from interlock.upstreams.ax.subserver import TreeStore

RENEWED_WITHIN: Final = 0.5
"""So late after a heartbeat its lease is written, at most."""

_log = logging.getLogger("interlock.upstreams")


class Leases:
    """Those of one aggregator."""

    def __init__(
        self, store: TreeStore, aggregator_id: str, *, wall_clock: Clock, call_later: CallLater
    ) -> None:
        self.tree_id = aggregator_id
        """In which tree they hold. At the root it is the aggregator itself."""
        self._store = store
        self._aggregator_id = aggregator_id
        self._wall_clock = wall_clock
        self._call_later = call_later
        self._renewals: dict[str, float] = {}
        self._timer: Timer | None = None

    def check(self, subserver_id: str) -> None:
        """Raises InterlockError when another aggregator of this tree has it."""
        other = self._store.other_lease(subserver_id, self._aggregator_id, self.tree_id)
        if other is not None:
            raise split_brain(other.aggregator_id)

    def take(self, session: AxSession, wanted: ax.Registration) -> None:
        """Raises InterlockError when another aggregator of this tree has it."""
        other = self._store.take_lease(
            wanted.subserver_id,
            self._aggregator_id,
            self.tree_id,
            wanted.authority or "",
            self._until(session),
        )
        if other is not None:
            raise split_brain(other.aggregator_id)

    def renew(self, session: AxSession) -> None:
        """It is still there."""
        if session.wanted is None:
            return
        self._renewals[session.wanted.subserver_id] = self._until(session)
        if 0 < session.interval < 2 * RENEWED_WITHIN:
            self._write()
        elif self._timer is None:
            self._timer = self._call_later(RENEWED_WITHIN, self._write)

    def release(self, subserver_id: str) -> None:
        """It is not registered here any more."""
        self._renewals.pop(subserver_id, None)
        if not self._renewals:
            self.close()
        try:
            self._store.release_lease(subserver_id, self._aggregator_id)
        except InterlockError as error:
            _log.warning("the lease of %s could not be released: %s", subserver_id, error.message)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write(self) -> None:
        self.close()
        renewals, self._renewals = self._renewals, {}
        try:
            self._store.renew_leases(self._aggregator_id, renewals.items())
        except InterlockError as error:
            _log.warning("leases could not be renewed: %s", error.message)

    def _until(self, session: AxSession) -> float:
        """Until when it counts as registered here without another word."""
        return self._wall_clock() + (session.interval * ax.MISSES or QUIET_LEASE)


def split_brain(other: str) -> InterlockError:
    return InterlockError(
        SPLIT_BRAIN,
        "It is registered with another aggregator of this tree. Deregister it there first.",
        {"parent_id": other},
    )
