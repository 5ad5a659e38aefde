"""Who shares the connection to an upstream, and who gets one of its own."""

from __future__ import annotations

from enum import Enum

from interlock.call import UpstreamGoneError
from interlock.config import ServerConfig
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol.mcp import Era, without
from interlock.upstreams.connect import Connects
from interlock.upstreams.peer import Peer
from interlock.upstreams.private import NoSessionsError


class Private(Enum):
    """Who gets a connection of its own to an upstream."""

    NOBODY = 0
    SESSIONS = 1
    """Clients of the session wire, where the server speaks that too."""
    EVERYBODY = 2


def private_for(server: ServerConfig, peer: Peer) -> Private:
    """Whose calls must not share a connection to this server."""
    if server.sessions != "auto":
        return Private.EVERYBODY if server.sessions == "private" else Private.NOBODY
    if peer.era is Era.STATELESS:
        return Private.SESSIONS if peer.link.is_http else Private.NOBODY
    # One process serves everybody who may use it, unless the config says otherwise.
    return Private.EVERYBODY if peer.link.session_offered else Private.NOBODY


def denied(server: ServerConfig) -> frozenset[str]:
    """What this server may not ask for, and so is not promised."""
    ask = server.ask
    settings = {"sampling": ask.sampling, "elicitation": ask.elicitation, "roots": ask.roots}
    return frozenset(name for name, may in settings.items() if may == "deny")


async def open_private(
    connector: Connects, server: ServerConfig, key: str, main: Peer | None, promises: bytes
) -> Peer:
    """A connection for one client, beside the `main` one. Raises InterlockError, NoSessionsError
    when the server has no session to give and the main connection does as well."""
    spoken = None if main is None else main.era
    try:
        peer = await connector.connect(without(promises, denied(server)), session_first=True)
    except InterlockError as refused:
        if spoken is not Era.STATELESS or server.sessions == "private":
            raise
        # The main connection works: better that than nothing.
        none = NoSessionsError(refused.failure, refused.message)
        gone = refused if isinstance(refused, UpstreamGoneError) else None
        none.lasting = gone is None or 400 <= gone.status < 500
        raise none from None
    if spoken is Era.STATELESS and not peer.link.session_offered and server.sessions != "private":
        # It speaks the older wire too, but remembers nobody: then the newer one is better.
        await peer.close()
        raise NoSessionsError(UPSTREAM_UNAVAILABLE, f"{key} gives no sessions.")
    return peer
