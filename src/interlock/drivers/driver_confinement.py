"""The confinements of what drivers have started: made as each driver declares them, and looked at
while a server runs in them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from interlock.core.config import Config
from interlock.core.journal.audit import Audit
from interlock.drivers.config import DriversConfig
from interlock.drivers.driver import Driver
from interlock.drivers.launch import ConfinementFactory
from interlock.drivers.paths import guarded_from_drivers, hidden_from_drivers
from interlock.drivers.processes import ConfinementOpener
from interlock.drivers.sandbox.confinement import Confinement, EgressRefusalRecorder
from interlock.drivers.sandbox.self_test import confinement_problem

_log = logging.getLogger("interlock.drivers")

Cleanups = list[Callable[[], Awaitable[None]]]
"""What is done when a server has ended."""


class DriverConfinements:
    """Confines what the drivers of one node have started."""

    def __init__(
        self, config: Config, *, environ: Mapping[str, str], base_dir: Path, audit: Audit
    ) -> None:
        self._environ = environ
        self._base_dir = base_dir
        self._audit = audit
        self.node_addresses = [(config.host, config.port)]
        """Where this node listens: no driver gets there, nor sends the node there."""
        self._around: dict[Confinement, tuple[Driver, Callable[[], Awaitable[None]]]] = {}
        """Those of what runs, and what ends that. A driver may have several: old servers stay for
        their calls, and its code has a process of its own."""
        self.configure(config)

    def configure(self, config: Config) -> None:
        self._config = config
        self._hidden = hidden_from_drivers(config, self._environ, self._base_dir)

    def listening_at(self, url: str) -> None:
        """The node has opened its door, perhaps at a port that the kernel chose."""
        place = urlsplit(url)
        if place.hostname and place.port:
            self.node_addresses.append((place.hostname, place.port))

    def _guarded(self) -> tuple[Path, ...]:
        return guarded_from_drivers(self._config, self._environ, self._base_dir)

    async def open(self, driver: Driver) -> Confinement | None:
        """A confinement as the driver declares it; whoever has it closes it. Raises
        InterlockError."""
        return await self._open(
            driver.manifest.id,
            driver.manifest.egress,
            warn=driver.warn,
            on_refused=lambda host, port: self._refused(driver, host, port),
        )

    async def open_without_network(self, key: str) -> Confinement | None:
        """A confinement without any network, for code of a driver that is not made yet. Raises
        InterlockError."""
        return await self._open(key, (), warn=lambda _: None)

    async def _open(
        self,
        key: str,
        egress: Sequence[str],
        *,
        warn: Callable[[str], None],
        on_refused: EgressRefusalRecorder | None = None,
    ) -> Confinement | None:
        settings = self._config.section(DriversConfig)
        if settings.sandbox == "advisory":
            problem = await asyncio.to_thread(confinement_problem)
            if problem is not None:
                warn(f"It runs with the whole network: {problem}.")
                return None
        return await Confinement.open(
            key,
            egress,
            hidden=self._hidden,
            read_only=self._guarded(),
            any_egress=settings.any_egress,
            local_egress=settings.local_egress,
            never=self.node_addresses,
            on_refused=on_refused,
        )

    def _refused(self, driver: Driver, host: str, port: int) -> None:
        detail = f"It asked for {host}:{port}, which is not in its network.egress."
        self._audit.record_change("egress", driver.key, "refused", detail)

    # -- around servers

    def server_confinement(self, driver: Driver, cleanups: Cleanups) -> ConfinementFactory:
        """Makes the confinement for the first start of a driver's server, and reuses it for all
        others."""
        made: list[Confinement | None] = []

        async def confine() -> Confinement | None:
            if not made:
                made.append(await self._open_around(driver, cleanups))
            return made[0]

        return confine

    async def _open_around(self, driver: Driver, cleanups: Cleanups) -> Confinement | None:
        server = driver.manifest.server
        if server is None or server.kind == "docker":
            # The engine confines it; its client has to reach the engine.
            return None
        confinement = await self.open(driver)
        if confinement is None:
            return None
        self._around[confinement] = driver, driver.server.end_all

        async def close() -> None:
            self._around.pop(confinement, None)
            await confinement.close()

        cleanups.append(close)
        return confinement

    # -- around code

    def code_confinement(self, driver: Driver) -> ConfinementOpener:
        """Makes the confinement for each start of the process of a driver's code."""

        async def end() -> None:
            await driver.hooks.process.end("it has to be confined anew")

        async def open_confinement() -> CodeConfinement | None:
            confinement = await self.open(driver)
            if confinement is None:
                return None
            self._around[confinement] = driver, end
            return CodeConfinement(confinement, lambda: self._around.pop(confinement, None))

        return open_confinement

    async def end_uncovered_processes(self, *, configured: bool = False) -> None:
        """End servers that are not kept any more from what they were to be kept from: somebody
        outside replaced it. `configured`: also those that are to be kept from more by now."""
        if not self._around:
            return
        guarded = frozenset((*self._hidden, *self._guarded()) if configured else ())
        around = dict(self._around)
        found = await asyncio.to_thread(_uncovered, around, guarded)
        for confinement, detail in found.items():
            driver, end = around[confinement]
            if confinement not in self._around:
                # It has ended meanwhile, perhaps with another one of its driver.
                continue
            _log.warning("%s gets a new process: %s", driver.manifest.id, detail)
            self._audit.record_change("egress", driver.key, "uncovered", detail)
            # At once, whoever waits for it: it must not change what says what it may do.
            await end()


class CodeConfinement:
    """The confinement of one process of a driver's code, known to the node until it is closed."""

    def __init__(self, confinement: Confinement, forget: Callable[[], object]) -> None:
        self._confinement = confinement
        self._forget = forget

    def argv(self, argv: list[str]) -> list[str]:
        return self._confinement.argv(argv)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return self._confinement.environment(env)

    async def close(self) -> None:
        self._forget()
        await self._confinement.close()


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
