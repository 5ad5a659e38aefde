"""Requests that wait in the node: what comes first counts, and nobody is told twice."""

from __future__ import annotations

import asyncio
from typing import Any

from interlock.core.call import Ask, Call, Client, ClientSession, Credentials, Outcome
from interlock.core.ports import Back, Exchange
from interlock.drivers.pending_starts import BodyExchange, WakingExchange
from interlock.errors import AUTH_REQUIRED, InterlockError
from interlock.protocol.mcp import Era
from tests.core.upstreams.harness import run, within


def request() -> Call:
    return Call("tools/call", "test", Credentials("local"), Client(Era.SESSION, "2025-11-25"))


class Waiting:
    """Somebody who waits, and what they were told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.over = asyncio.Event()

    def settled(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        self.told.append("outcome" if error is None else error.failure.name)
        self.over.set()

    def heard(self, call: Call, method: str, params: Any) -> None:
        raise AssertionError("nobody speaks")

    def asked(self, ask: Ask, call: Call | None, session: ClientSession | None) -> None:
        raise AssertionError("nobody asks")


class Sent:
    """A request that has left."""

    def __init__(self) -> None:
        self.open = True
        self.did: list[str] = []
        self.whose: tuple[Call, Back] | None = None

    def abandon(self, reason: str) -> None:
        self.open = False
        self.did.append("abandon")

    def expire(self) -> None:
        self.open = False
        self.did.append("expire")

    def hand_over(self, call: Call, back: Back) -> None:
        self.whose = (call, back)


def test_it_is_the_request_once_that_has_left() -> None:
    async def body() -> None:
        sent, waiting, gate = Sent(), Waiting(), asyncio.Event()

        async def send(call: Call, back: Back) -> Exchange:
            await gate.wait()
            return sent

        exchange = WakingExchange(request(), waiting, send)
        assert exchange.open
        gate.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        another = request()
        exchange.hand_over(another, waiting)
        assert sent.whose == (another, waiting)
        exchange.abandon("enough")
        assert not exchange.open
        assert sent.did == ["abandon"]
        assert waiting.told == []

    run(body)


def test_who_is_handed_over_before_it_leaves_is_told() -> None:
    async def body() -> None:
        first, second, gate = Waiting(), Waiting(), asyncio.Event()

        async def send(call: Call, back: Back) -> Exchange:
            await gate.wait()
            raise InterlockError(AUTH_REQUIRED, "Sign in.")

        exchange = WakingExchange(request(), first, send)
        exchange.hand_over(request(), second)
        gate.set()
        await within(second.over.wait())
        assert (first.told, second.told) == ([], ["auth_required"])
        assert not exchange.open

    run(body)


def test_what_expires_or_is_left_before_it_leaves_is_not_sent() -> None:
    async def body() -> None:
        async def send(call: Call, back: Back) -> Exchange:
            await asyncio.Event().wait()
            raise AssertionError("it is not to be sent")

        late, left = Waiting(), Waiting()
        exchange = WakingExchange(request(), late, send)
        exchange.expire()
        exchange.expire()
        assert late.told == ["deadline_exceeded"]
        assert not exchange.open
        exchange = WakingExchange(request(), left, send)
        exchange.abandon("enough")
        assert not exchange.open
        assert left.told == []

    run(body)


def test_a_fault_of_ours_is_an_error_of_the_call() -> None:
    async def body() -> None:
        waiting = Waiting()

        async def send(call: Call, back: Back) -> Exchange:
            raise ZeroDivisionError

        WakingExchange(request(), waiting, send)
        await within(waiting.over.wait())
        assert waiting.told == ["internal_error"]

    run(body)


def test_a_body_tells_once_what_it_came_to() -> None:
    async def body() -> None:
        told: list[Any] = []
        gate = asyncio.Event()

        async def value() -> str:
            await gate.wait()
            return "done"

        async def wrong() -> str:
            raise InterlockError(AUTH_REQUIRED, "Sign in.")

        def over(value: Any, error: InterlockError | None) -> None:
            told.append(value if error is None else error.failure.name)

        exchange = BodyExchange(value(), over)
        gate.set()
        while exchange.open:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0)
        exchange.expire()
        exchange.abandon("late")
        assert told == ["done"]
        exchange = BodyExchange(wrong(), over)
        while exchange.open:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0)
        assert told == ["done", "auth_required"]

    run(body)


def test_a_body_that_takes_too_long_or_is_left_is_cancelled() -> None:
    async def body() -> None:
        told: list[str] = []
        cancelled: list[str] = []

        async def forever(name: str) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(name)
                raise

        def over(value: Any, error: InterlockError | None) -> None:
            told.append("value" if error is None else error.failure.name)

        late, left = BodyExchange(forever("late"), over), BodyExchange(forever("left"), over)
        await asyncio.sleep(0)
        late.expire()
        left.abandon("enough")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert told == ["deadline_exceeded"]
        assert cancelled == ["late", "left"]

    run(body)
