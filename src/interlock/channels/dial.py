"""Opens a channel to another node by its URL: `ws://`, `wss://` or `unix:`."""

from __future__ import annotations

from ssl import SSLContext

from interlock.channels import lines, websocket
from interlock.channels.channel import CONNECTING, MAX_MESSAGE, Channel
from interlock.errors import CONFIG, InterlockError


async def dial(
    url: str,
    *,
    bearer: str | None = None,
    ssl: SSLContext | None = None,
    max_message: int = MAX_MESSAGE,
    timeout: float = CONNECTING,
) -> Channel:
    """Open a channel.

    On a Unix socket the system identifies the user: `bearer` is not sent there.

    Raises:
        InterlockError: UPSTREAM_UNAVAILABLE if the peer cannot be reached or rejects the connection
            (`data["status"]` has its HTTP status), CONFIG for an unknown URL scheme.
    """
    scheme, _, rest = url.partition(":")
    if scheme in ("ws", "wss"):
        return await websocket.dial(
            url, bearer=bearer, ssl=ssl, max_message=max_message, timeout=timeout
        )
    if scheme == "unix":
        path = rest.removeprefix("//")
        return await lines.dial_unix(path, max_message=max_message, timeout=timeout)
    # Without the URL, which may contain a secret.
    raise InterlockError(
        CONFIG,
        f"Unknown URL scheme {scheme[:40]!r}. Use wss://host/ax, ws://host/ax or unix:/path.",
    )
