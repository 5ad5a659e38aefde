"""WebSocket framing (RFC 6455), for either side: bytes in, messages out, and back.

Pure: it holds a buffer and nothing else. Extensions are not known here, so a frame is what it looks
like. The opening handshake is in `websocket_opening`.
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
"""Never sent: the other side closed and gave no code."""
INVALID_DATA: Final = 1007
TOO_BIG: Final = 1009

MAX_FRAGMENTS: Final = 16_384
"""Fragments that one message may come in."""

_CONTINUATION: Final = 0
_TEXT: Final = 1
_BINARY: Final = 2
_CLOSE: Final = 8
_PING: Final = 9
_PONG: Final = 10
_FINAL: Final = 0x80
_WHOLE_TEXT: Final = _FINAL | _TEXT
_KNOWN: Final = frozenset((_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG))
_MOST_IN_CONTROL: Final = 125
_SMALL_HEADS: Final = tuple(bytes((_WHOLE_TEXT, length)) for length in range(126))
_SMALL_MASKED_HEADS: Final = tuple(bytes((_WHOLE_TEXT, 0x80 | length)) for length in range(126))
_MEDIUM: Final = Struct(">HH")
"""How a frame begins whose length takes two bytes more."""
MEDIUM_HEAD: Final = _WHOLE_TEXT << 8 | 126
_MEDIUM_MASKED_HEAD: Final = MEDIUM_HEAD | 0x80
pack_medium_head: Final = _MEDIUM.pack
"""With `MEDIUM_HEAD`, `text_head` for lengths from 126 to 65,535: those of nearly all calls."""
_unpack_medium: Final = _MEDIUM.unpack_from


class BinaryMessage(msgspec.Struct, frozen=True):
    """A whole message that is not text."""

    payload: bytes


class Ping(msgspec.Struct, frozen=True):
    payload: bytes


class Pong(msgspec.Struct, frozen=True):
    payload: bytes


class Close(msgspec.Struct, frozen=True):
    """The other side closes. Nothing that it says after this counts."""

    code: int
    reason: str


class Violation(msgspec.Struct, frozen=True):
    """What the other side got wrong, and the code to close with. Nothing is read after it.

    It is an item of the list and not an exception, so that what came before it is not lost.
    """

    code: int
    message: str

    def error(self) -> ProtocolError:
        if self.code == TOO_BIG:
            return ProtocolError(self.message, PAYLOAD_TOO_LARGE)
        return ProtocolError(self.message)


WebSocketEvent = bytes | BinaryMessage | Ping | Pong | Close | Violation
"""What comes out of a decoder; `bytes` are a whole text message, and valid UTF-8."""


def is_sendable_code(code: int) -> bool:
    """Whether a close frame may carry this code."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


