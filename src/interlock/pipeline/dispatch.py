"""Send it once more, when its upstream went away and that does no harm."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from interlock.call import Call, UpstreamGoneError
from interlock.errors import InterlockError
from interlock.ports import Back, Clock, Upstream

PATIENCE: Final = 5.0
"""How long a call waits for a lost upstream to come back before it is failed."""

_log = logging.getLogger("interlock.pipeline")


class Dispatcher:
    """Hands calls to upstreams that come back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: set[asyncio.Task[None]] = set()

    def may_send_again(self, call: Call, gone: UpstreamGoneError) -> bool:
        """Whether a call whose upstream went away may be sent once more.

        It may when it never left, or when doing it twice is doing it once; and then only once.
        """
        if call.sent_again or (gone.sent and not call.repeatable):
            return False
        call.sent_again = True
        return True

    def send_again(
        self, call: Call, upstream: Upstream, gone: UpstreamGoneError, back: Back
    ) -> None:
        """Wait for the upstream to come back, and send the call then; else it failed as it did."""
        task = asyncio.get_running_loop().create_task(
            self._wait_and_send(call, upstream, gone, back)
        )
        call.exchange = _Waiting(task, lambda: back.settled(call, None, gone))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _wait_and_send(
        self, call: Call, upstream: Upstream, gone: UpstreamGoneError, back: Back
    ) -> None:
        try:
            patience = min(PATIENCE, call.deadline - self._clock())
            if patience <= 0 or not await upstream.until_ready(patience):
                raise gone
            call.exchange = upstream.start(call, back)
        except InterlockError as error:
            back.settled(call, None, error)
        except Exception:
            # Nobody awaits this task, but somebody waits for the call.
            _log.exception("%s could not be sent again", call.upstream)
            back.settled(call, None, gone)


class _Waiting:
    """Stands for the request of a call that waits to be sent again."""

    __slots__ = ("_give_up", "_task")

    def __init__(self, task: asyncio.Task[None], give_up: Callable[[], None]) -> None:
        self._task = task
        self._give_up = give_up

    @property
    def open(self) -> bool:
        return not self._task.done()

    def abandon(self, reason: str) -> None:
        self._task.cancel()

    def hand_over(self, call: Call, back: Back) -> None:
        """It has not left yet, so nothing was asked on the way that could be handed over."""

    def expire(self) -> None:
        if not self._task.done():
            self._task.cancel()
            self._give_up()
