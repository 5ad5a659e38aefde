"""The stateless wire over HTTP (2026-07-28): every request says everything about itself."""

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
_SOMEBODY: Final = Client(mcp.Era.STATELESS, mcp.LATEST_STATELESS)
_REVISION_JSON: Final = b'"%b"' % mcp.LATEST_STATELESS.encode()


class StatelessProtocol:
    """Serves stateless requests."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        hello: ServerInfo,
        listeners: ChangeListeners,
        answering: Responder,
        views: Views | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._hello = hello
        self._listeners = listeners
        self._answering = answering
        self._views = views or Views()

        def hung_up(exchange: HttpExchange) -> None:
            if exchange.call is not None:
                pipeline.cancel(exchange.call)

        # One for all: nothing is made for a call that is hardly ever hung up on.
        self._hung_up = hung_up

    def take(self, exchange: HttpExchange, facts: RequestHeaders, request: mcp.ToolCall) -> bool:
        """Start a plain call. False: something about it wants the long look of `serve`."""
        params = request.params
        raw_meta = params.meta
        if raw_meta is UNSET or facts.tool != params.name:
            return False
        if raw_meta != facts.said and not self._understand(facts, raw_meta):
            return False
        # Not `bytes(…)`: that costs twice as much.
        id = b"" + request.id
        if not (id.isdigit() or id[:1] == b'"'):
            return False
        client, answering = facts.client, self._answering
        if client is None:
            return False
        hear = answering.heard if facts.accepts_stream else None
        view = facts.viewed
        if view is not None and view is PLAIN_VIEW:
            view = None
        call = Call(
            mcp.TOOLS_CALL, FACE, facts.credentials, client, params.name, "", None,
            params.arguments, facts.meta, None, exchange.head.headers, hear, answering.over, None,
            None, exchange, view,
        )  # fmt: skip
        exchange.request_id = id
        # On this wire hanging up is how a client cancels.
        exchange.call = call
        exchange.on_disconnect = self._hung_up
        if answering.pulse is None:
            answering.begin_pulse()
        self._pipeline.begin(call)
        return True

    def _understand(self, facts: RequestHeaders, said: Raw) -> bool:
        """Read the `_meta` of a request. Most clients say the same every time."""
        # A copy, or the whole request would be kept.
        said = said.copy()
        try:
            meta = decode_members(said)
        except ProtocolError:
            return False
        version = meta.get(mcp.META_VERSION)
        capabilities = meta.get(mcp.META_CLIENT_CAPABILITIES)
        if version is None or capabilities is None or bytes(version) != _REVISION_JSON:
            return False
        try:
            promised = read_capabilities(capabilities, "")
            if mcp.META_LOG_LEVEL in meta:
                read_level(meta[mcp.META_LOG_LEVEL])
        except ProtocolError:
            return False
        facts.said, facts.meta = said, meta
        facts.client = Client(mcp.Era.STATELESS, mcp.LATEST_STATELESS, "", promised)
        facts.viewed = self._view_of(facts, client_name(meta))
        return True

    def _view_of(self, facts: RequestHeaders, client: str) -> OperationView | None:
        if facts.view is not None:
            return facts.view
        try:
            caller = self._pipeline.admission.authenticate(facts.credentials).name
        except InterlockError:
            # Whether it may call at all is found out when it does.
            caller = ""
        return self._views.of_client(client, caller)

    def serve(self, exchange: HttpExchange, facts: RequestHeaders, message: Message) -> None:
        method = message.method
        if method is UNSET:
            raise ProtocolError("Responses are not accepted here.", INVALID_REQUEST)
        if message.id is UNSET:
            # No notification of a client asks anything of a server here: what it no longer
            # wants, it hangs up on. It is taken, as the wire wants it.
            if facts.version is not None and not facts.stateless:
                raise mcp.unsupported_version(facts.version)
            self._pipeline.admit(Call(method, FACE, facts.credentials, _SOMEBODY))
            exchange.respond(202)
            return
        id = bytes(message.id)
        client: Client | None = None
        try:
            params = read_params(message)
            meta = read_meta(params)
            client = read_client(method, meta)
            self._check_headers(method, client.revision, params, facts)
            if client.revision not in mcp.STATELESS_REVISIONS:
                raise mcp.unsupported_version(client.revision)
            self._request(exchange, facts, method, id, params, meta, client)
        except InterlockError as error:
            self._answering.refuse(exchange, id, error, client)

    @staticmethod
    def _check_headers(
        method: str, version: str, params: dict[str, Raw], facts: RequestHeaders
    ) -> None:
        """The headers must repeat the body: two readers must not see two requests."""
        if facts.duplicate is not None:
            raise InterlockError(HEADER_MISMATCH, facts.duplicate + ".")
        field = headers.NAME_FIELDS.get(method)
        name = None if field is None else read_string(params, field)
        if facts.version == version and facts.method == method and facts.name == name:
            return
        mismatch = headers.check_request_headers(
            method, version, name, facts.version_header, facts.method_header, facts.name_header
        )
        if mismatch is not None:
            raise InterlockError(HEADER_MISMATCH, mismatch + ".")

    def _request(
        self,
        exchange: HttpExchange,
        facts: RequestHeaders,
        method: str,
        id: bytes,
        params: dict[str, Raw],
        meta: dict[str, Raw],
        client: Client,
    ) -> None:
        credentials = facts.credentials
        if method in mcp.REMOVED_FROM_STATELESS:
            raise InterlockError(METHOD_NOT_FOUND, f"{method} is not part of {client.revision}.")
        if method == mcp.DISCOVER:
            self._pipeline.admit(Call(method, FACE, credentials, client))
            view = self._view_of(facts, client_name(meta))
            exchange.respond(200, result_response(id, self._hello.discover_result(view)))
            return
        if method == mcp.LISTEN:
            request = Call(method, FACE, credentials, client)
            self._pipeline.admit(request)
            self._listen(exchange, facts, id, params, request)
            return
        view = self._view_of(facts, client_name(meta))
        call = read_call(method, params, meta, face=FACE, credentials=credentials, client=client)
        if view is not None and view is not PLAIN_VIEW:
            call.view = view
        call.header_params = exchange.head.headers
        exchange.request_id = id
        # On this wire hanging up is how a client cancels.
        exchange.call = call
        exchange.on_disconnect = self._hung_up
        self._answering.start(exchange, facts, call)

    def _listen(
        self,
        exchange: HttpExchange,
        facts: RequestHeaders,
        id: bytes,
        params: dict[str, Raw],
        request: Call,
    ) -> None:
        if not facts.accepts_stream:
            exchange.respond(406)
            return
        honoured = self._listeners.honoured(params, self._hello.capabilities, request.client)
        exchange.open_stream()
        remove = self._listeners.add_stateless(
            id, honoured, exchange.event, exchange.ping, exchange.end_stream, request
        )
        exchange.on_disconnect = lambda _: remove()
