"""The connector of a subserver that dials in: it cannot be fetched, only waited for."""

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

OPENING: Final = 30.0
"""How long a subserver may take to open the conversation in which it is the server."""
RETRY_MS: Final = 5000
"""When to try a lost subserver again that sends no heartbeats."""


def kinds_of(session: AxSession | None) -> frozenset[str]:
    """Which lists a subserver has, by its registration. Prompts are not spoken of there."""
    wanted = None if session is None else session.wanted
    if wanted is None:
        return KINDS
    offers = wanted.capabilities
    missing = {"tools": offers.tools, "resources": offers.resources}
    return KINDS - {kind for kind, has in missing.items() if not has}


def retry_ms_of(session: AxSession | None) -> int | None:
    """When to try again after a subserver was lost."""
    wanted = None if session is None else session.wanted
    return None if wanted is None else wanted.heartbeat_interval_ms or RETRY_MS


async def speak(
    session: AxSession,
    label: str,
    node_info: bytes,
    client_capabilities: bytes,
    mask: Callable[[str], str] = str,
    *,
    timeout: float = OPENING,
    patient: bool = True,
) -> UpstreamClient:
    """Be the MCP client on a registered subserver's channel. Raises InterlockError, when the
    channel is closed; or, without patience, is about to be."""
    link = ChannelTransport(label, session.channel, session.closed)
    peer = UpstreamClient(label, link, node_info, mask=mask)
    peer.client_capabilities = client_capabilities
    peer.speaks_ax = True
    peer.on_ax = session.heard
    session.take(link)
    link.listen()
    try:
        await negotiate_revision(peer, session_first=False, timeout=timeout)
    except BaseException:
        if patient:
            await peer.close()
        else:
            link.hang_up()
            peer.on_transport_lost("closed by the node")
        raise
    return peer


class DialIn:
    """Waits for the channels of one subserver, one after the other."""

    dials_in = True
    has_left = False
    """The registrar itself withdraws who is gone."""

    def __init__(self, key: str, node_info: bytes, list_ttl: Callable[[], float]) -> None:
        self.stderr: deque[str] = deque(maxlen=1)
        self._key = key
        self._own_info = node_info
        self._list_ttl = list_ttl
        self._next: AxSession | None = None
        self._session: AxSession | None = None
        self._arrived = asyncio.Event()

    def arrive(self, session: AxSession) -> None:
        """It has registered, on a new channel."""
        self._next = session
        self._arrived.set()

    async def connect(
        self, client_capabilities: bytes = b"{}", *, session_first: bool = False
    ) -> UpstreamClient:
        """Wait for it to register. Raises InterlockError when it did and cannot be spoken to."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            session, self._next = self._next, None
            if session is not None and session.live:
                break
        self._session = session
        # It may be here again already, on another channel.
        return await speak(session, self._key, self._own_info, client_capabilities, patient=False)

    def check_offering(self, offer: RawOffering) -> None:
        """Raises InterlockError when it may not offer this."""
        session = self._session
        if session is None or not session.live:
            raise InterlockError(UPSTREAM_UNAVAILABLE, f"{self._key} is not registered any more.")
        session.vet(offer)

    @property
    def list_kinds(self) -> frozenset[str]:
        return kinds_of(self._session)

    @property
    def list_ttl(self) -> float | None:
        return self._list_ttl()

    @property
    def retry_after_ms(self) -> int | None:
        return retry_ms_of(self._session)
