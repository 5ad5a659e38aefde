"""Opens a channel to a parent, and understands one that does not let anybody in."""

from __future__ import annotations

import ssl
from typing import Protocol

from interlock.channels.channel import Channel
from interlock.channels.tls import client_context
from interlock.config import ParentConfig
from interlock.errors import InterlockError
from interlock.faces.ax.refusal import refusal_at_the_door


class Dial(Protocol):
    """Opens a channel to a parent. Raises InterlockError."""

    async def __call__(
        self, url: str, *, bearer: str | None = None, ssl: ssl.SSLContext | None = None
    ) -> Channel: ...


async def reach(url: str, settings: ParentConfig, dial: Dial) -> Channel:
    """An open channel. Raises InterlockError."""
    secure = None
    if url.lower().startswith("wss:"):
        # Read anew each time: certificates are renewed while a node runs.
        secure = client_context(settings.ca, settings.certificate, settings.key)
    try:
        return await dial(url, bearer=settings.token, ssl=secure)
    except InterlockError as error:
        raise refusal_at_the_door(error) from None
