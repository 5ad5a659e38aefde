"""Resumable event streams of a session (MCP 2025-11-25, "Resumability and Redelivery").

Every event has an id that is unique in its session. A client whose connection broke reconnects with
the last id that it received, and gets the missed events of that stream and of no other. The number,
the size and the lifetime of buffered events are limited. A client that reconnects too late gets an
error.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from typing import Final

from interlock.core.call import Call
from interlock.core.server.http.exchange import HttpExchange
from interlock.errors import INVALID_REQUEST, InterlockError
from interlock.protocol.sse import encode_event

KEPT_FOR = 120.0
"""The seconds that the stream of a request waits for its client after the connection has ended."""
MAX_EVENTS = 256
MAX_BYTES = 1024 * 1024
"""The limits of the events that one stream buffers. The last event is always kept: on the stream of
a request it is the response."""
MAX_STREAMS = 32
"""The maximum number of streams without a connection in one session."""
RETRY_MS = 500
"""The time in milliseconds after which a client reconnects (the `retry` field of an event)."""
_PRIMED: Final = frozenset({"2025-11-25"})
"""The revisions whose clients understand an event that has an id and no data."""


class ResumableStream:
    """A stream with a buffer of recent events, and the connection that carries it now."""

    __slots__ = (
        "_events", "_first_event", "_next_event", "_session_streams", "_size",
        "connection", "disconnected_at", "expiry_timer", "is_finished", "is_session_stream",
        "number",
    )  # fmt: skip

    def __init__(
        self, session_streams: ResumableStreams, number: int, *, is_session_stream: bool
    ) -> None:
        self.number = number
        self.is_session_stream = is_session_stream
        """True if it carries the messages that belong to no request, False for the stream of a
        request."""
        self.connection: HttpExchange | None = None
        self.is_finished = False
        """True after the last message."""
        self.disconnected_at = 0.0
        """When its last connection ended, on the loop's clock."""
        self.expiry_timer: asyncio.TimerHandle | None = None
        self._session_streams = session_streams
        self._events: deque[bytes] = deque()
        self._size = 0
        self._first_event = 0
        """The number of the oldest buffered event."""
        self._next_event = 0

    def send(self, payload: bytes) -> None:
        """Send a message, and buffer it for a client that reconnects."""
        self._send_event(payload, None)

    def prime(self) -> None:
        """Send an event without data, so that the client can resume before the first message."""
        self._send_event(b"", RETRY_MS)

    def finish(self, payload: bytes | None) -> None:
        """Send the last message, if any, and end the stream."""
        if payload is not None:
            self._send_event(payload, None)
        self.is_finished = True
        if self.connection is not None:
            self.hang_up()
        else:
            # The response is complete. Restart the expiry, so that the client can still get it.
            self._session_streams.on_stream_disconnected(self)

    def hang_up(self) -> None:
        """End the connection. The stream continues when the client resumes it."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.on_disconnect = None
            connection.end_stream()
            self._session_streams.on_stream_disconnected(self)

    def ping(self) -> None:
        if self.connection is not None:
            self.connection.ping()

    @property
    def seconds_disconnected(self) -> float:
        """The time in seconds without a connection."""
        if self.connection:
            return 0.0
        return asyncio.get_running_loop().time() - self.disconnected_at

    def events_after(self, event_number: int) -> list[bytes]:
        """Return the events after this one.

        Args:
            event_number: the number of the last event that the client received.

        Raises:
            InterlockError: there is no such event, or later events are no longer buffered.
        """
        if event_number >= self._next_event:
            raise _resume_error("no such event was sent on this session")
        if event_number < self._first_event - 1:
            raise _resume_error("what came after it is no longer kept")
        return list(self._events)[event_number + 1 - self._first_event :]

    def attach(self, exchange: HttpExchange, events: list[bytes]) -> None:
        """Continue on this connection.

        Args:
            exchange: the connection, with an open event stream.
            events: the missed events, which are sent first.
        """
        previous, self.connection = self.connection, exchange
        if previous is not None:
            # The client has reconnected, so its previous connection is dead.
            previous.on_disconnect = None
            previous.end_stream()
        if self.expiry_timer is not None:
            self.expiry_timer.cancel()
            self.expiry_timer = None
        exchange.stream = self
        exchange.on_disconnect = self._on_disconnect
        for event in events:
            exchange.write_event(event)
        if self.is_finished:
            self.hang_up()

    def _send_event(self, payload: bytes, retry: int | None) -> None:
        id = f"{self._session_streams.id_prefix}-{self.number}-{self._next_event}"
        event = encode_event(payload, id=id, retry=retry)
        self._next_event += 1
        self._events.append(event)
        self._size += len(event)
        while len(self._events) > MAX_EVENTS or (self._size > MAX_BYTES and len(self._events) > 1):
            self._size -= len(self._events.popleft())
            self._first_event += 1
        if self.connection is not None:
            self.connection.write_event(event)

    def _on_disconnect(self, exchange: HttpExchange) -> None:
        if exchange is self.connection:
            self.connection = None
            self._session_streams.on_stream_disconnected(self)


class ResumableStreams:
    """All streams of one session."""

    __slots__ = ("_last_number", "_streams", "id_prefix", "on_disconnect", "primed")

    def __init__(self, revision: str) -> None:
        self.primed = revision in _PRIMED
        """True if each stream begins with an event without data."""
        self.id_prefix = secrets.token_hex(6)
        """The first part of every event id. It distinguishes the sessions."""
        self.on_disconnect: Callable[[], None] | None = None
        """Called when a connection has ended."""
        self._last_number = 0
        self._streams: dict[int, ResumableStream] = {}

    @property
    def connected(self) -> int:
        """The number of session streams that have a connection."""
        return sum(
            1
            for stream in self._streams.values()
            if stream.is_session_stream and stream.connection is not None
        )

    def __len__(self) -> int:
        return len(self._streams)

    # -- opening

    def open_session_stream(self, exchange: HttpExchange) -> None:
        """Open a new session stream, for messages that belong to no request."""
        for stream in list(self._streams.values()):
            if stream.is_session_stream and stream.connection is None:
                # The client opens a new stream instead of resuming: it does not want missed events.
                self._remove(stream)
        self._open(exchange, is_session_stream=True)

    def open_request_stream(self, exchange: HttpExchange) -> ResumableStream | None:
        """Return the stream of a request, and open it if necessary. None: the client has
        disconnected."""
        stream: ResumableStream | None = exchange.stream
        if stream is None and not exchange.done:
            stream = self._open(exchange, is_session_stream=False)
        return stream

    def resume(self, exchange: HttpExchange, last_event_id: bytes) -> None:
        """Resume the stream of an event.

        Raises:
            InterlockError: the id is invalid, or the missed events are no longer buffered.
        """
        prefix, _, position = last_event_id.strip().partition(b"-")
        stream_number, _, event_number = position.partition(b"-")
        if prefix != self.id_prefix.encode() or not (
            _is_number(stream_number) and _is_number(event_number)
        ):
            raise _resume_error("it is no event id of this session")
        stream = self._streams.get(int(stream_number))
        if stream is None:
            raise _resume_error("its stream is no longer kept")
        events = stream.events_after(int(event_number))
        exchange.open_stream()
        stream.attach(exchange, events)

    def _open(self, exchange: HttpExchange, *, is_session_stream: bool) -> ResumableStream:
        self._last_number += 1
        number = self._last_number
        stream = ResumableStream(self, number, is_session_stream=is_session_stream)
        self._streams[number] = stream
        exchange.open_stream()
        stream.attach(exchange, [])
        if self.primed:
            stream.prime()
        return stream

    # -- messages to the client

    def send(self, payload: bytes, call: Call | None, *, question: bool = False) -> bool:
        """Send a message on exactly one stream: the stream of the call if possible, else a session
        stream.

        Args:
            payload: the encoded message.
            call: the call that the message belongs to.
            question: True for a client request. It is not buffered for a client that has been
                disconnected for longer than `KEPT_FOR`.

        Returns:
            False if there is no stream for the message.
        """
        stream = self._find_stream(call)
        if stream is None or (question and stream.seconds_disconnected > KEPT_FOR):
            return False
        stream.send(payload)
        return True

    def _find_stream(self, call: Call | None) -> ResumableStream | None:
        request_stream: ResumableStream | None = None
        exchange = None if call is None else call.context
        if isinstance(exchange, HttpExchange):
            request_headers = exchange.head.request_headers
            if exchange.stream is not None or (
                request_headers is not None and request_headers.accepts_stream
            ):
                request_stream = self.open_request_stream(exchange)
            if request_stream is not None and request_stream.connection is not None:
                return request_stream
            if request_stream is not None and request_stream.number not in self._streams:
                request_stream = None
        disconnected_stream: ResumableStream | None = None
        # The newest first: the connections of older streams may be dead.
        for stream in reversed(self._streams.values()):
            if stream.is_session_stream:
                if stream.connection is not None:
                    return stream
                disconnected_stream = disconnected_stream or stream
        # No stream has a connection now. The message is buffered until the client reconnects.
        return request_stream or disconnected_stream

    def hang_up(self, call: Call) -> None:
        """End the connection of a call, if its client is able to resume the stream."""
        exchange = call.context
        if not self.primed or not isinstance(exchange, HttpExchange):
            return
        request_headers = exchange.head.request_headers
        if exchange.stream is not None or (
            request_headers is not None and request_headers.accepts_stream
        ):
            stream = self.open_request_stream(exchange)
            if stream is not None:
                stream.hang_up()

    def ping(self) -> None:
        """Send a ping on the session streams."""
        for stream in list(self._streams.values()):
            if stream.is_session_stream:
                stream.ping()

    def stop_listening(self) -> None:
        """End the session streams."""
        for stream in list(self._streams.values()):
            if stream.is_session_stream:
                stream.finish(None)

    def end(self) -> None:
        """End all streams. The session has ended."""
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.finish(None)
            self._remove(stream)

    # -- streams without a connection

    def on_stream_disconnected(self, stream: ResumableStream) -> None:
        """Start the expiry of a stream that has lost its connection or needs no connection."""
        if self.on_disconnect is not None:
            self.on_disconnect()
        if stream.number not in self._streams:
            return
        loop = asyncio.get_running_loop()
        stream.disconnected_at = loop.time()
        if stream.expiry_timer is not None:
            stream.expiry_timer.cancel()
            stream.expiry_timer = None
        # The only session stream exists as long as the session: a client that was disconnected for
        # an hour still gets the change notifications.
        if not stream.is_session_stream or any(
            other.is_session_stream for other in self._streams.values() if other is not stream
        ):
            stream.expiry_timer = loop.call_later(KEPT_FOR, self._remove, stream)
        disconnected = [other for other in self._streams.values() if other.connection is None]
        for old in disconnected[: max(0, len(disconnected) - MAX_STREAMS)]:
            self._remove(old)

    def _remove(self, stream: ResumableStream) -> None:
        self._streams.pop(stream.number, None)
        if stream.expiry_timer is not None:
            stream.expiry_timer.cancel()
            stream.expiry_timer = None


def _is_number(text: bytes) -> bool:
    """Return whether the text is a decimal number of reasonable length."""
    return text.isdigit() and len(text) <= 18


def _resume_error(reason: str) -> InterlockError:
    return InterlockError(
        INVALID_REQUEST,
        f"Last-Event-ID cannot be served: {reason}. Open a new stream without it.",
    )
