"""Server-Sent Events, by the WHATWG algorithm: what MCP streams over HTTP.

Bytes in, events out, and back. Pure: it holds the unfinished event and nothing else. An event's
data stays bytes; whether it is UTF-8, and what it says, is for whoever decodes it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from interlock.errors import INVALID_REQUEST, PAYLOAD_TOO_LARGE, ProtocolError

MAX_EVENT_BYTES: Final = 4 * 1024 * 1024
"""A longer event is refused unless the decoder is told otherwise."""

COMMENT_PING: Final = b": ping\r\n\r\n"
"""Keeps an idle stream alive; every reader ignores it."""

_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
_BOM: Final = b"\xef\xbb\xbf"
_COLON: Final = 58
_RETRY_DIGITS: Final = 12
# How a message event begins when a server says nothing else about it.
_PLAIN_STARTS: Final = (b"event: message\r\ndata: ", b"data: ", b"event: message\ndata: ")


class SseEvent(msgspec.Struct, frozen=True):
    """One event. `id` and `retry` are what this event itself said, None if it said nothing."""

    data: bytes
    event: str = "message"
    id: str | None = None
    retry: int | None = None


class OversizeEvent(ProtocolError):
    """An event over the limit. It was dropped; `events` are the others of the same read."""

    def __init__(self, limit: int, events: list[SseEvent]) -> None:
        super().__init__(
            f"An event is longer than {limit} bytes and was dropped. "
            "Send less at a time, or raise the limit.",
            PAYLOAD_TOO_LARGE,
            {"limit": limit},
        )
        self.events = events


class SseDecoder:
    """Cuts a stream of bytes into events.

    `last_event_id` and `retry` are what a reconnecting reader needs: the id of the last finished
    event block (also of one without data, which gives no event) and the wait in milliseconds
    that the server last asked for. The limit is on an event's lines together, field names
    included, line ends not; a comment does not add up but must fit.
    """

    __slots__ = (
        "_after_cr",
        "_between",
        "_data",
        "_dropping",
        "_event",
        "_id",
        "_line",
        "_max_event_bytes",
        "_own_retry",
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
        # What may still turn out to be a byte order mark; None once the stream is under way.
        self._start: bytes | None = b""
        self._after_cr = False
        self._dropping = False
        # What the unfinished block has said so far, and in how many bytes.
        self._data: list[bytes] = []
        self._event = ""
        self._id: str | None = None
        self._own_retry: int | None = None
        self._size = 0
        # Nothing of an event is held, so the next read may be taken as it is.
        self._between = True

    @property
    def pending(self) -> int:
        """How many bytes of an unfinished event are held. At the end of a stream they are lost."""
        return self._size + len(self._line) + len(self._start or b"")

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that `data` completes.

        Raises OversizeEvent when one of them was too long: the rest of `data` has been read by
        then, and the decoder can be fed on.
        """
        if self._between:
            whole = self._whole_event(data)
            if whole is not None:
                self._start = None
                return [whole]
        if self._start is not None:
            data = self._without_bom(data)
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

    def _whole_event(self, data: bytes) -> SseEvent | None:
        """The event when `data` is exactly one plain message event: one copy, no splitting."""
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

    def _without_bom(self, data: bytes) -> bytes:
        seen = (self._start or b"") + data
        if len(seen) < len(_BOM) and _BOM.startswith(seen):
            self._start = seen
            self._between = not seen
            return b""
        self._start = None
        return seen[len(_BOM) :] if seen.startswith(_BOM) else seen

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
                # One byte is enough to remember that this line is not blank.
                self._line[:] = tail[:1]
            elif self._size + len(self._line) + len(tail) > self._max_event_bytes:
                oversize = True
                self._drop_block()
                self._line[:] = tail[:1]
            else:
                self._line += tail
        self._between = not (self._size or self._line or self._after_cr or self._dropping)
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
                self.retry = self._own_retry = int(digits or b"0")

    def _end_block(self, events: list[SseEvent]) -> None:
        if not self._size:
            return
        if self._id is not None:
            self.last_event_id = self._id
        if self._data:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            events.append(SseEvent(data, self._event or "message", self._id, self._own_retry))
        self._forget_block()

    def _drop_block(self) -> None:
        self._forget_block()
        self._line.clear()
        self._dropping = True

    def _forget_block(self) -> None:
        self._data = []
        self._event = ""
        self._id = None
        self._own_retry = None
        self._size = 0


def encode_event(
    data: bytes,
    event: str | None = None,
    id: str | None = None,
    retry: int | None = None,
) -> bytes:
    """One event as bytes, with one `data` line: some clients read only the first.

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
        fields = b"event: %b\r\n" % _one_line("event", event)
    if id is not None:
        fields += b"id: %b\r\n" % _one_line("id", id)
    if retry is not None:
        if not 0 <= retry < 10**_RETRY_DIGITS:
            raise ProtocolError(
                "An event's retry must be a number of milliseconds, zero or more.", INVALID_REQUEST
            )
        fields += b"retry: %d\r\n" % retry
    return fields


def _one_line(field: str, value: str) -> bytes:
    if "\n" in value or "\r" in value or "\0" in value:
        raise ProtocolError(
            f"An event's {field} must not hold a line end or a NUL.", INVALID_REQUEST
        )
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ProtocolError(f"An event's {field} is not valid text.", INVALID_REQUEST) from None
