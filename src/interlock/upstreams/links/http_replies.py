"""What becomes of the answers that come to requests over HTTP.

The link makes one of these for everything that it sends, and hears from it what matters to more
than one request: a session that is gone, a server that cannot be reached.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from interlock.errors import UPSTREAM_LOST, UPSTREAM_PROTOCOL, UPSTREAM_UNAVAILABLE, Failure
from interlock.protocol.plain_stores import plain_stores
from interlock.protocol.sse import OversizeEvent, SseDecoder, SseEvent
from interlock.upstreams.links.http_pool import HttpConnection, HttpPool
from interlock.upstreams.links.http_words import forgot_session, may_come_back, speaks
from interlock.upstreams.links.link import MAX_MESSAGE, Stream, Ticket

if TYPE_CHECKING:
    from interlock.upstreams.links.http import HttpLink

LONGEST_EVENT_ID: Final = 4096
"""A longer one is not sent back."""


@plain_stores
class PostReply(msgspec.Struct, eq=False):
    """The answer of one POST."""

    link: HttpLink
    ticket: Ticket | None
    connection: HttpConnection | None = None
    events: SseDecoder | None = None
    pool: HttpPool | None = None
    """Where it may be sent again with other credentials. None: nobody lends it any."""
    payload: bytes = b""
    lines: bytes = b""
    sent: bytes = b""
    """The credentials that it carried."""
    refused: tuple[int, ...] = ()
    """The statuses by which it was refused so far."""

    def request(self) -> bytes:
        return self.link.request(self.payload, self.lines)

    def whole(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        link, ticket = self.link, self.ticket
        if ticket is None:
            return
        if not link.session_header and b"mcp-session-id" in headers:
            link.session_offered = headers[b"mcp-session-id"].strip()
        if status == 200 or speaks(status, body):
            if status != 200 and link.session_header and forgot_session(status, body, ticket.id):
                link.session_gone(ticket)
                return
            link.receiver.deliver(body, ticket)
            if ticket.open:
                # It answered something else: nobody may be left waiting for nothing.
                kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
                why = f"{link.label} answered something that was not asked."
                if kind and kind != b"application/json":
                    shown = kind.decode("latin-1")[:60]
                    why = f"{link.label} answered with {shown}, which is not MCP; is the URL right?"
                ticket.fail(
                    UPSTREAM_PROTOCOL,
                    why,
                    sent=True,
                    status=status,
                )
                if self.connection is not None:
                    # Answers and requests may have got out of step on it, and would stay so.
                    self.connection.distrust()
            return
        if self.pool is not None and status in (401, 403):
            link.refused(self, status, headers)
        else:
            link.bad_status(ticket, status, headers, body)

    def opened(self, headers: dict[bytes, bytes]) -> None:
        if self.link.session_header == b"" and b"mcp-session-id" in headers:
            self.link.session_offered = headers[b"mcp-session-id"].strip()
        self.events = SseDecoder(MAX_MESSAGE)
        if self.ticket is None and self.connection is not None:
            # Nobody waits for anything on it: it must not keep the connection for long.
            self.connection.answered()

    def chunk(self, data: bytes) -> None:
        assert self.events is not None
        try:
            self._take(self.events.feed(data))
        except OversizeEvent as exc:
            self._take(exc.events)
            self._too_long(exc.message)
        ticket, connection = self.ticket, self.connection
        if ticket is not None and not ticket.open and connection is not None:
            connection.answered()

    def _take(self, events: list[SseEvent]) -> None:
        for event in events:
            if event.data and event.event == "message":
                self.link.receiver.deliver(event.data, self.ticket)

    def _too_long(self, why: str) -> None:
        # It was the answer, or something on the way to it that nobody can do without.
        ticket = self.ticket
        if ticket is not None and ticket.open:
            ticket.fail(UPSTREAM_PROTOCOL, f"{self.link.label}: {why}", sent=True)
            self.link.drop(ticket)

    def ended(self) -> None:
        if self.ticket is not None and self.ticket.open:
            if self.link.resume(self, self.ticket):
                return
            self.ticket.fail(
                UPSTREAM_LOST, f"{self.link.label} ended the stream without an answer.", sent=True
            )

    def failed(self, failure: Failure, message: str, *, sent: bool) -> None:
        if self.ticket is not None:
            if sent and self.link.resume(self, self.ticket):
                return
            self.ticket.fail(failure, message, sent=sent)
        if failure is UPSTREAM_UNAVAILABLE:
            self.link.out_of_reach(message)


class ResumedReply(PostReply, eq=False):
    """The rest of a POST's event stream, as a GET brings it. Its request was sent long ago."""

    after: str = ""
    """The id of the last event that came."""
    attempt: int = 1
    began: float = 0.0
    timer: asyncio.TimerHandle | None = None

    def request(self) -> bytes:
        return self.link.stream_request(self.after)

    def opened(self, headers: dict[bytes, bytes]) -> None:
        """It goes on with the decoder that knows the last id."""

    def whole(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        ticket = self.ticket
        if ticket is None or (may_come_back(status) and self.link.resume(self, ticket)):
            return
        if status in (401, 403) and self.pool is not None:
            self.link.refused(self, status, headers)
            return
        ticket.fail(
            UPSTREAM_LOST,
            f"{self.link.label} ended the stream without an answer, and does not go on with it "
            f"(HTTP {status}).",
            sent=True,
        )

    def failed(self, failure: Failure, message: str, *, sent: bool) -> None:
        ticket = self.ticket
        if ticket is not None and not self.link.resume(self, ticket):
            ticket.fail(UPSTREAM_LOST, message, sent=True)


class StreamReply(PostReply, eq=False):
    """The answer of the GET: a stream of announcements, or a word about why there is none."""

    stream: Stream | None = None

    def request(self) -> bytes:
        return self.link.stream_request("" if self.stream is None else self.stream.last_event_id)

    def whole(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        # Also 404: many servers have no such stream at all. A session that is gone shows itself
        # on the next call.
        if status == 401 and self.pool is not None:
            self.link.refused(self, status, headers)
        elif self.ticket is not None:
            message = f"{self.link.label} offers no event stream (HTTP {status})."
            self.ticket.fail(UPSTREAM_UNAVAILABLE, message, sent=False, status=status)

    def opened(self, headers: dict[bytes, bytes]) -> None:
        self.events = SseDecoder(MAX_MESSAGE)
        if self.stream is not None:
            self.events.last_event_id = self.stream.last_event_id
            self.stream.opened()

    def _note(self) -> None:
        """What is needed to go on where this stream ended."""
        if self.stream is not None and self.events is not None:
            last = self.events.last_event_id or ""
            self.stream.last_event_id = last if len(last) <= LONGEST_EVENT_ID else ""
            if self.events.retry is not None:
                self.stream.retry = self.events.retry / 1000

    def ended(self) -> None:
        self._note()
        if self.ticket is not None:
            message = f"{self.link.label} ended its event stream."
            self.ticket.fail(UPSTREAM_LOST, message, sent=True, status=200)

    def failed(self, failure: Failure, message: str, *, sent: bool) -> None:
        self._note()
        if self.ticket is not None:
            self.ticket.fail(failure, message, sent=sent)
        if failure is UPSTREAM_UNAVAILABLE:
            self.link.out_of_reach(message)

    def _too_long(self, why: str) -> None:
        """Nobody waits for it, so nobody misses it."""
