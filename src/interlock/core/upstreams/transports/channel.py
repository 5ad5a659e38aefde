"""A transport over a channel that a subserver opened. Both sides send requests on it."""

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
    """Carries requests over a channel that exists already."""

    receiver: TransportReceiver

    def __init__(
        self, label: str, channel: Channel, on_closed: Callable[[str], None] | None = None
    ) -> None:
        """
        Args:
            on_closed: called once with the reason, before the receiver.
        """
        self.label = label
        self.channel = channel
        self.receiver = EarlyReceiver()
        self._on_closed = on_closed
        self._is_closed = False

    def listen(self) -> None:
        """Begin to deliver messages. Call it when the receiver is attached."""
        self.channel.on_close = self.on_channel_closed
        # The receiver's own method, without an indirection: every response passes here.
        self.channel.on_message = self.receiver.deliver

    def on_channel_closed(self, reason: str) -> None:
        """Report that the channel is closed or about to close."""
        if not self._is_closed:
            self._end(reason)
            self.receiver.on_transport_lost(reason)

    def _end(self, reason: str) -> None:
        self._is_closed = True
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed(reason)

    # -- UpstreamTransport

    def send(self, request: TransportRequest, payload: bytes, headers: bytes) -> None:
        if self._is_closed or not self.channel.is_open:
            request.fail(UPSTREAM_LOST, f"{self.label} is not connected.", was_sent=False)
            return
        self.channel.send(payload)

    def send_long_lived(self, request: TransportRequest, payload: bytes, headers: bytes) -> None:
        self.send(request, payload, headers)

    def post(self, payload: bytes, headers: bytes) -> None:
        self.channel.send(payload)

    async def post_and_wait(self, payload: bytes) -> None:
        # Messages are read in the order in which they are sent.
        self.channel.send(payload)

    def remove_request(self, request: TransportRequest) -> None:
        """Do nothing: a response with an unknown id is ignored."""

    def hang_up(self) -> None:
        """Close the channel without waiting for the other side."""
        if not self._is_closed:
            self._end("closed by the node")
        self.channel.close()

    async def close(self) -> None:
        self.hang_up()
        await self.channel.wait_closed()
