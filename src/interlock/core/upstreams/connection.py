"""From a server's config to an open peer: which link, with which secrets, in which era."""

from __future__ import annotations

import asyncio
import shlex
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from interlock.channels.channel import Channel
from interlock.core.call import UpstreamGoneError
from interlock.core.config import ServerConfig
from interlock.core.config.quantities import is_confidential
from interlock.core.ports import Clock
from interlock.core.upstreams.client import Peer
from interlock.core.upstreams.listing import RawOffer
from interlock.core.upstreams.negotiation import open_peer
from interlock.core.upstreams.oauth.bearer import OAuthBearer
from interlock.core.upstreams.secret_mask import Mask
from interlock.core.upstreams.transports.http import HttpLink, StampedLink
from interlock.core.upstreams.transports.legacy_sse import LegacySseLink
from interlock.core.upstreams.transports.process import child_environment
from interlock.core.upstreams.transports.stdio import StdioLink
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol import mcp
from interlock.protocol.mcpax import ID_VARIABLE, SEGMENT_VARIABLE
from interlock.tree.child_process import (
    ANSWERS_WITHIN,
    StartedChild,
    did_not_register,
    first_stray,
    speaks_mcp,
)
from interlock.tree.dial_in import kinds_of, retry_ms_of, speak
from interlock.tree.subserver_session import AxSession
from interlock.trust.hop_tokens import Stamps

_STDERR_LINES: Final = 200
"""Lines of stderr that are kept for error messages."""

Resolve = Callable[[ServerConfig], ServerConfig]
"""Puts what `${env:X}` and `${file:path}` refer to into a server's config."""


class Connects(Protocol):
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

    async def connect(self, promises: bytes = b"{}", *, session_first: bool = False) -> Peer: ...

    def vet(self, offer: RawOffer) -> None:
        """Raises InterlockError when it may not offer this."""


class Adopts(Protocol):
    """What a started child registers with: the node's registrar."""

    @property
    def list_ttl(self) -> float: ...

    def child_id(self, key: str) -> str:
        """The id of a child that the config names: the same for ever."""
        ...

    async def adopt(self, channel: Channel, *, key: str, segment: str) -> AxSession:
        """Raises InterlockError when it does not register."""
        ...


