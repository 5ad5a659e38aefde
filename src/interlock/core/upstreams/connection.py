"""Connectors: from the config of a server to an open `UpstreamClient`."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NotRequired, Protocol, TypedDict

from interlock.core.call import UpstreamLostError
from interlock.core.config import ServerConfig
from interlock.core.ports import Clock
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.listing import KINDS, RawOffering
from interlock.core.upstreams.negotiation import negotiate_revision
from interlock.core.upstreams.oauth.bearer import OAuthBearer
from interlock.core.upstreams.secret_mask import Mask
from interlock.core.upstreams.transports.http import HttpTransport
from interlock.core.upstreams.transports.legacy_sse import LegacySseTransport
from interlock.core.upstreams.transports.process import child_environment
from interlock.core.upstreams.transports.stdio import StdioTransport
from interlock.core.upstreams.transports.transport import UpstreamTransport
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol import mcp

_TRANSPORTS: Final = frozenset({"auto", "stdio", "http", "sse"})
_STDERR_LINES: Final = 200
"""Lines of stderr that are kept for error messages."""

Resolve = Callable[[ServerConfig], ServerConfig]
"""Replaces references (`${env:X}`, `${file:path}`) in a server's config by their values."""


class ConnectionOpener(Protocol):
    """Opens the connections of one upstream."""

    stderr: deque[str]

    @property
    def dials_in(self) -> bool:
        """Return whether the upstream connects by itself, so that `connect` waits for it."""
        ...

    @property
    def has_left(self) -> bool:
        """Return whether the upstream left or was removed: then its tools are not kept listed."""
        ...

    @property
    def list_kinds(self) -> frozenset[str]:
        """Return the kinds of lists that are read from it."""
        ...

    @property
    def list_ttl(self) -> float | None:
        """Return the seconds after which lists are read again. None: only when they change."""
        ...

    @property
    def retry_after_ms(self) -> int | None:
        """Return when to retry a call that found it lost. None: when the node reconnects."""
        ...

    async def connect(
        self, client_capabilities: bytes = b"{}", *, session_first: bool = False
    ) -> UpstreamClient: ...

    def check_offering(self, raw_offering: RawOffering) -> None:
        """Raise InterlockError if the upstream must not offer this."""


class ConnectorOptions(TypedDict):
    """Options that the node passes to connectors of all kinds."""

    node_info: bytes
    resolve: Resolve
    clock: Clock
    secrets: NotRequired[Callable[[ServerConfig], Iterable[str]] | None]
    bearer: NotRequired[OAuthBearer | None]


