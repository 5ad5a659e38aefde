"""The connector of a subserver that connects by itself: the node waits for its registration."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.listing import KINDS, RawOffering
from interlock.core.upstreams.negotiation import negotiate_revision
from interlock.core.upstreams.transports.channel import ChannelTransport
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.tree.subserver_session import AxSession

OPEN_TIMEOUT_SECONDS: Final = 30.0
"""The time limit for the MCP handshake, in which the subserver is the server."""
DEFAULT_RETRY_MS: Final = 5000
"""The retry time that callers get for a lost subserver without heartbeats."""


def offered_kinds(session: AxSession | None) -> frozenset[str]:
    """Return the kinds of lists that a subserver offers. Registrations do not list prompts."""
    registration = None if session is None else session.registration
    if registration is None:
        return KINDS
    capabilities = registration.capabilities
    missing = {"tools": capabilities.tools, "resources": capabilities.resources}
    return KINDS - {kind for kind, has in missing.items() if not has}


def find_retry_ms(session: AxSession | None) -> int | None:
    """Return after how many milliseconds callers can try a lost subserver again."""
    registration = None if session is None else session.registration
    return None if registration is None else registration.heartbeat_interval_ms or DEFAULT_RETRY_MS


async def open_mcp_client(
    session: AxSession,
    label: str,
    node_info: bytes,
    client_capabilities: bytes,
    mask: Callable[[str], str] = str,
    *,
    timeout: float = OPEN_TIMEOUT_SECONDS,
    wait_for_close: bool = True,
) -> UpstreamClient:
    """Open an MCP client on the channel of a registered subserver.

    Args:
        wait_for_close: after a failure, wait until the channel is closed.

    Raises InterlockError, and closes the channel then.
    """
    transport = ChannelTransport(label, session.channel, session.on_channel_closed)
    upstream_client = UpstreamClient(label, transport, node_info, mask=mask)
    upstream_client.client_capabilities = client_capabilities
    upstream_client.speaks_ax = True
    upstream_client.on_ax = session.on_message
    session.attach_transport(transport)
    transport.listen()
    try:
        await negotiate_revision(upstream_client, session_first=False, timeout=timeout)
    except BaseException:
        if wait_for_close:
            await upstream_client.close()
        else:
            transport.hang_up()
            upstream_client.on_transport_lost("closed by the node")
        raise
    return upstream_client


class DialIn:
    """Waits for the channels of one subserver, one after the other."""

    dials_in = True
    has_left = False
    """Always False: the registrar itself removes a subserver that has disconnected."""

    def __init__(self, key: str, node_info: bytes, list_ttl: Callable[[], float]) -> None:
        self.stderr: deque[str] = deque(maxlen=1)
        self._key = key
        self._own_info = node_info
        self._list_ttl = list_ttl
        self._next: AxSession | None = None
        self._session: AxSession | None = None
        self._arrived = asyncio.Event()

    def arrive(self, session: AxSession) -> None:
        """Hand over a session that has registered on a new channel."""
        self._next = session
        self._arrived.set()

    async def connect(
        self, client_capabilities: bytes = b"{}", *, session_first: bool = False
    ) -> UpstreamClient:
        """Wait for a registration, and open a client. Raises InterlockError if that fails."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            session, self._next = self._next, None
            if session is not None and session.is_registered:
                break
        self._session = session
        # The subserver may have registered again on another channel, so do not wait for the close.
        return await open_mcp_client(
            session, self._key, self._own_info, client_capabilities, wait_for_close=False
        )

    def check_offering(self, raw_offering: RawOffering) -> None:
        """Check the tools that the subserver offers. Raises InterlockError."""
        session = self._session
        if session is None or not session.is_registered:
            raise InterlockError(UPSTREAM_UNAVAILABLE, f"{self._key} is no longer registered.")
        session.check_offering(raw_offering)

    @property
    def list_kinds(self) -> frozenset[str]:
        return offered_kinds(self._session)

    @property
    def list_ttl(self) -> float | None:
        return self._list_ttl()

    @property
    def retry_after_ms(self) -> int | None:
        return find_retry_ms(self._session)
