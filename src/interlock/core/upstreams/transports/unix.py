"""A link to a node's Unix socket: newline-delimited messages, as over stdio, without a process.

It is how this user's other programs speak to a running node, and, over a pair of sockets, to one
that they run themselves.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any, Final

from interlock.core.upstreams.transports.transport import (
    EarlyReceiver,
    SingleChannel,
    TransportReceiver,
    TransportRequest,
)
from interlock.errors import UPSTREAM_LOST, UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol.jsonrpc import remove_line_breaks
from interlock.protocol.lines import LineDecoder, OversizeLine

MAX_LINE: Final = 256 * 1024 * 1024
"""What comes from one's own node is believed, up to here: a list of all its tools is one line."""


class UnixTransport(SingleChannel, asyncio.Protocol):
    """One connection."""

    receiver: TransportReceiver

    def __init__(self, label: str) -> None:
        self.label = label
        self.receiver = EarlyReceiver()
        self._lines = LineDecoder(MAX_LINE)
        self._transport: Any = None
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, label: str, path: Path) -> UnixTransport:
        """Raises InterlockError when nobody listens there."""
        try:
            _, link = await asyncio.get_running_loop().create_unix_connection(
                lambda: cls(label), str(path)
            )
        except OSError as error:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"{label} cannot be reached at {path}: {error.strerror}."
            ) from None
        return link

    @classmethod
    async def over(cls, label: str, end: socket.socket) -> UnixTransport:
        """A link over a socket that is connected already."""
        _, link = await asyncio.get_running_loop().create_unix_connection(
            lambda: cls(label), sock=end
        )
        return link

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if isinstance(line, OversizeLine):
                self.receiver.lost(line.error().message)
                self._transport.abort()
            else:
                self.receiver.deliver(line, None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._gone.done():
            self._gone.set_result(None)
        self.receiver.lost("it closed the connection" if exc is None else str(exc))

    # -- Link

    def send(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        if self._transport.is_closing():
            ticket.fail(UPSTREAM_LOST, f"{self.label} is not connected.", sent=False)
            return
        self._transport.write(remove_line_breaks(payload) + b"\n")

    def send_open(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        self.send(ticket, payload, headers)

    def post(self, payload: bytes, headers: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(remove_line_breaks(payload) + b"\n")

    async def hand_over(self, payload: bytes) -> None:
        # What is written first is read first.
        self.post(payload, b"")

    def drop(self, ticket: TransportRequest) -> None:
        """Nothing to do: the answer comes with an id that nobody waits for, and is dropped."""

    async def close(self) -> None:
        self._transport.close()
        await self._gone
