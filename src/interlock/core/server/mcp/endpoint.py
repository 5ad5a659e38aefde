"""The MCP endpoint over HTTP: checks requests and selects the protocol generation."""

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
from interlock.core.server.mcp.request_headers import RequestHeaders, read_request_headers
from interlock.core.server.mcp.requests import claims_stateless
from interlock.core.server.mcp.responder import Responder
from interlock.core.server.mcp.responses import write_error
from interlock.core.server.mcp.session_protocol import SessionProtocol
from interlock.core.server.mcp.stateless_protocol import StatelessProtocol
from interlock.core.server.mcp.views import Views
from interlock.errors import (
    FOREIGN_ORIGIN,
    INTERNAL,
    INTERNAL_ERROR_TEXT,
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

_UNKNOWN_CLIENT: Final = Client(Era.SESSION, LATEST_SESSION)

_log = logging.getLogger("interlock.server")


class McpEndpoint:
    """Serves the MCP endpoint."""

    def __init__(
        self,
        *,
        guard: Guard,
        stateless: StatelessProtocol,
        session: SessionProtocol,
        responder: Responder,
        pipeline: Pipeline,
        views: Views | None = None,
    ) -> None:
        self._guard = guard
        self.views = views or Views()
        self._pipeline = pipeline
        self._stateless = stateless
        self._session = session
        self.responder = responder

    def routes(self, path: str) -> Sequence[Route]:
        return (DirectRoute(path, self.serve, self.check, title="The MCP endpoint"),)

    def serve(self, exchange: HttpExchange) -> None:
        """Handle one HTTP request. The response may follow later. Never raises."""
        try:
            request_headers = exchange.head.request_headers
            if request_headers is None or request_headers.guard_version is not self._guard.version:
                request_headers = read_request_headers(exchange, self._guard, self.views)
            if request_headers.is_fast_path:
                request = decode_tool_call(exchange.body)
                if request is not None:
                    protocol = self._stateless if request_headers.stateless else self._session
                    if protocol.start_tool_call(exchange, request_headers, request):
                        return
            method = exchange.head.method
            # The response to a HEAD request has no body, so it cannot carry an error.
            if request_headers.rejection is not None and method != b"HEAD":
                self._reject_origin(exchange, request_headers, request_headers.rejection)
                return
            if request_headers.repeated_header is not None and method != b"HEAD":
                raise ProtocolError(request_headers.repeated_header + ".", INVALID_REQUEST)
            if request_headers.view_error is not None and method != b"HEAD":
                raise request_headers.view_error
            if method == b"POST":
                self._post(exchange, request_headers)
            elif request_headers.stateless and method in (b"GET", b"DELETE"):
                # The stateless protocol generation has neither.
                exchange.respond(405, b"", headers=b"allow: POST\r\n")
            elif method == b"GET":
                self._session.open_stream(exchange, request_headers)
            elif method == b"DELETE":
                self._session.end(exchange, request_headers)
            elif is_preflight(exchange):
                answer_preflight(exchange)
            else:
                exchange.respond(405, b"", headers=b"allow: GET, POST, DELETE\r\n")
        except BadMessage as bad:
            self.responder.reject(exchange, bad.id, bad, None)
        except InterlockError as error:
            self.responder.reject(exchange, NULL, error, None)
        except Exception:
            _log.exception("MCP endpoint: request failed")
            failed = InterlockError(INTERNAL, INTERNAL_ERROR_TEXT)
            exchange.respond(500, write_error(NULL, failed, None)[1])

    def check(self, exchange: HttpExchange, decide: Decide) -> None:
        """Decide from the head of a request whether its body is read."""
        request_headers = read_request_headers(exchange, self._guard, self.views)
        self.responder.check(exchange, request_headers, "http", _UNKNOWN_CLIENT, decide)

    def _reject_origin(
        self, exchange: HttpExchange, request_headers: RequestHeaders, reason: str
    ) -> None:
        error = InterlockError(FOREIGN_ORIGIN, reason)
        method = exchange.head.method.decode("latin-1")
        self._pipeline.record_rejection(
            Call(method, "http", request_headers.credentials, _UNKNOWN_CLIENT), error
        )
        self.responder.reject(exchange, NULL, error, None)

    def _post(self, exchange: HttpExchange, request_headers: RequestHeaders) -> None:
        if not request_headers.is_json:
            error = ProtocolError("Send the message as application/json.", INVALID_REQUEST)
            exchange.respond(415, write_error(NULL, error, None)[1])
            return
        try:
            message = decode_message(exchange.body)
        except ProtocolError:
            if self._respond_invalid_encoding(exchange, request_headers):
                return
            raise
        if isinstance(message, list):
            if request_headers.stateless:
                raise ProtocolError(
                    f"MCP {request_headers.version} has no batches. Send one message at a time.",
                    INVALID_REQUEST,
                )
            self._session.serve_batch(exchange, request_headers, message)
        elif request_headers.stateless or (
            request_headers.session is None and claims_stateless(message)
        ):
            self._stateless.serve(exchange, request_headers, message)
        else:
            self._session.serve(exchange, request_headers, message)

    def _respond_invalid_encoding(
        self, exchange: HttpExchange, request_headers: RequestHeaders
    ) -> bool:
        """Respond to a client with an AQL view, in the format of AQL, that its request is not valid
        UTF-8.

        Returns:
            False if the client has no such view, or the request is no call that can get a result.

        Raises:
            InterlockError: the caller is not admitted.
        """
        session = request_headers.cached_session
        view = (
            request_headers.view
            or request_headers.client_view
            or (None if session is None else session.view)
        )
        operations = self._pipeline.operations
        if operations is None or view is None or view is PLAIN_VIEW:
            return False
        encoding_error = operations.check_encoding(exchange.body)
        if encoding_error is None:
            return False
        id, error = encoding_error
        client = _UNKNOWN_CLIENT if session is None else session.client
        if request_headers.stateless:
            client = Client(Era.STATELESS, LATEST_STATELESS)
        endpoint = next(iter(view.tools))
        call = Call(TOOLS_CALL, "http", request_headers.credentials, client, endpoint, view=view)
        self._pipeline.admission(call)
        self._pipeline.record_rejection(call, error)
        outcome, _ = operations.write_response(call, None, error)
        if outcome is None:
            return False
        self.responder.answer(exchange, id, client, outcome)
        return True
