"""Connection to the server of one driver without a node: it is installed, gets its secrets and is
confined to the declared network, as in a node.

`StandaloneServer.bound_secrets` lists the names of the secrets that it got.
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
from interlock.core.upstreams.listing import RawOffering, list_offering
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
from interlock.manifests.secret_names import variable_name
from interlock.manifests.workspace import Workspace
from interlock.protocol.jsonrpc import decode_value, encode_value
from interlock.protocol.mcp import TOOLS_CALL

OWN_INFO: Final = encode_value({"name": "interlock", "title": "Interlock", "version": __version__})
LIST_TIMEOUT_SECONDS: Final = 30.0

Warn = Callable[[str], None]


class Project(Protocol):
    """The config, the folder and the loaded files of a driver."""

    @property
    def config(self) -> Config: ...

    @property
    def base_dir(self) -> Path: ...

    @property
    def workspace(self) -> Workspace: ...


class StandaloneServer(Struct):
    """A connected server, open until its block ends."""

    manifest: DriverManifest
    peer: UpstreamClient
    offer: RawOffering
    denied_places: list[str] = field(default_factory=list)
    """Hosts and ports that the confinement denied."""
    bound_secrets: list[str] = field(default_factory=list)
    """Slugs of the secrets that the server got."""
    location: str = "outside of a node"
    """The place of the connection, for messages. No client responds to client requests there."""

    @property
    def server(self) -> str:
        """Name and version that the server reports."""
        parts = [str(self.peer.server_info.get(part, "")) for part in ("name", "version")]
        return " ".join(parts).strip()

    def secret_notes(self) -> list[str]:
        """Return a message about the secrets that the server got, if any."""
        slugs = ", ".join(dict.fromkeys(self.bound_secrets))
        return [f"{self.manifest.id} received the secrets {slugs}"] if slugs else []

    def egress_notes(self) -> list[str]:
        """Return a message for each denied connection."""
        return [
            f"{self.manifest.id} tried to connect to {place}, which is not in its network.egress"
            for place in dict.fromkeys(self.denied_places)
        ]

    def tools(self) -> dict[str, dict[str, Any]]:
        """Return the listed tools, by name."""
        return {tool["name"]: tool for tool in named_definitions(self.offer.tools)}

    async def call(
        self, tool: str, arguments: Mapping[str, Any], *, timeout: float
    ) -> dict[str, Any]:
        """Call a tool and return its result. Raises InterlockError and TimeoutError."""
        call = Call(
            TOOLS_CALL, "driver", Credentials("local"), Client(self.peer.era, self.peer.revision)
        )
        call.name, call.arguments = tool, encode_value(dict(arguments))
        call.route = DriverRoute(tool, self.manifest.key, tool, encode_value(tool))
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        exchange = self.peer.start(call, OutcomeFuture(self.location, future))
        try:
            async with asyncio.timeout(timeout):
                outcome = await future
        except (TimeoutError, asyncio.CancelledError):
            exchange.abandon("The caller stopped waiting.")
            raise
        result = decode_value(outcome.result)
        if not isinstance(result, dict):
            raise InterlockError(
                INTERNAL, f"{tool} returned an invalid result: it is not an object."
            )
        return result


@asynccontextmanager
async def open_server(
    manifest: DriverManifest,
    project: Project,
    *,
    inventory: SecretsInventory | None = None,
    may_install: bool = False,
    progress: Progress | None = None,
    warn: Warn = lambda _: None,
    location: str = "outside of a node",
    environ: Mapping[str, str] = os.environ,
) -> AsyncIterator[StandaloneServer]:
    """Start or connect to the server of a driver. Raises InterlockError.

    Args:
        setting: the config and folder of the driver.
        inventory: secrets that are not in a file yet.
        may_install: install the server even if the config does not allow it.
        location: where the connection runs, for messages.
    """
    async with AsyncExitStack() as stack:
        installation = await prepare_driver(
            manifest,
            project,
            may_install=may_install,
            progress=progress,
            warn=warn,
            environ=environ,
        )
        connection = _Connection()
        connector = DriverConnector(
            manifest.id,
            manifest,
            _server(manifest, project, installation.program),
            node_info=OWN_INFO,
            clock=asyncio.get_running_loop().time,
            secrets=lambda names: _secrets(
                manifest, project, inventory, names, connection, environ
            ),
            confine=lambda: _confine(manifest, project, stack, connection, warn, environ),
            inherited=inherited_environment(project.config, environ),
        )
        peer = await connector.connect()
        stack.push_async_callback(peer.close)
        offer = await list_offering(peer, timeout=LIST_TIMEOUT_SECONDS)
        yield StandaloneServer(
            manifest, peer, offer, connection.denied_places, connection.bound_secrets, location
        )


async def prepare_driver(
    manifest: DriverManifest,
    project: Project,
    *,
    may_install: bool = False,
    force: bool = False,
    progress: Progress | None = None,
    warn: Warn = lambda _: None,
    environ: Mapping[str, str] = os.environ,
) -> Installation:
    """Install a driver if allowed, and check its version. Raises InterlockError."""
    return await prepare(
        manifest,
        folder=installed_folder(manifest, project.config, project.base_dir, environ),
        allowed=may_install or project.config.section(DriversConfig).allow_install,
        check=confined_runner(
            "version_check.cmd",
            lambda: _open_confinement(manifest, project, warn, environ, lambda _host, _port: None),
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
    """Return the folder in which a node of this config installs a driver."""
    return driver_folder(installed_drivers_path(config, environ, base_dir), manifest)


def vault_of(
    project: Project, environ: Mapping[str, str] = os.environ, named_definitions: Iterable[str] = ()
) -> Vault:
    """Return the vault that a node of this config uses.

    Args:
        named: additional variables that may be used as secrets.
    """
    return Vault(
        [
            ConfigBackend(
                project.config.section(DriversConfig).secrets,
                lambda text: resolve(text, environ=environ, base_dir=project.base_dir),
            ),
            EnvironmentBackend(
                (*project.config.section(DriversConfig).env_secrets, *named_definitions), environ
            ),
        ]
    )


def secret_requester(manifest: DriverManifest, project: Project) -> SecretRequester:
    """Return the requester of a driver's secrets."""
    serves = project.workspace.bindings.get(manifest.key, ())
    return SecretRequester(
        driver=manifest.id,
        tools=frozenset(binding.contract.id for binding in serves),
        roles=frozenset(project.config.section(DriversConfig).roles),
        only_for=project.config.section(DriversConfig).secrets_for,
    )


