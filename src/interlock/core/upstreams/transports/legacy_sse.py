"""A transport over HTTP+SSE of MCP 2024-11-05: one event stream in, POSTs out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final
from urllib.parse import urljoin

from interlock.core.call import UpstreamLostError
from interlock.core.ports import Clock
from interlock.core.upstreams.transports.credentials import BearerCredentials
from interlock.core.upstreams.transports.http import DiscardedReply, header_lines
from interlock.core.upstreams.transports.http_pool import HttpConnection, HttpPool, Origin
from interlock.core.upstreams.transports.transport import (
    MAX_MESSAGE,
    EarlyReceiver,
    SingleChannel,
    TransportReceiver,
    TransportRequest,
)
from interlock.errors import (
    UPSTREAM_LOST,
    UPSTREAM_PROTOCOL,
    UPSTREAM_UNAVAILABLE,
    Failure,
    InterlockError,
)
from interlock.protocol.sse import OversizeEvent, SseDecoder, SseEvent

_ENDPOINT_TIMEOUT_SECONDS: Final = 10.0
_EXTRA_CONNECTIONS: Final = 8
"""Connections for notifications and responses to client requests. A server may keep the POST of a
call open until the call completes, and these must not wait behind it."""


class _PostReply:
    """The response to a POST: 202. The JSON-RPC response comes on the stream."""

    __slots__ = ("_label", "_request", "_transport", "connection")

    def __init__(self, transport: LegacySseTransport, request: TransportRequest | None) -> None:
        self._label = transport.label
        self._transport = transport
        self._request = request
        self.connection: HttpConnection | None = None

    def on_response(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        if status == 401 and self._transport.bearer is not None:
            self._transport.on_rejected(self._request, headers)
        elif self._request is not None and not 200 <= status < 300:
            self._request.fail(
                UPSTREAM_UNAVAILABLE,
                f"{self._label} responded with HTTP {status}.",
                # 404: the session is unknown, so nothing was executed. Others prove nothing.
                # 404: it knows no such session, so it did nothing. Anything else may mean anything.
                was_sent=status != 404,
                status=status,
            )

    def on_stream_start(self, headers: dict[bytes, bytes]) -> None:
        """Ignore the stream."""

    def on_stream_data(self, data: bytes) -> None:
        """Ignore the stream."""

    def on_stream_end(self) -> None:
        """Ignore the stream."""

    def on_failure(self, failure: Failure, message: str, *, was_sent: bool) -> None:
        if self._request is not None:
            self._request.fail(failure, message, was_sent=was_sent)


class LegacySseTransport(SingleChannel):
    """One event stream, and the endpoint that it announced."""

    receiver: TransportReceiver
    # There is no session id, but the stream is a session of its own.
    offered_session_id = b"the stream itself"

    def __init__(
        self,
        label: str,
        url: str,
        headers: Mapping[str, str],
        *,
        connections: int,
        clock: Clock,
        bearer: BearerCredentials | None = None,
    ) -> None:
        self.label = label
        self.bearer = bearer
        self._bearer_line = b"" if bearer is None else bearer.current()
        self.receiver = EarlyReceiver()
        self.connection: HttpConnection | None = None
        self._url = url
        origin = Origin(url)
        self._base = f"Host: {origin.authority}\r\n".encode() + header_lines(label, headers)
        self._base += self._bearer_line
        self._origin = origin
        self._stream = HttpPool(label, origin, 1, clock)
        self._pool = HttpPool(label, origin, connections, clock)
        self._extra_pool = HttpPool(label, origin, _EXTRA_CONNECTIONS, clock)
        self._events = SseDecoder(MAX_MESSAGE)
        self._endpoint: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._post_head = b""
        self._is_lost = False

    async def open(self) -> None:
        """Open the stream and wait for the endpoint. Raises InterlockError."""
        request = b"GET %b HTTP/1.1\r\nAccept: text/event-stream\r\n%b\r\n" % (
            self._origin.path.encode(),
            self._base,
        )
        self._stream.send(request, self)
        try:
            async with asyncio.timeout(_ENDPOINT_TIMEOUT_SECONDS):
                path = await self._endpoint
        except TimeoutError:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"{self.label} opened an event stream but sent no `endpoint` event within "
                f"{_ENDPOINT_TIMEOUT_SECONDS:g} s.",
            ) from None
        self._post_head = (
            b"POST %b HTTP/1.1\r\nContent-Type: application/json\r\n" % path + self._base
        )

    # -- the response to the GET

    def on_response(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        message = f"{self.label} responded with HTTP {status}."
        if status == 401 and self.bearer is not None:
            self.on_rejected(None, headers)
        elif not self._endpoint.done():
            self._endpoint.set_exception(
                UpstreamLostError(UPSTREAM_UNAVAILABLE, message, was_sent=False, status=status)
            )

    def on_rejected(self, request: TransportRequest | None, headers: dict[bytes, bytes]) -> None:
        """Handle rejected credentials. This transport keeps those that it began with. The next one
        may have others, and a rejected call can be sent there."""
        assert self.bearer is not None

        def on_result(sign_in_error: InterlockError | None) -> None:
            message = (
                f"{self.label} needs new credentials."
                if sign_in_error is None
                else sign_in_error.message
            )
            if request is not None and request.is_open:
                request.fail(UPSTREAM_LOST, message, was_sent=sign_in_error is not None, status=401)
            error = UpstreamLostError(UPSTREAM_UNAVAILABLE, message, was_sent=False, status=401)
            if not self._endpoint.done():
                self._endpoint.set_exception(error)
            else:
                self.on_failure(error.failure, message, was_sent=False)

        self.bearer.on_rejected(
            401, headers.get(b"www-authenticate", b""), self._bearer_line, on_result
        )

    def on_stream_start(self, headers: dict[bytes, bytes]) -> None:
        """Wait for the endpoint, which is the first event."""

    def on_stream_data(self, data: bytes) -> None:
        try:
            self._deliver_events(self._events.feed(data))
        except OversizeEvent as exc:
            # The request is unknown, so its call ends with its deadline.
            self._deliver_events(exc.events)

    def _deliver_events(self, events: list[SseEvent]) -> None:
        for event in events:
            if event.event == "endpoint" and not self._endpoint.done():
                self._set_endpoint(event.data)
            elif event.event == "message" and event.data:
                self.receiver.deliver(event.data, None)

    def _set_endpoint(self, endpoint: bytes) -> None:
        try:
            target = Origin(urljoin(self._url, endpoint.decode("utf-8", "replace")))
            is_other_origin = not target.is_same_origin(self._origin)
        except ValueError:
            self.on_failure(
                UPSTREAM_PROTOCOL, f"{self.label} sent an invalid endpoint URL.", was_sent=False
            )
            return
        if is_other_origin:
            self.on_failure(
                UPSTREAM_PROTOCOL,
                f"{self.label} sent an endpoint on another server, which is not allowed.",
                was_sent=False,
            )
            return
        self._endpoint.set_result(target.path.encode())

    def on_stream_end(self) -> None:
        self.on_failure(UPSTREAM_LOST, f"{self.label} ended its event stream.", was_sent=True)

    def on_failure(self, failure: Failure, message: str, *, was_sent: bool) -> None:
        if not self._endpoint.done():
            self._endpoint.set_exception(InterlockError(failure, message))
        elif not self._is_lost:
            self._is_lost = True
            self.receiver.on_transport_lost(message)

    # -- UpstreamTransport

    def send(self, request: TransportRequest, payload: bytes, headers: bytes) -> None:
        if self._is_lost:
            request.fail(UPSTREAM_LOST, f"{self.label} is not connected.", was_sent=False)
            return
        request.carrier = reply = _PostReply(self, request)
        self._pool.send(self._encode_request(payload), reply)

    def send_long_lived(self, request: TransportRequest, payload: bytes, headers: bytes) -> None:
        self.send(request, payload, headers)

    def post(self, payload: bytes, headers: bytes) -> None:
        if not self._is_lost:
            reply, request = _PostReply(self, None), self._encode_request(payload)
            if not self._pool.send_if_free(request, reply):
                self._extra_pool.send(request, reply)

    def _encode_request(self, payload: bytes) -> bytes:
        return b"%bContent-Length: %d\r\n\r\n%b" % (self._post_head, len(payload), payload)

    async def post_and_wait(self, payload: bytes) -> None:
        reply = DiscardedReply()
        self._extra_pool.send(self._encode_request(payload), reply)
        await reply.done

    def remove_request(self, request: TransportRequest) -> None:
        """Remove an unsent request. A response to a sent one is ignored by its unknown id."""
        reply = request.carrier
        if isinstance(reply, _PostReply) and reply.connection is None:
            self._pool.remove_waiting(reply)

    async def close(self) -> None:
        self._is_lost = True
        await self._stream.close()
        await self._extra_pool.close()
        await self._pool.close()
