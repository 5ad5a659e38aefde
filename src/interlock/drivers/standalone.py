"""Reaching the server of one driver outside of a node, as a node would: installed, with its
secrets, and confined to the network that the driver declares.

What is bound of secrets is told to whoever asks (`StandaloneServer.bound`), by name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Raw, Struct, field

from interlock import __version__
from interlock.core.call import Call, Client, Credentials, Outcome
from interlock.core.config import Config, ServerConfig, resolve
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.listing import RawOffering, list_offer
from interlock.core.upstreams.outcome_future import OutcomeFuture
from interlock.drivers.code_process import inspect_code
from interlock.drivers.config import DriversConfig
from interlock.drivers.contract_exchange import DriverRoute
from interlock.drivers.hooks import Hooks, make_hooks, read_code
from interlock.drivers.installation import Installation, Progress, driver_folder, prepare
from interlock.drivers.launch import DriverConnector, inherited_environment, server_config
from interlock.drivers.lifecycle import NODE_USER, workspace_id
from interlock.drivers.paths import (
    driver_states_path,
    guarded_from_drivers,
    hidden_from_drivers,
    installed_drivers_path,
)
from interlock.drivers.processes import confined_runner
from interlock.drivers.sandbox.confinement import Confinement
from interlock.drivers.sandbox.remote import check_remote
from interlock.drivers.sandbox.self_test import confinement_problem
from interlock.drivers.sign_in_state import DriverSignIn
from interlock.drivers.sign_in_store import SqliteSignInStore
from interlock.drivers.vault import (
    ConfigBackend,
    EnvironmentBackend,
    SecretRequester,
    Vault,
    bind,
    unresolved,
)
from interlock.errors import INTERNAL, InterlockError, ProtocolError
from interlock.manifests.model import DriverManifest, SecretsInventory
from interlock.manifests.secret_names import variable_of
from interlock.manifests.workspace import Workspace
from interlock.protocol.jsonrpc import decode_value, encode_value
from interlock.protocol.mcp import TOOLS_CALL

OWN_INFO: Final = encode_value({"name": "interlock", "title": "Interlock", "version": __version__})
LIST_TIMEOUT_SECONDS: Final = 30.0

Warn = Callable[[str], None]


class Project(Protocol):
    """Where a driver is at home: a config, its folder, and what the files there say."""

    @property
    def config(self) -> Config: ...

    @property
    def base_dir(self) -> Path: ...

    @property
    def workspace(self) -> Workspace: ...


class StandaloneServer(Struct):
    """A server that is open for as long as the block lasts."""

    manifest: DriverManifest
    peer: UpstreamClient
    offer: RawOffering
    refused_places: list[str] = field(default_factory=list)
    """Places that it asked for in vain."""
    bound_secrets: list[str] = field(default_factory=list)
    """Slugs of secrets that it was given."""
    location: str = "outside of a node"
    """Nobody answers there what a server asks."""

    @property
    def server(self) -> str:
        """Who it says it is."""
        parts = [str(self.peer.server_info.get(part, "")) for part in ("name", "version")]
        return " ".join(parts).strip()

    def secret_notes(self) -> list[str]:
        """A sentence about secrets, if there is one."""
        slugs = ", ".join(dict.fromkeys(self.bound_secrets))
        return [f"{self.manifest.id} was given {slugs}"] if slugs else []

    def egress_notes(self) -> list[str]:
        """A sentence for each place that it may not reach."""
        return [
            f"{self.manifest.id} asked for {place}, which is not in its network.egress"
            for place in dict.fromkeys(self.refused_places)
        ]

    def tools(self) -> dict[str, dict[str, Any]]:
        """What it lists, by name."""
        return {tool["name"]: tool for tool in named(self.offer.tools)}

    async def call(
        self, tool: str, arguments: Mapping[str, Any], *, timeout: float
    ) -> dict[str, Any]:
        """The result of a tool. Raises InterlockError, and TimeoutError."""
        call = Call(
            TOOLS_CALL, "driver", Credentials("local"), Client(self.peer.era, self.peer.revision)
        )
        call.name, call.arguments = tool, encode_value(dict(arguments))
        call.route = DriverRoute(tool, self.manifest.key, tool, encode_value(tool))
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        exchange = self.peer.start(call, OutcomeFuture(self.location, answer))
        try:
            async with asyncio.timeout(timeout):
                outcome = await answer
        except (TimeoutError, asyncio.CancelledError):
            exchange.abandon("The caller does not wait any longer.")
            raise
        result = decode_value(outcome.result)
        if not isinstance(result, dict):
            raise InterlockError(INTERNAL, f"{tool} answered with no result.")
        return result


@asynccontextmanager
async def open_server(
    manifest: DriverManifest,
    setting: Project,
    *,
    inventory: SecretsInventory | None = None,
    may_install: bool = False,
    progress: Progress | None = None,
    warn: Warn = lambda _: None,
    location: str = "outside of a node",
    environ: Mapping[str, str] = os.environ,
) -> AsyncIterator[StandaloneServer]:
    """The server of a driver, started or connected to once more. Raises InterlockError.

    `inventory`: secrets that are in no file yet. `may_install`: besides what the config allows.
    """
    async with AsyncExitStack() as stack:
        ready = await prepared(
            manifest,
            setting,
            may_install=may_install,
            progress=progress,
            warn=warn,
            environ=environ,
        )
        tells = _Connection()
        connector = DriverConnector(
            manifest.id,
            manifest,
            _server(manifest, setting, ready.program),
            node_info=OWN_INFO,
            clock=asyncio.get_running_loop().time,
            secrets=lambda names: _secrets(manifest, setting, inventory, names, tells, environ),
            confine=lambda: _confine(manifest, setting, stack, tells, warn, environ),
            inherited=inherited_environment(setting.config, environ),
        )
        peer = await connector.connect()
        stack.push_async_callback(peer.close)
        offer = await list_offer(peer, timeout=LIST_TIMEOUT_SECONDS)
        yield StandaloneServer(
            manifest, peer, offer, tells.refused_places, tells.bound_secrets, location
        )


async def prepared(
    manifest: DriverManifest,
    setting: Project,
    *,
    may_install: bool = False,
    force: bool = False,
    progress: Progress | None = None,
    warn: Warn = lambda _: None,
    environ: Mapping[str, str] = os.environ,
) -> Installation:
    """Have it installed, where that is allowed, and of the right version. Raises InterlockError."""
    return await prepare(
        manifest,
        folder=installed_folder(manifest, setting.config, setting.base_dir, environ),
        allowed=may_install or setting.config.section(DriversConfig).allow_install,
        check=confined_runner(
            "version_check.cmd",
            lambda: _open_confinement(manifest, setting, warn, environ, lambda _host, _port: None),
            lambda _word, _row: None,
        ),
        force=force,
        warn=warn,
        progress=progress or (lambda _step, _of, _text: None),
    )


def installed_folder(
    manifest: DriverManifest,
    config: Config,
    base_dir: Path,
    environ: Mapping[str, str] = os.environ,
) -> Path:
    """Where a node of this config has a driver's program."""
    return driver_folder(installed_drivers_path(config, environ, base_dir), manifest)


