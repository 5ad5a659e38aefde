"""The walls around what drivers have started: made as each driver declares them, and looked at
while a server runs behind them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from interlock.config import Config
from interlock.node.places import guarded_from_drivers, hidden_from_drivers
from interlock.pipeline.audit import Audit
from interlock.upstreams.drivers.driver import Driver
from interlock.upstreams.drivers.launching import Confine
from interlock.upstreams.egress.confinement import Confinement
from interlock.upstreams.egress.probing import confinement_problem

_log = logging.getLogger("interlock.drivers")

Afterwards = list[Callable[[], Awaitable[None]]]
"""What is done when a server has ended."""


class DriverWalls:
    """Confines what the drivers of one node have started."""

    def __init__(
        self, config: Config, *, environ: Mapping[str, str], base_dir: Path, audit: Audit
    ) -> None:
        self._environ = environ
        self._base_dir = base_dir
        self._audit = audit
        self.own_places = [(config.host, config.port)]
        """Where this node listens: no driver gets there, nor sends the node there."""
        self._around: dict[Confinement, Driver] = {}
        """Those of servers that run. A driver may have several: old ones stay for their calls."""
        self.configure(config)

    def configure(self, config: Config) -> None:
        self._config = config
        self._hidden = hidden_from_drivers(config, self._environ, self._base_dir)

    def listening_at(self, url: str) -> None:
        """The node has opened its door, perhaps at a port that the kernel chose."""
        place = urlsplit(url)
        if place.hostname and place.port:
            self.own_places.append((place.hostname, place.port))

    def _guarded(self) -> tuple[Path, ...]:
        return guarded_from_drivers(self._config, self._environ, self._base_dir)

    async def open(self, driver: Driver) -> Confinement | None:
        """A confinement as the driver declares it; whoever has it closes it. Raises
        InterlockError."""
        manifest, settings = driver.manifest, self._config.drivers
        if settings.sandbox == "advisory":
            problem = await asyncio.to_thread(confinement_problem)
            if problem is not None:
                driver.warn(f"It runs with the whole network: {problem}.")
                return None
        return await Confinement.open(
            manifest.id,
            manifest.egress,
            hidden=self._hidden,
            read_only=self._guarded(),
            any_egress=settings.any_egress,
            local_egress=settings.local_egress,
            never=self.own_places,
            on_refused=lambda host, port: self._refused(driver, host, port),
        )

    def _refused(self, driver: Driver, host: str, port: int) -> None:
        detail = f"It asked for {host}:{port}, which is not in its network.egress."
        self._audit.record_change("egress", driver.key, "refused", detail)

    # -- around servers

    def around_server(self, driver: Driver, afterwards: Afterwards) -> Confine:
        """Makes the walls for the first start of a driver's server, and takes them for all
        others."""
        made: list[Confinement | None] = []

        async def confine() -> Confinement | None:
            if not made:
                made.append(await self._open_around(driver, afterwards))
            return made[0]

        return confine

    async def _open_around(self, driver: Driver, afterwards: Afterwards) -> Confinement | None:
        server = driver.manifest.server
        if server is None or server.kind == "docker":
            # The engine confines it; its client has to reach the engine.
            return None
        confinement = await self.open(driver)
        if confinement is None:
            return None
        self._around[confinement] = driver

        async def close() -> None:
            self._around.pop(confinement, None)
            await confinement.close()

        afterwards.append(close)
        return confinement

    async def end_uncovered(self, *, configured: bool = False) -> None:
        """End servers that are not kept any more from what they were to be kept from: somebody
        outside replaced it. `configured`: also those that are to be kept from more by now."""
        if not self._around:
            return
        guarded = frozenset((*self._hidden, *self._guarded()) if configured else ())
        around = dict(self._around)
        found = await asyncio.to_thread(_uncovered, around, guarded)
        for confinement, detail in found.items():
            driver = around[confinement]
            if confinement not in self._around:
                # It has ended meanwhile, perhaps with another one of its driver.
                continue
            _log.warning("%s gets a new server: %s", driver.manifest.id, detail)
            self._audit.record_change("egress", driver.key, "uncovered", detail)
            # At once, whoever waits for it: it must not change what says what it may do.
            await driver.server.end_all()


def _uncovered(around: Iterable[Confinement], guarded: frozenset[Path]) -> dict[Confinement, str]:
    """Whose server is not kept from what, any more or yet, as a sentence. Looks at files."""
    found = {}
    for confinement in around:
        covers = confinement.covers
        if covers is not None:
            more = sorted(map(str, guarded - covers.places))
            lost = covers.lost()
            if lost:
                found[confinement] = (
                    f"{lost} is another than when its server was started, and not covered for it."
                )
            elif more:
                found[confinement] = (
                    f"{more[0]} is to be kept from it by now, and was not covered when its server "
                    "was started."
                )
    return found
