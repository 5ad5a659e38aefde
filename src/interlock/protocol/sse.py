"""Server-Sent Events, by the WHATWG algorithm: the HTTP streams of MCP.

Converts bytes to events and back. Pure: the only state is the incomplete event. The data of an
event stays bytes: its reader checks that it is UTF-8 and decodes it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from interlock.errors import INVALID_REQUEST, PAYLOAD_TOO_LARGE, ProtocolError

MAX_EVENT_BYTES: Final = 4 * 1024 * 1024
"""Default maximum size of an event."""

COMMENT_PING: Final = b": ping\r\n\r\n"
"""A comment that keeps an idle stream open. Every reader ignores it."""

_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
_BOM: Final = b"\xef\xbb\xbf"
_COLON: Final = 58
_RETRY_DIGITS: Final = 12
# The beginning of a message event without other fields.
_PLAIN_STARTS: Final = (b"event: message\r\ndata: ", b"data: ", b"event: message\ndata: ")


class SseEvent(msgspec.Struct, frozen=True):
    """One event. `id` and `retry` are None if the event does not contain them."""

    data: bytes
    event: str = "message"
    id: str | None = None
    retry: int | None = None


class OversizeEvent(ProtocolError):
    """An event over the limit, which was dropped. `events` are the other events of the same
    read."""

    def __init__(self, limit: int, events: list[SseEvent]) -> None:
        super().__init__(
            f"An event is longer than {limit} bytes and was discarded. "
            "Send smaller messages, or raise the limit.",
            PAYLOAD_TOO_LARGE,
            {"limit": limit},
        )
        self.events = events


class SseDecoder:
    """Splits a stream of bytes into events.

    A reader needs `last_event_id` and `retry` to reconnect: the id of the last complete event block
    (also of a block without data, which is no event), and the last reconnection time in
    milliseconds. The limit counts all lines of an event with field names and without line ends.
    A comment does not count, but must not exceed the limit itself.
    """

    __slots__ = (
        "_after_cr",
        "_data",
        "_dropping",
        "_event",
        "_event_retry",
        "_id",
        "_is_empty",
        "_line",
        "_max_event_bytes",
        "_size",
        "_start",
        "last_event_id",
        "retry",
    )

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        if max_event_bytes < 1:
            raise ValueError("max_event_bytes must be at least 1")
        self.last_event_id: str | None = None
        self.retry: int | None = None
        self._max_event_bytes = max_event_bytes
        self._line = bytearray()
        # The beginning of the stream, which may be a byte order mark. None after the beginning.
        self._start: bytes | None = b""
        self._after_cr = False
        self._dropping = False
        # The fields of the incomplete block, and its size in bytes.
        self._data: list[bytes] = []
        self._event = ""
        self._id: str | None = None
        self._event_retry: int | None = None
        self._size = 0
        # True if nothing is buffered, so that the next read can be a complete event.
        self._is_empty = True

    @property
    def pending(self) -> int:
        """The number of buffered bytes of an incomplete event. At the end of a stream they are
        lost."""
        return self._size + len(self._line) + len(self._start or b"")

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events that `data` completes.

        Raises:
            OversizeEvent: an event was too long. All of `data` has been read, and the decoder can
                be used further.
        """
        if self._is_empty:
            whole = self._read_single_event(data)
            if whole is not None:
                self._start = None
                return [whole]
        if self._start is not None:
            data = self._remove_bom(data)
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == 10:
                data = data[1:]
        if not data:
            return []
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return self._read_lines(data)

    def _read_single_event(self, data: bytes) -> SseEvent | None:
        """Return the event if `data` is exactly one plain message event: one copy, no splitting."""
        if data.endswith(b"\r\n\r\n"):
            end = -4
        elif data.endswith(b"\n\n"):
            end = -2
        else:
            return None
        for start in _PLAIN_STARTS:
            if data.startswith(start):
                value = data[len(start) : end]
                if b"\n" in value or b"\r" in value or len(data) > self._max_event_bytes:
                    return None
                return SseEvent(value)
        return None

    def _remove_bom(self, data: bytes) -> bytes:
        received = (self._start or b"") + data
        if len(received) < len(_BOM) and _BOM.startswith(received):
            self._start = received
            self._is_empty = not received
            return b""
        self._start = None
        return received[len(_BOM) :] if received.startswith(_BOM) else received

    def _read_lines(self, data: bytes) -> list[SseEvent]:
        events: list[SseEvent] = []
        oversize = False
        lines = data.split(b"\n")
        if self._line and len(lines) > 1:
            lines[0] = b"".join((self._line, lines[0]))
            self._line.clear()
        tail = lines.pop()
        for line in lines:
            if not line:
                if self._dropping:
                    self._dropping = False
                else:
                    self._end_block(events)
            elif not self._dropping:
                if self._size + len(line) > self._max_event_bytes:
                    oversize = True
                    self._drop_block()
                else:
                    self._read_field(line)
        if tail:
            if self._dropping:
                # One byte is enough to know that this line is not blank.
                self._line[:] = tail[:1]
            elif self._size + len(self._line) + len(tail) > self._max_event_bytes:
                oversize = True
                self._drop_block()
                self._line[:] = tail[:1]
            else:
                self._line += tail
        self._is_empty = not (self._size or self._line or self._after_cr or self._dropping)
        if oversize:
            raise OversizeEvent(self._max_event_bytes, events)
        return events

    def _read_field(self, line: bytes) -> None:
        if line[0] == _COLON:
            return
        self._size += len(line)
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b" ", 5) else line[5:])
            return
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit():
            digits = value.lstrip(b"0")
            if len(digits) <= _RETRY_DIGITS:
                self.retry = self._event_retry = int(digits or b"0")

    def _end_block(self, events: list[SseEvent]) -> None:
        if not self._size:
            return
        if self._id is not None:
            self.last_event_id = self._id
        if self._data:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            events.append(SseEvent(data, self._event or "message", self._id, self._event_retry))
        self._reset_block()

    def _drop_block(self) -> None:
        self._reset_block()
        self._line.clear()
        self._dropping = True

    def _reset_block(self) -> None:
        self._data = []
        self._event = ""
        self._id = None
        self._event_retry = None
        self._size = 0


