"""Hearing about changes, for whoever watches no resources."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from interlock.upstreams.hearing import Hearing
from interlock.upstreams.peer import Peer


async def watch_changes(
    peer: Peer, *, relist: Callable[[], None], sleep: Callable[[float], Awaitable[None]]
) -> None:
    """Keep open what a peer announces changes on, for as long as it lives."""
    await Hearing(peer, relist=relist, sleep=sleep).keep()
