"""Confinements of the processes of drivers. Each is created as the driver declares it, and is
monitored while a process runs in it."""

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
"""Called when a server has ended."""


class DriverConfinements:
    """The confinements of all drivers of one node."""

    def __init__(
        self, config: Config, *, environ: Mapping[str, str], base_dir: Path, audit: Audit
    ) -> None:
        self._environ = environ
        self._base_dir = base_dir
        self._audit = audit
        self.node_addresses = [(config.host, config.port)]
        """Addresses at which this node listens. No driver can connect to them or make the node
        connect to them."""
        self._active: dict[Confinement, tuple[Driver, Callable[[], Awaitable[None]]]] = {}
        """Confinements of running processes, with the driver and a function that stops the process.
        A driver may have several: retired servers that finish their calls, and the process of its
        code."""
        self.configure(config)

    def configure(self, config: Config) -> None:
        self._config = config
        self._hidden = hidden_from_drivers(config, self._environ, self._base_dir)

    def add_node_url(self, url: str) -> None:
        """Add an address of the node. The kernel may have chosen the port."""
        parts = urlsplit(url)
        if parts.hostname and parts.port:
            self.node_addresses.append((parts.hostname, parts.port))

    def _guarded(self) -> tuple[Path, ...]:
        return guarded_from_drivers(self._config, self._environ, self._base_dir)

    async def open(self, driver: Driver) -> Confinement | None:
        """Open a confinement with the driver's declared network. The caller closes it. Raises
        InterlockError."""
        return await self._open(
            driver.manifest.id,
            driver.manifest.egress,
            warn=driver.warn,
            on_denied=lambda host, port: self._on_egress_denied(driver, host, port),
        )

    async def open_without_network(self, key: str) -> Confinement | None:
        """Open a confinement without network, for code of a driver that does not exist yet. Raises
        InterlockError."""
        return await self._open(key, (), warn=lambda _: None)

    async def _open(
        self,
        key: str,
        egress: Sequence[str],
        *,
        warn: Callable[[str], None],
        on_denied: EgressRefusalRecorder | None = None,
    ) -> Confinement | None:
        settings = self._config.section(DriversConfig)
        if settings.sandbox == "advisory":
            problem = await asyncio.to_thread(confinement_problem)
            if problem is not None:
                warn(f"It runs without network confinement: {problem}.")
                return None
        return await Confinement.open(
            key,
            egress,
            hidden=self._hidden,
            read_only=self._guarded(),
            any_egress=settings.any_egress,
            local_egress=settings.local_egress,
            never=self.node_addresses,
            on_denied=on_denied,
        )

    def _on_egress_denied(self, driver: Driver, host: str, port: int) -> None:
        detail = f"It tried to connect to {host}:{port}, which is not in its network.egress."
        self._audit.record_change("egress", driver.key, "refused", detail)

    # -- servers

    def server_confinement(self, driver: Driver, cleanups: Cleanups) -> ConfinementFactory:
        """Return a factory that opens the confinement at the first start of a driver's server and
        reuses it for later starts."""
        confinements: list[Confinement | None] = []

        async def confine() -> Confinement | None:
            if not confinements:
                confinements.append(await self._open_around(driver, cleanups))
            return confinements[0]

        return confine

    async def _open_around(self, driver: Driver, cleanups: Cleanups) -> Confinement | None:
        server = driver.manifest.server
        if server is None or server.kind == "docker":
            # The container engine confines the server. The client needs access to the engine.
            return None
        confinement = await self.open(driver)
        if confinement is None:
            return None
        self._active[confinement] = driver, driver.server.end_all

        async def close() -> None:
            self._active.pop(confinement, None)
            await confinement.close()

        cleanups.append(close)
        return confinement

    # -- driver code

    def code_confinement(self, driver: Driver) -> ConfinementOpener:
        """Return a function that opens a confinement for each start of a driver's code process."""

        async def end() -> None:
            await driver.hooks.process.end("its confinement is outdated")

        async def open_confinement() -> CodeConfinement | None:
            confinement = await self.open(driver)
            if confinement is None:
                return None
            self._active[confinement] = driver, end
            return CodeConfinement(confinement, lambda: self._active.pop(confinement, None))

        return open_confinement

    async def end_uncovered_processes(self, *, configured: bool = False) -> None:
        """Stop processes whose confinement is no longer effective, because a covered file was
        replaced from outside.

        Args:
            configured: also stop processes that lack a cover that the current config requires.
        """
        if not self._active:
            return
        guarded = frozenset((*self._hidden, *self._guarded()) if configured else ())
        active = dict(self._active)
        uncovered = await asyncio.to_thread(_uncovered, active, guarded)
        for confinement, detail in uncovered.items():
            driver, end = active[confinement]
            if confinement not in self._active:
                # It has ended meanwhile, perhaps together with another process of the driver.
                continue
            _log.warning("driver %s: restarting its process: %s", driver.manifest.id, detail)
            self._audit.record_change("egress", driver.key, "uncovered", detail)
            # Stop it at once, even with running calls: it must not change files that define its
            # permissions.
            await end()


class CodeConfinement:
    """The confinement of one code process of a driver. It is registered until it is closed."""

    def __init__(self, confinement: Confinement, unregister: Callable[[], object]) -> None:
        self._confinement = confinement
        self._unregister = unregister

    def argv(self, argv: list[str]) -> list[str]:
        return self._confinement.argv(argv)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return self._confinement.environment(env)

    async def close(self) -> None:
        self._unregister()
        await self._confinement.close()


def _uncovered(
    confinements: Iterable[Confinement], guarded: frozenset[Path]
) -> dict[Confinement, str]:
    """Return the ineffective confinements with the reason as a sentence. Reads the file system."""
    reasons = {}
    for confinement in confinements:
        covered = confinement.covers
        if covered is not None:
            missing = sorted(map(str, guarded - covered.paths))
            replaced = covered.find_replaced()
            if replaced:
                reasons[confinement] = (
                    f"{replaced} was replaced after its server started, so it is no longer covered."
                )
            elif missing:
                reasons[confinement] = (
                    f"{missing[0]} must be covered now, but was not covered when its server "
                    "started."
                )
    return reasons