def vault_of(
    setting: Project, environ: Mapping[str, str] = os.environ, named: Iterable[str] = ()
) -> Vault:
    """Where a node of this config gets secrets from. `named`: variables that whoever runs this has
    named themselves."""
    return Vault(
        [
            ConfigBackend(
                setting.config.section(DriversConfig).secrets,
                lambda text: resolve(text, environ=environ, base_dir=setting.base_dir),
            ),
            EnvironmentBackend(
                (*setting.config.section(DriversConfig).env_secrets, *named), environ
            ),
        ]
    )


def secret_requester(manifest: DriverManifest, setting: Project) -> SecretRequester:
    """On whose behalf a driver's secrets are wanted."""
    serves = setting.workspace.bindings.get(manifest.key, ())
    return SecretRequester(
        driver=manifest.id,
        tools=frozenset(binding.contract.id for binding in serves),
        roles=frozenset(setting.config.section(DriversConfig).roles),
        only_for=setting.config.section(DriversConfig).secrets_for,
    )


def sign_in_of(
    manifest: DriverManifest,
    setting: Project,
    warn: Warn = lambda _: None,
    environ: Mapping[str, str] = os.environ,
) -> DriverSignIn:
    """Whether somebody is signed in with a driver: what a node of this config looks at, too."""
    names = () if manifest.auth is None else manifest.auth.state_env

    async def missing() -> list[str]:
        return await unresolved(
            names,
            inventory=setting.workspace.secrets,
            vault=vault_of(setting, environ),
            requester=secret_requester(manifest, setting),
        )

    return DriverSignIn(
        manifest,
        workspace=workspace_id(setting.base_dir),
        user=NODE_USER,
        store=SqliteSignInStore(driver_states_path(setting.config, environ, setting.base_dir)),
        missing=missing,
        warn=warn,
    )


def objects(listed: Iterable[Raw]) -> list[dict[str, Any]]:
    """What of a list can be read at all."""
    found = []
    for raw in listed:
        try:
            one = decode_value(raw)
        except ProtocolError:
            continue
        if isinstance(one, dict):
            found.append(one)
    return found


