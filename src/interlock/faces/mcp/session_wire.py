"""The session wire over HTTP (2025-03-26 to 2025-11-25): a handshake, then a session."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import UNSET

from interlock.call import Call
from interlock.errors import INVALID_REQUEST, InterlockError, ProtocolError
from interlock.faces.http.exchange import HttpExchange
from interlock.faces.mcp.answering import Answering
from interlock.faces.mcp.facts import Facts
from interlock.faces.mcp.hello import Hello
from interlock.faces.mcp.listeners import Listeners
from interlock.faces.mcp.reading import read_call, read_initialize, read_meta, read_params
from interlock.faces.mcp.sessions import Session, Sessions
from interlock.faces.mcp.writing import write_error, write_outcome
from interlock.pipeline.pipeline import Pipeline
from interlock.ports import Clock
from interlock.protocol import jsonrpc, mcp
from interlock.protocol.jsonrpc import BadMessage, Message

FACE: Final = "http"
_PONG: Final = b"{}"


class SessionWire:
    """Serves sessions."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        hello: Hello,
        listeners: Listeners,
        sessions: Sessions,
        answering: Answering,
        clock: Clock,
    ) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._hello = hello
        self._listeners = listeners
        self._sessions = sessions
        self._answering = answering
        self._batches: set[asyncio.Task[None]] = set()

    def take(self, exchange: HttpExchange, facts: Facts, request: mcp.ToolCall) -> bool:
        """Start a plain call. False: something about it wants the long look of `serve`."""
        session = facts.found
        if session is None or not session.alive:
            try:
                session = facts.found = self._session(facts)
            except InterlockError:
                return False
        else:
            session.last_seen = self._clock()
        params = request.params
        call = Call(
            mcp.TOOLS_CALL, FACE, facts.credentials, session.client, params.name, session.owner,
            None, params.arguments, params.meta or None,
        )  # fmt: skip
        exchange.request_id = id = bytes(request.id)
        exchange.session = session
        session.calls[id] = call
        self._answering.start(exchange, facts, call)
        return True

    def serve(self, exchange: HttpExchange, facts: Facts, message: Message) -> None:
        id = jsonrpc.NULL if message.id is UNSET else bytes(message.id)
        method = message.method
        try:
            if method == mcp.INITIALIZE and message.id is not UNSET:
                self._initialize(exchange, facts, message, id)
                return
            session = self._session(facts)
            if method is UNSET:
                exchange.respond(202)
            elif message.id is UNSET:
                self._notification(session, message)
                exchange.respond(202)
            elif method == mcp.PING:
                exchange.respond(200, jsonrpc.result_response(id, _PONG))
            else:
                self._request(exchange, facts, session, method, id, message)
        except InterlockError as error:
            self._answering.refuse(exchange, id, error, None)

    def serve_batch(
        self, exchange: HttpExchange, facts: Facts, batch: list[Message | BadMessage]
    ) -> None:
        session = self._session(facts)
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

    def open_stream(self, exchange: HttpExchange, facts: Facts) -> None:
        """GET: the stream for what belongs to no request."""
        session = self._owned(facts, "GET")
        if not facts.accepts_stream:
            exchange.respond(406)
            return
        exchange.open_stream()
        exchange.on_disconnect = self._listeners.add_session(
            session, exchange.event, exchange.ping, exchange.end_stream
        )

    def end(self, exchange: HttpExchange, facts: Facts) -> None:
        """DELETE: the client says goodbye."""
        session = self._owned(facts, "DELETE")
        self._sessions.close(session)
        for call in list(session.calls.values()):
            self._pipeline.cancel(call)
        self._listeners.end_session(session)
        exchange.respond(200)

    def _initialize(
        self, exchange: HttpExchange, facts: Facts, message: Message, id: bytes
    ) -> None:
        client = read_initialize(message)
        caller = self._pipeline.admit(Call(mcp.INITIALIZE, FACE, facts.credentials, client))
        session = self._sessions.open(client, caller.name)
        exchange.respond(
            200,
            jsonrpc.result_response(id, self._hello.initialize_result(client.revision)),
            headers=b"mcp-session-id: %b\r\n" % session.id.encode(),
        )

    def _session(self, facts: Facts) -> Session:
        version = facts.version
        if version is not None and version not in mcp.SESSION_REVISIONS:
            raise mcp.unsupported_version(version)
        if facts.session is None:
            raise ProtocolError(
                "Mcp-Session-Id is missing: send `initialize` first, or the headers and `_meta` "
                f"of {mcp.LATEST_STATELESS}.",
                INVALID_REQUEST,
            )
        return self._sessions.find(facts.session)

    def _owned(self, facts: Facts, verb: str) -> Session:
        session = self._session(facts)
        self._pipeline.admit(
            Call(verb, FACE, facts.credentials, session.client, owner=session.owner)
        )
        return session

    def _notification(self, session: Session, message: Message) -> None:
        if message.method == mcp.CANCELLED and message.params is not UNSET:
            request_id = read_params(message).get("requestId")
            if request_id is not None:
                call = session.calls.get(bytes(request_id))
                if call is not None:
                    self._pipeline.cancel(call)

    def _request(
        self,
        exchange: HttpExchange,
        facts: Facts,
        session: Session,
        method: str,
        id: bytes,
        message: Message,
    ) -> None:
        call = self._call(facts, session, method, message)
        exchange.request_id = id
        exchange.session = session
        # Until it is answered it can be cancelled by its id.
        session.calls[id] = call
        self._answering.start(exchange, facts, call)

    @staticmethod
    def _call(facts: Facts, session: Session, method: str, message: Message) -> Call:
        params = read_params(message)
        meta = read_meta(params)
        return read_call(
            method,
            params,
            meta,
            face=FACE,
            credentials=facts.credentials,
            client=session.client,
            owner=session.owner,
        )

    async def _answer_batch(
        self,
        exchange: HttpExchange,
        facts: Facts,
        session: Session,
        batch: list[Message | BadMessage],
    ) -> None:
        async def answer(member: Message | BadMessage) -> bytes | None:
            if isinstance(member, BadMessage):
                return write_error(member.id, member, session.client)[1]
            if member.method is UNSET:
                return None
            try:
                if member.id is UNSET:
                    self._notification(session, member)
                    return None
                id = bytes(member.id)
                if member.method == mcp.PING:
                    return jsonrpc.result_response(id, _PONG)
                call = self._call(facts, session, member.method, member)
                outcome = await self._pipeline.run(call)
                return write_outcome(id, outcome, session.client, self._hello.server_info)
            except InterlockError as error:
                id = jsonrpc.NULL if member.id is UNSET else bytes(member.id)
                return write_error(id, error, session.client)[1]

        answers = await asyncio.gather(*(answer(member) for member in batch))
        bodies = [body for body in answers if body is not None]
        if bodies:
            exchange.respond(200, b"[" + b",".join(bodies) + b"]")
        else:
            exchange.respond(202)
