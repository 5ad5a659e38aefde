"""An HTTP request and its response, without ASGI.

The response is either written in one piece or becomes an event stream that stays open. A write
after the client has disconnected has no effect, so handlers need not check the connection.
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
"""The size in bytes from which a result is written without a copy."""
_MAX_UNREAD_BYTES: Final = 4 * 1024 * 1024
"""The unread bytes of an event stream at which the connection is aborted."""

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
_RESULT_ENVELOPE_LENGTH: Final = len(b'{"jsonrpc":"2.0","id":,"result":}')
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"


def _respond_not_found(exchange: HttpExchange) -> None:
    exchange.respond(404)


def allow_request(exchange: HttpExchange, decide: Decide) -> None:
    """Accept a request without a check."""
    decide(exchange, None)


class RequestHead:
    """The parsed head of a request. A connection parses equal heads once and reuses the result."""

    __slots__ = (
        "check",
        "chunked",
        "fields",
        "headers",
        "keep_alive",
        "length",
        "lines",
        "method",
        "query",
        "request_headers",
        "serve",
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
        """True if the client supports chunked encoding: every version except HTTP/1.0."""
        self.length = 0
        self.request_headers: RequestHeaders | None = None
        """The MCP headers of this head, read by the MCP endpoint and cached here."""
        self.lines = b""
        """The header lines that every response to this head must contain."""
        self.serve: Serve = _respond_not_found
        """The handler of the path."""
        self.check: Check = allow_request
        """Decides from the head whether the body is read."""


@plain_stores
class HttpExchange(msgspec.Struct, eq=False):
    """A complete request, with the methods that write its response."""

    protocol: HttpProtocol
    head: RequestHead
    body: bytes
    keep_alive: bool
    on_disconnect: Callable[[HttpExchange], object] | None = None
    request_id: bytes = b""
    """The raw id of the JSON-RPC request in the body. The response repeats it."""
    session: HttpSession | None = None
    call: Call | None = None
    """The call that this request started. It is cancelled when the client disconnects."""
    stream: ResumableStream | None = None
    """The resumable stream of this response, on which the client can request missed events."""
    streaming: bool = False
    done: bool = False

    def respond(
        self, status: int, body: bytes = b"", *, headers: bytes = b"", content_type: bytes = JSON
    ) -> None:
        """Write the complete response.

        Args:
            headers: encoded header lines, each with its line end.
        """
        if self.done:
            return
        self.done = True
        protocol = self.protocol
        if content_type is JSON:
            head = JSON_HEAD[status]
        else:
            head = b"%bcontent-type: %b\r\n" % (_STATUS_LINES[status], content_type)
        if not self.keep_alive:
            headers += b"connection: close\r\n"
        transport = protocol.transport
        if not transport.is_closing():
            transport.write(
                b"%b%b%b%bcontent-length: %d\r\n\r\n%b"
                % (head, protocol.date_line(), self.head.lines, headers, len(body), body)
            )
        protocol.finished(self)

    def respond_result(self, id: bytes, result: bytes) -> None:
        """Write a JSON-RPC result as the complete response.

        Nearly every response is a result, so it is built in one step. A large result, such as a
        list of tools, is often the same for many clients. A copy per client would cost more than
        sending it, so a large result is written without a copy.

        Args:
            id: the raw id of the request.
            result: the encoded result.
        """
        if self.done:
            return
        self.done = True
        protocol = self.protocol
        transport = protocol.transport
        # The Date header changes every second.
        if protocol.server_state.default_headers is not protocol.date_of:
            protocol.date_line()
        head = protocol.json_head
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
                % (head, _RESULT_ENVELOPE_LENGTH + len(id) + size, id, result)
            )
        else:
            transport.write(
                b'%bcontent-length: %d\r\n\r\n{"jsonrpc":"2.0","id":%b,"result":'
                % (head, _RESULT_ENVELOPE_LENGTH + len(id) + size, id)
            )
            transport.write(result)
            transport.write(b"}")
        protocol.finished(self)

    def open_stream(self, headers: bytes = b"") -> None:
        """Turn the response into an event stream.

        Args:
            headers: encoded header lines.
        """
        if self.done or self.streaming:
            return
        self.streaming = True
        framing = _CHUNKED
        if not self.head.chunked:
            # Without chunks only the end of the connection marks the end of the stream.
            self.keep_alive = False
            framing = b""
        if not self.keep_alive:
            framing += b"connection: close\r\n"
        head = b"%b%b%b" % (_STATUS_LINES[200], self.protocol.date_line(), self.head.lines)
        self.protocol.write(b"%b%b%b%b\r\n" % (head, headers, _STREAM_HEAD, framing))

    def event(self, data: bytes, event: str | None = None) -> None:
        """Send one message on the stream."""
        self.write_event(encode_event(data, event))

    def ping(self) -> None:
        """Send a comment, so that no intermediary closes an idle stream."""
        self.write_event(COMMENT_PING)

    def end_stream(self) -> None:
        if self.done:
            return
        self.done = True
        if self.head.chunked:
            self.protocol.write(b"0\r\n\r\n")
        self.protocol.finished(self)

    def disconnected(self) -> None:
        """Mark the exchange as done after the client disconnected, and notify `on_disconnect`."""
        self.done = True
        if self.on_disconnect is not None:
            self.on_disconnect(self)

    def write_event(self, data: bytes) -> None:
        """Send an encoded event."""
        if self.done:
            return
        if self.protocol.count_unread_bytes() > _MAX_UNREAD_BYTES:
            self.protocol.cut_off()
            return
        self.protocol.write(b"%x\r\n%b\r\n" % (len(data), data) if self.head.chunked else data)


Serve = Callable[[HttpExchange], None]
"""Handles one HTTP request. It may respond later."""
Decide = Callable[[HttpExchange, Serve | None], None]
"""Takes the decision about a request whose body is not read yet: the handler that rejects the
request, or None to read the body."""
Check = Callable[[HttpExchange, Decide], None]
"""Checks the head of a request before its body is read. It may call `Decide` later."""
