"""The session protocol generation over HTTP (2025-03-26 to 2025-11-25): `initialize` opens a
session."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from msgspec import UNSET

from interlock.core.call import Call, Client
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.server.http.exchange import HttpExchange
from interlock.core.server.mcp.change_notifications import ChangeListeners
from interlock.core.server.mcp.request_headers import RequestHeaders
from interlock.core.server.mcp.requests import read_call, read_initialize, read_meta, read_params
from interlock.core.server.mcp.responder import Responder
from interlock.core.server.mcp.responses import write_error, write_outcome
from interlock.core.server.mcp.server_info import ServerInfo
from interlock.core.server.mcp.sessions import HttpSession, Sessions
from interlock.core.server.mcp.views import Views
from interlock.errors import (
    CANCELLED,
    INTERNAL,
    INTERNAL_ERROR_TEXT,
    INVALID_REQUEST,
    InterlockError,
    ProtocolError,
)
from interlock.protocol import headers, jsonrpc, mcp
from interlock.protocol.aql_terms import PLAIN_VIEW
from interlock.protocol.jsonrpc import BadMessage, Message

FACE: Final = "http"
_PONG: Final = b"{}"
_UNKNOWN_CLIENT: Final = Client(mcp.Era.SESSION, mcp.LATEST_SESSION)

_log = logging.getLogger("interlock.server")


class SessionProtocol:
    """Handles the requests of session clients over HTTP."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        server_info: ServerInfo,
        listeners: ChangeListeners,
        sessions: Sessions,
        responder: Responder,
        views: Views | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._server_info = server_info
        self._listeners = listeners
        self._sessions = sessions
        self._responder = responder
        self._views = views or Views()
        self._batches: set[asyncio.Task[None]] = set()
        sessions.on_closed = self._on_session_closed

    def start_tool_call(
        self, exchange: HttpExchange, request_headers: RequestHeaders, request: mcp.ToolCall
    ) -> bool:
        """Start a plain tool call.

        Returns:
            False if the request needs the full checks of `serve`.
        """
        session = request_headers.cached_session
        if session is None or not session.is_alive:
            try:
                session = request_headers.cached_session = self._find_session(request_headers)
            except InterlockError:
                return False
        # `bytes(…)` would take twice as long.
        id = b"" + request.id
        if id in session.calls or not (id.isdigit() or id[:1] == b'"'):
            return False
        params = request.params
        meta = None
        if params.meta is not UNSET:
            try:
                meta = jsonrpc.decode_members(params.meta) or None
            except ProtocolError:
                return False
        responder = self._responder
        on_notification = (
            responder.notification_callback if request_headers.accepts_stream else None
        )
        view = request_headers.view or session.view
        if view is not None and view is PLAIN_VIEW:
            view = None
        call = Call(
            mcp.TOOLS_CALL, FACE, request_headers.credentials, session.client, params.name,
            session.owner, None, params.arguments, meta, None, None, on_notification,
            responder.done_callback, session, None, exchange, view,
        )  # fmt: skip
        exchange.request_id = id
        exchange.session = session
        session.calls[id] = call
        if responder.ping_timer is None:
            responder.start_pings()
        self._pipeline.begin(call)
        # A session with an open call is not idle.
        session.last_seen = call.started_at
        return True

    def serve(
        self, exchange: HttpExchange, request_headers: RequestHeaders, message: Message
    ) -> None:
        id = jsonrpc.NULL if message.id is UNSET else bytes(message.id)
        method = message.method
        client: Client | None = None
        try:
            if method == mcp.INITIALIZE and message.id is not UNSET:
                self._initialize(exchange, request_headers, message, id)
            elif method is UNSET:
                self._find_owned_session(request_headers, "response").on_response(message)
                exchange.respond(202)
            elif message.id is UNSET:
                self._notification(self._find_owned_session(request_headers, method), message)
                exchange.respond(202)
            elif method == mcp.PING:
                self._find_owned_session(request_headers, method)
                exchange.respond(200, jsonrpc.result_response(id, _PONG))
            else:
                session = self._find_session(request_headers)
                client = session.client
                self._request(exchange, request_headers, session, method, id, message)
        except InterlockError as error:
            self._responder.reject(exchange, id, error, client)

    def serve_batch(
        self,
        exchange: HttpExchange,
        request_headers: RequestHeaders,
        batch: list[Message | BadMessage],
    ) -> None:
        session = self._find_owned_session(request_headers, "batch")
        if session.client.revision not in mcp.BATCH_REVISIONS:
            raise ProtocolError(
                f"MCP {session.client.revision} has no batches. Send one message at a time.",
                INVALID_REQUEST,
            )
        task = asyncio.get_running_loop().create_task(
            self._serve_batch(exchange, request_headers, session, batch)
        )
        self._batches.add(task)
        task.add_done_callback(self._batches.discard)

    def open_stream(self, exchange: HttpExchange, request_headers: RequestHeaders) -> None:
        """Handle a GET: open a session stream, or resume a stream whose connection ended."""
        session = self._find_owned_session(request_headers, "GET")
        if not request_headers.accepts_stream:
            exchange.respond(406)
            return
        last_event_id = exchange.head.fields.get(headers.LAST_EVENT_ID)
        if last_event_id is None:
            session.streams.open_session_stream(exchange)
        else:
            session.streams.resume(exchange, last_event_id)
        self._listeners.add_session(session)

    def end(self, exchange: HttpExchange, request_headers: RequestHeaders) -> None:
        """Handle a DELETE: close the session."""
        self._sessions.close(self._find_owned_session(request_headers, "DELETE"))
        exchange.respond(200)

    def _on_session_closed(self, session: HttpSession) -> None:
        """Cancel the calls of a closed session and stop its notifications."""
        for call in list(session.calls.values()):
            self._pipeline.cancel(call)
        self._listeners.remove_session(session)

    def _initialize(
        self, exchange: HttpExchange, request_headers: RequestHeaders, message: Message, id: bytes
    ) -> None:
        client = read_initialize(message)
        caller = self._pipeline.admit(
            Call(mcp.INITIALIZE, FACE, request_headers.credentials, client)
        )
        session = self._sessions.open(client, caller.name)
        session.view = self._views.choose_view(client.name, caller.name)
        view = request_headers.view or session.view
        exchange.respond(
            200,
            jsonrpc.result_response(id, self._server_info.initialize_result(client.revision, view)),
            headers=b"mcp-session-id: %b\r\n" % session.id.encode(),
        )

    def _find_session(self, request_headers: RequestHeaders) -> HttpSession:
        """Return the session that the headers name.

        Raises:
            InterlockError: there is no such session, or the caller is not admitted.
        """
        try:
            return self._look_up_session(request_headers)
        except InterlockError:
            # An unauthenticated caller gets that error, and learns nothing about sessions.
            self._pipeline.admit(
                Call("session", FACE, request_headers.credentials, _UNKNOWN_CLIENT)
            )
            raise

    def _look_up_session(self, request_headers: RequestHeaders) -> HttpSession:
        version = request_headers.version
        if request_headers.duplicate is not None:
            raise ProtocolError(request_headers.duplicate + ".", INVALID_REQUEST)
        if version is not None and version not in mcp.SESSION_REVISIONS:
            raise mcp.unsupported_version(version)
        if request_headers.session is None:
            raise ProtocolError(
                "Mcp-Session-Id is missing: send `initialize` first, or the headers and `_meta` "
                f"of {mcp.LATEST_STATELESS}.",
                INVALID_REQUEST,
            )
        return self._sessions.find(request_headers.session)

    def _find_owned_session(self, request_headers: RequestHeaders, verb: str) -> HttpSession:
        """Return the session that the headers name, if it belongs to the caller.

        Raises:
            InterlockError: there is no such session, or it belongs to another caller.
        """
        session = self._find_session(request_headers)
        self._pipeline.admit(
            Call(
                verb, FACE, request_headers.credentials, session.client, session_owner=session.owner
            )
        )
        return session

    def _notification(self, session: HttpSession, message: Message) -> None:
        if message.method != mcp.CANCELLED:
            session.on_notification(message)
            return
        try:
            request_id = read_params(message).get("requestId")
        except ProtocolError:
            # An invalid notification is ignored: it has no response.
            return
        call = None if request_id is None else session.calls.get(bytes(request_id))
        if call is not None:
            self._pipeline.cancel(call)

    def _request(
        self,
        exchange: HttpExchange,
        request_headers: RequestHeaders,
        session: HttpSession,
        method: str,
        id: bytes,
        message: Message,
    ) -> None:
        if id in session.calls:
            raise ProtocolError(
                "A request with this id is already running. Use another id.", INVALID_REQUEST
            )
        call = self._call(request_headers, session, method, message)
        exchange.request_id = id
        exchange.session = session
        # The client can cancel it by its id until it has a response.
        session.calls[id] = call
        self._responder.start(exchange, request_headers, call)

    @staticmethod
    def _call(
        request_headers: RequestHeaders, session: HttpSession, method: str, message: Message
    ) -> Call:
        params = read_params(message)
        meta = read_meta(params)
        call = read_call(
            method,
            params,
            meta,
            face=FACE,
            credentials=request_headers.credentials,
            client=session.client,
            owner=session.owner,
        )
        call.session = session
        view = request_headers.view or session.view
        if view is not None and view is not PLAIN_VIEW:
            call.view = view
        return call

    async def _serve_batch(
        self,
        exchange: HttpExchange,
        request_headers: RequestHeaders,
        session: HttpSession,
        batch: list[Message | BadMessage],
    ) -> None:
        info = self._server_info.server_info
        exchange.session = session

        async def serve_member(member: Message | BadMessage) -> bytes | None:
            if isinstance(member, BadMessage):
                return write_error(member.id, member, session.client)[1]
            if member.method is UNSET:
                session.on_response(member)
                return None
            try:
                if member.id is UNSET:
                    self._notification(session, member)
                    return None
                id = bytes(member.id)
                if member.method == mcp.PING:
                    return jsonrpc.result_response(id, _PONG)
                call = self._call(request_headers, session, member.method, member)
                if id in session.calls:
                    raise ProtocolError(
                        "A request with this id is already running. Use another id.",
                        INVALID_REQUEST,
                    )
                session.calls[id] = call
                call.context = exchange
                if request_headers.accepts_stream:
                    call.on_notification = self._responder.on_notification
                try:
                    outcome = await self._pipeline.run(call)
                finally:
                    session.calls.pop(id, None)
                return write_outcome(id, outcome, session.client, info, call.method)
            except InterlockError as error:
                if error.failure is CANCELLED:
                    return None
                id = jsonrpc.NULL if member.id is UNSET else bytes(member.id)
                return write_error(id, error, session.client)[1]
            except Exception:
                _log.exception("MCP batch: request failed")
                failed = InterlockError(INTERNAL, INTERNAL_ERROR_TEXT)
                id = jsonrpc.NULL if member.id is UNSET else bytes(member.id)
                return write_error(id, failed, session.client)[1]

        responses = await asyncio.gather(*(serve_member(member) for member in batch))
        bodies = [body for body in responses if body is not None]
        if exchange.streaming:
            # A notification has turned the response into a stream. Each response is an event.
            for body in bodies:
                self._responder.send(exchange, body)
            self._responder.finish(exchange, None)
        elif bodies:
            exchange.respond(200, b"[" + b",".join(bodies) + b"]")
        else:
            exchange.respond(202)
