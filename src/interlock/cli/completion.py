"""Completing tool names while a person types: from the running node, and only if it is quick."""

from __future__ import annotations

from typing import Final

_QUICK: Final = 0.5


def complete_tool(incomplete: str) -> list[str]:
    """The tools whose names begin so. Nothing when no node is running: a Tab must not wait."""
    import asyncio

    from interlock.errors import InterlockError

    try:
        return asyncio.run(_names(incomplete))
    except (InterlockError, TimeoutError, OSError):
        # There is nobody at a Tab who could read a message.
        return []


async def _names(incomplete: str) -> list[str]:
    import asyncio

    import msgspec

    from interlock.core.upstreams.client import UpstreamClient
    from interlock.core.upstreams.listing import list_tools
    from interlock.core.upstreams.negotiation import open_peer
    from interlock.terminal import config_source, node_client

    async with asyncio.timeout(_QUICK):
        link = await node_client.connect_if_running(
            *config_source.load_or_default(config_source.find_source_or_none(None))
        )
        if link is None:
            return []
        peer = UpstreamClient("the node", link, msgspec.json.encode(node_client.CLIENT_INFO))
        try:
            await open_peer(peer, session_first=False, timeout=_QUICK)
            tools = await list_tools(peer, timeout=_QUICK)
        finally:
            await peer.close()
    names = [msgspec.json.decode(tool)["name"] for tool in tools]
    return [name for name in names if name.startswith(incomplete)]
