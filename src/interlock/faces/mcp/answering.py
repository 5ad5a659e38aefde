"""Calls that HTTP clients wait for: answered whole or as a stream, and kept alive until then."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import Raw

from interlock.call import Call, Client, Outcome
from interlock.errors import (
    CANCELLED,
    UNAUTHENTICATED,
    UNKNOWN_SESSION,
    InterlockError,
)
from interlock.faces.http.exchange import HttpExchange
from interlock.faces.mcp.facts import Facts
from interlock.faces.mcp.hello import Hello
from interlock.faces.mcp.writing import write_error, write_result
from interlock.pipeline.pipeline import Pipeline
from interlock.ports import Clock
from interlock.protocol import mcp
from interlock.protocol.jsonrpc import notification, result_response

QUIET = 15.0
"""After this long without an answer a response becomes a stream, to show that it is alive."""
_CHALLENGE: Final = b"www-authenticate: Bearer\r\n"


class Answering:
    """Sends calls into the pipeline, and their outcomes back to the client."""

    def __init__(self, *, pipeline: Pipeline, hello: Hello, clock: Clock) -> None:
        self._pipeline = pipeline
        self._hello = hello
        self._clock = clock
        self._pulse: asyncio.TimerHandle | None = None

    def start(self, exchange: HttpExchange, facts: Facts, call: Call) -> None:
        """Send the call on its way; `exchange.request_id` is answered when it is over."""
        meta = call.meta
        if meta is not None and mcp.META_PROGRESS_TOKEN in meta and facts.accepts_stream:
            quiet = call.client.era is mcp.Era.STATELESS and mcp.META_LOG_LEVEL not in meta

            def hear(call: Call, method: str, params: bytes | Raw) -> None:
                if quiet and method != mcp.PROGRESS:
                    # A stateless client hears what it asked for, and it did not ask for logs.
                    return
                # Progress turns a plain answer into a stream, the first time there is any.
                exchange.open_stream()
                exchange.event(notification(method, params))

            call.on_notification = hear
        call.context = exchange
        call.on_done = self._done
        if self._pulse is None:
            self._pulse = asyncio.get_running_loop().call_later(QUIET / 3, self._keep_alive)
        self._pipeline.begin(call)

    def refuse(
        self, exchange: HttpExchange, id: bytes, error: InterlockError, client: Client | None
    ) -> None:
        """Answer a request that never became a call. `client`: as far as it is known."""
        status, body = write_error(id, error, client)
        challenge = _CHALLENGE if error.failure is UNAUTHENTICATED else b""
        exchange.respond(_status(status, error, client), body, headers=challenge)

    def stop(self) -> None:
        """The node stops: nothing is under way any more."""
        if self._pulse is not None:
            self._pulse.cancel()
            self._pulse = None

    def _done(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        exchange: HttpExchange = call.context
        session = exchange.session
        if session is not None:
            session.calls.pop(exchange.request_id, None)
        id, client = exchange.request_id, call.client
        if outcome is not None:
            try:
                result = outcome.result
                if outcome.era is not client.era:
                    result = write_result(outcome, client, self._hello.server_info, call.verb)
                if not exchange.streaming:
                    exchange.respond_result(id, result)
                else:
                    exchange.event(result_response(id, result))
                    exchange.end_stream()
                return
            except InterlockError as unwritable:
                error = unwritable
        assert error is not None
        if error.failure is CANCELLED:
            # A cancelled request gets no answer; its connection gets an end.
            exchange.open_stream()
            exchange.end_stream()
            return
        status, body = write_error(id, error, client)
        status = _status(status, error, client)
        if exchange.streaming:
            exchange.event(body)
            exchange.end_stream()
        elif status == 401:
            exchange.respond(401, body, headers=_CHALLENGE)
        else:
            exchange.respond(status, body)

    def _keep_alive(self) -> None:
        """Keep the connections of long calls from looking dead to whatever stands in between."""
        self._pulse = None
        now = self._clock()
        waiting = False
        for call in list(self._pipeline.under_way()):
            waiting = True
            # They stand in the order in which they began: the first young one ends the search.
            if now - call.started < QUIET:
                break
            exchange = call.context
            if isinstance(exchange, HttpExchange) and not exchange.done:
                facts = exchange.head.facts
                if isinstance(facts, Facts) and facts.accepts_stream:
                    exchange.open_stream()
                    exchange.ping()
        if waiting:
            self._pulse = asyncio.get_running_loop().call_later(QUIET / 3, self._keep_alive)


def _status(status: int, error: InterlockError, client: Client | None) -> int:
    """On the session wire an error is an answer like any other, but for those that end it."""
    if client is None or client.era is mcp.Era.STATELESS:
        return status
    return status if error.failure in (UNAUTHENTICATED, UNKNOWN_SESSION) else 200
