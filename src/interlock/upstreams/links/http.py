"""A link over streamable HTTP: each request a POST, its answer JSON or an event stream."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final
from urllib.parse import urljoin

import msgspec

from interlock.errors import (
    UPSTREAM_LOST,
    UPSTREAM_PROTOCOL,
    UPSTREAM_UNAVAILABLE,
    Failure,
    InterlockError,
)
from interlock.ports import Clock
from interlock.protocol.sse import OversizeEvent, SseDecoder, SseEvent
from interlock.upstreams.links.bearer import Bearer, SignInError
from interlock.upstreams.links.http_pool import HttpConnection, HttpPool, Origin
from interlock.upstreams.links.link import MAX_MESSAGE, NobodyYet, Receiver, Ticket

SESSION_GONE: Final = "the server no longer knows the session"
_FAREWELL: Final = 1.0
_LAST_ANSWERS: Final = 0.5
"""How long calls under way may still be answered after one heard that the session is gone."""
_STREAM_CONNECTIONS: Final = 8
"""Connections beside the pool's limit, for streams that stay open."""


class _Reply(msgspec.Struct, eq=False):
    """The answer of one POST."""

    link: HttpLink
    ticket: Ticket | None
    connection: HttpConnection | None = None
    events: SseDecoder | None = None

    def whole(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        link, ticket = self.link, self.ticket
        if ticket is None:
            return
        if link.session_header == b"" and b"mcp-session-id" in headers:
            link.session_offered = headers[b"mcp-session-id"].strip()
        if status == 200 or _speaks(status, body):
            if status != 200 and link.session_header and _forgot_session(status, body, ticket.id):
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
        link.bad_status(ticket, status, headers, body)

    def opened(self, headers: dict[bytes, bytes]) -> None:
        if self.link.session_header == b"" and b"mcp-session-id" in headers:
            self.link.session_offered = headers[b"mcp-session-id"].strip()
        self.events = SseDecoder(MAX_MESSAGE)

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
            self.ticket.fail(
                UPSTREAM_LOST, f"{self.link.label} ended the stream without an answer.", sent=True
            )

    def failed(self, failure: Failure, message: str, *, sent: bool) -> None:
        if self.ticket is not None:
            self.ticket.fail(failure, message, sent=sent)
        if failure is UPSTREAM_UNAVAILABLE:
            self.link.unreachable(message)


class _LentReply(_Reply, eq=False):
    """The answer of a request with borrowed credentials: with others it may be sent again."""

    pool: HttpPool | None = None
    payload: bytes = b""
    lines: bytes = b""
    sent: bytes = b""
    """The credentials that it carried."""
    refused: tuple[int, ...] = ()
    """The statuses by which it was refused so far."""

    def request(self) -> bytes:
        return self.link.request(self.payload, self.lines)

    def whole(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        if status in (401, 403):
            self.link.refused(self, status, headers)
        else:
            _Reply.whole(self, status, headers, body)


class _StreamReply(_LentReply, eq=False):
    """The answer of the GET: a stream of announcements, or a word about why there is none."""

    def request(self) -> bytes:
        return self.link.stream_request()

    def whole(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        # Also 404: many servers have no such stream at all. A session that is gone shows itself
        # on the next call.
        if status == 401 and self.pool is not None:
            self.link.refused(self, status, headers)
        elif self.ticket is not None:
            message = f"{self.link.label} offers no event stream (HTTP {status})."
            self.ticket.fail(UPSTREAM_UNAVAILABLE, message, sent=False, status=status)

    def _too_long(self, why: str) -> None:
        """Nobody waits for it, so nobody misses it."""


class Taken:
    """The answer to something that gets none: whatever it is, it was heard."""

    def __init__(self) -> None:
        self.connection: HttpConnection | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _said(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def whole(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        self._said()

    def opened(self, headers: dict[bytes, bytes]) -> None:
        self._said()

    def chunk(self, data: bytes) -> None:
        self._said()

    def ended(self) -> None:
        self._said()

    def failed(self, failure: Failure, message: str, *, sent: bool) -> None:
        self._said()


def header_lines(label: str, headers: Mapping[str, str]) -> bytes:
    """The configured headers as they are sent. Raises InterlockError for one that cannot be."""
    for name, value in headers.items():
        if "\r" in value or "\n" in value or "\0" in value:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"Cannot connect to {label}: the value of its header {name} holds a line end.",
            )
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()


def _speaks(status: int, body: bytes) -> bool:
    """Whether an answer with an error status is a JSON-RPC error all the same."""
    return (
        400 <= status < 500
        and status not in (401, 403)
        and body[:1] == b"{"
        and b'"jsonrpc"' in body
    )


def _forgot_session(status: int, body: bytes, id: int) -> bool:
    """Whether a refusal says that the session is unknown, as a restarted server does.

    404 is the rule. Many say 400 and a sentence. Both speak of no request in particular: an
    error that answers this very request is its answer, whatever its status.
    """
    if b'"id":%d' % id in body.replace(b" ", b""):
        return False
    return status == 404 or (status == 400 and b"ession" in body)


class HttpLink:
    """POSTs to one URL."""

    is_http = True
    receiver: Receiver

    def __init__(
        self,
        label: str,
        url: str,
        headers: Mapping[str, str],
        *,
        connections: int,
        clock: Clock,
        bearer: Bearer | None = None,
    ) -> None:
        self.label = label
        self.url = url
        self._bearer = bearer
        self._line = b"" if bearer is None else bearer.current()
        self._clock = clock
        self._limit = connections
        self._own = header_lines(label, headers)
        self.receiver = NobodyYet()
        self.session_header = b""
        self.session_offered = b""
        self._lost = False
        self._grace = 0.0
        try:
            self._point_at(url)
        except ValueError as exc:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"Cannot connect to {label}: its URL is not valid ({exc})."
            ) from None

    def _point_at(self, url: str) -> None:
        self.url = url
        origin = Origin(url)
        self._pool = HttpPool(self.label, origin, self._limit, self._clock)
        self._streams = HttpPool(self.label, origin, _STREAM_CONNECTIONS, self._clock)
        self._base = (
            (
                f"Host: {origin.authority}\r\nAccept: application/json, text/event-stream\r\n"
            ).encode()
            + self._own
            + self._line
        )
        self._head = (
            b"POST %b HTTP/1.1\r\n" % origin.path.encode()
            + self._base
            + b"Content-Type: application/json\r\n"
        )
        self._path = origin.path.encode()
        self._version = b""
        self._prefix = self._head

    def speak(self, revision: str, *, session: bytes = b"") -> None:
        """Send this revision, and this session id, with everything from now on."""
        self._version = b"MCP-Protocol-Version: %b\r\n" % revision.encode()
        self.session_header = b"Mcp-Session-Id: %b\r\n" % session if session else b""
        self._prefix = self._head + self._version + self.session_header

    def say_nothing(self) -> None:
        """Send neither revision nor session: nothing is agreed yet."""
        self._version = self.session_header = self.session_offered = b""
        self._prefix = self._head

    def _reply(self, ticket: Ticket | None, pool: HttpPool, payload: bytes, lines: bytes) -> _Reply:
        """What becomes of a request that is about to leave, with the credentials of now."""
        if self._bearer is None:
            return _Reply(self, ticket)
        line = self._renew_line()
        return _LentReply(self, ticket, pool=pool, payload=payload, lines=lines, sent=line)

    def _renew_line(self) -> bytes:
        line = b"" if self._bearer is None else self._bearer.current()
        if line is not self._line:
            # They change while the link lives, and stand in the middle of ready-made heads.
            before, self._line = self._line, line
            self._base = self._base.removesuffix(before) + line
            self._head = (
                b"POST %b HTTP/1.1\r\n" % self._path
                + self._base
                + b"Content-Type: application/json\r\n"
            )
            self._prefix = self._head + self._version + self.session_header
        return line

    async def follow(self, location: str) -> bool:
        """Go where a redirect points, if that is the same server."""
        try:
            target = urljoin(self.url, location)
            if not Origin(target).same_place(Origin(self.url)):
                return False
        except ValueError:
            return False
        await self.close()
        self._point_at(target)
        return True

    # -- Link

    def send(self, ticket: Ticket, payload: bytes, headers: bytes) -> None:
        if self._bearer is None:
            ticket.carrier = reply = _Reply(self, ticket)
        else:
            ticket.carrier = reply = self._reply(ticket, self._pool, payload, headers)
        self._pool.send(
            b"%b%bContent-Length: %d\r\n\r\n%b" % (self._prefix, headers, len(payload), payload),
            reply,
        )

    def send_open(self, ticket: Ticket, payload: bytes, headers: bytes) -> None:
        ticket.carrier = reply = self._reply(ticket, self._streams, payload, headers)
        self._streams.send(self.request(payload, headers), reply)

    def open_stream(self, ticket: Ticket) -> None:
        """GET the session's own event stream."""
        pool = None if self._bearer is None else self._streams
        ticket.carrier = reply = _StreamReply(self, ticket, pool=pool, sent=self._renew_line())
        self._streams.send(self.stream_request(), reply)

    def stream_request(self) -> bytes:
        request = b"GET %b HTTP/1.1\r\n" % self._path + self._base
        return request + self._version + self.session_header + b"\r\n"

    async def hand_over(self, payload: bytes) -> None:
        """Send something that gets no answer, and wait until the server has taken it."""
        taken = Taken()
        self._renew_line()
        self._pool.send(self.request(payload, b""), taken)
        await taken.done

    def post(self, payload: bytes, headers: bytes) -> None:
        reply = self._reply(None, self._pool, payload, headers)
        self._pool.send(self.request(payload, headers), reply)

    def request(self, payload: bytes, headers: bytes) -> bytes:
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (
            self._prefix,
            headers,
            len(payload),
            payload,
        )

    def drop(self, ticket: Ticket) -> None:
        reply = ticket.carrier
        if not isinstance(reply, _Reply):
            return
        connection = reply.connection
        if connection is None:
            self._pool.withdraw(reply)
            self._streams.withdraw(reply)
        elif connection.reply is reply:
            # Its answer is still to come, or half read: the connection cannot be used again.
            connection.abort()

    async def close(self) -> None:
        if self.session_header and not self._lost:
            self._renew_line()
            request = b"DELETE %b HTTP/1.1\r\n" % self._path + self._base
            request += self._version + self.session_header + b"\r\n"
            self.session_header = b""
            farewell = Taken()
            # Not in the queue of the calls: there it might wait for ever.
            self._streams.send(request, farewell)
            try:
                await asyncio.wait([farewell.done], timeout=_FAREWELL)
            except asyncio.CancelledError:
                # Nobody has the time any more to say goodbye.
                await asyncio.gather(self._streams.close(), self._pool.close())
                raise
        await self._streams.close()
        await self._pool.close(self._grace)

    # -- what replies report

    def bad_status(
        self, ticket: Ticket, status: int, headers: dict[bytes, bytes], body: bytes
    ) -> None:
        if self.session_header and _forgot_session(status, body, ticket.id):
            self.session_gone(ticket)
            return
        if status in (401, 403):
            ticket.fail(
                UPSTREAM_UNAVAILABLE,
                f"{self.label} refused the node's credentials (HTTP {status}): "
                "check the `headers` of this server.",
                sent=True,
                status=status,
            )
            return
        # Whoever answered has read the request, and may have done what it asks: 409 and 422 often
        # come after the deed. Only these two say that nobody has touched it.
        untouched = status in (421, 425)
        refused = 300 <= status < 500
        location = headers.get(b"location", b"").decode("latin-1")
        ticket.fail(
            UPSTREAM_UNAVAILABLE if refused else UPSTREAM_PROTOCOL,
            f"{self.label} answered with HTTP {status}.",
            sent=not untouched,
            status=status,
            location=location,
        )

    def refused(self, reply: _LentReply, status: int, headers: dict[bytes, bytes]) -> None:
        """Its credentials were refused, which proves that nobody acted on it: with others it may
        be sent again."""
        bearer, pool, ticket = self._bearer, reply.pool, reply.ticket
        assert bearer is not None
        assert pool is not None

        def settle(error: InterlockError | None) -> None:
            if ticket is not None and not ticket.open:
                return
            if error is None and not self._lost:
                reply.sent = self._renew_line()
                reply.connection = None
                pool.send(reply.request(), reply)
            elif error is None:
                if ticket is not None:
                    ticket.fail(UPSTREAM_LOST, f"{self.label} was lost meanwhile.", sent=False)
            else:
                if ticket is not None:
                    ticket.fail(error.failure, error.message, sent=True, status=status)
                if isinstance(error, SignInError) and error.lasting:
                    self.unreachable(error.message)

        if status in reply.refused:
            # Once for each: a token that was missing may turn out to be too narrow, but one that
            # is refused when it is new will not get better.
            why = f"{self.label} goes on refusing the node's credentials (HTTP {status})."
            settle(InterlockError(UPSTREAM_UNAVAILABLE, why))
            return
        reply.refused = (*reply.refused, status)
        bearer.refused(status, headers.get(b"www-authenticate", b""), reply.sent, settle)

    def session_gone(self, ticket: Ticket) -> None:
        # The server said no before it did anything: the call can safely be sent again.
        ticket.fail(UPSTREAM_LOST, f"{self.label}: {SESSION_GONE}.", sent=False, status=404)
        if not self._lost:
            self._lost = True
            self._grace = _LAST_ANSWERS
            self.receiver.retired(SESSION_GONE)
            self._pool.fail_waiting(f"{self.label}: {SESSION_GONE}.")

    def unreachable(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            # Those first who never left: they can be sent again.
            self._pool.fail_waiting(reason)
            self.receiver.lost(reason)