class FrameDecoder:
    """Makes messages of the other side's bytes, however these are cut.

    Never keeps more than the message limit and the unread end of what it was fed last.
    """

    __slots__ = (
        "_buffer", "_fresh", "_joined", "_joining", "_mask_bit", "_max", "_needed", "_over",
        "_parts", "_small_head", "_small_start", "finished_count",
    )  # fmt: skip

    def __init__(self, *, masked: bool, max_message: int) -> None:
        """`masked`: a server demands it of every frame; a client refuses it."""
        if max_message < 1:
            raise ValueError("max_message must be at least 1")
        self._mask_bit = 0x80 if masked else 0
        self._small_start = 6 if masked else 2
        self._small_head = _WHOLE_TEXT << 8 | self._mask_bit
        """How a whole text message of no bytes begins."""
        self._max = max_message
        self._buffer = bytearray()
        self._needed = 2
        """With fewer bytes in the buffer there is nothing new to find out."""
        self._joined = bytearray()
        self._joining = 0
        """The opcode of the message whose fragments are being joined."""
        self._parts = 0
        """How many of these there are."""
        self._fresh = True
        """Nothing is kept of an earlier read."""
        self._over = False
        self.finished_count = 0
        """How often something came to its end that was not whole at once, or may not have been:
        while this stays the same and something is pending, it is the same message."""

    @property
    def pending(self) -> int:
        """How many bytes of unfinished frames and messages are kept."""
        return len(self._buffer) + len(self._joined)

    @property
    def is_unfinished(self) -> bool:
        """Whether a message or a frame has begun, be it with nothing, and has not ended."""
        return bool(self._buffer or self._joining)

    @property
    def max_message(self) -> int:
        """How long a message may be."""
        return self._max

    @max_message.setter
    def max_message(self, most: int) -> None:
        self._max = most

    def stop(self) -> None:
        """Read nothing more, and keep nothing."""
        self._over = True
        self._fresh = False
        self._buffer = self._joined = bytearray()

    def feed(self, data: bytes) -> list[WebSocketEvent]:
        """What `data` completes."""
        size = len(data)
        if not self._fresh:
            return self._feed(data)
        # By far the most usual: text messages, each whole in one frame, in one read.
        events: list[WebSocketEvent] = []
        at = 0
        small_head, most = self._small_head, self._max
        masked, small_start = self._mask_bit, self._small_start
        while size - at > 8:
            # Of a short frame the second is the beginning of something else.
            head, length = _unpack_medium(data, at)
            head ^= small_head
            start = at + small_start
            if head == 126:
                if length < 126:
                    break
                start += 2
            elif head > _MOST_IN_CONTROL:
                # Anything else than a whole text, or a long one.
                break
            else:
                length = head
            end = start + length
            if end > size or length > most:
                break
            if masked:
                payload = apply_mask(data[start:end], data[start - 4 : start])
            else:
                payload = data[start:end]
            if not payload.isascii() and not _is_utf8(payload):
                break
            events.append(payload)
            at = end
        if at == size:
            return events
        if not at:
            return self._feed(data)
        events += self._feed(data[at:])
        return events

    def _feed(self, data: bytes) -> list[WebSocketEvent]:
        events: list[WebSocketEvent] = []
        if self._over:
            return events
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= self._needed:
            end = self._frame(at, events)
            if end < 0:
                self.stop()
                return events
            if end:
                at = end
                self._needed = 2
        if at:
            del buffer[:at]
        self._fresh = not buffer and not self._joining
        return events

    def _frame(self, at: int, events: list[WebSocketEvent]) -> int:
        """Read the frame that begins at `at`.

        Returns its end, 0 when more of it is needed, and -1 when nothing counts after it.
        """
        buffer = self._buffer
        first = buffer[at]
        opcode = first & 0x0F
        length = buffer[at + 1] ^ self._mask_bit
        if wrong := self._wrong_head(first, opcode, length):
            return self._fail(events, PROTOCOL_ERROR, wrong)
        start = at + self._small_start
        if length > _MOST_IN_CONTROL:
            width = 2 if length == 126 else 8
            if len(buffer) < at + 2 + width:
                self._needed = 2 + width
                return 0
            start += width
            length = int.from_bytes(buffer[at + 2 : at + 2 + width], "big")
            if not (126 if width == 2 else 1 << 16) <= length < 1 << 63:
                return self._fail(events, PROTOCOL_ERROR, "A length is not in its shortest form.")
        if opcode < _CLOSE and len(self._joined) + length > self._max:
            return self._fail(events, TOO_BIG, f"A message is longer than {self._max} bytes.")
        end = start + length
        if len(buffer) < end:
            self._needed = end - at
            return 0
        # A large one is copied only once.
        with memoryview(buffer) as view, view[start:end] as part:
            if self._mask_bit:
                payload = apply_mask(part, bytes(view[start - 4 : start]))
            else:
                payload = bytes(part)
        if opcode < _CLOSE:
            lawful = self._data(opcode, bool(first & _FINAL), payload, events)
            return end if lawful else -1
        if opcode == _CLOSE:
            events.append(_read_close(payload))
            return -1
        if not self._joining:
            self.finished_count += 1
        events.append(Ping(payload) if opcode == _PING else Pong(payload))
        return end

    def _wrong_head(self, first: int, opcode: int, length: int) -> str:
        """What is wrong with the first two bytes of a frame, if anything is."""
        if first & 0x70:
            return "A reserved bit is set, and no extension was agreed on."
        if opcode not in _KNOWN:
            return f"There is no opcode {opcode}."
        if length & 0x80:
            return "A frame is not masked." if self._mask_bit else "A frame is masked."
        if opcode >= _CLOSE:
            if not first & _FINAL:
                return "A control frame is fragmented."
            if length > _MOST_IN_CONTROL:
                return "A control frame is longer than 125 bytes."
        elif opcode == _CONTINUATION and not self._joining:
            return "A continuation has nothing to continue."
        elif opcode != _CONTINUATION and self._joining:
            return "A message begins before the last one has ended."
        return ""

    def _data(self, opcode: int, final: bool, payload: bytes, events: list[WebSocketEvent]) -> bool:
        """Take a message, or a part of one. False when it is not what it says."""
        if not final:
            self._joining = opcode or self._joining
            self._joined += payload
            self._parts += 1
            if self._parts > MAX_FRAGMENTS:
                # Empty ones would cost their reader time for ever, and never make a message.
                events.append(
                    Violation(TOO_BIG, f"A message comes in more than {MAX_FRAGMENTS} parts.")
                )
                return False
            return True
        if opcode == _CONTINUATION:
            opcode, self._joining = self._joining, 0
            self._parts = 0
            self._joined += payload
            payload = bytes(self._joined)
            self._joined = bytearray()
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
    """A whole text message. A client gives four fresh, unpredictable bytes as `mask`."""
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
    """What stands before a whole unmasked text message: that need not be copied for it."""
    if length < 126:
        return _SMALL_HEADS[length]
    if length < 1 << 16:
        return pack_medium_head(MEDIUM_HEAD, length)
    return _head(_WHOLE_TEXT, length, 0)


