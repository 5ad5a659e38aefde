"""Requests that wait in the node: for a server that is being started, or for a driver's code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from interlock.core.call import Call
from interlock.core.ports import Back, Exchange
from interlock.errors import DEADLINE_EXCEEDED, INTERNAL, InterlockError

_log = logging.getLogger("interlock.drivers")

Send = Callable[[Call, Back], Awaitable[Exchange]]


class WakingExchange:
    """Waits for the server, sends the request then, and is that request from there on."""

    def __init__(self, call: Call, back: Back, send: Send) -> None:
        self._call = call
        self._back = back
        self._send = send
        self._exchange: Exchange | None = None
        self._over = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            exchange = await self._send(self._call, self._back)
        except InterlockError as error:
            self._fail(error)
        except Exception as bug:
            # Nobody awaits this task, but somebody waits for the call.
            _log.exception("a request could not be sent to its driver")
            self._fail(InterlockError(INTERNAL, f"The node failed ({type(bug).__name__})."))
        else:
            self._exchange = exchange
            if self._over:
                exchange.abandon("Nobody waits for it any more.")

    def _fail(self, error: InterlockError) -> None:
        if not self._over:
            self._over = True
            self._back.settled(self._call, None, error)

    @property
    def open(self) -> bool:
        if self._exchange is not None:
            return self._exchange.open
        return not self._over

    def abandon(self, reason: str) -> None:
        if self._exchange is not None:
            self._exchange.abandon(reason)
        self._over = True
        self._task.cancel()

    def expire(self) -> None:
        if self._exchange is not None:
            self._exchange.expire()
            return
        self._task.cancel()
        self._fail(
            InterlockError(DEADLINE_EXCEEDED, "The driver's server did not get ready in time.")
        )

    def hand_over(self, call: Call, back: Back) -> None:
        self._call, self._back = call, back
        if self._exchange is not None:
            self._exchange.hand_over(call, back)


class BodyExchange:
    """A call that a driver's own code serves."""

    def __init__(
        self,
        body: Coroutine[Any, Any, Any],
        over: Callable[[Any, InterlockError | None], None],
    ) -> None:
        """`over` is told once: the value, or the error."""
        self._over = over
        self.open = True
        self._task = asyncio.get_running_loop().create_task(body)
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        if not self.open:
            return
        self.open = False
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._over(task.result(), None)
        elif isinstance(error, InterlockError):
            self._over(None, error)
        else:
            _log.error("a driver's code failed", exc_info=error)
            self._over(
                None, InterlockError(INTERNAL, f"The driver failed ({type(error).__name__}).")
            )

    def abandon(self, reason: str) -> None:
        self.open = False
        self._task.cancel()

    def expire(self) -> None:
        if self.open:
            self.open = False
            self._task.cancel()
            self._over(None, InterlockError(DEADLINE_EXCEEDED, "The driver was not done in time."))

    def hand_over(self, call: Call, back: Back) -> None:
        """Whoever waits is known to `over`."""
