"""A channel of two ends in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def _ignore(_: object) -> None:
    """Ignore a message."""


class ChannelEnd:
    """One end of a channel in memory. Messages arrive in the next turn of the loop."""

    def __init__(self, label: str) -> None:
        self.peer = "local"
        self.peer_names: tuple[str, ...] = ()
        self.label = label
        self.close_reason = ""
        self.on_message: Callable[[bytes], None] = _ignore
        self.on_close: Callable[[str], None] = _ignore
        self.is_open = True
        self.other: ChannelEnd

    def send(self, payload: bytes) -> None:
        if self.is_open:
            asyncio.get_running_loop().call_soon(self.other._arrived, payload)

    def close(self, code: int = 1000, reason: str = "") -> None:
        if self.is_open:
            self.is_open = False
            self.on_message = _ignore
            asyncio.get_running_loop().call_soon(self.other._ended, reason)

    async def wait_closed(self) -> None:
        return

    def _arrived(self, payload: bytes) -> None:
        if self.is_open:
            self.on_message(payload)

    def _ended(self, reason: str) -> None:
        if self.is_open:
            self.is_open = False
            self.close_reason = reason
            self.on_close("it closed the channel" + (f": {reason}" if reason else ""))


def channel_pair(label: str = "pair") -> tuple[ChannelEnd, ChannelEnd]:
    here, there = ChannelEnd(label), ChannelEnd(label)
    here.other, there.other = there, here
    return here, there
