"""The HTTP+SSE transport of MCP 2024-11-05, for clients that support no newer transport.

A GET opens an event stream. Its first event contains the path for posts. A posted message gets a
202, and its response is sent on the stream. The session ends with the stream.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Container, Sequence
from typing import Final
from urllib.parse import parse_qs

from interlock.core.call import Call, Client
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.server.http.cors import answer_preflight, is_preflight
from interlock.core.server.http.exchange import Decide, HttpExchange
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.router import DirectRoute, Route
from interlock.core.server.mcp.change_notifications import ChangeListeners
from interlock.core.server.mcp.conversation import Conversation
from interlock.core.server.mcp.request_headers import RequestHeaders, read_request_headers
from interlock.core.server.mcp.responder import Responder
from interlock.core.server.mcp.server_info import ServerInfo
from interlock.core.server.mcp.views import Views
from interlock.errors import (
    FOREIGN_ORIGIN,
    INTERNAL,
    INTERNAL_ERROR_TEXT,
    INVALID_REQUEST,
    TOO_BUSY,
    UNKNOWN_SESSION,
    InterlockError,
    ProtocolError,
)
from interlock.protocol.jsonrpc import NULL, BadMessage, decode_message
from interlock.protocol.mcp import Era

FACE: Final = "sse"
SSE_PATH: Final = "/sse"
MESSAGES_PATH: Final = "/messages"
_CLIENT: Final = Client(Era.SESSION, "2024-11-05")

_log = logging.getLogger("interlock.server")


_Handler = Callable[[HttpExchange, RequestHeaders], None]


class _ConnectedClient:
    """A client with an open event stream."""

    __slots__ = ("conversation", "exchange", "owner")

    def __init__(self, exchange: HttpExchange, owner: str, conversation: Conversation) -> None:
        self.exchange = exchange
        self.owner = owner
        self.conversation = conversation


class LegacySse:
    """The two paths of the HTTP+SSE transport."""

    def __init__(
        self,
        *,
        guard: Guard,
        pipeline: Pipeline,
        server_info: ServerInfo,
        listeners: ChangeListeners,
        responder: Responder,
        max_clients: int,
        sse_path: str = SSE_PATH,
        messages_path: str = MESSAGES_PATH,
        views: Views | None = None,
    ) -> None:
        """Create the transport.

        Args:
            max_clients: the maximum number of connected clients.
        """
        self._guard = guard
        self.max_clients = max_clients
        self.views = views
        self._pipeline = pipeline
        self._server_info = server_info
        self._listeners = listeners
        self._responder = responder
        self._messages_path = messages_path
        self._clients: dict[str, _ConnectedClient] = {}
        self._sse_path = sse_path

    def routes(self) -> Sequence[Route]:
        """Return the routes. Clients post with and without a trailing slash."""
        return (
            DirectRoute(self._sse_path, self.open, self._check),
            DirectRoute(self._messages_path, self.post, self._check),
            DirectRoute(f"{self._messages_path}/", self.post, self._check),
        )

    def __len__(self) -> int:
        return len(self._clients)

    def open(self, exchange: HttpExchange) -> None:
        """Handle a GET: open the event stream of a client."""
        self._serve(exchange, b"GET", self._open)

    def post(self, exchange: HttpExchange) -> None:
        """Handle a POST: process a message of a client."""
        self._serve(exchange, b"POST", self._post)

    def retain_only(self, callers: Container[str]) -> None:
        """Disconnect all other callers."""
        for id, client in list(self._clients.items()):
            if client.owner not in callers:
                del self._clients[id]
                client.exchange.end_stream()
                client.conversation.closed()

    def close(self) -> None:
        """Disconnect all clients. The node stops, and every request has its response."""
        for client in list(self._clients.values()):
            client.exchange.end_stream()
            client.conversation.closed()
        self._clients.clear()

    def _check(self, exchange: HttpExchange, decide: Decide) -> None:
        """Decide from the head of a request whether its body is read."""
        request_headers = read_request_headers(exchange, self._guard)
        self._responder.check(exchange, request_headers, FACE, _CLIENT, decide)

    def _serve(self, exchange: HttpExchange, method: bytes, serve: _Handler) -> None:
        try:
            request_headers = read_request_headers(exchange, self._guard)
            if request_headers.rejection is not None:
                error = InterlockError(FOREIGN_ORIGIN, request_headers.rejection)
                rejected = Call(
                    exchange.head.method.decode("latin-1"),
                    FACE,
                    request_headers.credentials,
                    _CLIENT,
                )
                self._pipeline.record_rejection(rejected, error)
                raise error
            if request_headers.repeated_header is not None:
                raise ProtocolError(request_headers.repeated_header + ".", INVALID_REQUEST)
            if exchange.head.method == method:
                serve(exchange, request_headers)
            elif is_preflight(exchange):
                answer_preflight(exchange)
            else:
                exchange.respond(405, headers=b"allow: %b\r\n" % method)
        except BadMessage as bad:
            self._responder.reject(exchange, bad.id, bad, None)
        except InterlockError as error:
            self._responder.reject(exchange, NULL, error, None)
        except Exception:
            _log.exception("HTTP+SSE transport: request failed")
            failed = InterlockError(INTERNAL, INTERNAL_ERROR_TEXT)
            self._responder.reject(exchange, NULL, failed, None)

    def _open(self, exchange: HttpExchange, request_headers: RequestHeaders) -> None:
        caller = self._pipeline.admit(Call("GET", FACE, request_headers.credentials, _CLIENT))
        if not request_headers.accepts_stream:
            exchange.respond(406)
            return
        if len(self._clients) >= self.max_clients:
            raise InterlockError(
                TOO_BUSY,
                f"The limit of {self.max_clients} connected clients is reached. Try again later.",
            )
        id = secrets.token_urlsafe(24)
        conversation = Conversation(
            pipeline=self._pipeline,
            server_info=self._server_info,
            listeners=self._listeners,
            send=lambda payload: exchange.event(payload, "message"),
            ping=exchange.ping,
            face=FACE,
            credentials=request_headers.credentials,
            stateless=False,
            views=self.views,
        )
        self._clients[id] = _ConnectedClient(exchange, caller.name, conversation)

        def on_disconnect(_: HttpExchange) -> None:
            self._clients.pop(id, None)
            conversation.closed()

        exchange.on_disconnect = on_disconnect
        exchange.open_stream()
        exchange.event(f"{self._messages_path}?session_id={id}".encode(), "endpoint")

    def _post(self, exchange: HttpExchange, request_headers: RequestHeaders) -> None:
        id = parse_qs(exchange.head.query.decode("latin-1")).get("session_id", [""])[-1]
        client = self._clients.get(id)
        # An unauthenticated caller gets that error, and learns nothing about sessions.
        owner = "" if client is None else client.owner
        self._pipeline.admit(
            Call("POST", FACE, request_headers.credentials, _CLIENT, session_owner=owner)
        )
        if client is None:
            raise InterlockError(UNKNOWN_SESSION, "Unknown or expired session. Open a new stream.")
        if not request_headers.is_json:
            raise ProtocolError("Send the message as application/json.", INVALID_REQUEST)
        message = decode_message(exchange.body)
        exchange.respond(202, b"Accepted", content_type=b"text/plain")
        client.conversation.messages(message)
