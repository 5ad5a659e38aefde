"""From a manifest to a running server: what is started or connected to, with which environment,
behind which confinement, in which revision of MCP."""

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
from interlock.drivers.sandbox.docker import client_of, docker_argv
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

_REFUSALS: Final = range(400, 500)
_UNAUTHORIZED_STATUSES: Final = (401, 403)
_PERMANENT: Final = frozenset(
    failure.name
    for failure in (
        AUTH_REQUIRED, AUTH_FAILED, CONFIG, INSTALL_FAILED, POLICY_VIOLATION, SANDBOX_UNAVAILABLE,
        TOOL_UNAVAILABLE, VERSION_MISMATCH,
    )
)  # fmt: skip
_TAKEN: Final = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)")
_FINGERPRINT_KEY: Final = os.urandom(32)
"""With this key values are marked: a mark says nothing to who does not have it."""

SecretSource = Callable[[frozenset[str]], Awaitable[Mapping[str, str]]]
"""Gives the secrets of these names. Raises InterlockError where one is not to be had."""
ConfinementFactory = Callable[[], Awaitable[ProcessConfinement | None]]
"""Gives the confinement of a server that is to be started. None: it goes unconfined."""


def server_config(
    manifest: DriverManifest, *, workspace: Path, installed: Path | None, confined: bool = True
) -> ServerConfig:
    """The server that a manifest declares, in the words of the config. `installed`: the program of
    a package that was installed; `confined`: whether a container is kept from the network."""
    server = manifest.server
    assert server is not None, "only drivers of kind mcp have a server"
    base = ServerConfig(
        segment="",
        cwd=str(workspace),
        start_timeout=max(manifest.connection.timeout_ms / 1000, 1.0),
        description=manifest.name,
        # One connection for all who call.
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
            f"{manifest.id}: a container that is spoken to over {manifest.transport} is not run by "
            "this node; use transport: stdio, or start it yourself and use server.kind: remote.",
        )
    argv = server_command(manifest, workspace=workspace, installed=installed, confined=confined)
    # Without arguments the config takes a command for a whole line.
    command = argv[0] if len(argv) > 1 else shlex.quote(argv[0])
    return replace(base, command=command, args=argv[1:], env=dict(server.env), transport="stdio")


def server_command(
    manifest: DriverManifest, *, workspace: Path, installed: Path | None, confined: bool = True
) -> list[str]:
    """What is started for a manifest whose server is a process of this machine."""
    server = manifest.server
    assert server is not None, "only drivers of kind mcp have a server"
    if server.kind == "binary":
        program = str(installed) if installed is not None else ""
        return [program or _program(server.path, manifest.folder, workspace), *server.args]
    if server.kind == "npm":
        if installed is not None:
            return [str(installed), *server.args]
        # What is not installed is not fetched behind anybody's back.
        return ["npx", "--no-install", server.package, *server.args]
    return docker_argv(
        server.image,
        server.args,
        sorted(server.env),
        # Whether this machine may be named was asked before; in a container it is another one.
        egress=Egress.compile(manifest.egress, any_egress=not confined, local_egress=True),
        port=server.port,
        advisory=not confined,
        key=manifest.id,
    )


def _program(path: str, folder: Path, workspace: Path) -> str:
    """A program by its name is looked for on the PATH, one with a slash beside the driver."""
    if "/" not in path or path.startswith("/"):
        return path
    beside = folder / path
    return str(beside if beside.exists() else workspace / path)


def _headers(manifest: DriverManifest, server: ServerBlock) -> dict[str, str]:
    """How a remote server is shown who calls: as `server.auth` says, else the first secret of the
    driver as a bearer token."""
    auth = server.auth
    if auth is not None:
        value = f"${{secrets.{auth.secret}}}"
        return {auth.header: f"Bearer {value}" if auth.type == "bearer" else value}
    if server.kind == "remote" and manifest.auth is not None and manifest.auth.state_env:
        return {"Authorization": f"Bearer ${{secrets.{manifest.auth.state_env[0]}}}"}
    return {}


def is_permanent(error: InterlockError) -> bool:
    """Whether the next attempt would come to the same: somebody has to do something first."""
    if isinstance(error, UpstreamGoneError) and error.status in _UNAUTHORIZED_STATUSES:
        return True
    return error.failure.name in _PERMANENT


