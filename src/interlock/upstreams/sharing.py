"""Who shares the connection to an upstream, and who gets one of its own."""

from __future__ import annotations

from enum import Enum

from interlock.config import ServerConfig
from interlock.protocol.mcp import Era
from interlock.upstreams.peer import Peer


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
