"""Completion of tool names in a shell, from the running node."""

from __future__ import annotations

from typing import Final

_TIMEOUT_SECONDS: Final = 0.5


def complete_tool(incomplete: str) -> list[str]:
    """Return the tools whose names begin with a text.

    Return nothing if no node is running or the node is slow, because the user waits.
    """
    import asyncio

    from interlock.errors import InterlockError

    try:
        return asyncio.run(_find_names(incomplete))
    except (InterlockError, TimeoutError, OSError):
        # A completion cannot show an error message.
        return []


async def _find_names(incomplete: str) -> list[str]:
    import asyncio

    import msgspec

    from interlock.core.upstreams.client import UpstreamClient
    from interlock.core.upstreams.listing import list_tools
    from interlock.core.upstreams.negotiation import negotiate_revision
    from interlock.terminal import config_source, node_client

    async with asyncio.timeout(_TIMEOUT_SECONDS):
        transport = await node_client.connect_if_running(
            *config_source.load_or_default(config_source.find_source_or_none(None))
        )
        if transport is None:
            return []
        upstream_client = UpstreamClient(
            "the node", transport, msgspec.json.encode(node_client.CLIENT_INFO)
        )
        try:
            await negotiate_revision(upstream_client, session_first=False, timeout=_TIMEOUT_SECONDS)
            tools = await list_tools(upstream_client, timeout=_TIMEOUT_SECONDS)
        finally:
            await upstream_client.close()
    names = [msgspec.json.decode(tool)["name"] for tool in tools]
    return [name for name in names if name.startswith(incomplete)]