def ping_frame(payload: bytes = b"", mask: bytes = b"") -> bytes:
    return _control_frame(_PING, payload, mask)


def pong_frame(payload: bytes, mask: bytes = b"") -> bytes:
    """The answer to a ping, with what that carried."""
    return _control_frame(_PONG, payload, mask)


def close_frame(code: int, reason: str = "", mask: bytes = b"") -> bytes:
    """`NO_CODE` makes one that says nothing. A reason that is too long is cut."""
    if code == NO_CODE:
        return _control_frame(_CLOSE, b"", mask)
    if not is_sendable_code(code):
        raise ValueError(f"{code} is no code that may be sent")
    said = reason.encode("utf-8", "replace")[: _MOST_IN_CONTROL - 2]
    # Without the half of a character that the cut may have left.
    said = said.decode("utf-8", "ignore").encode()
    return _control_frame(_CLOSE, code.to_bytes(2, "big") + said, mask)


def _control_frame(opcode: int, payload: bytes, mask: bytes) -> bytes:
    if len(payload) > _MOST_IN_CONTROL:
        raise ValueError("a control frame carries at most 125 bytes")
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
    """`payload` masked, or unmasked: it is the same. In Python alone."""
    size = len(payload)
    if size < _LARGE:
        repeated = (mask * (size // 4 + 1))[:size]
        whole = int.from_bytes(payload, "little") ^ int.from_bytes(repeated, "little")
        return whole.to_bytes(size, "little")
    # Each of the four lanes through a table: twice as quick as an integer of that size.
    out = bytearray(payload)
    for lane in range(4):
        out[lane::4] = out[lane::4].translate(_XOR[mask[lane]])
    return bytes(out)


def _quickest_mask() -> Callable[[bytes | memoryview, bytes], bytes]:
    """A routine in C where one is installed: Python has none of its own."""
    try:
        from websockets.speedups import apply_mask as compiled
    except ImportError:
        return mask_in_python
    return compiled


apply_mask: Final = _quickest_mask()
