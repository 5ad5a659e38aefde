"""The MCP endpoint over HTTP: who may knock, and which wire the request is on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from interlock.core.call import Call, Client
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.server.http.cors import answer_preflight, is_preflight
from interlock.core.server.http.exchange import Decide, HttpExchange
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.router import DirectRoute, Route
from interlock.core.server.mcp.request_headers import RequestHeaders, facts_of
from interlock.core.server.mcp.requests import claims_stateless
from interlock.core.server.mcp.responder import Responder
from interlock.core.server.mcp.responses import write_error
from interlock.core.server.mcp.session_protocol import SessionProtocol
from interlock.core.server.mcp.stateless_protocol import StatelessProtocol
from interlock.core.server.mcp.views import Views
from interlock.errors import (
    FOREIGN_ORIGIN,
    INTERNAL,
    INVALID_REQUEST,
    InterlockError,
    ProtocolError,
)
from interlock.protocol.aql_terms import PLAIN_VIEW
from interlock.protocol.jsonrpc import NULL, BadMessage, decode_message
from interlock.protocol.mcp import (
    LATEST_SESSION,
    LATEST_STATELESS,
    TOOLS_CALL,
    Era,
    decode_tool_call,
)

_STRANGER: Final = Client(Era.SESSION, LATEST_SESSION)

_log = logging.getLogger("interlock.server")


class McpEndpoint:
    """Serves the MCP endpoint."""

    def __init__(
        self,
        *,
        guard: Guard,
        stateless: StatelessProtocol,
        session: SessionProtocol,
        answering: Responder,
        pipeline: Pipeline,
        views: Views | None = None,
    ) -> None:
        self._guard = guard
        self.views = views or Views()
        self._pipeline = pipeline
        self._stateless = stateless
        self._session = session
        self.answering = answering

    def routes(self, path: str) -> Sequence[Route]:
        return (DirectRoute(path, self.serve, self.check, title="The MCP endpoint"),)

    def serve(self, exchange: HttpExchange) -> None:
        """Answer one HTTP request, now or later. Never raises."""
        try:
            facts = exchange.head.facts
            if facts is None or facts.guarded is not self._guard.version:
                facts = facts_of(exchange, self._guard, self.views)
            if facts.shortcut:
                request = decode_tool_call(exchange.body)
                if request is not None:
                    wire = self._stateless if facts.stateless else self._session
                    if wire.take(exchange, facts, request):
                        return
            method = exchange.head.method
            # The answer to a HEAD has no body, so a refusal could not be said.
            if facts.refusal is not None and method != b"HEAD":
                self._turn_away(exchange, facts, facts.refusal)
                return
            if facts.twice is not None and method != b"HEAD":
                raise ProtocolError(facts.twice + ".", INVALID_REQUEST)
            if facts.view_problem is not None and method != b"HEAD":
                raise facts.view_problem
            if method == b"POST":
                self._post(exchange, facts)
            elif facts.stateless and method in (b"GET", b"DELETE"):
                # That wire has neither.
                exchange.respond(405, b"", headers=b"allow: POST\r\n")
            elif method == b"GET":
                self._session.open_stream(exchange, facts)
            elif method == b"DELETE":
                self._session.end(exchange, facts)
            elif is_preflight(exchange):
                answer_preflight(exchange)
            else:
                exchange.respond(405, b"", headers=b"allow: GET, POST, DELETE\r\n")
        except BadMessage as bad:
            self.answering.refuse(exchange, bad.id, bad, None)
        except InterlockError as error:
            self.answering.refuse(exchange, NULL, error, None)
        except Exception:
            _log.exception("a request could not be served")
            failed = InterlockError(INTERNAL, "The node failed on this request; see its log.")
            exchange.respond(500, write_error(NULL, failed, None)[1])

    def check(self, exchange: HttpExchange, decide: Decide) -> None:
        """Decide by the head of a request whether its body is read."""
        facts = facts_of(exchange, self._guard, self.views)
        self.answering.check(exchange, facts, "http", _STRANGER, decide)

    def _turn_away(self, exchange: HttpExchange, facts: RequestHeaders, why: str) -> None:
        error = InterlockError(FOREIGN_ORIGIN, why)
        verb = exchange.head.method.decode("latin-1")
        self._pipeline.record_rejection(Call(verb, "http", facts.credentials, _STRANGER), error)
        self.answering.refuse(exchange, NULL, error, None)

    def _post(self, exchange: HttpExchange, facts: RequestHeaders) -> None:
        if not facts.is_json:
            error = ProtocolError("Send the message as application/json.", INVALID_REQUEST)
            exchange.respond(415, write_error(NULL, error, None)[1])
            return
        try:
            message = decode_message(exchange.body)
        except ProtocolError:
            if self._told_unreadable(exchange, facts):
                return
            raise
        if isinstance(message, list):
            if facts.stateless:
                raise ProtocolError(
                    f"MCP {facts.version} has no batches: send one message at a time.",
                    INVALID_REQUEST,
                )
            self._session.serve_batch(exchange, facts, message)
        elif facts.stateless or (facts.session is None and claims_stateless(message)):
            self._stateless.serve(exchange, facts, message)
        else:
            self._session.serve(exchange, facts, message)

    def _told_unreadable(self, exchange: HttpExchange, facts: RequestHeaders) -> bool:
        """Tell a client that sees operations, in their words, that its bytes are no text. False:
        this is no such client, or no call that could be answered. Raises InterlockError."""
        session = facts.found
        view = facts.view or facts.viewed or (None if session is None else session.view)
        operations = self._pipeline.operations
        if operations is None or view is None or view is PLAIN_VIEW:
            return False
        found = operations.check_encoding(exchange.body)
        if found is None:
            return False
        id, error = found
        client = _STRANGER if session is None else session.client
        if facts.stateless:
            client = Client(Era.STATELESS, LATEST_STATELESS)
        endpoint = next(iter(view.tools))
        call = Call(TOOLS_CALL, "http", facts.credentials, client, endpoint, view=view)
        self._pipeline.admission(call)
        self._pipeline.record_rejection(call, error)
        outcome, _ = operations.write_response(call, None, error)
        if outcome is None:
            return False
        self.answering.answer(exchange, id, client, outcome)
        return True
