"""WebSocket framing (RFC 6455) for clients and servers: decoding and encoding of messages.

Pure: the only state is a buffer. Extensions are not supported. The opening handshake is in
`websocket_handshake`.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

import msgspec

from interlock.errors import PAYLOAD_TOO_LARGE, ProtocolError

NORMAL: Final = 1000
PROTOCOL_ERROR: Final = 1002
UNSUPPORTED: Final = 1003
NO_CODE: Final = 1005
"""Never sent: the peer closed without a code."""
INVALID_DATA: Final = 1007
TOO_BIG: Final = 1009

MAX_FRAGMENTS: Final = 16_384
"""Maximum number of fragments of a message."""

_CONTINUATION: Final = 0
_TEXT: Final = 1
_BINARY: Final = 2
_CLOSE: Final = 8
_PING: Final = 9
_PONG: Final = 10
_FINAL: Final = 0x80
_WHOLE_TEXT: Final = _FINAL | _TEXT
_OPCODES: Final = frozenset((_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG))
_MAX_CONTROL_BYTES: Final = 125
_SMALL_HEADS: Final = tuple(bytes((_WHOLE_TEXT, length)) for length in range(126))
_SMALL_MASKED_HEADS: Final = tuple(bytes((_WHOLE_TEXT, 0x80 | length)) for length in range(126))
_MEDIUM: Final = Struct(">HH")
"""The head of a frame with a 16-bit length."""
MEDIUM_HEAD: Final = _WHOLE_TEXT << 8 | 126
_MEDIUM_MASKED_HEAD: Final = MEDIUM_HEAD | 0x80
pack_medium_head: Final = _MEDIUM.pack
"""With `MEDIUM_HEAD`, `text_head` for lengths from 126 to 65,535: those of nearly all calls."""
_unpack_medium: Final = _MEDIUM.unpack_from


class BinaryMessage(msgspec.Struct, frozen=True):
    """A complete binary message."""

    payload: bytes


class Ping(msgspec.Struct, frozen=True):
    payload: bytes


class Pong(msgspec.Struct, frozen=True):
    payload: bytes


class Close(msgspec.Struct, frozen=True):
    """A close frame of the peer. Everything after it is ignored."""

    code: int
    reason: str


class Violation(msgspec.Struct, frozen=True):
    """A protocol violation of the peer, and the code to close with. Nothing is read after it.

    It is an item of the list and not an exception, so that earlier messages are not lost.
    """

    code: int
    message: str

    def error(self) -> ProtocolError:
        if self.code == TOO_BIG:
            return ProtocolError(self.message, PAYLOAD_TOO_LARGE)
        return ProtocolError(self.message)


WebSocketEvent = bytes | BinaryMessage | Ping | Pong | Close | Violation
"""An event of a decoder. `bytes` are a complete text message in valid UTF-8."""


def is_sendable_code(code: int) -> bool:
    """Return whether a close frame may contain this code."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


