"""Channels of lines, with one JSON text per line: Unix sockets, stdio, or any stream of bytes.

Lines have no close frame: a channel is closed by closing its stream, and close codes and reasons
are not sent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from interlock.channels.channel import (
    CLOSED_HERE,
    CLOSING,
    CONNECTING,
    DOES_NOT_READ,
    LOCAL,
    MAX_MESSAGE,
    MAX_UNREAD_BYTES,
    Endpoint,
)
from interlock.errors import CONFIG, UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol.jsonrpc import remove_line_breaks
from interlock.protocol.lines import LineDecoder, OversizeLine

_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2


class LinesChannel(Endpoint):
    """A channel over any stream: received bytes are passed to `feed`, and it writes complete lines.

    `close_stream(at_once)` closes the stream and discards unwritten data if `at_once`. The owner of
    the stream calls `on_end` when the stream has ended, also after that.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        close_stream: Callable[[bool], object],
        *,
        label: str,
        peer: str = LOCAL,
        unread: Callable[[], int] | None = None,
        max_message: int = MAX_MESSAGE,
    ) -> None:
        """
        Args:
            unread: returns the number of bytes that wait to be written. None: unknown.
        """
        super().__init__(peer=peer, label=label)
        self._write = write
        self._close_stream = close_stream
        self._unread = unread
        self._lines = LineDecoder(max_message)

    def feed(self, data: bytes) -> None:
        """Read bytes from the peer."""
        for line in self._lines.feed(data):
            if isinstance(line, OversizeLine):
                self._abort(f"it sent a message of more than {line.limit} bytes")
                return
            self._deliver(line)

    def on_end(self, reason: str = "it closed the channel") -> None:
        """Handle the end of the stream."""
        # The last line may have no line end.
        if (tail := self._lines.close()) is not None:
            self._deliver(tail)
        self._end(reason)
        self._on_connection_closed()

    def send(self, payload: bytes) -> None:
        if not self.is_open:
            return
        if self._unread is not None and self._unread() > MAX_UNREAD_BYTES:
            self._abort(DOES_NOT_READ)
            return
        self._write(remove_line_breaks(payload) + b"\n")

    def close(self, code: int = 1000, reason: str = "") -> None:
        if not self.is_open:
            return
        self._stop_delivery(CLOSED_HERE)
        self._close_stream(False)

    def _abort(self, reason: str) -> None:
        self._stop_delivery(reason)
        self._close_stream(True)


class LinesServerProtocol(LinesChannel, asyncio.Protocol):
    """The channel of a client that connected to a socket. It is passed to `accept`."""

    def __init__(
        self,
        accept: Callable[[LinesChannel], object] | None = None,
        *,
        label: str,
        max_message: int = MAX_MESSAGE,
    ) -> None:
        super().__init__(_unconnected, self._close_socket, label=label, max_message=max_message)
        self._accept = accept
        self._transport: Any = None
        self._close_timer: asyncio.TimerHandle | None = None

    # An alias saves one method call per message.
    data_received = LinesChannel.feed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=MAX_UNREAD_BYTES)
        self._write = self._transport.write
        if self._accept is not None:
            self._accept(self)

    def pause_writing(self) -> None:
        self._abort(DOES_NOT_READ)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._close_timer is not None:
            self._close_timer.cancel()
        self.on_end("it closed the channel" if exc is None else f"the connection was lost: {exc}")

    def _close_socket(self, at_once: bool) -> None:
        if at_once:
            self._transport.abort()
            return
        self._transport.close()
        # After this time the peer will not read the remaining data.
        self._close_timer = asyncio.get_running_loop().call_later(CLOSING, self._transport.abort)


