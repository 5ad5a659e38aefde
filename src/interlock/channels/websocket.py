"""Channels over WebSocket: opened to a URL, or accepted by an HTTP server. One message is one text
frame."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl as tls
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import msgspec

from interlock.channels.channel import (
    CLOSED_HERE,
    CLOSING,
    CONNECTING,
    DOES_NOT_READ,
    MAX_MESSAGE,
    MAX_UNREAD_BYTES,
    Endpoint,
    peer_name,
    verified_peer_names,
)
from interlock.channels.tls import client_context
from interlock.errors import CONFIG, UPSTREAM_UNAVAILABLE, InterlockError, ProtocolError
from interlock.protocol import websocket_handshake as opening
from interlock.protocol.websocket import (
    MEDIUM_HEAD,
    UNSUPPORTED,
    BinaryMessage,
    Close,
    FrameDecoder,
    Ping,
    Pong,
    Violation,
    WebSocketEvent,
    close_frame,
    pack_medium_head,
    pong_frame,
    text_frame,
    text_head,
)

_LARGE: Final = 64 * 1024
"""Size from which the message is not copied."""
_MAX_REJECTION_BYTES: Final = 16 * 1024
"""Maximum size of the body of a rejection that is read, for its message."""
_MAX_REASON_LENGTH: Final = 300
_KEEPALIVE_SECONDS: Final = 30


_masks: Final[list[bytes]] = []
"""Unpredictable masks for the next frames, so that not every frame needs a system call."""


def _fresh_mask() -> bytes:
    """Return a mask, and generate more for the next frames."""
    pool = os.urandom(4096)
    _masks.extend(pool[offset : offset + 4] for offset in range(0, 4096, 4))
    return _masks.pop()


class Timer(Protocol):
    """The return value of `call_later`."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]


class WebSocketConnection(asyncio.Protocol, ABC):
    """An open WebSocket and its closing handshake (RFC 6455 §7). It is the asyncio protocol of its
    transport. Subclasses handle messages and pending writes.
    """

    is_open: bool
    """True while messages are sent and received."""

    def __init__(
        self,
        transport: Any,
        *,
        is_client: bool,
        max_message: int,
        max_unsent: int,
        call_later: CallLater,
    ) -> None:
        """Become the protocol of the transport.

        Args:
            is_client: True if this side opened the connection.
            max_unsent: if the peer leaves more bytes unread, the transport calls `pause_writing`.
        """
        self._is_client = is_client
        self._decoder = FrameDecoder(masked=not is_client, max_message=max_message)
        self._transport = transport
        self._write = transport.write
        self._call_later = call_later
        self._close_sent = False
        self._close_timer: Timer | None = None
        transport.set_write_buffer_limits(high=max_unsent)
        transport.set_protocol(self)

    # -- for subclasses

    @abstractmethod
    def _end(self, reason: str) -> None:
        """Handle the end of the connection. The first reason counts."""

    @abstractmethod
    def _on_close_frame(self, code: int, reason: str) -> None:
        """Handle a close frame of the peer."""

    @abstractmethod
    def _handle_ping(self, sign: Ping | Pong) -> None:
        """Handle a ping or a pong of the peer."""

    def _flush(self) -> None:
        """Write pending data before the close frame."""

    def _mask(self) -> bytes:
        return b""

    # -- asyncio.Protocol

    def connection_lost(self, exc: Exception | None) -> None:
        self._decoder.stop()
        if self._close_timer is not None:
            self._close_timer.cancel()
            self._close_timer = None
        self._end("the connection was lost" + (f": {exc}" if exc is not None else ""))

    # -- ending

    def _handle_event(self, event: WebSocketEvent) -> None:
        """Handle an event that is not a text message."""
        match event:
            case Ping() | Pong() if self.is_open:
                self._handle_ping(event)
            case Close(code, reason):
                self._on_close_frame(code, reason)
                # Confirm with the same code.
                self._send_close(code, "")
                if not self._is_client:
                    self._transport.close()
            case BinaryMessage() if self.is_open:
                self._fail(
                    Violation(UNSUPPORTED, "Only text messages are accepted, no binary messages.")
                )
            case Violation():
                self._fail(event)

    def _fail(self, violation: Violation) -> None:
        self._end(f"it broke the WebSocket protocol: {violation.message}")
        self._send_close(violation.code, violation.message)
        if self._transport.is_closing():
            return
        # If it closed now with unread data, the connection could be reset before the peer reads the
        # reason.
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _send_close(self, code: int, reason: str) -> None:
        """Send one close frame after all pending data. The peer must confirm before the timer
        ends."""
        self._flush()
        if self._close_sent or self._transport.is_closing():
            return
        self._close_sent = True
        self._write(close_frame(code, reason, self._mask()))
        self._start_close_timer()

    def _start_close_timer(self) -> None:
        if self._close_timer is None:
            self._close_timer = self._call_later(CLOSING, self._transport.abort)


