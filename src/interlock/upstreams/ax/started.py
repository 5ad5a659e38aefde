"""A child that the node starts and that speaks MCP-AX on its stdin and stdout."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from interlock.channels.channel import LOCAL, Endpoint
from interlock.upstreams.links.link import Receiver, Ticket
from interlock.upstreams.links.stdio import StdioLink


class StartedChannel(Endpoint):
    """The channel to a started child. What the child says before anybody listens is kept."""

    def __init__(self, process: StdioLink) -> None:
        super().__init__(peer=LOCAL, label=f"started as {process.label}")
        self._process = process
        self.stray = b""
        """The first line that was no message, of however many there were."""
        self.noise = 0

    # -- what the process brings

    def deliver(self, data: bytes, ticket: Ticket | None = None) -> None:
        if data[:1] != b"{" and (said := data.strip()) and said[:1] != b"{":
            self.noise += 1
            self.stray = self.stray or said
        self._deliver(data)

    def undelivered(self, id: int, why: str) -> None:
        """An answer was too long: whoever waits for it would wait for ever."""
        self._cut_off(why)

    def interrupted(self, ticket: Ticket) -> None:
        """There are no streams here."""

    def retired(self, reason: str) -> None:
        """There is one process, and it is there or not."""

    def lost(self, reason: str) -> None:
        self._over(reason)

    # -- Channel

    def send(self, payload: bytes) -> None:
        if self.open:
            self._process.post(payload, b"")

    def close(self, code: int = 1000, reason: str = "") -> None:
        if self.open:
            self._ignore("it was closed by this side")

    async def wait_closed(self) -> None:
        """Until the process has ended."""
        await self._process.close()
        self._over("the process has ended")
        self._vanished()

    def _cut_off(self, why: str) -> None:
        self._over(why)


class StartedChild(StdioLink):
    """The process. Its channel listens from the first moment on: such a child speaks first."""

    def __init__(
        self,
        label: str,
        stderr: deque[str] | None = None,
        mask: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__(label, stderr, mask)
        self.channel = StartedChannel(self)
        self.receiver: Receiver = self.channel
