"""From a server's config to an open peer: which link, with which secrets, in which era."""

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
from interlock.core.upstreams.negotiation import open_peer
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
"""Puts what `${env:X}` and `${file:path}` refer to into a server's config."""


class ConnectionOpener(Protocol):
    """What opens the connections of an upstream."""

    stderr: deque[str]

    @property
    def dials_in(self) -> bool:
        """Whether it comes by itself: `connect` waits until it does."""
        ...

    @property
    def gone(self) -> bool:
        """Whether it took its leave, or was sent away: then nothing of it stays listed."""
        ...

    @property
    def kinds(self) -> frozenset[str]:
        """Which of its lists are read."""
        ...

    @property
    def list_ttl(self) -> float | None:
        """How long a list is believed. None: until it is announced that there is a new one."""
        ...

    @property
    def retry_after_ms(self) -> int | None:
        """When to try a call again that found it lost. None: when the node itself does."""
        ...

    async def connect(
        self, promises: bytes = b"{}", *, session_first: bool = False
    ) -> UpstreamClient: ...

    def vet(self, offer: RawOffering) -> None:
        """Raises InterlockError when it may not offer this."""


class ConnectorOptions(TypedDict):
    """What a node gives every connector, whichever kind it is."""

    own_info: bytes
    resolve: Resolve
    clock: Clock
    secrets: NotRequired[Callable[[ServerConfig], Iterable[str]] | None]
    bearer: NotRequired[OAuthBearer | None]


class Connector:
    """Opens connections to one upstream, and remembers what it learned on the way.

    It knows the transports of MCP itself. A connector of another kind replaces `_connect`.
    """

    def __init__(
        self,
        key: str,
        server: ServerConfig,
        *,
        own_info: bytes,
        resolve: Resolve,
        clock: Clock,
        secrets: Callable[[ServerConfig], Iterable[str]] | None = None,
        bearer: OAuthBearer | None = None,
    ) -> None:
        """`secrets` tells what the references of a server's config stand for; `bearer` signs in
        where a server asks for it."""
        self._key = key
        self._configured = server
        self._own_info = own_info
        self._resolve = resolve
        self._clock = clock
        self._secrets = secrets
        self._signs_in = bearer
        self._bearer: OAuthBearer | None = None
        self.mask = Mask()
        self.stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self.noise = 0
        """Lines that were not MCP, in the last attempt that failed."""
        # Some processes end when the first thing they hear is not `initialize`.
        self._session_first = False
        self._revision = mcp.LATEST_SESSION
        """What a session server is asked to speak."""

    async def connect(
        self, promises: bytes = b"{}", *, session_first: bool = False
    ) -> UpstreamClient:
        """An open peer. Raises InterlockError.

        `promises`: what a session server is told that its client can do. `session_first`: speak
        the session wire if the server does.
        """
        if self._signs_in is not None:
            await self._signs_in.until_worth_trying()
        # Resolved for every attempt: a secret that was missing may be there now.
        server = self._resolve(self._configured)
        if self._secrets is not None:
            self.mask.learn(self._secrets(self._configured))
        return await self._connect(server, promises, session_first)

    async def _connect(
        self, server: ServerConfig, promises: bytes, session_first: bool
    ) -> UpstreamClient:
        """A peer by the transport of `server`, whose references are resolved."""
        if server.transport not in _TRANSPORTS:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"Cannot connect to {self._key}: no part of this node has `transport: "
                f"{server.transport}`.",
            )
        if server.url is None:
            return await self._spawn(server, promises, session_first)
        if server.minted_tokens:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"Cannot connect to {self._key}: nobody makes tokens here."
            )
        if self._signs_in is not None:
            self._bearer = await self._signs_in.prepare(server, self.mask.learn)
        if server.transport == "sse":
            return await self._legacy(server, server.url, promises)
        try:
            return await self._streamable(server, server.url, promises, session_first)
        except UpstreamLostError as gone:
            if server.transport != "auto" or gone.status not in (400, 404, 405):
                raise
            try:
                return await self._legacy(server, server.url, promises)
            except UpstreamLostError as neither:
                if neither.status:
                    # No event stream there either: what the POST was told says more.
                    raise gone from None
                raise

    async def _spawn(
        self, server: ServerConfig, promises: bytes, session_first: bool
    ) -> UpstreamClient:
        session_first = session_first or self._session_first
        pinned = server.protocol == "stateless" and not session_first
        try:
            return await self._open(server, await self._start(server), promises, session_first)
        except UpstreamLostError:
            if session_first or pinned:
                raise
        # It may be one of those that cannot bear the probe: once more, the old way.
        peer = await self._open(server, await self._start(server), promises, True)
        self._session_first = True
        return peer

    async def _start(self, server: ServerConfig) -> StdioTransport:
        return await StdioTransport.start(
            self._key,
            self._argv(server),
            env=child_environment(server.env),
            cwd=server.cwd,
            stderr=self.stderr,
            mask=self.mask,
        )

    # -- what the supervisor asks

    dials_in = False

    @property
    def gone(self) -> bool:
        return False

    @property
    def kinds(self) -> frozenset[str]:
        return KINDS

    @property
    def list_ttl(self) -> float | None:
        return None

    @property
    def retry_after_ms(self) -> int | None:
        return None

    def vet(self, offer: RawOffering) -> None:
        """Whatever it lists, it may."""

    def _argv(self, server: ServerConfig) -> list[str]:
        command = server.command or ""
        if server.args:
            return [command, *server.args]
        try:
            argv = shlex.split(command)
        except ValueError as exc:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"Cannot start {self._key}: its command line: {exc}."
            ) from None
        if not argv:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"Cannot start {self._key}: its command line is empty."
            )
        return argv

    async def _streamable(
        self, server: ServerConfig, url: str, promises: bytes, session_first: bool
    ) -> UpstreamClient:
        link = HttpTransport(
            self._key,
            url,
            server.headers,
            connections=server.connections,
            clock=self._clock,
            bearer=self._bearer,
        )
        return await self._open(server, link, promises, session_first)

    async def _legacy(self, server: ServerConfig, url: str, promises: bytes) -> UpstreamClient:
        link = LegacySseTransport(
            self._key,
            url,
            server.headers,
            connections=server.connections,
            clock=self._clock,
            bearer=self._bearer,
        )
        try:
            await link.open()
        except BaseException:
            await link.close()
            raise
        return await self._open(server, link, promises, True)

    async def _open(
        self,
        server: ServerConfig,
        link: UpstreamTransport,
        promises: bytes,
        session_first: bool,
    ) -> UpstreamClient:
        peer = UpstreamClient(self._key, link, self._own_info, mask=self.mask)
        peer.promises = promises
        try:
            await open_peer(
                peer,
                session_first=session_first or server.protocol == "session",
                stateless_only=server.protocol == "stateless",
                timeout=server.start_timeout,
                revision=self._revision,
            )
        except BaseException:
            self.noise = peer.noise
            await peer.close()
            raise
        if self._bearer is not None:
            self._bearer.opened()
        return peer
