"""Channels over WebSocket: dialled, or taken over from HTTP. One message is one text frame."""

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
"""From here on a copy is worth avoiding."""
_MOST_REFUSAL: Final = 16 * 1024
"""So much of the body of a refusal is read, for the sentence in it."""
_WORDS_SHOWN: Final = 300
_SILENT_SECONDS: Final = 30


_masks: Final[list[bytes]] = []
"""For frames to come: fresh for each, unpredictable, and not a system call each."""


def _fresh_mask() -> bytes:
    """One mask, and many more for those who come next."""
    pool = os.urandom(4096)
    _masks.extend(pool[at : at + 4] for at in range(0, 4096, 4))
    return _masks.pop()


class Timer(Protocol):
    """What `call_later` gives back."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]


class WebSocketConnection(asyncio.Protocol, ABC):
    """A WebSocket that is open, and how it is closed (RFC 6455 §7). It is its transport's protocol
    from the start. What becomes of messages, and what waits to be written, is for subclasses.
    """

    is_open: bool
    """Whether messages go in and out."""

    def __init__(
        self,
        transport: Any,
        *,
        is_client: bool,
        max_message: int,
        max_unsent: int,
        call_later: CallLater,
    ) -> None:
        """Take the transport over.

        Args:
            dialled: this side is the client.
            most_unsent: above so many bytes that the other side does not read, the transport calls
                `pause_writing`.
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
    def _end(self, why: str) -> None:
        """No message comes any more. The first reason counts."""

    @abstractmethod
    def _on_close_frame(self, code: int, reason: str) -> None:
        """The other side closes the connection, in these words."""

    @abstractmethod
    def _handle_ping(self, sign: Ping | Pong) -> None:
        """The other side says that it is there, or asks whether this one is."""

    def _flush(self) -> None:
        """Write what goes before the close frame."""

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
        """Everything that is not a text message."""
        match event:
            case Ping() | Pong() if self.is_open:
                self._handle_ping(event)
            case Close(code, reason):
                self._on_close_frame(code, reason)
                # With the same code, as agreement.
                self._send_close(code, "")
                if not self._is_client:
                    self._transport.close()
            case BinaryMessage() if self.is_open:
                self._fail(Violation(UNSUPPORTED, "Messages are text here, not binary."))
            case Violation():
                self._fail(event)

    def _fail(self, violation: Violation) -> None:
        self._end(f"it broke the WebSocket protocol: {violation.message}")
        self._send_close(violation.code, violation.message)
        if self._transport.is_closing():
            return
        # Closed now, with its bytes unread, the connection might be reset before it reads why.
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _send_close(self, code: int, reason: str) -> None:
        """Once, behind all that was sent. The other side has until the patience ends to agree."""
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
        """`dialled`: this side is the client."""
        Endpoint.__init__(self, peer=peer, label=label, peer_names=verified_peer_names(transport))
        self._unwritten: list[bytes] = []
        loop = asyncio.get_running_loop()
        self._call_soon = loop.call_soon
        WebSocketConnection.__init__(
            self,
            transport,
            is_client=is_client,
            max_message=max_message,
            # Above this `pause_writing` ends it, so there is nothing to look at per message.
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
        # The connection is closed after this, once everything is written: it may never read that.
        self._flush()
        self._start_close_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwritten.clear()
        super().connection_lost(exc)
        self._on_connection_gone()

    def set_max_message(self, max_message: int) -> None:
        """Take messages of this length from now on."""
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
        """Write everything that was sent in this turn of the loop at once: each write is a call of
        the system, and wakes the other side."""
        unwritten = self._unwritten
        if unwritten:
            self._unwritten = []
            if self._close_sent or self._transport.is_closing():
                # Nothing may come behind the close frame.
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
        self._end("it closed the channel" + _because(code, reason))

    def _abort(self, why: str) -> None:
        self._stop_delivery(why)
        self._unwritten.clear()
        self._transport.abort()

    def _mask(self) -> bytes:
        if not self._is_client:
            return b""
        return _masks.pop() if _masks else _fresh_mask()


def _because(code: int, reason: str) -> str:
    if reason:
        return f": {reason}"
    return f" with code {code}" if code not in (1000, 1005) else ""


# -- taken over from HTTP


def accept(
    transport: Any,
    fields: Mapping[bytes, bytes],
    *,
    peer: str,
    label: str = "",
    max_message: int = MAX_MESSAGE,
) -> WebSocketChannel:
    """The channel of whoever sent a lawful upgrade request with these headers (lower case)."""
    transport.write(opening.write_response(fields[b"sec-websocket-key"].strip()))
    return WebSocketChannel(
        transport,
        is_client=False,
        peer=peer,
        label=label or peer,
        max_message=max_message,
    )


# -- dialled


async def dial(
    url: str,
    *,
    bearer: str | None = None,
    ssl: tls.SSLContext | None = None,
    max_message: int = MAX_MESSAGE,
    timeout: float = CONNECTING,
) -> WebSocketChannel:
    """An open channel to a ws:// or wss:// URL. Raises InterlockError(UPSTREAM_UNAVAILABLE) with
    the reason, and the HTTP status in its data when the other side refused.

    `ssl`: for wss; without one the system's CAs are trusted, and nothing below TLS 1.3 is spoken.
    """
    where = _Where.of(url)
    loop = asyncio.get_running_loop()
    context = (ssl or client_context()) if where.secure else None
    dialling = _Dialling(where, bearer, max_message, loop.create_future())
    try:
        async with asyncio.timeout(timeout):
            await loop.create_connection(lambda: dialling, where.host, where.port, ssl=context)
            return await dialling.opened
    except _Refused as refused:
        raise InterlockError(
            UPSTREAM_UNAVAILABLE, f"{where.label} refused: {refused}.", {"status": refused.status}
        ) from None
    except ProtocolError as error:
        why = f"it does not open a WebSocket. {error.message}"
    except TimeoutError:
        why = f"it did not answer within {timeout:g} s."
    except OSError as error:
        why = _plainly(error)
    except BaseException:
        # Nobody waits for it any more.
        dialling.give_up()
        raise
    dialling.give_up()
    raise InterlockError(UPSTREAM_UNAVAILABLE, f"{where.label} cannot be reached: {why}")


def _notice_its_end(transport: asyncio.BaseTransport) -> None:
    """A machine that is gone says nothing, and neither may we for hours: the system asks for us."""
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None and connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_SECONDS)


