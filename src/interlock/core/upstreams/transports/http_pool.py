"""Keep-alive HTTP/1.1 connections to one origin, on httptools.

A connection carries one request at a time and goes back into the pool only when its answer was
read to the end: an unread answer must never meet the next request.
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

IDLE_KEPT: Final = 4.0
"""Servers close idle connections after 5 s or more; a shorter life avoids racing them."""
CONNECT_TIMEOUT: Final = 10.0
LINGER: Final = 1.0
"""How long a stream may stay open after the answer came on it, and hold a connection."""
_MOST_WAITING: Final = 10_000
_MOST_BESIDE_BODY: Final = 64 * 1024
"""Bytes of an answer that are no body: heads, 1xx answers before it, trailers."""
_HEADS_KEPT: Final = 16

_log = logging.getLogger("interlock.upstreams")


class Reply(Protocol):
    """What becomes of a request's answer."""

    connection: HttpConnection | None
    """What carries the request, as soon as something does."""

    def whole(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        """An answer that is not a stream."""

    def opened(self, headers: dict[bytes, bytes]) -> None:
        """An event stream begins."""

    def chunk(self, data: bytes) -> None:
        """A part of the event stream."""

    def ended(self) -> None:
        """The event stream ended properly."""

    def failed(self, failure: Failure, message: str, *, sent: bool) -> None:
        """There is no answer, or no more of it."""


class Origin:
    """Where a URL leads."""

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

    def same_place(self, other: Origin) -> bool:
        return (self.host, self.port, self.tls) == (other.host, other.port, other.tls)


class _Head:
    """What the head of an answer said, when httptools read it."""

    __slots__ = ("headers", "length")

    def __init__(self, length: int, headers: dict[bytes, bytes]) -> None:
        self.length = length
        self.headers = headers


class HttpConnection(asyncio.Protocol):
    """One connection; at most one request on it."""

    __slots__ = (
        "_answered", "_beside_body", "_between", "_body", "_chunk", "_header_bytes",
        "_headers", "_heads", "_keep",
        "_last_bytes", "_last_head", "_last_size", "_last_start",
        "_parser", "_pool", "_size", "_status", "_stream", "closed", "idle_since", "reply",
        "transport",
    )  # fmt: skip

    def __init__(self, pool: HttpPool) -> None:
        self._pool = pool
        self._parser: Any = None
        """From `connection_made` to `connection_lost`: it and this point at each other."""
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.reply: Reply | None = None
        self.closed = False
        self.idle_since = 0.0
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._header_bytes = 0
        self._beside_body = 0
        """Bytes of this answer that came since the last byte of its body."""
        self._stream = False
        self._between = True
        self._answered = False
        self._keep = False
        self._status = 0
        self._chunk = b""
        self._heads: dict[bytes, _Head] = {}
        # The one that came last, for which not even a look-up is needed.
        self._last_head: _Head | None = None
        self._last_bytes = b""
        self._last_start = 0
        self._last_size = -1

    def send(self, request: bytes, reply: Reply) -> None:
        self.reply = reply
        reply.connection = self
        self.transport.write(request)

    def distrust(self) -> None:
        """Something else than an answer came: whatever comes next is not to be believed."""
        self._break("its answers do not fit what was asked")

    def answered(self) -> None:
        """The answer has come on the stream that this connection carries."""
        if self.reply is not None:
            self._pool.answered_on(self)

    def abort(self) -> None:
        """Give up the request and the connection with it."""
        self.reply = None
        self.closed = True
        self._body = []
        self.transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods, but not the base class.
        self.transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        if self._between and self.reply is not None:
            # A head that was parsed before says the same again: only its body is new.
            start = self._last_start
            if len(data) == self._last_size and data[:start] == self._last_bytes:
                known = self._last_head
            else:
                start = data.find(b"\r\n\r\n") + 4
                known = self._heads.get(data[:start])
                if known is not None and len(data) == start + known.length:
                    self._last_head, self._last_size = known, len(data)
                    self._last_start, self._last_bytes = start, data[:start]
                else:
                    known = None
            if known is not None:
                reply, self.reply = self.reply, None
                pool = self._pool
                if pool.waiting or pool.closed:
                    pool.release(self)
                else:
                    clock = pool.clock
                    self.idle_since = clock()
                    pool.idle.append(self)
                reply.whole(200, known.headers, data[start:])
                return
        if self.reply is None:
            # Nobody asked. Whatever it is, it must not be taken for the next answer.
            self.abort()
            return
        self._chunk = data if self._between else b""
        self._beside_body += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            if not self._answered:
                self._unreadable(exc)
                return
            # The answer is whole. What follows it was not asked for.
            self._keep = False
        if self._answered:
            self._finish()
        elif self._beside_body > _MOST_BESIDE_BODY:
            # The parser keeps a header that does not end, and copies it with every read.
            self._break(f"its answer has more than {_MOST_BESIDE_BODY} bytes beside its body")
        self._chunk = b""

    def _unreadable(self, exc: Exception) -> None:
        fault = exc.__context__
        if isinstance(exc, httptools.HttpParserCallbackError) and not isinstance(
            fault, httptools.HttpParserError
        ):
            _log.error("%s: reading its answer failed", self._pool.label, exc_info=fault)
            self._break("the node failed to read its answer")
        else:
            self._break("its answer is not HTTP")

    def eof_received(self) -> bool:
        # From here on it must not get another request.
        self.closed = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        reply, self.reply = self.reply, None
        body, self._body = self._body, []
        self._parser = None
        self._pool.connection_gone(self)
        if reply is None:
            return
        if exc is None and self._ends_with_connection():
            if self._stream:
                reply.ended()
            else:
                reply.whole(self._status, self._headers, b"".join(body))
            return
        reply.failed(
            UPSTREAM_LOST, f"{self._pool.label} closed the connection during the call.", sent=True
        )

    def _ends_with_connection(self) -> bool:
        """Whether an answer was being read whose end nothing else marks."""
        return (
            self._status >= 200
            and b"content-length" not in self._headers
            and b"chunked" not in self._headers.get(b"transfer-encoding", b"").lower()
        )

    def _break(self, why: str) -> None:
        reply, self.reply = self.reply, None
        self.closed = True
        self._body = []
        self.transport.abort()
        if reply is not None:
            reply.failed(UPSTREAM_LOST, f"{self._pool.label}: {why}.", sent=True)

    # -- httptools

    def on_message_begin(self) -> None:
        if self._answered:
            raise httptools.HttpParserError("more than was asked for")
        self._between = False
        self._status = 0
        self._headers = {}
        self._body = []
        self._size = 0
        self._header_bytes = 0
        self._stream = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > 64 * 1024:
            raise httptools.HttpParserError("too many headers")
        name = name.lower()
        if name == b"www-authenticate" and name in self._headers:
            # The one header of an answer that is often sent in several.
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
            self._stream = True
            self.reply.opened(self._headers)

    def on_body(self, body: bytes) -> None:
        self._beside_body = 0
        if self._stream:
            if self.reply is not None:
                self.reply.chunk(body)
            return
        self._size += len(body)
        if self.reply is None:
            # It was given up in the middle of what was read.
            return
        most = self._pool.most_body
        if self._size > most:
            self._break(f"its answer is longer than {most} bytes")
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._between = True
        if self._status >= 200 and self.reply is not None:
            self._answered = True
            self._keep = self._parser.should_keep_alive()

    def _finish(self) -> None:
        """The answer is read to its end, and so is everything that came with it."""
        reply, self.reply = self.reply, None
        body, headers, status, stream = self._body, self._headers, self._status, self._stream
        if stream:
            self._pool.lingering.pop(self, None)
        self._answered = False
        self._status = 0
        self._body = []
        self._beside_body = 0
        if self._keep:
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
            reply.ended()
        else:
            reply.whole(status, headers, body[0] if len(body) == 1 else b"".join(body))

    def _remember_head(self, headers: dict[bytes, bytes]) -> None:
        """Keep the head of an answer that came in one piece, with its length."""
        chunk = self._chunk
        length = headers.get(b"content-length", b"")
        if not chunk or not length.isdigit() or b"transfer-encoding" in headers:
            return
        end = chunk.find(b"\r\n\r\n")
        if len(chunk) == end + 4 + int(length):
            if len(self._heads) >= _HEADS_KEPT:
                self._heads.clear()
            self._heads[chunk[: end + 4]] = _Head(int(length), headers)


class HttpPool:
    """The connections to one origin: idle ones, busy ones, and requests that wait for one."""

    def __init__(
        self,
        label: str,
        origin: Origin,
        limit: int,
        clock: Clock,
        *,
        most_body: int | None = None,
    ) -> None:
        """`most_body`: how long the body of an answer may be. None: as long as a message."""
        self.most_body = MAX_MESSAGE if most_body is None else most_body
        self.label = label
        self.origin = origin
        self._limit = limit
        self.clock = clock
        # Its connections look at these themselves, where every answer passes.
        self.idle: list[HttpConnection] = []
        self._all: set[HttpConnection] = set()
        self._opening = 0
        self.waiting: deque[tuple[bytes, Reply]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tls: ssl.SSLContext | None = None
        self.closed = False
        self.lingering: dict[HttpConnection, float] = {}
        """Connections whose stream goes on although its answer has come, and since when."""
        self._sweep: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    def send(self, request: bytes, reply: Reply) -> None:
        """Send now if a connection is free, else as soon as one is."""
        idle, clock = self.idle, self.clock
        while idle:
            connection = idle.pop()
            if connection.closed:
                continue
            if clock() - connection.idle_since > IDLE_KEPT:
                connection.abort()
                continue
            connection.reply = reply
            reply.connection = connection
            connection.transport.write(request)
            return
        if self.closed:
            reply.failed(UPSTREAM_UNAVAILABLE, f"{self.label} is closed.", sent=False)
            return
        if len(self.waiting) >= _MOST_WAITING:
            reply.failed(TOO_BUSY, f"Too many calls wait for {self.label} already.", sent=False)
            return
        self.waiting.append((request, reply))
        self._open_more()

    def send_if_free(self, request: bytes, reply: Reply) -> bool:
        """Send now if a connection is free; never wait for one."""
        now = self.clock()
        if any(not one.closed and now - one.idle_since <= IDLE_KEPT for one in self.idle):
            self.send(request, reply)
            return True
        return False

    @property
    def connected(self) -> bool:
        """Whether there is any connection."""
        return bool(self._all)

    def has_waiting(self, reply: Reply) -> bool:
        """Whether a request still waits for a connection."""
        return any(waiting[1] is reply for waiting in self.waiting)

    def withdraw(self, reply: Reply) -> None:
        """Forget a request that still waits for a connection."""
        for waiting in self.waiting:
            if waiting[1] is reply:
                self.waiting.remove(waiting)
                return

    def answered_on(self, connection: HttpConnection) -> None:
        """The answer has come on a stream; the stream should end now."""
        self.lingering[connection] = self.clock()
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(LINGER, self._sweep_up)

    def _sweep_up(self) -> None:
        now = self.clock()
        for connection, since in list(self.lingering.items()):
            if connection.closed or now - since >= LINGER:
                del self.lingering[connection]
                connection.abort()
        self._sweep = None
        if self.lingering and not self.closed:
            self._sweep = asyncio.get_running_loop().call_later(LINGER, self._sweep_up)

    def release(self, connection: HttpConnection) -> None:
        """A connection has read its answer and is free."""
        if self.closed:
            connection.abort()
            return
        if self.waiting:
            self._next_on(connection)
            return
        clock = self.clock
        connection.idle_since = clock()
        self.idle.append(connection)

    def connection_gone(self, connection: HttpConnection) -> None:
        self._all.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        if self.waiting:
            self._open_more()
        if self._emptied is not None and not self._all and not self._emptied.done():
            self._emptied.set_result(None)

    async def close(self, grace: float = 0.0) -> None:
        """Close every connection; what is under way may still be answered for `grace` seconds."""
        self.closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        self.fail_waiting(f"{self.label} is being closed.")
        for task in self._tasks:
            task.cancel()
        try:
            if self._tasks:
                await asyncio.gather(*self._tasks, return_exceptions=True)
            for connection in self.idle:
                connection.abort()
            if grace and self._all:
                self._emptied = asyncio.get_running_loop().create_future()
                await asyncio.wait([self._emptied], timeout=grace)
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
            # One context for all connections: making one costs more than many calls.
            self._tls = ssl.create_default_context()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                _, connection = await loop.create_connection(
                    lambda: HttpConnection(self),
                    origin.host,
                    origin.port,
                    ssl=self._tls if origin.tls else None,
                )
        except (OSError, TimeoutError, UnicodeError) as exc:
            self._opening -= 1
            why = "it did not answer." if isinstance(exc, TimeoutError) else _plain(exc)
            if not self._all:
                self.fail_waiting(f"Cannot connect to {self.label} at {origin.authority}: {why}")
            return
        except asyncio.CancelledError:
            self._opening -= 1
            raise
        self._opening -= 1
        self._all.add(connection)
        self.release(connection)

    def _next_on(self, connection: HttpConnection) -> None:
        request, reply = self.waiting.popleft()
        connection.send(request, reply)

    def fail_waiting(self, message: str) -> None:
        """Give up on every request that has not been sent yet."""
        while self.waiting:
            _, reply = self.waiting.popleft()
            reply.failed(UPSTREAM_UNAVAILABLE, message, sent=False)


def _plain(exc: OSError | UnicodeError) -> str:
    if isinstance(exc, UnicodeError):
        return "its host name is not a valid one."
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({exc.verify_message})."
    # A name with several addresses fails with one error that lists the others in its text.
    refusals = str(exc).count(f"[Errno {errno.ECONNREFUSED}]")
    if isinstance(exc, ConnectionRefusedError) or 0 < refusals == str(exc).count("[Errno "):
        return "the connection was refused. Is it running?"
    return f"{exc.strerror or str(exc) or type(exc).__name__}."
