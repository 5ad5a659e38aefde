"""The issuer of hop tokens: signs tokens that name the caller, for the next hop (MCP-AX §10.1).

It rotates its keys, publishes them, and connects to the servers that get tokens.
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
"""The path of the public keys."""
KEY_CHECK_SECONDS: Final = 5.0
"""The interval at which the node checks whether its keys are due, or were changed by a command."""

_log = logging.getLogger("interlock.node")


class TokenIssuer(Component, UpstreamExtension):
    """Issues the hop tokens of one node."""

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
        """Args:
        issuer: returns the address under which servers of the config know this node.
        root_segment: returns the first segment of names in this node's tree.
        """
        self.keys = keys
        self.minter = HopTokenMinter(keys.sign, clock=clock, wall_clock=wall_clock)
        self._issuer = issuer
        self._root_segment = root_segment
        self._call_later = call_later or asyncio.get_running_loop().call_later
        self._key_callbacks: list[Callable[[], None]] = []
        self._timer: Any = None
        self._refreshing: asyncio.Task[None] | None = None

    # -- Start and stop

    def start(self) -> None:
        """Start the regular check of the keys."""
        self._timer = self._call_later(KEY_CHECK_SECONDS, self._on_timer)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_new_keys(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the signing key changes."""
        self._key_callbacks.append(callback)

    def _on_timer(self) -> None:
        self._timer = self._call_later(KEY_CHECK_SECONDS, self._on_timer)
        # Another process may lock the file for long: one check at a time, off the loop.
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self.refresh())

    async def refresh(self) -> None:
        """Rotate keys that are due, and read keys that a command changed."""
        try:
            stored = await asyncio.get_running_loop().run_in_executor(None, self.keys.read_changes)
        except InterlockError as error:
            # The current key stays in use until the next check.
            _log.warning("hop tokens: %s", error.message)
            return
        if self.keys.apply(stored):
            _log.info("hop tokens: signed with the key %s from now on", self.keys.kid)
            for callback in self._key_callbacks:
                callback()

    # -- Tokens

    def create_connector(
        self, key: str, server: ServerConfig, options: ConnectorOptions
    ) -> ConnectionOpener | None:
        """Return the connector for a server of the config with `minted_tokens`. None: no token."""
        if not server.minted_tokens:
            return None
        return HopTokenConnector(key, server, create_source=self.create_source, **options)

    def create_source(self, url: str, segment: str) -> HopTokenSource:
        """Return the source of tokens for a server of the config."""
        return HopTokens(
            self.minter,
            url,
            issuer=self._issuer,
            encode=format_bearer_header,
            prefix=self.name_prefix(segment),
        )

    def name_prefix(self, segment: str) -> str:
        """Return the prefix of canonical names of tools in this segment."""
        root = self._root_segment()
        return f"{root}.{segment}." if root else f"{segment}."

    # -- HTTP

    def routes(self) -> Sequence[Route]:
        return (PublicDocument(KEYS_PATH, self.public_keys),)

    def public_keys(self) -> Raw:
        """Return the public document at `KEYS_PATH`."""
        return Raw(self.keys.jwks())


class HopTokenConnector(Connector):
    """The connector for `minted_tokens`: sends a token with each call, over HTTP."""

    def __init__(
        self,
        key: str,
        server: ServerConfig,
        *,
        create_source: Callable[[str, str], HopTokenSource],
        **options: Unpack[ConnectorOptions],
    ) -> None:
        """Args:
        create_source: returns the source of tokens for a URL and a segment.
        """
        super().__init__(key, server, **options)
        self._create_source = create_source

    async def _connect(
        self, server: ServerConfig, client_capabilities: bytes, session_first: bool
    ) -> UpstreamClient:
        url = server.url
        if url is None or not is_confidential(url):
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"Cannot connect to {self._key}: hop tokens require https. Change its URL.",
            )
        stamp = self._create_source(url, server.segment)
        link = HopTokenTransport(
            self._key,
            url,
            server.headers,
            connections=server.connections,
            clock=self._clock,
            header_source=stamp,
        )
        upstream_client = await self._open(server, link, client_capabilities, session_first)
        upstream_client.hop_token_encoder = stamp
        return upstream_client
