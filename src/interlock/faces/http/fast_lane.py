"""uvicorn's HTTP protocol, with a fast lane for the MCP endpoint.

uvicorn keeps the HTTP work: TLS, keep-alive, WebSocket upgrades, shutdown. Requests for the MCP
path skip ASGI and are handed over whole; every other path is served by the ordinary ASGI app. The
limits on headers and bodies stand here, before anything is decoded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from interlock.config import Limits
from interlock.faces.http.exchange import Head, HttpExchange

KEEP_ALIVE: Final = 75.0
_MOST_PIPELINED: Final = 64
_HEADS_KEPT: Final = 32
_LOOPBACK: Final = ("127.", "::1", "::ffff:127.")


class FastLane(HttpToolsProtocol):
    """A connection from a client. `bound` makes the class that uvicorn is given."""

    serve: Callable[[HttpExchange], None]
    mcp_path: bytes
    limits: Limits

    @classmethod
    def bound(
        cls, serve: Callable[[HttpExchange], None], mcp_path: str, limits: Limits
    ) -> type[FastLane]:
        return type(
            "BoundFastLane",
            (cls,),
            {"serve": staticmethod(serve), "mcp_path": mcp_path.encode(), "limits": limits},
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.peer = ""
        self._receiving: Head | None = None
        self._body: list[bytes] = []
        self._body_size = 0
        self._between = True
        self._chunk = b""
        self._heads: dict[bytes, Head] = {}
        self._active: HttpExchange | None = None
        self._queued: deque[HttpExchange] = deque()
        self._header_bytes = 0
        self._refused = False
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._date_of: Any = None
        self._date = b""

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        # A Unix socket has no address: whoever can open it is on this machine.
        local = not address or address.startswith(_LOOPBACK)
        self.peer = "loopback" if local else address

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        active, self._active = self._active, None
        self._queued.clear()
        self._receiving = None
        if active is not None:
            active.disconnected()

    def data_received(self, data: bytes) -> None:
        if self._between and self._active is None:
            # Most clients send the same head again and again: when it is known, and the whole
            # request is here, there is nothing to parse.
            end = data.find(b"\r\n\r\n")
            head = self._heads.get(data[:end]) if end > 0 else None
            if head is not None and len(data) == end + 4 + head.length:
                self._active = exchange = HttpExchange(self, head, data[end + 4 :], head.keep_alive)
                self.serve(exchange)
                return
        self._chunk = data if self._between else b""
        super().data_received(data)
        self._chunk = b""

    def shutdown(self) -> None:
        if self._active is not None:
            self._active.keep_alive = False
        else:
            super().shutdown()

    # -- httptools

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._between = False
        self._header_bytes = 0
        self._receiving = None

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > 8192:
            self._refuse(414, b"The URL is too long.")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        self.headers.append((name.lower(), value))
        if (
            self._header_bytes > self.limits.header_bytes
            or len(self.headers) > self.limits.header_count
        ):
            self._refuse(431, b"The request has too many or too large headers.")

    def on_headers_complete(self) -> None:
        if self._refused:
            return
        self._receiving = None
        path, _, query = self.url.partition(b"?")
        if path != self.mcp_path or self.parser.should_upgrade():
            self._hand_to_asgi()
            return
        self._receiving = head = Head(self.parser.get_method(), query, self.headers, True)
        self._body = []
        self._body_size = 0
        fields = head.fields
        length = fields.get(b"content-length")
        if length is not None and length.isdigit() and int(length) > self.limits.body_bytes:
            self._too_large()
        elif b"expect" in fields and fields[b"expect"].lower() == b"100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        if self._receiving is None:
            if not self._refused:
                super().on_body(body)
            return
        self._body_size += len(body)
        if self._body_size > self.limits.body_bytes:
            self._too_large()
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._between = True
        head = self._receiving
        if head is None:
            if not self._refused:
                super().on_message_complete()
            return
        self._receiving = None
        body = self._body
        head.keep_alive = self.parser.should_keep_alive()
        whole = body[0] if len(body) == 1 else b"".join(body)
        exchange = HttpExchange(self, head, whole, head.keep_alive)
        self._remember(head)
        if self._active is not None or (self.cycle and not self.cycle.response_complete):
            # Pipelined: answers go out in the order of the requests.
            self._queued.append(exchange)
            self.flow.pause_reading()
            if len(self._queued) > _MOST_PIPELINED:
                self._refuse(429, b"Too many pipelined requests.")
            return
        self._active = exchange
        self.serve(exchange)

    def _remember(self, head: Head) -> None:
        """Keep the head of a request that came in one piece, with its length."""
        chunk, fields = self._chunk, head.fields
        if not chunk or b"transfer-encoding" in fields or b"expect" in fields:
            return
        end = chunk.find(b"\r\n\r\n")
        if len(chunk) == end + 4 + self._body_size:
            head.length = self._body_size
            if len(self._heads) >= _HEADS_KEPT:
                self._heads.clear()
            self._heads[chunk[:end]] = head

    def on_response_complete(self) -> None:
        """An ASGI response is complete: a pipelined MCP request may be waiting behind it."""
        super().on_response_complete()
        self._serve_next()

    def _hand_to_asgi(self) -> None:
        if self._active is not None:
            # Behind an MCP request on the same connection. Nobody does that; asking again works.
            self._active.keep_alive = False
            self._refused = True
            return
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        self.headers.extend(headers)
        super().on_headers_complete()

    # -- what an exchange needs

    def write(self, data: bytes) -> None:
        transport = self.transport
        if not transport.is_closing():
            transport.write(data)

    def unread(self) -> int:
        return self.transport.get_write_buffer_size()

    def cut_off(self) -> None:
        self.transport.abort()

    def date_line(self) -> bytes:
        current = self.server_state.default_headers
        if current is not self._date_of:
            self._date_of = current
            self._date = b"".join(b"%b: %b\r\n" % pair for pair in current)
        return self._date

    def finished(self, exchange: HttpExchange) -> None:
        """The answer has been written whole."""
        if exchange is not self._active:
            return
        self._active = None
        self.server_state.total_requests += 1
        if not exchange.keep_alive:
            self.transport.close()
        elif self._queued or self._idle_timer is None or self.flow.read_paused:
            self._serve_next()
        else:
            self._idle_since = self.loop.time()

    def _serve_next(self) -> None:
        if self._queued:
            self._active = self._queued.popleft()
            # Not from inside the callback that finished the last one: a long queue would recurse.
            self.loop.call_soon(self.serve, self._active)
            return
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(KEEP_ALIVE, self._check_idle)

    def _check_idle(self) -> None:
        """One timer per connection, not one per request."""
        self._idle_timer = None
        if self._active is not None or (self.cycle and not self.cycle.response_complete):
            return
        left = self._idle_since + KEEP_ALIVE - self.loop.time()
        if left > 0:
            self._idle_timer = self.loop.call_later(left, self._check_idle)
        else:
            self.transport.close()

    def _too_large(self) -> None:
        limit = self.limits.body_bytes
        self._refuse(413, b"The body is larger than %d bytes, the node's limit." % limit)

    def _refuse(self, status: int, message: bytes) -> None:
        """Answer and hang up: what follows on this connection is not to be trusted."""
        if self._refused:
            return
        self._refused = True
        self._receiving = None
        self._active = refusal = HttpExchange(self, Head(b"", b"", [], False), b"", False)
        refusal.respond(
            status,
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"%b"}}' % message,
        )
