"""Streams to a session's client that outlive their connections.

Every event has an id that is unique in its session. A client whose connection broke comes back
with the last id it saw, and gets what it missed on that one stream and nothing of any other. How
much is kept, and for how long, is bounded: whoever comes too late is told so.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from typing import Final

from interlock.core.call import Call
from interlock.core.server.http.exchange import HttpExchange
from interlock.errors import INVALID_REQUEST, InterlockError
from interlock.protocol.sse import encode_event

KEPT_FOR = 120.0
"""How long a stream of a request waits for its client after the connection has ended."""
MOST_EVENTS = 256
MOST_BYTES = 1024 * 1024
"""What is kept of one stream. Its last event always is: of a request's stream it is the answer."""
MOST_STREAMS = 32
"""How many streams without a connection one session may have."""
RETRY_MS = 500
"""How soon a client whose stream has ended comes back for the rest."""
_PRIMED: Final = frozenset({"2025-11-25"})
"""Revisions whose clients understand an event that only brings an id."""


class ResumableStream:
    """One stream: what was sent on it lately, and the connection that carries it now."""

    __slots__ = (
        "_events", "_first", "_next", "_outlets", "_size",
        "connection", "expiry", "left_at", "number", "over", "own",
    )  # fmt: skip

    def __init__(self, outlets: ResumableStreams, number: int, *, own: bool) -> None:
        self.number = number
        self.own = own
        """Whether it is the session's own, for what belongs to no request."""
        self.connection: HttpExchange | None = None
        self.over = False
        """Whether everything has been said on it."""
        self.left_at = 0.0
        """When its last connection ended, on the loop's clock."""
        self.expiry: asyncio.TimerHandle | None = None
        self._outlets = outlets
        self._events: deque[bytes] = deque()
        self._size = 0
        self._first = 0
        """The number of the oldest event that is kept."""
        self._next = 0

    def send(self, payload: bytes) -> None:
        """Send one message, and keep it for a client that has to ask again."""
        self._event(payload, None)

    def prime(self) -> None:
        """Give the client an id to come back with before there is anything to say."""
        self._event(b"", RETRY_MS)

    def finish(self, payload: bytes | None) -> None:
        """Send the last message, when there is one, and end the stream."""
        if payload is not None:
            self._event(payload, None)
        self.over = True
        if self.connection is not None:
            self.hang_up()
        else:
            # From now on there is something to come back for.
            self._outlets.left(self)

    def hang_up(self) -> None:
        """End the connection; the stream goes on when the client comes back for it."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.on_disconnect = None
            connection.end_stream()
            self._outlets.left(self)

    def ping(self) -> None:
        if self.connection is not None:
            self.connection.ping()

    @property
    def away(self) -> float:
        """For how long it has had no connection."""
        return 0.0 if self.connection else asyncio.get_running_loop().time() - self.left_at

    def missed(self, seen: int) -> list[bytes]:
        """The events after the one that the client saw last. Raises InterlockError."""
        if seen >= self._next:
            raise _refusal("no such event was sent on this session")
        if seen < self._first - 1:
            raise _refusal("what came after it is no longer kept")
        return list(self._events)[seen + 1 - self._first :]

    def carry_on(self, exchange: HttpExchange, events: list[bytes]) -> None:
        """Go on over this connection: first what was missed, then whatever comes."""
        before, self.connection = self.connection, exchange
        if before is not None:
            # It is dead, and only the client knows so far.
            before.on_disconnect = None
            before.end_stream()
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None
        exchange.outlet = self
        exchange.on_disconnect = self._disconnected
        for event in events:
            exchange.write_event(event)
        if self.over:
            self.hang_up()

    def _event(self, payload: bytes, retry: int | None) -> None:
        id = f"{self._outlets.mark}-{self.number}-{self._next}"
        event = encode_event(payload, id=id, retry=retry)
        self._next += 1
        self._events.append(event)
        self._size += len(event)
        while len(self._events) > MOST_EVENTS or (
            self._size > MOST_BYTES and len(self._events) > 1
        ):
            self._size -= len(self._events.popleft())
            self._first += 1
        if self.connection is not None:
            self.connection.write_event(event)

    def _disconnected(self, exchange: HttpExchange) -> None:
        if exchange is self.connection:
            self.connection = None
            self._outlets.left(self)


class ResumableStreams:
    """All streams of one session."""

    __slots__ = ("_numbers", "_outlets", "mark", "on_left", "primed")

    def __init__(self, revision: str) -> None:
        self.primed = revision in _PRIMED
        self.mark = secrets.token_hex(6)
        """Tells this session's event ids from those of every other."""
        self.on_left: Callable[[], None] | None = None
        """Told when a connection has ended."""
        self._numbers = 0
        self._outlets: dict[int, ResumableStream] = {}

    @property
    def connected(self) -> int:
        """How many of the session's own streams have a connection."""
        return sum(1 for one in self._outlets.values() if one.own and one.connection is not None)

    def __len__(self) -> int:
        return len(self._outlets)

    # -- opening

    def open_own(self, exchange: HttpExchange) -> None:
        """A new stream of the session's own."""
        for old in list(self._outlets.values()):
            if old.own and old.connection is None:
                # Its client starts anew: what it missed it does not want.
                self._drop(old)
        self._open(exchange, own=True)

    def open_for(self, exchange: HttpExchange) -> ResumableStream | None:
        """The stream of a request, opened when it is not. None: the client is gone."""
        outlet: ResumableStream | None = exchange.outlet
        if outlet is None and not exchange.done:
            outlet = self._open(exchange, own=False)
        return outlet

    def resume(self, exchange: HttpExchange, last_event_id: bytes) -> None:
        """Go on with the stream of this event. Raises InterlockError when that cannot be."""
        mark, _, place = last_event_id.strip().partition(b"-")
        number, _, seen = place.partition(b"-")
        if mark != self.mark.encode() or not (_counts(number) and _counts(seen)):
            raise _refusal("it is no event id of this session")
        outlet = self._outlets.get(int(number))
        if outlet is None:
            raise _refusal("its stream is no longer kept")
        events = outlet.missed(int(seen))
        exchange.open_stream()
        outlet.carry_on(exchange, events)

    def _open(self, exchange: HttpExchange, *, own: bool) -> ResumableStream:
        self._numbers += 1
        outlet = self._outlets[self._numbers] = ResumableStream(self, self._numbers, own=own)
        exchange.open_stream()
        outlet.carry_on(exchange, [])
        if self.primed:
            outlet.prime()
        return outlet

    # -- the way to the client

    def send(self, payload: bytes, call: Call | None, *, question: bool = False) -> bool:
        """Send on exactly one stream: the call's own if it can be, else the session's own.

        A question is not left for a client that has been away for long.
        """
        outlet = self._find(call)
        if outlet is None or (question and outlet.away > KEPT_FOR):
            return False
        outlet.send(payload)
        return True

    def _find(self, call: Call | None) -> ResumableStream | None:
        asked: ResumableStream | None = None
        exchange = None if call is None else call.context
        if isinstance(exchange, HttpExchange):
            facts = exchange.head.facts
            if exchange.outlet is not None or (facts is not None and facts.accepts_stream):
                asked = self.open_for(exchange)
            if asked is not None and asked.connection is not None:
                return asked
            if asked is not None and asked.number not in self._outlets:
                asked = None
        waiting: ResumableStream | None = None
        # The newest first: older ones may be dead.
        for outlet in reversed(self._outlets.values()):
            if outlet.own:
                if outlet.connection is not None:
                    return outlet
                waiting = waiting or outlet
        # Nobody is there this moment. What is sent now waits for the client to come back.
        return asked or waiting

    def hang_up(self, call: Call) -> None:
        """End the connection of a call, when its client knows to come back."""
        exchange = call.context
        if not self.primed or not isinstance(exchange, HttpExchange):
            return
        facts = exchange.head.facts
        if exchange.outlet is not None or (facts is not None and facts.accepts_stream):
            outlet = self.open_for(exchange)
            if outlet is not None:
                outlet.hang_up()

    def ping(self) -> None:
        """Show that the session's own streams are alive."""
        for outlet in list(self._outlets.values()):
            if outlet.own:
                outlet.ping()

    def stop_listening(self) -> None:
        """End the session's own streams."""
        for outlet in list(self._outlets.values()):
            if outlet.own:
                outlet.finish(None)

    def end(self) -> None:
        """The session is over, and its streams with it."""
        outlets, self._outlets = self._outlets, {}
        for outlet in outlets.values():
            outlet.finish(None)
            self._drop(outlet)

    # -- without a connection

    def left(self, outlet: ResumableStream) -> None:
        """A stream has lost its connection, or has no more need of it."""
        if self.on_left is not None:
            self.on_left()
        if outlet.number not in self._outlets:
            return
        loop = asyncio.get_running_loop()
        outlet.left_at = loop.time()
        if outlet.expiry is not None:
            outlet.expiry.cancel()
            outlet.expiry = None
        # The session's only stream of its own is kept as long as the session: a client that was
        # away for an hour still learns what changed.
        if not outlet.own or any(one.own for one in self._outlets.values() if one is not outlet):
            outlet.expiry = loop.call_later(KEPT_FOR, self._drop, outlet)
        alone = [one for one in self._outlets.values() if one.connection is None]
        for old in alone[: max(0, len(alone) - MOST_STREAMS)]:
            self._drop(old)

    def _drop(self, outlet: ResumableStream) -> None:
        self._outlets.pop(outlet.number, None)
        if outlet.expiry is not None:
            outlet.expiry.cancel()
            outlet.expiry = None


def _counts(text: bytes) -> bool:
    return text.isdigit() and len(text) <= 18


def _refusal(why: str) -> InterlockError:
    return InterlockError(
        INVALID_REQUEST, f"Last-Event-ID cannot be served: {why}. Open a new stream without it."
    )
