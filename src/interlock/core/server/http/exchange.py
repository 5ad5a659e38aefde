"""One HTTP request and its answer, without ASGI in between.

The answer is either written in one piece, or becomes an event stream that stays open. Whoever
answers need not know whether the client is still there: writing to nobody is harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

from interlock.protocol.fast_structs import plain_stores
from interlock.protocol.sse import COMMENT_PING, encode_event

if TYPE_CHECKING:
    from interlock.core.call import Call
    from interlock.core.server.http.protocol import HttpProtocol
    from interlock.core.server.mcp.event_streams import ResumableStream
    from interlock.core.server.mcp.request_headers import RequestHeaders
    from interlock.core.server.mcp.sessions import HttpSession

JSON: Final = b"application/json"
LARGE: Final = 64 * 1024
"""From here on a copy is worth avoiding."""
_MOST_UNREAD: Final = 4 * 1024 * 1024
"""A client that leaves this much of its event stream unread is cut off."""

_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
JSON_HEAD: Final = {
    status: line + b"content-type: application/json\r\n" for status, line in _STATUS_LINES.items()
}
_STREAM_HEAD: Final = (
    b"content-type: text/event-stream\r\ncache-control: no-store\r\nx-accel-buffering: no\r\n"
)
_AROUND_RESULT: Final = len(b'{"jsonrpc":"2.0","id":,"result":}')
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"


def _nobody(exchange: HttpExchange) -> None:
    exchange.respond(404)


def let_pass(exchange: HttpExchange, decide: Decide) -> None:
    decide(exchange, None)


class RequestHead:
    """What the head of a request says. On one connection it is parsed once, and then known."""

    __slots__ = (
        "check", "chunked", "facts", "fields", "headers", "keep_alive", "length", "lines",
        "method", "query", "serve",
    )  # fmt: skip

    def __init__(
        self, method: bytes, query: bytes, headers: list[tuple[bytes, bytes]], keep_alive: bool
    ) -> None:
        self.method = method
        self.query = query
        self.headers = headers
        self.fields = dict(headers)
        self.keep_alive = keep_alive
        self.chunked = True
        """Whether the client knows chunks, as all but HTTP/1.0 do."""
        self.length = 0
        self.facts: RequestHeaders | None = None
        """What a face made of these headers; kept with them."""
        self.lines = b""
        """Header lines that every answer to such a request must have."""
        self.serve: Serve = _nobody
        """Who serves its path."""
        self.check: Check = let_pass
        """Decides whether its body is read."""


@plain_stores
class HttpExchange(msgspec.Struct, eq=False):
    """A request that has been read whole, and the way to answer it."""

    lane: HttpProtocol
    head: RequestHead
    body: bytes
    keep_alive: bool
    on_disconnect: Callable[[HttpExchange], object] | None = None
    request_id: bytes = b""
    """The id of the request in the body, for whoever answers it."""
    session: HttpSession | None = None
    call: Call | None = None
    """The call that it became, for whoever must end it when the client hangs up."""
    outlet: ResumableStream | None = None
    """What remembers the events of this stream, where they can be asked for again."""
    streaming: bool = False
    done: bool = False

    def respond(
        self, status: int, body: bytes = b"", *, headers: bytes = b"", content_type: bytes = JSON
    ) -> None:
        """The whole answer. `headers`: ready header lines."""
        if self.done:
            return
        self.done = True
        lane = self.lane
        if content_type is JSON:
            head = JSON_HEAD[status]
        else:
            head = b"%bcontent-type: %b\r\n" % (_STATUS_LINES[status], content_type)
        if not self.keep_alive:
            headers += b"connection: close\r\n"
        transport = lane.transport
        if not transport.is_closing():
            transport.write(
                b"%b%b%b%bcontent-length: %d\r\n\r\n%b"
                % (head, lane.date_line(), self.head.lines, headers, len(body), body)
            )
        lane.finished(self)

    def respond_result(self, id: bytes, result: bytes) -> None:
        """A JSON-RPC result, which is what nearly every answer is: put together in one go.

        A large one is often the same for many, as a list of tools is. Copying it for every reader
        would cost more than sending it: it is written as it is.
        """
        if self.done:
            return
        self.done = True
        lane = self.lane
        transport = lane.transport
        # Of the second in which it is sent.
        if lane.server_state.default_headers is not lane.date_of:
            lane.date_line()
        head = lane.json_head
        if self.head.lines:
            head += self.head.lines
        if not self.keep_alive:
            head += b"connection: close\r\n"
        size = len(result)
        if transport.is_closing():
            pass
        elif size <= LARGE:
            transport.write(
                b'%bcontent-length: %d\r\n\r\n{"jsonrpc":"2.0","id":%b,"result":%b}'
                % (head, _AROUND_RESULT + len(id) + size, id, result)
            )
        else:
            transport.write(
                b'%bcontent-length: %d\r\n\r\n{"jsonrpc":"2.0","id":%b,"result":'
                % (head, _AROUND_RESULT + len(id) + size, id)
            )
            transport.write(result)
            transport.write(b"}")
        lane.finished(self)

    def open_stream(self, headers: bytes = b"") -> None:
        """Turn the answer into an event stream."""
        if self.done or self.streaming:
            return
        self.streaming = True
        framing = _CHUNKED
        if not self.head.chunked:
            # Then the stream ends with the connection.
            self.keep_alive = False
            framing = b""
        if not self.keep_alive:
            framing += b"connection: close\r\n"
        head = b"%b%b%b" % (_STATUS_LINES[200], self.lane.date_line(), self.head.lines)
        self.lane.write(b"%b%b%b%b\r\n" % (head, headers, _STREAM_HEAD, framing))

    def event(self, data: bytes, event: str | None = None) -> None:
        """Send one message on the stream."""
        self.write_event(encode_event(data, event))

    def ping(self) -> None:
        """Keep whatever stands between us and the client from closing a quiet stream."""
        self.write_event(COMMENT_PING)

    def end_stream(self) -> None:
        if self.done:
            return
        self.done = True
        if self.head.chunked:
            self.lane.write(b"0\r\n\r\n")
        self.lane.finished(self)

    def disconnected(self) -> None:
        """The client has gone away."""
        self.done = True
        if self.on_disconnect is not None:
            self.on_disconnect(self)

    def write_event(self, data: bytes) -> None:
        """Send an event that is encoded already."""
        if self.done:
            return
        if self.lane.unread() > _MOST_UNREAD:
            self.lane.cut_off()
            return
        self.lane.write(b"%x\r\n%b\r\n" % (len(data), data) if self.head.chunked else data)


Serve = Callable[[HttpExchange], None]
"""Answers one HTTP request, now or later."""
Decide = Callable[[HttpExchange, Serve | None], None]
"""Takes the decision about a request whose body is not read yet: what answers it with a refusal.
None: its body may come."""
Check = Callable[[HttpExchange, Decide], None]
"""Checks the head of a request before its body is read, and calls `Decide`, now or later."""
