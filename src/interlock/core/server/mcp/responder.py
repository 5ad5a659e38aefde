"""Responses to HTTP clients: complete or as a stream, with pings while a call runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from msgspec import UNSET, Raw

from interlock.core.call import Call, Client, Outcome
from interlock.core.pipeline.admission import MAX_PENDING_IDENTITIES, pending_identities_error
from interlock.core.pipeline.authentication import PendingIdentity
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.ports import Clock
from interlock.core.server.http.exchange import Decide, HttpExchange
from interlock.core.server.http.resource_metadata import Challenges, missing_scopes
from interlock.core.server.mcp.event_streams import ResumableStream
from interlock.core.server.mcp.request_headers import RequestHeaders
from interlock.core.server.mcp.responses import write_error, write_result
from interlock.core.server.mcp.server_info import ServerInfo
from interlock.core.server.mcp.sessions import HttpSession
from interlock.errors import (
    CANCELLED,
    FOREIGN_ORIGIN,
    UNAUTHENTICATED,
    UNKNOWN_SESSION,
    InterlockError,
)
from interlock.protocol import mcp
from interlock.protocol.jsonrpc import NULL, notification, result_response

QUIET = 15.0
"""After this many seconds without a result the response becomes a stream, which carries pings."""
_STATELESS: Final = mcp.Era.STATELESS


class Responder:
    """Starts the calls of HTTP clients in the pipeline, and writes their outcomes as responses."""

    def __init__(
        self, *, pipeline: Pipeline, server_info: ServerInfo, clock: Clock, challenges: Challenges
    ) -> None:
        self._pipeline = pipeline
        self._server_info = server_info
        self._clock = clock
        self._challenges = challenges
        self.ping_timer: asyncio.TimerHandle | None = None
        """The timer of the pings. None: not started."""
        self._pending_identities: dict[HttpExchange, asyncio.Task[None]] = {}
        # Bound methods, created once instead of for every call.
        self.notification_callback = self.on_notification
        self.done_callback = self._done

    def start(self, exchange: HttpExchange, request_headers: RequestHeaders, call: Call) -> None:
        """Start a call. Its outcome becomes the response to `exchange.request_id`."""
        if request_headers.accepts_stream:
            call.on_notification = self.notification_callback
        call.context = exchange
        call.on_done = self.done_callback
        if self.ping_timer is None:
            self.start_pings()
        self._pipeline.begin(call)

    def start_pings(self) -> None:
        """Start the pings for calls in progress."""
        self.ping_timer = asyncio.get_running_loop().call_later(QUIET / 3, self._keep_alive)

    def reject(
        self, exchange: HttpExchange, id: bytes, error: InterlockError, client: Client | None
    ) -> None:
        """Reject a request that has not become a call.

        If the identity of the caller is still being resolved, the request is served again
        afterwards.

        Args:
            id: the raw id of the request.
            error: the reason.
            client: the client, if known.
        """
        if isinstance(error, PendingIdentity) and exchange not in self._pending_identities:
            if len(self._pending_identities) < MAX_PENDING_IDENTITIES:
                self._resolve_identity(exchange, error, lambda: exchange.head.serve(exchange))
                return
            error = pending_identities_error()
        self._write_rejection(exchange, id, error, client)

    def _write_rejection(
        self, exchange: HttpExchange, id: bytes, error: InterlockError, client: Client | None
    ) -> None:
        status, body = write_error(id, error, client)
        status = self._status(status, error, client)
        exchange.respond(status, body, headers=self._challenge(exchange, error))

    def check(
        self,
        exchange: HttpExchange,
        request_headers: RequestHeaders,
        face: str,
        client: Client,
        decide: Decide,
    ) -> None:
        """Decide from the host, the origin and the token in the head whether the body is read."""

        def reject(rejected: HttpExchange) -> None:
            method = rejected.head.method.decode("latin-1")
            self._pipeline.record_rejection(
                Call(method, face, request_headers.credentials, client), error
            )
            self._write_rejection(rejected, NULL, error, None)

        error: InterlockError
        try:
            if request_headers.rejection is not None:
                raise InterlockError(FOREIGN_ORIGIN, request_headers.rejection)
            self._pipeline.admission.authenticate(request_headers.credentials)
        except PendingIdentity as pending:
            if exchange not in self._pending_identities:
                if len(self._pending_identities) < MAX_PENDING_IDENTITIES:
                    self._resolve_identity(
                        exchange,
                        pending,
                        lambda: self.check(exchange, request_headers, face, client, decide),
                    )
                    return
                error = pending_identities_error()
            else:
                error = pending
        except InterlockError as rejection:
            error = rejection
        else:
            decide(exchange, None)
            return
        decide(exchange, reject)

    def answer(self, exchange: HttpExchange, id: bytes, client: Client, outcome: Outcome) -> None:
        """Write the result of a request that has not become a call."""
        result = write_result(outcome, client, self._server_info.server_info, mcp.TOOLS_CALL)
        exchange.respond_result(id, result)

    def _resolve_identity(
        self, exchange: HttpExchange, pending: PendingIdentity, retry: Callable[[], None]
    ) -> None:
        """Resolve the identity of the caller, and then call `retry`."""

        async def resolve_and_retry() -> None:
            try:
                await pending.resolve()
                if not exchange.done:
                    retry()
            finally:
                del self._pending_identities[exchange]

        self._pending_identities[exchange] = asyncio.get_running_loop().create_task(
            resolve_and_retry(), name="pending identity"
        )

    def _challenge(self, exchange: HttpExchange, error: InterlockError) -> bytes:
        """Return the `WWW-Authenticate` line for a rejection. Empty if no token would help."""
        request_headers = exchange.head.request_headers
        has_token = (
            isinstance(request_headers, RequestHeaders)
            and request_headers.credentials.bearer is not None
        )
        value = self._challenges.challenge(error, has_token=has_token)
        return b"" if value is None else b"www-authenticate: %b\r\n" % value

    def _status(self, status: int, error: InterlockError, client: Client | None) -> int:
        """Return the HTTP status of an error.

        In the session generation an error is a normal response with status 200. The exceptions are
        errors that end the session, and errors on which a client requests more scopes.
        """
        if client is None or client.era is _STATELESS:
            return status
        if self._challenges.metadata is not None and missing_scopes(error):
            return status
        return status if error.failure in (UNAUTHENTICATED, UNKNOWN_SESSION) else 200

    def stop(self) -> None:
        """Stop the pings and the pending identity checks. The node stops, and no call runs."""
        for task in self._pending_identities.values():
            task.cancel()
        if self.ping_timer is not None:
            self.ping_timer.cancel()
            self.ping_timer = None

    def on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        """Send progress or a log message of a call. The first message turns the response into a
        stream."""
        self.send(cast("HttpExchange", call.context), notification(method, params))

    def send(self, exchange: HttpExchange, payload: bytes) -> None:
        """Send a message that is not the last one of a response."""
        stream = self.open(exchange)
        if stream is not None:
            stream.send(payload)
        else:
            exchange.event(payload)

    @staticmethod
    def open(exchange: HttpExchange) -> ResumableStream | None:
        """Turn a response into a stream. In a session the stream is resumable."""
        session: HttpSession | None = exchange.session
        if session is None:
            exchange.open_stream()
            return None
        return session.streams.open_request_stream(exchange)

    @staticmethod
    def finish(exchange: HttpExchange, payload: bytes | None) -> None:
        """Send the last message, if any, of a response that became a stream, and end the stream."""
        stream: ResumableStream | None = exchange.stream
        if stream is not None:
            stream.finish(payload)
            return
        if payload is not None:
            exchange.event(payload)
        exchange.end_stream()

    def _must_stream(self, call: Call, exchange: HttpExchange) -> bool:
        """Return whether the response to a list is a stream, as from servers that use the official
        SDK. A client of a transparent node must not see a difference from such a server."""
        request_headers = exchange.head.request_headers
        return (
            self._pipeline.transparent_upstream is not None
            and call.method in mcp.LIST_METHODS
            and request_headers is not None
            and request_headers.accepts_stream
        )

    def _done(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        exchange = call.context
        if TYPE_CHECKING:  # At run time the assertion would slow down every call.
            assert isinstance(exchange, HttpExchange)
        session, id, client = exchange.session, exchange.request_id, call.client
        if session is not None:
            session.calls.pop(id, None)
        if outcome is not None:
            try:
                result = outcome.result
                era, summary = client.era, outcome.summary
                # A result that has the client's format already is sent unchanged.
                if outcome.era is not era or (
                    summary is not None
                    and (
                        summary.meta is not UNSET or (era is _STATELESS and not summary.result_type)
                    )
                ):
                    result = write_result(
                        outcome, client, self._server_info.server_info, call.method
                    )
                if summary is None and session is not None and self._must_stream(call, exchange):
                    self.open(exchange)
                if not exchange.streaming:
                    exchange.respond_result(id, result)
                else:
                    self.finish(exchange, result_response(id, result))
                return
            except InterlockError as unwritable:
                error = unwritable
        assert error is not None
        if error.failure is CANCELLED:
            # A cancelled request gets no response, but its connection must end.
            exchange.open_stream()
            self.finish(exchange, None)
            return
        status, body = write_error(id, error, client)
        status = self._status(status, error, client)
        if exchange.streaming:
            self.finish(exchange, body)
        elif status in (401, 403):
            exchange.respond(status, body, headers=self._challenge(exchange, error))
        else:
            exchange.respond(status, body)

    def _keep_alive(self) -> None:
        """Ping the clients of long calls, so that no proxy closes their connections."""
        self.ping_timer = None
        now = self._clock()
        has_calls = bool(self._pipeline.admission.pending_identities)
        for call in list(self._pipeline.running_calls()):
            has_calls = True
            # The calls are ordered by start time, so the first recent call ends the search.
            if now - call.started_at < QUIET:
                break
            exchange = call.context
            if isinstance(exchange, HttpExchange):
                self._ping(exchange)
        if has_calls:
            self.start_pings()

    def _ping(self, exchange: HttpExchange) -> None:
        request_headers = exchange.head.request_headers
        if exchange.done and exchange.stream is None:
            return
        if isinstance(request_headers, RequestHeaders) and request_headers.accepts_stream:
            stream = self.open(exchange)
            if stream is not None:
                stream.ping()
            else:
                exchange.ping()
