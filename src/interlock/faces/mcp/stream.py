"""MCP over a stream of lines: stdio, or the node's own Unix socket. Both eras on one channel."""

from __future__ import annotations

import asyncio
import logging
import select
from collections.abc import Callable
from typing import Final, cast

from msgspec import UNSET, Raw

from interlock.call import Call, Client, Credentials, Outcome
from interlock.errors import (
    CANCELLED,
    INTERNAL,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    TOO_BUSY,
    InterlockError,
    ProtocolError,
)
from interlock.faces.mcp.hello import Hello
from interlock.faces.mcp.listeners import Listeners
from interlock.faces.mcp.reading import (
    read_call,
    read_client,
    read_initialize,
    read_meta,
    read_params,
)
from interlock.faces.mcp.sessions import Session
from interlock.faces.mcp.writing import write_error, write_outcome
from interlock.pipeline.authenticate import LOCAL_PEER
from interlock.pipeline.pipeline import Pipeline
from interlock.protocol import jsonrpc, mcp
from interlock.protocol.jsonrpc import BadMessage, Message
from interlock.protocol.lines import LineDecoder, Oversize

FACE: Final = "stream"
_MOST_UNDER_WAY: Final = 1_000
_MOST_UNREAD: Final = 64 * 1024 * 1024
_CREDENTIALS: Final = Credentials(LOCAL_PEER)

_log = logging.getLogger("interlock.faces.mcp")


