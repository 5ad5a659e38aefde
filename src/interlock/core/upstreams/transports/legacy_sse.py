"""A link over the HTTP+SSE transport of 2024-11-05: one event stream in, POSTs out."""

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

_ENDPOINT_WAIT: Final = 10.0
_ASIDE_CONNECTIONS: Final = 8
"""For answers to the server's own questions, and notifications: a server may keep a call's POST
open until that call is answered, and these must not wait behind it."""


class _Posted:
    """The answer of a POST: 202, the real one comes on the stream."""

    __slots__ = ("_label", "_link", "_ticket", "connection")

    def __init__(self, link: LegacySseTransport, ticket: TransportRequest | None) -> None:
        self._label = link.label
        self._link = link
        self._ticket = ticket
        self.connection: HttpConnection | None = None

    def whole(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        if status == 401 and self._link.bearer is not None:
            self._link.refused(self._ticket, headers)
        elif self._ticket is not None and not 200 <= status < 300:
            self._ticket.fail(
                UPSTREAM_UNAVAILABLE,
                f"{self._label} answered with HTTP {status}.",
                # 404: it knows no such session, so it did nothing. Anything else may mean anything.
                sent=status != 404,
                status=status,
            )

    def opened(self, headers: dict[bytes, bytes]) -> None:
        """Not a stream that anybody reads."""

    def chunk(self, data: bytes) -> None:
        """Not a stream that anybody reads."""

    def ended(self) -> None:
        """Not a stream that anybody reads."""

    def failed(self, failure: Failure, message: str, *, sent: bool) -> None:
        if self._ticket is not None:
            self._ticket.fail(failure, message, sent=sent)


class LegacySseTransport(SingleChannel):
    """One event stream, and the endpoint that it named."""

    receiver: TransportReceiver
    # There is no id, but the stream is a session of its own all the same.
    session_offered = b"the stream itself"

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
        self._line = b"" if bearer is None else bearer.current()
        self.receiver = EarlyReceiver()
        self.connection: HttpConnection | None = None
        self._url = url
        origin = Origin(url)
        self._base = f"Host: {origin.authority}\r\n".encode() + header_lines(label, headers)
        self._base += self._line
        self._origin = origin
        self._stream = HttpPool(label, origin, 1, clock)
        self._pool = HttpPool(label, origin, connections, clock)
        self._asides = HttpPool(label, origin, _ASIDE_CONNECTIONS, clock)
        self._events = SseDecoder(MAX_MESSAGE)
        self._endpoint: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._post_head = b""
        self._lost = False

    async def open(self) -> None:
        """Open the stream and wait for the endpoint. Raises InterlockError."""
        request = b"GET %b HTTP/1.1\r\nAccept: text/event-stream\r\n%b\r\n" % (
            self._origin.path.encode(),
            self._base,
        )
        self._stream.send(request, self)
        try:
            async with asyncio.timeout(_ENDPOINT_WAIT):
                path = await self._endpoint
        except TimeoutError:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"{self.label} opened a stream but named no endpoint."
            ) from None
        self._post_head = (
            b"POST %b HTTP/1.1\r\nContent-Type: application/json\r\n" % path + self._base
        )

    # -- Reply of the event stream

    def whole(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        message = f"{self.label} answered with HTTP {status}."
        if status == 401 and self.bearer is not None:
            self.refused(None, headers)
        elif not self._endpoint.done():
            self._endpoint.set_exception(
                UpstreamLostError(UPSTREAM_UNAVAILABLE, message, was_sent=False, status=status)
            )

    def refused(self, ticket: TransportRequest | None, headers: dict[bytes, bytes]) -> None:
        """The credentials were refused: this link has none but those that it began with. The next
        one may have others, and a call that was refused can be sent there."""
        assert self.bearer is not None

        def settle(error: InterlockError | None) -> None:
            message = f"{self.label} wants other credentials." if error is None else error.message
            if ticket is not None and ticket.is_open:
                ticket.fail(UPSTREAM_LOST, message, sent=error is not None, status=401)
            gone = UpstreamLostError(UPSTREAM_UNAVAILABLE, message, was_sent=False, status=401)
            if not self._endpoint.done():
                self._endpoint.set_exception(gone)
            else:
                self.failed(gone.failure, message, sent=False)

        self.bearer.refused(401, headers.get(b"www-authenticate", b""), self._line, settle)

    def opened(self, headers: dict[bytes, bytes]) -> None:
        """The endpoint comes as the first event."""

    def chunk(self, data: bytes) -> None:
        try:
            self._take(self._events.feed(data))
        except OversizeEvent as exc:
            # Whose answer it was cannot be seen: that call runs into its deadline.
            self._take(exc.events)

    def _take(self, events: list[SseEvent]) -> None:
        for event in events:
            if event.event == "endpoint" and not self._endpoint.done():
                self._named(event.data)
            elif event.event == "message" and event.data:
                self.receiver.deliver(event.data, None)

    def _named(self, endpoint: bytes) -> None:
        try:
            target = Origin(urljoin(self._url, endpoint.decode("utf-8", "replace")))
            elsewhere = not target.same_place(self._origin)
        except ValueError:
            self.failed(
                UPSTREAM_PROTOCOL, f"{self.label} named an endpoint that is no address.", sent=False
            )
            return
        if elsewhere:
            self.failed(
                UPSTREAM_PROTOCOL,
                f"{self.label} named an endpoint on another server, which is refused.",
                sent=False,
            )
            return
        self._endpoint.set_result(target.path.encode())

    def ended(self) -> None:
        self.failed(UPSTREAM_LOST, f"{self.label} ended its event stream.", sent=True)

    def failed(self, failure: Failure, message: str, *, sent: bool) -> None:
        if not self._endpoint.done():
            self._endpoint.set_exception(InterlockError(failure, message))
        elif not self._lost:
            self._lost = True
            self.receiver.lost(message)

    # -- Link

    def send(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        if self._lost:
            ticket.fail(UPSTREAM_LOST, f"{self.label} is not connected.", sent=False)
            return
        ticket.carrier = posted = _Posted(self, ticket)
        self._pool.send(self._request(payload), posted)

    def send_open(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        self.send(ticket, payload, headers)

    def post(self, payload: bytes, headers: bytes) -> None:
        if not self._lost:
            posted, request = _Posted(self, None), self._request(payload)
            if not self._pool.send_if_free(request, posted):
                self._asides.send(request, posted)

    def _request(self, payload: bytes) -> bytes:
        return b"%bContent-Length: %d\r\n\r\n%b" % (self._post_head, len(payload), payload)

    async def hand_over(self, payload: bytes) -> None:
        taken = DiscardedReply()
        self._asides.send(self._request(payload), taken)
        await taken.done

    def drop(self, ticket: TransportRequest) -> None:
        """Once sent, its answer comes on the stream with an id that nobody waits for."""
        posted = ticket.carrier
        if isinstance(posted, _Posted) and posted.connection is None:
            self._pool.withdraw(posted)

    async def close(self) -> None:
        self._lost = True
        await self._stream.close()
        await self._asides.close()
        await self._pool.close()