class FrameDecoder:
    """Decodes the bytes of the peer to messages, however they are split.

    It never buffers more than the message limit and the unread end of the last read.
    """

    __slots__ = (
        "_buffer",
        "_fragment_count",
        "_is_buffer_empty",
        "_is_stopped",
        "_joining",
        "_mask_bit",
        "_max_message",
        "_message",
        "_needed_bytes",
        "_small_head",
        "_small_start",
        "finished_count",
    )  # fmt: skip

    def __init__(self, *, masked: bool, max_message: int) -> None:
        """
        Args:
            masked: True for a server, which requires masked frames. A client rejects them.
        """
        if max_message < 1:
            raise ValueError("max_message must be at least 1")
        self._mask_bit = 0x80 if masked else 0
        self._small_start = 6 if masked else 2
        self._small_head = _WHOLE_TEXT << 8 | self._mask_bit
        """The head of an empty text message."""
        self._max_message = max_message
        self._buffer = bytearray()
        self._needed_bytes = 2
        """The number of buffered bytes that is needed to continue."""
        self._message = bytearray()
        self._joining = 0
        """The opcode of the message whose fragments are joined."""
        self._fragment_count = 0
        """The number of its fragments."""
        self._is_buffer_empty = True
        """True if no data of an earlier read is buffered."""
        self._is_stopped = False
        self.finished_count = 0
        """The number of completed frames and messages that were not read at once. While it does not
        change and data is pending, that data belongs to the same message."""

    @property
    def pending(self) -> int:
        """The number of buffered bytes of incomplete frames and messages."""
        return len(self._buffer) + len(self._message)

    @property
    def is_unfinished(self) -> bool:
        """True if a message or a frame has begun, even without payload, and has not ended."""
        return bool(self._buffer or self._joining)

    @property
    def max_message(self) -> int:
        """The maximum length of a message."""
        return self._max_message

    @max_message.setter
    def max_message(self, limit: int) -> None:
        self._max_message = limit

    def stop(self) -> None:
        """Stop decoding, and clear the buffers."""
        self._is_stopped = True
        self._is_buffer_empty = False
        self._buffer = self._message = bytearray()

    def feed(self, data: bytes) -> list[WebSocketEvent]:
        """Return the events that `data` completes."""
        size = len(data)
        if not self._is_buffer_empty:
            return self._feed(data)
        # The most frequent case: text messages in one frame each, in one read.
        events: list[WebSocketEvent] = []
        position = 0
        small_head, max_message = self._small_head, self._max_message
        masked, small_start = self._mask_bit, self._small_start
        while size - position > 8:
            # For a short frame, `length` contains bytes of its payload and is not used.
            head, length = _unpack_medium(data, position)
            head ^= small_head
            start = position + small_start
            if head == 126:
                if length < 126:
                    break
                start += 2
            elif head > _MAX_CONTROL_BYTES:
                # Not a complete text message, or a long one.
                break
            else:
                length = head
            end = start + length
            if end > size or length > max_message:
                break
            if masked:
                payload = apply_mask(data[start:end], data[start - 4 : start])
            else:
                payload = data[start:end]
            if not payload.isascii() and not _is_utf8(payload):
                break
            events.append(payload)
            position = end
        if position == size:
            return events
        if not position:
            return self._feed(data)
        events += self._feed(data[position:])
        return events

    def _feed(self, data: bytes) -> list[WebSocketEvent]:
        events: list[WebSocketEvent] = []
        if self._is_stopped:
            return events
        buffer = self._buffer
        buffer += data
        position = 0
        while len(buffer) - position >= self._needed_bytes:
            end = self._frame(position, events)
            if end < 0:
                self.stop()
                return events
            if end:
                position = end
                self._needed_bytes = 2
        if position:
            del buffer[:position]
        self._is_buffer_empty = not buffer and not self._joining
        return events

    def _frame(self, position: int, events: list[WebSocketEvent]) -> int:
        """Decode the frame at position `position`.

        Return its end, 0 if more data is needed, and -1 if nothing after it is read.
        """
        buffer = self._buffer
        first = buffer[position]
        opcode = first & 0x0F
        length = buffer[position + 1] ^ self._mask_bit
        if problem := self._find_head_problem(first, opcode, length):
            return self._fail(events, PROTOCOL_ERROR, problem)
        start = position + self._small_start
        if length > _MAX_CONTROL_BYTES:
            width = 2 if length == 126 else 8
            if len(buffer) < position + 2 + width:
                self._needed_bytes = 2 + width
                return 0
            start += width
            length = int.from_bytes(buffer[position + 2 : position + 2 + width], "big")
            if not (126 if width == 2 else 1 << 16) <= length < 1 << 63:
                return self._fail(events, PROTOCOL_ERROR, "A length is not in its shortest form.")
        if opcode < _CLOSE and len(self._message) + length > self._max_message:
            return self._fail(
                events, TOO_BIG, f"A message is longer than {self._max_message} bytes."
            )
        end = start + length
        if len(buffer) < end:
            self._needed_bytes = end - position
            return 0
        # A large payload is copied only once.
        with memoryview(buffer) as view, view[start:end] as part:
            if self._mask_bit:
                payload = apply_mask(part, bytes(view[start - 4 : start]))
            else:
                payload = bytes(part)
        if opcode < _CLOSE:
            is_valid = self._data(opcode, bool(first & _FINAL), payload, events)
            return end if is_valid else -1
        if opcode == _CLOSE:
            events.append(_read_close(payload))
            return -1
        if not self._joining:
            self.finished_count += 1
        events.append(Ping(payload) if opcode == _PING else Pong(payload))
        return end

    def _find_head_problem(self, first: int, opcode: int, length: int) -> str:
        """Return the problem of the first two bytes of a frame. Empty: none."""
        if first & 0x70:
            return "A reserved bit is set, and no extension was agreed on."
        if opcode not in _OPCODES:
            return f"Unknown opcode {opcode}."
        if length & 0x80:
            return "A frame is not masked." if self._mask_bit else "A frame is masked."
        if opcode >= _CLOSE:
            if not first & _FINAL:
                return "A control frame is fragmented."
            if length > _MAX_CONTROL_BYTES:
                return "A control frame is longer than 125 bytes."
        elif opcode == _CONTINUATION and not self._joining:
            return "A continuation frame without a fragmented message."
        elif opcode != _CONTINUATION and self._joining:
            return "A message begins before the previous one has ended."
        return ""

    def _data(self, opcode: int, final: bool, payload: bytes, events: list[WebSocketEvent]) -> bool:
        """Handle a message or a fragment. Return False for an invalid message."""
        if not final:
            self._joining = opcode or self._joining
            self._message += payload
            self._fragment_count += 1
            if self._fragment_count > MAX_FRAGMENTS:
                # Empty fragments would keep the reader busy without ever completing a message.
                events.append(
                    Violation(TOO_BIG, f"A message has more than {MAX_FRAGMENTS} fragments.")
                )
                return False
            return True
        if opcode == _CONTINUATION:
            opcode, self._joining = self._joining, 0
            self._fragment_count = 0
            self._message += payload
            payload = bytes(self._message)
            self._message = bytearray()
        self.finished_count += 1
        if opcode == _BINARY:
            events.append(BinaryMessage(payload))
        elif payload.isascii() or _is_utf8(payload):
            events.append(payload)
        else:
            events.append(Violation(INVALID_DATA, "A text message is not UTF-8."))
            return False
        return True

    def _fail(self, events: list[WebSocketEvent], code: int, message: str) -> int:
        events.append(Violation(code, message))
        return -1


