"""A transport over a node's Unix socket: newline-delimited messages, as over stdio.

Programs of the same user speak to a running node by it, and to a node of their own over a pair of
sockets.
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

MAX_LINE_BYTES: Final = 256 * 1024 * 1024
"""A larger limit than for other upstreams: the peer is the user's own node, and the list of all its
tools is one line."""


class UnixTransport(SingleChannel, asyncio.Protocol):
    """One connection to a node."""

    receiver: TransportReceiver

    def __init__(self, label: str) -> None:
        self.label = label
        self.receiver = EarlyReceiver()
        self._lines = LineDecoder(MAX_LINE_BYTES)
        self._transport: Any = None
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, label: str, path: Path) -> UnixTransport:
        """Connect to the socket at `path`. Raises InterlockError if no node listens there."""
        try:
            _, transport = await asyncio.get_running_loop().create_unix_connection(
                lambda: cls(label), str(path)
            )
        except OSError as error:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"{label} cannot be reached at {path}: {error.strerror}."
            ) from None
        return transport

    @classmethod
    async def attach(cls, label: str, connected_socket: socket.socket) -> UnixTransport:
        """Return a transport over a socket that is connected already."""
        _, transport = await asyncio.get_running_loop().create_unix_connection(
            lambda: cls(label), sock=connected_socket
        )
        return transport

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if isinstance(line, OversizeLine):
                self.receiver.on_transport_lost(line.error().message)
                self._transport.abort()
            else:
                self.receiver.deliver(line, None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        self.receiver.on_transport_lost("it closed the connection" if exc is None else str(exc))

    # -- UpstreamTransport

    def send(self, request: TransportRequest, payload: bytes, headers: bytes) -> None:
        if self._transport.is_closing():
            request.fail(UPSTREAM_LOST, f"{self.label} is not connected.", was_sent=False)
            return
        self._transport.write(remove_line_breaks(payload) + b"\n")

    def send_long_lived(self, request: TransportRequest, payload: bytes, headers: bytes) -> None:
        self.send(request, payload, headers)

    def post(self, payload: bytes, headers: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(remove_line_breaks(payload) + b"\n")

    async def post_and_wait(self, payload: bytes) -> None:
        # Messages are read in the order in which they are written.
        self.post(payload, b"")

    def remove_request(self, request: TransportRequest) -> None:
        """Do nothing: a response with an unknown id is ignored."""

    async def close(self) -> None:
        self._transport.close()
        await self._closed
