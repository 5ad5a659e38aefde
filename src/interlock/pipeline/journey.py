"""Carries a call from one wait to the next, without an asyncio task.

A task costs a scheduled callback at its start, one at each wake-up, and its own bookkeeping: more
than all checks of the pipeline together. Most calls wait exactly once, for their upstream. So a
journey runs the call's coroutine at once, and goes on in the very moment in which the answer is
read. Whatever else the coroutine awaits (an ordinary future) works as in a task; what needs
`asyncio.current_task()`, such as `asyncio.timeout`, has to be put into a task by its user.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

_log = logging.getLogger("interlock.pipeline")


class Journey:
    """One coroutine on its way. It ends in `arrived`, or by `cancel`."""

    __slots__ = ("_coroutine", "_over", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, None], over: Callable[[Journey], None]):
        """`over` is called once, when the coroutine has ended, however it did."""
        self._coroutine = coroutine
        self._over = over
        self._waits_for: Any = None

    def begin(self) -> None:
        self._go(None)

    def cancel(self) -> None:
        """Throw CancelledError in where the coroutine waits. After the end: nothing."""
        waits_for = self._waits_for
        if waits_for is None:
            return
        self._waits_for = None
        if hasattr(waits_for, "wake"):
            waits_for.wake = None
        else:
            waits_for.remove_done_callback(self._wake)
            waits_for.cancel()
        self._go(asyncio.CancelledError())

    def _wake(self, _: object = None) -> None:
        self._waits_for = None
        self._go(None)

    def _go(self, error: BaseException | None) -> None:
        try:
            if error is None:
                waits_for = self._coroutine.send(None)
            else:
                waits_for = self._coroutine.throw(error)
        except (StopIteration, asyncio.CancelledError):
            self._over(self)
            return
        except Exception:
            _log.exception("a call ended in a fault of the node")
            self._over(self)
            return
        self._waits_for = waits_for
        waits_for._asyncio_future_blocking = False
        if hasattr(waits_for, "wake"):
            # An exchange: it wakes us itself, in the moment in which it is settled.
            waits_for.wake = self._wake
        else:
            waits_for.add_done_callback(self._wake)
