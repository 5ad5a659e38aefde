"""The folders in which a node looks for drivers.

Most nodes have no drivers and start without importing the code that runs them. The code is imported
with the first folder of drivers, also while the node runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from interlock.contracts.changed_tools import ToolChange
from interlock.contracts.component import Contracts
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.server_info import UpstreamIntroduction
from interlock.core.config import Config
from interlock.core.feature import FeatureComponent
from interlock.core.journal.audit import Audit
from interlock.core.pipeline.breaker import Breakers
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.ports import Upstream
from interlock.drivers.config import DriversConfig
from interlock.drivers.status import DriversStatus
from interlock.trust.authorization import MinimumActions
from interlock.trust.node_context import NodeContext

if TYPE_CHECKING:
    from interlock.drivers.component import Drivers

POLL_SECONDS: Final = 0.5


class DriverFolders(FeatureComponent):
    """The component of the feature. It creates `Drivers` when the first driver folder exists."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        node_info: bytes,
        catalog: Catalog,
        pipeline: Pipeline,
        floors: MinimumActions,
        upstreams: dict[str, Upstream],
        audit: Audit,
        breakers: Breakers,
        contracts: Contracts,
        on_capabilities_changed: Callable[[], None],
    ) -> None:
        """Args:
        floors: receives the minimum policy action of contract calls.
        on_capabilities_changed: called when the capabilities of driver servers change.
        """
        self._config = config
        self._environ = environ
        self._base_dir = base_dir
        self._node_info = node_info
        self._catalog = catalog
        self._pipeline = pipeline
        self._floors = floors
        self._upstreams = upstreams
        self._audit = audit
        self._breakers = breakers
        self._contracts = contracts
        contracts.extra_changes = self._broken_contracts
        self._on_capabilities_changed = on_capabilities_changed
        self._drivers: Drivers | None = None
        self._started = False
        self._url: str | None = None
        self._poll_task: asyncio.Task[None] | None = None

    @property
    def drivers(self) -> Drivers:
        """The drivers of the node. Created on first access."""
        if self._drivers is None:
            self._drivers = self._make_drivers()
            if self._url is not None:
                self._drivers.lifecycle.confinements.add_node_url(self._url)
        return self._drivers

    def _make_drivers(self) -> Drivers:
        # Imported with the first driver: most nodes have none.
        from interlock.drivers.component import Drivers
        from interlock.drivers.contract_versions import registered_deprecations

        contracts = self._contracts
        drivers = Drivers(
            self._config,
            environ=self._environ,
            base_dir=self._base_dir,
            node_info=self._node_info,
            catalog=self._catalog,
            pipeline=self._pipeline,
            floors=self._floors,
            upstreams=self._upstreams,
            audit=self._audit,
            breakers=self._breakers,
            declare=contracts.declare,
            deprecations=lambda served: registered_deprecations(served, contracts.deprecations),
            on_capabilities_changed=self._on_capabilities_changed,
        )
        # The references are mutual: contracts exist before drivers, and drivers read the
        # deprecations of contracts.
        contracts.on_deprecations = drivers.refresh
        return drivers

    def on_listening(self, url: str) -> None:
        """Set the node's own URL, which no driver may reach."""
        self._url = url
        if self._drivers is not None:
            self._drivers.lifecycle.confinements.add_node_url(url)

    def introductions(self) -> list[UpstreamIntroduction]:
        """Return the capabilities of driver servers that are offered beside contracts."""
        return [] if self._drivers is None else self._drivers.introductions()

    def start(self) -> None:
        self._started = True
        if not self._config.section(DriversConfig).enabled:
            return
        if self._drivers is not None or self._has_folder():
            self.drivers.start()
        elif self._poll_task is None:
            self._poll_task = asyncio.get_running_loop().create_task(self._look(), name="drivers")

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if self._has_folder():
                break
        self._poll_task = None
        self.drivers.start()

    def _has_folder(self) -> bool:
        return any(
            (self._base_dir / name).is_dir() for name in self._config.section(DriversConfig).folders
        )

    async def apply(self, old: Config, new: Config) -> None:
        self._config = new
        if self._drivers is not None:
            await self._drivers.configure(new)
        elif self._started:
            await self._stop_polling()
            self.start()

    async def stop(self) -> None:
        await self._stop_polling()
        if self._drivers is not None:
            await self._drivers.close()

    async def _stop_polling(self) -> None:
        poll_task, self._poll_task = self._poll_task, None
        if poll_task is not None:
            poll_task.cancel()
            await asyncio.gather(poll_task, return_exceptions=True)

    def status(self) -> DriversStatus:
        if self._drivers is None:
            return DriversStatus()
        return DriversStatus(self._drivers.status(), self._drivers.contract_status())

    def _broken_contracts(self) -> list[ToolChange]:
        """Return contracts of drivers that changed incompatibly."""
        return [] if self._drivers is None else self._drivers.broken_contracts()


def create(context: NodeContext) -> DriverFolders:
    return DriverFolders(
        context.config,
        environ=context.environ,
        base_dir=context.base_dir,
        node_info=context.node_info,
        catalog=context.catalog,
        pipeline=context.pipeline,
        floors=context.authorizer.contract_minimums,
        upstreams=context.upstreams.upstreams,
        audit=context.audit,
        breakers=context.breakers,
        contracts=context.component(Contracts),
        on_capabilities_changed=context.introduction_changed,
    )