class WebSocketChannel(Endpoint, WebSocketConnection):
    """A channel over a WebSocket."""

    def __init__(
        self,
        transport: Any,
        *,
        is_client: bool,
        peer: str,
        label: str,
        max_message: int = MAX_MESSAGE,
    ) -> None:
        """
        Args:
            is_client: True if this side opened the connection.
        """
        Endpoint.__init__(self, peer=peer, label=label, peer_names=verified_peer_names(transport))
        self._unwritten: list[bytes] = []
        loop = asyncio.get_running_loop()
        self._call_soon = loop.call_soon
        WebSocketConnection.__init__(
            self,
            transport,
            is_client=is_client,
            max_message=max_message,
            # Above this limit `pause_writing` closes the channel: no check per message is needed.
            max_unsent=MAX_UNREAD_BYTES,
            call_later=loop.call_later,
        )

    # -- asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        for event in self._decoder.feed(data):
            if type(event) is bytes:
                deliver = self._deliver
                deliver(event)
            else:
                self._handle_event(event)

    def pause_writing(self) -> None:
        self._abort(DOES_NOT_READ)

    def eof_received(self) -> None:
        # The connection is closed after all data is written. The peer may never read it.
        self._flush()
        self._start_close_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwritten.clear()
        super().connection_lost(exc)
        self._on_connection_closed()

    def set_max_message(self, max_message: int) -> None:
        """Set the maximum length of received messages."""
        self._decoder.max_message = max_message

    # -- Channel

    def send(self, payload: bytes) -> None:
        if not self.is_open:
            return
        unwritten = self._unwritten
        if not unwritten:
            self._call_soon(self._flush)
        if self._is_client:
            unwritten.append(text_frame(payload, _masks.pop() if _masks else _fresh_mask()))
            return
        length = len(payload)
        if 125 < length < _LARGE:
            unwritten += (pack_medium_head(MEDIUM_HEAD, length), payload)
        elif length < _LARGE:
            unwritten += (text_head(length), payload)
        else:
            self._flush()
            self._write(text_head(length))
            self._write(payload)

    def _flush(self) -> None:
        """Write all messages of this pass of the event loop together: each write is a system call
        and wakes the peer."""
        unwritten = self._unwritten
        if unwritten:
            self._unwritten = []
            if self._close_sent or self._transport.is_closing():
                # Nothing may follow the close frame.
                return
            self._write(unwritten[0] if len(unwritten) == 1 else b"".join(unwritten))

    def close(self, code: int = 1000, reason: str = "") -> None:
        if self.is_open:
            self._stop_delivery(CLOSED_HERE)
            self._send_close(code, reason)

    # -- ending

    def _handle_ping(self, sign: Ping | Pong) -> None:
        if isinstance(sign, Ping):
            self._write(pong_frame(sign.payload, self._mask()))

    def _on_close_frame(self, code: int, reason: str) -> None:
        self.close_code, self.close_reason = code, reason
        self._end("it closed the channel" + _format_reason(code, reason))

    def _abort(self, reason: str) -> None:
        self._stop_delivery(reason)
        self._unwritten.clear()
        self._transport.abort()

    def _mask(self) -> bytes:
        if not self._is_client:
            return b""
        return _masks.pop() if _masks else _fresh_mask()


def _format_reason(code: int, reason: str) -> str:
    if reason:
        return f": {reason}"
    return f" with code {code}" if code not in (1000, 1005) else ""


# -- accepted connections


def accept(
    transport: Any,
    fields: Mapping[bytes, bytes],
    *,
    peer: str,
    label: str = "",
    max_message: int = MAX_MESSAGE,
) -> WebSocketChannel:
    """Accept a valid upgrade request with these headers (in lower case) and return its channel."""
    transport.write(opening.write_response(fields[b"sec-websocket-key"].strip()))
    return WebSocketChannel(
        transport,
        is_client=False,
        peer=peer,
        label=label or peer,
        max_message=max_message,
    )


# -- opened connections


async def dial(
    url: str,
    *,
    bearer: str | None = None,
    ssl: tls.SSLContext | None = None,
    max_message: int = MAX_MESSAGE,
    timeout: float = CONNECTING,
) -> WebSocketChannel:
    """Open a channel to a ws:// or wss:// URL.

    Args:
        ssl: for wss. Default: TLS 1.3 with the CAs of the system.

    Raises:
        InterlockError: UPSTREAM_UNAVAILABLE with the reason, and the HTTP status in its data if the
            peer rejected the connection.
    """
    target = _Target.parse(url)
    loop = asyncio.get_running_loop()
    context = (ssl or client_context()) if target.secure else None
    connection = _OpeningConnection(target, bearer, max_message, loop.create_future())
    try:
        async with asyncio.timeout(timeout):
            await loop.create_connection(lambda: connection, target.host, target.port, ssl=context)
            return await connection.channel_future
    except _RejectedError as rejection:
        raise InterlockError(
            UPSTREAM_UNAVAILABLE,
            f"{target.label} rejected the connection: {rejection}.",
            {"status": rejection.status},
        ) from None
    except ProtocolError as error:
        reason = f"invalid WebSocket handshake. {error.message}"
    except TimeoutError:
        reason = f"no response within {timeout:g} s."
    except OSError as error:
        reason = _describe_error(error)
    except BaseException:
        # The caller was cancelled.
        connection.abort()
        raise
    connection.abort()
    raise InterlockError(UPSTREAM_UNAVAILABLE, f"Cannot connect to {target.label}: {reason}")


