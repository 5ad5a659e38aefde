"""An MCP conversation with one client on one bidirectional channel of messages, in both protocol
generations.

The channel is provided by the caller: lines on a pipe or a socket, or the HTTP+SSE transport of
2024-11-05 with an event stream and posted messages.
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
    INTERNAL_ERROR_TEXT,
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
    """Do nothing: the ping and the end of channels that need neither."""


class Conversation:
    """The protocol state of one client: it receives messages and sends messages."""

    speaks_ax = False
    """True if errors are encoded as on an MCP-AX link."""
    max_open_requests = 1_000
    """The maximum number of open requests and subscriptions."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        server_info: ServerInfo,
        listeners: ChangeListeners,
        send: Callable[[bytes], None],
        face: str,
        credentials: Credentials,
        stateless: bool = True,
        ping: Callable[[], None] = _nothing,
        end: Callable[[], None] = _nothing,
        views: Views | None = None,
    ) -> None:
        """Create the conversation.

        Args:
            send: sends a message to the client.
            face: the name of the transport, as in `Call.face`.
            stateless: True to accept stateless requests too.
            ping: shows the client that the node is alive.
            end: closes the channel when the session ends.
        """
        self._pipeline = pipeline
        self._server_info = server_info
        self._listeners = listeners
        self._send = send
        self._face = face
        self._credentials = credentials
        self._views = views
        self._selected_view: OperationView | None = None
        """The view that the client selected."""
        self._view_error: ProtocolError | None = None
        """Set after the client selected an unknown view: then every request fails, so that the
        client does not see another view instead."""
        self._stateless = stateless
        self._channel = _Channel(send, ping, end)
        self._session: Session | None = None
        self._open_calls: dict[bytes, Call] = {}
        self._idle: asyncio.Future[None] | None = None
        self._subscriptions: dict[bytes, Callable[[], None]] = {}

    def process_message(self, data: bytes) -> None:
        """Process the bytes of a message or a batch from the client. Never raises."""
        try:
            message = jsonrpc.decode_message(data)
        except BadMessage as bad:
            self.send_error(bad.id, bad, None)
        except ProtocolError as error:
            self.send_error(jsonrpc.NULL, error, None)
        else:
            self.messages(message)

    def closed(self) -> None:
        """Cancel the client's calls and end its session. The client has disconnected."""
        for call in list(self._open_calls.values()):
            self._pipeline.cancel(call)
        for remove in self._subscriptions.values():
            remove()
        self._end_session()

    async def drained(self) -> None:
        """Wait until every open request has its response."""
        if self._open_calls:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def send_error(self, id: bytes, error: InterlockError, client: Client | None) -> None:
        self._send(write_error(id, error, client, ax=self.speaks_ax)[1])

    def messages(self, message: Message | list[Message | BadMessage]) -> None:
        """Process a decoded message or batch."""
        if isinstance(message, Message):
            self._message(message)
            return
        client = None if self._session is None else self._session.client
        if client is None or client.revision not in mcp.BATCH_REVISIONS:
            error = ProtocolError(
                "Batches are not part of this revision. Send one message at a time.",
                INVALID_REQUEST,
            )
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
                self._select_view(message, self._views)
                if self._view_error is None:
                    self._send(jsonrpc.result_response(id, _PONG))
                    return
            if self._view_error is not None:
                raise self._view_error
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
            _log.exception("%s client: request failed", self._face)
            failed = InterlockError(INTERNAL, INTERNAL_ERROR_TEXT)
            self.send_error(id, failed, client)

    def _response(self, message: Message) -> None:
        """Process the response to a client request."""
        if self._session is not None:
            self._session.on_response(message)

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
            alternative = ""
            if self._stateless:
                alternative = f", or the `_meta` of {mcp.LATEST_STATELESS} with every request"
            raise ProtocolError(f"Send `initialize` first{alternative}.", INVALID_REQUEST)
        elif client.era is mcp.Era.STATELESS and method in mcp.REMOVED_FROM_STATELESS:
            raise InterlockError(METHOD_NOT_FOUND, f"{method} is not part of {client.revision}.")
        elif method == mcp.PING:
            self._send(jsonrpc.result_response(id, _PONG))
        elif method == mcp.DISCOVER:
            caller = self._pipeline.admit(Call(method, self._face, self._credentials, client))
            view = self._view_of(client_name(meta), caller.name)
            self._send(jsonrpc.result_response(id, self._server_info.discover_result(view)))
        elif method == mcp.LISTEN and client.era is mcp.Era.STATELESS:
            request = Call(method, self._face, self._credentials, client)
            self._pipeline.admit(request)
            accepted_filter = self._listeners.filter_subscription(
                params, self._server_info.capabilities, client
            )
            self._take_id(id)
            remove = self._listeners.add_stateless(
                id, accepted_filter, self._send, _nothing, _nothing, request
            )
            self._subscriptions[id] = remove
        else:
            self._call(method, id, params, meta, client)

    def _initialize(self, message: Message, id: bytes) -> None:
        client = read_initialize(message)
        caller = self._pipeline.admit(Call(mcp.INITIALIZE, self._face, self._credentials, client))
        # A second `initialize` starts a new session.
        self._end_session()
        self._session = session = Session(
            secrets.token_urlsafe(16), client, caller.name, 0.0, self._channel
        )
        session.view = view = self._view_of(client.name, caller.name)
        result = self._server_info.initialize_result(client.revision, view)
        self._send(jsonrpc.result_response(id, result))

    def _view_of(self, client: str, caller: str) -> OperationView | None:
        """Return the view of the client. A parent node, which adds its own prefix to tool names,
        sees the tools."""
        if self._views is None or self._credentials.assigned_name:
            return None
        if self._selected_view is not None:
            return None if self._selected_view is PLAIN_VIEW else self._selected_view
        return self._views.choose_view(client, caller)

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
            self._select_view(message, self._views)
        elif session is not None:
            if message.method == mcp.INITIALIZED:
                self._listeners.add_session(session)
            else:
                session.on_notification(message)

    def _select_view(self, message: Message, views: Views) -> None:
        try:
            self._selected_view = views.find_view(read_string(read_params(message), "view") or "")
            self._view_error = None
        except ProtocolError as error:
            self._selected_view, self._view_error = None, error
            self._end_session()

    def _cancelled(self, message: Message) -> None:
        try:
            request_id = read_params(message).get("requestId")
        except ProtocolError:
            # An invalid notification is ignored: it has no response.
            return
        if request_id is None:
            return
        id = bytes(request_id)
        if id in self._open_calls:
            self._pipeline.cancel(self._open_calls[id])
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
            view = self._view_of(client_name(meta), self._caller_name())
        call = read_call(
            method, params, meta, face=self._face, credentials=self._credentials, client=client
        )
        if client.era is mcp.Era.SESSION and self._session is not None:
            call.session = self._session
            view = self._session.view
        call.view = view
        call.on_notification = self._on_call_notification
        call.context = id
        call.on_done = self._done
        self._place(call)
        self._open_calls[id] = call
        self._pipeline.begin(call)

    def _caller_name(self) -> str:
        try:
            return self._pipeline.admission.authenticate(self._credentials).name
        except InterlockError:
            # The call itself is rejected later.
            return ""

    def _place(self, call: Call) -> None:
        """Set the position of a call on its route through the tree. A subclass for calls from a
        parent node overrides this. The calls of a client begin here, regardless of their content.

        Raises:
            InterlockError: the route is invalid.
        """

    def _take_id(self, id: bytes) -> None:
        """Check that a request with this id can be accepted now.

        Raises:
            InterlockError: the id is in use, or there are too many open requests.
        """
        if id in self._open_calls or id in self._subscriptions:
            raise ProtocolError(
                "A request with this id is already running. Use another id.", INVALID_REQUEST
            )
        if len(self._open_calls) + len(self._subscriptions) >= self.max_open_requests:
            raise InterlockError(
                TOO_BUSY, "Too many requests are running on this channel. Try again later."
            )

    def _done(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        id = call.context
        if TYPE_CHECKING:  # At run time the assertion would slow down every call.
            assert isinstance(id, bytes)
        self._open_calls.pop(id, None)
        try:
            if outcome is not None:
                client, result, summary = call.client, outcome.result, outcome.summary
                era = client.era
                # A result that has the client's format already is sent unchanged.
                if outcome.era is not era or (
                    summary is not None
                    and (
                        summary.meta is not UNSET or (era is _STATELESS and not summary.result_type)
                    )
                ):
                    result = write_result(
                        outcome, client, self._server_info.server_info, call.method
                    )
                send = self._send
                send(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id, result))
        except InterlockError as unwritable:
            error = unwritable
        if error is not None and error.failure is not CANCELLED:
            self.send_error(id, error, call.client)
        if self._idle is not None and not self._open_calls and not self._idle.done():
            self._idle.set_result(None)

    def _on_call_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        self._send(jsonrpc.notification(method, params))


class _Channel:
    """The channel of the session of a conversation. All messages use this channel."""

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
        """Do nothing: responses may still be sent on the same channel."""
