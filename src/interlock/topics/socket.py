"""The socket of one member of a topic: WebSocket frames in and out, and nobody ever waits for it.

What is for everybody comes here as bytes that were framed once, and goes out with one write. When
the other side does not read, its messages are kept up to a limit. What does not fit is counted, and
the member is told how much it was; one that reads nothing for too long is closed. No other member
notices any of it.

It touches its transport and the timers it is given, and knows nothing of rooms or envelopes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from interlock.channels.websocket import CallLater, Timer, WebSocketConnection
from interlock.primitives.timestamps import format_utc_ms
from interlock.protocol.mcpx_terms import MAX_ENVELOPE_BYTES, SLOW_READER_CODE
from interlock.protocol.websocket import (
    Ping,
    Pong,
    ping_frame,
    pong_frame,
    text_frame,
)
from interlock.topics.member import Batch, MessageLoss, RoomBacklog

if TYPE_CHECKING:
    from interlock.topics.config import TopicConfig

MOST_UNSENT: Final = 256 * 1024
"""Above this the transport says that its other side does not read."""
NO_ANSWER: Final = 1011
"""The close code for a member that answered no ping."""
UNFINISHED: Final = 60.0
"""So long a message may take to come, at the least, and one look at the socket more."""
MOST_SIGNS: Final = 1_000
"""So many pings and pongs may come within a second; whoever sends more is let go."""
GUESTS_SHARE: Final = 4
"""For a guest that does not read, this part of what is kept for others."""
MOST_KINDS: Final = 16
"""So many kinds are told by name among the messages that were lost."""
OTHER_KINDS: Final = "…"

_PING: Final = ping_frame()


def utc_now() -> str:
    return format_utc_ms(time.time())


def _nothing() -> None:
    """What is told to nobody."""


class TopicSocket(WebSocketConnection):
    """The WebSocket of a member, and a `MessageSink` of the room."""

    def __init__(
        self,
        transport: Any,
        *,
        settings: TopicConfig,
        on_text: Callable[[bytes], object],
        on_gone: Callable[[str], None],
        on_resumed: Callable[[MessageLoss], None],
        call_later: CallLater,
        unread: RoomBacklog | None = None,
        guest: bool = False,
        now: Callable[[], str] = utc_now,
    ) -> None:
        """`on_text` takes each whole message. `on_gone` is told once, and why: the other side left
        or was left, and nothing comes from it any more. `on_resumed`: it reads again, and this is
        what it did not get; all that was kept for it is on its way by then. `unread`: what is kept
        for all in the room, this one included; `guest`: it has a smaller share of that, and its
        messages are shorter. `now`: the time as RFC 3339 writes it."""
        self.on_text = on_text
        self.on_gone = on_gone
        self.on_resumed = on_resumed
        self.on_lost: Callable[[], None] = _nothing
        """Told last, when the connection itself is no more."""
        self._settings = settings
        share = GUESTS_SHARE if guest else 1
        self._queue = max(1, settings.queue // share)
        self._queue_bytes = settings.queue_bytes // share
        self._unread = unread or RoomBacklog()
        self._most_unread = settings.unread // 2 if guest else settings.unread
        self._now = now
        self.is_open = True
        self._flowing = True
        """Whether what is delivered is written at once. Every other state is behind this one."""
        self._paused = False
        """The transport has more than it wants to."""
        self._kept: deque[tuple[bytes, int]] = deque()
        """Frames that wait until the other side reads, and how many messages they are."""
        self._kept_messages = 0
        self._kept_bytes = 0
        self._loss = MessageLoss()
        self._told_gone = False
        self._heard = True
        """Something came since the last look."""
        self._pinged = False
        self._unanswered: bytes | None = None
        """The last ping that came while nothing could be written."""
        self._begun = False
        """A message had begun at the last look, and not ended."""
        self._finished = 0
        self._unfinished = 0.0
        """How long that has been so, at the least."""
        self._signs = 0
        """Pings and pongs that came in this second."""
        self._second: Timer | None = None
        self._unsent_before = 0
        self._stall: Timer | None = None
        self._draining: Timer | None = None
        self._looking: Timer | None = call_later(settings.ping, self._look)
        super().__init__(
            transport,
            is_client=False,
            max_message=min(MAX_ENVELOPE_BYTES, settings.guest_message)
            if guest
            else MAX_ENVELOPE_BYTES,
            max_unsent=MOST_UNSENT,
            call_later=call_later,
        )

    @property
    def unread(self) -> int:
        """How many bytes wait on this side until the other reads."""
        if self._transport.is_closing():
            return 0
        return int(self._transport.get_write_buffer_size()) + self._kept_bytes

    # -- asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        self._heard = True
        for event in self._decoder.feed(data):
            if type(event) is not bytes:
                self._handle_event(event)
            elif self.is_open:
                self.on_text(event)

    def pause_writing(self) -> None:
        self._paused = True
        self._flowing = False
        if self.is_open and self._stall is None:
            self._unsent_before = self._transport.get_write_buffer_size()
            self._stall = self._call_later(self._settings.stalled, self._stalled)

    def resume_writing(self) -> None:
        self._paused = False
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if self._unanswered is not None and self.is_open:
            self._write(pong_frame(self._unanswered))
            self._unanswered = None
        self._drain()

    def eof_received(self) -> None:
        # The connection is closed after this, once everything is written: it may never read that.
        self._end("it closed the connection")
        self._start_close_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.on_lost()

    # -- Outlet

    def deliver(self, batch: Batch) -> None:
        """Send it, or keep it. Called for every member and turn of the loop: there is nothing
        cheaper than one test and one write."""
        if self._flowing:
            self._write(batch.frames)
        elif self.is_open:
            self._keep(batch)

    def close(self, code: int, reason: str) -> None:
        """Say why, behind all that was sent, and close. Nothing comes in any more. Whoever calls
        this knows that the member is gone; `on_gone` tells it again, once the connection is."""
        if self.is_open:
            self._shut()
            self._send_close(code, reason)

    def abort(self) -> None:
        """Let go at once, without a word: there is no time any more. Also of a connection that is
        closing: that waits for the other side to read."""
        self._transport.abort()

    # -- a reader that is slow

    def _keep(self, batch: Batch) -> None:
        """Keep what fits. From the first message that does not, nothing is kept until the other
        side has read all and was told: so what it lost is one gap."""
        count, size = len(batch.texts), len(batch.frames)
        if self._loss.lost:
            self._lose(batch, 0)
        elif self._kept_messages + count <= self._queue and size <= self._room_left():
            self._put(batch.frames, count)
        elif self._settings.overflow == "close":
            why = f"You did not read {self._kept_messages} messages, and more do not fit."
            self._shut()
            self._send_close(SLOW_READER_CODE, why)
            # Not now: the room is in the middle of telling everybody.
            self._call_later(0.0, lambda: self._end(why))
        else:
            self._lose(batch, self._keep_some(batch))

    def _room_left(self) -> int:
        """So many bytes more may be kept: of its own, and of what there is for all."""
        return min(self._queue_bytes - self._kept_bytes, self._most_unread - self._unread.bytes)

    def _put(self, frames: bytes, count: int) -> None:
        self._kept.append((frames, count))
        self._kept_messages += count
        self._kept_bytes += len(frames)
        self._unread.bytes += len(frames)

    def _keep_some(self, batch: Batch) -> int:
        """Keep the first messages of it, as many as fit; returns how many these are."""
        messages = self._queue - self._kept_messages
        size = self._room_left()
        frames: list[bytes] = []
        for text in batch.texts[:messages]:
            frame = text_frame(text)
            size -= len(frame)
            if size < 0:
                break
            frames.append(frame)
        if frames:
            self._put(b"".join(frames), len(frames))
        return len(frames)

    def _lose(self, batch: Batch, start: int) -> None:
        loss = self._loss
        loss.last = self._now()
        loss.first = loss.first or loss.last
        kinds = loss.kinds
        for head in batch.heads[start:]:
            loss.lost += 1
            kind = head.kind if head.kind in kinds or len(kinds) < MOST_KINDS else OTHER_KINDS
            kinds[kind] = kinds.get(kind, 0) + 1

    def _drain(self) -> None:
        """Write what was kept, a part in each turn of the loop: some transports say only at its end
        that it was too much."""
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None
        part: list[bytes] = []
        size = 0
        while self._kept and not self._paused and size < MOST_UNSENT:
            frames, count = self._kept.popleft()
            self._kept_messages -= count
            self._kept_bytes -= len(frames)
            self._unread.bytes -= len(frames)
            size += len(frames)
            part.append(frames)
        if not self.is_open:
            return
        if part:
            self._write(b"".join(part))
        if self._paused:
            return
        if part:
            # Also when that was the last: only then it is known whether it was too much.
            self._draining = self._call_later(0.0, self._drain)
            return
        self._flowing = True
        if self._loss.lost:
            loss, self._loss = self._loss, MessageLoss()
            self.on_resumed(loss)

    def _stalled(self) -> None:
        """The other side did not read enough for long. It may go on if it read at all."""
        self._stall = None
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent_before:
            self._unsent_before = unsent
            self._stall = self._call_later(self._settings.stalled, self._stalled)
            return
        self._give_up(SLOW_READER_CODE, f"You read nothing for {self._settings.stalled:g} seconds.")

    # -- a side that is silent

    def _look(self) -> None:
        """Whether the other side is still there. Who does not read is looked after elsewhere."""
        if self._never_ends():
            self._looking = None
            self._give_up(
                SLOW_READER_CODE, f"A message of yours did not end within {UNFINISHED:g} seconds."
            )
            return
        if self._heard or self._paused:
            self._heard = self._pinged = False
        elif self._pinged:
            self._looking = None
            self._give_up(NO_ANSWER, "You answered no ping.")
            return
        else:
            self._pinged = True
            self._write(_PING)
        self._looking = self._call_later(self._settings.ping, self._look)

    def _never_ends(self) -> bool:
        """Whether the other side has been in the middle of one message for too long: what came of
        it is kept meanwhile."""
        decoder = self._decoder
        if not decoder.is_unfinished or decoder.finished_count != self._finished:
            self._finished = decoder.finished_count
            self._unfinished = 0.0
        elif self._begun:
            self._unfinished += self._settings.ping
        self._begun = decoder.is_unfinished
        return self._unfinished >= UNFINISHED

    def _handle_ping(self, sign: Ping | Pong) -> None:
        """The other side says that it is there, or asks whether this one is. Nobody has to say so
        all the time, and a node does better things than to answer that."""
        self._signs += 1
        if self._signs == 1:
            self._second = self._call_later(1.0, self._count_anew)
        elif self._signs > MOST_SIGNS:
            self._give_up(
                SLOW_READER_CODE, f"You sent more than {MOST_SIGNS} pings and pongs in a second."
            )
            return
        if not isinstance(sign, Ping):
            return
        if self._paused:
            # Somebody who sends pings and reads no answers gets one at most.
            self._unanswered = sign.payload
        else:
            self._write(pong_frame(sign.payload))

    def _count_anew(self) -> None:
        self._second = None
        self._signs = 0

    # -- ending

    def _on_close_frame(self, code: int, reason: str) -> None:
        self._end("it left" + (f": {reason}" if reason else ""))

    def _give_up(self, code: int, reason: str) -> None:
        self._shut()
        self._send_close(code, reason)
        self._end(f"it was closed: {reason}")

    def _end(self, why: str) -> None:
        self._shut()
        if not self._told_gone:
            self._told_gone = True
            self.on_gone(why)

    def _shut(self) -> None:
        """Nothing goes in or out any more but the closing."""
        self.is_open = self._flowing = False
        self._kept.clear()
        self._unread.bytes -= self._kept_bytes
        self._kept_messages = self._kept_bytes = 0
        for timer in (self._stall, self._draining, self._looking, self._second):
            if timer is not None:
                timer.cancel()
        self._stall = self._draining = self._looking = self._second = None
