"""How long a first list of tools waits for servers that are still starting.

A client that asks for tools wants most of them soon, not all of them late: one server that hangs
must not hold up the others, and whoever listens is told when its tools come after all.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from interlock.node import Node

NONE_READY_WITHIN: Final = 10.0
OTHERS_WITHIN: Final = 2.0


async def until_worth_listing(
    node: Node, *, none_ready: float = NONE_READY_WITHIN, others: float = OTHERS_WITHIN
) -> None:
    """Wait until every upstream was tried; but no longer than `others` after the first is ready,
    and no longer than `none_ready` in all while none is."""
    settled: asyncio.Future[Any] = asyncio.ensure_future(node.until_settled(none_ready))
    waiting: set[asyncio.Future[Any]] = {
        asyncio.ensure_future(node.supervisor(key).until_ready(none_ready))
        for key in node.config.enabled_servers
    }
    try:
        one_ready = False
        while waiting and not one_ready and not settled.done():
            done, _ = await asyncio.wait({settled, *waiting}, return_when=asyncio.FIRST_COMPLETED)
            tried = done & waiting
            waiting -= tried
            one_ready = any(one.result() for one in tried)
        await asyncio.wait({settled}, timeout=others if one_ready else None)
    finally:
        for one in (settled, *waiting):
            one.cancel()
        await asyncio.gather(settled, *waiting, return_exceptions=True)