def _read_close(payload: bytes) -> Close | Violation:
    if not payload:
        return Close(NO_CODE, "")
    code = int.from_bytes(payload[:2], "big")
    if not _is_utf8(payload[2:]):
        return Violation(INVALID_DATA, "The reason in a close frame is not UTF-8.")
    if len(payload) == 1 or not is_sendable_code(code):
        return Violation(PROTOCOL_ERROR, "A close frame has a code that may not be sent.")
    return Close(code, payload[2:].decode())


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


# -- writing


def text_frame(payload: bytes, mask: bytes = b"") -> bytes:
    """Return a complete text message. A client passes four new, unpredictable bytes as `mask`."""
    if not mask:
        return text_head(len(payload)) + payload
    if len(mask) != 4:
        raise ValueError("a mask has four bytes")
    length = len(payload)
    if length < 126:
        head = _SMALL_MASKED_HEADS[length]
    elif length < 1 << 16:
        head = pack_medium_head(_MEDIUM_MASKED_HEAD, length)
    else:
        head = _head(_WHOLE_TEXT, length, 0x80)
    return head + mask + apply_mask(payload, mask)


def text_head(length: int) -> bytes:
    """Return the head of an unmasked text message, so that the message need not be copied."""
    if length < 126:
        return _SMALL_HEADS[length]
    if length < 1 << 16:
        return pack_medium_head(MEDIUM_HEAD, length)
    return _head(_WHOLE_TEXT, length, 0)


def ping_frame(payload: bytes = b"", mask: bytes = b"") -> bytes:
    return _control_frame(_PING, payload, mask)


def pong_frame(payload: bytes, mask: bytes = b"") -> bytes:
    """Return the response to a ping, with the payload of the ping."""
    return _control_frame(_PONG, payload, mask)


def close_frame(code: int, reason: str = "", mask: bytes = b"") -> bytes:
    """Return a close frame. `NO_CODE` makes an empty one. A long reason is truncated."""
    if code == NO_CODE:
        return _control_frame(_CLOSE, b"", mask)
    if not is_sendable_code(code):
        raise ValueError(f"the close code {code} must not be sent")
    encoded = reason.encode("utf-8", "replace")[: _MAX_CONTROL_BYTES - 2]
    # Remove a character that was truncated.
    encoded = encoded.decode("utf-8", "ignore").encode()
    return _control_frame(_CLOSE, code.to_bytes(2, "big") + encoded, mask)


def _control_frame(opcode: int, payload: bytes, mask: bytes) -> bytes:
    if len(payload) > _MAX_CONTROL_BYTES:
        raise ValueError("a control frame has at most 125 bytes")
    if mask:
        return _masked(_FINAL | opcode, payload, mask)
    return bytes((_FINAL | opcode, len(payload))) + payload


def _masked(first: int, payload: bytes, mask: bytes) -> bytes:
    if len(mask) != 4:
        raise ValueError("a mask has four bytes")
    return _head(first, len(payload), 0x80) + mask + apply_mask(payload, mask)


def _head(first: int, length: int, mask_bit: int) -> bytes:
    if length < 126:
        return bytes((first, mask_bit | length))
    if length < 1 << 16:
        return bytes((first, mask_bit | 126, length >> 8, length & 0xFF))
    return bytes((first, mask_bit | 127)) + length.to_bytes(8, "big")


# -- masking

_LARGE: Final = 1024
_XOR: Final = tuple(bytes(byte ^ other for byte in range(256)) for other in range(256))


def mask_in_python(payload: bytes | memoryview, mask: bytes) -> bytes:
    """Mask or unmask a payload, which is the same operation. Pure Python."""
    size = len(payload)
    if size < _LARGE:
        repeated = (mask * (size // 4 + 1))[:size]
        masked = int.from_bytes(payload, "little") ^ int.from_bytes(repeated, "little")
        return masked.to_bytes(size, "little")
    # Each of the four lanes with a table: twice as fast as a large integer.
    out = bytearray(payload)
    for lane in range(4):
        out[lane::4] = out[lane::4].translate(_XOR[mask[lane]])
    return bytes(out)


def _select_mask_function() -> Callable[[bytes | memoryview, bytes], bytes]:
    """Return the C implementation if one is installed, else the Python implementation."""
    try:
        from websockets.speedups import apply_mask as compiled
    except ImportError:
        return mask_in_python
    return compiled


apply_mask: Final = _select_mask_function()
