"""Calls under way over HTTP: started as journeys, answered whole or as a stream, kept alive."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import Raw

from interlock.call import Call, Client
from interlock.errors import TOO_BUSY, UNAUTHENTICATED, InterlockError
from interlock.faces.http.exchange import HttpExchange
from interlock.faces.mcp.facts import Facts
from interlock.faces.mcp.hello import Hello
from interlock.faces.mcp.writing import write_error, write_outcome
from interlock.pipeline.journey import Journey
from interlock.pipeline.pipeline import Pipeline
from interlock.ports import Clock
from interlock.protocol import mcp
from interlock.protocol.jsonrpc import notification

QUIET: Final = 15.0
"""After this long without an answer a response becomes a stream, to show that it is alive."""
_CHALLENGE: Final = b"www-authenticate: Bearer\r\n"


class Answering:
    """Every call that HTTP clients wait for."""

    def __init__(
        self, *, pipeline: Pipeline, hello: Hello, concurrent_calls: int, clock: Clock
    ) -> None:
        self._pipeline = pipeline
        self._hello = hello
        self.concurrent_calls = concurrent_calls
        self._clock = clock
        self._under_way: dict[Journey, tuple[HttpExchange, float]] = {}
        self._pulse: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._under_way)

    def start(self, exchange: HttpExchange, facts: Facts, id: bytes, call: Call) -> Journey:
        """Send the call on its way. It may have arrived when this returns."""
        if len(self._under_way) >= self.concurrent_calls:
            raise InterlockError(
                TOO_BUSY, "The node has as many calls under way as it may; try again."
            )
        if call.meta is not None and mcp.META_PROGRESS_TOKEN in call.meta and facts.accepts_stream:

            def hear(method: str, params: bytes | Raw) -> None:
                # Progress turns a plain answer into a stream, the first time there is any.
                exchange.open_stream()
                exchange.event(notification(method, params))

            call.on_notification = hear
        journey = Journey(self._serve(exchange, id, call), self._over)
        self._under_way[journey] = (exchange, self._clock())
        if self._pulse is None:
            self._pulse = asyncio.get_running_loop().call_later(QUIET / 3, self._keep_alive)
        journey.begin()
        return journey

    async def answer(self, id: bytes, call: Call) -> tuple[int, bytes]:
        """The HTTP status and the body for one call."""
        try:
            outcome = await self._pipeline.run(call)
            return 200, write_outcome(id, outcome, call.client, self._hello.server_info)
        except InterlockError as error:
            return write_error(id, error, call.client)

    def refuse(
        self, exchange: HttpExchange, id: bytes, error: InterlockError, client: Client | None
    ) -> None:
        """Answer a request that never became a call."""
        status, body = write_error(id, error, client)
        challenge = _CHALLENGE if error.failure is UNAUTHENTICATED else b""
        exchange.respond(status, body, headers=challenge)

    def cancel_all(self) -> None:
        """The node stops."""
        if self._pulse is not None:
            self._pulse.cancel()
            self._pulse = None
        for journey in list(self._under_way):
            journey.cancel()

    async def _serve(self, exchange: HttpExchange, id: bytes, call: Call) -> None:
        client = call.client
        try:
            outcome = await self._pipeline.run(call)
            body = write_outcome(id, outcome, client, self._hello.server_info)
            status = 200
        except InterlockError as error:
            status, body = write_error(id, error, client)
            # On the session wire an error is an answer like any other; a stranger's is not.
            if client.era is mcp.Era.SESSION and status not in (401, 404):
                status = 200
        if exchange.streaming:
            exchange.event(body)
            exchange.end_stream()
        elif status == 401:
            exchange.respond(401, body, headers=_CHALLENGE)
        else:
            exchange.respond(status, body)

    def _over(self, journey: Journey) -> None:
        self._under_way.pop(journey, None)

    def _keep_alive(self) -> None:
        """Keep the connections of long calls from looking dead to whatever stands in between."""
        self._pulse = None
        now = self._clock()
        for exchange, started in list(self._under_way.values()):
            # They stand in the order in which they began: the first young one ends the search.
            if now - started < QUIET:
                break
            facts = exchange.head.facts
            if isinstance(facts, Facts) and facts.accepts_stream and not exchange.done:
                exchange.open_stream()
                exchange.ping()
        if self._under_way:
            self._pulse = asyncio.get_running_loop().call_later(QUIET / 3, self._keep_alive)