def sign_in_of(
    manifest: DriverManifest,
    project: Project,
    warn: Warn = lambda _: None,
    environ: Mapping[str, str] = os.environ,
) -> DriverSignIn:
    """Return the sign-in state of a driver, shared with a node of this config."""
    names = () if manifest.auth is None else manifest.auth.state_env

    async def missing() -> list[str]:
        return await unresolved(
            names,
            inventory=project.workspace.secrets,
            vault=vault_of(project, environ),
            requester=secret_requester(manifest, project),
        )

    return DriverSignIn(
        manifest,
        workspace=workspace_id(project.base_dir),
        user=NODE_USER,
        store=SqliteSignInStore(driver_states_path(project.config, environ, project.base_dir)),
        missing=missing,
        warn=warn,
    )


def decode_objects(listed: Iterable[Raw]) -> list[dict[str, Any]]:
    """Decode the entries of a list and skip invalid ones."""
    decoded = []
    for raw in listed:
        try:
            value = decode_value(raw)
        except ProtocolError:
            continue
        if isinstance(value, dict):
            decoded.append(value)
    return decoded


def named_definitions(listed: Iterable[Raw]) -> list[dict[str, Any]]:
    """Return the definitions that have a name, the first of each name."""
    definitions: dict[str, dict[str, Any]] = {}
    for definition in decode_objects(listed):
        if isinstance(definition.get("name"), str) and definition["name"]:
            definitions.setdefault(definition["name"], definition)
    return list(definitions.values())


