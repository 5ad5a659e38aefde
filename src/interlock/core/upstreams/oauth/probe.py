"""What an MCP server says to somebody without a token: the challenge that a sign-in begins with."""

from __future__ import annotations

from typing import Final

import msgspec

from interlock import __version__
from interlock.core.config import ServerConfig
from interlock.core.upstreams.oauth.challenge import BearerChallenge, bearer_challenge
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.fetch import Fetch
from interlock.protocol import mcp

_QUESTION: Final = msgspec.json.encode(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": mcp.DISCOVER,
        "params": {
            "_meta": {
                mcp.META_VERSION: mcp.LATEST_STATELESS,
                mcp.META_CLIENT_INFO: {"name": "interlock", "version": __version__},
                mcp.META_CLIENT_CAPABILITIES: {},
            }
        },
    }
)
_HEADERS: Final = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "MCP-Protocol-Version": mcp.LATEST_STATELESS,
    "Mcp-Method": mcp.DISCOVER,
}


async def challenge_of(server: ServerConfig, fetch: Fetch) -> BearerChallenge | None:
    """The challenge of a server, by a request that changes nothing; None when it has none.

    Raises Trouble when nobody answers there.
    """
    url = server.url or ""
    if server.transport != "sse":
        answer = await fetch("POST", url, {**server.headers, **_HEADERS}, _QUESTION)
    if server.transport == "sse" or answer.status == 405:
        # The old transport begins with a stream.
        answer = await fetch("GET", url, {**server.headers, "Accept": "text/event-stream"})
    if answer.status >= 500:
        raise SignInProblem(f"it answered with HTTP {answer.status}.", passing=True)
    if answer.status not in (401, 403):
        return None
    return bearer_challenge(answer.headers.get(b"www-authenticate", b"").decode("latin-1"))