class Connector:
    """Opens connections to one upstream, and remembers what it learned on the way."""

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
        registrar: Adopts | None = None,
        stamp: Callable[[str, str], Stamps] | None = None,
    ) -> None:
        """`secrets` tells what the references of a server's config stand for; `bearer` signs in
        where a server asks for it; with the `registrar` started children register (transport
        ax); `stamp` gives what makes tokens for the server at a URL, with this segment
        (`minted_tokens`)."""
        self._key = key
        self._configured = server
        self._own_info = own_info
        self._resolve = resolve
        self._clock = clock
        self._secrets = secrets
        self._signs_in = bearer
        self._bearer: OAuthBearer | None = None
        self._registrar = registrar
        self._stamp_for = stamp
        self._session: AxSession | None = None
        """That of a started child which has registered."""
        self.mask = Mask()
        self.stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self.noise = 0
        """Lines that were not MCP, in the last attempt that failed."""
        # Some processes end when the first thing they hear is not `initialize`.
        self._session_first = False
        self._revision = mcp.LATEST_SESSION
        """What a session server is asked to speak."""

    async def connect(self, promises: bytes = b"{}", *, session_first: bool = False) -> Peer:
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
        if server.transport == "ax" and server.url is None:
            return await self._spawn_subserver(server, promises)
        if server.url is None:
            return await self._spawn(server, promises, session_first)
        if server.minted_tokens:
            return await self._with_tokens(server, server.url, promises, session_first)
        if self._signs_in is not None:
            self._bearer = await self._signs_in.prepare(server, self.mask.learn)
        if server.transport == "sse":
            return await self._legacy(server, server.url, promises)
        try:
            return await self._streamable(server, server.url, promises, session_first)
        except UpstreamGoneError as gone:
            if server.transport != "auto" or gone.status not in (400, 404, 405):
                raise
            try:
                return await self._legacy(server, server.url, promises)
            except UpstreamGoneError as neither:
                if neither.status:
                    # No event stream there either: what the POST was told says more.
                    raise gone from None
                raise

    async def _spawn(self, server: ServerConfig, promises: bytes, session_first: bool) -> Peer:
        session_first = session_first or self._session_first
        pinned = server.protocol == "stateless" and not session_first
        try:
            return await self._open(server, await self._start(server), promises, session_first)
        except UpstreamGoneError:
            if session_first or pinned:
                raise
        # It may be one of those that cannot bear the probe: once more, the old way.
        peer = await self._open(server, await self._start(server), promises, True)
        self._session_first = True
        return peer

    async def _start(self, server: ServerConfig) -> StdioLink:
        return await StdioLink.start(
            self._key,
            self._argv(server),
            env=child_environment(server.env),
            cwd=server.cwd,
            stderr=self.stderr,
            mask=self.mask,
        )

    async def _spawn_subserver(self, server: ServerConfig, promises: bytes) -> Peer:
        """Start a child that speaks MCP-AX on its stdio: it registers first."""
        if self._registrar is None:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"Cannot start {self._key}: nobody can register here."
            )
        child = await StartedChild.start(
            self._key,
            self._argv(server),
            # What it is to register as is for the config of this node to say.
            env=child_environment(
                {
                    **server.env,
                    SEGMENT_VARIABLE: server.segment,
                    ID_VARIABLE: self._registrar.child_id(self._key),
                }
            ),
            cwd=server.cwd,
            stderr=self.stderr,
            mask=self.mask,
        )
        try:
            async with asyncio.timeout(server.start_timeout):
                self._session = session = await self._registrar.adopt(
                    child.channel, key=self._key, segment=server.segment
                )
        except BaseException as failed:
            self.noise = child.channel.noise
            try:
                raise await self._not_registered(child, server, failed) from None
            finally:
                await child.close()
        return await speak(
            session,
            self._key,
            self._own_info,
            promises,
            self.mask,
            timeout=server.start_timeout,
        )

    async def _not_registered(
        self, child: StartedChild, server: ServerConfig, failed: BaseException
    ) -> BaseException:
        """Why a started child did not register, as far as that can be found out."""
        if isinstance(failed, TimeoutError):
            speaks = await speaks_mcp(child, self._own_info, within=ANSWERS_WITHIN)
            return did_not_register(self._key, server.start_timeout, child, speaks=speaks)
        if isinstance(failed, InterlockError):
            said = failed.message if failed.message.endswith(".") else f"{failed.message}."
            stray = first_stray(child)
            return InterlockError(failed.failure, said + stray, failed.data) if stray else failed
        return failed

    # -- what the supervisor asks

    dials_in = False

    @property
    def gone(self) -> bool:
        return self._session is not None and self._session.gone

    @property
    def kinds(self) -> frozenset[str]:
        return kinds_of(self._session)

    @property
    def list_ttl(self) -> float | None:
        if self._session is None or self._registrar is None:
            return None
        return self._registrar.list_ttl

    @property
    def retry_after_ms(self) -> int | None:
        return retry_ms_of(self._session)

    def vet(self, offer: RawOffer) -> None:
        """Raises InterlockError when a subserver may not offer this."""
        if self._session is not None:
            self._session.vet(offer)

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
    ) -> Peer:
        link = HttpLink(
            self._key,
            url,
            server.headers,
            connections=server.connections,
            clock=self._clock,
            bearer=self._bearer,
        )
        return await self._open(server, link, promises, session_first)

    async def _with_tokens(
        self, server: ServerConfig, url: str, promises: bytes, session_first: bool
    ) -> Peer:
        """A server that believes this node's own tokens."""
        if self._stamp_for is None:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"Cannot connect to {self._key}: nobody makes tokens here."
            )
        if not is_confidential(url):
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"Cannot connect to {self._key}: tokens would go there, and its URL is not https.",
            )
        stamp = self._stamp_for(url, server.segment)
        link = StampedLink(
            self._key,
            url,
            server.headers,
            connections=server.connections,
            clock=self._clock,
            stamp=stamp,
        )
        peer = await self._open(server, link, promises, session_first)
        peer.stamp = stamp
        return peer

    async def _legacy(self, server: ServerConfig, url: str, promises: bytes) -> Peer:
        link = LegacySseLink(
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
        link: StdioLink | HttpLink | LegacySseLink,
        promises: bytes,
        session_first: bool,
    ) -> Peer:
        peer = Peer(self._key, link, self._own_info, mask=self.mask)
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