class McpStream:
    """One client on one channel. Feed it bytes; it writes whole lines."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        hello: Hello,
        listeners: Listeners,
        write: Callable[[bytes], None],
        max_line: int,
    ) -> None:
        self._pipeline = pipeline
        self._hello = hello
        self._listeners = listeners
        self._write = write
        self._lines = LineDecoder(max_line)
        self._session: Session | None = None
        self._under_way: dict[bytes, Call] = {}
        self._idle: asyncio.Future[None] | None = None
        self._subscriptions: dict[bytes, Callable[[], None]] = {}
        self._end_session_stream: Callable[[], None] | None = None

    def feed(self, data: bytes) -> None:
        """Bytes from the client."""
        for line in self._lines.feed(data):
            if isinstance(line, Oversize):
                self._send_error(jsonrpc.NULL, line.error(), None)
                continue
            try:
                message = jsonrpc.decode_message(line)
            except BadMessage as bad:
                self._send_error(bad.id, bad, None)
            except ProtocolError as error:
                self._send_error(jsonrpc.NULL, error, None)
            else:
                self._messages(message)

    def closed(self) -> None:
        """The client is gone: so is the need for its answers."""
        for call in list(self._under_way.values()):
            self._pipeline.cancel(call)
        for remove in self._subscriptions.values():
            remove()
        if self._end_session_stream is not None:
            self._end_session_stream()

    async def drained(self) -> None:
        """Wait until every request under way has been answered."""
        if self._under_way:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def _messages(self, message: Message | list[Message | BadMessage]) -> None:
        if isinstance(message, Message):
            self._message(message)
            return
        client = None if self._session is None else self._session.client
        if client is None or client.revision not in mcp.BATCH_REVISIONS:
            error = ProtocolError("Batches are not part of this revision.", INVALID_REQUEST)
            self._send_error(jsonrpc.NULL, error, None)
            return
        for member in message:
            if isinstance(member, BadMessage):
                self._send_error(member.id, member, client)
            else:
                self._message(member)

    def _message(self, message: Message) -> None:
        if message.method is UNSET:
            return
        if message.id is UNSET:
            self._notification(message)
            return
        id = bytes(message.id)
        client: Client | None = None
        try:
            params = read_params(message)
            meta = read_meta(params)
            if mcp.META_VERSION in meta:
                client = read_client(message.method, meta)
                if client.revision not in mcp.STATELESS_REVISIONS:
                    raise mcp.unsupported_version(client.revision)
            elif self._session is not None:
                client = self._session.client
            self._request(message, message.method, id, params, meta, client)
        except InterlockError as error:
            self._send_error(id, error, client)
        except Exception:
            _log.exception("a request could not be served")
            failed = InterlockError(INTERNAL, "The node failed on this request; see its log.")
            self._send_error(id, failed, client)

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
                self._send(jsonrpc.result_response(id, b"{}"))
                return
            raise ProtocolError(
                f"Send `initialize` first, or the `_meta` of {mcp.LATEST_STATELESS} every time.",
                INVALID_REQUEST,
            )
        elif client.era is mcp.Era.STATELESS and method in mcp.REMOVED_FROM_STATELESS:
            raise InterlockError(METHOD_NOT_FOUND, f"{method} is not part of {client.revision}.")
        elif method == mcp.PING:
            self._send(jsonrpc.result_response(id, b"{}"))
        elif method == mcp.DISCOVER:
            self._pipeline.admit(Call(method, FACE, _CREDENTIALS, client))
            self._send(jsonrpc.result_response(id, self._hello.discover_result()))
        elif method == mcp.LISTEN and client.era is mcp.Era.STATELESS:
            self._pipeline.admit(Call(method, FACE, _CREDENTIALS, client))
            honoured = self._listeners.honoured(params)
            self._take_id(id)
            remove = self._listeners.add_stateless(id, honoured, self._send, _quiet, _quiet)
            self._subscriptions[id] = remove
        else:
            self._call(method, id, params, meta, client)

    def _initialize(self, message: Message, id: bytes) -> None:
        client = read_initialize(message)
        caller = self._pipeline.admit(Call(mcp.INITIALIZE, FACE, _CREDENTIALS, client))
        self._session = Session("", client, caller.name, 0.0)
        self._send(jsonrpc.result_response(id, self._hello.initialize_result(client.revision)))

    def _notification(self, message: Message) -> None:
        if message.method == mcp.INITIALIZED and self._session is not None:
            if self._end_session_stream is None:
                self._end_session_stream = self._listeners.add_session(
                    self._session, self._send, _quiet, _quiet
                )
        elif message.method == mcp.CANCELLED:
            try:
                request_id = read_params(message).get("requestId")
            except ProtocolError:
                return
            if request_id is None:
                return
            id = bytes(request_id)
            if id in self._under_way:
                self._pipeline.cancel(self._under_way[id])
            elif id in self._subscriptions:
                self._subscriptions.pop(id)()

    def _call(
        self,
        method: str,
        id: bytes,
        params: dict[str, Raw],
        meta: dict[str, Raw],
        client: Client,
    ) -> None:
        self._take_id(id)
        call = read_call(method, params, meta, face=FACE, credentials=_CREDENTIALS, client=client)
        if call.meta is not None and mcp.META_PROGRESS_TOKEN in call.meta:
            call.on_notification = self._hear
        call.context = id
        call.on_done = self._done
        self._under_way[id] = call
        self._pipeline.begin(call)

    def _take_id(self, id: bytes) -> None:
        """Raises InterlockError when a request with this id cannot be taken now."""
        if id in self._under_way or id in self._subscriptions:
            raise ProtocolError("A request with this id is already under way.", INVALID_REQUEST)
        if len(self._under_way) + len(self._subscriptions) >= _MOST_UNDER_WAY:
            raise InterlockError(TOO_BUSY, "Too many requests are under way on this channel.")

    def _done(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        id: bytes = call.context
        self._under_way.pop(id, None)
        try:
            if outcome is not None:
                info = self._hello.server_info
                self._send(write_outcome(id, outcome, call.client, info, call.verb))
        except InterlockError as unwritable:
            error = unwritable
        if error is not None and error.failure is not CANCELLED:
            self._send_error(id, error, call.client)
        if self._idle is not None and not self._under_way and not self._idle.done():
            self._idle.set_result(None)

    def _hear(self, call: Call, method: str, params: bytes | Raw) -> None:
        self._send(jsonrpc.notification(method, params))

    def _send(self, payload: bytes) -> None:
        self._write(jsonrpc.on_one_line(payload) + b"\n")

    def _send_error(self, id: bytes, error: InterlockError, client: Client | None) -> None:
        self._send(write_error(id, error, client)[1])


def _quiet() -> None:
    """A channel of lines has nothing to keep alive, and outlives every subscription on it."""


class McpStreamServer(asyncio.Protocol):
    """A client that comes over a socket."""

    def __init__(
        self,
        make: Callable[[Callable[[bytes], None]], McpStream],
        connected: set[McpStreamServer] | None = None,
    ) -> None:
        """`connected` holds it for as long as its client is there."""
        self._make = make
        self._connected = set() if connected is None else connected
        self._stream: McpStream | None = None
        self._transport: asyncio.Transport | None = None
        self._finishing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods, but not the base class.
        self._transport = cast(asyncio.Transport, transport)
        self._stream = self._make(self._write)
        self._connected.add(self)

    def data_received(self, data: bytes) -> None:
        if self._stream is not None:
            self._stream.feed(data)

    def eof_received(self) -> bool:
        """The client has said everything: if it still listens, it gets what it asked for."""
        if self._transport is not None and _hung_up(self._transport):
            return False
        if self._stream is not None:
            # The last line may lack its end.
            self._stream.feed(b"\n")
            self._finishing = asyncio.get_running_loop().create_task(self._finish(self._stream))
        return True

    async def _finish(self, stream: McpStream) -> None:
        await stream.drained()
        if self._transport is not None:
            self._transport.close()

    def stop(self) -> None:
        """The node stops, and everything asked of it has been answered."""
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connected.discard(self)
        if self._finishing is not None:
            self._finishing.cancel()
        if self._stream is not None:
            self._stream.closed()
            self._stream = None

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > _MOST_UNREAD:
            _log.warning("a local client does not read its answers; it is cut off")
            transport.abort()
            return
        transport.write(data)


def _hung_up(transport: asyncio.Transport) -> bool:
    """Whether the other side of a Unix socket is gone, and has not just ended its own part."""
    try:
        watch = select.poll()
        watch.register(transport.get_extra_info("socket").fileno(), 0)
        return any(events & select.POLLHUP for _, events in watch.poll(0))
    except (AttributeError, OSError, ValueError):
        # No poll on this system, or the socket is closed already: then writing will tell.
        return False
