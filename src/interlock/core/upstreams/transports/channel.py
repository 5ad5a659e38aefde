"""A link over a channel that a subserver opened: both sides speak on it."""

from __future__ import annotations

from collections.abc import Callable

from interlock.channels.channel import Channel
from interlock.core.upstreams.transports.transport import (
    EarlyReceiver,
    SingleChannel,
    TransportReceiver,
    TransportRequest,
)
from interlock.errors import UPSTREAM_LOST


class ChannelTransport(SingleChannel):
    """Takes a channel over: what comes on it goes to the peer from now on."""

    receiver: TransportReceiver

    def __init__(
        self, label: str, channel: Channel, on_closed: Callable[[str], None] | None = None
    ) -> None:
        """`on_closed` is told once, and before the peer, that the channel is of no use any more."""
        self.label = label
        self.channel = channel
        self.receiver = EarlyReceiver()
        self._on_closed = on_closed
        self._over = False

    def listen(self) -> None:
        """Begin to deliver. Call it when the peer is there."""
        self.channel.on_close = self.lost
        # The peer itself, and no step between: this is where every answer passes.
        self.channel.on_message = self.receiver.deliver

    def lost(self, reason: str) -> None:
        """The channel is closed, or is about to be: everybody who waits is told."""
        if not self._over:
            self._end(reason)
            self.receiver.lost(reason)

    def _end(self, reason: str) -> None:
        self._over = True
        tell, self._on_closed = self._on_closed, None
        if tell is not None:
            tell(reason)

    # -- Link

    def send(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        if self._over or not self.channel.is_open:
            ticket.fail(UPSTREAM_LOST, f"{self.label} is not connected.", sent=False)
            return
        self.channel.send(payload)

    def send_open(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        self.send(ticket, payload, headers)

    def post(self, payload: bytes, headers: bytes) -> None:
        self.channel.send(payload)

    async def hand_over(self, payload: bytes) -> None:
        # What is sent first is read first.
        self.channel.send(payload)

    def drop(self, ticket: TransportRequest) -> None:
        """Nothing to do: the answer comes with an id that nobody waits for, and is dropped."""

    def hang_up(self) -> None:
        """Close it without waiting for the other side, which has a moment to agree."""
        if not self._over:
            self._end("closed by the node")
        self.channel.close()

    async def close(self) -> None:
        self.hang_up()
        await self.channel.wait_closed()
