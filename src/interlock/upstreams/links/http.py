"""A link over streamable HTTP: each request a POST, its answer JSON or an event stream."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final
from urllib.parse import urljoin

from interlock.errors import (
    UPSTREAM_LOST,
    UPSTREAM_PROTOCOL,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
)
from interlock.ports import Clock
from interlock.protocol.mcp import SESSION_REVISIONS
from interlock.protocol.sse import SseDecoder
from interlock.upstreams.links.bearer import Bearer, SignInError
from interlock.upstreams.links.http_pool import HttpPool, Origin
from interlock.upstreams.links.http_replies import (
    LONGEST_EVENT_ID,
    PostReply,
    ResumedReply,
    StreamReply,
)
from interlock.upstreams.links.http_words import Taken, forgot_session, header_lines
from interlock.upstreams.links.link import MAX_MESSAGE, NobodyYet, Receiver, Stream, Ticket

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
        self, ticket: Ticket | None, pool: HttpPool, payload: bytes, lines: bytes
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

    def send(self, ticket: Ticket, payload: bytes, headers: bytes) -> None:
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

    def send_open(self, ticket: Ticket, payload: bytes, headers: bytes) -> None:
        ticket.carrier = reply = self._reply(ticket, self._streams, payload, headers)
        self._streams.send(self.request(payload, headers), reply)

    def open_stream(self, stream: Stream) -> bool:
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
        taken = Taken()
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

    def drop(self, ticket: Ticket) -> None:
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
            farewell = Taken()
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

    def resume(self, broken: PostReply, ticket: Ticket) -> bool:
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
            or not ticket.open
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
        wait = min(max(wait, _RESUME_SOONEST) * 2 ** (attempt - 1), _RESUME_LATEST)
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
        if reply.ticket is not None and reply.ticket.open:
            reply.sent = self._renew_line()
            reply.began = self._clock()
            self._streams.send(reply.request(), reply)

    def bad_status(
        self, ticket: Ticket, status: int, headers: dict[bytes, bytes], body: bytes
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
            if ticket is not None and not ticket.open:
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

    def session_gone(self, ticket: Ticket) -> None:
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
