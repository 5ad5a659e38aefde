"""A link over streamable HTTP: each request a POST, its answer JSON or an event stream."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Final, Protocol
from urllib.parse import urljoin

import msgspec

from interlock.core.ports import Clock
from interlock.core.upstreams.transports.credentials import BearerCredentials, Settle, SignInError
from interlock.core.upstreams.transports.http_pool import HttpConnection, HttpPool, Origin
from interlock.core.upstreams.transports.transport import (
    MAX_MESSAGE,
    EarlyReceiver,
    TransportReceiver,
    TransportRequest,
    TransportStream,
)
from interlock.errors import (
    UPSTREAM_LOST,
    UPSTREAM_PROTOCOL,
    UPSTREAM_UNAVAILABLE,
    Failure,
    InterlockError,
)
from interlock.primitives.backoff import exponential_delay
from interlock.protocol.fast_structs import plain_stores
from interlock.protocol.mcp import SESSION_REVISIONS
from interlock.protocol.sse import OversizeEvent, SseDecoder, SseEvent

# -- What HTTP answers mean to MCP, and the header lines that a config asks for.

# As servers in use say it: "No valid session ID provided", "Missing session ID", "Session not
# found", "Invalid or missing session", "Unknown session", "Mcp-Session-Id header is required".
_ABOUT_THE_ID: Final = re.compile(
    rb"session[ _-]?id\b|\bsession not found|\b(?:no valid|invalid|unknown|missing) session",
    re.IGNORECASE,
)


class DiscardedReply:
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
        if self.connection is not None:
            # A stream that nobody reads must not keep the connection for long.
            self.connection.answered()

    def chunk(self, data: bytes) -> None:
        """Not a stream that anybody reads."""

    def ended(self) -> None:
        """Not a stream that anybody reads."""

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


def speaks(status: int, body: bytes) -> bool:
    """Whether an answer with an error status is a JSON-RPC error all the same."""
    return (
        400 <= status < 500
        and status not in (401, 403)
        and body[:1] == b"{"
        and b'"jsonrpc"' in body
    )


def forgot_session(status: int, body: bytes, id: int) -> bool:
    """Whether a refusal says that the session is unknown, as a restarted server does.

    404 is the rule. Many say 400 and a sentence about the session's id. Both speak of no request in
    particular: an error that answers this very request is its answer, whatever its status. A 400
    that merely has the word in it may come after the deed, and is no proof.
    """
    if b'"id":%d' % id in body.replace(b" ", b""):
        return False
    return status == 404 or (status == 400 and _ABOUT_THE_ID.search(body) is not None)


def may_come_back(status: int) -> bool:
    """Whether a stream that ended like this is worth another try. 0: it broke, 200: it ended."""
    return status in (0, 200, 408, 409, 425, 429) or (status >= 500 and status != 501)


# -- What becomes of the answers that come to requests over HTTP.
#
# The link makes one of these for everything that it sends, and hears from it what matters to more
# than one request: a session that is gone, a server that cannot be reached.

LONGEST_EVENT_ID: Final = 4096
"""A longer one is not sent back."""


@plain_stores
class PostReply(msgspec.Struct, eq=False):
    """The answer of one POST."""

    link: HttpTransport
    ticket: TransportRequest | None
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
            if ticket.is_open:
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
        if ticket is not None and not ticket.is_open and connection is not None:
            connection.answered()

    def _take(self, events: list[SseEvent]) -> None:
        for event in events:
            if event.data and event.event == "message":
                self.link.receiver.deliver(event.data, self.ticket)

    def _too_long(self, why: str) -> None:
        # It was the answer, or something on the way to it that nobody can do without.
        ticket = self.ticket
        if ticket is not None and ticket.is_open:
            ticket.fail(UPSTREAM_PROTOCOL, f"{self.link.label}: {why}", sent=True)
            self.link.drop(ticket)

    def ended(self) -> None:
        if self.ticket is not None and self.ticket.is_open:
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

    stream: TransportStream | None = None

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


SESSION_GONE: Final = "the server no longer knows the session"
_FAREWELL: Final = 1.0
_LAST_ANSWERS: Final = 0.5
"""How long calls under way may still be answered after one heard that the session is gone."""
_STREAM_CONNECTIONS: Final = 8
"""Connections beside the pool's limit, for streams that stay open."""
_ASIDE_CONNECTIONS: Final = 8
"""Connections for what must not wait behind calls: answers to the server's own questions, which
those very calls may be waiting for, and notifications."""
_TAKEN_WITHIN: Final = 30.0
"""How long a server may leave one of these without a word and keep its connection."""
RESUME_AFTER: Final = 1.0
"""The wait before a broken stream is taken up again, when the server names none."""
_RESUME_SOONEST: Final = 0.05
_RESUME_LATEST: Final = 30.0
_MOST_RESUMPTIONS: Final = 5
"""So often in a row may a stream be taken up again and bring nothing."""
_LASTING: Final = 5.0
"""A stream that was open for so many seconds was not taken up in vain."""


