"""Dials another node by its URL: `ws://`, `wss://` or `unix:`."""

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
    """An open channel. Raises InterlockError: UPSTREAM_UNAVAILABLE when there is none to be had
    (`data["status"]` when the other side refused), CONFIG when nobody knows such a URL.

    On a Unix socket the system says who may come: `bearer` is not sent there.
    """
    scheme, _, rest = url.partition(":")
    if scheme in ("ws", "wss"):
        return await websocket.dial(
            url, bearer=bearer, ssl=ssl, max_message=max_message, timeout=timeout
        )
    if scheme == "unix":
        path = rest.removeprefix("//")
        return await lines.dial_unix(path, max_message=max_message, timeout=timeout)
    # Without the URL, which may hold a secret.
    raise InterlockError(
        CONFIG, f"{scheme!r} cannot be dialled: use wss://host/ax, ws://host/ax or unix:/path."
    )
