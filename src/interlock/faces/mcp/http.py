"""MCP over streamable HTTP: which wire a request is on, and what HTTP makes of the answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from interlock.call import Call, Client, Credentials
from interlock.errors import (
    FOREIGN_ORIGIN,
    HEADER_MISMATCH,
    INTERNAL,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    TOO_BUSY,
    UNAUTHENTICATED,
    InterlockError,
    ProtocolError,
)
from interlock.faces.http.exchange import HttpExchange
from interlock.faces.http.guard import Guard
from interlock.faces.mcp.hello import Hello
from interlock.faces.mcp.listeners import Listeners
from interlock.faces.mcp.reading import (
    Headers,
    is_stateless,
    read_call,
    read_envelope,
    read_meta,
    read_params,
)
from interlock.faces.mcp.sessions import Session, Sessions
from interlock.faces.mcp.writing import write_error, write_outcome
from interlock.pipeline.pipeline import Pipeline
from interlock.protocol import headers, jsonrpc, mcp
from interlock.protocol.jsonrpc import BadMessage, Message

FACE: Final = "http"
QUIET: Final = 15.0
"""After this long without an answer a call's response becomes a stream, to keep it alive."""

_log = logging.getLogger("interlock.faces.mcp")


class McpHttpFace:
    """Serves the MCP endpoint."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        hello: Hello,
        sessions: Sessions,
        listeners: Listeners,
        guard: Guard,
        concurrent_calls: int,
    ) -> None:
        self._pipeline = pipeline
        self._hello = hello
        self.sessions = sessions
        self._listeners = listeners
        self.guard = guard
        self.concurrent_calls = concurrent_calls
        self.under_way: dict[asyncio.Task[None], tuple[HttpExchange, float]] = {}
        self._pulse: asyncio.TimerHandle | None = None

    def serve(self, exchange: HttpExchange) -> None:
        """Answer one HTTP request, now or later. Never raises."""
        try:
            self._serve(exchange)
        except InterlockError as error:
            self._refuse(exchange, jsonrpc.NULL, error, None)
        except Exception:
            _log.exception("a request could not be served")
            failed = InterlockError(INTERNAL, "The node failed on this request; see its log.")
            exchange.respond(500, write_error(jsonrpc.NULL, failed, None)[1])

    def _serve(self, exchange: HttpExchange) -> None:
        fields = exchange.fields
        refusal = self.guard.refusal(fields.get(b"host"), fields.get(b"origin"))
        if refusal is not None:
            raise InterlockError(FOREIGN_ORIGIN, refusal)
        method = exchange.method
        if method == b"POST":
            self._post(exchange)
        elif method == b"GET":
            self._get(exchange)
        elif method == b"DELETE":
            self._delete(exchange)
        else:
            exchange.respond(405, b"", headers=b"allow: GET, POST, DELETE\r\n")

    # -- POST

    def _post(self, exchange: HttpExchange) -> None:
        fields = exchange.fields
        content_type = fields.get(b"content-type", b"")
        if not content_type.startswith(b"application/json"):
            error = ProtocolError("Send the message as application/json.", INVALID_REQUEST)
            exchange.respond(415, write_error(jsonrpc.NULL, error, None)[1])
            return
        message = jsonrpc.decode_message(exchange.body)
        if isinstance(message, list):
            self._batch(exchange, message)
        elif is_stateless(fields.get(headers.PROTOCOL_VERSION), message):
            self._stateless(exchange, message)
        elif message.method == mcp.INITIALIZE and message.id is not UNSET:
            self._initialize(exchange, message)
        else:
            self._in_session(exchange, message)

    def _credentials(self, exchange: HttpExchange) -> Credentials:
        authorization = exchange.fields.get(b"authorization")
        bearer = None
        if authorization is not None and authorization[:7].lower() == b"bearer ":
            bearer = authorization[7:].strip().decode("latin-1")
        return Credentials(exchange.peer, bearer)

    # -- the stateless wire

    def _stateless(self, exchange: HttpExchange, message: Message) -> None:
        if message.id is UNSET or message.method is UNSET:
            # Nothing a client may post here needs an answer; what it cancels it hangs up on.
            if message.method is UNSET:
                raise ProtocolError("Responses are not accepted here.", INVALID_REQUEST)
            exchange.respond(202)
            return
        id = bytes(message.id)
        client: Client | None = None
        try:
            params = read_params(message)
            meta = read_meta(params)
            client = read_envelope(message, params, meta, self._routing_headers(exchange))
            self._stateless_request(exchange, message.method, id, params, meta, client)
        except InterlockError as error:
            self._refuse(exchange, id, error, client)

    def _routing_headers(self, exchange: HttpExchange) -> Headers:
        fields = exchange.fields
        if len(fields) != len(exchange.headers):
            # Something is there twice: for these headers that is a lie waiting to happen.
            try:
                headers.pick_request_headers(exchange.headers)
            except ProtocolError as error:
                raise InterlockError(HEADER_MISMATCH, error.message) from None
        return Headers(
            fields.get(headers.PROTOCOL_VERSION),
            fields.get(headers.METHOD),
            fields.get(headers.NAME),
        )

    def _stateless_request(
        self,
        exchange: HttpExchange,
        method: str,
        id: bytes,
        params: dict[str, Raw],
        meta: dict[str, Raw],
        client: Client,
    ) -> None:
        credentials = self._credentials(exchange)
        if method in mcp.REMOVED_FROM_STATELESS:
            raise InterlockError(METHOD_NOT_FOUND, f"{method} is not part of {client.revision}.")
        if method == mcp.DISCOVER:
            self._pipeline.admit(Call(method, FACE, credentials, client))
            exchange.respond(200, jsonrpc.result_response(id, self._hello.discover_result()))
            return
        if method == mcp.LISTEN:
            self._pipeline.admit(Call(method, FACE, credentials, client))
            self._listen(exchange, id, params)
            return
        call = read_call(method, params, meta, face=FACE, credentials=credentials, client=client)
        call.header_params = exchange.headers
        task = self._start(exchange, id, call)
        # On this wire hanging up is how a client cancels.
        exchange.on_disconnect = lambda: _cancel(task)

    def _listen(self, exchange: HttpExchange, id: bytes, params: dict[str, Raw]) -> None:
        if not _accepts_stream(exchange):
            exchange.respond(406)
            return
        honoured = self._listeners.honoured(params)
        exchange.open_stream()
        exchange.on_disconnect = self._listeners.add_stateless(
            id, honoured, exchange.event, exchange.ping, exchange.end_stream
        )

    # -- the session wire

    def _initialize(self, exchange: HttpExchange, message: Message) -> None:
        id = bytes(message.id)  # type: ignore[arg-type]
        try:
            client = read_initialize(message)
            caller = self._pipeline.admit(
                Call(mcp.INITIALIZE, FACE, self._credentials(exchange), client)
            )
        except InterlockError as error:
            self._refuse(exchange, id, error, None)
            return
        session = self.sessions.open(client, caller.name)
        exchange.respond(
            200,
            jsonrpc.result_response(id, self._hello.initialize_result(client.revision)),
            headers=b"mcp-session-id: %b\r\n" % session.id.encode(),
        )

    def _in_session(self, exchange: HttpExchange, message: Message) -> None:
        id = jsonrpc.NULL if message.id is UNSET else bytes(message.id)
        try:
            session = self._session(exchange)
            if message.method is UNSET:
                exchange.respond(202)
            elif message.id is UNSET:
                self._notification(session, message)
                exchange.respond(202)
            elif message.method == mcp.PING:
                exchange.respond(200, jsonrpc.result_response(id, b"{}"))
            else:
                self._session_request(exchange, session, message.method, id, message)
        except InterlockError as error:
            self._refuse(exchange, id, error, None)

    def _session(self, exchange: HttpExchange) -> Session:
        fields = exchange.fields
        version = fields.get(headers.PROTOCOL_VERSION)
        if version is not None and version.strip().decode("latin-1") not in mcp.SESSION_REVISIONS:
            raise mcp.unsupported_version(version.strip().decode("latin-1"))
        id = fields.get(headers.SESSION_ID)
        if id is None:
            raise ProtocolError(
                "Mcp-Session-Id is missing: send `initialize` first, or the headers and `_meta` "
                f"of {mcp.LATEST_STATELESS}.",
                INVALID_REQUEST,
            )
        session = self.sessions.find(id.strip())
        return session

    def _notification(self, session: Session, message: Message) -> None:
        if message.method == mcp.CANCELLED and message.params is not UNSET:
            request_id = read_params(message).get("requestId")
            if request_id is not None:
                session.cancel(bytes(request_id))

    def _session_request(
        self, exchange: HttpExchange, session: Session, method: str, id: bytes, message: Message
    ) -> None:
        params = read_params(message)
        meta = read_meta(params)
        credentials = self._credentials(exchange)
        call = read_call(
            method, params, meta, face=FACE, credentials=credentials, client=session.client
        )
        call.owner = session.owner
        task = self._start(exchange, id, call)
        session.cancels[id] = task.cancel
        task.add_done_callback(lambda _: session.cancels.pop(id, None))

    def _batch(self, exchange: HttpExchange, batch: list[Message | BadMessage]) -> None:
        session = self._session(exchange)
        if session.client.revision not in mcp.BATCH_REVISIONS:
            raise ProtocolError(
                f"MCP {session.client.revision} has no batches: send one message at a time.",
                INVALID_REQUEST,
            )
        task = asyncio.get_running_loop().create_task(self._serve_batch(exchange, session, batch))
        self._keep(task, exchange)

    async def _serve_batch(
        self, exchange: HttpExchange, session: Session, batch: list[Message | BadMessage]
    ) -> None:
        credentials = self._credentials(exchange)

        async def answer(member: Message | BadMessage) -> bytes | None:
            if isinstance(member, BadMessage):
                return write_error(member.id, member, session.client)[1]
            if member.method is UNSET:
                return None
            if member.id is UNSET:
                self._notification(session, member)
                return None
            id = bytes(member.id)
            if member.method == mcp.PING:
                return jsonrpc.result_response(id, b"{}")
            try:
                params = read_params(member)
                meta = read_meta(params)
                call = read_call(
                    member.method, params, meta,
                    face=FACE, credentials=credentials, client=session.client,
                )  # fmt: skip
                call.owner = session.owner
                return (await self._answer(id, call))[1]
            except InterlockError as error:
                return write_error(id, error, session.client)[1]

        answers = await asyncio.gather(*(answer(member) for member in batch))
        bodies = [body for body in answers if body is not None]
        if bodies:
            exchange.respond(200, b"[" + b",".join(bodies) + b"]")
        else:
            exchange.respond(202)

    # -- GET and DELETE: the session wire's own stream, and its end

    def _get(self, exchange: HttpExchange) -> None:
        session = self._owned_session(exchange, "GET")
        if not _accepts_stream(exchange):
            exchange.respond(406)
            return
        exchange.open_stream()
        exchange.on_disconnect = self._listeners.add_session(
            session, exchange.event, exchange.ping, exchange.end_stream
        )

    def _owned_session(self, exchange: HttpExchange, verb: str) -> Session:
        session = self._session(exchange)
        call = Call(verb, FACE, self._credentials(exchange), session.client, owner=session.owner)
        self._pipeline.admit(call)
        return session

    def _delete(self, exchange: HttpExchange) -> None:
        session = self._owned_session(exchange, "DELETE")
        self.sessions.close(session)
        self._listeners.end_session(session)
        exchange.respond(200)

    # -- answering

    def _start(self, exchange: HttpExchange, id: bytes, call: Call) -> asyncio.Task[None]:
        if len(self.under_way) >= self.concurrent_calls:
            raise InterlockError(
                TOO_BUSY, "The node has as many calls under way as it may; try again."
            )
        if call.meta is not None and mcp.META_PROGRESS_TOKEN in call.meta:
            call.on_notification = _stream_to(exchange)
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._serve_call(exchange, id, call))
        self._keep(task, exchange)
        return task

    def _keep(self, task: asyncio.Task[None], exchange: HttpExchange) -> None:
        loop = asyncio.get_running_loop()
        self.under_way[task] = (exchange, loop.time())
        task.add_done_callback(self.under_way.pop)
        if self._pulse is None:
            self._pulse = loop.call_later(QUIET / 3, self._keep_alive)

    def _keep_alive(self) -> None:
        """Keep the connections of long calls from looking dead to whatever stands in between."""
        self._pulse = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for exchange, started in list(self.under_way.values()):
            # In the order in which they began: the first young one ends the search.
            if now - started < QUIET:
                break
            if _accepts_stream(exchange) and not exchange.done:
                exchange.open_stream()
                exchange.ping()
        if self.under_way:
            self._pulse = loop.call_later(QUIET / 3, self._keep_alive)

    async def _serve_call(self, exchange: HttpExchange, id: bytes, call: Call) -> None:
        status, body = await self._answer(id, call)
        if exchange.streaming:
            exchange.event(body)
            exchange.end_stream()
        elif status == 401:
            exchange.respond(401, body, headers=b"www-authenticate: Bearer\r\n")
        else:
            exchange.respond(status if call.client.era is mcp.Era.STATELESS else 200, body)

    async def _answer(self, id: bytes, call: Call) -> tuple[int, bytes]:
        try:
            outcome = await self._pipeline.run(call)
            return 200, write_outcome(id, outcome, call.client, self._hello.server_info)
        except InterlockError as error:
            return write_error(id, error, call.client)

    def _refuse(
        self, exchange: HttpExchange, id: bytes, error: InterlockError, client: Client | None
    ) -> None:
        status, body = write_error(id, error, client)
        extra = b"www-authenticate: Bearer\r\n" if error.failure is UNAUTHENTICATED else b""
        exchange.respond(status, body, headers=extra)


def read_initialize(message: Message) -> Client:
    """The client that opens a session. Raises ProtocolError."""
    if message.params is UNSET:
        raise ProtocolError("`params` is missing from `initialize`.", INVALID_PARAMS)
    try:
        opened = msgspec.json.decode(message.params, type=mcp.InitializeParams)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ProtocolError(f"`initialize` cannot be read: {exc}.", INVALID_PARAMS) from None
    return Client(
        mcp.Era.SESSION,
        mcp.negotiate(opened.protocol_version),
        opened.client_info.name,
        None,
        bytes(opened.capabilities),
    )


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _accepts_stream(exchange: HttpExchange) -> bool:
    accept = exchange.fields.get(b"accept", b"*/*")
    return b"text/event-stream" in accept or b"*/*" in accept


def _stream_to(exchange: HttpExchange) -> Callable[[str, bytes | Raw], None]:
    """Progress turns a plain answer into a stream, the first time there is any."""

    def hear(method: str, params: bytes | Raw) -> None:
        if not exchange.streaming:
            exchange.open_stream()
        exchange.event(jsonrpc.notification(method, params))

    return hear
