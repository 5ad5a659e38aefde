"""What the node does for its drivers: has them signed in, installed and of the right version, gives
them their secrets, confines and starts their servers, and looks after their health."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from interlock.call import UpstreamGoneError
from interlock.config import Config
from interlock.config.secrets import resolve
from interlock.errors import TOO_BUSY, InterlockError
from interlock.manifests.secret import SecretsInventory
from interlock.node.places import (
    driver_states_path,
    guarded_from_drivers,
    hidden_from_drivers,
    installed_drivers_path,
)
from interlock.pipeline.audit import Audit
from interlock.pipeline.pipeline import Pipeline
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import PING, TOOLS_LIST, Era
from interlock.stores.driver_states import DriverStates
from interlock.upstreams.drivers import health_probe, installing, processes
from interlock.upstreams.drivers.auth_states_refresh import refresher
from interlock.upstreams.drivers.auth_states_standing import AuthState
from interlock.upstreams.drivers.driver import Driver, DriverSupervisor
from interlock.upstreams.drivers.health import Health
from interlock.upstreams.drivers.launching import DriverConnector, server_config
from interlock.upstreams.drivers.vault import Configured, Environment, Vault
from interlock.upstreams.drivers.vault_access import Asker, bind, unresolved
from interlock.upstreams.egress.confinement import Confinement
from interlock.upstreams.egress.probing import confinement_problem
from interlock.upstreams.egress.remote import check_remote
from interlock.upstreams.supervisor import Supervisor

_log = logging.getLogger("interlock.drivers")

NODE_USER: Final = "node"
"""Who is signed in with a driver: its server is the same for all callers."""


class DriverCare:
    """Surrounds every driver of one node."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        own_info: bytes,
        audit: Audit,
        pipeline: Pipeline,
        on_changed: Callable[[Driver], None],
        on_offer: Callable[[Driver, Supervisor], None],
    ) -> None:
        self._environ = environ
        self._base_dir = base_dir
        self._own_info = own_info
        self._audit = audit
        self._pipeline = pipeline
        self.changed = on_changed
        self._on_offer = on_offer
        self.clock = time.monotonic
        self._config = config
        self._states = DriverStates(driver_states_path(config, environ, base_dir))
        self._installed = installed_drivers_path(config, environ, base_dir)
        self._hidden = hidden_from_drivers(config, environ, base_dir)
        self.inventory = SecretsInventory()
        self._confinements: dict[str, Confinement] = {}
        self._programs: dict[str, Path | None] = {}
        self._auth: dict[str, AuthState] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self.drivers: dict[str, Driver] = {}
        """Those that there are, by key."""
        self.configure(config)

    def configure(self, config: Config) -> None:
        self._config = config
        self.idle = config.drivers.idle
        references = config.drivers.secrets
        self._vault = Vault(
            [
                Configured(
                    references,
                    lambda text: resolve(text, environ=self._environ, base_dir=self._base_dir),
                ),
                Environment(self._environ),
            ]
        )

    # -- before its server is needed

    async def prepare(self, driver: Driver) -> None:
        """Raises InterlockError, and remembers why."""
        standing = driver.standing
        try:
            await self.auth(driver).ready()
        finally:
            standing.authed = self.auth(driver).authed
        standing.install_failed = standing.version_problem = ""
        manifest = driver.manifest
        try:
            prepared = await installing.prepare(
                manifest,
                folder=installing.driver_folder(self._installed, manifest),
                allowed=self._config.drivers.allow_install,
                warn=lambda text: driver.warn(text),
            )
        except InterlockError as error:
            if error.failure.name == "version_mismatch":
                standing.version_problem = error.message
            else:
                standing.install_failed = error.message
            raise
        self._programs[driver.key] = prepared.program

    def auth(self, driver: Driver) -> AuthState:
        """Whether somebody is signed in with it."""
        state = self._auth.get(driver.key)
        if state is None or state.manifest is not driver.manifest:
            manifest = driver.manifest
            names = () if manifest.auth is None else manifest.auth.state_env

            async def missing() -> list[str]:
                return await unresolved(
                    names, inventory=self.inventory, vault=self._vault, asker=self._asker(driver)
                )

            hook = None if driver.hooks is None else driver.hooks.refresh
            state = self._auth[driver.key] = AuthState(
                manifest,
                workspace=workspace_id(self._base_dir),
                user=NODE_USER,
                store=self._states,
                missing=missing,
                refresh=refresher(
                    manifest, run=processes.run, ask=health_probe.ask, env={}, hook=hook,
                    warn=lambda text: driver.warn(text),
                ),
                warn=lambda text: driver.warn(text),
                on_change=lambda now: self._auth_changed(driver, now),
            )  # fmt: skip
        return state

    def _auth_changed(self, driver: Driver, state: AuthState) -> None:
        driver.standing.authed = state.authed
        self.changed(driver)

    def _asker(self, driver: Driver) -> Asker:
        return Asker(
            driver=driver.manifest.id,
            tools=frozenset(one.contract.id for one in driver.bindings.values()),
            roles=frozenset(self._config.drivers.roles),
        )

    async def _secrets(self, driver: Driver, names: frozenset[str]) -> Mapping[str, str]:
        return await bind(
            sorted(names),
            inventory=self.inventory,
            vault=self._vault,
            asker=self._asker(driver),
            record=self._reveal,
        )

    def _reveal(self, row: Mapping[str, Any]) -> None:
        self._audit.record_change(
            str(row.get("type", "secret.reveal")),
            str(row.get("slug", "")),
            "denied" if "denied" in str(row.get("type")) else "ok",
            encode_value(row).decode(),
        )

    # -- its server

    def supervise(
        self, driver: Driver, sleep: Callable[[float], Awaitable[None]]
    ) -> DriverSupervisor:
        manifest, settings = driver.manifest, self._config.drivers
        server = manifest.server
        assert server is not None
        if server.kind == "remote":
            check_remote(
                server.url, manifest.egress, any_egress=settings.any_egress, key=manifest.id
            )
        config = server_config(
            manifest,
            workspace=self._base_dir,
            installed=self._programs.get(driver.key),
            confined=settings.sandbox == "enforce",
        )
        connector = DriverConnector(
            driver.key,
            manifest,
            config,
            own_info=self._own_info,
            clock=asyncio.get_running_loop().time,
            secrets=lambda names: self._secrets(driver, names),
            confine=lambda: self._confine(driver),
        )
        subscriptions = self._pipeline.subscriptions
        return DriverSupervisor(
            driver.key,
            config,
            connector,
            on_offer=lambda one: self._on_offer(driver, one),
            on_withdrawn=lambda _: None,
            on_state=lambda _: self.changed(driver),
            on_updated=lambda one, uri, whose: subscriptions.updated(one.key, uri, whose),
            watched=subscriptions.watched,
            back=self._pipeline,
            sleep=sleep,
        )

    async def _confine(self, driver: Driver) -> Confinement | None:
        manifest, settings = driver.manifest, self._config.drivers
        if manifest.server is None or manifest.server.kind == "docker":
            # The engine confines it; its client has to reach the engine.
            return None
        confinement = self._confinements.get(driver.key)
        if confinement is None:
            if settings.sandbox == "advisory":
                problem = await asyncio.to_thread(confinement_problem)
                if problem is not None:
                    driver.warn(f"It runs with the whole network: {problem}.")
                    return None
            confinement = self._confinements[driver.key] = await Confinement.open(
                manifest.id,
                manifest.egress,
                hidden=self._hidden,
                read_only=guarded_from_drivers(self._config, self._environ, self._base_dir),
                any_egress=settings.any_egress,
                on_refused=lambda host, port: self._refused(driver, host, port),
            )
        return confinement

    def _refused(self, driver: Driver, host: str, port: int) -> None:
        detail = f"It asked for {host}:{port}, which is not in its network.egress."
        self._audit.record_change("egress", driver.key, "refused", detail)

    async def make_room(self, driver: Driver) -> None:
        """End the server that was unused for longest, where there are too many."""
        running = [one for one in self.drivers.values() if one.supervisor is not None]
        if len(running) < self._config.drivers.most_processes:
            return
        idle = [one for one in running if not one.under_way and one is not driver]
        if not idle:
            raise InterlockError(
                TOO_BUSY,
                f"{len(running)} servers of drivers are at work, and no more may run at once "
                "(drivers.most_processes); try again in a moment.",
            )
        await min(idle, key=lambda one: one.last_used).end()

    def call_later(self, seconds: float, then: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, then)

    async def ended(self, driver: Driver) -> None:
        confinement = self._confinements.pop(driver.key, None)
        if confinement is not None:
            await confinement.close()

    # -- its health

    def look_after(self, driver: Driver) -> None:
        """Begin to look whether it works."""
        driver.on_sign = lambda gone: self._sign(driver, gone)
        driver.health = health = Health(
            driver.manifest,
            ping=lambda: self._ping(driver),
            clock=time.time,
            on_change=lambda now: self._health_changed(driver, now),
        )
        if driver.manifest.health_check is not None:
            self._watching[driver.key] = asyncio.get_running_loop().create_task(
                health.watch(), name=f"health:{driver.key}"
            )

    def _sign(self, driver: Driver, gone: UpstreamGoneError) -> None:
        """Why a call failed: perhaps somebody has to sign in again."""
        if self.auth(driver).saw(http_status=gone.status or None, exception=gone):
            _log.info("%s has to be signed in again", driver.manifest.id)

    def _health_changed(self, driver: Driver, health: Health) -> None:
        driver.note_health()
        self.changed(driver)

    async def _ping(self, driver: Driver) -> None:
        """A sign of life of a server that runs. One that sleeps is not woken for it."""
        supervisor = driver.supervisor
        peer = None if supervisor is None else supervisor.peer
        if peer is not None:
            await peer.request(PING if peer.era is Era.SESSION else TOOLS_LIST)

    async def forget(self, driver: Driver) -> None:
        """It is no more."""
        watching = self._watching.pop(driver.key, None)
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await driver.close()
        if self.drivers.get(driver.key) is driver:
            del self.drivers[driver.key]
            self._auth.pop(driver.key, None)

    async def close(self) -> None:
        await asyncio.gather(*(self.forget(one) for one in list(self.drivers.values())))


def workspace_id(base_dir: Path) -> str:
    """By what a workspace is known: its folder."""
    return str(base_dir.resolve())
