"""Segments that belong to an authority, also when nobody is registered there."""

from __future__ import annotations

import logging
from typing import Final

from interlock.errors import InterlockError
from interlock.ports import Clock
from interlock.protocol import ax
from interlock.upstreams.ax.ownership import check_claim
from interlock.upstreams.ax.subserver import Subserver, TreeStore

USED_EVERY: Final = 3600.0
"""So often it is written down that an unproven claim is still used: else it would lapse."""

_log = logging.getLogger("interlock.upstreams")


class Claims:
    """Those on the segments of one node."""

    def __init__(self, store: TreeStore, wall_clock: Clock) -> None:
        self._store = store
        self._wall_clock = wall_clock

    def check(self, wanted: ax.Registration, verified: bool) -> None:
        """Raises InterlockError when the segment is another's."""
        check_claim(self._store.claim_on(wanted.segment), wanted, verified)

    def use(self, info: Subserver) -> None:
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
