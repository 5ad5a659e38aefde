"""Where a node looks for drivers. Most nodes have none, and start without everything that it takes
to run one; it is brought in with the first folder of drivers, also while the node runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from interlock.contracts.changed_tools import ToolChange
from interlock.core.catalog.server_info import Voice
from interlock.core.config import Config
from interlock.core.feature import Component
from interlock.drivers.status import ContractStatus, DriverStatus

if TYPE_CHECKING:
    from interlock.app.node import Node
    from interlock.drivers.component import Drivers

LOOK_EVERY: Final = 0.5


class DriverFolders(Component):
    """Has drivers, as soon as there are any."""

    def __init__(self, config: Config, base_dir: Path, make: Callable[[Config], Drivers]) -> None:
        self._config = config
        self._base_dir = base_dir
        self._make = make
        self._made: Drivers | None = None
        self._begun = False
        self._url: str | None = None
        self._looking: asyncio.Task[None] | None = None

    @property
    def drivers(self) -> Drivers:
        """Made when somebody asks."""
        if self._made is None:
            self._made = self._make(self._config)
            if self._url is not None:
                self._made.care.walls.listening_at(self._url)
        return self._made

    def listening_at(self, url: str) -> None:
        """Where the node itself answers: no driver may reach that."""
        self._url = url
        if self._made is not None:
            self._made.care.walls.listening_at(url)

    def voices(self) -> list[Voice]:
        """What the servers of drivers can do beside contracts."""
        return [] if self._made is None else self._made.voices()

    def start(self) -> None:
        self._begun = True
        if not self._config.drivers.enabled:
            return
        if self._made is not None or self._are_there():
            self.drivers.start()
        elif self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="drivers")

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if self._are_there():
                break
        self._looking = None
        self.drivers.start()

    def _are_there(self) -> bool:
        return any((self._base_dir / one).is_dir() for one in self._config.drivers.folders)

    async def apply(self, old: Config, new: Config) -> None:
        self._config = new
        if self._made is not None:
            await self._made.configure(new)
        elif self._begun:
            await self._stop_looking()
            self.start()

    async def stop(self) -> None:
        await self._stop_looking()
        if self._made is not None:
            await self._made.close()

    async def _stop_looking(self) -> None:
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    def status(self) -> list[DriverStatus]:
        return [] if self._made is None else self._made.status()

    def contract_status(self) -> list[ContractStatus]:
        return [] if self._made is None else self._made.contract_status()

    def broken_contracts(self) -> list[ToolChange]:
        """Contracts of drivers that changed so that callers break."""
        return [] if self._made is None else self._made.broken_contracts()


def make_drivers(node: Node, config: Config) -> Drivers:
    """The drivers of a node, with everything that it takes to run them."""
    from interlock.drivers.component import Drivers
    from interlock.drivers.contract_versions import registered_deprecations

    made = Drivers(
        config,
        environ=node.environ,
        base_dir=node.base_dir,
        own_info=node.own_info,
        catalog=node.catalog,
        pipeline=node.pipeline,
        upstreams=node.roster.upstreams,
        audit=node.audit,
        breakers=node.breakers,
    )
    made.publishing.declare = node.contracts.declare
    made.deprecations = lambda served: registered_deprecations(served, node.contracts.deprecations)
    node.contracts.on_ends = made.refresh
    made.on_voices = node.introducing.refresh
    return made
