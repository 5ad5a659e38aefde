"""The session wire over HTTP (2025-03-26 to 2025-11-25): a handshake, then a session."""

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
from interlock.errors import CANCELLED, INTERNAL, INVALID_REQUEST, InterlockError, ProtocolError
from interlock.protocol import headers, jsonrpc, mcp
from interlock.protocol.aql_terms import PLAIN_VIEW
from interlock.protocol.jsonrpc import BadMessage, Message

FACE: Final = "http"
_PONG: Final = b"{}"
_NOBODY_YET: Final = Client(mcp.Era.SESSION, mcp.LATEST_SESSION)

_log = logging.getLogger("interlock.server")


class SessionProtocol:
    """Serves sessions."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        hello: ServerInfo,
        listeners: ChangeListeners,
        sessions: Sessions,
        answering: Responder,
        views: Views | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._hello = hello
        self._listeners = listeners
        self._sessions = sessions
        self._answering = answering
        self._views = views or Views()
        self._batches: set[asyncio.Task[None]] = set()
        sessions.on_closed = self._closed

    def take(self, exchange: HttpExchange, facts: RequestHeaders, request: mcp.ToolCall) -> bool:
        """Start a plain call. False: something about it wants the long look of `serve`."""
        session = facts.found
        if session is None or not session.is_alive:
            try:
                session = facts.found = self._session(facts)
            except InterlockError:
                return False
        # Not `bytes(…)`: that costs twice as much.
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
        answering = self._answering
        hear = answering.heard if facts.accepts_stream else None
        view = facts.view or session.view
        if view is not None and view is PLAIN_VIEW:
            view = None
        call = Call(
            mcp.TOOLS_CALL, FACE, facts.credentials, session.client, params.name, session.owner,
            None, params.arguments, meta, None, None, hear, answering.over, session, None, exchange,
            view,
        )  # fmt: skip
        exchange.request_id = id
        exchange.session = session
        session.calls[id] = call
        if answering.pulse is None:
            answering.begin_pulse()
        self._pipeline.begin(call)
        # While a call is under way nobody takes the session for a quiet one.
        session.last_seen = call.started_at
        return True

    def serve(self, exchange: HttpExchange, facts: RequestHeaders, message: Message) -> None:
        id = jsonrpc.NULL if message.id is UNSET else bytes(message.id)
        method = message.method
        client: Client | None = None
        try:
            if method == mcp.INITIALIZE and message.id is not UNSET:
                self._initialize(exchange, facts, message, id)
            elif method is UNSET:
                self._owned(facts, "response").answered(message)
                exchange.respond(202)
            elif message.id is UNSET:
                self._notification(self._owned(facts, method), message)
                exchange.respond(202)
            elif method == mcp.PING:
                self._owned(facts, method)
                exchange.respond(200, jsonrpc.result_response(id, _PONG))
            else:
                session = self._session(facts)
                client = session.client
                self._request(exchange, facts, session, method, id, message)
        except InterlockError as error:
            self._answering.refuse(exchange, id, error, client)

    def serve_batch(
        self, exchange: HttpExchange, facts: RequestHeaders, batch: list[Message | BadMessage]
    ) -> None:
        session = self._owned(facts, "batch")
        if session.client.revision not in mcp.BATCH_REVISIONS:
            raise ProtocolError(
                f"MCP {session.client.revision} has no batches: send one message at a time.",
                INVALID_REQUEST,
            )
        task = asyncio.get_running_loop().create_task(
            self._answer_batch(exchange, facts, session, batch)
        )
        self._batches.add(task)
        task.add_done_callback(self._batches.discard)

    def open_stream(self, exchange: HttpExchange, facts: RequestHeaders) -> None:
        """GET: the stream for what belongs to no request, or the rest of one that broke."""
        session = self._owned(facts, "GET")
        if not facts.accepts_stream:
            exchange.respond(406)
            return
        last_event_id = exchange.head.fields.get(headers.LAST_EVENT_ID)
        if last_event_id is None:
            session.outlets.open_own(exchange)
        else:
            session.outlets.resume(exchange, last_event_id)
        self._listeners.add_session(session)

    def end(self, exchange: HttpExchange, facts: RequestHeaders) -> None:
        """DELETE: the client says goodbye."""
        self._sessions.close(self._owned(facts, "DELETE"))
        exchange.respond(200)

    def _closed(self, session: HttpSession) -> None:
        """A session is over: nobody waits for its calls or hears its streams."""
        for call in list(session.calls.values()):
            self._pipeline.cancel(call)
        self._listeners.remove_session(session)

    def _initialize(
        self, exchange: HttpExchange, facts: RequestHeaders, message: Message, id: bytes
    ) -> None:
        client = read_initialize(message)
        caller = self._pipeline.admit(Call(mcp.INITIALIZE, FACE, facts.credentials, client))
        session = self._sessions.open(client, caller.name)
        session.view = self._views.of_client(client.name, caller.name)
        view = facts.view or session.view
        exchange.respond(
            200,
            jsonrpc.result_response(id, self._hello.initialize_result(client.revision, view)),
            headers=b"mcp-session-id: %b\r\n" % session.id.encode(),
        )

    def _session(self, facts: RequestHeaders) -> HttpSession:
        """The session that the headers name. Raises InterlockError."""
        try:
            return self._named(facts)
        except InterlockError:
            # A stranger is told that, and nothing about sessions.
            self._pipeline.admit(Call("session", FACE, facts.credentials, _NOBODY_YET))
            raise

    def _named(self, facts: RequestHeaders) -> HttpSession:
        version = facts.version
        if facts.duplicate is not None:
            raise ProtocolError(facts.duplicate + ".", INVALID_REQUEST)
        if version is not None and version not in mcp.SESSION_REVISIONS:
            raise mcp.unsupported_version(version)
        if facts.session is None:
            raise ProtocolError(
                "Mcp-Session-Id is missing: send `initialize` first, or the headers and `_meta` "
                f"of {mcp.LATEST_STATELESS}.",
                INVALID_REQUEST,
            )
        return self._sessions.find(facts.session)

    def _owned(self, facts: RequestHeaders, verb: str) -> HttpSession:
        session = self._session(facts)
        self._pipeline.admit(
            Call(verb, FACE, facts.credentials, session.client, session_owner=session.owner)
        )
        return session

    def _notification(self, session: HttpSession, message: Message) -> None:
        if message.method != mcp.CANCELLED:
            session.notified(message)
            return
        try:
            request_id = read_params(message).get("requestId")
        except ProtocolError:
            # Nothing can be made of it, and nobody waits for an answer.
            return
        call = None if request_id is None else session.calls.get(bytes(request_id))
        if call is not None:
            self._pipeline.cancel(call)

    def _request(
        self,
        exchange: HttpExchange,
        facts: RequestHeaders,
        session: HttpSession,
        method: str,
        id: bytes,
        message: Message,
    ) -> None:
        if id in session.calls:
            raise ProtocolError("A request with this id is already under way.", INVALID_REQUEST)
        call = self._call(facts, session, method, message)
        exchange.request_id = id
        exchange.session = session
        # Until it is answered it can be cancelled by its id.
        session.calls[id] = call
        self._answering.start(exchange, facts, call)

    @staticmethod
    def _call(facts: RequestHeaders, session: HttpSession, method: str, message: Message) -> Call:
        params = read_params(message)
        meta = read_meta(params)
        call = read_call(
            method,
            params,
            meta,
            face=FACE,
            credentials=facts.credentials,
            client=session.client,
            owner=session.owner,
        )
        call.session = session
        view = facts.view or session.view
        if view is not None and view is not PLAIN_VIEW:
            call.view = view
        return call

    async def _answer_batch(
        self,
        exchange: HttpExchange,
        facts: RequestHeaders,
        session: HttpSession,
        batch: list[Message | BadMessage],
    ) -> None:
        info = self._hello.server_info
        exchange.session = session

        async def answer(member: Message | BadMessage) -> bytes | None:
            if isinstance(member, BadMessage):
                return write_error(member.id, member, session.client)[1]
            if member.method is UNSET:
                session.answered(member)
                return None
            try:
                if member.id is UNSET:
                    self._notification(session, member)
                    return None
                id = bytes(member.id)
                if member.method == mcp.PING:
                    return jsonrpc.result_response(id, _PONG)
                call = self._call(facts, session, member.method, member)
                if id in session.calls:
                    raise ProtocolError("A request with this id is under way.", INVALID_REQUEST)
                session.calls[id] = call
                call.context = exchange
                if facts.accepts_stream:
                    call.on_notification = self._answering.hear
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
                _log.exception("a member of a batch could not be served")
                failed = InterlockError(INTERNAL, "The node failed on this request; see its log.")
                id = jsonrpc.NULL if member.id is UNSET else bytes(member.id)
                return write_error(id, failed, session.client)[1]

        answers = await asyncio.gather(*(answer(member) for member in batch))
        bodies = [body for body in answers if body is not None]
        if exchange.streaming:
            # Something was told on the way: then the answers follow it, one by one.
            for body in bodies:
                self._answering.tell(exchange, body)
            self._answering.finish(exchange, None)
        elif bodies:
            exchange.respond(200, b"[" + b",".join(bodies) + b"]")
        else:
            exchange.respond(202)
