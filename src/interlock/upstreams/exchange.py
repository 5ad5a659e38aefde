"""A request on its way to an upstream: awaitable, and cheap.

It looks like a future to asyncio, so that a task can await it. A journey (see the pipeline) sets
`wake` instead and is woken at once, without a trip through the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from interlock.call import Hear, Outcome, UpstreamGoneError
from interlock.errors import DEADLINE_EXCEEDED, Failure, InterlockError

if TYPE_CHECKING:
    from interlock.upstreams.peer import Peer


class Exchange:
    """One request, until it is answered, given up, or lost."""

    __slots__ = (
        "_asyncio_future_blocking", "_callback", "_error", "_outcome", "carrier", "hear", "id",
        "method", "open", "peer", "token", "wake",
    )  # fmt: skip

    def __init__(
        self, peer: Peer, id: int, method: str, hear: Hear | None, token: bytes | Raw | None
    ) -> None:
        self.peer = peer
        self.id = id
        self.method = method
        self.hear = hear
        self.token = token
        self.carrier: Any = None
        self.open = True
        self.wake: Callable[[], None] | None = None
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._callback: tuple[Callable[[Any], object], Context | None] | None = None
        self._asyncio_future_blocking = False

    # -- settling: exactly once, the first one counts

    def succeed(self, outcome: Outcome) -> None:
        if self.open:
            self._outcome = outcome
            self._settled()

    def fail_with(self, error: BaseException) -> None:
        if self.open:
            self._error = error
            self._settled()

    def fail(
        self, failure: Failure, message: str, *, sent: bool, status: int = 0, location: str = ""
    ) -> None:
        self.peer.pending.pop(self.id, None)
        self.fail_with(
            UpstreamGoneError(failure, message, sent=sent, status=status, location=location)
        )

    def abandon(self, reason: str) -> None:
        self.peer.abandon(self, reason)

    def expire(self) -> None:
        if not self.open:
            return
        self.peer.abandon(self, "The deadline has passed.")
        self.fail_with(
            InterlockError(
                DEADLINE_EXCEEDED,
                f"{self.peer.label} did not answer {self.method} in time; it was told to stop.",
                {"upstream": self.peer.label},
            )
        )

    def _settled(self) -> None:
        self.open = False
        wake = self.wake
        if wake is not None:
            self.wake = None
            wake()
        elif self._callback is not None:
            callback, context = self._callback
            asyncio.get_running_loop().call_soon(callback, self, context=context)

    # -- awaiting

    def __await__(self) -> Generator[Any, None, Outcome]:
        if self.open:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    def result(self) -> Outcome:
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome

    # -- what a task asks of the future that it waits for

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def add_done_callback(
        self, callback: Callable[[Any], object], *, context: Context | None = None
    ) -> None:
        self._callback = (callback, context)

    def cancel(self, msg: object = None) -> bool:
        if not self.open:
            return False
        self.fail_with(asyncio.CancelledError())
        return True
