"""Calls that HTTP clients wait for: answered whole or as a stream, and kept alive until then."""

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
"""After this long without an answer a response becomes a stream, to show that it is alive."""
_STATELESS: Final = mcp.Era.STATELESS


class Responder:
    """Sends calls into the pipeline, and their outcomes back to the client."""

    def __init__(
        self, *, pipeline: Pipeline, hello: ServerInfo, clock: Clock, challenges: Challenges
    ) -> None:
        self._pipeline = pipeline
        self._hello = hello
        self._clock = clock
        self._challenges = challenges
        self.pulse: asyncio.TimerHandle | None = None
        """Shows, from time to time, that the node is alive. None: it has not begun."""
        self._unsettled: dict[HttpExchange, asyncio.Task[None]] = {}
        # Looked up once, and not for every call.
        self.heard = self.hear
        self.over = self._done

    def start(self, exchange: HttpExchange, facts: RequestHeaders, call: Call) -> None:
        """Send the call on its way; `exchange.request_id` is answered when it is over."""
        if facts.accepts_stream:
            call.on_notification = self.heard
        call.context = exchange
        call.on_done = self.over
        if self.pulse is None:
            self.begin_pulse()
        self._pipeline.begin(call)

    def begin_pulse(self) -> None:
        """Calls are under way: from now on they are looked after."""
        self.pulse = asyncio.get_running_loop().call_later(QUIET / 3, self._keep_alive)

    def refuse(
        self, exchange: HttpExchange, id: bytes, error: InterlockError, client: Client | None
    ) -> None:
        """Answer a request that never became a call. `client`: as far as it is known.

        Where only nobody knows yet who it is from, it is served again once somebody does.
        """
        if isinstance(error, PendingIdentity) and exchange not in self._unsettled:
            if len(self._unsettled) < MAX_PENDING_IDENTITIES:
                self._settle(exchange, error, lambda: exchange.head.serve(exchange))
                return
            error = pending_identities_error()
        self._write_refusal(exchange, id, error, client)

    def _write_refusal(
        self, exchange: HttpExchange, id: bytes, error: InterlockError, client: Client | None
    ) -> None:
        status, body = write_error(id, error, client)
        status = self._status(status, error, client)
        exchange.respond(status, body, headers=self._challenge(exchange, error))

    def check(
        self,
        exchange: HttpExchange,
        facts: RequestHeaders,
        face: str,
        client: Client,
        decide: Decide,
    ) -> None:
        """Decide by the head of a request whether its body is read: host, origin and token."""

        def refuse(refused: HttpExchange) -> None:
            verb = refused.head.method.decode("latin-1")
            self._pipeline.record_rejection(Call(verb, face, facts.credentials, client), error)
            self._write_refusal(refused, NULL, error, None)

        error: InterlockError
        try:
            if facts.refusal is not None:
                raise InterlockError(FOREIGN_ORIGIN, facts.refusal)
            self._pipeline.admission.authenticate(facts.credentials)
        except PendingIdentity as unsettled:
            if exchange not in self._unsettled:
                if len(self._unsettled) < MAX_PENDING_IDENTITIES:
                    self._settle(
                        exchange,
                        unsettled,
                        lambda: self.check(exchange, facts, face, client, decide),
                    )
                    return
                error = pending_identities_error()
            else:
                error = unsettled
        except InterlockError as refused:
            error = refused
        else:
            decide(exchange, None)
            return
        decide(exchange, refuse)

    def answer(self, exchange: HttpExchange, id: bytes, client: Client, outcome: Outcome) -> None:
        """Answer a request that never became a call, but has a result all the same."""
        result = write_result(outcome, client, self._hello.server_info, mcp.TOOLS_CALL)
        exchange.respond_result(id, result)

    def _settle(
        self, exchange: HttpExchange, unsettled: PendingIdentity, again: Callable[[], None]
    ) -> None:
        """Find out whose the request is, and then do it `again`."""

        async def settle() -> None:
            try:
                await unsettled.resolve()
                if not exchange.done:
                    again()
            finally:
                del self._unsettled[exchange]

        self._unsettled[exchange] = asyncio.get_running_loop().create_task(
            settle(), name="unsettled"
        )

    def _challenge(self, exchange: HttpExchange, error: InterlockError) -> bytes:
        """The header line that says what would help; empty when nothing would."""
        facts = exchange.head.facts
        shown = isinstance(facts, RequestHeaders) and facts.credentials.bearer is not None
        value = self._challenges.challenge(error, shown=shown)
        return b"" if value is None else b"www-authenticate: %b\r\n" % value

    def _status(self, status: int, error: InterlockError, client: Client | None) -> int:
        """On the session wire an error is an answer like any other, but for those that end it, and
        those with which a client knows to go for more rights."""
        if client is None or client.era is _STATELESS:
            return status
        if self._challenges.metadata is not None and missing_scopes(error):
            return status
        return status if error.failure in (UNAUTHENTICATED, UNKNOWN_SESSION) else 200

    def stop(self) -> None:
        """The node stops: nothing is under way any more."""
        for task in self._unsettled.values():
            task.cancel()
        if self.pulse is not None:
            self.pulse.cancel()
            self.pulse = None

    def hear(self, call: Call, method: str, params: bytes | Raw) -> None:
        """Progress or a log message: it turns a plain answer into a stream, the first time."""
        self.tell(cast("HttpExchange", call.context), notification(method, params))

    def tell(self, exchange: HttpExchange, payload: bytes) -> None:
        """Send a message that is not the last one of an answer."""
        outlet = self.open(exchange)
        if outlet is not None:
            outlet.send(payload)
        else:
            exchange.event(payload)

    @staticmethod
    def open(exchange: HttpExchange) -> ResumableStream | None:
        """Turn an answer into a stream. On a session it is one that can be resumed."""
        session: HttpSession | None = exchange.session
        if session is None:
            exchange.open_stream()
            return None
        return session.outlets.open_for(exchange)

    @staticmethod
    def finish(exchange: HttpExchange, payload: bytes | None) -> None:
        """The last message of an answer that became a stream, when there is one, and its end."""
        outlet: ResumableStream | None = exchange.outlet
        if outlet is not None:
            outlet.finish(payload)
            return
        if payload is not None:
            exchange.event(payload)
        exchange.end_stream()

    def _as_stream(self, call: Call, exchange: HttpExchange) -> bool:
        """Whether a list is answered as servers of the official SDK answer it on this wire: who is
        to take the node for such a server must not see a difference."""
        facts = exchange.head.facts
        return (
            self._pipeline.transparent_upstream is not None
            and call.method in mcp.LIST_METHODS
            and facts is not None
            and facts.accepts_stream
        )

    def _done(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        exchange = call.context
        if TYPE_CHECKING:  # At run time it would cost every call something.
            assert isinstance(exchange, HttpExchange)
        session, id, client = exchange.session, exchange.request_id, call.client
        if session is not None:
            session.calls.pop(id, None)
        if outcome is not None:
            try:
                result = outcome.result
                era, glance = client.era, outcome.summary
                # What is in the client's own words already passes as it is.
                if outcome.era is not era or (
                    glance is not None
                    and (glance.meta is not UNSET or (era is _STATELESS and not glance.result_type))
                ):
                    result = write_result(outcome, client, self._hello.server_info, call.method)
                if glance is None and session is not None and self._as_stream(call, exchange):
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
            # A cancelled request gets no answer; its connection gets an end.
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
        """Keep the connections of long calls from looking dead to whatever stands in between."""
        self.pulse = None
        now = self._clock()
        waiting = bool(self._pipeline.admission.pending_identities)
        for call in list(self._pipeline.running_calls()):
            waiting = True
            # They stand in the order in which they began: the first young one ends the search.
            if now - call.started_at < QUIET:
                break
            exchange = call.context
            if isinstance(exchange, HttpExchange):
                self._show_life(exchange)
        if waiting:
            self.begin_pulse()

    def _show_life(self, exchange: HttpExchange) -> None:
        facts = exchange.head.facts
        if exchange.done and exchange.outlet is None:
            return
        if isinstance(facts, RequestHeaders) and facts.accepts_stream:
            outlet = self.open(exchange)
            if outlet is not None:
                outlet.ping()
            else:
                exchange.ping()
