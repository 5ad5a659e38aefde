"""A transport over streamable HTTP: each request is a POST, its response JSON or an event stream.

Specification: MCP 2025-11-25, "Transports", and the draft of the stateless generation.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Final, Protocol
from urllib.parse import urljoin

import msgspec

from interlock.core.ports import Clock
from interlock.core.upstreams.transports.credentials import (
    BearerCredentials,
    OnCredentialsResult,
    SignInError,
)
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

# -- What HTTP responses mean for MCP, and configured header lines.

# Messages of servers in use: "No valid session ID provided", "Missing session ID", "Session not
# found", "Invalid or missing session", "Unknown session", "Mcp-Session-Id header is required".
_SESSION_ID_MESSAGE: Final = re.compile(
    rb"session[ _-]?id\b|\bsession not found|\b(?:no valid|invalid|unknown|missing) session",
    re.IGNORECASE,
)


class DiscardedReply:
    """The response to a message that expects none. Any response means that it arrived."""

    def __init__(self) -> None:
        self.connection: HttpConnection | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def on_response(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        self._finish()

    def on_stream_start(self, headers: dict[bytes, bytes]) -> None:
        self._finish()
        if self.connection is not None:
            # An unread stream must not occupy the connection for long.
            self.connection.on_stream_response()

    def on_stream_data(self, data: bytes) -> None:
        """Ignore the stream."""

    def on_stream_end(self) -> None:
        """Ignore the stream."""

    def on_failure(self, failure: Failure, message: str, *, was_sent: bool) -> None:
        self._finish()


def header_lines(label: str, headers: Mapping[str, str]) -> bytes:
    """Return the configured headers as lines. Raises InterlockError for an invalid value."""
    for name, value in headers.items():
        if "\r" in value or "\n" in value or "\0" in value:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"Cannot connect to {label}: the value of the header {name} has a line break. "
                "Remove it in `headers` of this server.",
            )
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()


def is_json_rpc_error(status: int, body: bytes) -> bool:
    """Return whether a response with an error status is nevertheless a JSON-RPC error."""
    return (
        400 <= status < 500
        and status not in (401, 403)
        and body[:1] == b"{"
        and b'"jsonrpc"' in body
    )


def forgot_session(status: int, body: bytes, id: int) -> bool:
    """Return whether a response says that the session is unknown, as a restarted server does.

    The specification says 404. Many servers send 400 and a sentence about the session id. Both are
    about no request in particular: an error with the id of this request is its response, whatever
    the status. A 400 that only contains the word "session" may come after the execution, and is no
    proof.
    """
    if b'"id":%d' % id in body.replace(b" ", b""):
        return False
    return status == 404 or (status == 400 and _SESSION_ID_MESSAGE.search(body) is not None)


def can_retry_stream(status: int) -> bool:
    """Return whether to reopen a stream that ended with this status. 0: it broke, 200: it ended."""
    return status in (0, 200, 408, 409, 425, 429) or (status >= 500 and status != 501)


# -- Responses to HTTP requests.
#
# The transport creates one object of these classes for each message it sends. They report what
# concerns more than one request: a lost session, an unreachable server.

MAX_EVENT_ID_LENGTH: Final = 4096
"""Longer event ids are not sent back."""


@plain_stores
class PostReply(msgspec.Struct, eq=False):
    """The response to one POST."""

    transport: HttpTransport
    request: TransportRequest | None
    connection: HttpConnection | None = None
    events: SseDecoder | None = None
    pool: HttpPool | None = None
    """The pool that sends the request again with other credentials. None: it is not retried."""
    payload: bytes = b""
    lines: bytes = b""
    sent_line: bytes = b""
    """The `Authorization` line that was sent."""
    rejected_statuses: tuple[int, ...] = ()
    """The statuses (401, 403) with which it was rejected so far."""

    def encode_request(self) -> bytes:
        return self.transport.encode_request(self.payload, self.lines)

    def on_response(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        transport, request = self.transport, self.request
        if request is None:
            return
        if not transport.session_header and b"mcp-session-id" in headers:
            transport.offered_session_id = headers[b"mcp-session-id"].strip()
        if status == 200 or is_json_rpc_error(status, body):
            if (
                status != 200
                and transport.session_header
                and forgot_session(status, body, request.id)
            ):
                transport.on_session_lost(request)
                return
            transport.receiver.deliver(body, request)
            if request.is_open:
                # The body was not the response. The request must not stay pending.
                content_type = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
                message = f"{transport.label} sent a response that does not match the request."
                if content_type and content_type != b"application/json":
                    content_type_text = content_type.decode("latin-1")[:60]
                    message = (
                        f"{transport.label} responded with {content_type_text}, which is "
                        "not MCP. Check `url`."
                    )
                request.fail(
                    UPSTREAM_PROTOCOL,
                    message,
                    was_sent=True,
                    status=status,
                )
                if self.connection is not None:
                    # Responses and requests on this connection may be out of step from now on.
                    self.connection.fail_out_of_step()
            return
        if self.pool is not None and status in (401, 403):
            transport.on_rejected(self, status, headers)
        else:
            transport.on_error_status(request, status, headers, body)

    def on_stream_start(self, headers: dict[bytes, bytes]) -> None:
        if self.transport.session_header == b"" and b"mcp-session-id" in headers:
            self.transport.offered_session_id = headers[b"mcp-session-id"].strip()
        self.events = SseDecoder(MAX_MESSAGE)
        if self.request is None and self.connection is not None:
            # Nothing awaits this stream, so it must not occupy the connection for long.
            self.connection.on_stream_response()

    def on_stream_data(self, data: bytes) -> None:
        assert self.events is not None
        try:
            self._deliver_events(self.events.feed(data))
        except OversizeEvent as exc:
            self._deliver_events(exc.events)
            self._on_oversized_event(exc.message)
        request, connection = self.request, self.connection
        if request is not None and not request.is_open and connection is not None:
            connection.on_stream_response()

    def _deliver_events(self, events: list[SseEvent]) -> None:
        for event in events:
            if event.data and event.event == "message":
                self.transport.receiver.deliver(event.data, self.request)

    def _on_oversized_event(self, reason: str) -> None:
        # The event was the response, or a message that cannot be skipped.
        request = self.request
        if request is not None and request.is_open:
            request.fail(UPSTREAM_PROTOCOL, f"{self.transport.label}: {reason}", was_sent=True)
            self.transport.remove_request(request)

    def on_stream_end(self) -> None:
        if self.request is not None and self.request.is_open:
            if self.transport.resume(self, self.request):
                return
            self.request.fail(
                UPSTREAM_LOST,
                f"{self.transport.label} ended the stream without a response.",
                was_sent=True,
            )

    def on_failure(self, failure: Failure, message: str, *, was_sent: bool) -> None:
        if self.request is not None:
            if was_sent and self.transport.resume(self, self.request):
                return
            self.request.fail(failure, message, was_sent=was_sent)
        if failure is UPSTREAM_UNAVAILABLE:
            self.transport.on_connect_failed(message)


class ResumedReply(PostReply, eq=False):
    """The rest of a POST's event stream, from a GET. The request itself was sent before."""

    after: str = ""
    """The id of the last event that was received."""
    attempt: int = 1
    began: float = 0.0
    timer: asyncio.TimerHandle | None = None

    def encode_request(self) -> bytes:
        return self.transport.stream_request(self.after)

    def on_stream_start(self, headers: dict[bytes, bytes]) -> None:
        """Keep the decoder, which knows the last event id."""

    def on_response(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        request = self.request
        if request is None or (can_retry_stream(status) and self.transport.resume(self, request)):
            return
        if status in (401, 403) and self.pool is not None:
            self.transport.on_rejected(self, status, headers)
            return
        request.fail(
            UPSTREAM_LOST,
            f"{self.transport.label} ended the stream without a response and does not resume it "
            f"(HTTP {status}).",
            was_sent=True,
        )

    def on_failure(self, failure: Failure, message: str, *, was_sent: bool) -> None:
        request = self.request
        if request is not None and not self.transport.resume(self, request):
            request.fail(UPSTREAM_LOST, message, was_sent=True)


class StreamReply(PostReply, eq=False):
    """The response to the GET: a stream of notifications, or an error status."""

    stream: TransportStream | None = None

    def encode_request(self) -> bytes:
        return self.transport.stream_request(
            "" if self.stream is None else self.stream.last_event_id
        )

    def on_response(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        # Also for 404: many servers have no such stream. A lost session is noticed by the next
        # call.
        if status == 401 and self.pool is not None:
            self.transport.on_rejected(self, status, headers)
        elif self.request is not None:
            message = f"{self.transport.label} offers no event stream (HTTP {status})."
            self.request.fail(UPSTREAM_UNAVAILABLE, message, was_sent=False, status=status)

    def on_stream_start(self, headers: dict[bytes, bytes]) -> None:
        self.events = SseDecoder(MAX_MESSAGE)
        if self.stream is not None:
            self.events.last_event_id = self.stream.last_event_id
            self.stream.on_open()

    def _save_position(self) -> None:
        """Save what is needed to resume the stream."""
        if self.stream is not None and self.events is not None:
            last = self.events.last_event_id or ""
            self.stream.last_event_id = last if len(last) <= MAX_EVENT_ID_LENGTH else ""
            if self.events.retry is not None:
                self.stream.retry = self.events.retry / 1000

    def on_stream_end(self) -> None:
        self._save_position()
        if self.request is not None:
            message = f"{self.transport.label} ended its event stream."
            self.request.fail(UPSTREAM_LOST, message, was_sent=True, status=200)

    def on_failure(self, failure: Failure, message: str, *, was_sent: bool) -> None:
        self._save_position()
        if self.request is not None:
            self.request.fail(failure, message, was_sent=was_sent)
        if failure is UPSTREAM_UNAVAILABLE:
            self.transport.on_connect_failed(message)

    def _on_oversized_event(self, reason: str) -> None:
        """Ignore the event: nothing awaits it."""


SESSION_GONE: Final = "the server no longer knows the session"
_CLOSE_TIMEOUT_SECONDS: Final = 1.0
_CLOSE_GRACE_SECONDS: Final = 0.5
"""The time for which pending calls may complete after a response said that the session is
unknown."""
_STREAM_CONNECTIONS: Final = 8
"""Connections in addition to the pool's limit, for streams that stay open."""
_EXTRA_CONNECTIONS: Final = 8
"""Connections for messages that must not wait behind calls: notifications, and responses to client
requests, for which those very calls may be waiting."""
_POST_TIMEOUT_SECONDS: Final = 30.0
"""The time for which a server may leave such a message without a response and keep the
connection."""
RESUME_DELAY_SECONDS: Final = 1.0
"""The delay before a broken stream is resumed, if the server names none."""
_MIN_RESUME_DELAY_SECONDS: Final = 0.05
_MAX_RESUME_DELAY_SECONDS: Final = 30.0
_MAX_RESUMPTIONS: Final = 5
"""Resumptions in a row that bring no event."""
_STABLE_STREAM_SECONDS: Final = 5.0
"""A stream that was open for this long resets the count of resumptions."""


class HttpTransport:
    """Sends requests to one URL by POST."""

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
        self._bearer_line = b"" if bearer is None else bearer.current()
        self._clock = clock
        self._limit = connections
        self._configured_lines = header_lines(label, headers)
        self.receiver = EarlyReceiver()
        self.session_header = b""
        self.offered_session_id = b""
        self._lost = False
        self._grace = 0.0
        try:
            self._set_url(url)
        except ValueError as exc:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"Cannot connect to {label}: `url` is invalid: {exc}.",
            ) from None

    def _set_url(self, url: str) -> None:
        self.url = url
        origin = Origin(url)
        self._pool = HttpPool(self.label, origin, self._limit, self._clock)
        streams = _STREAM_CONNECTIONS + self._limit
        self._stream_pool = HttpPool(self.label, origin, streams, self._clock)
        self._extra_pool = HttpPool(self.label, origin, _EXTRA_CONNECTIONS, self._clock)
        self._base = (
            (
                f"Host: {origin.authority}\r\nAccept: application/json, text/event-stream\r\n"
            ).encode()
            + self._configured_lines
            + self._bearer_line
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

    def set_protocol_headers(self, revision: str, *, session: bytes = b"") -> None:
        """Send this revision and session id with every message from now on."""
        self._version = b"MCP-Protocol-Version: %b\r\n" % revision.encode()
        self._resumes = revision in SESSION_REVISIONS
        self.session_header = b"Mcp-Session-Id: %b\r\n" % session if session else b""
        self._prefix = self._head + self._version + self.session_header

    def clear_protocol_headers(self) -> None:
        """Send neither revision nor session id, because nothing is negotiated yet."""
        self._version = self.session_header = self.offered_session_id = b""
        self._resumes = False
        self._prefix = self._head

    def _create_reply(
        self, request: TransportRequest | None, pool: HttpPool, payload: bytes, lines: bytes
    ) -> PostReply:
        """Return the reply object of a request that is about to be sent, with credentials."""
        if self._bearer is None:
            return PostReply(self, request)
        bearer_line = self._refresh_bearer_line()
        return PostReply(
            self, request, pool=pool, payload=payload, lines=lines, sent_line=bearer_line
        )

    def _refresh_bearer_line(self) -> bytes:
        bearer_line = b"" if self._bearer is None else self._bearer.current()
        if bearer_line is not self._bearer_line:
            # Credentials change during the life of the transport, inside of prepared heads.
            previous, self._bearer_line = self._bearer_line, bearer_line
            self._base = self._base.removesuffix(previous) + bearer_line
            self._head = (
                b"POST %b HTTP/1.1\r\n" % self._path
                + self._base
                + b"Content-Type: application/json\r\n"
            )
            self._prefix = self._head + self._version + self.session_header
        return bearer_line

    async def follow_redirect(self, location: str) -> bool:
        """Switch to the target of a redirect if it has the same origin."""
        try:
            target = urljoin(self.url, location)
            if not Origin(target).is_same_origin(Origin(self.url)):
                return False
        except ValueError:
            return False
        await self.close()
        self._set_url(target)
        return True

    # -- UpstreamTransport

    def send(self, request: TransportRequest, payload: bytes, headers: bytes) -> None:
        bearer = self._bearer
        if bearer is None:
            request.carrier = reply = PostReply(self, request)
        elif bearer.idle and not self._bearer_line:
            # The same as without credentials, on the path of every call.
            request.carrier = reply = PostReply(
                self, request, None, None, self._pool, payload, headers
            )
        else:
            request.carrier = reply = self._create_reply(request, self._pool, payload, headers)
        self._pool.send(
            b"%b%bContent-Length: %d\r\n\r\n%b" % (self._prefix, headers, len(payload), payload),
            reply,
        )

    def send_long_lived(self, request: TransportRequest, payload: bytes, headers: bytes) -> None:
        request.carrier = reply = self._create_reply(request, self._stream_pool, payload, headers)
        self._stream_pool.send(self.encode_request(payload, headers), reply)

    def open_stream(self, stream: TransportStream) -> bool:
        """GET the event stream of the session, after the last event that was received."""
        pool = None if self._bearer is None else self._stream_pool
        bearer_line = self._refresh_bearer_line()
        stream.carrier = reply = StreamReply(
            self, stream, pool=pool, sent_line=bearer_line, stream=stream
        )
        self._stream_pool.send(reply.encode_request(), reply)
        return True

    def stream_request(self, after: str = "") -> bytes:
        request = b"GET %b HTTP/1.1\r\n" % self._path + self._base
        if after:
            request += b"Last-Event-ID: %b\r\n" % after.encode()
        return request + self._version + self.session_header + b"\r\n"

    async def post_and_wait(self, payload: bytes) -> None:
        reply = DiscardedReply()
        self._refresh_bearer_line()
        self._extra_pool.send(self.encode_request(payload, b""), reply)
        await reply.done

    def post(self, payload: bytes, headers: bytes) -> None:
        reply = self._create_reply(None, self._extra_pool, payload, headers)
        request = self.encode_request(payload, headers)
        if not self._pool.send_if_free(request, reply):
            self._extra_pool.send(request, reply)
        asyncio.get_running_loop().call_later(_POST_TIMEOUT_SECONDS, self._check_post, reply)

    def _check_post(self, reply: PostReply) -> None:
        if self._extra_pool.has_waiting(reply):
            # The limit begins when the messages before it have left the queue.
            asyncio.get_running_loop().call_later(_POST_TIMEOUT_SECONDS, self._check_post, reply)
        else:
            self._release_reply(reply)

    def _release_reply(self, reply: PostReply) -> None:
        """Release what carries this request: the queue or the connection."""
        connection = reply.connection
        if connection is None:
            self._pool.remove_waiting(reply)
            self._stream_pool.remove_waiting(reply)
        elif connection.reply is reply:
            # Its response is outstanding or half read: the connection cannot be reused.
            connection.abort()

    def encode_request(self, payload: bytes, headers: bytes) -> bytes:
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (
            self._prefix,
            headers,
            len(payload),
            payload,
        )

    def remove_request(self, request: TransportRequest) -> None:
        reply = request.carrier
        if not isinstance(reply, PostReply):
            return
        if isinstance(reply, ResumedReply) and reply.timer is not None:
            reply.timer.cancel()
        self._release_reply(reply)

    async def close(self) -> None:
        if self.session_header and not self._lost:
            self._refresh_bearer_line()
            request = b"DELETE %b HTTP/1.1\r\n" % self._path + self._base
            request += self._version + self.session_header + b"\r\n"
            self.session_header = b""
            reply = DiscardedReply()
            # Not in the queue of the calls, where it could wait without a limit.
            self._extra_pool.send(request, reply)
            try:
                await asyncio.wait([reply.done], timeout=_CLOSE_TIMEOUT_SECONDS)
            except asyncio.CancelledError:
                # The node does not wait for the end of the session any more.
                await asyncio.gather(
                    self._extra_pool.close(), self._stream_pool.close(), self._pool.close()
                )
                raise
        await self._extra_pool.close()
        await self._stream_pool.close()
        await self._pool.close(self._grace)

    # -- reports of replies

    def resume(self, broken: PostReply, request: TransportRequest) -> bool:
        """Resume a stream that ended before its response, if the server sent an event id.

        Session servers also end streams on purpose instead of keeping them open. The request itself
        is never sent again.
        """
        events = broken.events
        after = "" if events is None else events.last_event_id
        if (
            events is None
            or not after
            or not self._resumes
            or self._lost
            or not request.is_open
            or len(after) > MAX_EVENT_ID_LENGTH
        ):
            return False
        attempt = 1
        if isinstance(broken, ResumedReply) and after == broken.after:
            duration = self._clock() - broken.began if broken.connection is not None else 0.0
            attempt = 1 if duration > _STABLE_STREAM_SECONDS else broken.attempt + 1
        if attempt > _MAX_RESUMPTIONS:
            return False
        wait = RESUME_DELAY_SECONDS if events.retry is None else events.retry / 1000
        wait = exponential_delay(
            attempt - 1, max(wait, _MIN_RESUME_DELAY_SECONDS), _MAX_RESUME_DELAY_SECONDS
        )
        pool = None if self._bearer is None else self._stream_pool
        decoder = SseDecoder(MAX_MESSAGE)
        decoder.last_event_id, decoder.retry = after, events.retry
        reply = ResumedReply(self, request, events=decoder, pool=pool, after=after, attempt=attempt)
        request.carrier = reply
        reply.timer = asyncio.get_running_loop().call_later(wait, self._send_resumption, reply)
        if not isinstance(broken, ResumedReply):
            self.receiver.on_stream_interrupted(request)
        return True

    def _send_resumption(self, reply: ResumedReply) -> None:
        if reply.request is not None and reply.request.is_open:
            reply.sent_line = self._refresh_bearer_line()
            reply.began = self._clock()
            self._stream_pool.send(reply.encode_request(), reply)

    def on_error_status(
        self, request: TransportRequest, status: int, headers: dict[bytes, bytes], body: bytes
    ) -> None:
        if self.session_header and forgot_session(status, body, request.id):
            self.on_session_lost(request)
            return
        if status in (401, 403):
            request.fail(
                UPSTREAM_UNAVAILABLE,
                f"{self.label} rejected the credentials (HTTP {status}). Check `headers` of this "
                "server.",
                was_sent=True,
                status=status,
            )
            return
        # A server that responds has read the request and may have executed it: 409 and 422 often
        # come after the execution. Only 421 and 425 say that it was not processed.
        is_not_executed = status in (421, 425)
        is_rejected = 300 <= status < 500
        location = headers.get(b"location", b"").decode("latin-1")
        request.fail(
            UPSTREAM_UNAVAILABLE if is_rejected else UPSTREAM_PROTOCOL,
            f"{self.label} responded with HTTP {status}.",
            was_sent=not is_not_executed,
            status=status,
            location=location,
        )

    def on_rejected(self, reply: PostReply, status: int, headers: dict[bytes, bytes]) -> None:
        """Handle rejected credentials. Such a request was not executed, so it may be sent again
        with other credentials."""
        bearer, pool, request = self._bearer, reply.pool, reply.request
        assert bearer is not None
        assert pool is not None
        # A resumption only asks for the rest of a stream: its own request was sent before.
        was_sent = isinstance(reply, ResumedReply)

        def on_result(error: InterlockError | None) -> None:
            if request is not None and not request.is_open:
                return
            if error is None and not self._lost:
                reply.sent_line = self._refresh_bearer_line()
                reply.connection = None
                pool.send(reply.encode_request(), reply)
            elif error is None:
                if request is not None:
                    request.fail(
                        UPSTREAM_LOST, f"{self.label} was lost meanwhile.", was_sent=was_sent
                    )
            else:
                if request is not None:
                    request.fail(error.failure, error.message, was_sent=True, status=status)
                if isinstance(error, SignInError) and error.is_permanent:
                    self.close_unreachable(error.message)

        if status in reply.rejected_statuses:
            # One retry per status: a missing token may turn out to have too few scopes (403), but a
            # new token that is rejected stays rejected.
            message = f"{self.label} rejected new credentials, too (HTTP {status})."
            on_result(InterlockError(UPSTREAM_UNAVAILABLE, message))
            return
        reply.rejected_statuses = (*reply.rejected_statuses, status)
        bearer.on_rejected(
            status, headers.get(b"www-authenticate", b""), reply.sent_line, on_result
        )

    def on_session_lost(self, request: TransportRequest) -> None:
        # The server rejected the request before executing it: the call may be sent again.
        request.fail(UPSTREAM_LOST, f"{self.label}: {SESSION_GONE}.", was_sent=False, status=404)
        if not self._lost:
            self._lost = True
            self._grace = _CLOSE_GRACE_SECONDS
            self.receiver.on_transport_closing(SESSION_GONE)
            self._pool.fail_waiting(f"{self.label}: {SESSION_GONE}.")

    def on_connect_failed(self, reason: str) -> None:
        """Handle a failed connection attempt. Connections of other calls may still work."""
        if not self._pool.connected:
            self.close_unreachable(reason)

    def close_unreachable(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            # First the requests that were never sent: they can be sent again.
            self._pool.fail_waiting(reason)
            self.receiver.on_transport_lost(reason)


# -- A transport over streamable HTTP on which every call has its own token.
#
# Requests of the node itself, such as `tools/list`, carry a token of the node. A request never
# carries both.

BEARER_PREFIX: Final = b"Authorization: Bearer "


class HeaderSource(Protocol):
    """Provides the header line of the node itself."""

    def node_header_line(self) -> bytes: ...


def format_bearer_header(token: str) -> bytes:
    """Return a token as an `Authorization` header line (RFC 6750 §2.1)."""
    return b"%b%b\r\n" % (BEARER_PREFIX, token.encode())


class _NodeCredentials:
    """The node's own token. It is renewed before it expires, so a retry would not help."""

    idle = False

    def __init__(self, label: str, get_line: Callable[[], bytes]) -> None:
        self._label = label
        self.current = get_line

    def on_rejected(
        self, status: int, challenge: bytes, sent: bytes, on_result: OnCredentialsResult
    ) -> None:
        on_result(InterlockError(UPSTREAM_UNAVAILABLE, _rejection_message(self._label, status)))


class HopTokenTransport(HttpTransport):
    """Sends requests to one URL, each with the hop token of its caller."""

    def __init__(
        self,
        label: str,
        url: str,
        headers: Mapping[str, str],
        *,
        connections: int,
        clock: Clock,
        header_source: HeaderSource,
    ) -> None:
        super().__init__(
            label,
            url,
            headers,
            connections=connections,
            clock=clock,
            bearer=_NodeCredentials(label, header_source.node_header_line),
        )
        self._heads: tuple[bytes, bytes] = (b"", b"")
        """The request head with the node's own line, and the same head without it."""

    def send(self, request: TransportRequest, payload: bytes, headers: bytes) -> None:
        if not headers.startswith(BEARER_PREFIX):
            super().send(request, payload, headers)
            return
            # No retry with other credentials.
        request.carrier = reply = PostReply(self, request)
        self._pool.send(
            b"%b%bContent-Length: %d\r\n\r\n%b"
            % (self._head_without_token(), headers, len(payload), payload),
            reply,
        )

    def on_error_status(
        self, request: TransportRequest, status: int, headers: dict[bytes, bytes], body: bytes
    ) -> None:
        if status in (401, 403):
            request.fail(
                UPSTREAM_UNAVAILABLE,
                _rejection_message(self.label, status),
                was_sent=True,
                status=status,
            )
        else:
            super().on_error_status(request, status, headers, body)

    def _head_without_token(self) -> bytes:
        head, stripped = self._heads
        if head is not self._prefix:
            stripped = (
                self._prefix.replace(self._bearer_line, b"", 1)
                if self._bearer_line
                else self._prefix
            )
            self._heads = (self._prefix, stripped)
        return stripped


def _rejection_message(label: str, status: int) -> str:
    return (
        f"{label} rejected the hop token of this node (HTTP {status}). Let it trust the keys at "
        "/.well-known/jwks.json, or turn off `minted_tokens`."
    )