class Connector:
    """Opens connections to one upstream and remembers how the last attempts went.

    It handles the transports of MCP. A connector of another kind overrides `_connect`.
    """

    def __init__(
        self,
        key: str,
        server: ServerConfig,
        *,
        node_info: bytes,
        resolve: Resolve,
        clock: Clock,
        secrets: Callable[[ServerConfig], Iterable[str]] | None = None,
        bearer: OAuthBearer | None = None,
    ) -> None:
        """
        Args:
            secrets: returns the values of the references in a server's config.
            bearer: obtains OAuth credentials where a server demands them.
        """
        self._key = key
        self._configured = server
        self._own_info = node_info
        self._resolve = resolve
        self._clock = clock
        self._secrets = secrets
        self._bearer_source = bearer
        self._bearer: OAuthBearer | None = None
        self.mask = Mask()
        self.stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self.noise = 0
        """Invalid messages in the last failed attempt."""
        # Some processes exit if their first message is not `initialize`.
        self._session_first = False
        self._revision = mcp.LATEST_SESSION
        """The revision that session servers are asked for."""

    async def connect(
        self, client_capabilities: bytes = b"{}", *, session_first: bool = False
    ) -> UpstreamClient:
        """Connect, negotiate a revision, and return the client.

        Args:
            client_capabilities: the client capabilities that are sent to a session server.
            session_first: prefer the session generation if the server speaks both.

        Raises:
            InterlockError: the connection failed.
        """
        if self._bearer_source is not None:
            await self._bearer_source.wait_for_sign_in()
        # Resolved for every attempt: a missing secret may exist now.
        server = self._resolve(self._configured)
        if self._secrets is not None:
            self.mask.add(self._secrets(self._configured))
        return await self._connect(server, client_capabilities, session_first)

    async def _connect(
        self, server: ServerConfig, client_capabilities: bytes, session_first: bool
    ) -> UpstreamClient:
        """Connect by the transport of `server`, whose references are resolved."""
        if server.transport not in _TRANSPORTS:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"Cannot connect to {self._key}: no feature of this node provides `transport: "
                f"{server.transport}`.",
            )
        if server.url is None:
            return await self._connect_process(server, client_capabilities, session_first)
        if server.minted_tokens:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"Cannot connect to {self._key}: `minted_tokens` needs the token issuer of a node.",
            )
        if self._bearer_source is not None:
            self._bearer = await self._bearer_source.prepare(server, self.mask.add)
        if server.transport == "sse":
            return await self._connect_legacy_sse(server, server.url, client_capabilities)
        try:
            return await self._connect_streamable(
                server, server.url, client_capabilities, session_first
            )
        except UpstreamLostError as error:
            if server.transport != "auto" or error.status not in (400, 404, 405):
                raise
            try:
                return await self._connect_legacy_sse(server, server.url, client_capabilities)
            except UpstreamLostError as sse_error:
                if sse_error.status:
                    # There is no event stream either. The error of the POST says more.
                    raise error from None
                raise

    async def _connect_process(
        self, server: ServerConfig, client_capabilities: bytes, session_first: bool
    ) -> UpstreamClient:
        session_first = session_first or self._session_first
        pinned = server.protocol == "stateless" and not session_first
        try:
            return await self._open(
                server, await self._start_process(server), client_capabilities, session_first
            )
        except UpstreamLostError:
            if session_first or pinned:
                raise
        # Some servers cannot handle the probe `server/discover`: try once more with `initialize`.
        upstream_client = await self._open(
            server, await self._start_process(server), client_capabilities, True
        )
        self._session_first = True
        return upstream_client

    async def _start_process(self, server: ServerConfig) -> StdioTransport:
        return await StdioTransport.start(
            self._key,
            self._split_command(server),
            env=child_environment(server.env),
            cwd=server.cwd,
            stderr=self.stderr,
            mask=self.mask,
        )

    # -- ConnectionOpener

    dials_in = False

    @property
    def has_left(self) -> bool:
        return False

    @property
    def list_kinds(self) -> frozenset[str]:
        return KINDS

    @property
    def list_ttl(self) -> float | None:
        return None

    @property
    def retry_after_ms(self) -> int | None:
        return None

    def check_offering(self, raw_offering: RawOffering) -> None:
        """Accept everything: a configured server may offer anything."""

    def _split_command(self, server: ServerConfig) -> list[str]:
        command = server.command or ""
        if server.args:
            return [command, *server.args]
        try:
            argv = shlex.split(command)
        except ValueError as exc:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"Cannot start {self._key}: invalid `command`: {exc}."
            ) from None
        if not argv:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"Cannot start {self._key}: `command` is empty."
            )
        return argv

    async def _connect_streamable(
        self, server: ServerConfig, url: str, client_capabilities: bytes, session_first: bool
    ) -> UpstreamClient:
        transport = HttpTransport(
            self._key,
            url,
            server.headers,
            connections=server.connections,
            clock=self._clock,
            bearer=self._bearer,
        )
        return await self._open(server, transport, client_capabilities, session_first)

    async def _connect_legacy_sse(
        self, server: ServerConfig, url: str, client_capabilities: bytes
    ) -> UpstreamClient:
        transport = LegacySseTransport(
            self._key,
            url,
            server.headers,
            connections=server.connections,
            clock=self._clock,
            bearer=self._bearer,
        )
        try:
            await transport.open()
        except BaseException:
            await transport.close()
            raise
        return await self._open(server, transport, client_capabilities, True)

    async def _open(
        self,
        server: ServerConfig,
        transport: UpstreamTransport,
        client_capabilities: bytes,
        session_first: bool,
    ) -> UpstreamClient:
        upstream_client = UpstreamClient(self._key, transport, self._own_info, mask=self.mask)
        upstream_client.client_capabilities = client_capabilities
        try:
            await negotiate_revision(
                upstream_client,
                session_first=session_first or server.protocol == "session",
                stateless_only=server.protocol == "stateless",
                timeout=server.start_timeout,
                revision=self._revision,
            )
        except BaseException:
            self.noise = upstream_client.noise
            await upstream_client.close()
            raise
        if self._bearer is not None:
            self._bearer.on_connected()
        return upstream_client
