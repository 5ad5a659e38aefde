"""Connections that are closed while nobody waits for it: the other side may be long in agreeing."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from interlock.upstreams.peer import Peer

LONGEST: Final = 5.0
"""A channel gives up by itself before that."""

_log = logging.getLogger("interlock.upstreams")


class LettingGo:
    """Those of one upstream."""

    def __init__(self) -> None:
        self._closing: set[asyncio.Task[None]] = set()

    def close(self, peer: Peer) -> None:
        """Close it, some time soon."""
        task = asyncio.get_running_loop().create_task(_close(peer), name=f"close:{peer.label}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def all_gone(self) -> None:
        """Wait for those that are being closed."""
        if self._closing:
            await asyncio.gather(*self._closing)


async def _close(peer: Peer) -> None:
    try:
        async with asyncio.timeout(LONGEST):
            await peer.close()
    except TimeoutError:
        _log.warning("%s: its connection did not close in %g s", peer.label, LONGEST)
    except Exception:
        _log.exception("%s: its connection could not be closed", peer.label)
