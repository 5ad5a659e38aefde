"""The services of a node for its drivers: sign-in, installation, secrets, confinement, the start of
servers, and health checks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any, Final

from interlock.core.call import UpstreamLostError
from interlock.core.config import Config
from interlock.core.config.secrets import resolve
from interlock.core.journal.audit import Audit
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.upstreams.supervisor import Supervisor
from interlock.drivers import installation as installing
from interlock.drivers.config import DriversConfig
from interlock.drivers.driver import SIGN_IN_CHECK_SECONDS, Driver
from interlock.drivers.driver_confinement import Cleanups, DriverConfinements
from interlock.drivers.driver_server import DriverSupervisor, Sleep
from interlock.drivers.health import Health, ProbeClient, declared_probe_client
from interlock.drivers.installation import (
    INSTALL_RETRY_SECONDS,
    InstallFailure,
    install_fingerprint,
)
from interlock.drivers.installation import RECHECK_SECONDS as INSTALL_CHECK_SECONDS
from interlock.drivers.launch import DriverConnector, inherited_environment, marked, server_config
from interlock.drivers.paths import driver_states_path, installed_drivers_path
from interlock.drivers.processes import CommandRunner, confined_runner
from interlock.drivers.sandbox.remote import check_remote
from interlock.drivers.sign_in_state import DriverSignIn, create_refresher
from interlock.drivers.sign_in_store import SqliteSignInStore
from interlock.drivers.vault import (
    ConfigBackend,
    EnvironmentBackend,
    SecretRequester,
    Vault,
    VaultError,
    bind,
    entry_named,
    unresolved,
)
from interlock.errors import (
    POLICY_VIOLATION,
    SANDBOX_UNAVAILABLE,
    TOO_BUSY,
    VERSION_MISMATCH,
    InterlockError,
)
from interlock.manifests.model import SecretsInventory
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import PING, TOOLS_LIST, Era

_log = logging.getLogger("interlock.drivers")

NODE_USER: Final = "node"
"""The user of driver sign-ins. A driver's server is shared by all callers."""


