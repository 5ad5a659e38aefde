"""uvicorn's HTTP protocol, with a fast path for the MCP endpoint.

uvicorn does the HTTP work: TLS, keep-alive, shutdown. Requests for the MCP path skip ASGI and are
passed to their handler when they are complete. Connections that become WebSockets leave HTTP
(`upgrade.py`). The ASGI app serves every other path. This module enforces the limits on headers and
bodies before anything is decoded. The body of a POST that does not arrive together with its head is
read only after the host, the origin and the token in the head were accepted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from interlock.core.config import Limits
from interlock.core.server.http.credentials import CERTIFICATE, PEER
from interlock.core.server.http.exchange import JSON_HEAD, HttpExchange, RequestHead, Serve
from interlock.core.server.http.guard import certificate_names, peer_of
from interlock.core.server.http.upgrade import handle_upgrade
from interlock.protocol.websocket_handshake import is_upgrade_request

if TYPE_CHECKING:
    from interlock.core.server.http.router import DirectRoute, RouteTable, WebSocketRoute

KEEP_ALIVE = 75.0
"""The seconds that a connection may be idle, and that a request may take to arrive."""
LINGER = 2.0
"""The seconds in which a rejected client can read the error before the connection is aborted."""
_MAX_URL_LENGTH: Final = 8192
_MAX_PIPELINED_REQUESTS: Final = 64
_MAX_CACHED_HEADS: Final = 32

_log = logging.getLogger("interlock.server")


class _AsgiExchange:
    """A placeholder for the active exchange while the ASGI app responds."""


_ASGI_EXCHANGE: Final = _AsgiExchange()


class HttpProtocol(HttpToolsProtocol):
    """A connection from a client. uvicorn gets the class that `bound` returns."""

    routes: dict[bytes, DirectRoute]
    """The direct routes by path. The ASGI app serves every other path."""
    websockets: dict[bytes, WebSocketRoute]
    """The WebSocket routes by path. An upgrade request for another path is served as plain HTTP."""
    table: RouteTable
    limits: Limits

    @classmethod
    def bound(cls, table: RouteTable, limits: Limits) -> type[HttpProtocol]:
        """Return the class for the connections of one listener."""
        attributes = {
            "routes": table.direct,
            "websockets": table.websockets,
            "table": table,
            "limits": limits,
        }
        return type("BoundHttpProtocol", (cls,), attributes)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.peer = ""
        self.certificate: tuple[str, ...] = ()
        self._receiving: RequestHead | None = None
        self._checked = False
        self._checking: HttpExchange | None = None
        """The request whose head is being checked. Reading is paused during the check."""
        self._body: list[bytes] = []
        self._body_size = 0
        self._is_between_requests = True
        self._head_done = False
        self._wants_upgrade = False
        self._messages = 0
        self._non_body_bytes = 0
        self._chunk = b""
        self._heads: dict[bytes, RequestHead] = {}
        # The most recent head, which needs no look-up.
        self._last_head: RequestHead | None = None
        self._last_bytes = b""
        self._last_start = 0
        self._last_size = -1
        self._active: HttpExchange | _AsgiExchange | None = None
        self._queued: deque[HttpExchange] = deque()
        self._header_bytes = 0
        self._is_rejected = False
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self.date_of: Any = None
        """The default headers of uvicorn that `_date` was made from. uvicorn replaces them every
        second."""
        self._date = b""
        self.json_head = b""
        """The head of a JSON response with status 200, with the current date, up to its length."""

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = peer_of(self.client, self.server)
        self.certificate = certificate_names(transport)
        self._idle_since = self.loop.time()
        self._idle_timer = self.loop.call_later(KEEP_ALIVE, self._check_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        active, self._active = self._active, None
        self._queued.clear()
        self._receiving = self._checking = None
        self._body = []
        if isinstance(active, HttpExchange):
            active.disconnected()

    def data_received(self, data: bytes) -> None:
        if self._is_between_requests and self._active is None:
            # Most clients repeat the same head. A complete request with a cached head needs no
            # parsing.
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
                self._active = exchange = HttpExchange(self, head, data[start:], head.keep_alive)
                serve = head.serve
                serve(exchange)
                return
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        while data and not self._is_rejected:
            self._chunk = data if self._is_between_requests else b""
            messages_before, body_size_before = self._messages, self._body_size
            rest = b""
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                rest = self._handle_upgrade(data[upgrade.args[0] :])
            except httptools.HttpParserError as error:
                if isinstance(error, httptools.HttpParserCallbackError) and not self._is_rejected:
                    _log.warning("request from %s: parsing failed", self.peer, exc_info=error)
                self.reject(400, b"This is not a valid HTTP/1.1 request.")
            if self._messages == messages_before and not self._is_between_requests:
                # The parser buffers everything that is neither body nor a complete header. A header
                # without an end must not fill the memory.
                self._non_body_bytes += len(data) - (self._body_size - body_size_before)
                limit = 2 * (self.limits.header_bytes + _MAX_URL_LENGTH) + 8 * self._body_size
                if self._non_body_bytes > limit:
                    self._reject_headers()
            if self._receiving is not None and not self._checked:
                self._check_head(self._receiving)
            if self._checking is not None:
                self.flow.pause_reading()
            data = rest
        self._chunk = b""

    def _handle_upgrade(self, remaining: bytes) -> bytes:
        """Handle a request to upgrade the connection.

        Args:
            remaining: the bytes after the head of the request.

        Returns:
            The bytes to parse as HTTP.
        """
        path, _, query = self.url.partition(b"?")
        route = self.websockets.get(path)
        if route is None or not is_upgrade_request(self.headers):
            hints = self.table.named_websockets() if path in self.routes else []
            if hints and is_upgrade_request(self.headers):
                hint = ", and ".join(hints).encode()
                self.reject(404, b"This path accepts no WebSocket: %b." % hint)
                return b""
            return self._without_upgrade() + remaining
        if self._is_rejected or self._active is not None:
            # Earlier responses are not written yet. No known client pipelines an upgrade request,
            # and a retry on another connection works.
            self.reject(503, b"Repeat the request on a connection of its own.")
        else:
            handle_upgrade(self, route.handler, query, remaining)
        return b""

    def detach(self) -> None:
        """Give the connection to another protocol. The HTTP server no longer counts it."""
        self._is_rejected = True
        self._is_between_requests = False
        # The parser and this object refer to each other, and `connection_lost` is not called here
        # any more, so the cycle is broken now.
        self.parser = None  # type: ignore[assignment]
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        self._resume_reading()

    def _without_upgrade(self) -> bytes:
        """Return the head that was just read, without the request to upgrade.

        A server may ignore the upgrade and continue with HTTP/1.1 (RFC 9110 §7.8). The parser
        treats the upgrade request as the end of HTTP, so a new parser continues.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        if method == b"CONNECT":
            self.reject(405, b"CONNECT is not supported: this server is not a proxy.")
            return b""
        lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
        for name, value in self.headers:
            if name == b"connection":
                tokens = {token.strip().lower() for token in value.split(b",")}
                value = b"close" if b"close" in tokens else b"keep-alive"
            if name != b"upgrade":
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def pause_writing(self) -> None:
        """Stop reading requests until the client has read its responses."""
        super().pause_writing()
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._active is None:
            self._serve_next()
        elif not self._queued:
            self._resume_reading()

    def shutdown(self) -> None:
        if isinstance(self._active, HttpExchange):
            self._active.keep_alive = False
        else:
            super().shutdown()

    # -- httptools

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._is_between_requests = False
        self._head_done = False
        self._messages += 1
        self._header_bytes = 0
        self._body = []
        self._body_size = 0
        self._non_body_bytes = 0
        self._receiving = self._checking = None
        self._checked = False
        self._idle_since = self.loop.time()

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > _MAX_URL_LENGTH:
            self.reject(414, b"The URL is too long.")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > self.limits.header_bytes:
            self._reject_headers()
        elif not self._head_done:
            # After the head it is a trailer. Proxies do not check trailers, so they are ignored.
            self.headers.append((name.lower(), value))
            if len(self.headers) > self.limits.header_count:
                self._reject_headers()

    def on_headers_complete(self) -> None:
        self._head_done = True
        self._wants_upgrade = self.parser.should_upgrade()
        if self._is_rejected or self._wants_upgrade:
            return
        path, _, query = self.url.partition(b"?")
        route = self.routes.get(path)
        if route is None:
            self._hand_to_asgi()
            return
        parser = self.parser
        self._receiving = head = RequestHead(parser.get_method(), query, self.headers, True)
        head.serve, head.check = route.serve, route.check
        head.chunked = parser.get_http_version() != "1.0"
        length = head.fields.get(b"content-length")
        if length is not None and length.isdigit() and int(length) > self.limits.body_bytes:
            self._reject_body()

    def _check_head(self, head: RequestHead) -> None:
        """Decide from the head whether the body is read. The body has not arrived yet."""
        self._checked = True
        self._checking = exchange = HttpExchange(self, head, b"", False)
        if head.method == b"POST":
            head.check(exchange, self._on_head_checked)
        else:
            # No other method needs its body, so the body is discarded.
            self._on_head_checked(exchange, None)

    def _on_head_checked(self, exchange: HttpExchange, rejection: Serve | None) -> None:
        if self._checking is not exchange:
            # The connection has ended, or the body has arrived in the meantime.
            return
        self._checking = None
        head = exchange.head
        if rejection is None:
            if self._active is None and head.fields.get(b"expect", b"").lower() == b"100-continue":
                # During another exchange it would become part of that response. Without it, clients
                # send the body after a short time.
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if not self._queued and not self.flow.write_paused:
                self.flow.resume_reading()
            return
        self._is_rejected = True
        self._is_between_requests = False
        self._receiving = None
        self._body = []
        if self._active is not None or self.flow.write_paused:
            head.serve = rejection
            self._queued.append(exchange)
            return
        self._active = exchange
        rejection(exchange)

    def _resume_reading(self) -> None:
        if self._checking is None:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        if self._is_rejected:
            return
        if self._body_size > self.limits.body_bytes:
            self._reject_body()
        elif self._receiving is None:
            super().on_body(body)
        elif self._receiving.method == b"POST":
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._is_rejected or self._wants_upgrade:
            return
        self._is_between_requests = True
        head = self._receiving
        if head is None:
            super().on_message_complete()
            return
        self._receiving = self._checking = None
        chunks = self._body
        head.keep_alive = self.parser.should_keep_alive()
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        exchange = HttpExchange(self, head, body, head.keep_alive)
        self._cache_head(head)
        if self._active is not None or self.flow.write_paused:
            # Pipelined: responses are sent in the order of the requests.
            if len(self._queued) >= _MAX_PIPELINED_REQUESTS:
                self.reject(429, b"Too many requests at once on one connection.")
                return
            self._queued.append(exchange)
            self.flow.pause_reading()
            return
        self._active = exchange
        head.serve(exchange)

    def _cache_head(self, head: RequestHead) -> None:
        """Cache the head of a request that arrived in one piece, with the length of its body."""
        chunk, fields = self._chunk, head.fields
        if not chunk or b"transfer-encoding" in fields or b"expect" in fields:
            return
        end = chunk.find(b"\r\n\r\n")
        if len(chunk) == end + 4 + self._body_size:
            head.length = self._body_size
            if len(self._heads) >= _MAX_CACHED_HEADS:
                self._heads.clear()
            self._heads[chunk[: end + 4]] = head

    # -- the other paths

    def _hand_to_asgi(self) -> None:
        if self._queued or isinstance(self._active, HttpExchange):
            # Pipelined after an MCP request. No known client does this, and a retry on another
            # connection works.
            self.reject(503, b"Repeat the request on a connection of its own.")
            return
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        self.headers.extend(headers)
        try:
            super().on_headers_complete()
        except httptools.HttpParserInvalidURLError:
            self.reject(400, b"The URL is not valid.")
            return
        # The app runs later, in its own task.
        self.scope["extensions"] = {
            CERTIFICATE: {"names": self.certificate},
            PEER: {"name": self.peer},
        }
        self._active = _ASGI_EXCHANGE

    def on_response_complete(self) -> None:
        """Serve the next pipelined MCP request after a complete ASGI response."""
        super().on_response_complete()
        # `_idle_timer` watches the connection instead of uvicorn's timer.
        self._unset_keepalive_if_required()
        if self._active is _ASGI_EXCHANGE and self.cycle.response_complete:
            self._active = None
            if self._is_rejected and not self._queued:
                self._hang_up()
            else:
                self._serve_next()

    # -- what an exchange needs

    def write(self, data: bytes) -> None:
        transport = self.transport
        if not transport.is_closing():
            transport.write(data)

    def count_unread_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def cut_off(self) -> None:
        self.transport.abort()

    def date_line(self) -> bytes:
        current = self.server_state.default_headers
        if current is not self.date_of:
            self.date_of = current
            self._date = b"".join(b"%b: %b\r\n" % pair for pair in current)
            self.json_head = JSON_HEAD[200] + self._date
        return self._date

    def finished(self, exchange: HttpExchange) -> None:
        """Continue with the next request after the response of an exchange is complete."""
        if exchange is not self._active:
            return
        self._active = None
        if not exchange.keep_alive:
            self._hang_up()
        elif self._queued or self._idle_timer is None or self.flow.read_paused:
            self._serve_next()
        else:
            self._idle_since = self.loop.time()

    def _serve_next(self) -> None:
        if self.transport.is_closing():
            return
        if self._queued and not self.flow.write_paused:
            self._active = exchange = self._queued.popleft()
            # Not inside the callback that finished the previous exchange: a long queue would
            # recurse.
            self.loop.call_soon(self._serve_queued, exchange)
            return
        if not self.flow.write_paused:
            self._resume_reading()
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(KEEP_ALIVE, self._check_idle)

    def _serve_queued(self, exchange: HttpExchange) -> None:
        if not exchange.done:
            exchange.head.serve(exchange)

    def _check_idle(self) -> None:
        """Close the connection if it has been idle for too long. There is one timer per connection,
        not one per request."""
        self._idle_timer = None
        if self._active is not None:
            return
        remaining = self._idle_since + KEEP_ALIVE - self.loop.time()
        if remaining > 0:
            self._idle_timer = self.loop.call_later(remaining, self._check_idle)
        elif self.count_unread_bytes():
            # A client that has not read its response by now will not read it.
            self.transport.abort()
        elif self._is_between_requests or self._is_rejected:
            self.transport.close()
        else:
            self.reject(408, b"The request was not complete in time.")

    # -- rejection

    def _reject_headers(self) -> None:
        self.reject(431, b"The request has too many or too large headers.")

    def _reject_body(self) -> None:
        if self._receiving is None and self._active is not _ASGI_EXCHANGE:
            # The ASGI app has responded already, so only the connection is closed.
            self._is_rejected = True
            self._hang_up()
            return
        limit = self.limits.body_bytes
        self.reject(413, b"The body is larger than %d bytes, the node's limit." % limit)

    def reject(self, status: int, message: bytes, headers: bytes = b"") -> None:
        """Reject the request and close the connection. The bytes that follow are not trusted.

        Args:
            status: the HTTP status.
            message: the error message, escaped for a JSON string.
            headers: encoded header lines.
        """
        if self._is_rejected:
            return
        self._is_rejected = True
        self._is_between_requests = False
        self._receiving = self._checking = None
        self._body = []
        last = self._queued[-1] if self._queued else self._active
        if isinstance(last, HttpExchange):
            # Earlier requests get their responses first. Then the connection is closed.
            last.keep_alive = False
        elif last is None:
            self._active = rejection = HttpExchange(
                self, RequestHead(b"", b"", [], False), b"", False
            )
            rejection.respond(
                status,
                b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"%b"}}' % message,
                headers=headers,
            )

    def _hang_up(self) -> None:
        """Close the connection after everything is written.

        If a socket is closed while the client still sends, the connection is reset and the client
        may never read the error. So the client of a rejected request gets `LINGER` seconds to stop.
        """
        if not self._is_rejected or not self.transport.can_write_eof():
            self.transport.close()
            return
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.transport.write_eof()
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            self._idle_timer = self.loop.call_later(LINGER, self.transport.abort)
