"""Channels of lines, one JSON text to a line: Unix sockets, stdio, or whatever moves bytes.

Lines know nothing of a close frame: here a channel is closed by closing what it runs on, and
codes and reasons are not carried.
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
    """A channel over anything: it is fed what comes in, and writes whole lines.

    `hang_up(at_once)` closes what it runs on, dropping what is unwritten when `at_once`. Whoever
    moves the bytes says with `ended` when they have come to their end, also after that.
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
        """`unread`: how many bytes wait to be written, where somebody knows that."""
        super().__init__(peer=peer, label=label)
        self._write = write
        self._close_stream = close_stream
        self._unread = unread
        self._lines = LineDecoder(max_message)

    def feed(self, data: bytes) -> None:
        """Bytes from the other side."""
        for line in self._lines.feed(data):
            if isinstance(line, OversizeLine):
                self._abort(f"it sent a message of more than {line.limit} bytes")
                return
            self._deliver(line)

    def on_end(self, why: str = "it closed the channel") -> None:
        """No more bytes will come, and none can be sent."""
        # The last line may lack its end.
        if (tail := self._lines.close()) is not None:
            self._deliver(tail)
        self._end(why)
        self._on_connection_gone()

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

    def _abort(self, why: str) -> None:
        self._stop_delivery(why)
        self._close_stream(True)


class LinesServerProtocol(LinesChannel, asyncio.Protocol):
    """The channel of somebody who connected to a socket; `accept` is given it."""

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

    # One method less for every message.
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
        # What it has not read by then it will not read.
        self._close_timer = asyncio.get_running_loop().call_later(CLOSING, self._transport.abort)


async def dial_unix(
    path: str, *, max_message: int = MAX_MESSAGE, timeout: float = CONNECTING
) -> LinesChannel:
    """A channel to whoever listens there. Raises InterlockError when nobody does."""
    make = partial(LinesServerProtocol, label=f"unix:{path}", max_message=max_message)
    try:
        async with asyncio.timeout(timeout):
            _, channel = await asyncio.get_running_loop().create_unix_connection(make, path)
    except TimeoutError:
        why = f"it did not answer within {timeout:g} s"
    except OSError as error:
        why = error.strerror or str(error)
    else:
        return channel
    raise InterlockError(
        UPSTREAM_UNAVAILABLE, f"unix:{path} cannot be reached: {why}. Does the node run?"
    )


async def open_stdio(*, max_message: int = MAX_MESSAGE) -> LinesChannel:
    """The channel on this process's own stdin and stdout, which must be pipes or sockets.

    It takes them for itself: what anybody prints from now on goes to stderr, where it spoils
    nothing, and reading stdin finds nothing. Raises InterlockError when they are something else.
    """
    channel = _StdioChannel(max_message)
    reading, writing = os.dup(_STDIN), os.dup(_STDOUT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _STDIN)
    os.close(nothing)
    os.dup2(_STDERR, _STDOUT)
    try:
        await channel.attach(reading, writing)
    except (OSError, ValueError) as error:
        raise InterlockError(
            CONFIG,
            f"stdin and stdout are no channel: {error}. Both must be pipes, as they are when the "
            "parent node starts this program.",
        ) from None
    return channel


class _StdioChannel(LinesChannel):
    """Two pipes, one for each direction. It ends with either."""

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
        self._left = 2
        self._close_timer: asyncio.TimerHandle | None = None

    async def attach(self, reading: int, writing: int) -> None:
        loop = asyncio.get_running_loop()
        # uvloop closes the descriptor and then the object, asyncio only the object.
        closes_it = isinstance(loop, asyncio.BaseEventLoop)
        make = partial(_Pipe, self)
        end: Any = PipeEnd(writing, ours_to_close=closes_it)
        self._out, _ = await loop.connect_write_pipe(make, end)
        self._write = self._out.write
        end = PipeEnd(reading, ours_to_close=closes_it)
        try:
            self._in, _ = await loop.connect_read_pipe(make, end)
        except BaseException:
            self._out.abort()
            raise

    def pipe_lost(self) -> None:
        self._left -= 1
        if self._left:
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
            # What is not read by then will not be.
            loop = asyncio.get_running_loop()
            self._close_timer = loop.call_later(CLOSING, self._out.abort)


class _Pipe(asyncio.Protocol):
    """One direction of stdio."""

    def __init__(self, channel: _StdioChannel) -> None:
        self._channel = channel

    def data_received(self, data: bytes) -> None:
        self._channel.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel.pipe_lost()


class PipeEnd:
    """One end of a pipe, as a loop wants it. Exactly one party may close it.

    uvloop closes the descriptor itself and then the file object, whose number may be another
    thread's by then; asyncio leaves the closing to the object.
    """

    def __init__(self, fd: int, *, ours_to_close: bool) -> None:
        self._fd = fd
        self._ours_to_close = ours_to_close

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._ours_to_close:
            self._ours_to_close = False
            os.close(self._fd)


def _unconnected(_: bytes) -> None:
    """Not connected yet: nobody has the channel to send anything on it."""