class HttpTransport:
    """POSTs to one URL."""

    is_http = True
    receiver: TransportReceiver

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
        self.url = url
        self._bearer = bearer
        self._line = b"" if bearer is None else bearer.current()
        self._clock = clock
        self._limit = connections
        self._own = header_lines(label, headers)
        self.receiver = EarlyReceiver()
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
        streams = _STREAM_CONNECTIONS + self._limit
        self._streams = HttpPool(self.label, origin, streams, self._clock)
        self._asides = HttpPool(self.label, origin, _ASIDE_CONNECTIONS, self._clock)
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
        self._resumes = False
        self._prefix = self._head

    def speak(self, revision: str, *, session: bytes = b"") -> None:
        """Send this revision, and this session id, with everything from now on."""
        self._version = b"MCP-Protocol-Version: %b\r\n" % revision.encode()
        self._resumes = revision in SESSION_REVISIONS
        self.session_header = b"Mcp-Session-Id: %b\r\n" % session if session else b""
        self._prefix = self._head + self._version + self.session_header

    def say_nothing(self) -> None:
        """Send neither revision nor session: nothing is agreed yet."""
        self._version = self.session_header = self.session_offered = b""
        self._resumes = False
        self._prefix = self._head

    def _reply(
        self, ticket: TransportRequest | None, pool: HttpPool, payload: bytes, lines: bytes
    ) -> PostReply:
        """What becomes of a request that is about to leave, with the credentials of now."""
        if self._bearer is None:
            return PostReply(self, ticket)
        line = self._renew_line()
        return PostReply(self, ticket, pool=pool, payload=payload, lines=lines, sent=line)

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

    def send(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        bearer = self._bearer
        if bearer is None:
            ticket.carrier = reply = PostReply(self, ticket)
        elif bearer.idle and not self._line:
            # As good as none, and this is where every call passes.
            ticket.carrier = reply = PostReply(
                self, ticket, None, None, self._pool, payload, headers
            )
        else:
            ticket.carrier = reply = self._reply(ticket, self._pool, payload, headers)
        self._pool.send(
            b"%b%bContent-Length: %d\r\n\r\n%b" % (self._prefix, headers, len(payload), payload),
            reply,
        )

    def send_open(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        ticket.carrier = reply = self._reply(ticket, self._streams, payload, headers)
        self._streams.send(self.request(payload, headers), reply)

    def open_stream(self, stream: TransportStream) -> bool:
        """GET the session's own event stream, from where it was left."""
        pool = None if self._bearer is None else self._streams
        line = self._renew_line()
        stream.carrier = reply = StreamReply(self, stream, pool=pool, sent=line, stream=stream)
        self._streams.send(reply.request(), reply)
        return True

    def stream_request(self, after: str = "") -> bytes:
        request = b"GET %b HTTP/1.1\r\n" % self._path + self._base
        if after:
            request += b"Last-Event-ID: %b\r\n" % after.encode()
        return request + self._version + self.session_header + b"\r\n"

    async def hand_over(self, payload: bytes) -> None:
        taken = DiscardedReply()
        self._renew_line()
        self._asides.send(self.request(payload, b""), taken)
        await taken.done

    def post(self, payload: bytes, headers: bytes) -> None:
        reply = self._reply(None, self._asides, payload, headers)
        request = self.request(payload, headers)
        if not self._pool.send_if_free(request, reply):
            self._asides.send(request, reply)
        asyncio.get_running_loop().call_later(_TAKEN_WITHIN, self._see_taken, reply)

    def _see_taken(self, reply: PostReply) -> None:
        if self._asides.has_waiting(reply):
            # Its turn comes when those before it have been given up.
            asyncio.get_running_loop().call_later(_TAKEN_WITHIN, self._see_taken, reply)
        else:
            self._give_up(reply)

    def _give_up(self, reply: PostReply) -> None:
        """Let go of what carries this request, wherever it is."""
        connection = reply.connection
        if connection is None:
            self._pool.withdraw(reply)
            self._streams.withdraw(reply)
        elif connection.reply is reply:
            # Its answer is still to come, or half read: the connection cannot be used again.
            connection.abort()

    def request(self, payload: bytes, headers: bytes) -> bytes:
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (
            self._prefix,
            headers,
            len(payload),
            payload,
        )

    def drop(self, ticket: TransportRequest) -> None:
        reply = ticket.carrier
        if not isinstance(reply, PostReply):
            return
        if isinstance(reply, ResumedReply) and reply.timer is not None:
            reply.timer.cancel()
        self._give_up(reply)

    async def close(self) -> None:
        if self.session_header and not self._lost:
            self._renew_line()
            request = b"DELETE %b HTTP/1.1\r\n" % self._path + self._base
            request += self._version + self.session_header + b"\r\n"
            self.session_header = b""
            farewell = DiscardedReply()
            # Not in the queue of the calls: there it might wait for ever.
            self._asides.send(request, farewell)
            try:
                await asyncio.wait([farewell.done], timeout=_FAREWELL)
            except asyncio.CancelledError:
                # Nobody has the time any more to say goodbye.
                await asyncio.gather(
                    self._asides.close(), self._streams.close(), self._pool.close()
                )
                raise
        await self._asides.close()
        await self._streams.close()
        await self._pool.close(self._grace)

    # -- what replies report

    def resume(self, broken: PostReply, ticket: TransportRequest) -> bool:
        """Take up a stream again that ended before its answer came, if the server said how.

        Servers of sessions end a stream on purpose too, rather than keep it open for long. The
        request itself is never sent again.
        """
        events = broken.events
        after = "" if events is None else events.last_event_id
        if (
            events is None
            or not after
            or not self._resumes
            or self._lost
            or not ticket.is_open
            or len(after) > LONGEST_EVENT_ID
        ):
            return False
        attempt = 1
        if isinstance(broken, ResumedReply) and after == broken.after:
            lasted = self._clock() - broken.began if broken.connection is not None else 0.0
            attempt = 1 if lasted > _LASTING else broken.attempt + 1
        if attempt > _MOST_RESUMPTIONS:
            return False
        wait = RESUME_AFTER if events.retry is None else events.retry / 1000
        wait = exponential_delay(attempt - 1, max(wait, _RESUME_SOONEST), _RESUME_LATEST)
        pool = None if self._bearer is None else self._streams
        rest = SseDecoder(MAX_MESSAGE)
        rest.last_event_id, rest.retry = after, events.retry
        reply = ResumedReply(self, ticket, events=rest, pool=pool, after=after, attempt=attempt)
        ticket.carrier = reply
        reply.timer = asyncio.get_running_loop().call_later(wait, self._take_up, reply)
        if not isinstance(broken, ResumedReply):
            self.receiver.interrupted(ticket)
        return True

    def _take_up(self, reply: ResumedReply) -> None:
        if reply.ticket is not None and reply.ticket.is_open:
            reply.sent = self._renew_line()
            reply.began = self._clock()
            self._streams.send(reply.request(), reply)

    def bad_status(
        self, ticket: TransportRequest, status: int, headers: dict[bytes, bytes], body: bytes
    ) -> None:
        if self.session_header and forgot_session(status, body, ticket.id):
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

    def refused(self, reply: PostReply, status: int, headers: dict[bytes, bytes]) -> None:
        """Its credentials were refused, which proves that nobody acted on it: with others it may
        be sent again."""
        bearer, pool, ticket = self._bearer, reply.pool, reply.ticket
        assert bearer is not None
        assert pool is not None
        # The rest of a stream was asked for then; its own request has long been there.
        gone = isinstance(reply, ResumedReply)

        def settle(error: InterlockError | None) -> None:
            if ticket is not None and not ticket.is_open:
                return
            if error is None and not self._lost:
                reply.sent = self._renew_line()
                reply.connection = None
                pool.send(reply.request(), reply)
            elif error is None:
                if ticket is not None:
                    ticket.fail(UPSTREAM_LOST, f"{self.label} was lost meanwhile.", sent=gone)
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

    def session_gone(self, ticket: TransportRequest) -> None:
        # The server said no before it did anything: the call can safely be sent again.
        ticket.fail(UPSTREAM_LOST, f"{self.label}: {SESSION_GONE}.", sent=False, status=404)
        if not self._lost:
            self._lost = True
            self._grace = _LAST_ANSWERS
            self.receiver.retired(SESSION_GONE)
            self._pool.fail_waiting(f"{self.label}: {SESSION_GONE}.")

    def out_of_reach(self, reason: str) -> None:
        """A connection could not be made. What the calls have may be good all the same."""
        if not self._pool.connected:
            self.unreachable(reason)

    def unreachable(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            # Those first who never left: they can be sent again.
            self._pool.fail_waiting(reason)
            self.receiver.lost(reason)


# -- A link over streamable HTTP on which every call has its own token.
#
# What the node itself wants to know (which tools there are) carries a token of the node. The two
# are never on one request.

LINE: Final = b"Authorization: Bearer "


class HeaderSource(Protocol):
    """Whoever gives the node's own header line."""

    def own(self) -> bytes: ...


def as_header(token: str) -> bytes:
    """A token as a header line."""
    return b"%b%b\r\n" % (LINE, token.encode())


class _Own:
    """The node's own credentials there. They are renewed in time, so another try is of no use."""

    idle = False

    def __init__(self, label: str, own: Callable[[], bytes]) -> None:
        self._label = label
        self.current = own

    def refused(self, status: int, challenge: bytes, sent: bytes, settle: Settle) -> None:
        settle(InterlockError(UPSTREAM_UNAVAILABLE, _refusal(self._label, status)))


class HopTokenTransport(HttpTransport):
    """POSTs to one URL, each with the token of its caller."""

    def __init__(
        self,
        label: str,
        url: str,
        headers: Mapping[str, str],
        *,
        connections: int,
        clock: Clock,
        stamp: HeaderSource,
    ) -> None:
        super().__init__(
            label,
            url,
            headers,
            connections=connections,
            clock=clock,
            bearer=_Own(label, stamp.own),
        )
        self._cut: tuple[bytes, bytes] = (b"", b"")
        """The head with the node's own line in it, and the same without it."""

    def send(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        if not headers.startswith(LINE):
            super().send(ticket, payload, headers)
            return
        # Nobody lends it other credentials when these are refused.
        ticket.carrier = reply = PostReply(self, ticket)
        self._pool.send(
            b"%b%bContent-Length: %d\r\n\r\n%b" % (self._bare(), headers, len(payload), payload),
            reply,
        )

    def bad_status(
        self, ticket: TransportRequest, status: int, headers: dict[bytes, bytes], body: bytes
    ) -> None:
        if status in (401, 403):
            ticket.fail(
                UPSTREAM_UNAVAILABLE, _refusal(self.label, status), sent=True, status=status
            )
        else:
            super().bad_status(ticket, status, headers, body)

    def _bare(self) -> bytes:
        whole, bare = self._cut
        if whole is not self._prefix:
            bare = self._prefix.replace(self._line, b"", 1) if self._line else self._prefix
            self._cut = (self._prefix, bare)
        return bare


def _refusal(label: str, status: int) -> str:
    return (
        f"{label} refused the token that this node made (HTTP {status}): let it trust the keys at "
        "/.well-known/jwks.json, or turn `minted_tokens` off."
    )
