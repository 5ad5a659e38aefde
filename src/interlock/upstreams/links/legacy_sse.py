"""A link over the HTTP+SSE transport of 2024-11-05: one event stream in, POSTs out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final
from urllib.parse import urljoin

from interlock.errors import (
    UPSTREAM_LOST,
    UPSTREAM_PROTOCOL,
    UPSTREAM_UNAVAILABLE,
    Failure,
    InterlockError,
    ProtocolError,
)
from interlock.ports import Clock
from interlock.protocol.sse import SseDecoder
from interlock.upstreams.links.http_pool import HttpConnection, HttpPool, Origin
from interlock.upstreams.links.link import Receiver, Ticket

_ENDPOINT_WAIT: Final = 10.0


class _Posted:
    """The answer of a POST: 202, the real one comes on the stream."""

    __slots__ = ("_label", "_ticket", "connection")

    def __init__(self, label: str, ticket: Ticket | None) -> None:
        self._label = label
        self._ticket = ticket
        self.connection: HttpConnection | None = None

    def whole(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        if self._ticket is not None and status >= 400:
            self._ticket.fail(
                UPSTREAM_UNAVAILABLE,
                f"{self._label} answered with HTTP {status}.",
                sent=status >= 500,
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


class LegacySseLink:
    """One event stream, and the endpoint that it named."""

    is_http = False
    receiver: Receiver

    def __init__(
        self, label: str, url: str, headers: Mapping[str, str], *, connections: int, clock: Clock
    ) -> None:
        self.label = label
        self.connection: HttpConnection | None = None
        self._url = url
        origin = Origin(url)
        own = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._base = f"Host: {origin.authority}\r\n{own}".encode()
        self._origin = origin
        self._stream = HttpPool(label, origin, 1, clock)
        self._pool = HttpPool(label, origin, connections, clock)
        self._events = SseDecoder()
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
        self.failed(UPSTREAM_UNAVAILABLE, f"{self.label} answered with HTTP {status}.", sent=False)

    def opened(self, headers: dict[bytes, bytes]) -> None:
        """The endpoint comes as the first event."""

    def chunk(self, data: bytes) -> None:
        try:
            events = self._events.feed(data)
        except ProtocolError as exc:
            self.failed(UPSTREAM_PROTOCOL, exc.message, sent=True)
            return
        for event in events:
            if event.event == "endpoint" and not self._endpoint.done():
                target = Origin(urljoin(self._url, event.data.decode("utf-8", "replace")))
                if not target.same_place(self._origin):
                    self.failed(
                        UPSTREAM_PROTOCOL,
                        f"{self.label} named an endpoint on another server, which is refused.",
                        sent=False,
                    )
                    return
                self._endpoint.set_result(target.path.encode())
            elif event.event == "message" and event.data:
                self.receiver.deliver(event.data, None)

    def ended(self) -> None:
        self.failed(UPSTREAM_LOST, f"{self.label} ended its event stream.", sent=True)

    def failed(self, failure: Failure, message: str, *, sent: bool) -> None:
        if not self._endpoint.done():
            self._endpoint.set_exception(InterlockError(failure, message))
        elif not self._lost:
            self._lost = True
            self.receiver.lost(message)

    # -- Link

    def send(self, ticket: Ticket, payload: bytes, headers: bytes) -> None:
        if self._lost:
            ticket.fail(UPSTREAM_LOST, f"{self.label} is not connected.", sent=False)
            return
        self._pool.send(self._request(payload), _Posted(self.label, ticket))

    def send_open(self, ticket: Ticket, payload: bytes, headers: bytes) -> None:
        self.send(ticket, payload, headers)

    def post(self, payload: bytes, headers: bytes) -> None:
        if not self._lost:
            self._pool.send(self._request(payload), _Posted(self.label, None))

    def _request(self, payload: bytes) -> bytes:
        return b"%bContent-Length: %d\r\n\r\n%b" % (self._post_head, len(payload), payload)

    def drop(self, ticket: Ticket) -> None:
        """Nothing to do: the answer comes on the stream with an id that nobody waits for."""

    async def close(self) -> None:
        self._lost = True
        await self._stream.close()
        await self._pool.close()
