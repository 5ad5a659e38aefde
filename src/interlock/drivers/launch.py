"""The start of a driver's server from its manifest: command or URL, environment, confinement, and
revision of MCP."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from interlock.core.call import UpstreamLostError
from interlock.core.config import Config, ServerConfig
from interlock.core.config.secrets import EnvReference, references
from interlock.core.ports import Clock
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.connection import Connector
from interlock.core.upstreams.transports.stdio import StdioTransport
from interlock.drivers.config import DriversConfig
from interlock.drivers.processes import ProcessConfinement, minimal_environment
from interlock.drivers.sandbox.docker import docker_argv, find_client
from interlock.drivers.sandbox.patterns import Egress
from interlock.errors import (
    AUTH_FAILED,
    AUTH_REQUIRED,
    CONFIG,
    INSTALL_FAILED,
    POLICY_VIOLATION,
    SANDBOX_UNAVAILABLE,
    TOOL_UNAVAILABLE,
    VERSION_MISMATCH,
    InterlockError,
)
from interlock.manifests import placeholders
from interlock.manifests.model import DriverManifest, ServerBlock
from interlock.protocol import mcp

_CLIENT_ERRORS: Final = range(400, 500)
_UNAUTHORIZED_STATUSES: Final = (401, 403)
_PERMANENT: Final = frozenset(
    failure.name
    for failure in (
        AUTH_REQUIRED, AUTH_FAILED, CONFIG, INSTALL_FAILED, POLICY_VIOLATION, SANDBOX_UNAVAILABLE,
        TOOL_UNAVAILABLE, VERSION_MISMATCH,
    )
)  # fmt: skip
_ENV_REFERENCE: Final = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)")
_FINGERPRINT_KEY: Final = os.urandom(32)
"""Key of the fingerprints of secrets. Without it a fingerprint reveals nothing."""

SecretSource = Callable[[frozenset[str]], Awaitable[Mapping[str, str]]]
"""Returns the values of the named secrets. Raises InterlockError if one is not available."""
ConfinementFactory = Callable[[], Awaitable[ProcessConfinement | None]]
"""Returns the confinement of a server that is about to start. None: it runs unconfined."""


def server_config(
    manifest: DriverManifest, *, workspace: Path, installed: Path | None, confined: bool = True
) -> ServerConfig:
    """Return the server of a manifest as a server config.

    Args:
        workspace: the working folder of the server.
        installed: the program of an installed package.
        confined: confine the network of a container.
    """
    server = manifest.server
    assert server is not None, "only drivers of kind mcp have a server"
    base = ServerConfig(
        segment="",
        cwd=str(workspace),
        start_timeout=max(manifest.connection.timeout_ms / 1000, 1.0),
        description=manifest.name,
        # All callers share one connection.
        sessions="shared",
    )
    if server.kind == "remote":
        return replace(
            base,
            url=server.url,
            transport="sse" if manifest.transport == "sse" else "http",
            headers=_headers(manifest, server),
        )
    if manifest.transport != "stdio":
        raise InterlockError(
            TOOL_UNAVAILABLE,
            f"{manifest.id}: this node does not run containers with transport "
            f"{manifest.transport}. "
            "Use transport: stdio, or start the container yourself and use server.kind: remote.",
        )
    argv = server_command(manifest, workspace=workspace, installed=installed, confined=confined)
    # The config splits a command without arguments into words, so it is quoted.
    command = argv[0] if len(argv) > 1 else shlex.quote(argv[0])
    return replace(base, command=command, args=argv[1:], env=dict(server.env), transport="stdio")


def server_command(
    manifest: DriverManifest, *, workspace: Path, installed: Path | None, confined: bool = True
) -> list[str]:
    """Return the command line of a manifest's server. The server must be a process of this
    machine."""
    server = manifest.server
    assert server is not None, "only drivers of kind mcp have a server"
    if server.kind == "binary":
        program = str(installed) if installed is not None else ""
        return [program or _program(server.path, manifest.folder, workspace), *server.args]
    if server.kind == "npm":
        if installed is not None:
            return [str(installed), *server.args]
        # A package that is not installed must not be downloaded unnoticed.
        return ["npx", "--no-install", server.package, *server.args]
    return docker_argv(
        server.image,
        server.args,
        sorted(server.env),
        # `local_egress` was checked before. In a container the local machine is another one.
        egress=Egress.compile(manifest.egress, any_egress=not confined, local_egress=True),
        port=server.port,
        advisory=not confined,
        key=manifest.id,
    )


def _program(path: str, folder: Path, workspace: Path) -> str:
    """Return the path of a program. A name is looked up on the PATH, a relative path beside the
    driver and then in the workspace."""
    if "/" not in path or path.startswith("/"):
        return path
    local = folder / path
    return str(local if local.exists() else workspace / path)


def _headers(manifest: DriverManifest, server: ServerBlock) -> dict[str, str]:
    """Return the authentication headers of a remote server: as `server.auth` declares, else the
    first secret of the driver as a bearer token."""
    auth = server.auth
    if auth is not None:
        value = f"${{secrets.{auth.secret}}}"
        return {auth.header: f"Bearer {value}" if auth.type == "bearer" else value}
    if server.kind == "remote" and manifest.auth is not None and manifest.auth.state_env:
        return {"Authorization": f"Bearer ${{secrets.{manifest.auth.state_env[0]}}}"}
    return {}


def is_permanent(error: InterlockError) -> bool:
    """Return whether a retry is useless because an operator has to fix something first."""
    if isinstance(error, UpstreamLostError) and error.status in _UNAUTHORIZED_STATUSES:
        return True
    return error.failure.name in _PERMANENT


def marked(values: Mapping[str, str]) -> bytes:
    """Return a fingerprint of secrets, by which a change is detected. The values are not kept."""
    digest = hmac.new(_FINGERPRINT_KEY, digestmod=hashlib.sha256)
    for name in sorted(values):
        for text in (name, values[name]):
            encoded = text.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8) + encoded)
    return digest.digest()


def inherited_environment(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the node's environment that every server inherits.

    A variable that provides a driver secret is excluded, whatever matches its name. A variable that
    the config uses elsewhere is included only if it is listed by name.
    """
    settings = config.section(DriversConfig)
    secret_variables = {
        reference.name
        for text in settings.secrets.values()
        for reference in references(text)
        if isinstance(reference, EnvReference)
    }
    exact_names = [pattern for pattern in settings.env_passthrough if not _is_pattern(pattern)]
    referenced = frozenset(_ENV_REFERENCE.findall(msgspec.json.encode(config).decode()))
    return {
        name: value
        for name, value in environ.items()
        if (
            name in exact_names
            or (name not in referenced and _matches_any(name, settings.env_passthrough))
        )
        and name not in secret_variables
        and not _matches_any(name, settings.env_secrets)
    }