class DriverLifecycle:
    """The host of all drivers of one node (`DriverHost`)."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        node_info: bytes,
        audit: Audit,
        pipeline: Pipeline,
        on_changed: Callable[[Driver], None],
        on_offer: Callable[[Driver, Supervisor], None],
    ) -> None:
        self._environ = environ
        self._base_dir = base_dir
        self._node_info = node_info
        self._audit = audit
        self._pipeline = pipeline
        self.on_change = on_changed
        self._on_offer = on_offer
        self.clock = time.monotonic
        self.sleep: Sleep = asyncio.sleep
        self._config = config
        self._states = SqliteSignInStore(driver_states_path(config, environ, base_dir))
        self._installed = installed_drivers_path(config, environ, base_dir)
        self.confinements = DriverConfinements(
            config, environ=environ, base_dir=base_dir, audit=audit
        )
        self.inventory = SecretsInventory()
        self._programs: dict[Driver, Path | None] = {}
        self._sign_ins: dict[Driver, DriverSignIn] = {}
        self._health_tasks: dict[Driver, asyncio.Task[None]] = {}
        self.drivers: dict[str, Driver] = {}
        """Current drivers, by key."""
        self.configure(config)

    def configure(self, config: Config) -> None:
        self._config = config
        self.confinements.configure(config)
        self.idle = config.section(DriversConfig).idle
        references = config.section(DriversConfig).secrets
        self._vault = Vault(
            [
                ConfigBackend(
                    references,
                    lambda text: resolve(text, environ=self._environ, base_dir=self._base_dir),
                ),
                EnvironmentBackend(config.section(DriversConfig).env_secrets, self._environ),
            ]
        )

    # -- before the start of a server

    async def prepare(self, driver: Driver) -> None:
        """Sign in, install the driver and check its version. Stores the error in the driver's
        condition. Raises InterlockError."""
        condition = driver.condition
        _require_allowed(driver)
        await self._ensure_signed_in(driver)
        condition.install_failed = condition.version_problem = ""
        driver.install_failure = None
        manifest = driver.manifest
        folder = installing.driver_folder(self._installed, manifest)
        allowed, previous = (
            self._config.section(DriversConfig).allow_install,
            install_fingerprint(folder),
        )
        try:
            prepared = await installing.prepare(
                manifest,
                folder=folder,
                allowed=allowed,
                check=self._command_runner(driver, "version_check.cmd"),
                warn=lambda text: driver.warn(text),
            )
        except InterlockError as error:
            if error.failure is VERSION_MISMATCH:
                condition.version_problem = error.message
            elif error.failure is not SANDBOX_UNAVAILABLE:
                condition.install_failed = error.message
            # A change that the node itself made must not trigger a retry.
            fingerprint = install_fingerprint(folder) if allowed else previous
            pause = INSTALL_RETRY_SECONDS if allowed else INSTALL_CHECK_SECONDS
            driver.install_failure = InstallFailure(folder, fingerprint, self.clock() + pause)
            raise
        self._programs[driver] = prepared.program

    async def _ensure_signed_in(self, driver: Driver) -> None:
        auth = self.sign_in(driver)
        try:
            await auth.ensure_ready()
        finally:
            self._copy_sign_in_state(driver, auth)

    async def ensure_ready(self, driver: Driver) -> None:
        """Check the sign-in and the secrets of a running driver. Raises InterlockError."""
        _require_allowed(driver)
        await self._ensure_signed_in(driver)
        supervisor = driver.supervisor
        if supervisor is None or not supervisor.connector.secret_names:
            return
        connector = supervisor.connector
        if await self._secrets_fingerprint(driver, connector.secret_names) != connector.mark:
            _log.info("driver %s: secrets changed, restarting its server", driver.manifest.id)
            if driver.supervisor is supervisor:
                driver.server.retire()

    async def _secrets_fingerprint(self, driver: Driver, names: frozenset[str]) -> bytes:
        """Return the fingerprint of the current values of secrets. No driver gets the values."""
        values: dict[str, str] = {}
        for name in names:
            try:
                entry = entry_named(name, self.inventory)
                value = None if entry is None else await self._vault.value(entry)
            except VaultError:
                value = None
            if value is not None:
                values[name] = value
        return marked(values)

    def next_check_at(self, driver: Driver) -> float:
        supervisor = driver.supervisor
        if self.sign_in(driver).needs_no_sign_in and (
            supervisor is None or not supervisor.connector.secret_names
        ):
            return inf
        return self.clock() + SIGN_IN_CHECK_SECONDS

    def sign_in(self, driver: Driver) -> DriverSignIn:
        """Return the sign-in state of a driver."""
        state = self._sign_ins.get(driver)
        if state is None:
            manifest = driver.manifest
            names = () if manifest.auth is None else manifest.auth.state_env

            async def missing() -> list[str]:
                return await unresolved(
                    names,
                    inventory=self.inventory,
                    vault=self._vault,
                    requester=self._requester(driver),
                )

            hook = None if driver.hooks is None else driver.hooks.refresh
            state = self._sign_ins[driver] = DriverSignIn(
                manifest,
                workspace=workspace_id(self._base_dir),
                user=NODE_USER,
                store=self._states,
                missing=missing,
                refresh=create_refresher(
                    manifest, run=self._command_runner(driver, "auth.refresh.cmd"),
                    probe_client=self._probe_client(driver), env={}, hook=hook,
                    warn=lambda text: driver.warn(text),
                ),
                warn=lambda text: driver.warn(text),
                on_change=lambda now: self._auth_changed(driver, now),
            )  # fmt: skip
        return state

    def _auth_changed(self, driver: Driver, state: DriverSignIn) -> None:
        self._copy_sign_in_state(driver, state)
        if not state.authed:
            # The running server has outdated credentials.
            driver.server.retire()

    def _copy_sign_in_state(self, driver: Driver, state: DriverSignIn) -> None:
        condition, instruction = driver.condition, state.instruction
        if condition.authed is not state.authed or condition.auth_problem != instruction:
            condition.authed, condition.auth_problem = state.authed, instruction
            # The previous error is outdated.
            driver.problem = ""
            self.on_change(driver)

    def _requester(self, driver: Driver) -> SecretRequester:
        return SecretRequester(
            driver=driver.manifest.id,
            tools=frozenset(binding.contract.id for binding in driver.bindings.values()),
            roles=frozenset(self._config.section(DriversConfig).roles),
            only_for=self._config.section(DriversConfig).secrets_for,
        )

    async def _secrets(self, driver: Driver, names: frozenset[str]) -> Mapping[str, str]:
        return await bind(
            sorted(names),
            inventory=self.inventory,
            vault=self._vault,
            requester=self._requester(driver),
            record=self._reveal,
        )

    def _reveal(self, row: Mapping[str, Any]) -> None:
        self._audit.record_change(
            str(row.get("type", "secret.reveal")),
            str(row.get("slug", "")),
            "denied" if "denied" in str(row.get("type")) else "ok",
            encode_value(row).decode(),
        )

    # -- commands and requests of a manifest

    def _command_runner(self, driver: Driver, what: str) -> CommandRunner:
        """Return a runner for a manifest command. The command is confined like the server and
        recorded in the journal."""

        def record(outcome: str, row: Mapping[str, Any]) -> None:
            self._audit.record_change(
                "driver.command", driver.key, outcome, encode_value(row).decode()
            )

        return confined_runner(what, lambda: self.confinements.open(driver), record)

    def _probe_client(self, driver: Driver) -> ProbeClient:
        settings = self._config.section(DriversConfig)
        return declared_probe_client(
            driver.manifest,
            any_egress=settings.any_egress,
            local_egress=settings.local_egress,
            never=self.confinements.node_addresses,
        )

    def code_environment(self) -> dict[str, str]:
        """Return the environment of a driver.py process: that of its server, without secrets."""
        return inherited_environment(self._config, self._environ)

    # -- server

    def supervise(self, driver: Driver, sleep: Sleep) -> DriverSupervisor:
        manifest, settings = driver.manifest, self._config.section(DriversConfig)
        server = manifest.server
        assert server is not None
        if server.kind == "remote":
            check_remote(
                server.url,
                manifest.egress,
                any_egress=settings.any_egress,
                local_egress=settings.local_egress,
                never=self.confinements.node_addresses,
                key=manifest.id,
            )
        config = server_config(
            manifest,
            workspace=self._base_dir,
            installed=self._programs.get(driver),
            confined=settings.sandbox == "enforce",
        )
        cleanups: Cleanups = []
        connector = DriverConnector(
            driver.key,
            manifest,
            config,
            node_info=self._node_info,
            clock=asyncio.get_running_loop().time,
            secrets=lambda names: self._secrets(driver, names),
            confine=self.confinements.server_confinement(driver, cleanups),
            inherited=inherited_environment(self._config, self._environ),
        )
        subscriptions = self._pipeline.subscriptions
        supervisor = DriverSupervisor(
            driver.key,
            config,
            connector,
            on_offer=lambda supervisor: self._on_offer(driver, supervisor),
            on_withdrawn=lambda _: None,
            on_state=lambda _: self.on_change(driver),
            on_updated=lambda supervisor, uri, whose: subscriptions.on_resource_update(
                supervisor.key, uri, whose
            ),
            watched=lambda key, whose: driver.server_uris(subscriptions.active_uris(key, whose)),
            handler=self._pipeline,
            sleep=sleep,
        )
        supervisor.cleanups = cleanups
        return supervisor

    async def free_slot(self, driver: Driver) -> None:
        """Stop the least recently used idle server if the process limit is reached."""
        while True:
            running = [driver for driver in self.drivers.values() if driver.supervisor is not None]
            if len(running) < self._config.section(DriversConfig).max_processes:
                return
            idle = [driver for driver in running if driver.server.is_idle]
            if not idle:
                raise InterlockError(
                    TOO_BUSY,
                    f"{len(running)} driver servers are busy, which is the limit "
                    "(drivers.max_processes). Try again in a moment, or raise the limit.",
                )
            await min(idle, key=lambda driver: driver.server.last_used).server.end()

    def call_later(self, seconds: float, then: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, then)

    # -- health

    def monitor(self, driver: Driver) -> None:
        """Start the health checks of a driver. Nothing of a rejected driver runs, so it has no
        checks."""
        if driver.condition.rejection:
            return
        if driver.hooks is not None:
            process = driver.hooks.process
            process.open_confinement = self.confinements.code_confinement(driver)
            process.env = self.code_environment()
        driver.needs_sign_in = lambda gone: self._check_expiry(driver, gone)
        driver.health = health = Health(
            driver.manifest,
            ping=lambda: self._ping(driver),
            run=self._command_runner(driver, "health_check.cmd"),
            probe_client=self._probe_client(driver),
            clock=time.time,
            on_change=lambda now: self._health_changed(driver, now),
        )
        if driver.manifest.health_check is not None:
            self._health_tasks[driver] = asyncio.get_running_loop().create_task(
                health.watch(), name=f"health:{driver.key}"
            )

    def _check_expiry(self, driver: Driver, error: UpstreamLostError) -> bool:
        """Check whether a failed call means that the sign-in has expired."""
        is_expired = self.sign_in(driver).detect_expiry(
            http_status=error.status or None, exception=error
        )
        if is_expired:
            _log.info("driver %s: sign-in expired", driver.manifest.id)
        return is_expired

    def _health_changed(self, driver: Driver, health: Health) -> None:
        driver.update_health()
        self.on_change(driver)

    async def _ping(self, driver: Driver) -> None:
        """Ping a running server. A stopped server is not started for it."""
        supervisor = driver.supervisor
        peer = None if supervisor is None else supervisor.upstream_client
        if peer is not None:
            await peer.request(PING if peer.era is Era.SESSION else TOOLS_LIST)

    async def remove(self, driver: Driver, *, immediately: bool) -> None:
        """Stop a removed driver and release its resources.

        Args:
            immediately: do not wait for calls that are still running.
        """
        watching = self._health_tasks.pop(driver, None)
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await driver.close(immediately=immediately)
        self._sign_ins.pop(driver, None)
        self._programs.pop(driver, None)


def _require_allowed(driver: Driver) -> None:
    """Raise InterlockError if a driver is rejected. Nothing of a rejected driver runs."""
    if driver.condition.rejection:
        raise InterlockError(
            POLICY_VIOLATION,
            f"Driver {driver.manifest.id} is rejected: {driver.condition.rejection}",
        )


def workspace_id(base_dir: Path) -> str:
    """Return the id of a workspace: its folder."""
    return str(base_dir.resolve())
