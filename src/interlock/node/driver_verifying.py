"""Asks the servers of drivers for their tools before anybody needs them, so that a driver whose
server lacks something says so when the node starts and not at the first call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from interlock.errors import InterlockError
from interlock.upstreams.drivers.driver import Driver

_log = logging.getLogger("interlock.drivers")

AT_ONCE: Final = 4
"""So many servers are asked at the same time."""


class DriverVerifying:
    """Starts what nobody has used yet, and ends it again."""

    def __init__(self, drivers: Mapping[str, Driver]) -> None:
        """`drivers`: those there are now, by key. They may change at any time."""
        self._drivers = drivers
        self.task: asyncio.Task[None] | None = None

    def begin(self, most_processes: int) -> None:
        """Look at those that nobody has looked at. Called as often as anybody likes."""
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(
                self._verify_all(min(AT_ONCE, most_processes)), name="drivers:verify"
            )

    async def _verify_all(self, at_once: int) -> None:
        places = asyncio.Semaphore(at_once)

        async def look(driver: Driver) -> None:
            async with places:
                await self._verify(driver)

        waiting = self._unverified()
        tried: set[Driver] = set()
        while waiting:
            tried.update(waiting)
            await asyncio.gather(*(look(one) for one in waiting))
            # Others may have come meanwhile.
            waiting = [one for one in self._unverified() if one not in tried]

    def _unverified(self) -> list[Driver]:
        return [
            one for one in self._drivers.values() if not one.verified and not one.standing.refused
        ]

    async def _verify(self, driver: Driver) -> None:
        if driver.verified or self._drivers.get(driver.key) is not driver:
            return
        try:
            await driver.server.awake()
        except InterlockError as error:
            # It is unverified, and looked at again when somebody needs it.
            _log.warning("%s: %s", driver.manifest.id, error.message)
            return
        if not driver.requests:
            # It was only asked: who needs it starts it.
            await driver.server.end()
