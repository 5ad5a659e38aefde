"""MCP with one client on one channel that carries whole messages both ways. Both eras.

What the channel is made of is for others: lines on a pipe or a socket, or the old pair of an
event stream and posted messages.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import UNSET, Raw

from interlock.core.call import Call, Client, Credentials, Outcome
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.server.mcp.change_notifications import ChangeListeners
from interlock.core.server.mcp.requests import (
    client_name,
    read_call,
    read_client,
    read_initialize,
    read_meta,
    read_params,
    read_string,
)
from interlock.core.server.mcp.responses import write_error, write_result
from interlock.core.server.mcp.server_info import ServerInfo
from interlock.core.server.mcp.sessions import Session
from interlock.core.server.mcp.views import CHOSEN, Views
from interlock.errors import (
    CANCELLED,
    INTERNAL,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    TOO_BUSY,
    InterlockError,
    ProtocolError,
)
from interlock.protocol import jsonrpc, mcp
from interlock.protocol.aql_terms import PLAIN_VIEW, OperationView
from interlock.protocol.jsonrpc import BadMessage, Message

_PONG: Final = b"{}"
_STATELESS: Final = mcp.Era.STATELESS

_log = logging.getLogger("interlock.server")


def _nothing() -> None:
    """What a channel does that has nothing to keep alive, or that outlives its sessions."""


class Conversation:
    """One client. Hand it messages; it sends whole messages."""

    speaks_ax = False
    """Whether its errors are worded as on an MCP-AX link."""
    most_under_way = 1_000

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        hello: ServerInfo,
        listeners: ChangeListeners,
        send: Callable[[bytes], None],
        face: str,
        credentials: Credentials,
        stateless: bool = True,
        ping: Callable[[], None] = _nothing,
        end: Callable[[], None] = _nothing,
        views: Views | None = None,
    ) -> None:
        """`stateless`: whether requests of that era may come here too."""
        self._pipeline = pipeline
        self._hello = hello
        self._listeners = listeners
        self._send = send
        self._face = face
        self._credentials = credentials
        self._views = views
        self._chosen: OperationView | None = None
        """The view that the client named."""
        self._refused: ProtocolError | None = None
        """It named one that is not there: it is shown nothing, and not something else."""
        self._stateless = stateless
        self._way = _Channel(send, ping, end)
        self._session: Session | None = None
        self._under_way: dict[bytes, Call] = {}
        self._idle: asyncio.Future[None] | None = None
        self._subscriptions: dict[bytes, Callable[[], None]] = {}

    def take(self, data: bytes) -> None:
        """What the client sent: a message, or a batch of them. Never raises."""
        try:
            message = jsonrpc.decode_message(data)
        except BadMessage as bad:
            self.send_error(bad.id, bad, None)
        except ProtocolError as error:
            self.send_error(jsonrpc.NULL, error, None)
        else:
            self.messages(message)

    def closed(self) -> None:
        """The client is gone: so is the need for its answers."""
        for call in list(self._under_way.values()):
            self._pipeline.cancel(call)
        for remove in self._subscriptions.values():
            remove()
        self._end_session()

    async def drained(self) -> None:
        """Wait until every request under way has been answered."""
        if self._under_way:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def send_error(self, id: bytes, error: InterlockError, client: Client | None) -> None:
        self._send(write_error(id, error, client, ax=self.speaks_ax)[1])

    def messages(self, message: Message | list[Message | BadMessage]) -> None:
        """A message that has been read already, or a batch of them."""
        if isinstance(message, Message):
            self._message(message)
            return
        client = None if self._session is None else self._session.client
        if client is None or client.revision not in mcp.BATCH_REVISIONS:
            error = ProtocolError("Batches are not part of this revision.", INVALID_REQUEST)
            self.send_error(jsonrpc.NULL, error, None)
            return
        for member in message:
            if isinstance(member, BadMessage):
                self.send_error(member.id, member, client)
            else:
                self._message(member)

    def _message(self, message: Message) -> None:
        if message.method is UNSET:
            self._response(message)
            return
        if message.id is UNSET:
            self._notification(message)
            return
        id = bytes(message.id)
        client: Client | None = None
        try:
            if message.method == CHOSEN and self._views is not None:
                self._choose(message, self._views)
                if self._refused is None:
                    self._send(jsonrpc.result_response(id, _PONG))
                    return
            if self._refused is not None:
                raise self._refused
            params = read_params(message)
            meta = read_meta(params)
            if self._stateless and mcp.META_VERSION in meta:
                client = read_client(message.method, meta)
                if client.revision not in mcp.STATELESS_REVISIONS:
                    raise mcp.unsupported_version(client.revision)
            elif self._session is not None:
                client = self._session.client
            self._request(message, message.method, id, params, meta, client)
        except InterlockError as error:
            self.send_error(id, error, client)
        except Exception:
            _log.exception("a request could not be served")
            failed = InterlockError(INTERNAL, "The node failed on this request; see its log.")
            self.send_error(id, failed, client)

    def _response(self, message: Message) -> None:
        """An answer to what the client was asked."""
        if self._session is not None:
            self._session.answered(message)

    def _request(
        self,
        message: Message,
        method: str,
        id: bytes,
        params: dict[str, Raw],
        meta: dict[str, Raw],
        client: Client | None,
    ) -> None:
        if method == mcp.INITIALIZE and (client is None or client.era is mcp.Era.SESSION):
            self._initialize(message, id)
        elif client is None:
            if method == mcp.PING:
                self._send(jsonrpc.result_response(id, _PONG))
                return
            otherwise = ""
            if self._stateless:
                otherwise = f", or the `_meta` of {mcp.LATEST_STATELESS} every time"
            raise ProtocolError(f"Send `initialize` first{otherwise}.", INVALID_REQUEST)
        elif client.era is mcp.Era.STATELESS and method in mcp.REMOVED_FROM_STATELESS:
            raise InterlockError(METHOD_NOT_FOUND, f"{method} is not part of {client.revision}.")
        elif method == mcp.PING:
            self._send(jsonrpc.result_response(id, _PONG))
        elif method == mcp.DISCOVER:
            caller = self._pipeline.admit(Call(method, self._face, self._credentials, client))
            view = self._view_of(client_name(meta), caller.name)
            self._send(jsonrpc.result_response(id, self._hello.discover_result(view)))
        elif method == mcp.LISTEN and client.era is mcp.Era.STATELESS:
            request = Call(method, self._face, self._credentials, client)
            self._pipeline.admit(request)
            honoured = self._listeners.honoured(params, self._hello.capabilities, client)
            self._take_id(id)
            remove = self._listeners.add_stateless(
                id, honoured, self._send, _nothing, _nothing, request
            )
            self._subscriptions[id] = remove
        else:
            self._call(method, id, params, meta, client)

    def _initialize(self, message: Message, id: bytes) -> None:
        client = read_initialize(message)
        caller = self._pipeline.admit(Call(mcp.INITIALIZE, self._face, self._credentials, client))
        # Whoever introduces itself again starts anew.
        self._end_session()
        self._session = session = Session(
            secrets.token_urlsafe(16), client, caller.name, 0.0, self._way
        )
        session.view = view = self._view_of(client.name, caller.name)
        result = self._hello.initialize_result(client.revision, view)
        self._send(jsonrpc.result_response(id, result))

    def _view_of(self, client: str, caller: str) -> OperationView | None:
        """What the client sees. A node above puts its own names before tools: it sees those."""
        if self._views is None or self._credentials.assigned_name:
            return None
        if self._chosen is not None:
            return None if self._chosen is PLAIN_VIEW else self._chosen
        return self._views.of_client(client, caller)

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._listeners.remove_session(session)
            session.end()

    def _notification(self, message: Message) -> None:
        session = self._session
        if message.method == mcp.CANCELLED:
            self._cancelled(message)
        elif message.method == CHOSEN and self._views is not None:
            self._choose(message, self._views)
        elif session is not None:
            if message.method == mcp.INITIALIZED:
                self._listeners.add_session(session)
            else:
                session.notified(message)

    def _choose(self, message: Message, views: Views) -> None:
        try:
            self._chosen = views.by_name(read_string(read_params(message), "view") or "")
            self._refused = None
        except ProtocolError as error:
            self._chosen, self._refused = None, error
            self._end_session()

    def _cancelled(self, message: Message) -> None:
        try:
            request_id = read_params(message).get("requestId")
        except ProtocolError:
            # Nothing can be made of it, and nobody waits for an answer.
            return
        if request_id is None:
            return
        id = bytes(request_id)
        if id in self._under_way:
            self._pipeline.cancel(self._under_way[id])
        elif id in self._subscriptions:
            self._subscriptions.pop(id)()

    # -- calls

    def _call(
        self,
        method: str,
        id: bytes,
        params: dict[str, Raw],
        meta: dict[str, Raw],
        client: Client,
    ) -> None:
        self._take_id(id)
        view = None
        if client.era is mcp.Era.STATELESS and self._views is not None:
            view = self._view_of(client_name(meta), self._name_of_caller())
        call = read_call(
            method, params, meta, face=self._face, credentials=self._credentials, client=client
        )
        if client.era is mcp.Era.SESSION and self._session is not None:
            call.session = self._session
            view = self._session.view
        call.view = view
        call.on_notification = self._hear
        call.context = id
        call.on_done = self._done
        self._place(call)
        self._under_way[id] = call
        self._pipeline.begin(call)

    def _name_of_caller(self) -> str:
        try:
            return self._pipeline.admission.authenticate(self._credentials).name
        except InterlockError:
            # Whether it may call at all is found out when it does.
            return ""

    def _place(self, call: Call) -> None:
        """Find out where a call is on its way through the tree. Raises InterlockError.

        A client's calls begin here, whatever they say.
        """

    def _take_id(self, id: bytes) -> None:
        """Raises InterlockError when a request with this id cannot be taken now."""
        if id in self._under_way or id in self._subscriptions:
            raise ProtocolError("A request with this id is already under way.", INVALID_REQUEST)
        if len(self._under_way) + len(self._subscriptions) >= self.most_under_way:
            raise InterlockError(TOO_BUSY, "Too many requests are under way on this channel.")

    def _done(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        id = call.context
        if TYPE_CHECKING:  # At run time it would cost every call something.
            assert isinstance(id, bytes)
        self._under_way.pop(id, None)
        try:
            if outcome is not None:
                client, result, glance = call.client, outcome.result, outcome.summary
                era = client.era
                # What is in the client's own words already passes as it is.
                if outcome.era is not era or (
                    glance is not None
                    and (glance.meta is not UNSET or (era is _STATELESS and not glance.result_type))
                ):
                    result = write_result(outcome, client, self._hello.server_info, call.method)
                send = self._send
                send(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id, result))
        except InterlockError as unwritable:
            error = unwritable
        if error is not None and error.failure is not CANCELLED:
            self.send_error(id, error, call.client)
        if self._idle is not None and not self._under_way and not self._idle.done():
            self._idle.set_result(None)

    def _hear(self, call: Call, method: str, params: bytes | Raw) -> None:
        self._send(jsonrpc.notification(method, params))


class _Channel:
    """The way to the client of the session on this channel: there is only the one."""

    connected = 1

    def __init__(
        self, write: Callable[[bytes], None], ping: Callable[[], None], end: Callable[[], None]
    ) -> None:
        self._write = write
        self.ping = ping
        self.end = end

    def send(self, payload: bytes, call: Call | None, *, question: bool = False) -> bool:
        self._write(payload)
        return True

    def stop_listening(self) -> None:
        """There is one channel for everything, and answers may still come on it."""