async def dial_unix(
    path: str, *, max_message: int = MAX_MESSAGE, timeout: float = CONNECTING
) -> LinesChannel:
    """Open a channel to a Unix socket. Raises InterlockError if no process listens there."""
    make = partial(LinesServerProtocol, label=f"unix:{path}", max_message=max_message)
    try:
        async with asyncio.timeout(timeout):
            _, channel = await asyncio.get_running_loop().create_unix_connection(make, path)
    except TimeoutError:
        reason = f"no response within {timeout:g} s"
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        return channel
    raise InterlockError(
        UPSTREAM_UNAVAILABLE,
        f"Cannot reach the node at unix:{path}: {reason}. Start it: `interlock up`.",
    )


async def open_stdio(*, max_message: int = MAX_MESSAGE) -> LinesChannel:
    """Open a channel on stdin and stdout of this process, which must be pipes or sockets.

    The channel owns them: later output to stdout goes to stderr, and stdin is empty for other
    readers. Raises InterlockError if they are neither pipes nor sockets.
    """
    channel = _StdioChannel(max_message)
    reading, writing = os.dup(_STDIN), os.dup(_STDOUT)
    null_device = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_device, _STDIN)
    os.close(null_device)
    os.dup2(_STDERR, _STDOUT)
    try:
        await channel.attach(reading, writing)
    except (OSError, ValueError) as error:
        raise InterlockError(
            CONFIG,
            f"Cannot use stdin and stdout as a channel: {error}. Both must be pipes. They are if "
            "the parent node starts this program.",
        ) from None
    return channel


class _StdioChannel(LinesChannel):
    """A channel of two pipes, one for each direction. It ends when one of them ends."""

    def __init__(self, max_message: int) -> None:
        super().__init__(
            _unconnected,
            self._close_pipes,
            label="stdio",
            unread=lambda: self._out.get_write_buffer_size(),
            max_message=max_message,
        )
        self._in: Any = None
        self._out: Any = None
        self._open_pipes = 2
        self._close_timer: asyncio.TimerHandle | None = None

    async def attach(self, reading: int, writing: int) -> None:
        loop = asyncio.get_running_loop()
        # uvloop closes the descriptor and then the object, asyncio only the object.
        owns_descriptor = isinstance(loop, asyncio.BaseEventLoop)
        make = partial(_Pipe, self)
        end: Any = PipeEnd(writing, owns_descriptor=owns_descriptor)
        self._out, _ = await loop.connect_write_pipe(make, end)
        self._write = self._out.write
        end = PipeEnd(reading, owns_descriptor=owns_descriptor)
        try:
            self._in, _ = await loop.connect_read_pipe(make, end)
        except BaseException:
            self._out.abort()
            raise

    def pipe_lost(self) -> None:
        self._open_pipes -= 1
        if self._open_pipes:
            self._close_pipes(False)
            return
        if self._close_timer is not None:
            self._close_timer.cancel()
        self.on_end()

    def _close_pipes(self, at_once: bool) -> None:
        if self._in is not None:
            self._in.close()
        if at_once:
            self._out.abort()
            return
        self._out.close()
        if self._close_timer is None:
            # After this time the peer will not read the remaining data.
            loop = asyncio.get_running_loop()
            self._close_timer = loop.call_later(CLOSING, self._out.abort)


class _Pipe(asyncio.Protocol):
    """The asyncio protocol of stdin or stdout."""

    def __init__(self, channel: _StdioChannel) -> None:
        self._channel = channel

    def data_received(self, data: bytes) -> None:
        self._channel.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel.pipe_lost()


class PipeEnd:
    """A file object for one end of a pipe, for an event loop. Its descriptor is closed only once.

    uvloop closes the descriptor itself and then the file object, when another thread may have got
    the same descriptor number. asyncio only closes the object.
    """

    def __init__(self, fd: int, *, owns_descriptor: bool) -> None:
        self._fd = fd
        self._owns_descriptor = owns_descriptor

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._owns_descriptor:
            self._owns_descriptor = False
            os.close(self._fd)


def _unconnected(_: bytes) -> None:
    """Do nothing: before the connection, no code has the channel."""
