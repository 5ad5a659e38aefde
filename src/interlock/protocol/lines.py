"""Newline-delimited framing, as MCP speaks it over stdio: one JSON text to a line.

Bytes in, lines out, and back. Pure: it holds a buffer and nothing else. What a line means is
`jsonrpc`'s business.
"""

from __future__ import annotations

from typing import Final

import msgspec

from interlock.errors import INVALID_REQUEST, PAYLOAD_TOO_LARGE, ProtocolError

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""A longer line is refused unless the decoder is told otherwise."""

_HEAD_BYTES: Final = 256


class OversizeLine(msgspec.Struct, frozen=True):
    """A line over the limit, in the place where the line would have been.

    It is an item of the list and not an exception, so that the lines around it are not lost.
    `head` is how the line began: enough to find the id of the call that it would have answered.
    """

    limit: int
    head: bytes

    def error(self) -> ProtocolError:
        return ProtocolError(
            f"A line is longer than {self.limit} bytes and was dropped. "
            "Send less at a time, or raise the limit.",
            PAYLOAD_TOO_LARGE,
            {"limit": self.limit},
        )


class LineDecoder:
    """Cuts a stream of bytes into lines. Blank lines are skipped, `\\r\\n` counts as a line end.

    The limit is on the bytes before the `\\n`. An oversize line is reported once, as soon as it
    is known to be one, and dropped up to its newline: never more than the limit is kept.
    """

    __slots__ = ("_buffer", "_dropping", "_max_bytes")

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        if max_bytes < 1:
            raise ValueError("max_bytes must be at least 1")
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._dropping = False

    @property
    def pending(self) -> int:
        """How many bytes of an unfinished line are kept."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes | OversizeLine]:
        """The lines that `data` completes, without their line ends."""
        end = data.find(b"\n")
        # By far the most usual: exactly one line, whole, in one read.
        if (
            end == len(data) - 1
            and end > 0
            and not self._buffer
            and not self._dropping
            and end <= self._max_bytes
        ):
            line = data[:-2] if data[end - 1] == 13 else data[:-1]
            return [line] if line and not line.isspace() else []
        out: list[bytes | OversizeLine] = []
        if end < 0:
            if not self._dropping:
                self._keep(data, out)
            return out
        pieces = data.split(b"\n")
        tail = pieces.pop()
        if self._dropping:
            self._dropping = False
            del pieces[0]
        elif self._buffer:
            pieces[0] = b"".join((self._buffer, pieces[0]))
            self._buffer.clear()
        for line in pieces:
            if len(line) > self._max_bytes:
                out.append(self._oversize(line))
                continue
            if line.endswith(b"\r"):
                line = line[:-1]
            if line and not line.isspace():
                out.append(line)
        if tail:
            self._keep(tail, out)
        return out

    def close(self) -> bytes | None:
        """The line that the end of the stream cut off, or None. The decoder is then as new."""
        tail = bytes(self._buffer).removesuffix(b"\r")
        self._buffer.clear()
        self._dropping = False
        return tail if tail and not tail.isspace() else None

    def _keep(self, data: bytes, out: list[bytes | OversizeLine]) -> None:
        room = self._max_bytes - len(self._buffer)
        if len(data) <= room:
            self._buffer += data
            return
        self._buffer += data[:_HEAD_BYTES]
        out.append(self._oversize(self._buffer))
        self._buffer.clear()
        self._dropping = True

    def _oversize(self, line: bytes | bytearray) -> OversizeLine:
        return OversizeLine(self._max_bytes, bytes(line[: min(_HEAD_BYTES, self._max_bytes)]))


def encode_line(payload: bytes) -> bytes:
    """`payload` as a line.

    It must not be blank or hold a line end: `jsonrpc.on_one_line` takes those out of a JSON text.
    """
    if b"\n" in payload or b"\r" in payload:
        raise ProtocolError(
            "A message that is to be one line holds a line end: put its JSON on one line first.",
            INVALID_REQUEST,
        )
    if not payload or payload.isspace():
        raise ProtocolError("A blank message cannot be sent as a line.", INVALID_REQUEST)
    return payload + b"\n"
