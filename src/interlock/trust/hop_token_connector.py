"""The connector of `minted_tokens`: a server that accepts tokens which this node makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from interlock.core.config import ServerConfig
from interlock.core.config.quantities import is_confidential
from interlock.core.upstreams.client import Peer
from interlock.core.upstreams.connection import Connector, ConnectorOptions
from interlock.core.upstreams.transports.http import StampedLink
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.trust.hop_tokens import Stamps


class HopTokenConnector(Connector):
    """Sends each call with the token of its caller, over streamable HTTP."""

    def __init__(
        self,
        key: str,
        server: ServerConfig,
        *,
        stamp: Callable[[str, str], Stamps],
        **options: Unpack[ConnectorOptions],
    ) -> None:
        """`stamp` gives what makes tokens for the server at a URL, with this segment."""
        super().__init__(key, server, **options)
        self._stamp_for = stamp

    async def _connect(self, server: ServerConfig, promises: bytes, session_first: bool) -> Peer:
        url = server.url
        if url is None or not is_confidential(url):
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
