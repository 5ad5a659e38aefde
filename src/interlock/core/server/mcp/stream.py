"""MCP over a stream of lines: stdio or the Unix socket of the node. Both protocol generations use
the same channel."""

from __future__ import annotations

import asyncio
import logging
import select
from collections.abc import Callable
from typing import Final, cast

from interlock.core.call import Credentials
from interlock.core.pipeline.authentication import LOCAL_PEER
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.server.mcp.change_notifications import ChangeListeners
from interlock.core.server.mcp.conversation import Conversation
from interlock.core.server.mcp.server_info import ServerInfo
from interlock.core.server.mcp.views import Views
from interlock.protocol.jsonrpc import NULL, remove_line_breaks
from interlock.protocol.lines import LineDecoder, OversizeLine

FACE: Final = "stream"
_MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024
_CREDENTIALS: Final = Credentials(LOCAL_PEER)

_log = logging.getLogger("interlock.server")


class McpStream:
    """A client on a channel of lines. It receives bytes and writes complete lines."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        server_info: ServerInfo,
        listeners: ChangeListeners,
        write: Callable[[bytes], None],
        max_line: int,
        views: Views | None = None,
    ) -> None:
        self._write = write
        self._lines = LineDecoder(max_line)
        self._conversation = Conversation(
            pipeline=pipeline,
            server_info=server_info,
            listeners=listeners,
            send=self._send,
            face=FACE,
            credentials=_CREDENTIALS,
            views=None if views is None else views.local,
        )

    def feed(self, data: bytes) -> None:
        """Process bytes from the client."""
        for line in self._lines.feed(data):
            if isinstance(line, OversizeLine):
                self._conversation.send_error(NULL, line.error(), None)
            else:
                self._conversation.process_message(line)

    def closed(self) -> None:
        """Cancel the client's calls and end its session. The client has disconnected."""
        self._conversation.closed()

    async def drained(self) -> None:
        """Wait until every open request has its response."""
        await self._conversation.drained()

    def _send(self, payload: bytes) -> None:
        self._write(remove_line_breaks(payload) + b"\n")


class McpStreamServer(asyncio.Protocol):
    """The connection of a client over a Unix socket."""

    def __init__(
        self,
        make: Callable[[Callable[[bytes], None]], McpStream],
        connected: set[McpStreamServer] | None = None,
    ) -> None:
        """Create the connection.

        Args:
            make: creates the stream, from the function that writes to the client.
            connected: contains this object while its client is connected.
        """
        self._make = make
        self._connected = set() if connected is None else connected
        self._stream: McpStream | None = None
        self._transport: asyncio.Transport | None = None
        self._finish_task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods, but not the base class.
        self._transport = cast("asyncio.Transport", transport)
        self._stream = self._make(self._write)
        self._connected.add(self)

    def data_received(self, data: bytes) -> None:
        if self._stream is not None:
            self._stream.feed(data)

    def eof_received(self) -> bool:
        """Finish the open requests, unless the client has closed both directions."""
        if self._transport is not None and _is_peer_closed(self._transport):
            return False
        if self._stream is not None:
            # The last line may lack its line break.
            self._stream.feed(b"\n")
            self._finish_task = asyncio.get_running_loop().create_task(self._finish(self._stream))
        return True

    async def _finish(self, stream: McpStream) -> None:
        await stream.drained()
        if self._transport is not None:
            self._transport.close()

    def stop(self) -> None:
        """Close the connection. The node stops, and every request has its response."""
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connected.discard(self)
        if self._finish_task is not None:
            self._finish_task.cancel()
        if self._stream is not None:
            self._stream.closed()
            self._stream = None

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            _log.warning(
                "local client: %d bytes of responses are unread. Closing the connection.",
                transport.get_write_buffer_size(),
            )
            transport.abort()
            return
        transport.write(data)


def _is_peer_closed(transport: asyncio.Transport) -> bool:
    """Return whether the peer of a Unix socket has closed both directions, not only its sending
    direction."""
    try:
        poller = select.poll()
        poller.register(transport.get_extra_info("socket").fileno(), 0)
        return any(events & select.POLLHUP for _, events in poller.poll(0))
    except (AttributeError, OSError, ValueError):
        # The system has no poll, or the socket is closed already. The next write will fail.
        return False