def named(listed: Iterable[Raw]) -> list[dict[str, Any]]:
    """Definitions that have a name, the first of each."""
    found: dict[str, dict[str, Any]] = {}
    for definition in objects(listed):
        if isinstance(definition.get("name"), str) and definition["name"]:
            found.setdefault(definition["name"], definition)
    return list(found.values())


class _Connection:
    def __init__(self) -> None:
        self.refused_places: list[str] = []
        self.bound_secrets: list[str] = []
        self.confinement: Confinement | None = None

    def record(self, row: Mapping[str, Any]) -> None:
        if "denied" not in str(row.get("type")):
            self.bound_secrets.append(str(row.get("slug", "")))


def _server(manifest: DriverManifest, setting: Project, installed: Path | None) -> ServerConfig:
    server, settings = manifest.server, setting.config.section(DriversConfig)
    assert server is not None
    if server.kind == "remote":
        check_remote(
            server.url,
            manifest.egress,
            any_egress=settings.any_egress,
            local_egress=settings.local_egress,
            key=manifest.id,
        )
    return server_config(
        manifest,
        workspace=setting.base_dir,
        installed=installed,
        confined=settings.sandbox == "enforce",
    )


async def _secrets(
    manifest: DriverManifest,
    setting: Project,
    inventory: SecretsInventory | None,
    names: frozenset[str],
    tells: _Connection,
    environ: Mapping[str, str],
) -> Mapping[str, str]:
    # What is in no file yet was named by who runs this.
    own = () if inventory is None else map(variable_of, inventory.entries.values())
    return await bind(
        sorted(names),
        inventory=setting.workspace.secrets if inventory is None else inventory,
        vault=vault_of(setting, environ, own),
        requester=secret_requester(manifest, setting),
        record=tells.record,
    )


@asynccontextmanager
async def open_hooks(
    manifest: DriverManifest,
    setting: Project,
    *,
    warn: Warn = lambda _: None,
    environ: Mapping[str, str] = os.environ,
) -> AsyncIterator[Hooks | None]:
    """What a driver's driver.py brings, in a process that is confined as a node would, for as long
    as the block lasts. None: it has no code that may be run. Raises InterlockError."""
    code, _ = read_code(manifest, allowed=setting.config.section(DriversConfig).allow_code)
    if code is None:
        yield None
        return

    async def open_confinement() -> Confinement | None:
        return await _open_confinement(manifest, setting, warn, environ, lambda host, port: None)

    env = inherited_environment(setting.config, environ)
    described = await inspect_code(code, open_confinement, env=env)
    served = [binding.contract.id for binding in setting.workspace.bindings[manifest.key]]
    hooks, _ = make_hooks(manifest, served, code, described)
    hooks.process.open_confinement, hooks.process.env = open_confinement, env
    try:
        yield hooks
    finally:
        await hooks.process.close()


async def _confine(
    manifest: DriverManifest,
    setting: Project,
    stack: AsyncExitStack,
    tells: _Connection,
    warn: Warn,
    environ: Mapping[str, str],
) -> Confinement | None:
    server = manifest.server
    if server is None or server.kind == "docker":
        # The engine confines it; its client has to reach the engine.
        return None
    if tells.confinement is not None:
        # A server is tried twice when it does not know the newer revision.
        return tells.confinement
    tells.confinement = opened = await _open_confinement(
        manifest,
        setting,
        warn,
        environ,
        lambda host, port: tells.refused_places.append(f"{host}:{port}"),
    )
    if opened is not None:
        stack.push_async_callback(opened.close)
    return opened


async def _open_confinement(
    manifest: DriverManifest,
    setting: Project,
    warn: Warn,
    environ: Mapping[str, str],
    refused: Callable[[str, int], None],
) -> Confinement | None:
    """A confinement as a node of this config would make it. Raises InterlockError."""
    settings = setting.config.section(DriversConfig)
    if settings.sandbox == "advisory":
        problem = await asyncio.to_thread(confinement_problem)
        if problem is not None:
            warn(f"{manifest.id} runs with the whole network: {problem}.")
            return None
    return await Confinement.open(
        manifest.id,
        manifest.egress,
        hidden=hidden_from_drivers(setting.config, environ, setting.base_dir),
        read_only=guarded_from_drivers(setting.config, environ, setting.base_dir),
        any_egress=settings.any_egress,
        local_egress=settings.local_egress,
        never=[(setting.config.host, setting.config.port)],
        on_refused=refused,
    )
