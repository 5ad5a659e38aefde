"""The old transport, HTTP+SSE (2024-11-05), for clients that know no other.

A GET opens a stream of events; the first one says where to post. What the client posts is taken
with a 202, and every answer comes on the stream. The stream is the session: it ends with it.
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
from interlock.core.server.mcp.request_headers import RequestHeaders, facts_of
from interlock.core.server.mcp.responder import Responder
from interlock.core.server.mcp.server_info import ServerInfo
from interlock.core.server.mcp.views import Views
from interlock.errors import (
    FOREIGN_ORIGIN,
    INTERNAL,
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


_Step = Callable[[HttpExchange, RequestHeaders], None]


class _Connected:
    """A client with an open stream."""

    __slots__ = ("conversation", "exchange", "owner")

    def __init__(self, exchange: HttpExchange, owner: str, conversation: Conversation) -> None:
        self.exchange = exchange
        self.owner = owner
        self.conversation = conversation


class LegacySse:
    """Serves the two paths of the old transport."""

    def __init__(
        self,
        *,
        guard: Guard,
        pipeline: Pipeline,
        hello: ServerInfo,
        listeners: ChangeListeners,
        answering: Responder,
        most: int,
        sse_path: str = SSE_PATH,
        messages_path: str = MESSAGES_PATH,
        views: Views | None = None,
    ) -> None:
        """`most`: so many clients may be connected at once."""
        self._guard = guard
        self.most = most
        self.views = views
        self._pipeline = pipeline
        self._hello = hello
        self._listeners = listeners
        self._answering = answering
        self._messages_path = messages_path
        self._clients: dict[str, _Connected] = {}
        self._sse_path = sse_path

    def routes(self) -> Sequence[Route]:
        """Its paths. Clients post with and without a slash."""
        return (
            DirectRoute(self._sse_path, self.open, self._check),
            DirectRoute(self._messages_path, self.post, self._check),
            DirectRoute(f"{self._messages_path}/", self.post, self._check),
        )

    def __len__(self) -> int:
        return len(self._clients)

    def open(self, exchange: HttpExchange) -> None:
        """GET: a client comes."""
        self._serve(exchange, b"GET", self._open)

    def post(self, exchange: HttpExchange) -> None:
        """POST: a client says something."""
        self._serve(exchange, b"POST", self._post)

    def retain_only(self, callers: Container[str]) -> None:
        """Only these callers are known any more."""
        for id, client in list(self._clients.items()):
            if client.owner not in callers:
                del self._clients[id]
                client.exchange.end_stream()
                client.conversation.closed()

    def close(self) -> None:
        """The node stops, and everything asked of it has been answered."""
        for client in list(self._clients.values()):
            client.exchange.end_stream()
            client.conversation.closed()
        self._clients.clear()

    def _check(self, exchange: HttpExchange, decide: Decide) -> None:
        """Decide by the head of a request whether its body is read."""
        facts = facts_of(exchange, self._guard)
        self._answering.check(exchange, facts, FACE, _CLIENT, decide)

    def _serve(self, exchange: HttpExchange, method: bytes, serve: _Step) -> None:
        try:
            facts = facts_of(exchange, self._guard)
            if facts.refusal is not None:
                error = InterlockError(FOREIGN_ORIGIN, facts.refusal)
                verb = exchange.head.method.decode("latin-1")
                self._pipeline.record_rejection(Call(verb, FACE, facts.credentials, _CLIENT), error)
                raise error
            if facts.twice is not None:
                raise ProtocolError(facts.twice + ".", INVALID_REQUEST)
            if exchange.head.method == method:
                serve(exchange, facts)
            elif is_preflight(exchange):
                answer_preflight(exchange)
            else:
                exchange.respond(405, headers=b"allow: %b\r\n" % method)
        except BadMessage as bad:
            self._answering.refuse(exchange, bad.id, bad, None)
        except InterlockError as error:
            self._answering.refuse(exchange, NULL, error, None)
        except Exception:
            _log.exception("a request could not be served")
            failed = InterlockError(INTERNAL, "The node failed on this request; see its log.")
            self._answering.refuse(exchange, NULL, failed, None)

    def _open(self, exchange: HttpExchange, facts: RequestHeaders) -> None:
        caller = self._pipeline.admit(Call("GET", FACE, facts.credentials, _CLIENT))
        if not facts.accepts_stream:
            exchange.respond(406)
            return
        if len(self._clients) >= self.most:
            raise InterlockError(TOO_BUSY, "As many clients are connected as may be.")
        id = secrets.token_urlsafe(24)
        conversation = Conversation(
            pipeline=self._pipeline,
            hello=self._hello,
            listeners=self._listeners,
            send=lambda payload: exchange.event(payload, "message"),
            ping=exchange.ping,
            face=FACE,
            credentials=facts.credentials,
            stateless=False,
            views=self.views,
        )
        self._clients[id] = _Connected(exchange, caller.name, conversation)

        def gone(_: HttpExchange) -> None:
            self._clients.pop(id, None)
            conversation.closed()

        exchange.on_disconnect = gone
        exchange.open_stream()
        exchange.event(f"{self._messages_path}?session_id={id}".encode(), "endpoint")

    def _post(self, exchange: HttpExchange, facts: RequestHeaders) -> None:
        id = parse_qs(exchange.head.query.decode("latin-1")).get("session_id", [""])[-1]
        client = self._clients.get(id)
        # A stranger is told that, and nothing about sessions.
        owner = "" if client is None else client.owner
        self._pipeline.admit(Call("POST", FACE, facts.credentials, _CLIENT, session_owner=owner))
        if client is None:
            raise InterlockError(
                UNKNOWN_SESSION, "This session has ended or never was: open a new stream."
            )
        if not facts.is_json:
            raise ProtocolError("Send the message as application/json.", INVALID_REQUEST)
        message = decode_message(exchange.body)
        exchange.respond(202, b"Accepted", content_type=b"text/plain")
        client.conversation.messages(message)