class _Connection:
    def __init__(self) -> None:
        self.denied_places: list[str] = []
        self.bound_secrets: list[str] = []
        self.confinement: Confinement | None = None

    def record(self, row: Mapping[str, Any]) -> None:
        if "denied" not in str(row.get("type")):
            self.bound_secrets.append(str(row.get("slug", "")))


def _server(manifest: DriverManifest, project: Project, installed: Path | None) -> ServerConfig:
    server, settings = manifest.server, project.config.section(DriversConfig)
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
        workspace=project.base_dir,
        installed=installed,
        confined=settings.sandbox == "enforce",
    )


async def _secrets(
    manifest: DriverManifest,
    project: Project,
    inventory: SecretsInventory | None,
    names: frozenset[str],
    connection: _Connection,
    environ: Mapping[str, str],
) -> Mapping[str, str]:
    # The operator listed secrets that are not in a file yet.
    variables = () if inventory is None else map(variable_name, inventory.entries.values())
    return await bind(
        sorted(names),
        inventory=project.workspace.secrets if inventory is None else inventory,
        vault=vault_of(project, environ, variables),
        requester=secret_requester(manifest, project),
        record=connection.record,
    )


@asynccontextmanager
async def open_hooks(
    manifest: DriverManifest,
    project: Project,
    *,
    warn: Warn = lambda _: None,
    environ: Mapping[str, str] = os.environ,
) -> AsyncIterator[Hooks | None]:
    """Open the hooks of a driver.py in a process that is confined as in a node, until the block
    ends. None: there is no code that may run. Raises InterlockError."""
    code, _ = read_code(manifest, allowed=project.config.section(DriversConfig).allow_code)
    if code is None:
        yield None
        return

    async def open_confinement() -> Confinement | None:
        return await _open_confinement(manifest, project, warn, environ, lambda host, port: None)

    env = inherited_environment(project.config, environ)
    described = await inspect_code(code, open_confinement, env=env)
    contracts = [binding.contract.id for binding in project.workspace.bindings[manifest.key]]
    hooks, _ = make_hooks(manifest, contracts, code, described)
    hooks.process.open_confinement, hooks.process.env = open_confinement, env
    try:
        yield hooks
    finally:
        await hooks.process.close()


async def _confine(
    manifest: DriverManifest,
    project: Project,
    stack: AsyncExitStack,
    connection: _Connection,
    warn: Warn,
    environ: Mapping[str, str],
) -> Confinement | None:
    server = manifest.server
    if server is None or server.kind == "docker":
        # The container engine confines the server. The client needs access to the engine.
        return None
    if connection.confinement is not None:
        # The connection is tried twice if the server does not know the newer revision.
        return connection.confinement
    connection.confinement = confinement = await _open_confinement(
        manifest,
        project,
        warn,
        environ,
        lambda host, port: connection.denied_places.append(f"{host}:{port}"),
    )
    if confinement is not None:
        stack.push_async_callback(confinement.close)
    return confinement


async def _open_confinement(
    manifest: DriverManifest,
    project: Project,
    warn: Warn,
    environ: Mapping[str, str],
    on_denied: Callable[[str, int], None],
) -> Confinement | None:
    """Open a confinement as a node of this config would. Raises InterlockError."""
    settings = project.config.section(DriversConfig)
    if settings.sandbox == "advisory":
        problem = await asyncio.to_thread(confinement_problem)
        if problem is not None:
            warn(f"{manifest.id} runs without network confinement: {problem}.")
            return None
    return await Confinement.open(
        manifest.id,
        manifest.egress,
        hidden=hidden_from_drivers(project.config, environ, project.base_dir),
        read_only=guarded_from_drivers(project.config, environ, project.base_dir),
        any_egress=settings.any_egress,
        local_egress=settings.local_egress,
        never=[(project.config.host, project.config.port)],
        on_denied=on_denied,
    )
