"""uvicorn's HTTP protocol, with a fast lane for the MCP endpoint.

uvicorn keeps the HTTP work: TLS, keep-alive, shutdown. Requests for the MCP path skip ASGI and are
handed over whole, connections that become WebSockets leave HTTP altogether (`upgrade.py`); every
other path is served by the ordinary ASGI app. The limits on headers and bodies stand here, before
anything is decoded. The body of a POST that does not arrive with its head is read only after the
host, the origin and the token in the head were accepted.
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
from interlock.core.server.http.upgrade import offer
from interlock.protocol.websocket_handshake import is_upgrade_request

if TYPE_CHECKING:
    from interlock.core.server.http.router import DirectRoute, RouteTable, WebSocketRoute

KEEP_ALIVE = 75.0
"""How long a connection may be idle, and how long a request may take to arrive."""
LINGER = 2.0
"""How long a client that was hung up on is given to read why."""
_LONGEST_URL: Final = 8192
_MOST_PIPELINED: Final = 64
_HEADS_KEPT: Final = 32

_log = logging.getLogger("interlock.server")


class _Elsewhere:
    """Stands in for the exchange while the ASGI app answers."""


_ELSEWHERE: Final = _Elsewhere()


class HttpProtocol(HttpToolsProtocol):
    """A connection from a client. `bound` makes the class that uvicorn is given."""

    routes: dict[bytes, DirectRoute]
    """Who serves which path; every path that is not here is the ASGI app's."""
    websockets: dict[bytes, WebSocketRoute]
    """Who decides about a WebSocket on which path; anywhere else the offer is passed over."""
    table: RouteTable
    limits: Limits

    @classmethod
    def bound(cls, table: RouteTable, limits: Limits) -> type[HttpProtocol]:
        """The class for the connections of one listener."""
        bound = {
            "routes": table.direct,
            "websockets": table.websockets,
            "table": table,
            "limits": limits,
        }
        return type("BoundHttpProtocol", (cls,), bound)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.peer = ""
        self.certificate: tuple[str, ...] = ()
        self._receiving: RequestHead | None = None
        self._checked = False
        self._checking: HttpExchange | None = None
        """Stands for the request whose head is being checked. Nothing is read meanwhile."""
        self._body: list[bytes] = []
        self._body_size = 0
        self._between = True
        self._head_done = False
        self._offered = False
        self._messages = 0
        self._beside_body = 0
        self._chunk = b""
        self._heads: dict[bytes, RequestHead] = {}
        # The one that came last, for which not even a look-up is needed.
        self._last_head: RequestHead | None = None
        self._last_bytes = b""
        self._last_start = 0
        self._last_size = -1
        self._active: HttpExchange | _Elsewhere | None = None
        self._queued: deque[HttpExchange] = deque()
        self._header_bytes = 0
        self._refused = False
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self.date_of: Any = None
        """The headers of uvicorn's that the date was taken from: others every second."""
        self._date = b""
        self.json_head = b""
        """The head of a JSON answer with status 200, up to its length, at that time."""

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
        if self._between and self._active is None:
            # Most clients send the same head again and again: when it is known, and the whole
            # request is here, there is nothing to parse.
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
        while data and not self._refused:
            self._chunk = data if self._between else b""
            before, body_before = self._messages, self._body_size
            rest = b""
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                rest = self._offer(data[upgrade.args[0] :])
            except httptools.HttpParserError as error:
                if isinstance(error, httptools.HttpParserCallbackError) and not self._refused:
                    _log.warning("a request could not be taken", exc_info=error)
                self.refuse(400, b"This is not a request that HTTP/1.1 knows.")
            if self._messages == before and not self._between:
                # What is neither body nor a finished header is kept by the parser: a header that
                # never ends must not fill the memory.
                self._beside_body += len(data) - (self._body_size - body_before)
                most = 2 * (self.limits.header_bytes + _LONGEST_URL) + 8 * self._body_size
                if self._beside_body > most:
                    self._refuse_headers()
            if self._receiving is not None and not self._checked:
                self._check_head(self._receiving)
            if self._checking is not None:
                self.flow.pause_reading()
            data = rest
        self._chunk = b""

    def _offer(self, behind: bytes) -> bytes:
        """The client offers to leave HTTP. Returns what is to be read on as HTTP."""
        path, _, query = self.url.partition(b"?")
        route = self.websockets.get(path)
        if route is None or not is_upgrade_request(self.headers):
            named = self.table.named_websockets() if path in self.routes else []
            if named and is_upgrade_request(self.headers):
                there = ", and ".join(named).encode()
                self.refuse(404, b"No WebSocket is taken here: %b." % there)
                return b""
            return self._without_offer() + behind
        if self._refused or self._active is not None:
            # Other answers are still to be written. Nobody does that; asking again works.
            self.refuse(503, b"Ask again on a connection of its own.")
        else:
            offer(self, route.take, query, behind)
        return b""

    def let_go(self) -> None:
        """The connection is somebody else's from now on, and nothing here counts it any more."""
        self._refused = True
        self._between = False
        # It and this point at each other, and nobody tells this when the connection ends.
        self.parser = None  # type: ignore[assignment]
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        self._resume_reading()

    def _without_offer(self) -> bytes:
        """The head that was just read, without the offer to upgrade.

        Nothing but HTTP/1.1 is spoken here, and whoever offers more takes that too. But the parser
        believes that HTTP has ended with the offer: a new one goes on.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        if method == b"CONNECT":
            self.refuse(405, b"This is no proxy.")
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
        """The client does not read its answers: it gets to ask again when it has."""
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
        self._between = False
        self._head_done = False
        self._messages += 1
        self._header_bytes = 0
        self._body = []
        self._body_size = 0
        self._beside_body = 0
        self._receiving = self._checking = None
        self._checked = False
        self._idle_since = self.loop.time()

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > _LONGEST_URL:
            self.refuse(414, b"The URL is too long.")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > self.limits.header_bytes:
            self._refuse_headers()
        elif not self._head_done:
            # Afterwards it is a trailer: whoever stands between the client and us has not seen it.
            self.headers.append((name.lower(), value))
            if len(self.headers) > self.limits.header_count:
                self._refuse_headers()

    def on_headers_complete(self) -> None:
        self._head_done = True
        self._offered = self.parser.should_upgrade()
        if self._refused or self._offered:
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
            self._too_large()

    def _check_head(self, head: RequestHead) -> None:
        """The head is here, the body is not: decide by the head whether the body is read."""
        self._checked = True
        self._checking = exchange = HttpExchange(self, head, b"", False)
        if head.method == b"POST":
            head.check(exchange, self._head_checked)
        else:
            # No other method needs its body, so none is kept.
            self._head_checked(exchange, None)

    def _head_checked(self, exchange: HttpExchange, refusal: Serve | None) -> None:
        if self._checking is not exchange:
            # The connection has ended, or the body was on its way already.
            return
        self._checking = None
        head = exchange.head
        if refusal is None:
            if self._active is None and head.fields.get(b"expect", b"").lower() == b"100-continue":
                # Behind another request it would land in that one's answer; clients do not wait
                # long.
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if not self._queued and not self.flow.write_paused:
                self.flow.resume_reading()
            return
        self._refused = True
        self._between = False
        self._receiving = None
        self._body = []
        if self._active is not None or self.flow.write_paused:
            head.serve = refusal
            self._queued.append(exchange)
            return
        self._active = exchange
        refusal(exchange)

    def _resume_reading(self) -> None:
        if self._checking is None:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        if self._refused:
            return
        if self._body_size > self.limits.body_bytes:
            self._too_large()
        elif self._receiving is None:
            super().on_body(body)
        elif self._receiving.method == b"POST":
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._refused or self._offered:
            return
        self._between = True
        head = self._receiving
        if head is None:
            super().on_message_complete()
            return
        self._receiving = self._checking = None
        body = self._body
        head.keep_alive = self.parser.should_keep_alive()
        whole = body[0] if len(body) == 1 else b"".join(body)
        exchange = HttpExchange(self, head, whole, head.keep_alive)
        self._remember(head)
        if self._active is not None or self.flow.write_paused:
            # Pipelined: answers go out in the order of the requests.
            if len(self._queued) >= _MOST_PIPELINED:
                self.refuse(429, b"Too many requests at once on one connection.")
                return
            self._queued.append(exchange)
            self.flow.pause_reading()
            return
        self._active = exchange
        head.serve(exchange)

    def _remember(self, head: RequestHead) -> None:
        """Keep the head of a request that came in one piece, with its length."""
        chunk, fields = self._chunk, head.fields
        if not chunk or b"transfer-encoding" in fields or b"expect" in fields:
            return
        end = chunk.find(b"\r\n\r\n")
        if len(chunk) == end + 4 + self._body_size:
            head.length = self._body_size
            if len(self._heads) >= _HEADS_KEPT:
                self._heads.clear()
            self._heads[chunk[: end + 4]] = head

    # -- the other paths

    def _hand_to_asgi(self) -> None:
        if self._queued or isinstance(self._active, HttpExchange):
            # Behind an MCP request on the same connection. Nobody does that; asking again works.
            self.refuse(503, b"Ask again on a connection of its own.")
            return
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        self.headers.extend(headers)
        try:
            super().on_headers_complete()
        except httptools.HttpParserInvalidURLError:
            self.refuse(400, b"This URL cannot be read.")
            return
        # The app runs later, in a task of its own.
        self.scope["extensions"] = {
            CERTIFICATE: {"names": self.certificate},
            PEER: {"name": self.peer},
        }
        self._active = _ELSEWHERE

    def on_response_complete(self) -> None:
        """An ASGI response is complete: a pipelined MCP request may be waiting behind it."""
        super().on_response_complete()
        # One timer watches over the connection, and it is not this one.
        self._unset_keepalive_if_required()
        if self._active is _ELSEWHERE and self.cycle.response_complete:
            self._active = None
            if self._refused and not self._queued:
                self._hang_up()
            else:
                self._serve_next()

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
        if current is not self.date_of:
            self.date_of = current
            self._date = b"".join(b"%b: %b\r\n" % pair for pair in current)
            self.json_head = JSON_HEAD[200] + self._date
        return self._date

    def finished(self, exchange: HttpExchange) -> None:
        """The answer has been written whole."""
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
            # Not from inside the callback that finished the last one: a long queue would recurse.
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
        """One timer per connection, not one per request."""
        self._idle_timer = None
        if self._active is not None:
            return
        left = self._idle_since + KEEP_ALIVE - self.loop.time()
        if left > 0:
            self._idle_timer = self.loop.call_later(left, self._check_idle)
        elif self.unread():
            # Whoever has not read its answer by now will not.
            self.transport.abort()
        elif self._between or self._refused:
            self.transport.close()
        else:
            self.refuse(408, b"The request did not come to its end in time.")

    # -- refusing

    def _refuse_headers(self) -> None:
        self.refuse(431, b"The request has too many or too large headers.")

    def _too_large(self) -> None:
        if self._receiving is None and self._active is not _ELSEWHERE:
            # The ASGI app has answered long ago; all that is left is to stop listening.
            self._refused = True
            self._hang_up()
            return
        limit = self.limits.body_bytes
        self.refuse(413, b"The body is larger than %d bytes, the node's limit." % limit)

    def refuse(self, status: int, message: bytes, headers: bytes = b"") -> None:
        """Answer and hang up: what follows on this connection is not to be trusted.

        `message` as it stands in JSON, `headers` as ready lines.
        """
        if self._refused:
            return
        self._refused = True
        self._between = False
        self._receiving = self._checking = None
        self._body = []
        last = self._queued[-1] if self._queued else self._active
        if isinstance(last, HttpExchange):
            # Others are before it. They get their answers, and then the client is hung up on.
            last.keep_alive = False
        elif last is None:
            self._active = refusal = HttpExchange(
                self, RequestHead(b"", b"", [], False), b"", False
            )
            refusal.respond(
                status,
                b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"%b"}}' % message,
                headers=headers,
            )

    def _hang_up(self) -> None:
        """Close once everything is written.

        A socket that is closed while the client still sends resets the connection, and the client
        may never read why. So the client of a refused request is given time to stop.
        """
        if not self._refused or not self.transport.can_write_eof():
            self.transport.close()
            return
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.transport.write_eof()
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            self._idle_timer = self.loop.call_later(LINGER, self.transport.abort)
