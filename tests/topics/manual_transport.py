"""A transport and timers that a test moves, and batches of messages."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from interlock.protocol.websocket import FrameDecoder, WebSocketEvent, text_frame
from interlock.topics.member import Batch
from interlock.topics.wire.envelope import read_head, write_envelope

MASK = b"\x01\x02\x03\x04"


class Timers:
    """Timers that run only during `pass_by`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.after_turn: Callable[[], None] = lambda: None
        """What a loop does behind each of its turns."""
        self._order = count()
        self._due: list[tuple[float, int, Timer]] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        heapq.heappush(self._due, (self.now + seconds, next(self._order), timer))
        return timer

    @property
    def waiting(self) -> int:
        return sum(not timer.cancelled for _, _, timer in self._due)

    def pass_by(self, seconds: float) -> None:
        until = self.now + seconds
        while self._due and self._due[0][0] <= until:
            self.now = self._due[0][0]
            turn = []
            while self._due and self._due[0][0] <= self.now:
                turn.append(heapq.heappop(self._due)[2])
            for timer in turn:
                if not timer.cancelled:
                    timer.call()
            self.after_turn()
        self.now = until


class Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualTransport:
    """A transport that keeps written data until a test reads it."""

    def __init__(self, *, at_once: bool = True, eof: bool = True) -> None:
        """`at_once`: it says within a write that it is full; some say it at the end of the turn."""
        self.at_once = at_once
        self.eof = eof
        self.unsent = bytearray()
        self.reads = True
        """The other side takes everything the moment it is written."""
        self.closing = self.aborted = self.ended = False
        self.protocol: Any = None
        self.paused = False
        self._high = self._low = 0
        self._decoder = FrameDecoder(masked=False, max_message=1 << 24)
        self.seen: list[WebSocketEvent] = []
        """What the other side has read."""
        self.most = 0

    # -- what a socket uses

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def set_write_buffer_limits(self, high: int) -> None:
        self._high, self._low = high, high // 4

    def write(self, data: bytes) -> None:
        assert not self.closing, "written to a transport that is closing"
        assert not self.ended, "written behind the end"
        self.unsent += data
        self.most = max(self.most, len(self.unsent))
        if self.reads:
            self.read()
        elif self.at_once:
            self.end_of_turn()

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return self.eof

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    # -- what a test does

    def end_of_turn(self) -> None:
        if not self.paused and len(self.unsent) > self._high:
            self.paused = True
            self.protocol.pause_writing()

    def read(self, size: int | None = None) -> None:
        """The other side reads so much, or all."""
        size = len(self.unsent) if size is None else size
        self.seen += self._decoder.feed(bytes(self.unsent[:size]))
        del self.unsent[:size]
        if self.paused and len(self.unsent) <= self._low:
            self.paused = False
            self.protocol.resume_writing()

    @property
    def texts(self) -> list[bytes]:
        return [event for event in self.seen if isinstance(event, bytes)]


def chat_envelope(id: str, kind: str = "chat", size: int = 0) -> bytes:
    payload = b'{"text":"%b"}' % (b"x" * size)
    return write_envelope(id=id, sender="somebody", kind=kind, payload=payload)


def make_batch(texts: Sequence[bytes]) -> Batch:
    return Batch(
        b"".join(map(text_frame, texts)), tuple(texts), tuple(read_head(text) for text in texts)
    )