def marked(values: Mapping[str, str]) -> bytes:
    """A mark of secrets, by which it is seen whether they are others now. They are not kept."""
    mark = hmac.new(_FINGERPRINT_KEY, digestmod=hashlib.sha256)
    for name in sorted(values):
        for text in (name, values[name]):
            encoded = text.encode("utf-8", "surrogatepass")
            mark.update(len(encoded).to_bytes(8) + encoded)
    return mark.digest()


def inherited_environment(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the node's own environment that every server is started with. What a secret
    of drivers is taken from is for whom that secret is for, whatever fits its name; and what the
    config takes for somebody else is not meant by a pattern."""
    settings = config.section(DriversConfig)
    secret = {
        reference.name
        for text in settings.secrets.values()
        for reference in references(text)
        if isinstance(reference, EnvReference)
    }
    by_name = [pattern for pattern in settings.env_passthrough if not _is_pattern(pattern)]
    taken = frozenset(_TAKEN.findall(msgspec.json.encode(config).decode()))
    return {
        name: value
        for name, value in environ.items()
        if (name in by_name or (name not in taken and _fits(name, settings.env_passthrough)))
        and name not in secret
        and not _fits(name, settings.env_secrets)
    }


def _is_pattern(text: str) -> bool:
    return any(character in text for character in "*?[")


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class DriverConnector(Connector):
    """Opens connections to the server of one driver."""

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
        inherited_environment: Mapping[str, str] | None = None,
    ) -> None:
        """`passed_on`: variables of the node's own environment that the server may have."""
        super().__init__(
            key, server, node_info=node_info, resolve=lambda _: self._filled, clock=clock
        )
        self._declared = server
        self._give_secrets = secrets
        self._confine = confine
        self._inherited = dict(inherited_environment or {})
        self._container = manifest.server is not None and manifest.server.kind == "docker"
        self._filled = server
        texts = {**server.env, **server.headers}.values()
        self.secret_names = frozenset().union(*map(placeholders.names, texts))
        """The secrets that it needs."""
        self.mark = b""
        """Of the secrets that the last connection was opened with."""
        self.last_error: InterlockError | None = None
        """Why the last attempt failed. None: it did not."""
        version = manifest.protocol_version
        self._pinned = version in mcp.SESSION_REVISIONS
        if self._pinned:
            self._revision = version

    async def connect(
        self, client_capabilities: bytes = b"{}", *, session_first: bool = False
    ) -> UpstreamClient:
        self.last_error = None
        try:
            return await self._connected(client_capabilities, session_first=session_first)
        except InterlockError as error:
            self.last_error = error
            raise
        finally:
            # What was given is in its place: here it is not kept.
            self._filled = self._declared

    async def _connected(
        self, client_capabilities: bytes, *, session_first: bool
    ) -> UpstreamClient:
        self._filled = await self._with_secrets()
        session_first = session_first or self._pinned
        try:
            return await super().connect(client_capabilities, session_first=session_first)
        except UpstreamLostError as gone:
            if self._filled.transport != "sse" or gone.status not in _REFUSALS:
                raise
            # There is no event stream of the old kind: most of today's servers speak this one.
            self._filled = replace(self._filled, transport="http")
            return await super().connect(client_capabilities, session_first=session_first)

    async def _with_secrets(self) -> ServerConfig:
        """What was declared, with the secrets in their places. Asked for every attempt: one that
        was missing, or is a new one, may be there now."""
        server, names = self._declared, self.secret_names
        values = await self._give_secrets(names) if names else {}
        self.mask.add(values.values())
        self.mark = marked(values)
        return replace(
            server,
            env={name: placeholders.fill(text, values) for name, text in server.env.items()},
            headers={
                name: placeholders.fill(text, values) for name, text in server.headers.items()
            },
        )

    async def _start(self, server: ServerConfig) -> StdioTransport:
        argv = self._argv(server)
        env = minimal_environment({**self._inherited, **server.env})
        if self._container:
            # It goes unconfined, so which program it is, is the node's choice alone. What it heeds
            # of its environment is, too: see `docker.env_problem`.
            argv[0] = client_of(os.environ, key=self._key)
        confinement = await self._confine()
        if confinement is not None:
            argv, env = confinement.argv(argv), confinement.environment(env)
        return await StdioTransport.start(
            self._key, argv, env=env, cwd=server.cwd, stderr=self.stderr, mask=self.mask
        )
