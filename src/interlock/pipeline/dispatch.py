"""Send it. The only place where a call leaves the node, and the only one that may send it again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from interlock.call import Call, Outcome, UpstreamGoneError
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.pipeline.deadline import DeadlineWatch
from interlock.ports import Clock, Upstream

PATIENCE: Final = 5.0
"""How long a call waits for a lost upstream to come back before it is failed."""


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

    async def send(self, call: Call, upstream: Upstream, *, repeatable: bool) -> Outcome:
        """The outcome of the call.

        A call whose upstream died is sent again only if it never left, or if doing it twice is
        doing it once; and then only once.
        """
        try:
            return await self._attempt(call, upstream)
        except UpstreamGoneError as gone:
            if gone.sent and not repeatable:
                raise
            patience = min(PATIENCE, call.deadline - self._clock())
            if not await upstream.until_ready(patience):
                raise
        return await self._attempt(call, upstream)

    async def _attempt(self, call: Call, upstream: Upstream) -> Outcome:
        slot = 0
        heard = call.on_notification
        if heard is None:
            exchange = upstream.start(call, None)
        else:

            def hear(method: str, params: bytes | Raw) -> None:
                # A sign of life: the wait starts again, up to the hard deadline.
                nonlocal slot
                self._deadlines.forget(exchange, slot)
                renewed = min(self._clock() + call.timeout, call.hard_deadline)
                slot = self._deadlines.watch(exchange, renewed)
                heard(method, params)

            exchange = upstream.start(call, hear)
        slot = self._deadlines.watch(exchange, call.deadline)
        try:
            return await exchange
        except asyncio.CancelledError:
            exchange.abandon("The caller cancelled the call.")
            raise
        finally:
            self._deadlines.forget(exchange, slot)
