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
from interlock.faces.http.exchange import HttpExchange

KEEP_ALIVE: Final = 75.0
_MOST_PIPELINED: Final = 64
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
        self._receiving: HttpExchange | None = None
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
        path, _, query = self.url.partition(b"?")
        if path != self.mcp_path or self.parser.should_upgrade():
            self._hand_to_asgi()
            return
        exchange = HttpExchange(self, self.parser.get_method(), query, self.headers)
        self._receiving = exchange
        fields = exchange.fields
        length = fields.get(b"content-length")
        if length is not None and length.isdigit() and int(length) > self.limits.body_bytes:
            self._too_large()
        elif b"expect" in fields and fields[b"expect"].lower() == b"100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        exchange = self._receiving
        if exchange is None:
            if not self._refused:
                super().on_body(body)
            return
        exchange.size += len(body)
        if exchange.size > self.limits.body_bytes:
            self._too_large()
            return
        exchange.chunks.append(body)

    def on_message_complete(self) -> None:
        exchange = self._receiving
        if exchange is None:
            if not self._refused:
                super().on_message_complete()
            return
        self._receiving = None
        chunks = exchange.chunks
        exchange.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        exchange.keep_alive = self.parser.should_keep_alive()
        if self._active is not None or (self.cycle and not self.cycle.response_complete):
            # Pipelined: answers go out in the order of the requests.
            self._queued.append(exchange)
            self.flow.pause_reading()
            if len(self._queued) > _MOST_PIPELINED:
                self._refuse(429, b"Too many pipelined requests.")
            return
        self._active = exchange
        self.serve(exchange)

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
        if not self.transport.is_closing():
            self.transport.write(data)

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
            return
        self._serve_next()

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
        receiving = self._receiving or HttpExchange(self, b"", b"", [])
        self._receiving = None
        self._active = receiving
        receiving.keep_alive = False
        code = b"-32600" if status == 413 else b"-32000"
        receiving.respond(
            status,
            b'{"jsonrpc":"2.0","id":null,"error":{"code":%b,"message":"%b"}}' % (code, message),
        )
