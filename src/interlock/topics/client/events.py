"""Events of a topic: callbacks and event streams for programs.

Only checked messages become events. Their contents come from other participants: they are data,
never instructions.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakSet

import msgspec

from interlock.errors import INVALID_REQUEST, ProtocolError
from interlock.protocol.kinds import RESERVED, compile_pattern, is_reserved
from interlock.topics.wire.envelope import Envelope

MAX_UNREAD_EVENTS: Final = 1_000
"""The maximum number of events that wait in a stream. The oldest are dropped first."""
_log = logging.getLogger("interlock.topics")


class Event(msgspec.Struct, frozen=True):
    """A checked message.

    `verified` is True, except for a response: None if its request was not seen here.
    """

    content: Any
    envelope: Envelope
    verified: bool | None = True

    @property
    def id(self) -> str:
        return self.envelope.head.id

    @property
    def kind(self) -> str:
        return self.envelope.head.kind

    @property
    def sender(self) -> str:
        return self.envelope.head.sender

    @property
    def to(self) -> tuple[str, ...]:
        return self.envelope.head.to

    @property
    def correlation_id(self) -> str | None:
        return self.envelope.head.correlation_id


Callback = Callable[[Event], Awaitable[None] | None]


class Events:
    """A stream of events from now on, for `async for`. It ends when the participant disconnects."""

    def __init__(self, on_lost: Callable[[], None], most: int = MAX_UNREAD_EVENTS) -> None:
        self._on_lost = on_lost
        self._most = most
        self._unread: deque[Event] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._over = False

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Event:
        while not self._unread:
            if self._over:
                raise StopAsyncIteration
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._unread.popleft()

    def add(self, event: Event) -> None:
        if len(self._unread) >= self._most:
            self._unread.popleft()
            self._on_lost()
        self._unread.append(event)
        self._wake()

    def end(self) -> None:
        self._over = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Listeners:
    """Callbacks and streams of events."""

    def __init__(self) -> None:
        self._callbacks: list[tuple[Callable[[Event], bool], Callback]] = []
        self._streams: WeakSet[Events] = WeakSet()
        self._tasks: set[asyncio.Future[None]] = set()
        self.lost = 0
        """The number of events that were dropped because a stream was read too slowly."""

    def on(self, what: str | type, callback: Callback) -> None:
        """Add a callback. Raises ProtocolError for an invalid pattern.

        Args:
            what: a pattern of kinds, such as `mcp/proposal:*`, or the type of the content.
        """
        self._callbacks.append((make_event_filter(what), callback))

    def stream(self) -> Events:
        events = Events(self._missed)
        self._streams.add(events)
        return events

    def tell(self, event: Event) -> None:
        """Pass an event to all listeners. A failing callback does not affect the others."""
        for is_meant, callback in list(self._callbacks):
            if is_meant(event):
                self._call(callback, event)
        for stream in list(self._streams):
            stream.add(event)

    def end(self) -> None:
        for stream in list(self._streams):
            stream.end()
        self._streams.clear()
        for task in self._tasks:
            task.cancel()

    def _missed(self) -> None:
        self.lost += 1

    def _call(self, callback: Callback, event: Event) -> None:
        try:
            later = callback(event)
        except Exception:
            _log.exception("a callback for %.100s failed", event.kind)
            return
        if inspect.isawaitable(later):
            task = asyncio.ensure_future(_run_callback(later, event.kind))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _run_callback(work: Awaitable[None], kind: str) -> None:
    try:
        await work
    except Exception:
        _log.exception("a callback for %.100s failed", kind)


def make_event_filter(what: str | type) -> Callable[[Event], bool]:
    """Return a filter for a pattern of kinds or a content type. Raises ProtocolError for an invalid
    pattern."""
    if isinstance(what, type):
        return lambda event: isinstance(event.content, what)
    if is_reserved(what):
        # Capability patterns never match reserved kinds. There are only three of these kinds, so a
        # filter names one, or all of them.
        if what == f"{RESERVED}*":
            return lambda event: event.kind.startswith(RESERVED)
        if "*" in what:
            raise ProtocolError(
                f"{what[:100]!r} is not a valid pattern. Use the full name of a gateway message, "
                f"or {RESERVED}* for all of them.",
                INVALID_REQUEST,
            )
        return lambda event: event.kind == what
    pattern = compile_pattern(what)
    return lambda event: pattern.grants(event.kind)
