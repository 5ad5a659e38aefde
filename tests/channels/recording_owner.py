"""An owner of a channel that records messages and the close reason."""

from __future__ import annotations

import asyncio

from interlock.channels.channel import Channel


class RecordingOwner:
    def __init__(self, channel: Channel) -> None:
        self.messages: list[bytes] = []
        self.closed: list[str] = []
        self._heard = asyncio.Event()
        channel.on_close = self._close
        channel.on_message = self._take

    def _take(self, payload: bytes) -> None:
        assert type(payload) is bytes
        assert not self.closed
        self.messages.append(payload)
        self._heard.set()

    def _close(self, why: str) -> None:
        self.closed.append(why)
        self._heard.set()

    async def wait_for_messages(self, count: int = 1) -> list[bytes]:
        """The first `count` messages."""
        while len(self.messages) < count:
            assert not self.closed, self.closed
            self._heard.clear()
            await self._heard.wait()
        return self.messages

    async def wait_until_closed(self) -> str:
        while not self.closed:
            self._heard.clear()
            await self._heard.wait()
        (why,) = self.closed
        return why
