"""The tokens that a node makes about who calls, its keys, and the servers that get the tokens.

The keys are changed in time here, and shown to everybody who checks with them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Unpack

from msgspec import Raw

from interlock.core.config import ServerConfig
from interlock.core.config.quantities import is_confidential
from interlock.core.feature import Component
from interlock.core.ports import Clock
from interlock.core.server.http.router import PublicDocument, Route
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.connection import ConnectionOpener, Connector, ConnectorOptions
from interlock.core.upstreams.extension import UpstreamExtension
from interlock.core.upstreams.transports.http import HopTokenTransport, format_bearer_header
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.trust.hop_tokens import HopTokenMinter, HopTokens, HopTokenSource
from interlock.trust.signing_keys import SigningKeys

KEYS_PATH: Final = "/.well-known/jwks.json"
"""Where everybody finds the public keys."""
LOOKED_AT: Final = 5.0
"""How often it is seen whether the keys are due, or were changed by hand."""

_log = logging.getLogger("interlock.node")


class TokenIssuer(Component, UpstreamExtension):
    """Makes the tokens of one node."""

    def __init__(
        self,
        keys: SigningKeys,
        *,
        issuer: Callable[[], str],
        root_segment: Callable[[], str | None] = lambda: None,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
        call_later: Callable[[float, Callable[[], None]], Any] | None = None,
    ) -> None:
        """`issuer`: the address under which servers of the config know this node."""
        self.keys = keys
        self.minter = HopTokenMinter(keys.sign, clock=clock, wall_clock=wall_clock)
        self._issuer = issuer
        self._root_segment = root_segment
        self._call_later = call_later or asyncio.get_running_loop().call_later
        self._on_new_keys: list[Callable[[], None]] = []
        self._timer: Any = None
        self._looking: asyncio.Task[None] | None = None

    # -- life

    def start(self) -> None:
        """Begin to look after the keys."""
        self._timer = self._call_later(LOOKED_AT, self._look)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_new_keys(self, told: Callable[[], None]) -> None:
        """Have `told` called whenever tokens are signed with another key."""
        self._on_new_keys.append(told)

    def _look(self) -> None:
        self._timer = self._call_later(LOOKED_AT, self._look)
        # Another process may hold the file, and for long: one look at a time, beside the loop.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self.look())

    async def look(self) -> None:
        """See whether the keys are due, or were changed by hand."""
        try:
            found = await asyncio.get_running_loop().run_in_executor(None, self.keys.look)
        except InterlockError as error:
            # It goes on with the key that it has, and tries again.
            _log.warning("%s", error.message)
            return
        if self.keys.take(found):
            _log.info("tokens are signed with the key %s", self.keys.kid)
            for told in self._on_new_keys:
                told()

    # -- tokens

    def create_connector(
        self, key: str, server: ServerConfig, options: ConnectorOptions
    ) -> ConnectionOpener | None:
        """What sends tokens to a server of the config that wants them (`minted_tokens`)."""
        if not server.minted_tokens:
            return None
        return HopTokenConnector(key, server, stamp=self.stamp, **options)

    def stamp(self, url: str, segment: str) -> HopTokenSource:
        """What makes tokens for a server of the config."""
        return HopTokens(
            self.minter,
            url,
            issuer=self._issuer,
            shape=format_bearer_header,
            prefix=self.prefix(segment),
        )

    def prefix(self, segment: str) -> str:
        """What the canonical names of tools of this segment begin with."""
        root = self._root_segment()
        return f"{root}.{segment}." if root else f"{segment}."

    # -- its path

    def routes(self) -> Sequence[Route]:
        return (PublicDocument(KEYS_PATH, self.public_keys),)

    def public_keys(self) -> Raw:
        """The document at `KEYS_PATH`: for everybody."""
        return Raw(self.keys.jwks())


class HopTokenConnector(Connector):
    """The connector of `minted_tokens`: sends the caller's token with each call, over HTTP."""

    def __init__(
        self,
        key: str,
        server: ServerConfig,
        *,
        stamp: Callable[[str, str], HopTokenSource],
        **options: Unpack[ConnectorOptions],
    ) -> None:
        """`stamp` gives what makes tokens for the server at a URL, with this segment."""
        super().__init__(key, server, **options)
        self._stamp_for = stamp

    async def _connect(
        self, server: ServerConfig, promises: bytes, session_first: bool
    ) -> UpstreamClient:
        url = server.url
        if url is None or not is_confidential(url):
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"Cannot connect to {self._key}: tokens would go there, and its URL is not https.",
            )
        stamp = self._stamp_for(url, server.segment)
        link = HopTokenTransport(
            self._key,
            url,
            server.headers,
            connections=server.connections,
            clock=self._clock,
            header_source=stamp,
        )
        peer = await self._open(server, link, promises, session_first)
        peer.hop_token_encoder = stamp
        return peer
