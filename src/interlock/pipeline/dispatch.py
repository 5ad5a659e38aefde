"""Send it. The only place where a call leaves the node, and the only one that may send it again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from interlock.call import Call, Hear, Outcome, UpstreamGoneError
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.pipeline.deadline import DeadlineWatch
from interlock.ports import Clock, Exchange, Upstream

PATIENCE: Final = 5.0
"""How long a call waits for a lost upstream to come back before it is failed."""
ABANDONED: Final = "The caller cancelled the call."


class Dispatcher:
    """Hands calls to upstreams and watches over them until they are answered."""

    def __init__(
        self, upstreams: Mapping[str, Upstream], deadlines: DeadlineWatch, clock: Clock
    ) -> None:
        self._upstreams = upstreams
        self._deadlines = deadlines
        self._clock = clock

    def upstream(self, key: str) -> Upstream:
        upstream = self._upstreams.get(key)
        if upstream is None:
            raise InterlockError(UPSTREAM_UNAVAILABLE, f"{key} is no longer served by this node.")
        return upstream

    def start(self, call: Call, upstream: Upstream) -> tuple[Exchange, Slot]:
        """Send the call and watch its deadline. `over` must follow, whatever happens."""
        if call.on_notification is None:
            exchange = upstream.start(call, None)
            return exchange, Slot(self._deadlines.watch(exchange, call.deadline))
        return self._start_talkative(call, upstream, call.on_notification)

    def over(self, exchange: Exchange, slot: Slot) -> None:
        """Nobody waits for the exchange any more: it was answered, or its caller is gone."""
        self._deadlines.forget(exchange, slot.number)

    async def again(
        self, call: Call, upstream: Upstream, gone: UpstreamGoneError, repeatable: bool
    ) -> Outcome:
        """Send a call whose upstream went away once more, if that can do no harm.

        It cannot when the call never left, or when doing it twice is doing it once.
        """
        if gone.sent and not repeatable:
            raise gone
        patience = min(PATIENCE, call.deadline - self._clock())
        if patience <= 0:
            raise gone
        # In a task of its own: this may take a while, and needs a time limit.
        back = asyncio.get_running_loop().create_task(_wait(upstream, patience))
        try:
            ready = await back
        except asyncio.CancelledError:
            back.cancel()
            raise
        if not ready:
            raise gone
        exchange, slot = self.start(call, upstream)
        try:
            return await exchange
        except (asyncio.CancelledError, GeneratorExit):
            exchange.abandon(ABANDONED)
            raise
        finally:
            self.over(exchange, slot)

    def _start_talkative(
        self, call: Call, upstream: Upstream, heard: Hear
    ) -> tuple[Exchange, Slot]:
        slot = Slot(0)

        def hear(method: str, params: bytes | Raw) -> None:
            # A sign of life: the wait starts again, up to the hard deadline.
            self._deadlines.forget(exchange, slot.number)
            renewed = min(self._clock() + call.timeout, call.hard_deadline)
            slot.number = self._deadlines.watch(exchange, renewed)
            heard(method, params)

        exchange = upstream.start(call, hear)
        slot.number = self._deadlines.watch(exchange, call.deadline)
        return exchange, slot


class Slot:
    """Where the deadline of an exchange is watched; progress moves it."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


async def _wait(upstream: Upstream, seconds: float) -> bool:
    return await upstream.until_ready(seconds)
