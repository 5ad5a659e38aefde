"""Hearing about changes: the streams on which an upstream says that its list is a new one.

A session server speaks on the stream that a GET opens, a stateless one on the answer of
`subscriptions/listen`. Both end now and then; they are opened again, and since something may have
changed meanwhile, the list is read again then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from interlock.call import UpstreamAnsweredError, UpstreamGoneError
from interlock.errors import Failure, InterlockError
from interlock.protocol import mcp
from interlock.upstreams.links.http import HttpLink
from interlock.upstreams.peer import Peer

_REOPEN_AFTER: Final = 1.0
_REOPEN_AT_MOST: Final = 60.0


class _StreamTicket:
    """Stands for the GET stream of a session: it has no answer, only an end."""

    def __init__(self) -> None:
        self.id = 0
        self.carrier: Any = None
        self.open = True
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def fail(
        self, failure: Failure, message: str, *, sent: bool, status: int = 0, location: str = ""
    ) -> None:
        self.open = False
        if not self.over.done():
            self.over.set_result(status)


async def watch_changes(
    peer: Peer, *, relist: Callable[[], None], sleep: Callable[[float], Awaitable[None]]
) -> None:
    """Keep a change stream open for as long as the peer lives."""
    tools = peer.capabilities.get("tools")
    announces = isinstance(tools, dict) and bool(tools.get("listChanged"))
    if not announces:
        return
    link = peer.link
    wait = _REOPEN_AFTER
    loop = asyncio.get_running_loop()
    while not peer.closed.done():
        opened = loop.time()
        if peer.era is mcp.Era.STATELESS:
            again = await _listen(peer)
        elif isinstance(link, HttpLink):
            again = await _get_stream(link)
        else:
            # On one shared channel the announcements come by themselves.
            return
        if not again or peer.closed.done():
            return
        # A stream that lasted was a good one; one that breaks at once must not be hammered.
        wait = _REOPEN_AFTER if loop.time() - opened > wait else min(wait * 2, _REOPEN_AT_MOST)
        await sleep(wait)
        relist()


async def _listen(peer: Peer) -> bool:
    exchange = peer.request(
        mcp.LISTEN, {"notifications": {"toolsListChanged": True}}, stays_open=True
    )
    try:
        await exchange
    except UpstreamAnsweredError:
        return False
    except UpstreamGoneError as gone:
        return _may_come_back(gone.status)
    except InterlockError:
        return False
    except asyncio.CancelledError:
        exchange.abandon("The node no longer listens.")
        raise
    return True


async def _get_stream(link: HttpLink) -> bool:
    ticket = _StreamTicket()
    link.open_stream(ticket)
    try:
        status = await ticket.over
    except asyncio.CancelledError:
        link.drop(ticket)
        raise
    return _may_come_back(status)


def _may_come_back(status: int) -> bool:
    """Whether a stream that ended like this is worth another try."""
    return status in (0, 200) or (status >= 500 and status != 501)
