"""Newline-delimited framing, as MCP uses it over stdio: one JSON text per line.

Converts bytes to lines and back. Pure: the only state is a buffer. `jsonrpc` decodes the lines.
"""

from __future__ import annotations

from typing import Final

import msgspec

from interlock.errors import INVALID_REQUEST, PAYLOAD_TOO_LARGE, ProtocolError

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""Default maximum length of a line."""

_HEAD_BYTES: Final = 256


class OversizeLine(msgspec.Struct, frozen=True):
    """A line over the limit, at its position in the list of lines.

    It is an item of the list and not an exception, so that the other lines are not lost. `head` is
    the beginning of the line, to find the id of the response.
    """

    limit: int
    head: bytes

    def error(self) -> ProtocolError:
        return ProtocolError(
            f"A line is longer than {self.limit} bytes and was discarded. "
            "Send smaller messages, or raise the limit.",
            PAYLOAD_TOO_LARGE,
            {"limit": self.limit},
        )


class LineDecoder:
    """Splits a stream of bytes into lines. Blank lines are skipped, `\\r\\n` is a line end.

    The limit counts the bytes before the `\\n`. An oversize line is reported once, as early as
    possible, and dropped up to its newline: the buffer never exceeds the limit.
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
        """The number of buffered bytes of an incomplete line."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes | OversizeLine]:
        """Return the lines that `data` completes, without their line ends."""
        end = data.find(b"\n")
        # The most frequent case: exactly one complete line in one read.
        if (
            end == len(data) - 1
            and end > 0
            and not self._buffer
            and not self._dropping
            and end <= self._max_bytes
        ):
            line = data[:-2] if data[end - 1] == 13 else data[:-1]
            return [line] if line and not line.isspace() else []
        lines: list[bytes | OversizeLine] = []
        if end < 0:
            if not self._dropping:
                self._append(data, lines)
            return lines
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
                lines.append(self._oversize(line))
                continue
            if line.endswith(b"\r"):
                line = line[:-1]
            if line and not line.isspace():
                lines.append(line)
        if tail:
            self._append(tail, lines)
        return lines

    def close(self) -> bytes | None:
        """Return the last line without a line end, or None, and reset the decoder."""
        tail = bytes(self._buffer).removesuffix(b"\r")
        self._buffer.clear()
        self._dropping = False
        return tail if tail and not tail.isspace() else None

    def _append(self, data: bytes, lines: list[bytes | OversizeLine]) -> None:
        available = self._max_bytes - len(self._buffer)
        if len(data) <= available:
            self._buffer += data
            return
        self._buffer += data[:_HEAD_BYTES]
        lines.append(self._oversize(self._buffer))
        self._buffer.clear()
        self._dropping = True

    def _oversize(self, line: bytes | bytearray) -> OversizeLine:
        return OversizeLine(self._max_bytes, bytes(line[: min(_HEAD_BYTES, self._max_bytes)]))


def encode_line(payload: bytes) -> bytes:
    """Return `payload` as a line.

    It must not be blank or contain a line end: `jsonrpc.remove_line_breaks` removes them.
    """
    if b"\n" in payload or b"\r" in payload:
        raise ProtocolError(
            "The message contains a line break. Remove the line breaks from its JSON first.",
            INVALID_REQUEST,
        )
    if not payload or payload.isspace():
        raise ProtocolError("The message is blank. Send a JSON value.", INVALID_REQUEST)
    return payload + b"\n"