def _enable_keepalive(transport: asyncio.BaseTransport) -> None:
    """Enable TCP keepalive, to notice a lost machine on an idle connection."""
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None and connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)


class _RejectedError(Exception):
    """The peer responded with an HTTP error."""

    def __init__(self, response: opening.HandshakeResponse, body: bytes) -> None:
        super().__init__(f"{response.status} {response.phrase}".rstrip() + _read_message(body))
        self.status = response.status


class _OpeningConnection(asyncio.Protocol):
    """A connection during the opening handshake of its WebSocket."""

    def __init__(
        self,
        target: _Target,
        bearer: str | None,
        max_message: int,
        channel_future: asyncio.Future[WebSocketChannel],
    ) -> None:
        self.channel_future = channel_future
        self._target = target
        self._bearer = bearer
        self._max_message = max_message
        self._key = os.urandom(16)
        self._reader = opening.HandshakeResponseReader()
        self._rejection: opening.HandshakeResponse | None = None
        self._body = b""
        self._transport: Any = None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        _enable_keepalive(transport)
        headers = []
        if self._bearer is not None:
            headers.append(("Authorization", f"Bearer {self._bearer}"))
        try:
            request = opening.write_request(
                self._target.authority, self._target.target, self._key, headers
            )
        except ProtocolError as error:
            self._fail_opening(error)
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._rejection is not None:
            self._read_rejection(self._rejection, data)
            return
        try:
            response = self._reader.feed(data)
            if response is None:
                return
            if response.status != 101:
                self._rejection = response
                self._read_rejection(response, self._reader.rest)
                return
            opening.check_response(response, self._key)
        except ProtocolError as error:
            self._fail_opening(error)
            return
        if self.channel_future.done():
            return
        channel = WebSocketChannel(
            self._transport,
            is_client=True,
            peer=peer_name(self._transport),
            label=self._target.label,
            max_message=self._max_message,
        )
        self.channel_future.set_result(channel)
        if self._reader.rest:
            channel.data_received(self._reader.rest)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rejection is not None:
            self._fail_opening(_RejectedError(self._rejection, self._body))
        else:
            hint = "; perhaps it does not trust this side's certificate"
            reason = "it closed the connection" + (hint if self._target.secure else "")
            self._fail_opening(exc or ConnectionResetError(reason))

    def _read_rejection(self, response: opening.HandshakeResponse, data: bytes) -> None:
        """Read the body of a rejection, up to the limit, for its message."""
        self._body += data
        length = response.get_all(b"content-length")
        size = int(length[0]) if length and length[0].isdigit() else _MAX_REJECTION_BYTES
        if len(self._body) >= min(size, _MAX_REJECTION_BYTES):
            self._fail_opening(_RejectedError(response, self._body))

    def _fail_opening(self, error: Exception) -> None:
        if not self.channel_future.done():
            self.channel_future.set_exception(error)
        self._transport.abort()


class _Target(msgspec.Struct, frozen=True):
    """The parts of a URL that are needed to connect."""

    host: str
    port: int
    authority: str
    target: str
    label: str
    secure: bool

    @classmethod
    def parse(cls, url: str) -> _Target:
        """Parse a URL. Raises InterlockError(CONFIG)."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        else:
            if parts.scheme in ("ws", "wss") and host and "@" not in parts.netloc:
                secure = parts.scheme == "wss"
                path = parts.path or "/"
                return cls(
                    host=host,
                    port=port if port is not None else 443 if secure else 80,
                    authority=parts.netloc,
                    target=f"{path}?{parts.query}" if parts.query else path,
                    # Without the query, which may contain a secret.
                    label=f"{parts.scheme}://{parts.netloc}{path}",
                    secure=secure,
                )
        raise InterlockError(
            CONFIG,
            "Invalid URL to connect to. Use a URL such as wss://host/ax, without a user name.",
        )


def _describe_error(error: OSError) -> str:
    """Describe a failed connection for a person."""
    if isinstance(error, tls.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message.rstrip('.')}."
    if isinstance(error, tls.SSLError):
        reason = (error.reason or str(error)).replace("_", " ").lower()
        return f"TLS failed: {reason}. Both sides must speak TLS 1.3."
    if not error.args:
        # The event loop raises this when the connection ends during the handshake.
        return "it closed the connection while TLS was set up. Both sides must speak TLS 1.3."
    # asyncio replaces the message of the system.
    system = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
    return f"{(system or str(error)).rstrip('.')}."


def _read_message(body: bytes) -> str:
    """Return the message of a rejection, if its body is a JSON-RPC error of a node."""
    try:
        message = msgspec.json.decode(body, type=_ErrorBody).error.message
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return f": {message[:_MAX_REASON_LENGTH].rstrip('.')}"


class _Error(msgspec.Struct):
    message: str


class _ErrorBody(msgspec.Struct):
    error: _Error
