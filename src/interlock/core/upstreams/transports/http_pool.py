"""Keep-alive HTTP/1.1 connections to one origin, parsed with httptools.

A connection carries one request at a time. It returns to the pool only when its response was read
completely, so that an unread response is never taken for the next one.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from collections import deque
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

import httptools

from interlock.core.ports import Clock
from interlock.core.upstreams.transports.transport import MAX_MESSAGE
from interlock.errors import TOO_BUSY, UPSTREAM_LOST, UPSTREAM_UNAVAILABLE, Failure

IDLE_TIMEOUT_SECONDS: Final = 4.0
"""Servers close idle connections after 5 s or more. A shorter timeout avoids a race with them."""
CONNECT_TIMEOUT_SECONDS: Final = 10.0
STREAM_LINGER_SECONDS: Final = 1.0
"""The time for which a stream may stay open after the response came on it, and occupy a
connection."""
_MAX_WAITING_REQUESTS: Final = 10_000
_MAX_HEADER_BYTES: Final = 64 * 1024
"""Bytes of a response outside of its body: headers, 1xx responses before it, trailers."""
_MAX_CACHED_HEADS: Final = 16

_log = logging.getLogger("interlock.upstreams")


class HttpResponseHandler(Protocol):
    """Receives the response to one request."""

    connection: HttpConnection | None
    """The connection that carries the request. None: it waits for one."""

    def on_response(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        """Handle a complete response that is no event stream."""

    def on_stream_start(self, headers: dict[bytes, bytes]) -> None:
        """Handle the headers of an event stream."""

    def on_stream_data(self, data: bytes) -> None:
        """Handle a part of the event stream."""

    def on_stream_end(self) -> None:
        """Handle the proper end of the event stream."""

    def on_failure(self, failure: Failure, message: str, *, was_sent: bool) -> None:
        """Handle that the response, or the rest of it, will not come."""


class Origin:
    """The origin and path of a URL."""

    __slots__ = ("authority", "host", "path", "port", "tls")

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.tls = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if self.tls else 80)
        self.path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = parts.port is None
        self.authority = host if default else f"{host}:{self.port}"

    def is_same_origin(self, other: Origin) -> bool:
        return (self.host, self.port, self.tls) == (other.host, other.port, other.tls)


class _Head:
    """A parsed response head: its headers and content length."""

    __slots__ = ("headers", "length")

    def __init__(self, length: int, headers: dict[bytes, bytes]) -> None:
        self.length = length
        self.headers = headers


class HttpConnection(asyncio.Protocol):
    """One connection, with at most one request on it."""

    __slots__ = (
        "_body", "_chunk", "_header_bytes", "_header_bytes_since_body",
        "_headers", "_heads", "_is_at_message_start", "_is_complete", "_is_stream", "_keep_alive",
        "_last_bytes", "_last_head", "_last_size", "_last_start",
        "_parser", "_pool", "_size", "_status", "closed", "idle_since", "reply",
        "transport",
    )  # fmt: skip

    def __init__(self, pool: HttpPool) -> None:
        self._pool = pool
        self._parser: Any = None
        """Set from `connection_made` to `connection_lost`: both objects refer to each other."""
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.reply: HttpResponseHandler | None = None
        self.closed = False
        self.idle_since = 0.0
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._header_bytes = 0
        self._header_bytes_since_body = 0
        """Bytes of this response since the last byte of its body."""
        self._is_stream = False
        self._is_at_message_start = True
        self._is_complete = False
        self._keep_alive = False
        self._status = 0
        self._chunk = b""
        self._heads: dict[bytes, _Head] = {}
        # The last head. It needs no lookup.
        self._last_head: _Head | None = None
        self._last_bytes = b""
        self._last_start = 0
        self._last_size = -1

    def send(self, request: bytes, reply: HttpResponseHandler) -> None:
        self.reply = reply
        reply.connection = self
        self.transport.write(request)

    def fail_out_of_step(self) -> None:
        """Close the connection: a message on it was not the response, so later ones are unsafe."""
        self._fail("its responses do not match the requests")

    def on_stream_response(self) -> None:
        """Handle that the response came on the event stream of this connection."""
        if self.reply is not None:
            self._pool.linger(self)

    def abort(self) -> None:
        """Close the connection and drop its request."""
        self.reply = None
        self.closed = True
        self._body = []
        self.transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods but not the base class.
        self.transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        if self._is_at_message_start and self.reply is not None:
            # The same head as before: only the body is new.
            start = self._last_start
            if len(data) == self._last_size and data[:start] == self._last_bytes:
                head = self._last_head
            else:
                start = data.find(b"\r\n\r\n") + 4
                head = self._heads.get(data[:start])
                if head is not None and len(data) == start + head.length:
                    self._last_head, self._last_size = head, len(data)
                    self._last_start, self._last_bytes = start, data[:start]
                else:
                    head = None
            if head is not None:
                reply, self.reply = self.reply, None
                pool = self._pool
                if pool.waiting or pool.closed:
                    pool.release(self)
                else:
                    clock = pool.clock
                    self.idle_since = clock()
                    pool.idle.append(self)
                reply.on_response(200, head.headers, data[start:])
                return
        if self.reply is None:
            # Data without a request must not be taken for the next response.
            self.abort()
            return
        self._chunk = data if self._is_at_message_start else b""
        self._header_bytes_since_body += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            if not self._is_complete:
                self._on_parser_error(exc)
                return
            # The response is complete. The data after it was not requested.
            self._keep_alive = False
        if self._is_complete:
            self._finish()
        elif self._header_bytes_since_body > _MAX_HEADER_BYTES:
            # The parser buffers an unterminated header and copies it with every read.
            self._fail(f"its response has more than {_MAX_HEADER_BYTES} bytes outside of its body")
        self._chunk = b""

    def _on_parser_error(self, exc: Exception) -> None:
        cause = exc.__context__
        if isinstance(exc, httptools.HttpParserCallbackError) and not isinstance(
            cause, httptools.HttpParserError
        ):
            _log.error("upstream %s: cannot process its response", self._pool.label, exc_info=cause)
            self._fail("the node failed to process its response")
        else:
            self._fail("its response is not valid HTTP")

    def eof_received(self) -> bool:
        # This connection must not get another request.
        self.closed = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        reply, self.reply = self.reply, None
        body, self._body = self._body, []
        self._parser = None
        self._pool.on_connection_lost(self)
        if reply is None:
            return
        if exc is None and self._ends_with_connection():
            if self._is_stream:
                reply.on_stream_end()
            else:
                reply.on_response(self._status, self._headers, b"".join(body))
            return
        reply.on_failure(
            UPSTREAM_LOST,
            f"{self._pool.label} closed the connection during the call.",
            was_sent=True,
        )

    def _ends_with_connection(self) -> bool:
        """Return whether the end of the connection marks the end of the response being read."""
        return (
            self._status >= 200
            and b"content-length" not in self._headers
            and b"chunked" not in self._headers.get(b"transfer-encoding", b"").lower()
        )

    def _fail(self, reason: str) -> None:
        reply, self.reply = self.reply, None
        self.closed = True
        self._body = []
        self.transport.abort()
        if reply is not None:
            reply.on_failure(UPSTREAM_LOST, f"{self._pool.label}: {reason}.", was_sent=True)

    # -- httptools

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise httptools.HttpParserError("data after the response")
        self._is_at_message_start = False
        self._status = 0
        self._headers = {}
        self._body = []
        self._size = 0
        self._header_bytes = 0
        self._is_stream = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > 64 * 1024:
            raise httptools.HttpParserError("too many headers")
        name = name.lower()
        if name == b"www-authenticate" and name in self._headers:
            # The only header of a response that servers often repeat.
            value = self._headers[name] + b", " + value
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        self._status = status = self._parser.get_status_code()
        content_type = self._headers.get(b"content-type", b"")
        if (
            status == 200
            and content_type[:17].lower() == b"text/event-stream"
            and self.reply is not None
        ):
            self._is_stream = True
            self.reply.on_stream_start(self._headers)

    def on_body(self, body: bytes) -> None:
        self._header_bytes_since_body = 0
        if self._is_stream:
            if self.reply is not None:
                self.reply.on_stream_data(body)
            return
        self._size += len(body)
        if self.reply is None:
            # The request was removed while its response was read.
            return
        max_bytes = self._pool.max_body_bytes
        if self._size > max_bytes:
            self._fail(f"its response is longer than {max_bytes} bytes")
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._is_at_message_start = True
        if self._status >= 200 and self.reply is not None:
            self._is_complete = True
            self._keep_alive = self._parser.should_keep_alive()

    def _finish(self) -> None:
        """Release the connection after the response and all data with it were read."""
        reply, self.reply = self.reply, None
        body, headers, status, stream = self._body, self._headers, self._status, self._is_stream
        if stream:
            self._pool.lingering.pop(self, None)
        self._is_complete = False
        self._status = 0
        self._body = []
        self._header_bytes_since_body = 0
        if self._keep_alive:
            if status == 200 and not stream:
                self._remember_head(headers)
            self._chunk = b""
            self._pool.release(self)
        else:
            self.closed = True
            self.transport.close()
        if reply is None:
            return
        if stream:
            reply.on_stream_end()
        else:
            reply.on_response(status, headers, body[0] if len(body) == 1 else b"".join(body))

    def _remember_head(self, headers: dict[bytes, bytes]) -> None:
        """Cache the head of a response that came in one piece, with its length."""
        chunk = self._chunk
        length = headers.get(b"content-length", b"")
        if not chunk or not length.isdigit() or b"transfer-encoding" in headers:
            return
        end = chunk.find(b"\r\n\r\n")
        if len(chunk) == end + 4 + int(length):
            if len(self._heads) >= _MAX_CACHED_HEADS:
                self._heads.clear()
            self._heads[chunk[: end + 4]] = _Head(int(length), headers)


class HttpPool:
    """Idle and busy connections to one origin, and requests that wait for one."""

    def __init__(
        self,
        label: str,
        origin: Origin,
        limit: int,
        clock: Clock,
        *,
        max_body_bytes: int | None = None,
    ) -> None:
        """
        Args:
            max_body_bytes: the limit of a response body. None: the limit of a message.
        """
        self.max_body_bytes = MAX_MESSAGE if max_body_bytes is None else max_body_bytes
        self.label = label
        self.origin = origin
        self._limit = limit
        self.clock = clock
        # Connections read these directly, where every response passes.
        self.idle: list[HttpConnection] = []
        self._all: set[HttpConnection] = set()
        self._opening = 0
        self.waiting: deque[tuple[bytes, HttpResponseHandler]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tls: ssl.SSLContext | None = None
        self.closed = False
        self.lingering: dict[HttpConnection, float] = {}
        """Connections whose stream is open although its response came, and since when."""
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Future[None] | None = None

    def send(self, request: bytes, reply: HttpResponseHandler) -> None:
        """Send the request on a free connection, or as soon as there is one."""
        idle, clock = self.idle, self.clock
        while idle:
            connection = idle.pop()
            if connection.closed:
                continue
            if clock() - connection.idle_since > IDLE_TIMEOUT_SECONDS:
                connection.abort()
                continue
            connection.reply = reply
            reply.connection = connection
            connection.transport.write(request)
            return
        if self.closed:
            reply.on_failure(UPSTREAM_UNAVAILABLE, f"{self.label} is closed.", was_sent=False)
            return
        if len(self.waiting) >= _MAX_WAITING_REQUESTS:
            reply.on_failure(
                TOO_BUSY,
                f"{_MAX_WAITING_REQUESTS} requests wait for {self.label}. Try again later.",
                was_sent=False,
            )
            return
        self.waiting.append((request, reply))
        self._open_more()

    def send_if_free(self, request: bytes, reply: HttpResponseHandler) -> bool:
        """Send the request if a connection is free. False: it was not sent."""
        now = self.clock()
        if any(
            not connection.closed and now - connection.idle_since <= IDLE_TIMEOUT_SECONDS
            for connection in self.idle
        ):
            self.send(request, reply)
            return True
        return False

    @property
    def connected(self) -> bool:
        """Return whether there is any connection."""
        return bool(self._all)

    def has_waiting(self, reply: HttpResponseHandler) -> bool:
        """Return whether a request waits for a connection."""
        return any(waiting[1] is reply for waiting in self.waiting)

    def remove_waiting(self, reply: HttpResponseHandler) -> None:
        """Remove a request that waits for a connection."""
        for waiting in self.waiting:
            if waiting[1] is reply:
                self.waiting.remove(waiting)
                return

    def linger(self, connection: HttpConnection) -> None:
        """Close the connection soon: the response came, so its stream should end now."""
        self.lingering[connection] = self.clock()
        if self._sweep_timer is None:
            self._sweep_timer = asyncio.get_running_loop().call_later(
                STREAM_LINGER_SECONDS, self._close_lingering
            )

    def _close_lingering(self) -> None:
        now = self.clock()
        for connection, started_at in list(self.lingering.items()):
            if connection.closed or now - started_at >= STREAM_LINGER_SECONDS:
                del self.lingering[connection]
                connection.abort()
        self._sweep_timer = None
        if self.lingering and not self.closed:
            self._sweep_timer = asyncio.get_running_loop().call_later(
                STREAM_LINGER_SECONDS, self._close_lingering
            )

    def release(self, connection: HttpConnection) -> None:
        """Return a connection to the pool after its response was read."""
        if self.closed:
            connection.abort()
            return
        if self.waiting:
            self._send_next(connection)
            return
        clock = self.clock
        connection.idle_since = clock()
        self.idle.append(connection)

    def on_connection_lost(self, connection: HttpConnection) -> None:
        self._all.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        if self.waiting:
            self._open_more()
        if self._all_closed is not None and not self._all and not self._all_closed.done():
            self._all_closed.set_result(None)

    async def close(self, grace: float = 0.0) -> None:
        """Close all connections. Pending requests may complete within `grace` seconds."""
        self.closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self.fail_waiting(f"{self.label} is being closed.")
        for task in self._tasks:
            task.cancel()
        try:
            if self._tasks:
                await asyncio.gather(*self._tasks, return_exceptions=True)
            for connection in self.idle:
                connection.abort()
            if grace and self._all:
                self._all_closed = asyncio.get_running_loop().create_future()
                await asyncio.wait([self._all_closed], timeout=grace)
        finally:
            for connection in list(self._all):
                connection.abort()

    def _open_more(self) -> None:
        while self._opening < len(self.waiting) and self._opening + len(self._all) < self._limit:
            self._opening += 1
            task = asyncio.get_running_loop().create_task(self._open())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        origin = self.origin
        if origin.tls and self._tls is None:
            # One context for all connections: creating one costs more than many calls.
            self._tls = ssl.create_default_context()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                _, connection = await loop.create_connection(
                    lambda: HttpConnection(self),
                    origin.host,
                    origin.port,
                    ssl=self._tls if origin.tls else None,
                )
        except (OSError, TimeoutError, UnicodeError) as exc:
            self._opening -= 1
            reason = (
                f"no response within {CONNECT_TIMEOUT_SECONDS:g} s."
                if isinstance(exc, TimeoutError)
                else _describe_error(exc)
            )
            if not self._all:
                self.fail_waiting(f"Cannot connect to {self.label} at {origin.authority}: {reason}")
            return
        except asyncio.CancelledError:
            self._opening -= 1
            raise
        self._opening -= 1
        self._all.add(connection)
        self.release(connection)

    def _send_next(self, connection: HttpConnection) -> None:
        request, reply = self.waiting.popleft()
        connection.send(request, reply)

    def fail_waiting(self, message: str) -> None:
        """Fail all requests that were not sent yet."""
        while self.waiting:
            _, reply = self.waiting.popleft()
            reply.on_failure(UPSTREAM_UNAVAILABLE, message, was_sent=False)


def _describe_error(exc: OSError | UnicodeError) -> str:
    if isinstance(exc, UnicodeError):
        return "the host name in `url` is invalid."
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({exc.verify_message})."
    # A host with several addresses fails with one error that lists the others in its text.
    refusals = str(exc).count(f"[Errno {errno.ECONNREFUSED}]")
    if isinstance(exc, ConnectionRefusedError) or 0 < refusals == str(exc).count("[Errno "):
        return "connection refused. Start the server, or correct `url`."
    return f"{exc.strerror or str(exc) or type(exc).__name__}."
