"""The stateless protocol generation over HTTP (2026-07-28): every request is self-contained."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, Raw

from interlock.core.call import Call, Client
from interlock.core.pipeline.notification_filter import read_level
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.server.http.exchange import HttpExchange
from interlock.core.server.mcp.change_notifications import ChangeListeners
from interlock.core.server.mcp.request_headers import RequestHeaders
from interlock.core.server.mcp.requests import (
    client_name,
    read_call,
    read_capabilities,
    read_client,
    read_meta,
    read_params,
    read_string,
)
from interlock.core.server.mcp.responder import Responder
from interlock.core.server.mcp.server_info import ServerInfo
from interlock.core.server.mcp.views import Views
from interlock.errors import (
    HEADER_MISMATCH,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    InterlockError,
    ProtocolError,
)
from interlock.protocol import headers, mcp
from interlock.protocol.aql_terms import PLAIN_VIEW, OperationView
from interlock.protocol.jsonrpc import Message, decode_members, result_response

FACE: Final = "http"
_UNKNOWN_CLIENT: Final = Client(mcp.Era.STATELESS, mcp.LATEST_STATELESS)
_REVISION_JSON: Final = b'"%b"' % mcp.LATEST_STATELESS.encode()


class StatelessProtocol:
    """Handles the requests of stateless clients over HTTP."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        server_info: ServerInfo,
        listeners: ChangeListeners,
        responder: Responder,
        views: Views | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._server_info = server_info
        self._listeners = listeners
        self._responder = responder
        self._views = views or Views()

        def cancel_call(exchange: HttpExchange) -> None:
            if exchange.call is not None:
                pipeline.cancel(exchange.call)

        # One function for all calls, because a function per call would cost time and clients rarely
        # disconnect.
        self._cancel_call = cancel_call

    def start_tool_call(
        self, exchange: HttpExchange, request_headers: RequestHeaders, request: mcp.ToolCall
    ) -> bool:
        """Start a plain tool call.

        Returns:
            False if the request needs the full checks of `serve`.
        """
        params = request.params
        raw_meta = params.meta
        if raw_meta is UNSET or request_headers.tool != params.name:
            return False
        if raw_meta != request_headers.raw_meta and not self._read_meta(request_headers, raw_meta):
            return False
        # `bytes(…)` would take twice as long.
        id = b"" + request.id
        if not (id.isdigit() or id[:1] == b'"'):
            return False
        client, responder = request_headers.client, self._responder
        if client is None:
            return False
        on_notification = (
            responder.notification_callback if request_headers.accepts_stream else None
        )
        view = request_headers.client_view
        if view is not None and view is PLAIN_VIEW:
            view = None
        call = Call(
            mcp.TOOLS_CALL, FACE, request_headers.credentials, client, params.name, "", None,
            params.arguments, request_headers.meta, None, exchange.head.headers, on_notification,
            responder.done_callback, None, None, exchange, view,
        )  # fmt: skip
        exchange.request_id = id
        # A stateless client cancels a call by disconnecting.
        exchange.call = call
        exchange.on_disconnect = self._cancel_call
        if responder.ping_timer is None:
            responder.start_pings()
        self._pipeline.begin(call)
        return True

    def _read_meta(self, request_headers: RequestHeaders, raw_meta: Raw) -> bool:
        """Read the `_meta` of a request into the cached headers. Most clients repeat the same
        `_meta`.

        Returns:
            False if the request needs the full checks of `serve`.
        """
        # Without a copy the complete request would stay in memory.
        raw_meta = raw_meta.copy()
        try:
            meta = decode_members(raw_meta)
        except ProtocolError:
            return False
        version = meta.get(mcp.META_VERSION)
        capabilities = meta.get(mcp.META_CLIENT_CAPABILITIES)
        if version is None or capabilities is None or bytes(version) != _REVISION_JSON:
            return False
        try:
            capabilities_json = read_capabilities(capabilities, "")
            if mcp.META_LOG_LEVEL in meta:
                read_level(meta[mcp.META_LOG_LEVEL])
        except ProtocolError:
            return False
        request_headers.raw_meta, request_headers.meta = raw_meta, meta
        request_headers.client = Client(
            mcp.Era.STATELESS, mcp.LATEST_STATELESS, "", capabilities_json
        )
        request_headers.client_view = self._view_of(request_headers, client_name(meta))
        return True

    def _view_of(self, request_headers: RequestHeaders, client: str) -> OperationView | None:
        if request_headers.view is not None:
            return request_headers.view
        try:
            caller = self._pipeline.admission.authenticate(request_headers.credentials).name
        except InterlockError:
            # The call itself is rejected later.
            caller = ""
        return self._views.choose_view(client, caller)

    def serve(
        self, exchange: HttpExchange, request_headers: RequestHeaders, message: Message
    ) -> None:
        method = message.method
        if method is UNSET:
            raise ProtocolError("Responses are not accepted here.", INVALID_REQUEST)
        if message.id is UNSET:
            # Client notifications have no effect in this generation: a client cancels by
            # disconnecting. They are accepted, as the specification requires.
            if request_headers.version is not None and not request_headers.stateless:
                raise mcp.unsupported_version(request_headers.version)
            self._pipeline.admit(Call(method, FACE, request_headers.credentials, _UNKNOWN_CLIENT))
            exchange.respond(202)
            return
        id = bytes(message.id)
        client: Client | None = None
        try:
            params = read_params(message)
            meta = read_meta(params)
            client = read_client(method, meta)
            self._check_headers(method, client.revision, params, request_headers)
            if client.revision not in mcp.STATELESS_REVISIONS:
                raise mcp.unsupported_version(client.revision)
            self._request(exchange, request_headers, method, id, params, meta, client)
        except InterlockError as error:
            self._responder.reject(exchange, id, error, client)

    @staticmethod
    def _check_headers(
        method: str, version: str, params: dict[str, Raw], request_headers: RequestHeaders
    ) -> None:
        """Check that the headers repeat the body. A proxy that reads only the headers must not see
        another request than the node.

        Raises:
            InterlockError: the headers do not match the body.
        """
        if request_headers.duplicate is not None:
            raise InterlockError(HEADER_MISMATCH, request_headers.duplicate + ".")
        field = headers.NAME_FIELDS.get(method)
        name = None if field is None else read_string(params, field)
        if (
            request_headers.version == version
            and request_headers.method == method
            and request_headers.name == name
        ):
            return
        mismatch = headers.check_request_headers(
            method,
            version,
            name,
            request_headers.version_header,
            request_headers.method_header,
            request_headers.name_header,
        )
        if mismatch is not None:
            raise InterlockError(HEADER_MISMATCH, mismatch + ".")

    def _request(
        self,
        exchange: HttpExchange,
        request_headers: RequestHeaders,
        method: str,
        id: bytes,
        params: dict[str, Raw],
        meta: dict[str, Raw],
        client: Client,
    ) -> None:
        credentials = request_headers.credentials
        if method in mcp.REMOVED_FROM_STATELESS:
            raise InterlockError(METHOD_NOT_FOUND, f"{method} is not part of {client.revision}.")
        if method == mcp.DISCOVER:
            self._pipeline.admit(Call(method, FACE, credentials, client))
            view = self._view_of(request_headers, client_name(meta))
            exchange.respond(200, result_response(id, self._server_info.discover_result(view)))
            return
        if method == mcp.LISTEN:
            request = Call(method, FACE, credentials, client)
            self._pipeline.admit(request)
            self._listen(exchange, request_headers, id, params, request)
            return
        view = self._view_of(request_headers, client_name(meta))
        call = read_call(method, params, meta, face=FACE, credentials=credentials, client=client)
        if view is not None and view is not PLAIN_VIEW:
            call.view = view
        call.header_params = exchange.head.headers
        exchange.request_id = id
        # A stateless client cancels a call by disconnecting.
        exchange.call = call
        exchange.on_disconnect = self._cancel_call
        self._responder.start(exchange, request_headers, call)

    def _listen(
        self,
        exchange: HttpExchange,
        request_headers: RequestHeaders,
        id: bytes,
        params: dict[str, Raw],
        request: Call,
    ) -> None:
        if not request_headers.accepts_stream:
            exchange.respond(406)
            return
        accepted_filter = self._listeners.filter_subscription(
            params, self._server_info.capabilities, request.client
        )
        exchange.open_stream()
        remove = self._listeners.add_stateless(
            id, accepted_filter, exchange.event, exchange.ping, exchange.end_stream, request
        )
        exchange.on_disconnect = lambda _: remove()