def _is_pattern(text: str) -> bool:
    return any(character in text for character in "*?[")


def _matches_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class DriverConnector(Connector):
    """A connector that opens connections to the server of one driver."""

    def __init__(
        self,
        key: str,
        manifest: DriverManifest,
        server: ServerConfig,
        *,
        node_info: bytes,
        clock: Clock,
        secrets: SecretSource,
        confine: ConfinementFactory,
        inherited: Mapping[str, str] | None = None,
    ) -> None:
        """Args:
        secrets: provides the secrets at each connection attempt.
        confine: provides the confinement of a started server.
        inherited: variables of the node's environment that the server inherits.
        """
        super().__init__(
            key, server, node_info=node_info, resolve=lambda _: self._resolved_config, clock=clock
        )
        self._declared_config = server
        self._load_secrets = secrets
        self._confine = confine
        self._inherited = dict(inherited or {})
        self._container = manifest.server is not None and manifest.server.kind == "docker"
        self._resolved_config = server
        texts = {**server.env, **server.headers}.values()
        self.secret_names = frozenset().union(*map(placeholders.find_secret_names, texts))
        """Names of the secrets that the server needs."""
        self.mark = b""
        """Fingerprint of the secrets of the last connection."""
        self.last_error: InterlockError | None = None
        """Error of the last attempt. None: it succeeded."""
        version = manifest.protocol_version
        self._pinned = version in mcp.SESSION_REVISIONS
        if self._pinned:
            self._revision = version

    async def connect(
        self, client_capabilities: bytes = b"{}", *, session_first: bool = False
    ) -> UpstreamClient:
        self.last_error = None
        try:
            return await self._connect_with_secrets(
                client_capabilities, session_first=session_first
            )
        except InterlockError as error:
            self.last_error = error
            raise
        finally:
            # Keep no secret values here after they were passed on.
            self._resolved_config = self._declared_config

    async def _connect_with_secrets(
        self, client_capabilities: bytes, *, session_first: bool
    ) -> UpstreamClient:
        self._resolved_config = await self._resolve_secrets()
        session_first = session_first or self._pinned
        try:
            return await super().connect(client_capabilities, session_first=session_first)
        except UpstreamLostError as gone:
            if self._resolved_config.transport != "sse" or gone.status not in _CLIENT_ERRORS:
                raise
            # The server has no legacy event stream. Most current servers use streamable HTTP.
            self._resolved_config = replace(self._resolved_config, transport="http")
            return await super().connect(client_capabilities, session_first=session_first)

    async def _resolve_secrets(self) -> ServerConfig:
        """Return the declared config with the values of the secrets. They are loaded at every
        attempt, because a missing or changed secret may be available now."""
        server, names = self._declared_config, self.secret_names
        values = await self._load_secrets(names) if names else {}
        self.mask.add(values.values())
        self.mark = marked(values)
        return replace(
            server,
            env={
                name: placeholders.fill_placeholders(text, values)
                for name, text in server.env.items()
            },
            headers={
                name: placeholders.fill_placeholders(text, values)
                for name, text in server.headers.items()
            },
        )

    async def _start_process(self, server: ServerConfig) -> StdioTransport:
        argv = self._split_command(server)
        env = minimal_environment({**self._inherited, **server.env})
        if self._container:
            # The container client runs unconfined, so only the node chooses the program. The driver
            # cannot set variables that the client reads either: see `docker.env_problem`.
            argv[0] = find_client(os.environ, key=self._key)
        confinement = await self._confine()
        if confinement is not None:
            argv, env = confinement.argv(argv), confinement.environment(env)
        return await StdioTransport.start(
            self._key, argv, env=env, cwd=server.cwd, stderr=self.stderr, mask=self.mask
        )
