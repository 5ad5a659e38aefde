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

    def __init__(self, on_lost: Callable[[], None], max_events: int = MAX_UNREAD_EVENTS) -> None:
        self._on_lost = on_lost
        self._max_events = max_events
        self._unread: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_ended = False

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Event:
        while not self._unread:
            if self._is_ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._unread.popleft()

    def add(self, event: Event) -> None:
        if len(self._unread) >= self._max_events:
            self._unread.popleft()
            self._on_lost()
        self._unread.append(event)
        self._wake()

    def end(self) -> None:
        self._is_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Listeners:
    """Callbacks and streams of events."""

    def __init__(self) -> None:
        self._callbacks: list[tuple[Callable[[Event], bool], Callback]] = []
        self._streams: WeakSet[Events] = WeakSet()
        self._tasks: set[asyncio.Future[None]] = set()
        self.lost_events = 0
        """The number of events that were dropped because a stream was read too slowly."""

    def add(self, selector: str | type, callback: Callback) -> None:
        """Add a callback. Raises ProtocolError for an invalid pattern.

        Args:
            selector: a pattern of kinds, such as `mcp/proposal:*`, or the type of the content.
        """
        self._callbacks.append((make_event_filter(selector), callback))

    def open_stream(self) -> Events:
        events = Events(self._on_event_lost)
        self._streams.add(events)
        return events

    def notify(self, event: Event) -> None:
        """Pass an event to all listeners. A failing callback does not affect the others."""
        for matches, callback in list(self._callbacks):
            if matches(event):
                self._call(callback, event)
        for stream in list(self._streams):
            stream.add(event)

    def end(self) -> None:
        for stream in list(self._streams):
            stream.end()
        self._streams.clear()
        for task in self._tasks:
            task.cancel()

    def _on_event_lost(self) -> None:
        self.lost_events += 1

    def _call(self, callback: Callback, event: Event) -> None:
        try:
            awaitable = callback(event)
        except Exception:
            _log.exception("topic client: a callback for %.100s failed", event.kind)
            return
        if inspect.isawaitable(awaitable):
            task = asyncio.ensure_future(_run_callback(awaitable, event.kind))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _run_callback(work: Awaitable[None], kind: str) -> None:
    try:
        await work
    except Exception:
        _log.exception("topic client: a callback for %.100s failed", kind)


def make_event_filter(selector: str | type) -> Callable[[Event], bool]:
    """Return a filter for a pattern of kinds or a content type. Raises ProtocolError for an invalid
    pattern."""
    if isinstance(selector, type):
        return lambda event: isinstance(event.content, selector)
    if is_reserved(selector):
        # Capability patterns never match reserved kinds. There are only three of these kinds, so a
        # filter names one, or all of them.
        if selector == f"{RESERVED}*":
            return lambda event: event.kind.startswith(RESERVED)
        if "*" in selector:
            raise ProtocolError(
                f"{selector[:100]!r} is not a valid pattern. Use the full name of a gateway "
                "message, "
                f"or {RESERVED}* for all of them.",
                INVALID_REQUEST,
            )
        return lambda event: event.kind == selector
    pattern = compile_pattern(selector)
    return lambda event: pattern.grants(event.kind)
