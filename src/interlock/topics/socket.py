"""The WebSocket of one member of a topic. Nothing ever waits for it.

Messages for several members arrive as bytes that were framed once, and are sent with one write. If
the peer does not read, its messages are queued up to a limit. Messages above the limit are counted,
and the member is told how many it lost. A peer that reads nothing for too long is disconnected.
None of this affects other members.

This module uses its transport and the timers that it is given. It knows nothing of rooms or
envelopes.
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

MAX_UNSENT_BYTES: Final = 256 * 1024
"""The transport reports that the peer does not read when more bytes than this are buffered."""
NO_PONG_CLOSE_CODE: Final = 1011
"""The close code for a member that answered no ping."""
MAX_MESSAGE_SECONDS: Final = 60.0
"""Seconds that a message may take to arrive, plus one ping interval."""
MAX_PINGS_PER_SECOND: Final = 1_000
"""The maximum number of pings and pongs per second. Above it the member is disconnected."""
GUEST_QUEUE_DIVISOR: Final = 4
"""The queue of a guest is this many times smaller."""
MAX_LOST_KINDS: Final = 16
"""The maximum number of kinds that are listed by name among lost messages."""
OTHER_KINDS: Final = "…"

_PING: Final = ping_frame()


def format_now() -> str:
    return format_utc_ms(time.time())


def _ignore_event() -> None:
    """Ignore the event."""


class TopicSocket(WebSocketConnection):
    """The WebSocket of a member, and its `MessageSink`."""

    def __init__(
        self,
        transport: Any,
        *,
        settings: TopicConfig,
        on_text: Callable[[bytes], object],
        on_disconnect: Callable[[str], None],
        on_resumed: Callable[[MessageLoss], None],
        call_later: CallLater,
        unread: RoomBacklog | None = None,
        guest: bool = False,
        now: Callable[[], str] = format_now,
    ) -> None:
        """
        Args:
            on_text: called with each complete message.
            on_disconnect: called once with the reason when the peer has left or was disconnected.
                No message follows.
            on_resumed: called with the losses when the peer reads again; all queued messages are
                already sent.
            unread: the size of the queued messages of the whole room, including this socket.
            guest: a guest has a smaller queue and shorter messages.
            now: returns the time as RFC 3339 text.
        """
        self.on_text = on_text
        self.on_disconnect = on_disconnect
        self.on_resumed = on_resumed
        self.on_connection_lost: Callable[[], None] = _ignore_event
        """Called last, when the connection is closed."""
        self._settings = settings
        share = GUEST_QUEUE_DIVISOR if guest else 1
        self._max_queued_messages = max(1, settings.queue // share)
        self._max_queued_bytes = settings.queue_bytes // share
        self._backlog = unread or RoomBacklog()
        self._max_backlog_bytes = settings.unread // 2 if guest else settings.unread
        self._now = now
        self.is_open = True
        self._can_write = True
        """True if messages are written at once. False in every other state."""
        self._is_paused = False
        """True if the buffer of the transport is full."""
        self._queued: deque[tuple[bytes, int]] = deque()
        """Queued frames, with the number of messages in each."""
        self._queued_messages = 0
        self._queued_bytes = 0
        self._loss = MessageLoss()
        self._is_disconnect_reported = False
        self._has_received = True
        """True if data arrived since the last check."""
        self._is_ping_sent = False
        self._pending_pong: bytes | None = None
        """The last ping that arrived while nothing could be written."""
        self._was_incomplete = False
        """True if a message was incomplete at the last check."""
        self._finished_messages = 0
        self._incomplete_seconds = 0.0
        """Seconds for which that message has been incomplete, at least."""
        self._ping_count = 0
        """The number of pings and pongs in this second."""
        self._ping_timer: Timer | None = None
        self._last_unsent_bytes = 0
        self._stall_timer: Timer | None = None
        self._drain_timer: Timer | None = None
        self._check_timer: Timer | None = call_later(settings.ping, self._check_alive)
        super().__init__(
            transport,
            is_client=False,
            max_message=min(MAX_ENVELOPE_BYTES, settings.guest_message)
            if guest
            else MAX_ENVELOPE_BYTES,
            max_unsent=MAX_UNSENT_BYTES,
            call_later=call_later,
        )

    @property
    def unread(self) -> int:
        """The number of bytes that wait until the peer reads."""
        if self._transport.is_closing():
            return 0
        return int(self._transport.get_write_buffer_size()) + self._queued_bytes

    # -- asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        self._has_received = True
        for event in self._decoder.feed(data):
            if type(event) is not bytes:
                self._handle_event(event)
            elif self.is_open:
                self.on_text(event)

    def pause_writing(self) -> None:
        self._is_paused = True
        self._can_write = False
        if self.is_open and self._stall_timer is None:
            self._last_unsent_bytes = self._transport.get_write_buffer_size()
            self._stall_timer = self._call_later(self._settings.stalled, self._on_stall)

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._pending_pong is not None and self.is_open:
            self._write(pong_frame(self._pending_pong))
            self._pending_pong = None
        self._drain()

    def eof_received(self) -> None:
        # The connection closes once everything is written. The peer may never read that.
        self._end("the client closed the connection")
        self._start_close_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.on_connection_lost()

    # -- MessageSink

    def deliver(self, batch: Batch) -> None:
        """Send or queue messages. Called for every member in every turn, so the common case is one
        test and one write."""
        if self._can_write:
            self._write(batch.frames)
        elif self.is_open:
            self._enqueue(batch)

    def close(self, code: int, reason: str) -> None:
        """Send the reason behind all pending data and close. No message is accepted after this.

        The caller knows that the member is gone; `on_disconnect` is called again once the
        connection is
        closed.
        """
        if self.is_open:
            self._stop_traffic()
            self._send_close(code, reason)

    def abort(self) -> None:
        """Drop the connection at once, without a close frame. Also for a connection that is
        closing, which otherwise waits until the peer reads."""
        self._transport.abort()

    # -- slow readers

    def _enqueue(self, batch: Batch) -> None:
        """Queue the messages that fit.

        After the first that does not fit, nothing is queued until the peer has read everything and
        was told, so that the loss is one gap.
        """
        count, size = len(batch.texts), len(batch.frames)
        if self._loss.count:
            self._count_lost(batch, 0)
        elif (
            self._queued_messages + count <= self._max_queued_messages
            and size <= self._remaining_bytes()
        ):
            self._append(batch.frames, count)
        elif self._settings.overflow == "close":
            reason = f"You did not read {self._queued_messages} messages. The queue is full."
            self._stop_traffic()
            self._send_close(SLOW_READER_CODE, reason)
            # Later: the room is iterating over its members.
            self._call_later(0.0, lambda: self._end(reason))
        else:
            self._count_lost(batch, self._enqueue_part(batch))

    def _remaining_bytes(self) -> int:
        """Return how many more bytes may be queued, by the limits of this socket and of the
        room."""
        return min(
            self._max_queued_bytes - self._queued_bytes,
            self._max_backlog_bytes - self._backlog.bytes,
        )

    def _append(self, frames: bytes, count: int) -> None:
        self._queued.append((frames, count))
        self._queued_messages += count
        self._queued_bytes += len(frames)
        self._backlog.bytes += len(frames)

    def _enqueue_part(self, batch: Batch) -> int:
        """Queue as many messages of a batch as fit. Returns their number."""
        messages = self._max_queued_messages - self._queued_messages
        size = self._remaining_bytes()
        frames: list[bytes] = []
        for text in batch.texts[:messages]:
            frame = text_frame(text)
            size -= len(frame)
            if size < 0:
                break
            frames.append(frame)
        if frames:
            self._append(b"".join(frames), len(frames))
        return len(frames)

    def _count_lost(self, batch: Batch, start: int) -> None:
        loss = self._loss
        loss.last = self._now()
        loss.first = loss.first or loss.last
        kinds = loss.kinds
        for head in batch.heads[start:]:
            loss.count += 1
            kind = head.kind if head.kind in kinds or len(kinds) < MAX_LOST_KINDS else OTHER_KINDS
            kinds[kind] = kinds.get(kind, 0) + 1

    def _drain(self) -> None:
        """Write the queue, a part in each turn: some transports report only at the end of a turn
        that their buffer is full."""
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None
        part: list[bytes] = []
        size = 0
        while self._queued and not self._is_paused and size < MAX_UNSENT_BYTES:
            frames, count = self._queued.popleft()
            self._queued_messages -= count
            self._queued_bytes -= len(frames)
            self._backlog.bytes -= len(frames)
            size += len(frames)
            part.append(frames)
        if not self.is_open:
            return
        if part:
            self._write(b"".join(part))
        if self._is_paused:
            return
        if part:
            # Also after the last part: only then the transport reports a full buffer.
            self._drain_timer = self._call_later(0.0, self._drain)
            return
        self._can_write = True
        if self._loss.count:
            loss, self._loss = self._loss, MessageLoss()
            self.on_resumed(loss)

    def _on_stall(self) -> None:
        """Disconnect a peer that has read nothing for too long. A peer that has read something may
        stay."""
        self._stall_timer = None
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._last_unsent_bytes:
            self._last_unsent_bytes = unsent
            self._stall_timer = self._call_later(self._settings.stalled, self._on_stall)
            return
        self._give_up(SLOW_READER_CODE, f"You read nothing for {self._settings.stalled:g} seconds.")

    # -- silent peers

    def _check_alive(self) -> None:
        """Check whether the peer is alive. A peer that does not read has its own timer."""
        if self._is_incomplete_too_long():
            self._check_timer = None
            self._give_up(
                SLOW_READER_CODE,
                f"Your message was not complete after {MAX_MESSAGE_SECONDS:g} seconds.",
            )
            return
        if self._has_received or self._is_paused:
            self._has_received = self._is_ping_sent = False
        elif self._is_ping_sent:
            self._check_timer = None
            self._give_up(NO_PONG_CLOSE_CODE, "You did not respond to a ping.")
            return
        else:
            self._is_ping_sent = True
            self._write(_PING)
        self._check_timer = self._call_later(self._settings.ping, self._check_alive)

    def _is_incomplete_too_long(self) -> bool:
        """Return whether one message has been incomplete for too long: its parts use memory."""
        decoder = self._decoder
        if not decoder.is_unfinished or decoder.finished_count != self._finished_messages:
            self._finished_messages = decoder.finished_count
            self._incomplete_seconds = 0.0
        elif self._was_incomplete:
            self._incomplete_seconds += self._settings.ping
        self._was_incomplete = decoder.is_unfinished
        return self._incomplete_seconds >= MAX_MESSAGE_SECONDS

    def _handle_ping(self, sign: Ping | Pong) -> None:
        """Count a ping or pong, and respond to a ping. A peer that sends too many is
        disconnected."""
        self._ping_count += 1
        if self._ping_count == 1:
            self._ping_timer = self._call_later(1.0, self._reset_ping_count)
        elif self._ping_count > MAX_PINGS_PER_SECOND:
            self._give_up(
                SLOW_READER_CODE,
                f"You sent more than {MAX_PINGS_PER_SECOND} pings and pongs in a second.",
            )
            return
        if not isinstance(sign, Ping):
            return
        if self._is_paused:
            # A peer that sends pings and does not read gets at most one pong.
            self._pending_pong = sign.payload
        else:
            self._write(pong_frame(sign.payload))

    def _reset_ping_count(self) -> None:
        self._ping_timer = None
        self._ping_count = 0

    # -- closing

    def _on_close_frame(self, code: int, reason: str) -> None:
        self._end("the client left" + (f": {reason}" if reason else ""))

    def _give_up(self, code: int, reason: str) -> None:
        self._stop_traffic()
        self._send_close(code, reason)
        self._end(f"disconnected: {reason}")

    def _end(self, reason: str) -> None:
        self._stop_traffic()
        if not self._is_disconnect_reported:
            self._is_disconnect_reported = True
            self.on_disconnect(reason)

    def _stop_traffic(self) -> None:
        """Stop all traffic except closing."""
        self.is_open = self._can_write = False
        self._queued.clear()
        self._backlog.bytes -= self._queued_bytes
        self._queued_messages = self._queued_bytes = 0
        for timer in (self._stall_timer, self._drain_timer, self._check_timer, self._ping_timer):
            if timer is not None:
                timer.cancel()
        self._stall_timer = self._drain_timer = self._check_timer = self._ping_timer = None