class _Refused(Exception):
    """The other side answered, and opened nothing."""

    def __init__(self, answer: opening.HandshakeResponse, body: bytes) -> None:
        super().__init__(f"{answer.status} {answer.phrase}".rstrip() + _sentence_in(body))
        self.status = answer.status


class _Dialling(asyncio.Protocol):
    """A connection until its WebSocket is open, or known not to be."""

    def __init__(
        self,
        where: _Where,
        bearer: str | None,
        max_message: int,
        opened: asyncio.Future[WebSocketChannel],
    ) -> None:
        self.opened = opened
        self._where = where
        self._bearer = bearer
        self._max_message = max_message
        self._key = os.urandom(16)
        self._reader = opening.HandshakeResponseReader()
        self._refusal: opening.HandshakeResponse | None = None
        self._body = b""
        self._transport: Any = None

    def give_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        _notice_its_end(transport)
        headers = []
        if self._bearer is not None:
            headers.append(("Authorization", f"Bearer {self._bearer}"))
        try:
            asks = opening.write_request(
                self._where.authority, self._where.target, self._key, headers
            )
        except ProtocolError as error:
            self._failed(error)
        else:
            self._transport.write(asks)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            self._read_refusal(self._refusal, data)
            return
        try:
            answer = self._reader.feed(data)
            if answer is None:
                return
            if answer.status != 101:
                self._refusal = answer
                self._read_refusal(answer, self._reader.rest)
                return
            opening.check_response(answer, self._key)
        except ProtocolError as error:
            self._failed(error)
            return
        if self.opened.done():
            return
        channel = WebSocketChannel(
            self._transport,
            is_client=True,
            peer=peer_name(self._transport),
            label=self._where.label,
            max_message=self._max_message,
        )
        self.opened.set_result(channel)
        if self._reader.rest:
            channel.data_received(self._reader.rest)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._refusal is not None:
            self._failed(_Refused(self._refusal, self._body))
        else:
            hint = "; perhaps it does not trust this side's certificate"
            said_nothing = "it closed the connection" + (hint if self._where.secure else "")
            self._failed(exc or ConnectionResetError(said_nothing))

    def _read_refusal(self, answer: opening.HandshakeResponse, data: bytes) -> None:
        """Read on until the sentence that says why is there, or enough of anything."""
        self._body += data
        length = answer.get_all(b"content-length")
        whole = int(length[0]) if length and length[0].isdigit() else _MOST_REFUSAL
        if len(self._body) >= min(whole, _MOST_REFUSAL):
            self._failed(_Refused(answer, self._body))

    def _failed(self, error: Exception) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
        self._transport.abort()


class _Where(msgspec.Struct, frozen=True):
    """What a URL says about where to dial."""

    host: str
    port: int
    authority: str
    target: str
    label: str
    secure: bool

    @classmethod
    def of(cls, url: str) -> _Where:
        """Raises InterlockError(CONFIG)."""
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
                    # Without the query, which may hold a secret.
                    label=f"{parts.scheme}://{parts.netloc}{path}",
                    secure=secure,
                )
        raise InterlockError(
            CONFIG, "What is to be dialled is no URL like wss://host/ax, without a user name in it."
        )


def _plainly(error: OSError) -> str:
    """Why a connection failed, for people."""
    if isinstance(error, tls.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message.rstrip('.')}."
    if isinstance(error, tls.SSLError):
        reason = (error.reason or str(error)).replace("_", " ").lower()
        return f"TLS failed: {reason}. Both sides must speak TLS 1.3."
    if not error.args:
        # That is how a loop tells of an end in the middle of the handshake.
        return "it closed the connection while TLS was set up. Both sides must speak TLS 1.3."
    # asyncio puts words of its own where the system's should be.
    system = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
    return f"{(system or str(error)).rstrip('.')}."


def _sentence_in(body: bytes) -> str:
    """What the body of a refusal says, where it is a JSON-RPC error as a node writes it."""
    try:
        said = msgspec.json.decode(body, type=_ErrorBody).error.message
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return f": {said[:_WORDS_SHOWN].rstrip('.')}"


class _Error(msgspec.Struct):
    message: str


class _ErrorBody(msgspec.Struct):
    error: _Error