def encode_event(
    data: bytes,
    event: str | None = None,
    id: str | None = None,
    retry: int | None = None,
) -> bytes:
    """Encode an event with one `data` line, since some clients read only the first.

    Args:
        data: JSON, or text of one line. Line ends between the tokens of JSON become blanks.
    """
    if b"\n" in data or b"\r" in data:
        data = data.translate(_ONE_LINE)
    if id is None and retry is None:
        if event is None:
            return b"data: " + data + b"\r\n\r\n"
        if event == "message":
            return b"event: message\r\ndata: " + data + b"\r\n\r\n"
    return b"%bdata: %b\r\n\r\n" % (_encode_fields(event, id, retry), data)


def _encode_fields(event: str | None, id: str | None, retry: int | None) -> bytes:
    fields = b""
    if event is not None:
        fields = b"event: %b\r\n" % _encode_field("event", event)
    if id is not None:
        fields += b"id: %b\r\n" % _encode_field("id", id)
    if retry is not None:
        if not 0 <= retry < 10**_RETRY_DIGITS:
            raise ProtocolError(
                "The retry of an event must be a number of milliseconds, zero or more.",
                INVALID_REQUEST,
            )
        fields += b"retry: %d\r\n" % retry
    return fields


def _encode_field(field: str, value: str) -> bytes:
    if "\n" in value or "\r" in value or "\0" in value:
        raise ProtocolError(
            f"The {field} of an event must not contain a line break or a NUL.", INVALID_REQUEST
        )
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ProtocolError(
            f"The {field} of an event is not valid text.", INVALID_REQUEST
        ) from None
